import struct
from collections.abc import Iterator
from random import Random

import pytest

from pixy.kafka_messages import MESSAGE_APIS, MalformedKafkaMessage, parse_head
from pixy.kafka_messages.generated.api_versions import ApiVersion, ApiVersionsResponse
from pixy.kafka_messages.generated.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from pixy.kafka_messages.generated.metadata import MetadataRequest, MetadataRequestTopic
from pixy.kafka_messages.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pixy.kafka_messages.primitives import ELEMENTS_MAX
from tests.kafka_messages.random_messages import API_SCHEMAS, CASES, RandomMessages

PRODUCE, FETCH, METADATA, API_VERSIONS = (MESSAGE_APIS[key] for key in (0, 1, 3, 18))


def requests(seed: int) -> Iterator[tuple[int, int, bytes]]:
    """Key, version and body of a random request of each API and version."""
    for api, version, side in CASES:
        if side == "request":
            message = RandomMessages(Random(seed)).message(api, version, side)
            frame = b"".join(MESSAGE_APIS[api.key].write_request(version, message, "", 1))
            yield api.key, version, frame[14 + (version >= MESSAGE_APIS[api.key].flexible) :]


def test_a_request_has_length_head_and_message() -> None:
    request = ProduceRequest(None, -1, 1500, [TopicProduceData("t", [PartitionProduceData(3, b"abc")])])
    frame = b"".join(PRODUCE.write_request(7, request, "me", 99))
    assert struct.unpack_from(">ihhih", frame) == (len(frame) - 4, 0, 7, 99, 2)
    head = parse_head(frame[4:])
    assert (head.key, head.version, head.correlation_id, head.client_id) == (0, 7, 99, "me")
    assert PRODUCE.parse_request(7, frame[4:], head.body) == request


def test_records_are_views_of_the_frame() -> None:
    request = ProduceRequest(topic_data=[TopicProduceData("t", [PartitionProduceData(0, b"abc")])])
    frame = b"".join(PRODUCE.write_request(9, request, "", 1))[4:]
    found = PRODUCE.parse_request(9, frame, parse_head(frame).body)
    records = found.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame


def test_records_are_written_as_they_are() -> None:
    first, second = memoryview(bytes(70_000)), memoryview(b"xyz")
    partition = PartitionData(1, records=[first, second], aborted_transactions=None)
    response = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[partition])])
    chunks = FETCH.write_response(11, response, 5)
    assert chunks[1] is first
    assert chunks[2] is second
    whole = b"".join(chunks)
    assert struct.unpack_from(">ii", whole) == (len(whole) - 4, 5)
    found = FETCH.parse_response(11, whole, 4 + FETCH.body_of_response(11))
    assert bytes(found.responses[0].partitions[0].records) == bytes(first) + b"xyz"


def test_a_flexible_head_ends_with_tags_that_nobody_knows() -> None:
    frame = struct.pack(">hhih", 3, 9, 1, -1) + b"\x01\x05\x02ab" + b"\x00\x01\x00\x00\x00"
    head = parse_head(frame)
    assert head.client_id == ""
    assert METADATA.parse_request(9, frame, head.body).topics is None


def test_the_head_of_an_unknown_version_is_read_without_tags() -> None:
    assert parse_head(struct.pack(">hhih", 18, 99, 1, -1)).version == 99
    assert parse_head(struct.pack(">hhih", 9999, 0, 1, -1)).key == 9999


def test_the_answer_to_api_versions_never_has_a_flexible_head() -> None:
    answer = b"".join(API_VERSIONS.write_response(3, ApiVersionsResponse(api_keys=[ApiVersion(0, 0, 9)]), 1))
    assert answer[4:10] == struct.pack(">ih", 1, 0)


def test_lengths_of_more_than_a_byte_are_varints() -> None:
    request = MetadataRequest([MetadataRequestTopic(name=f"topic-{n}") for n in range(300)])
    frame = b"".join(METADATA.write_request(12, request, "", 1))[4:]
    assert METADATA.parse_request(12, frame, parse_head(frame).body) == request


def test_a_null_that_a_version_lacks_is_malformed() -> None:
    with pytest.raises(MalformedKafkaMessage, match="length of -1"):
        METADATA.parse_request(0, struct.pack(">i", -1), 0)
    assert METADATA.parse_request(1, struct.pack(">i", -1), 0).topics is None


@pytest.mark.parametrize("count", [5, 1 << 20, (1 << 31) - 1])
def test_a_count_beyond_the_message_is_malformed(count: int) -> None:
    with pytest.raises(MalformedKafkaMessage, match=f"length of {count}"):
        METADATA.parse_request(1, struct.pack(">i", count) + b"abc", 0)


def test_the_elements_of_a_request_are_bounded_together() -> None:
    most = MetadataRequest([MetadataRequestTopic(name="") for _ in range(ELEMENTS_MAX)])
    frame = b"".join(METADATA.write_request(4, most, "", 1))[4:]
    assert len(METADATA.parse_request(4, frame, parse_head(frame).body).topics) == ELEMENTS_MAX
    partitions = [PartitionProduceData(number, None) for number in range(1000)]
    many = ProduceRequest(topic_data=[TopicProduceData("t", partitions) for _ in range(51)])
    for version in (7, 9):
        frame = b"".join(PRODUCE.write_request(version, many, "", 1))[4:]
        with pytest.raises(MalformedKafkaMessage, match="more than 50000 elements"):
            PRODUCE.parse_request(version, frame, parse_head(frame).body)


def test_bytes_behind_a_request_are_ignored_and_behind_a_response_malformed() -> None:
    assert METADATA.parse_request(0, struct.pack(">i", 0) + b"x", 0).topics == []
    with pytest.raises(MalformedKafkaMessage, match="1 bytes are left"):
        API_VERSIONS.parse_response(0, struct.pack(">hi", 0, 0) + b"x", 0)


@pytest.mark.parametrize(
    "tags",
    [b"\x01\x00\x7f", b"\x02\x05\x00\x05\x00", b"\xff\xff\xff\xff\x7f", b"\x01\x05\xff\xff\xff\xff\xff"],
)
def test_malformed_tags(tags: bytes) -> None:
    with pytest.raises(MalformedKafkaMessage):
        METADATA.parse_request(9, b"\x00\x01\x00\x00" + tags, 0)


@pytest.mark.slow
def test_every_truncated_prefix_is_refused() -> None:
    for key, version, body in requests(seed=1):
        for end in range(len(body)):
            with pytest.raises(MalformedKafkaMessage):
                MESSAGE_APIS[key].parse_request(version, body[:end], 0)


@pytest.mark.slow
def test_a_flipped_byte_is_refused_or_parsed() -> None:
    rng = Random(2)
    for key, version, body in requests(seed=3):
        for at in range(len(body)):
            flipped = bytearray(body)
            flipped[at] ^= 1 << rng.randrange(8)
            try:
                MESSAGE_APIS[key].parse_request(version, bytes(flipped), 0)
            except MalformedKafkaMessage:
                continue


def test_messages_are_equal_by_their_fields_and_show_them() -> None:
    assert MetadataRequestTopic(name="a") == MetadataRequestTopic(name="a")
    assert MetadataRequestTopic(name="a") != MetadataRequestTopic(name="b")
    assert "name='a'" in repr(MetadataRequestTopic(name="a"))


def test_every_api_has_a_schema() -> None:
    assert {api.key: api.name for api in API_SCHEMAS} == {key: api.name for key, api in MESSAGE_APIS.items()}

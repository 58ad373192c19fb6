"""Bytes of FetchSnapshot: requests and answers of this cluster are Kafka's."""

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.snapshots.fetch_snapshot_codec import (
    CurrentLeader,
    SliceAnswer,
    SliceRequest,
    WantedSlice,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from pixy.errors import InvalidArgument
from pixy.kafka_protocol import Api, RequestHeader
from pixy.kafka_protocol.snapshot_messages import FETCH_SNAPSHOT_V0, FETCH_SNAPSHOT_V1
from pixy.storage import CheckpointId

ID = CheckpointId(6, 1000)
WANTED = WantedSlice("metadata", 0, 7, ID, 4096)
REQUEST = SliceRequest("Y2x1c3Rlcg", 3, 65536, WANTED)
HEADER = RequestHeader(FETCH_SNAPSHOT_V1, 9, "node 3")
ANSWER = SliceAnswer(0, WANTED, ID, CurrentLeader(2, 7), 5000, 4096, b"slice")

ASKED = bytes.fromhex(
    "003b 0001 00000009 0006 6e6f64652033 00"
    "00000003 00010000 02 09 6d65746164617461 02 00000000 00000007 00000000000003e8 00000006 00 "
    "0000000000001000 00 00 01 00 0b 0b 593278316333526c6367"
)
ANSWERED = bytes.fromhex(
    "00000009 00"
    "00000000 0000 02 09 6d65746164617461 02 00000000 0000 00000000000003e8 00000006 00 0000000000001388 "
    "0000000000001000 06 736c696365 01 00 09 00000002 00000007 00 00 00"
)


def test_a_request_has_the_bytes_of_kafkas() -> None:
    assert encode_request(REQUEST, 9) == ASKED
    assert decode_request(ASKED) == (HEADER, REQUEST)


def test_an_answer_has_the_bytes_of_kafkas() -> None:
    assert encode_answer(HEADER, ANSWER) == ANSWERED
    assert decode_answer(ANSWERED, WANTED, 9) == ANSWER


@pytest.mark.parametrize("api", [FETCH_SNAPSHOT_V0, FETCH_SNAPSHOT_V1])
def test_both_versions_are_served(api: Api) -> None:
    request = api(3, 65536, [("metadata", [(0, 7, (1000, 6, {}), 4096, {})], {})], {})
    payload = request.build_request_header(9, "").encode() + request.encode()
    header, decoded = decode_request(payload)
    assert header.api is api
    assert decoded == SliceRequest(None, 3, 65536, WANTED)
    assert decode_answer(encode_answer(header, ANSWER), WANTED, 9) == ANSWER


@pytest.mark.parametrize("topics", [0, 1, 2])
@pytest.mark.parametrize("partitions", [0, 1, 2])
def test_a_request_is_about_exactly_one_partition(topics: int, partitions: int) -> None:
    each: tuple[object, ...] = (0, 7, (1000, 6, {}), 4096, {})
    message = FETCH_SNAPSHOT_V1(3, 65536, [("metadata", [each] * partitions, {})] * topics, {})
    payload = HEADER.encode() + message.encode()
    assert decode_request(payload)[1].wanted == (WANTED if topics == partitions == 1 else None)


def test_a_request_may_have_neither_topics_nor_partitions() -> None:
    without: list[object] = [("metadata", None, {})]
    for topics in (None, without):
        payload = HEADER.encode() + FETCH_SNAPSHOT_V1(3, 65536, topics, {}).encode()
        assert decode_request(payload)[1].wanted is None


def test_an_error_of_the_whole_request_names_nothing() -> None:
    payload = encode_answer(HEADER, SliceAnswer(104))
    assert payload == bytes.fromhex("00000009 00 00000000 0068 01 00")
    assert decode_answer(payload, WANTED, 9) == SliceAnswer(104)


@pytest.mark.slow
@given(st.integers(-1, 200), st.integers(0, 2**40), st.binary(max_size=100), st.booleans())
def test_answers_decode_to_themselves(error: int, number: int, content: bytes, led: bool) -> None:
    leader = CurrentLeader(-1, 3) if led else None
    answer = SliceAnswer(error, WANTED, CheckpointId(6, number), leader, number, number // 2, content)
    assert decode_answer(encode_answer(HEADER, answer), WANTED, 9) == answer


def test_every_truncation_is_malformed() -> None:
    for size in range(len(ASKED)):
        with pytest.raises(InvalidArgument, match="a malformed FetchSnapshot request"):
            decode_request(ASKED[:size])
    for size in range(len(ANSWERED)):
        with pytest.raises(ValueError, match=r"are left|has \d+ bytes"):
            decode_answer(ANSWERED[:size], WANTED, 9)


def test_another_api_or_version_is_rejected() -> None:
    for key, version in ((59, 2), (1, 1)):
        payload = key.to_bytes(2, "big") + version.to_bytes(2, "big") + ASKED[4:]
        with pytest.raises(InvalidArgument, match="is not supported, only FetchSnapshot 0, FetchSnapshot 1"):
            decode_request(payload)


def test_an_answer_to_another_request_is_rejected() -> None:
    with pytest.raises(ValueError, match="an answer to request 9, expected 8"):
        decode_answer(ANSWERED, WANTED, 8)
    for wanted in (WANTED._replace(topic="sinks"), WANTED._replace(partition=1)):
        with pytest.raises(ValueError, match=f"0 answers about {wanted.topic}, expected one"):
            decode_answer(ANSWERED, wanted, 9)


def test_a_malformed_tag_is_rejected() -> None:
    message = FETCH_SNAPSHOT_V1(3, 1, [], {0: b"\x05a"})
    with pytest.raises(InvalidArgument, match="4 bytes are expected, 1 are left"):
        decode_request(HEADER.encode() + message.encode())


def test_an_answer_without_content_has_none() -> None:
    partition: tuple[object, ...] = (0, 0, (1000, 6, {}), 5000, 4096, None, {})
    fields = FETCH_SNAPSHOT_V1.encode_response((0, 0, [("metadata", [partition], {})], {}))
    answer = decode_answer(BytesIO(b"\0\0\0\x09\0" + fields).read(), WANTED, 9)
    assert (answer.content, answer.leader) == (b"", None)

"""pixy/api/grpc/requests.py: every request is parsed as by protobuf."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from pixy.api.grpc.requests import (
    ConsumeOfCluster,
    ConsumeRequestParser,
    ProduceRequest,
    ProduceRequestParser,
)
from pixy.consume import ConsumeRequest
from pixy.proto import kafkapixy_pb2 as pb

NAMES = st.text(max_size=3)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
LENGTHS = [0, 1, 127, 128, 129, 255, 256, 16_383, 16_384, 16_385, 70_000]
BYTES = st.binary(max_size=4) | st.sampled_from([bytes(length) for length in LENGTHS])
KEYS = st.none() | st.binary(max_size=4) | st.sampled_from([b"k" * length for length in (127, 128, 300)])
TOPICS = st.sampled_from(["t", "", "\u00e9", "t" * 127, "t" * 128, "t" * 300])


def produce_request(topic: str, key: bytes | None, message: bytes, **fields: Any) -> bytes:
    request = pb.ProdRq(topic=topic, message=message, **fields)
    if key is None:
        request.key_undefined = True
    else:
        request.key_value = key
    return request.SerializeToString()


def consume_request(**fields: Any) -> bytes:
    return pb.ConsNAckRq(topic="t", group="g", **fields).SerializeToString()


def produced_fields(body: bytes) -> ProduceRequest:
    message = pb.ProdRq.FromString(body)
    key = None if message.key_undefined else message.key_value
    headers = [(header.key, header.value) for header in message.headers]
    value = None if message.value_undefined else message.message
    return message.cluster, message.topic, key, value, headers, not message.async_mode


def consumed_fields(body: bytes) -> ConsumeOfCluster:
    message = pb.ConsNAckRq.FromString(body)
    acks = not message.no_ack
    auto_ack = acks and message.auto_ack
    ack = (message.ack_partition, message.ack_offset) if acks and not auto_ack else None
    return message.cluster, ConsumeRequest(message.group, message.topic, auto_ack, ack, ack == (0, 0))


def check_produce(parser: ProduceRequestParser, body: bytes) -> None:
    for given_as in (body, bytearray(body)):
        try:
            expected = produced_fields(body)
        except DecodeError:
            with pytest.raises(DecodeError):
                parser.parse(given_as)
            continue
        parsed = parser.parse(given_as)
        assert (*parsed[:4], list(parsed[4]), parsed[5]) == expected


def knowing(*topics: str) -> ProduceRequestParser:
    """A parser that has seen the topics."""
    parser = ProduceRequestParser()
    for topic in topics:
        parser.parse(produce_request(topic, None, b""))
    return parser


# --- Produce --------------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.lists(
        st.builds(
            produce_request,
            topic=TOPICS,
            key=KEYS,
            message=BYTES,
            cluster=st.sampled_from(["", "", "c"]),
            async_mode=st.booleans(),
            value_undefined=st.booleans(),
            headers=st.lists(st.builds(pb.RecordHeader, key=NAMES, value=st.binary(max_size=3)), max_size=1),
        ),
        max_size=5,
    )
)
def test_requests_to_produce_are_parsed_as_by_protobuf(bodies: list[bytes]) -> None:
    parser = ProduceRequestParser()
    for body in bodies * 2:
        check_produce(parser, body)


@pytest.mark.parametrize("key", [None, b"", b"key", b"k" * 127, b"k" * 128])
@pytest.mark.parametrize("length", LENGTHS)
def test_messages_of_every_length_of_their_length_are_parsed(key: bytes | None, length: int) -> None:
    check_produce(knowing("t"), produce_request("t", key, bytes(length)))


@pytest.mark.slow
@given(
    st.builds(
        produce_request,
        topic=st.just("t"),
        key=st.none() | st.just(b"k"),
        message=st.sampled_from([b"", b"m", bytes(200)]),
    ),
    st.data(),
)
def test_a_request_changed_anywhere_is_parsed_as_by_protobuf(body: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, min(len(body), 12)))
    middle = data.draw(st.binary(max_size=2))
    changed = body[:at] + middle + body[at + data.draw(st.integers(0, 2)) :]
    check_produce(knowing("t", ""), changed)


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_request_that_ends_early_is_parsed_as_by_protobuf(cut: int) -> None:
    body = produce_request("t", b"k", b"message")
    check_produce(knowing("t"), body[:-cut])


def test_a_length_with_needless_bytes_does_not_hide_the_fields_behind_the_message() -> None:
    begin = b"\x12\x01t\x20\x01"
    # A message of one byte, whose length has three; what follows is a second message.
    second = b"\x2a\xfc\x7f" + bytes(16_380)
    body = begin + b"\x2a\x81\x80\x00" + b"m" + second
    parser = knowing("t")
    check_produce(parser, body)
    assert parser.parse(body)[3] == bytes(16_380)


def test_fields_behind_the_message_count() -> None:
    body = produce_request("t", None, b"m", async_mode=True)
    assert knowing("t").parse(body) == ("", "t", None, b"m", [], False)


# --- ConsumeNAck ----------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.lists(
        st.builds(
            pb.ConsNAckRq,
            topic=NAMES,
            group=NAMES,
            cluster=NAMES,
            no_ack=st.booleans(),
            auto_ack=st.booleans(),
            ack_partition=INT32,
            ack_offset=INT64,
        ).map(lambda message: message.SerializeToString())
    )
)
@example(
    [
        consume_request(),
        consume_request(auto_ack=True),
        consume_request(no_ack=True),
        consume_request(no_ack=True, auto_ack=True),
    ]
)
def test_requests_to_consume_are_parsed_as_by_protobuf(bodies: list[bytes]) -> None:
    parser = ConsumeRequestParser()
    for body in bodies * 2:
        assert parser.parse(body) == consumed_fields(body)
        assert parser.parse(bytearray(body)) == consumed_fields(body)


def test_requests_without_an_ack_are_parsed_once() -> None:
    parser = ConsumeRequestParser()
    for body in (consume_request(auto_ack=True), consume_request(no_ack=True)):
        assert parser.parse(body) is parser.parse(bytes(bytearray(body)))
    assert parser.kept == 2
    parser.parse(consume_request(ack_partition=1, ack_offset=7))
    assert parser.kept == 2


def test_few_requests_are_kept_and_none_that_is_large() -> None:
    parser = ConsumeRequestParser()
    for number in range(5000):
        parser.parse(consume_request(cluster=str(number), auto_ack=True))
        assert parser.kept <= 1024
    before = parser.kept
    large = consume_request(cluster="x" * 1000, auto_ack=True)
    assert parser.parse(large) == consumed_fields(large)
    assert parser.kept == before


@pytest.mark.parametrize("damaged", [b"\xff", bytearray(b"\xff"), consume_request(auto_ack=True)[:-1]])
def test_bytes_that_are_no_message_are_refused_every_time(damaged: bytes) -> None:
    parser = ConsumeRequestParser()
    for _ in range(2):
        with pytest.raises(DecodeError):
            parser.parse(damaged)
    assert parser.kept == 0

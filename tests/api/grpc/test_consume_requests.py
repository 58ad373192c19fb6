"""pixy/api/grpc/consume_requests.py: the same as by protobuf, however often the bytes come."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from pixy.api.grpc.consume_requests import ConsumeRequest, ConsumeRequestParser
from pixy.proto import kafkapixy_pb2 as pb

NAMES = st.text(max_size=3)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


def request(**fields: object) -> bytes:
    return pb.ConsNAckRq(topic="t", group="g", **fields).SerializeToString()  # type: ignore[arg-type]


def fields_of(body: bytes) -> ConsumeRequest:
    message = pb.ConsNAckRq.FromString(body)
    acks = not message.no_ack
    auto_ack = acks and message.auto_ack
    ack = (message.ack_partition, message.ack_offset) if acks and not auto_ack else None
    return message.cluster, message.group, message.topic, auto_ack, ack, ack == (0, 0)


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
@example([request(), request(auto_ack=True), request(no_ack=True), request(no_ack=True, auto_ack=True)])
def test_requests_are_parsed_as_by_protobuf(bodies: list[bytes]) -> None:
    parser = ConsumeRequestParser()
    for body in bodies * 2:
        assert parser.parse(body) == fields_of(body)
        assert parser.parse(bytearray(body)) == fields_of(body)


def test_requests_without_an_ack_are_parsed_once() -> None:
    parser = ConsumeRequestParser()
    for body in (request(auto_ack=True), request(no_ack=True)):
        assert parser.parse(body) is parser.parse(bytes(bytearray(body)))
    assert parser.kept == 2
    parser.parse(request(ack_partition=1, ack_offset=7))
    assert parser.kept == 2


def test_few_requests_are_kept_and_none_that_is_large() -> None:
    parser = ConsumeRequestParser()
    for number in range(5000):
        parser.parse(request(cluster=str(number), auto_ack=True))
        assert parser.kept <= 1024
    before = parser.kept
    large = request(cluster="x" * 1000, auto_ack=True)
    assert parser.parse(large) == fields_of(large)
    assert parser.kept == before


@pytest.mark.parametrize("damaged", [b"\xff", bytearray(b"\xff"), request(auto_ack=True)[:-1]])
def test_bytes_that_are_no_message_are_refused_every_time(damaged: bytes) -> None:
    parser = ConsumeRequestParser()
    for _ in range(2):
        with pytest.raises(DecodeError):
            parser.parse(damaged)
    assert parser.kept == 0

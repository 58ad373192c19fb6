"""pixy/api/grpc/answers.py: the bytes are those of protobuf."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pixy.api.grpc.answers import consumed_message, produced_messages
from pixy.consume import Offer
from pixy.proto import kafkapixy_pb2 as pb
from pixy.records import build_batch, read_records
from pixy.rpc.messages import pack_message

PARTITIONS = st.sampled_from([0, 1, 127, 128]) | st.integers(0, 2**31 - 1)


def produced(partition: int, offset: int) -> bytes:
    return pack_message(pb.ProdRs(partition=partition, offset=offset).SerializeToString())


@pytest.mark.slow
@given(PARTITIONS, st.integers(0, 2**63 - 600), st.integers(0, 300))
def test_answers_of_produce_are_those_of_protobuf(partition: int, first: int, count: int) -> None:
    assert list(produced_messages(partition, first, count)) == [
        produced(partition, offset) for offset in range(first, first + count)
    ]


@pytest.mark.parametrize("partition", [0, 1, 127, 128, 2**31 - 1])
@pytest.mark.parametrize("first", [0, 1, 126, 127, 128, 255, 256, 16_383, 16_384, 2**63 - 300])
def test_answers_of_produce_are_right_where_a_number_gets_longer(partition: int, first: int) -> None:
    assert list(produced_messages(partition, first, 300)) == [
        produced(partition, offset) for offset in range(first, first + 300)
    ]


def test_buffered_records_have_no_offset() -> None:
    assert list(produced_messages(-1, -1, 2)) == [produced(-1, -1)] * 2


class Record:
    """A record at any offset."""

    def __init__(self, offset: int, record: Any) -> None:
        self.offset = offset
        self.timestamp, self.key, self.value = record.timestamp, record.key, record.value
        self.headers = record.headers


class Owner:
    topic = "t"

    def __init__(self, partition: int) -> None:
        self.partition = partition

    def delivered(self, offer: Offer) -> None: ...
    def undelivered(self, offer: Offer) -> None: ...


BYTES = st.binary(max_size=300)


@pytest.mark.slow
@given(
    PARTITIONS,
    st.sampled_from([0, 1, 127, 128, 16_383, 16_384]) | st.integers(0, 2**63 - 1),
    st.none() | BYTES,
    st.none() | BYTES,
    st.lists(st.tuples(st.text(max_size=9), st.none() | BYTES), max_size=3),
)
@example(3, 2**40, b"k" * 128, b"v" * 70_000, [])
def test_answers_of_consume_are_those_of_protobuf(
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> None:
    (record,) = read_records(build_batch([(key, value, headers, 0)]))
    offer = Offer(Owner(partition), Record(offset, record), 0, 0)
    expected = pb.ConsRs(
        partition=partition,
        offset=offset,
        key_value=key or b"",
        key_undefined=key is None,
        message=value or b"",
        value_undefined=value is None,
        headers=[pb.RecordHeader(key=name, value=content or b"") for name, content in headers],
    )
    assert consumed_message(offer) == pack_message(expected.SerializeToString())

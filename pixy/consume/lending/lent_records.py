"""Records and positions in calls between nodes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pixy.consume.core import Offer
from pixy.consume.lending.lending import RecordPosition
from pixy.proto.consumer_calls_pb2 import LentHeader, LentRecord
from pixy.proto.consumer_calls_pb2 import RecordPosition as PackedPosition
from pixy.records import Header


class BorrowedRecord(NamedTuple):
    """A record of another node: a `Record`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


def encode_record(offer: Offer) -> LentRecord:
    """The record of an offer."""
    record = offer.record
    return LentRecord(
        partition=offer.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value,
        headers=[LentHeader(name=name, content=content) for name, content in record.headers],
    )


def decode_record(lent: LentRecord) -> BorrowedRecord:
    """The record of another node."""
    return BorrowedRecord(
        lent.offset,
        lent.timestamp_ms,
        lent.key if lent.HasField("key") else None,
        lent.value if lent.HasField("value") else None,
        [(header.name, header.content if header.HasField("content") else None) for header in lent.headers],
    )


def encode_positions(positions: Iterable[RecordPosition]) -> Iterator[PackedPosition]:
    """Positions of records."""
    for partition, offset in positions:
        yield PackedPosition(partition=partition, offset=offset)


def decode_positions(positions: Iterable[PackedPosition]) -> Iterator[RecordPosition]:
    """Positions of records."""
    for each in positions:
        yield RecordPosition(each.partition, each.offset)

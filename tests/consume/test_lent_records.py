"""Records on their way between nodes."""

import pytest

from pixy.consume.core.offer import Offer
from pixy.consume.lending.lending import RecordPosition
from pixy.consume.lending.lent_records import (
    BorrowedRecord,
    decode_positions,
    decode_record,
    encode_positions,
    encode_record,
)
from pixy.proto.consumer_calls_pb2 import LentRecord, Settled


class Owner:
    topic = "t"
    partition = 7

    def delivered(self, offer: Offer) -> None: ...
    def undelivered(self, offer: Offer) -> None: ...


@pytest.mark.parametrize(
    "record",
    [
        BorrowedRecord(0, 0, b"key", b"value", []),
        BorrowedRecord(2**62, 2**41, None, None, []),
        BorrowedRecord(1, -1, b"", b"", [("a", b"x"), ("a", None), ("", b"")]),
    ],
)
def test_a_record_arrives_as_it_was(record: BorrowedRecord) -> None:
    packed = encode_record(Offer(Owner(), record, 0, 0)).SerializeToString()
    arrived = LentRecord.FromString(packed)
    assert arrived.partition == 7
    assert decode_record(arrived) == record


def test_positions_arrive_as_they_were() -> None:
    positions = [RecordPosition(0, 0), RecordPosition(9999, 2**62)]
    packed = Settled(acked=encode_positions(positions)).SerializeToString()
    assert list(decode_positions(Settled.FromString(packed).acked)) == positions

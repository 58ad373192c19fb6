"""Fuzz what a record batch says: `python -m tests.consume.fuzz_batches --time 60`.

An input is the records of a batch, whose header then lies too, with a valid checksum. The rule:
every other record of the partition is still delivered, once, to every group, whatever the batch;
what a client could append is read by all readers, and alike.
"""

import random
import struct
import warnings
from collections.abc import Iterator

from pixy.consume.core import OffsetTracker
from pixy.consume.core.offer import OfferLimits
from pixy.consume.partition.partition_offers import PartitionOffers
from pixy.errors import CorruptData, InvalidBatch, MessageTooLarge, Undecodable
from pixy.records import (
    HEADER_BYTES,
    BatchLimits,
    Record,
    check_new_batches,
    read_header,
    read_records,
    unpack_records,
)
from pixy.records.lenient import LenientStart, decode_leniently
from pixy.spark.decode import decode
from pixy.spark.span import Span
from tests.consume.fakes import fed, make_batch
from tests.consume.test_partition_offers import Owner
from tests.fakes.batches import as_stored, patched, raw_batch
from tests.http2.fuzzing import run

_LIMITS = BatchLimits(1 << 20, 10_000)
_BEFORE = 5
_COUNTS = (1, 2, 3, 5, 12, 70, 71, 2**31 - 1)
_TIMES = (-1, 0, 1000, 5000, 10_001, 2**62, 2**63 - 1, -(2**63))


def check(changed: bytes, chooser: random.Random) -> None:
    """Give a batch with these records to every reader, between batches of others."""
    batch = _lying(changed, chooser)
    try:
        check_new_batches(batch, _LIMITS)
    except (InvalidBatch, MessageTooLarge):
        pass
    else:
        _check_accepted(batch)
    lying = as_stored(batch, _BEFORE)
    end = read_header(lying).next_offset
    stored = [make_batch(0, [b"before"] * _BEFORE), lying, make_batch(end, [b"behind"] * 3)]
    others = [*range(_BEFORE), *range(end, end + 3)]
    for retries_max in (0, 2, -1):
        delivered = _consume(stored, retries_max)
        assert delivered == sorted(set(delivered)), "once, in order"
        assert [each for each in delivered if not _BEFORE <= each < end] == others
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = _spark_offsets(b"".join(stored))
    assert [each for each in rows if not _BEFORE <= each < end] == others
    assert rows == delivered, "Spark reads what a group gets"


def _lying(records: bytes, chooser: random.Random) -> bytes:
    """A batch that earlier releases have accepted: its header is consistent in itself."""
    codec = chooser.choice((0, 0, 0, 1, 2, 3, 4))
    count = chooser.choice(_COUNTS)
    last_delta = count - 1 if chooser.random() < 0.8 else chooser.choice(_COUNTS) - 1
    times = sorted(chooser.choice(_TIMES) for _ in range(2))
    batch = raw_batch(
        [records],
        count=count,
        last_delta=last_delta,
        codec=codec,
        base_timestamp=times[0],
        max_timestamp=times[1],
    )
    if chooser.random() < 0.1:
        batch = patched(batch, 21, struct.pack(">h", chooser.choice((8, codec | 8, 4, 1))))
    return batch


def _check_accepted(batch: bytes) -> None:
    header = read_header(batch)
    found = list(read_records(batch))
    assert [record.offset for record in found] == [*range(header.records)]
    assert max(record.timestamp for record in found) == header.max_timestamp
    if not header.codec:
        again = decode_leniently(batch, header, LenientStart(HEADER_BYTES, 0, header.base_offset), 0, 0)
        assert list(map(_fields, again)) == list(map(_fields, found))
    assert _spark_offsets(batch) == [record.offset for record in found]
    assert header.records * 7 <= len(batch) - HEADER_BYTES or header.codec


def _fields(record: Record) -> tuple[object, ...]:
    return (record.offset, record.timestamp, record.key, record.value, list(record.headers))


def _consume(stored: list[bytes], retries_max: int) -> list[int]:
    """Offsets that a new group gets. Without a limit of retries somebody sets the group's offset to
    where the error says.
    """
    limits = OfferLimits(30.0, 300, 1 << 24, retries_max, 1 << 20)
    offers = PartitionOffers(Owner(), limits, OffsetTracker(0), 0)
    end = read_header(stored[-1]).next_offset
    delivered: list[int] = []
    faults = 0
    while True:
        delivered += _take_all(offers)
        offers.check_invariants()
        assert offers.tracker.base <= end
        if offers.packed is not None:
            _unpack(offers)
        elif offers.fault is not None:
            fault, offers.fault, faults = offers.fault, None, faults + 1
            assert isinstance(fault, Undecodable)
            assert faults <= 1000, "passed at last"
            if retries_max < 0:
                offers.reset(OffsetTracker(max(fault.next_offset, offers.tracker.base)), end)
        elif offers.fetch_offset < end:
            left = [each for each in stored if read_header(each).next_offset > offers.fetch_offset]
            offers.feed(fed(left, end, end))
        else:
            break
    assert offers.tracker.base == end
    return delivered


def _take_all(offers: PartitionOffers) -> list[int]:
    taken = []
    while (offer := offers.take()) is not None:
        offers.delivered(offer, 0.0)
        assert offers.ack(offer.record.offset)
        taken.append(offer.record.offset)
    return taken


def _unpack(offers: PartitionOffers) -> None:
    batch = offers.packed
    assert batch is not None
    records: Iterator[Record] | CorruptData
    try:
        records = unpack_records(batch, first_offset=offers.position).records
    except CorruptData as error:
        records = error
    offers.unpacked(batch, records)


def _spark_offsets(batches: bytes) -> list[int]:
    span = Span("t", 0, 0, 1 << 62)
    parts = decode(batches, span, include_headers=True, fail=False)
    return [offset for rows in parts for offset in rows.column("offset").to_pylist()]


if __name__ == "__main__":
    run("records", check)

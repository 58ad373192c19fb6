"""pixy/consume/partition_offers.py: batches unpacked on a thread keep their place."""

from pixy.consume import OffsetTracker
from pixy.errors import CorruptData
from pixy.records import COMPRESSION, NewRecord, build_batch, patch_batch, unpack_records
from tests.consume.fakes import fed, make_batch
from tests.consume.test_partition_offers import offers_from, take_all


def large_batch(base: int, records: int = 3) -> bytes:
    """A compressed batch, too large to unpack in place."""
    batch = build_batch([NewRecord(None, b"x" * 200_000, (), 1) for _ in range(records)], COMPRESSION["zstd"])
    patch_batch(batch, base, 0)
    return bytes(batch)


def test_a_large_batch_waits_to_be_unpacked_and_keeps_its_place() -> None:
    offers = offers_from()
    large = large_batch(1)
    offers.feed(fed([make_batch(0, [b"before"]), large, make_batch(4, [b"behind"])]))
    assert not offers.packed
    assert take_all(offers) == [0]
    assert (offers.packed, offers.ready) == (large, False)
    assert offers.take() is None
    offers.feed(fed([make_batch(5, [b"later"])]))
    assert (offers.packed, offers.ready) == (large, False)
    offers.unpacked(large, unpack_records(large))
    assert take_all(offers) == [1, 2, 3, 4, 5]
    assert offers.packed is None


def test_a_small_compressed_batch_is_unpacked_in_place() -> None:
    offers = offers_from()
    batch = build_batch([NewRecord(None, b"x" * 200_000, (), 1)], COMPRESSION["zstd"])
    offers.feed(fed([bytes(batch)]))
    assert offers.packed is None
    assert take_all(offers) == [0]


def test_records_unpacked_for_an_earlier_generation_are_not_offered() -> None:
    offers = offers_from()
    large = large_batch(0)
    offers.feed(fed([large]))
    offers.reset(OffsetTracker(3), 3)
    offers.unpacked(large, unpack_records(large))
    assert (offers.packed, offers.ready) == (None, False)
    again = bytes(bytearray(large))
    offers.reset(OffsetTracker(0), 3)
    offers.feed(fed([again]))
    offers.unpacked(large, unpack_records(large))
    assert (offers.packed, offers.ready) == (again, False)


def test_a_large_batch_that_cannot_be_unpacked_is_fetched_again() -> None:
    offers = offers_from()
    large = large_batch(1)
    offers.feed(fed([make_batch(0, [b"before"]), large, make_batch(4, [b"behind"])]))
    assert take_all(offers) == [0]
    error = CorruptData("cannot be decoded")
    offers.unpacked(large, error)
    assert (offers.fault, offers.packed, offers.fetch_offset, offers.ready) == (error, None, 1, False)
    offers.fault = None
    offers.feed(fed([large]))
    offers.unpacked(large, unpack_records(large))
    assert take_all(offers) == [1, 2, 3]

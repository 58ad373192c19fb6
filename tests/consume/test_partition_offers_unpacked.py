"""pixy/consume/partition/partition_offers.py: batches unpacked on a thread keep their place, and
those with wrong fields take nothing from others.
"""

import gzip
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pixy.consume.core import OffsetTracker
from pixy.consume.partition.partition_offers import PartitionOffers
from pixy.errors import CorruptData, Unavailable
from pixy.records import COMPRESSION, NewRecord, Record, build_batch, patch_batch, read_header, unpack_records
from tests.consume.fakes import fed, make_batch
from tests.consume.test_partition_offers import LIMITS, offers_from, take_all
from tests.fakes.batches import BROKEN_RECORD, as_stored, bomb, crowded_record, patched, raw_batch, raw_record


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
    offers.unpacked(large, unpack_records(large).records)
    assert take_all(offers) == [1, 2, 3, 4, 5]
    assert offers.packed is None


def test_a_small_compressed_batch_is_unpacked_in_place() -> None:
    offers = offers_from()
    batch = build_batch([NewRecord(None, b"x" * 16_000, (), 1)], COMPRESSION["zstd"])
    offers.feed(fed([bytes(batch)]))
    assert offers.packed is None
    assert take_all(offers) == [0]


def test_headers_count_when_records_are_skipped() -> None:
    batch = as_stored(raw_batch([crowded_record(delta, 100) for delta in range(100)]), 0)
    for begin in (4, 5):
        offers = offers_from(begin)
        offers.feed(fed([batch]))
        assert (offers.packed is not None) == (begin == 5)
        if offers.packed:
            unpack(offers)
        assert take_all(offers)[0] == begin


def test_batches_count_when_records_are_skipped() -> None:
    offers = offers_from()
    for offset in range(1, 200):
        offers.tracker.ack(offset)
    batches = [make_batch(offset, [b"x"]) for offset in range(201)]
    offers.feed(fed(batches))
    assert take_all(offers) == [0]
    skipped = []
    while offers.packed:
        skipped.append(batches.index(bytes(offers.packed)))
        unpack(offers)
    assert skipped == [46, 92, 138, 184]
    assert take_all(offers) == [200]


def test_a_record_with_many_headers_is_left_to_the_shell_which_counts_it() -> None:
    few, many = (bytes(build_batch([NewRecord(None, b"", [("", b"")] * count, 1)])) for count in (250, 260))
    for batch in (few, many):
        offers = offers_from()
        offers.feed(fed([batch]))
        assert (offers.packed is not None) == (batch is many)
        if offers.packed:
            unpack(offers)
        assert take_all(offers) == [0]


def test_records_unpacked_for_an_earlier_generation_are_not_offered() -> None:
    offers = offers_from()
    large = large_batch(0)
    offers.feed(fed([large]))
    offers.reset(OffsetTracker(3), 3)
    offers.unpacked(large, unpack_records(large).records)
    assert (offers.packed, offers.ready) == (None, False)
    again = bytes(bytearray(large))
    offers.reset(OffsetTracker(0), 3)
    offers.feed(fed([again]))
    offers.unpacked(large, unpack_records(large).records)
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
    offers.unpacked(large, unpack_records(large).records)
    assert take_all(offers) == [1, 2, 3]


def test_what_cannot_be_decoded_for_lack_of_memory_is_never_passed() -> None:
    offers = offers_from(1, limits=replace(LIMITS, retries_max=0))
    large = large_batch(1)
    for _ in range(3):
        offers.feed(fed([large]))
        error = Unavailable("there is not enough memory")
        offers.unpacked(large, error)
        assert (offers.fault, offers.fetch_offset, offers.passed) == (error, 1, [])
        offers.fault = None
    offers.feed(fed([large]))
    offers.unpacked(large, unpack_records(large).records)
    assert take_all(offers) == [1, 2, 3]


# --- batches with wrong fields --------------------------------------------------------------------


def test_an_offset_beyond_its_batch_moves_no_position() -> None:
    offers = offers_from()
    lying = as_stored(raw_batch([raw_record(1000, b"lie")]), 1)
    offers.feed(fed([make_batch(0, [b"before"]), lying, make_batch(2, [b"behind"])]))
    assert take_all(offers) == [0, 1, 2]
    for offset in (0, 1, 2):
        assert offers.ack(offset)
    assert offers.tracker.base == 3


@pytest.mark.parametrize("end", [1, 2**40])
def test_a_batch_beyond_the_high_watermark_or_below_the_position_is_damaged(end: int) -> None:
    offers = offers_from(1)
    lying = patched(make_batch(0, [b"a"]), 23, struct.pack(">i", 2**31 - 1 if end > 1 else 0))
    offers.feed(fed([lying], 3, 3))
    assert isinstance(offers.fault, CorruptData)
    assert "not above the high watermark 3" in str(offers.fault)
    assert (offers.tracker.base, offers.fetch_offset, offers.ready) == (1, 1, False)


GARBAGE = as_stored(raw_batch([b"\x80" * 60], count=3), 1)
HALF = as_stored(raw_batch([raw_record(0, b"good"), BROKEN_RECORD, raw_record(2, b"good too")]), 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "delivered", "passed"),
    [(GARBAGE, [], (1, 4)), (HALF, [1, 3], (2, 3)), (as_stored(bomb(), 1), [], (1, 2))],
    ids=["garbage", "one record", "too large"],
)
@pytest.mark.parametrize("retries_max", [0, 1, 3])
def test_what_cannot_be_decoded_is_passed_after_its_last_retry(
    batch: bytes, delivered: list[int], passed: tuple[int, int], retries_max: int
) -> None:
    offers = offers_from(limits=replace(LIMITS, retries_max=retries_max))
    whole = [make_batch(0, [b"before"]), batch, make_batch(read_header(batch).next_offset, [b"behind"])]
    found: list[int] = []
    faults = 0
    while offers.fetch_offset < read_header(whole[-1]).next_offset or offers.packed:
        offers.feed(fed([each for each in whole if read_header(each).next_offset > offers.fetch_offset]))
        found += take_all(offers)
        if offers.packed:
            unpack(offers)
            found += take_all(offers)
        faults += offers.fault is not None
        offers.fault = None
        assert faults <= retries_max
    assert faults == retries_max
    assert found == [0, *delivered, read_header(batch).next_offset]
    assert [tuple(range_) for range_, _ in offers.passed] == [passed]
    assert offers.dropped == passed[1] - passed[0]
    for offset in found:
        offers.ack(offset)
    assert offers.tracker.base == read_header(whole[-1]).next_offset


def test_without_a_limit_of_retries_nothing_is_passed() -> None:
    offers = offers_from(1)
    for _ in range(100):
        offers.feed(fed([GARBAGE, make_batch(4, [b"behind"])]))
        assert isinstance(offers.fault, CorruptData)
        assert offers.fetch_offset == 1
        offers.fault = None
    assert (offers.passed, offers.ready) == ([], False)


def test_bytes_behind_the_last_record_of_a_batch_stop_nothing() -> None:
    offers = offers_from()
    offers.feed(
        fed([as_stored(raw_batch([raw_record(0, b"a"), b"more"], count=1), 0), make_batch(1, [b"b"])])
    )
    assert take_all(offers) == [0, 1]
    assert offers.fault is None


def test_a_batch_of_many_empty_gzip_members_is_not_decompressed_on_the_event_loop() -> None:
    offers = offers_from()
    packed = gzip.compress(b"") * 5000 + gzip.compress(raw_record(0, b"x"))
    slow = as_stored(patched(raw_batch([packed]), 21, struct.pack(">h", 1)), 0)
    offers.feed(fed([slow]))
    assert (offers.packed, offers.fault, offers.ready) == (slow, None, False)
    unpack(offers)
    assert take_all(offers) == [0]


def unpack(offers: PartitionOffers) -> None:
    batch = offers.packed
    assert batch is not None
    try:
        records: Iterator[Record] | CorruptData = unpack_records(batch, first_offset=offers.position).records
    except CorruptData as error:
        records = error
    offers.unpacked(batch, records)


def skip_elsewhere(offers: PartitionOffers) -> None:
    """Do the part of the shell, as long as it is left a batch."""
    while (batch := offers.packed) is not None:
        offers.unpacked(batch, unpack_records(batch, first_offset=offers.position).records)
        offers.check_invariants()


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_position_far_inside_of_a_batch_is_sought_elsewhere(compression: str) -> None:
    offers = offers_from(2998)
    batch = bytes(build_batch([NewRecord(None, b"", (), 1)] * 3000, COMPRESSION[compression]))
    offers.feed(fed([batch, make_batch(3000, [b"behind"])]))
    assert (offers.packed, offers.ready) == (batch, False)
    skip_elsewhere(offers)
    assert take_all(offers) == [2998, 2999, 3000]


def test_many_acked_records_of_a_batch_are_passed_elsewhere() -> None:
    offers = offers_from()
    for begin, end in ((1, 1500), (1501, 2999)):
        offers.tracker.skip(begin, end)
    batch = bytes(build_batch([NewRecord(None, b"", (), 1)] * 3000))
    offers.feed(fed([batch, make_batch(3000, [b"behind"])]))
    taken = []
    for _ in range(4):
        taken += take_all(offers)
        skip_elsewhere(offers)
    assert taken == [0, 1500, 2999, 3000]

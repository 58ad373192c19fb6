"""Batches of the source, and what becomes of them: the rows of the table."""

import struct

import pytest

from pixy.errors import CorruptData
from pixy.mirror.taken_batches import SourceRun, TakenBatch, take_batches
from pixy.records import (
    BatchLimits,
    build_control_batch,
    check_new_batches,
    read_header,
    read_records,
)
from tests.fakes.batches import as_stored, batch_of, batch_of_producer, patched, raw_batch, raw_record

LIMITS = BatchLimits(1 << 20)


def taken(fetched: bytes, begin: int = 0) -> list[TakenBatch]:
    found = list(take_batches(fetched, begin))
    for each in found:
        (checked,) = check_new_batches(each.batch, LIMITS)  # the target takes it
        assert checked.records == sum(run.records for run in each.sources)
    return found


def values(batch: TakenBatch) -> list[bytes | None]:
    return [record.value for record in read_records(batch.batch)]


def timestamps(batch: TakenBatch) -> list[int]:
    return [record.timestamp for record in read_records(batch.batch)]


def test_most_batches_stay_as_they_are() -> None:
    first, second = as_stored(batch_of(b"a", b"b"), 5), as_stored(batch_of(b"c", compression=1), 9)
    found = taken(first + second)
    assert [bytes(each.batch) for each in found] == [first, second]
    assert [each.sources for each in found] == [(SourceRun(5, 2),), (SourceRun(9, 1),)]


def test_a_control_batch_and_one_that_was_taken_are_left_out() -> None:
    control = as_stored(bytes(build_control_batch(1, b"x", 1000)), 2)
    assert taken(as_stored(batch_of(b"a", b"b"), 0) + control, 2) == []


@pytest.mark.parametrize("attributes", [b"\x00\x00", b"\x00\x10"])
def test_producer_and_transaction_go(attributes: bytes) -> None:
    batch = patched(as_stored(bytes(batch_of_producer(7, 1, 3, b"a", b"b")), 4), 21, attributes)
    (found,) = taken(batch)
    header = read_header(found.batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert not header.is_transactional
    assert values(found) == [b"a", b"b"]
    assert found.sources == (SourceRun(4, 2),)


@pytest.mark.parametrize("compression", [0, 1])
def test_records_before_the_wanted_one_are_left_out(compression: int) -> None:
    batch = batch_of(b"a" * 100, b"b" * 100, b"c" * 100, compression=compression)
    (found,) = taken(as_stored(batch, 4), 5)
    assert [value[:1] for value in values(found) if value] == [b"b", b"c"]
    assert timestamps(found) == [1001, 1002]
    assert found.sources == (SourceRun(5, 2),)
    assert read_header(found.batch).codec == compression


def test_gaps_of_compaction_are_closed() -> None:
    batch = raw_batch([raw_record(0, b"a"), raw_record(3, b"b"), raw_record(4, b"c")], last_delta=6)
    (found,) = taken(as_stored(batch, 10))
    assert values(found) == [b"a", b"b", b"c"]
    assert found.sources == (SourceRun(10, 1), SourceRun(13, 2))


def test_the_time_of_the_log_becomes_that_of_each_record() -> None:
    batch = batch_of(b"a", b"b")
    stamped = patched(patched(batch, 35, struct.pack(">q", 5000)), 21, b"\x00\x08")
    (found,) = taken(as_stored(stamped, 0))
    assert timestamps(found) == [5000, 5000]
    assert read_header(found.batch).attributes == 0


def test_a_first_record_without_a_time() -> None:
    batch = raw_batch([raw_record(0, b"a"), raw_record(1, b"b")], base_timestamp=-1, max_timestamp=-1)
    (found,) = taken(as_stored(batch, 0), 1)
    assert (values(found), timestamps(found)) == ([b"b"], [0])


@pytest.mark.parametrize("cut", [1, 11, 60, 70])
def test_what_is_no_whole_batch_is_damage(cut: int) -> None:
    with pytest.raises(CorruptData, match="not whole"):
        taken(batch_of(b"a") + batch_of(b"b")[:cut])


def test_a_damaged_batch_is_not_made_valid() -> None:
    batch = bytearray(batch_of_producer(7, 1, 3, b"a"))
    batch[-2] ^= 1
    with pytest.raises(CorruptData):
        taken(bytes(batch))

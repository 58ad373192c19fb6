"""pixy/backup/batch_run.py: only whole batches that follow are taken, and a cut ends a log."""

import pytest

from pixy.backup.batch_run import BatchRun, TimeCut
from pixy.errors import CorruptData
from pixy.records import read_header
from tests.backup.logs import batch_at, values_in

FIRST, SECOND, THIRD = batch_at(0, b"a", b"b"), batch_at(2, b"c"), batch_at(3, b"d", b"e")
ALL = FIRST + SECOND + THIRD


def test_batches_are_taken_in_order() -> None:
    run = BatchRun(0)
    assert values_in(run.take(FIRST + SECOND, 5)) == [b"a", b"b", b"c"]
    assert values_in(run.take(THIRD, 5)) == [b"d", b"e"]
    assert (run.first, run.offset, run.epoch) == (0, 5, 1)


def test_what_came_before_is_skipped_and_what_is_behind_stays() -> None:
    run = BatchRun(2)
    assert values_in(run.take(ALL, 3)) == [b"c"]
    assert (run.first, run.offset) == (2, 3)
    assert values_in(run.take(ALL, 5)) == [b"d", b"e"]


def test_the_first_batch_may_begin_before() -> None:
    run = BatchRun(1)
    assert values_in(run.take(FIRST, 2)) == [b"a", b"b"]
    assert (run.first, run.offset) == (0, 2)


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (FIRST + THIRD, 5),  # one is missing
        (THIRD, 5),
        (ALL[:-1], 5),  # cut off
        (ALL[:70], 5),
        (ALL, 4),  # the last one goes on behind the end
        (ALL[:-1] + b"x", 5),  # a wrong checksum
        (FIRST + batch_at(2, b"c", epoch=0), 5),  # the epoch descends
        (bytes(100), 5),
    ],
)
def test_nothing_else_is_taken(data: bytes, end: int) -> None:
    with pytest.raises(CorruptData):
        BatchRun(0).take(data, end)


def test_every_flipped_byte_but_those_of_an_epoch_is_found() -> None:
    for at in range(len(SECOND)):
        if at in range(12, 16):
            continue
        damaged = bytearray(SECOND)
        damaged[at] ^= 0x41
        with pytest.raises(CorruptData):
            BatchRun(2).take(damaged + THIRD, 5)


@pytest.mark.parametrize("before_ms", range(999, 1007))
def test_a_cut_ends_a_log_before_the_first_record_of_its_time(before_ms: int) -> None:
    cut = TimeCut(before_ms)
    kept = [bytes(each) for each in cut.take(BatchRun(0).take(ALL, 5))]
    count = min(5, max(0, before_ms - 1000))
    assert values_in(kept) == [b"a", b"b", b"c", b"d", b"e"][:count]
    assert cut.end == (None if count == 5 else count)
    assert values_in(BatchRun(0).take(b"".join(kept), 5)) == values_in(kept)
    assert all(read_header(batch).leader_epoch == 1 for batch in kept)


def test_later_records_with_earlier_times_go_too() -> None:
    early = batch_at(5, b"f", timestamp_ms=0)
    cut = TimeCut(1003)
    batches = BatchRun(0).take(ALL + early, 6)
    assert values_in([*cut.take(batches[:4]), *cut.take(batches[4:])]) == [b"a", b"b", b"c"]
    assert cut.end == 3

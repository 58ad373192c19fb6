"""The log writer: gathering, syncing, the bound on the tail cache, a full disk, faults, the end."""

import asyncio
import errno
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pixy.records import KeptProducers, ProducerTable
from pixy.storage import (
    DamagedLog,
    LogWriter,
    LogWriterOptions,
    PartitionLog,
    StagedPart,
    SyncedLog,
    WriterPace,
    read_producers,
)
from tests.fakes.disk import RecordingDisk, full
from tests.fakes.worker import StepWorker
from tests.storage.batches import batch
from tests.storage.logs import LONG_MS, append, partition_log

ONE = len(batch())
FOREVER = 1000.0


PROMPT = WriterPace(gather_s=0, sync_after_s=FOREVER, full_disk_retry_s=0)


def _end(log: PartitionLog) -> int:
    """The state of a log that marks stand for."""
    return log.end_offset


def _segments_in(directory: Path) -> int:
    return len(list(directory.rglob("*.log")))


class Bench:
    """A log writer with partition logs on a recording disk; the test runs its worker."""

    def __init__(
        self,
        directory: Path,
        *,
        tail_cache_bytes: int = 1 << 20,
        sync_bytes: int = 1 << 20,
        pace: WriterPace = PROMPT,
    ) -> None:
        self.disk = RecordingDisk()
        self.worker = StepWorker()
        self.synced: list[list[SyncedLog]] = []
        self.progress: list[int] = []
        self.damaged: list[DamagedLog] = []
        self.faults: list[BaseException] = []
        self.logs = [partition_log(self.disk, directory / f"topic-{number}") for number in range(3)]
        self.writer = LogWriter(
            self.worker,
            LogWriterOptions(
                tail_cache_bytes=tail_cache_bytes, sync_bytes=sync_bytes, sync_logs=1000, pace=pace
            ),
            on_synced=self.synced.append,
            on_progress=lambda: self.progress.append(self.writer.unwritten_bytes),
            on_damaged=self.damaged.append,
            on_full=lambda: None,
            on_fault=self.faults.append,
        )

    def append(self, number: int = 0, count: int = 1, size: int = 10, *, apart_ms: int = 0) -> None:
        for at in range(count):
            new = batch(1, size, at * apart_ms) if apart_ms else batch(1, size)
            append(self.logs[number], new)
            self.writer.mark_dirty(self.logs[number], partial(_end, self.logs[number]), len(new))

    async def write(self) -> None:
        """Let what was gathered be written."""
        await self.worker.wait()
        self.worker.step()

    async def drive(self, task: "asyncio.Task[None]") -> None:
        """Run what is on the worker until a task has ended."""
        while not task.done():
            if self.worker:
                self.worker.step()
            await asyncio.sleep(0)

    async def flush(self) -> None:
        await self.drive(asyncio.create_task(self.writer.flush()))

    def append_part(self, path: Path, number: int = 0) -> None:
        """Append what a stage holds, which is not there or whatever is at the path."""
        size = path.stat().st_size if path.exists() else 100
        self.logs[number].append_part(StagedPart(path, size, 1), 1)
        self.writer.mark_changed(self.logs[number], partial(_end, self.logs[number]))

    def ends(self) -> list[list[tuple[object, int, int]]]:
        return [
            [(each.mark, each.end_offset, each.position.segment_bytes) for each in synced]
            for synced in self.synced
        ]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.writer.abandon()


async def test_what_gathers_is_written_in_one_job(bench: Bench) -> None:
    bench.append(0, 3)
    bench.append(1, 2)
    assert bench.writer.unwritten_bytes == 5 * ONE
    await bench.write()
    assert len(bench.disk.did("write", ".log")) == 2
    assert [log.written_offset for log in bench.logs] == [3, 2, 0]
    assert (bench.writer.unwritten_bytes, bench.progress, bench.synced) == (0, [0], [])


async def test_all_syncs_of_a_job_begin_before_the_first_one_waits(bench: Bench) -> None:
    for number in range(3):
        bench.append(number)
    await bench.flush()
    calls = [call.what for call in bench.disk.calls if call.name.endswith(".log")]
    assert calls[-5:] == ["begin_sync", "begin_sync", "sync", "sync", "sync"]


async def test_a_sync_alone_is_not_announced(bench: Bench) -> None:
    bench.append()
    await bench.flush()
    assert bench.disk.did("begin_sync") == []


async def test_the_writeback_of_many_bytes_begins_when_they_are_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync_bytes=1 << 30)
    bench.append(size=1 << 20)
    bench.append(1)
    await bench.write()
    calls = [call.what for call in bench.disk.calls if call.name.endswith(".log")]
    assert calls[-4:] == ["write", "begin_sync", "create", "write"]
    assert bench.synced == []
    bench.writer.abandon()


async def test_enough_bytes_are_written_without_waiting(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, pace=replace(PROMPT, gather_s=FOREVER, gather_bytes=3 * ONE))
    bench.append(0, 2)
    assert not bench.worker
    bench.append(0, 1)
    assert not bench.worker
    await asyncio.sleep(0)
    assert len(bench.worker) == 1
    bench.append(0, 5)
    assert len(bench.worker) == 1
    bench.worker.step()
    assert len(bench.worker) == 1
    bench.worker.step()
    assert bench.logs[0].written_offset == 8


async def test_where_little_may_be_unwritten_little_is_gathered(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, sync_bytes=2 * ONE, pace=replace(PROMPT, gather_s=FOREVER))
    bench.append()
    assert not bench.worker
    bench.append()
    await asyncio.sleep(0)
    assert len(bench.worker) == 1
    bench.writer.abandon()


async def test_memory_goes_in_pieces_a_piece_in_each_turn_of_the_loop(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tail_cache_bytes=100 * ONE, sync_bytes=1 << 30)
    bench.append(0, 2500)
    await bench.write()
    left: list[int] = []
    while not left or left[-1] > 100 * ONE:
        left.append(bench.writer._tail_bytes)
        await asyncio.sleep(0)
    assert left == [1500 * ONE, 500 * ONE, 100 * ONE]
    bench.append(0, 1000)
    await bench.write()
    assert bench.writer._tail_bytes == 100 * ONE, "it goes on as before"
    bench.writer.abandon()


async def test_memory_of_large_batches_goes_in_smaller_numbers(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, tail_cache_bytes=0, pace=replace(PROMPT, evicted_bytes_per_iteration=3 * ONE))
    bench.append(count=8)
    await bench.write()
    assert bench.logs[0].read_memory(2, 1) is None
    left = []
    for _ in range(3):
        left.append(sum(bench.logs[0].read_memory(offset, 1) is not None for offset in range(8)))
        await asyncio.sleep(0)
    assert left == [5, 2, 0]


async def test_what_is_appended_during_a_job_waits_for_the_next(bench: Bench) -> None:
    bench.append(0)
    await bench.worker.wait()
    bench.append(0)
    bench.append(1)
    bench.worker.step()
    assert [log.written_offset for log in bench.logs] == [1, 0, 0]
    await bench.write()
    assert [log.written_offset for log in bench.logs] == [2, 1, 0]
    assert bench.writer.unwritten_bytes == 0


async def test_segments_are_synced_when_enough_is_unsynced(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync_bytes=3 * ONE)
    for number in (0, 1):
        bench.append(number)
        await bench.write()
    assert bench.synced == []
    bench.append(0)
    await bench.write()
    assert bench.ends() == [[(2, 2, 2 * ONE), (1, 1, ONE)]]
    bench.append(2)
    await bench.write()
    assert len(bench.synced) == 1
    bench.writer.abandon()


async def test_what_is_told_as_synced_was_synced_before(bench: Bench) -> None:
    bench.append(0, 2)
    bench.writer._on_synced = lambda _: bench.disk.calls.append(bench.disk.calls[0]._replace(what="told"))
    await bench.flush()
    what = [call.what for call in bench.disk.calls]
    assert what.index("write") < what.index("sync") < what.index("told")


async def test_flush_writes_and_syncs_everything_and_has_told_so(bench: Bench) -> None:
    bench.append(0, 2)
    await bench.write()
    bench.append(1)
    await bench.flush()
    assert sorted(bench.ends()[0], key=str) == [(1, 1, ONE), (2, 2, 2 * ONE)]


async def test_flush_waits_for_the_sync_of_what_is_written_already(bench: Bench) -> None:
    bench.append(0)
    await bench.write()
    flushing = asyncio.create_task(bench.writer.flush())
    await asyncio.sleep(0)
    assert not flushing.done()
    await bench.drive(flushing)
    assert bench.ends() == [[(1, 1, ONE)]]


async def test_flush_during_a_job_waits_for_the_next_one(bench: Bench) -> None:
    bench.append(0)
    await bench.worker.wait()
    bench.append(0)
    await bench.flush()
    assert bench.ends() == [[(2, 2, 2 * ONE)]]


async def test_flush_with_nothing_to_do_returns(bench: Bench) -> None:
    await bench.writer.flush()
    assert bench.synced == []


async def test_stop_flushes_ends_the_worker_and_leaves_no_file_open(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(0, 2)
    await bench.drive(asyncio.create_task(bench.writer.stop()))
    assert bench.ends() == [[(2, 2, 2 * ONE)]]
    assert bench.worker.stopped
    assert not bench.logs[0]._files.segments[-1].is_unsynced


async def test_the_largest_logs_do_not_wait_behind_many_small_ones(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pace=replace(PROMPT, job_logs_max=2))
    bench.append(0)
    bench.append(1)
    bench.append(2, 3)
    await bench.write()
    assert [log.written_offset for log in bench.logs] == [1, 0, 3]
    bench.append(2, 2)
    bench.append(0)
    await bench.write()
    assert [log.written_offset for log in bench.logs] == [1, 1, 5], "the oldest does not wait for ever"
    await bench.flush()
    assert [log.written_offset for log in bench.logs] == [2, 1, 5]
    ends = {synced.log: synced.end_offset for round in bench.synced for synced in round}
    assert [ends[log] for log in bench.logs] == [2, 1, 5]


async def test_timestamps_far_apart_end_few_segments_in_a_job(bench: Bench, tmp_path: Path) -> None:
    """Each of them is synced, while the records of all other logs wait in memory."""
    for number in range(3):
        bench.append(number, 100, apart_ms=2 * LONG_MS)
    await bench.write()
    assert _segments_in(tmp_path) == 16 + 3
    assert bench.writer.unwritten_bytes == 0
    bench.append(2, 10, apart_ms=2 * LONG_MS)
    await bench.write()
    assert _segments_in(tmp_path) == 16 + 3 + 9
    await bench.flush()


async def test_when_nothing_comes_any_more_a_sync_comes_after_a_while(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, pace=replace(PROMPT, sync_after_s=0))
    bench.append(0)
    await bench.write()
    assert bench.synced == []
    await bench.write()
    assert bench.ends() == [[(1, 1, ONE)]]


async def test_a_trickle_that_never_rests_is_synced_after_a_while_too(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, pace=replace(PROMPT, sync_after_s=0))
    for _ in range(10):
        bench.append(0)
        await bench.worker.wait()
        bench.append(0)  # there is always something more to write when a job ends
        bench.worker.step()
        await asyncio.sleep(0)
    assert bench.synced


# --- the tail cache -------------------------------------------------------------------------------


async def test_the_oldest_batches_of_all_logs_leave_the_memory_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tail_cache_bytes=2 * ONE)
    for number in (0, 1, 0, 1):
        bench.append(number)
    await bench.write()
    assert bench.logs[0].read_memory(0, 1) is None
    assert bench.logs[1].read_memory(0, 1) is None
    assert bench.logs[0].read_memory(1, 1) is not None
    assert bench.logs[1].read_memory(1, 1) is not None
    bench.writer.abandon()


async def test_the_bound_holds_over_all_logs_after_every_job(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tail_cache_bytes=5 * ONE)
    for turn in range(60):
        bench.append(turn % 3, turn % 4 + 1)
        await bench.write()
        in_memory = sum(
            len(each) for log in bench.logs for each in log._tail._batches if isinstance(each, bytearray)
        )
        assert in_memory <= 5 * ONE
        assert in_memory == bench.writer._tail_bytes
    bench.writer.abandon()


async def test_without_a_cache_nothing_written_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tail_cache_bytes=0)
    bench.append(0, 100)
    await bench.write()
    assert bench.logs[0].read_memory(99, 1) is None
    assert len(bench.logs[0].read(0, 1 << 20).batches) == 100
    bench.writer.abandon()


async def test_batches_of_a_log_that_waits_for_its_sync_are_not_in_memory(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tail_cache_bytes=0, sync_bytes=1 << 30)
    tracemalloc.start()
    try:
        bench.append(0, 4, 1 << 20)
        await bench.write()
        await asyncio.sleep(0)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert bench.synced == []
    bench.writer.abandon()


# --- a full disk, faults --------------------------------------------------------------------------


async def test_a_full_disk_is_waited_out_and_nothing_is_lost_or_written_twice(bench: Bench) -> None:
    for number in range(3):
        bench.append(number, 2)
    full(bench.disk, "make_directory", "topic-1")
    await bench.write()
    for _ in range(3):
        assert "the disk is full: [Errno 28]" in str(bench.writer.blocked)
        assert bench.writer.unwritten_bytes == 4 * ONE
        await bench.write()
    bench.append(0)
    bench.disk.heal()
    await bench.flush()
    assert (bench.writer.blocked, bench.writer.unwritten_bytes, bench.faults) == (None, 0, [])
    assert [log.written_offset for log in bench.logs] == [3, 2, 2]
    assert sorted(bench.ends()[-1], key=str) == [(2, 2, 2 * ONE), (2, 2, 2 * ONE), (3, 3, 3 * ONE)]
    for log in bench.logs:
        assert b"".join(log.read(0, 1 << 20).batches) == b"".join(
            each for each in log._tail._batches if isinstance(each, bytearray)
        )


async def test_producers_are_written_before_their_position_and_wait_for_room_too(bench: Bench) -> None:
    log, path = bench.logs[0], bench.logs[0]._files.directory / "producers"
    bench.append()
    log.keep_producers(KeptProducers({}, 7, log.end_offset))
    full(bench.disk, "create", "producers.part")
    flush = asyncio.create_task(bench.writer.flush())
    await bench.write()
    assert (bench.writer.blocked is not None, bench.synced, path.exists()) == (True, [], False)
    bench.disk.heal()
    await bench.drive(flush)
    assert bench.writer.blocked is None
    assert bench.ends() == [[(1, 1, ONE)]]
    assert ProducerTable.decoded(read_producers(bench.disk, path)).forgotten == 7
    bench.append()
    await bench.flush()
    assert len(bench.disk.did("rename", "producers")) == 1, "nothing is to be kept"


async def test_a_sync_that_was_due_when_the_disk_was_full_comes_when_there_is_room(bench: Bench) -> None:
    bench.append(0)
    full(bench.disk, "create", ".log")
    flushing = asyncio.create_task(bench.writer.flush())
    await bench.write()
    await bench.write()
    bench.disk.heal()
    await bench.drive(flushing)
    assert bench.ends() == [[(1, 1, ONE)]]


async def test_other_work_that_waits_for_space_is_done_anew_until_there_is_some(bench: Bench) -> None:
    tried: list[int] = []

    def work() -> int:
        tried.append(len(tried))
        if len(tried) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(tried)

    results: list[int] = []
    bench.writer.run(work, results.append, waits_for_space=True)
    for _ in range(3):
        await bench.write()
    assert (results, bench.faults) == ([3], [])
    tried.clear()
    bench.writer.run(work, results.append)
    await bench.write()
    assert [getattr(fault, "errno", None) for fault in bench.faults] == [errno.ENOSPC]


@pytest.mark.parametrize("waiting", [False, True])
async def test_stopping_with_a_full_disk_ends(tmp_path: Path, waiting: bool) -> None:
    bench = Bench(tmp_path)
    full(bench.disk, "create", ".log")
    bench.append(0)
    if waiting:
        await bench.write()
    await bench.drive(asyncio.create_task(bench.writer.stop()))
    assert (bench.synced, bench.faults) == ([], [])


@pytest.mark.parametrize("what", ["create", "write", "sync"])
async def test_anything_else_that_fails_is_a_fault_told_once_and_nothing_goes_on(
    bench: Bench, what: str
) -> None:
    bench.append(0)
    bench.disk.fail(what, ".log", errno.EIO)
    await bench.flush()
    bench.disk.heal()
    bench.append(0)
    await bench.flush()
    assert [getattr(fault, "errno", None) for fault in bench.faults] == [errno.EIO]
    assert (bench.synced, len(bench.worker)) == ([], 0)


async def test_a_sync_without_room_is_a_fault_and_not_retried(bench: Bench) -> None:
    bench.append(0)
    full(bench.disk, "sync", ".log")
    await bench.flush()
    assert len(bench.faults) == 1


async def test_a_bug_in_a_callback_is_a_fault(bench: Bench) -> None:
    def broken(_: list[SyncedLog]) -> None:
        raise ZeroDivisionError

    bench.writer._on_synced = broken
    bench.append(0)
    await bench.flush()
    assert [type(fault) for fault in bench.faults] == [ZeroDivisionError]


# --- a damaged part of a stage --------------------------------------------------------------------


async def test_a_log_with_a_damaged_part_is_given_up_and_the_others_go_on(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "part").write_bytes(bytes(100))
    bench.append(0, 2)
    await bench.flush()
    bench.append(0)
    bench.append_part(tmp_path / "part")
    bench.append(0, 3)
    bench.append(1, 2)
    await bench.flush()
    [damaged] = bench.damaged
    assert (damaged.mark, str(damaged.error)[:40]) == (7, f"{tmp_path / 'part'} is corrupt at"[:40])
    # Two were synced before; the others are in the journal alone.
    assert damaged.undurable_bytes >= 4 * ONE
    assert bench.ends() == [[(2, 2, 2 * ONE)], [(2, 2, 2 * ONE)]]
    assert (bench.writer.unwritten_bytes, bench.writer._tail_bytes) == (0, 2 * ONE)
    assert (bench.faults, bench.writer._open) == ([], set())
    bench.append(1)
    await bench.flush()
    assert bench.ends()[2:] == [[(3, 3, 3 * ONE)]]


async def test_what_is_appended_to_a_log_that_was_given_up_gets_offsets_and_is_not_kept(
    bench: Bench, tmp_path: Path
) -> None:
    bench.append_part(tmp_path / "missing")
    await bench.flush()
    [damaged] = bench.damaged
    assert str(damaged.error) == f"{tmp_path / 'missing'} is missing, it was sealed"
    log = bench.logs[0]
    assert [append(log, batch()), append(log, batch())] == [1, 2]
    log.append_part(StagedPart(tmp_path / "missing", 100, 4), 1)
    assert log.end_offset == 7
    assert log._tail.memory_bytes == 0
    assert log.unwritten().batches == []


async def test_memory_goes_on_leaving_behind_a_log_that_was_given_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tail_cache_bytes=2 * ONE)
    bench.append(0, 2)
    await bench.write()
    bench.append_part(tmp_path / "missing")
    bench.append(1, 5)
    await bench.write()
    assert bench.writer._tail_bytes == 2 * ONE
    assert set(bench.writer._tail) == {bench.logs[1]}
    bench.writer.abandon()


async def test_what_comes_while_the_damage_is_found_is_given_up_too(bench: Bench, tmp_path: Path) -> None:
    bench.append_part(tmp_path / "missing")
    await bench.worker.wait()
    bench.append(0)
    bench.worker.step()
    assert len(bench.damaged) == 1
    bench.append(1)
    await bench.flush()
    # A position behind the part would say that the journal is needed no more.
    assert bench.ends() == [[(1, 1, ONE)]]
    assert bench.writer.unwritten_bytes == 0


async def test_a_round_of_syncs_ends_when_a_log_of_it_is_given_up(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, pace=replace(PROMPT, job_logs_max=1))
    bench.append(1)
    await bench.write()
    bench.append_part(tmp_path / "missing", 0)
    await bench.flush()
    assert bench.ends() == [[(1, 1, ONE)]]
    assert bench.writer._to_sync == 0
    assert len(bench.damaged) == 1

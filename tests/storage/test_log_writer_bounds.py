"""The log writer with many logs: bounded jobs, syncs and open files, with other work between."""

import asyncio
import errno
from functools import partial
from pathlib import Path

import pytest

from pixy.errors import StorageFault
from pixy.storage import (
    LogOptions,
    LogWriter,
    LogWriterOptions,
    PartitionLog,
    SyncedLog,
    TopicLogs,
    WriterPace,
)
from tests.fakes.disk import RecordingDisk, full
from tests.fakes.worker import StepWorker
from tests.storage.batches import batch
from tests.storage.logs import LONG_MS, append, identity, remove_log

JOB = 5


def _end(log: PartitionLog) -> int:
    """The state of a log that marks stand for."""
    return log.end_offset


class Bench:
    """A log writer with many logs, which counts what each job does."""

    def __init__(self, directory: Path, logs: int, sync_logs: int = 1000) -> None:
        self.disk = RecordingDisk()
        self.worker = StepWorker()
        self.synced: list[SyncedLog] = []
        self.told: list[int] = []
        self.faults: list[BaseException] = []
        self.fulls = 0
        self.logs = [
            PartitionLog(
                self.disk,
                directory / f"topic-{number}",
                identity(1000 + number),
                TopicLogs(LogOptions(150, LONG_MS)),
            )
            for number in range(logs)
        ]
        self.writer = LogWriter(
            self.worker,
            LogWriterOptions(
                tail_cache_bytes=1 << 20,
                sync_bytes=1 << 20,
                sync_logs=sync_logs,
                pace=WriterPace(gather_s=0, sync_after_s=1000.0, full_disk_retry_s=0, job_logs_max=JOB),
            ),
            on_synced=self._on_synced,
            on_progress=lambda: None,
            on_damaged=lambda damaged: self.faults.append(damaged.error),
            on_full=self._on_full,
            on_fault=self.faults.append,
        )

    def _on_synced(self, synced: list[SyncedLog]) -> None:
        self.synced += synced
        self.told.append(len(synced))

    def _on_full(self) -> None:
        self.fulls += 1

    def append(self, *numbers: int) -> None:
        for number in numbers:
            new = batch()
            append(self.logs[number], new)
            self.writer.mark_dirty(self.logs[number], partial(_end, self.logs[number]), len(new))

    async def step(self) -> int:
        """Run one job; returns how many segments it has made or appended to."""
        await self.worker.wait()
        before = len(self.disk.did("write", ".log"))
        self.worker.step()
        return len(self.disk.did("write", ".log")) - before

    async def flush(self) -> list[int]:
        """Flush; returns what each job has written."""
        jobs = []
        task = asyncio.create_task(self.writer.flush())
        while not task.done():
            if self.worker:
                jobs.append(await self.step())
            await asyncio.sleep(0)
        return jobs

    def open_files(self) -> int:
        """Segments whose file is open."""
        return sum(segment._file is not None for log in self.logs for segment in log._files.segments)


async def test_a_job_writes_and_syncs_a_bounded_number_of_logs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 17)
    bench.append(*range(17))
    assert await bench.flush() == [5, 5, 5, 2]
    assert bench.told == [5, 5, 5, 2]
    assert sorted(entry.log.identity.raft_group for entry in bench.synced) == list(range(1000, 1017))
    bench.writer.abandon()


async def test_a_round_of_syncs_has_everything_that_was_there_when_it_began_and_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 20)
    bench.append(*range(12))
    while bench.writer.unwritten_bytes:
        await bench.step()
    assert bench.told == []
    flushing = asyncio.create_task(bench.writer.flush())
    await asyncio.sleep(0)
    for number in range(12, 18):  # comes while the round is under way
        bench.append(number)
        await bench.step()
    while not flushing.done():
        if bench.worker:
            bench.worker.step()
        await asyncio.sleep(0)
    first_round = {entry.log for entry in bench.synced}
    assert first_round >= set(bench.logs[:12])
    assert len(bench.synced) == len(first_round) == 12
    assert sorted(await bench.flush(), reverse=True)
    assert {entry.log for entry in bench.synced} == set(bench.logs[:18])
    assert all(entry.mark == entry.end_offset == 1 for entry in bench.synced)
    bench.writer.abandon()


@pytest.mark.slow
async def test_so_many_unsynced_logs_are_synced_and_each_holds_one_file_open(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 60, sync_logs=20)
    most = 0
    for number in range(60):
        bench.append(number, number, number)  # three segments
        await bench.step()
        most = max(most, bench.open_files())
    assert 20 <= most <= 20 + JOB
    assert sum(bench.told) >= 40
    await bench.flush()
    assert bench.open_files() == 0
    bench.writer.abandon()


@pytest.mark.slow
async def test_logs_that_wait_all_at_once_hold_few_files_open_beyond_the_bound(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 100, sync_logs=20)
    bench.append(*range(100))
    most = 0
    while bench.writer.unwritten_bytes:
        await bench.step()
        most = max(most, bench.open_files())
    assert 20 <= most <= 20 + 2 * JOB
    bench.writer.abandon()


async def test_what_changed_without_a_batch_is_told_with_the_next_sync(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2)
    bench.append(0, 0, 0)
    await bench.flush()
    bench.logs[0].move_begin(2)
    bench.writer.mark_changed(bench.logs[0], lambda: "moved")
    bench.writer.mark_changed(bench.logs[1], lambda: "empty")
    await bench.flush()
    told = {entry.log: entry for entry in bench.synced[1:]}
    moved, empty = told[bench.logs[0]], told[bench.logs[1]]
    assert (moved.mark, moved.end_offset, moved.position.log_begin_offset) == ("moved", 3, 2)
    assert (empty.mark, empty.end_offset, empty.position) == ("empty", 0, (0, 0, 0))
    bench.writer.abandon()


async def test_work_of_others_runs_behind_what_was_begun_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 1)
    bench.append(0)
    await bench.worker.wait()
    seen: list[int] = []
    bench.writer.run(lambda: len(bench.disk.did("write", ".log")), seen.append)
    bench.worker.step()
    bench.worker.step()
    assert seen == [1]
    bench.writer.abandon()


async def test_an_error_of_that_work_is_a_fault_told_once(tmp_path: Path) -> None:
    def broken() -> None:
        raise OSError(errno.EIO, "no")

    bench = Bench(tmp_path, 1)
    bench.writer.run(broken, lambda _: None)
    bench.writer.run(broken, lambda _: None)
    bench.worker.step()
    bench.worker.step()
    assert [type(fault) for fault in bench.faults] == [OSError]
    bench.append(0)
    await bench.writer.flush()
    assert len(bench.worker) == 0


async def test_a_log_that_is_removed_while_its_write_is_on_the_worker_takes_nothing_and_holds_nobody(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, 2)
    bench.append(0, 1)
    await bench.step()
    bench.append(0, 1)
    await bench.worker.wait()
    bench.writer.run(lambda: remove_log(bench.disk, bench.logs[0]), lambda _: None)  # behind the write
    bench.append(0)  # and one behind the removal
    await bench.flush()
    assert bench.writer.unwritten_bytes == 0
    assert bench.disk.names(tmp_path) == ["topic-1"]
    assert bench.faults == []
    bench.writer.abandon()


async def test_a_log_that_waits_for_room_can_be_removed_and_makes_some(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2)
    bench.append(0)
    await bench.step()
    bench.append(0, 1)
    full(bench.disk, "write", ".log")
    await bench.step()
    await bench.step()
    assert (bench.fulls, bench.writer.blocked is None) == (2, False)
    bench.writer.run(lambda: remove_log(bench.disk, bench.logs[0]), lambda _: None)
    await bench.worker.wait()
    while not bench.disk.did("remove_directory"):
        bench.worker.step()
    bench.disk.heal()
    await bench.flush()
    assert (bench.writer.blocked, bench.writer.unwritten_bytes) == (None, 0)
    assert bench.disk.names(tmp_path) == ["topic-1"]
    bench.writer.abandon()


async def test_a_full_segment_that_cannot_be_synced_for_want_of_room_is_a_fault_and_not_tried_again(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, 1)
    bench.append(0, 0, 0)
    full(bench.disk, "sync", ".log")
    await bench.flush()
    assert [type(fault) for fault in bench.faults] == [StorageFault]
    assert (bench.fulls, len(bench.worker), bench.synced) == (0, 0, [])
    bench.writer.abandon()

"""Background writer of partition logs: moves applied batches from memory to segments.

One job at a time runs on a worker. It writes the batches that have gathered in partition logs, and
syncs segments when enough is unsynced or some time has passed. A job has a bounded number of logs,
so that its result takes the event loop little time. If more logs wait than one job takes, half of
it are those with the most bytes: thousands of logs with a record each take many jobs, and meanwhile
the others would use up the memory that all of them share. After a sync, `on_synced` gets the
positions that the journal may rely on. No request waits for any of this; the caller bounds
`unwritten_bytes` by what it appends.

A log with a damaged part of a stage is given up: the writer drops it and calls `on_damaged`; the
other logs go on.

The writer also bounds the memory that all partition logs together keep for readers at the tail: the
oldest batches are evicted first, once they are written.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import structlog

from pixy.errors import CorruptData, Unavailable
from pixy.storage.disk import Worker, is_disk_full
from pixy.storage.partition.log_segments import AgedSegments
from pixy.storage.partition.log_tail import Unwritten
from pixy.storage.partition.partition_log import PartitionLog, SyncedPosition

log = structlog.get_logger(__name__)

T = TypeVar("T")

_SMOOTH_BYTES_MIN = 1 << 20
"""Bytes of a log in a job whose writeback begins at once. The disk serves requests in order, and
the journal would wait for tens of megabytes that a sync begins to write.
"""
_EVICTED_PER_ITERATION = 1000
_BATCHES_PER_DELETED = 1000
"""Batches in memory that are looked through for each log of a deleted topic, at most."""


@dataclass(frozen=True, slots=True)
class WriterPace:
    """Timing and job sizes of a `LogWriter`.

    No request waits for segments, and each log that is written costs a system call: with a thousand
    logs, that is most of the cost of a record. Freeing memory takes 1 ms for 12 MiB.

    Attributes:
        gather_s, gather_bytes: time and bytes after which gathered batches are written.
        sync_after_s: time after which written batches are synced.
        full_disk_retry_s: time between attempts while the disk is full.
        job_logs_max: logs of one job.
        evicted_bytes_per_iteration: memory freed in one iteration of the loop, at least a batch.
    """

    gather_s: float = 0.1
    gather_bytes: int = 4 << 20
    sync_after_s: float = 5.0
    full_disk_retry_s: float = 0.5
    job_logs_max: int = 200
    evicted_bytes_per_iteration: int = 8 << 20


@dataclass(frozen=True, slots=True)
class LogWriterOptions:
    """Options of a `LogWriter`.

    Attributes:
        tail_cache_bytes: limit of the written batches that all logs together keep in memory.
        sync_bytes: unsynced bytes at which a sync is due.
        sync_logs: unsynced logs at which a sync is due; each of them holds a file open.
        pace: timing and job sizes.
    """

    tail_cache_bytes: int
    sync_bytes: int
    sync_logs: int
    pace: WriterPace = field(default_factory=WriterPace)


class SyncedLog(NamedTuple):
    """Partition log whose segments are durable up to `end_offset`.

    `mark` is the log's state at that time, see `LogWriter.mark_dirty`.
    """

    log: PartitionLog
    mark: object
    end_offset: int
    position: SyncedPosition


class DamagedLog(NamedTuple):
    """Partition log that was given up, with the reason, and its bytes that only the journal has."""

    mark: object
    error: CorruptData
    undurable_bytes: int


class _Save(NamedTuple):
    """One log on its way to stable storage: written by one job, synced by the same or a later one.

    `mark` is the log's state when its `unwritten` batches were taken. These leave the record
    once they are written, so that a log that waits for its sync keeps none of them in memory.
    """

    log: PartitionLog
    mark: object
    unwritten: Unwritten


@dataclass(slots=True)
class _Job:
    """One job of the worker: logs to write, then logs to sync.

    Used by the worker while it runs, by the event loop before and after.

    Attributes:
        to_write: logs left to write; empty afterwards, unless the disk is full.
        to_sync: logs to sync, less those found to be damaged.
        written: logs that were written.
        damaged: logs of which nothing more can be written, with the reason.
        synced: logs that are durable.
        full: the error if the disk is full; then nothing was synced.
    """

    to_write: list[_Save]
    to_sync: list[_Save]
    written: list[_Save] = field(default_factory=list)
    damaged: list[tuple[_Save, CorruptData]] = field(default_factory=list)
    synced: list[SyncedLog] = field(default_factory=list)
    full: OSError | None = None

    def run(self) -> None:
        """Write and sync. Runs on the worker."""
        self.written, self.damaged, self.full = [], [], None
        aged = AgedSegments()
        for at, save in enumerate(self.to_write):
            try:
                save.log.write(save.unwritten.batches, aged)
                save.log.write_producers()
            except CorruptData as error:
                save.log.close()
                self.damaged.append((save, error))
                self.to_sync = [each for each in self.to_sync if each.log is not save.log]
            except OSError as error:
                if not is_disk_full(error):
                    raise
                self.to_write, self.full = self.to_write[at:], error
                return
            else:
                self.written.append(save)
                if save.unwritten.memory_bytes >= _SMOOTH_BYTES_MIN:
                    save.log.begin_sync()
        self.to_write = []
        # A sync waits for the file's data and for the file system's own journal, one after the
        # other. Syncs that begin together share both waits.
        for save in self.to_sync[1:]:
            save.log.begin_sync()
        for save in self.to_sync:
            position = save.log.sync()
            self.synced.append(SyncedLog(save.log, save.mark, save.unwritten.end_offset, position))


class LogWriter:
    """Writes and syncs partition logs.

    Args:
        worker: the writer's thread, owned by the writer from here on.
        options: limits and timing.
        on_synced: called with logs that became durable.
        on_progress: called whenever `unwritten_bytes` has decreased.
        on_damaged: called with a log that was given up.
        on_full: called when the disk is full.
        on_fault: called with the error that ended the writer.

    Attributes:
        unwritten_bytes: appended bytes that are in no segment yet.
        blocked: reason why nothing can be written now; None otherwise.
        waiting_for_space: number of calls of `run` whose work waits for room on the disk.
    """

    def __init__(
        self,
        worker: Worker,
        options: LogWriterOptions,
        *,
        on_synced: Callable[[list[SyncedLog]], None],
        on_progress: Callable[[], None],
        on_damaged: Callable[[DamagedLog], None],
        on_full: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._worker = worker
        self._pace = options.pace
        self._tail_cache_bytes = options.tail_cache_bytes
        self._sync_bytes = options.sync_bytes
        # With a low limit of unwritten bytes, appends end before `gather_bytes` have gathered.
        self._gather_bytes = min(self._pace.gather_bytes, self._sync_bytes)
        self._sync_logs = options.sync_logs
        self._on_synced = on_synced
        self._on_progress = on_progress
        self._on_damaged = on_damaged
        self._on_full = on_full
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        # Logs with unwritten batches or another change, each with its mark.
        self._dirty: dict[PartitionLog, Callable[[], object]] = {}
        # Logs that are written, or in the running job, and not to be synced by it.
        self._unsynced: dict[PartitionLog, _Save] = {}
        self._unsynced_bytes = 0
        # Logs that may hold files open.
        self._open: set[PartitionLog] = set()
        self._sync_due = False
        # Number of logs left in the current round of syncs, at most. Invariant: they are the first
        # of `_unsynced` and then of `_dirty`.
        self._to_sync = 0
        self._sync_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        # Enough has gathered: a job begins in the next iteration of the loop.
        self._begins = False
        # A job is on the worker, or waits for disk space.
        self._running = False
        self._stopping = False
        self._broken = False
        # Set while nothing is to be written and no job runs, and once nothing can be written.
        self._idle = asyncio.Event()
        self._idle.set()
        # Logs with batches in memory, once for each batch, in the order of appending; and the
        # number of logs of deleted topics since these were looked for.
        self._tail: deque[PartitionLog] = deque()
        self._tail_bytes = 0
        self._deleted = 0
        self._evicting = False
        self.blocked: Unavailable | None = None
        self.unwritten_bytes = 0
        self.waiting_for_space = 0

    def mark_dirty(
        self, partition_log: PartitionLog, mark: Callable[[], object], size: int, batches: int = 1
    ) -> None:
        """Record an appended batch of `size` bytes, or several of that many together.

        Args:
            mark: returns the caller's label of the log's state. Called when batches are taken out
                of memory, on the event loop, so that both are of the same state; never within this
                call, in which the caller's state may be half changed.
        """
        if batches == 1:
            self._tail.append(partition_log)
        else:
            self._tail.extend([partition_log] * batches)
        self._tail_bytes += size
        partition_log.gathered_bytes += size
        unwritten = self.unwritten_bytes = self.unwritten_bytes + size
        if self._running or (self._write_timer is not None and unwritten < self._gather_bytes):
            self._dirty[partition_log] = mark
        else:
            self.mark_changed(partition_log, mark)

    def mark_changed(self, partition_log: PartitionLog, mark: Callable[[], object]) -> None:
        """Record any other change, to be reported after the next sync."""
        self._dirty[partition_log] = mark
        self._idle.clear()
        if self._running:
            return
        if self._enough_has_gathered():
            if not self._begins:
                self._begins = True
                self._loop.call_soon(self._begin)
        elif self._write_timer is None:
            self._write_timer = self._loop.call_later(self._pace.gather_s, self._begin)

    def forget(self, partition_log: PartitionLog) -> None:
        """Write and sync a log no more: all of it is on stable storage, and replaced by another.
        The caller closes it.
        """
        for logs in (self._dirty, self._unsynced):
            logs.pop(partition_log, None)
        self._open.discard(partition_log)
        self._to_sync = min(self._to_sync, len(self._unsynced.keys() | self._dirty.keys()))

    def run(
        self, work: Callable[[], T], then: Callable[[T], object], *, waits_for_space: bool = False
    ) -> None:
        """Do other work on files of logs, after the jobs submitted so far; `then` gets the result.

        An error ends the writer, as the error of a write does.

        Args:
            waits_for_space: work that a full disk ends is done anew, until there is room.
        """

        waits = False

        def done(result: Any, error: BaseException | None) -> None:
            nonlocal waits
            if self._broken:
                return
            if error is None:
                self.waiting_for_space -= waits
                then(result)
            elif waits_for_space and is_disk_full(error):
                if not waits:
                    waits = True
                    self.waiting_for_space += 1
                    log.error("no room for files of a partition, waiting for some", error=str(error))
                self._on_full()
                self._loop.call_later(self._pace.full_disk_retry_s, again)
            else:
                self._break(error)

        def again() -> None:
            if not self._broken:
                self._worker.submit(work, done)

        self._worker.submit(work, done)

    async def flush(self) -> None:
        """Write and sync everything appended so far. Returns after the calls of `on_synced`."""
        self._sync_due = True
        if not self._running:
            self._begin()
        while not (self._idle.is_set() or self._broken):
            await self._idle.wait()

    async def stop(self) -> None:
        """Flush, then stop the worker.

        On a full disk, batches that wait for space are given up: the journal has them.
        """
        self._stopping = True
        if self._retry_timer is None:
            await self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Stop the worker without further writes."""
        self._broken = True
        for timer in (self._write_timer, self._sync_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._worker.stop()
        for partition_log in self._open:
            partition_log.close()

    # --- on the event loop ------------------------------------------------------------------------

    def _begin(self) -> None:
        self._begins = False
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self._running or self._broken:
            return
        self._maybe_begin_round()
        to_write = [_Save(log, self._dirty.pop(log)(), log.unwritten()) for log in self._next_to_write()]
        for save in to_write:
            save.log.gathered_bytes = 0
            self._unsynced[save.log] = save
        to_sync = [self._unsynced.pop(log) for log in self._first(self._unsynced)[: self._to_sync]]
        left = len(self._unsynced.keys() | self._dirty.keys()) if self._to_sync else 0
        self._to_sync = min(self._to_sync - len(to_sync), left)
        if not to_write and not to_sync:
            self._idle.set()
            return
        self._running = True
        self._idle.clear()
        self._open.update(save.log for save in to_write)
        self._submit(_Job(to_write, to_sync))

    def _enough_has_gathered(self) -> bool:
        return self.unwritten_bytes >= self._gather_bytes

    def _maybe_begin_round(self) -> None:
        """If a sync is due, begin one of all unsynced or dirty logs; it may take several jobs."""
        if self._to_sync:
            return
        if (
            self._sync_due
            or self._unsynced_bytes + self.unwritten_bytes >= self._sync_bytes
            or len(self._unsynced) >= self._sync_logs
        ):
            self._sync_due = False
            self._unsynced_bytes = 0
            self._to_sync = len(self._unsynced.keys() | self._dirty.keys())

    def _submit(self, job: _Job) -> None:
        def done(_result: None, error: BaseException | None) -> None:
            if self._broken:
                return
            try:
                if error is not None:
                    raise error
                self._finished(job)
            except BaseException as fault:
                self._break(fault)

        self._retry_timer = None
        self._worker.submit(job.run, done)

    def _break(self, fault: BaseException) -> None:
        self._broken = True
        self._idle.set()
        self._on_fault(fault)

    def _finished(self, job: _Job) -> None:
        for save in job.written:
            unwritten = save.unwritten
            save.log.wrote(unwritten)
            self.unwritten_bytes -= unwritten.memory_bytes
            self._unsynced_bytes += unwritten.memory_bytes + unwritten.staged_bytes
            unwritten.batches.clear()
        for save, error in job.damaged:
            self._give_up(save, error)
        if not self._evicting:
            self._evict()
        if job.full is not None:
            self._wait_for_space(job, job.full)
            return
        self.blocked = None
        self._running = False
        if job.synced:
            self._open.difference_update(synced.log for synced in job.synced)
            self._on_synced(job.synced)
        self._on_progress()
        self._go_on()

    def _give_up(self, save: _Save, error: CorruptData) -> None:
        """Drop a log of which nothing more can be written."""
        given_up = save.log.give_up()
        self.unwritten_bytes -= given_up.unwritten_bytes
        self._tail_bytes -= given_up.memory_bytes
        self._tail = deque(each for each in self._tail if each is not save.log)
        for logs in (self._dirty, self._unsynced):
            logs.pop(save.log, None)
        self._open.discard(save.log)
        self._to_sync = min(self._to_sync, len(self._unsynced.keys() | self._dirty.keys()))
        self._on_damaged(DamagedLog(save.mark, error, given_up.undurable_bytes))

    def _wait_for_space(self, job: _Job, full: OSError) -> None:
        if self.blocked is None:
            log.error("no room for applied records, waiting for some; the journal has them", error=str(full))
        self.blocked = Unavailable(f"the disk is full: {full}")
        self._on_full()
        self._on_progress()
        if self._stopping:
            self._broken = True
            self._idle.set()
        else:
            self._retry_timer = self._loop.call_later(self._pace.full_disk_retry_s, self._submit, job)

    def _go_on(self) -> None:
        if self._unsynced and self._sync_timer is None and not self._stopping:
            self._sync_timer = self._loop.call_later(self._pace.sync_after_s, self._sync_now)
        if self._dirty or self._sync_due or self._to_sync:
            if self._enough_has_gathered() or self._sync_due or self._to_sync:
                self._begin()
            elif self._write_timer is None:
                self._write_timer = self._loop.call_later(self._pace.gather_s, self._begin)
        else:
            self._idle.set()

    def _sync_now(self) -> None:
        self._sync_timer = None
        self._sync_due = True
        self._begin()

    def _evict(self) -> None:
        """Evict the oldest batches, some in each iteration of the loop, down to the limit."""
        tail = self._tail
        enough = self._tail_bytes - self._pace.evicted_bytes_per_iteration
        for _ in range(_EVICTED_PER_ITERATION):
            size = tail[0].evict() if self._tail_bytes > self._tail_cache_bytes and tail else 0
            if not size:
                self._evicting = False
                return
            tail.popleft()
            self._tail_bytes -= size
            if self._tail_bytes <= enough:
                break
        self._evicting = True
        self._loop.call_soon(self._evict)

    def forget_deleted(self, count: int) -> None:
        """Take the written batches of deleted topics out of memory, `count` logs more than before.

        They are looked for once there are enough logs for the number of batches in memory.
        """
        self._deleted += count
        if self._deleted * _BATCHES_PER_DELETED < len(self._tail):
            return
        self._deleted = 0
        evicted: Counter[PartitionLog] = Counter()
        for log in {log for log in self._tail if log.topic.deleted}:
            while size := log.evict():
                evicted[log] += 1
                self._tail_bytes -= size
        kept: deque[PartitionLog] = deque()
        for log in self._tail:
            if evicted[log]:
                evicted[log] -= 1
            else:
                kept.append(log)
        self._tail = kept

    def _next_to_write(self) -> Sequence[PartitionLog]:
        logs = self._first(self._dirty)
        if len(self._dirty) == len(logs):
            return logs
        count = len(logs) // 2
        largest = nlargest(count, self._dirty, key=lambda log: log.gathered_bytes)
        if self._to_sync:
            self._to_sync += count  # these pass others of the round
        return list(dict.fromkeys(largest + logs))[: len(logs)]

    def _first(self, logs: Iterable[PartitionLog]) -> list[PartitionLog]:
        """As many logs as one job takes."""
        return list(islice(logs, self._pace.job_logs_max))

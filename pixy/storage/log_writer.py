"""Moves applied batches from memory to segments, behind everybody's back.

One job at a time runs on a worker: it writes what has gathered in partition logs, and, when enough is unsynced or some time has
passed, syncs them. A job has a bounded number of logs, so that what follows it on the event loop is short. After a sync
`on_synced` gets the positions that the journal may rely on. Nobody waits for any of this, except that appending must pause while
`unwritten_bytes` is above its bound.

A log whose next part of a stage is damaged is given up: it leaves the writer, `on_damaged` is told, and the others go on.

Also owns the bound on what all partition logs together keep in memory for readers at the tail: the oldest batches of all
go first, once they are written.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import structlog

from pixy.errors import CorruptData, Unavailable
from pixy.storage.disk import is_disk_full
from pixy.storage.log_tail import Unwritten
from pixy.storage.partition_log import PartitionLog, SyncedPosition
from pixy.storage.worker import Worker

__all__ = ["DamagedLog", "LogWriter", "SyncedLog", "WriterPace"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

_EVICTED_PER_TURN = 1000


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
        evicted_bytes_per_turn: memory freed in one turn of the event loop, at least one batch.
    """

    gather_s: float = 0.1
    gather_bytes: int = 4 << 20
    sync_after_s: float = 5.0
    full_disk_retry_s: float = 0.5
    job_logs_max: int = 200
    evicted_bytes_per_turn: int = 8 << 20


class SyncedLog(NamedTuple):
    """Partition log whose segments are durable up to `end_offset`.

    `mark` is the last one that `mark_dirty` was given before.
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


class _Dirty(NamedTuple):
    log: PartitionLog
    mark: object
    unwritten: Unwritten


class _Damaged(NamedTuple):
    entry: _Dirty
    error: CorruptData


@dataclass(slots=True)
class _Outcome:
    """Result of a job: logs written, logs damaged, ends of synced logs, and the `rest` that a full
    disk left unwritten.
    """

    written: list[_Dirty] = field(default_factory=list)
    damaged: list[_Damaged] = field(default_factory=list)
    positions: dict[PartitionLog, SyncedPosition] = field(default_factory=dict)
    rest: list[_Dirty] = field(default_factory=list)
    full: OSError | None = None


class LogWriter:
    """Writes and syncs partition logs.

    Args:
        worker: its thread. The writer owns it from here on.
        tail_cache_bytes: written batches that all logs together may keep in memory.
        sync_bytes: unsynced bytes at which a sync is due.
        sync_logs: unsynced logs at which a sync is due; each of them holds a file open.
        on_synced: called with logs that became durable.
        on_progress: called whenever `unwritten_bytes` fell.
        on_damaged: called with a log that nothing more is written of.
        on_full: called when there is no room on the disk.
        on_fault: called with what broke; nothing goes on after that.
        pace: when it works, if not as usual.

    Attributes:
        unwritten_bytes: appended and not in a segment yet.
        blocked: why nothing can be written at the moment, None if all is well.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        tail_cache_bytes: int,
        sync_bytes: int,
        sync_logs: int,
        on_synced: Callable[[list[SyncedLog]], None],
        on_progress: Callable[[], None],
        on_damaged: Callable[[DamagedLog], None],
        on_full: Callable[[], None],
        on_fault: Callable[[BaseException], None],
        pace: WriterPace | None = None,
    ) -> None:
        self._pace = pace or WriterPace()
        self._worker = worker
        self._tail_cache_bytes = tail_cache_bytes
        self._sync_bytes = sync_bytes
        self._sync_logs = sync_logs
        self._on_synced = on_synced
        self._on_progress = on_progress
        self._on_damaged = on_damaged
        self._on_full = on_full
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        # Logs with unwritten batches, and logs that are written and not synced, with their newest mark.
        self._dirty: dict[PartitionLog, object] = {}
        self._unsynced: dict[PartitionLog, tuple[object, int]] = {}
        self._unsynced_bytes = 0
        # Logs that may hold files open.
        self._open: set[PartitionLog] = set()
        self._sync_due = False
        # How many logs the round of syncs under way still has. Invariant: they are the first of `_unsynced` and then of `_dirty`.
        self._to_sync = 0
        self._sync_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        # A job is on the worker, or waits for room on the disk.
        self._running = False
        self._stopping = False
        self._broken = False
        # Set while nothing is to be written and no job runs, and when nothing can be written any more.
        self._idle = asyncio.Event()
        self._idle.set()
        self._tail: deque[PartitionLog] = deque()
        self._tail_bytes = 0
        self._evicting = False
        self.blocked: Unavailable | None = None
        self.unwritten_bytes = 0

    def mark_dirty(self, partition_log: PartitionLog, mark: object, size: int) -> None:
        """A batch of `size` bytes was appended; `mark` is the caller's name for the log's new state."""
        self._tail.append(partition_log)
        self._tail_bytes += size
        self.unwritten_bytes += size
        self.mark_changed(partition_log, mark)

    def mark_changed(self, partition_log: PartitionLog, mark: object) -> None:
        """Something other than a batch has changed, which the next sync is to tell of."""
        self._dirty[partition_log] = mark
        self._idle.clear()
        if self._running:
            return
        if self._enough_has_gathered():
            self._begin()
        elif self._write_timer is None:
            self._write_timer = self._loop.call_later(self._pace.gather_s, self._begin)

    def run(self, work: Callable[[], T], then: Callable[[T], object]) -> None:
        """Do something else with logs' files, behind what was begun before, then call back with the result.

        An error ends everything, as that of a write does.
        """

        def done(result: Any, error: BaseException | None) -> None:
            if self._broken:
                return
            if error is None:
                then(result)
            else:
                self._break(error)

        self._worker.submit(work, done)

    async def flush(self) -> None:
        """Write and sync everything that was appended so far; `on_synced` has been called on return."""
        self._sync_due = True
        if not self._running:
            self._begin()
        while not (self._idle.is_set() or self._broken):
            await self._idle.wait()

    async def stop(self) -> None:
        """Flush, then end the worker. With a full disk what waits for room is given up: the journal has it."""
        self._stopping = True
        if self._retry_timer is None:
            await self.flush()
        self.abandon()

    def abandon(self) -> None:
        """End the worker without writing any more."""
        self._broken = True
        for timer in (self._write_timer, self._sync_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._worker.stop()
        for partition_log in self._open:
            partition_log.close()

    # --- on the event loop --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self._running or self._broken:
            return
        self._maybe_begin_round()
        dirty = [_Dirty(log, self._dirty.pop(log), log.unwritten()) for log in self._first(self._dirty)]
        for entry in dirty:
            self._unsynced[entry.log] = (entry.mark, entry.unwritten.end_offset)
        synced = {log: self._unsynced.pop(log) for log in self._first(self._unsynced)[: self._to_sync]}
        self._to_sync -= len(synced)
        if not dirty and not synced:
            self._idle.set()
            return
        self._running = True
        self._idle.clear()
        self._open.update(entry.log for entry in dirty)
        self._submit(dirty, synced)

    def _enough_has_gathered(self) -> bool:
        # Where little may be unwritten, appending pauses before much has gathered.
        return self.unwritten_bytes >= min(self._pace.gather_bytes, self._sync_bytes)

    def _maybe_begin_round(self) -> None:
        """Sync everything that is unsynced or dirty at this moment, if that is due; it may take several jobs."""
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

    def _submit(self, dirty: list[_Dirty], synced: dict[PartitionLog, tuple[object, int]]) -> None:
        self._retry_timer = None
        self._worker.submit(partial(_write_and_sync, dirty, list(synced)), partial(self._done, synced))

    def _done(
        self,
        synced: dict[PartitionLog, tuple[object, int]],
        outcome: _Outcome | None,
        error: BaseException | None,
    ) -> None:
        if self._broken:
            return
        try:
            if outcome is None:
                assert error is not None
                raise error
            self._wrote(synced, outcome)
        except BaseException as fault:
            self._break(fault)

    def _break(self, fault: BaseException) -> None:
        self._broken = True
        self._idle.set()
        self._on_fault(fault)

    def _wrote(self, synced: dict[PartitionLog, tuple[object, int]], outcome: _Outcome) -> None:
        for entry in outcome.written:
            entry.log.wrote(entry.unwritten)
            self.unwritten_bytes -= entry.unwritten.memory_bytes
            self._unsynced_bytes += entry.unwritten.memory_bytes + entry.unwritten.staged_bytes
        for entry, error in outcome.damaged:
            synced.pop(entry.log, None)
            self._give_up(entry, error)
        if not self._evicting:
            self._evict()
        if outcome.full is not None:
            self._wait_for_room(outcome.full, outcome.rest, synced)
            return
        self.blocked = None
        self._running = False
        if synced:
            self._open.difference_update(synced)
            self._on_synced(
                [SyncedLog(log, mark, end, outcome.positions[log]) for log, (mark, end) in synced.items()]
            )
        self._on_progress()
        self._go_on()

    def _give_up(self, entry: _Dirty, error: CorruptData) -> None:
        """Forget a log of which nothing more can be written."""
        given_up = entry.log.give_up()
        self.unwritten_bytes -= given_up.unwritten_bytes
        self._tail_bytes -= given_up.memory_bytes
        self._tail = deque(each for each in self._tail if each is not entry.log)
        for logs in (self._dirty, self._unsynced):
            logs.pop(entry.log, None)
        self._open.discard(entry.log)
        self._to_sync = min(self._to_sync, len(self._unsynced.keys() | self._dirty.keys()))
        self._on_damaged(DamagedLog(entry.mark, error, given_up.undurable_bytes))

    def _wait_for_room(
        self, full: OSError, dirty: list[_Dirty], synced: dict[PartitionLog, tuple[object, int]]
    ) -> None:
        if self.blocked is None:
            log.error("no room for applied records, waiting for some; the journal has them", error=str(full))
        self.blocked = Unavailable(f"the disk is full: {full}")
        self._on_full()
        self._on_progress()
        if self._stopping:
            self._broken = True
            self._idle.set()
        else:
            self._retry_timer = self._loop.call_later(
                self._pace.full_disk_retry_s, self._submit, dirty, synced
            )

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
        """Let the oldest batches go from memory, some in each turn of the loop, until the rest is within its bound."""
        tail = self._tail
        enough = self._tail_bytes - self._pace.evicted_bytes_per_turn
        for _ in range(_EVICTED_PER_TURN):
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

    def _first(self, logs: Iterable[PartitionLog]) -> list[PartitionLog]:
        """As many logs as go into one job."""
        return list(islice(logs, self._pace.job_logs_max))


def _write_and_sync(dirty: list[_Dirty], synced: list[PartitionLog]) -> _Outcome:
    """On the worker."""
    outcome = _Outcome()
    for at, entry in enumerate(dirty):
        try:
            entry.log.write(entry.unwritten.batches)
        except CorruptData as error:
            entry.log.close()
            outcome.damaged.append(_Damaged(entry, error))
        except OSError as error:
            if not is_disk_full(error):
                raise
            outcome.rest, outcome.full = dirty[at:], error
            return outcome
        else:
            outcome.written.append(entry)
    damaged = {entry.log for entry, _ in outcome.damaged}
    whole = [partition_log for partition_log in synced if partition_log not in damaged]
    # Each sync waits for the file's data and for the file system's own journal, one after the other: begun together, they share both.
    for partition_log in whole[1:]:
        partition_log.begin_sync()
    outcome.positions = {partition_log: partition_log.sync() for partition_log in whole}
    return outcome

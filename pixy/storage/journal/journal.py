"""The journal: the write-ahead log of every raft group of one node.

Records are appended in *units*, gathered on the event loop and written one flush at a time: units
appended during a flush go into the next one, so one sync serves all groups and all callers (group
commit). There is no timer: a flush begins at the end of the loop iteration in which the first unit
is appended. `io_uring` writes and syncs a small flush, where the system has it; else
`File.write_durably` does it on a worker, by `direct_writes` if it is large. A unit is never split
over two flushes. A torn flush is cut as a whole, so a crash leaves a unit whole, or nothing of it.

Recovery relies on this order: flush n+1 is written only after flush n was synced; a file is synced
before its successor is created; a file exists durably (file and directory synced) before its first
flush; a file is durably removed before the next one is removed. All records of a file have its
format version: if the newest file is of an older one, the next flush begins a new file.

The units of a durable flush are reported in pieces, one per iteration of the event loop, so that
other tasks do not wait for all answers. Meanwhile the next flush is written; it is reported, and
the one after it begins, when the previous one is reported completely.

Faults: a failed sync or write is never retried. The state of the kernel's pages is unknown, so
nothing outstanding is acknowledged and `on_fault` ends the process; recovery decides. A full disk
while a file is created is not such a fault: nothing of the flush was written, so it waits and is
retried, and `blocked` has the reason meanwhile.

On a disk that stays full, commands that free space are the way out. So the newest file has spare
bytes behind those that every flush may use. While the disk is full and such a command waits, the
flushes before it and its own go there. The spare bytes of a file are given back when the next file
is created. They hold what the file holds: their blocks are the journal's already, so nobody else
can take them, and a start knows no difference.

A file is allocated when it is created, but a file system records for each block whether it was ever
written, and the sync of a block's first write waits for that record too: it takes half as long
again. So the first small flush in a stretch of the file also writes zeros up to the end of the
stretch, which later flushes overwrite. Zeros were there before, so a crash leaves nothing
different.

The roads not taken: a journal per group costs a sync for each; writing on the event loop stalls
every client during each sync.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pixy.errors import Unavailable
from pixy.metrics import TIME_BOUNDS, Histogram
from pixy.records import crc32c
from pixy.storage.disk import DIRECT_BYTES_MIN, Buffer, Disk, Done, File, Worker, is_disk_full
from pixy.storage.journal.gathered_units import FreesSpace, GatheredUnits
from pixy.storage.journal.journal_files import (
    EMPTY_JOURNAL,
    JournalFile,
    JournalPosition,
    forget_entries,
    journal_path,
)
from pixy.storage.journal.journal_format import (
    ENTRY_KINDS,
    FILE_HEADER_BYTES,
    FLUSH_FRAME_BYTES,
    FORMAT_VERSION,
    RECORD_HEAD_BYTES,
    UnitRecord,
    file_header,
    flush_frame,
    pack_identified,
    pack_start,
    pack_unidentified,
)

_FULL_DISK_RETRY_S = 0.5
_FLUSH_BYTES_MAX = 4 << 20
"""A flush of this size takes no further unit: it would gain no throughput and delay its callers."""
_AHEAD_BYTES = DIRECT_BYTES_MIN // 2
"""Stretch that its first flush fills up with zeros. See the module.

So these zeros are never written directly, and stay in the page cache. A write to part of a block
that is not there reads the block from the device first.
"""
_ZEROS = memoryview(bytes(_AHEAD_BYTES))


class _Written(NamedTuple):
    """A durable flush: the files begun for it, its number, and its bytes in the last file."""

    files: list[int]
    flush_number: int
    position: int
    end: int


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Options of a `Journal`.

    Attributes:
        directory: existing directory of its files.
        owner: cluster id (16 bytes) and node id, written to every file.
        file_bytes: size at which a file is full.
        spare_bytes: bytes behind them, for commands that free space.
        at: the end found by recovery.
        files: the files found by recovery, oldest first.
    """

    directory: Path
    owner: tuple[bytes, int]
    file_bytes: int
    at: JournalPosition = EMPTY_JOURNAL
    files: Sequence[JournalFile] = ()
    spare_bytes: int = 0


class Journal:
    """Appends records to the journal of one node and reports when they are durable.

    Args:
        disk: the file system.
        worker: the journal thread, owned by the journal from here on.
        options: its files.
        on_durable: called with the tokens of units, in order; never with tokens of two flushes at
            once.
        on_fault: called with the error when nothing can be made durable any more.
        on_full: called when the disk is full.
        frees_space: tells of a command, by raft group and payload, that it frees space.

    Attributes:
        files: its files, oldest first, with the flushes that are reported or being reported.
        blocked: reason why nothing can be written now; None otherwise.
        passenger: asked for a further unit, records and token, by each flush that is about to be
            written; None if there is none.
        flush_number: number of the newest durable flush, 0 for none.
        found_flush_number: that of the newest flush before the first one of this start.
        flushed_at: end of the last flush, in the loop's time.
        sync_s: time to write and sync a flush.
    """

    def __init__(
        self,
        disk: Disk,
        worker: Worker,
        options: JournalOptions,
        *,
        on_durable: Callable[[list[Any]], None],
        on_fault: Callable[[BaseException], None],
        on_full: Callable[[], None] = lambda: None,
        frees_space: FreesSpace = lambda _, __: False,
    ) -> None:
        self._disk = disk
        self._worker = worker
        self._directory = options.directory
        self._owner = options.owner
        self._file_bytes = options.file_bytes
        self._spare_bytes = options.spare_bytes
        self._on_durable = on_durable
        self._on_fault = on_fault
        self._on_full = on_full
        self._frees_space = frees_space
        self._loop = asyncio.get_running_loop()
        # From here to `_at`: used only by the flush in progress, also on the worker. The newest
        # file, and the bytes allocated for it.
        self._file: File | None = None
        self._size = 0
        # All blocks of the file up to here were written before; 0 if unknown.
        self._written_to = 0
        # The newest file was found by recovery, and can be continued.
        self._continues = not options.files or options.files[-1].version == FORMAT_VERSION
        self._at = options.at
        # Units of the next flushes, and of the one behind them.
        self._full: deque[GatheredUnits] = deque()
        self._gathered = GatheredUnits()
        self._flushing: GatheredUnits | None = None
        self._scheduled = False
        # The flush being reported; the flush written meanwhile, None as its result if it had no
        # record. Invariant: `files` ends with the file of the first of them.
        self._telling: GatheredUnits | None = None
        self._finished: tuple[_Written | None, GatheredUnits] | None = None
        self._broken = False
        self._retry: asyncio.TimerHandle | None = None
        # Set while nothing is gathered, in flight or to be reported, and while gathered units wait
        # for disk space.
        self._idle = asyncio.Event()
        self._idle.set()
        self.files: list[JournalFile] = list(options.files)
        self.blocked: Unavailable | None = None
        self.passenger: Callable[[], tuple[Sequence[UnitRecord], Any] | None] | None = None
        self.flush_number = self.found_flush_number = options.at.flush_number - 1
        self.flushed_at = self._begun_at = float("-inf")
        self.sync_s = Histogram(TIME_BOUNDS)

    @property
    def oldest_unsynced_at(self) -> float | None:
        """Loop time at which the oldest unit was appended that is not durable yet; None if there is
        none.
        """
        oldest = self._flushing or (self._full[0] if self._full else self._gathered)
        return oldest.since if oldest.tokens else None

    def append(self, records: Sequence[UnitRecord], token: Any) -> None:
        """Add a unit to the next flush: records that a crash leaves all, or none of them.

        The payloads must not change until `on_durable` is called with `token`. A unit without
        records writes nothing; its token is reported when everything before it is durable.

        An entry is relocated by appending what `JournalReader` has read, with the kind
        RELOCATED_ENTRY. Once that is durable, the group no longer needs the entry's old file. Only
        entries currently in the group's Raft log may be relocated.
        """
        gathered = self._gathered
        if not gathered.tokens:
            gathered.since = self._loop.time()
        elif gathered.bytes >= _FLUSH_BYTES_MAX:
            self._full.append(gathered)
            gathered = self._gathered = GatheredUnits(since=self._loop.time())
        if len(records) == 1:
            # As `GatheredUnits.add` does it; each call and loop would take a twentieth of the time.
            kind, entry_type, raft_group, index, term, commit, proposal, payload = records[0]
            if proposal is None:
                rest = pack_unidentified(kind, entry_type, 0, raft_group, index, term, commit)
            else:
                node, start, number = proposal
                rest = pack_identified(
                    kind, entry_type, 0, raft_group, index, term, commit, node, start, number
                )
            size = len(payload)
            gathered.buffers.append(pack_start(size, crc32c(payload, crc32c(rest))) + rest)
            gathered.buffers.append(payload)
            gathered.bytes += RECORD_HEAD_BYTES + size
            if kind in ENTRY_KINDS:
                highest = gathered.highest
                known = highest.get(raft_group)
                if known is None:
                    gathered.lowest[raft_group] = highest[raft_group] = index
                elif index > known:
                    highest[raft_group] = index
                else:
                    gathered.note(raft_group, index)
        else:
            gathered.add(records)
        gathered.tokens.append(token)
        if self._flushing is None and not self._scheduled and self._finished is None:
            self._schedule()

    def check_spare(self, size: int) -> None:
        """Return if there are spare bytes for a command that frees space, and what waits before it.

        Args:
            size: bytes of its payload.

        Raises:
            Unavailable: there are not; the message says what to do.
        """
        waiting = [*self._full, self._gathered]
        if self._flushing is not None:
            waiting.append(self._flushing)
        needed = RECORD_HEAD_BYTES + size + sum(FLUSH_FRAME_BYTES + each.bytes for each in waiting)
        if self._at.position + needed > self._size:
            room = max(self._file_bytes, needed) + self._spare_bytes
            raise Unavailable(
                f"{self.blocked}; what is kept for deletions does not suffice: make room for {room} bytes by other means"
            )

    async def drained(self) -> None:
        """Wait until all appended units are durable, or cannot become so: the journal is broken or
        the disk is full.
        """
        while not (self._idle.is_set() or self._broken):
            await self._idle.wait()

    async def stop(self) -> None:
        """Write the appended units, then stop the worker. Nothing may be appended afterwards.

        On a full disk, units waiting for space are given up: they were not acknowledged.
        """
        await self.drained()
        self.abandon()

    def give_up(self) -> None:
        """Report no more units as durable, and release the waiters of `drained`."""
        self._broken = True
        self._idle.set()

    def abandon(self) -> None:
        """Stop the worker without further writes."""
        self._broken = True
        if self._retry is not None:
            self._retry.cancel()
        self._worker.stop()
        if self._file is not None:
            self._file.close()
            self._file = None

    def forget(self, files: list[JournalFile]) -> None:
        """Unlink the oldest files, one after the other; the caller guarantees that nothing in them
        is needed.
        """
        assert self.files[: len(files)] == files, "only the oldest files may go"
        assert len(files) < len(self.files), "the newest file stays"
        del self.files[: len(files)]
        numbers = [file.number for file in files]
        self._worker.submit(lambda: self._unlink(numbers), self._unlinked)

    def forget_group(self, raft_group: int) -> None:
        """Need no file for the entries of a raft group, and find none of them: a REPLICA_GONE that
        is durable voids them.
        """
        forget_entries(self.files, raft_group)

    # --- on the event loop ------------------------------------------------------------------------

    def _has_units(self) -> bool:
        return bool(self._full or self._gathered.tokens)

    def _schedule(self) -> None:
        self._idle.clear()
        self._scheduled = True
        self._loop.call_soon(self._begin_flush)

    def _begin_flush(self) -> None:
        self._scheduled = False
        if self._broken:
            return
        if self._full:
            gathered = self._full.popleft()
        else:
            gathered, self._gathered = self._gathered, GatheredUnits()
        self._flushing = gathered
        self._idle.clear()
        if gathered.buffers:
            if self.passenger is not None:
                self._add_passenger(gathered, self.passenger())
            self._submit(gathered)
        else:
            self._flushed(None, gathered)

    def _add_passenger(self, gathered: GatheredUnits, unit: tuple[Sequence[UnitRecord], Any] | None) -> None:
        if unit is not None:
            records, token = unit
            gathered.add(records)
            gathered.tokens.append(token)

    def _submit(self, gathered: GatheredUnits) -> None:
        def done(written: _Written | None, error: BaseException | None) -> None:
            if error is None:
                self._flushed(written, gathered)
            elif (
                isinstance(error, _DiskFullError)
                and not gathered.may_use_spare
                and self._waits_to_free_space()
            ):
                gathered.may_use_spare = True
                self._submit(gathered)
            elif isinstance(error, _DiskFullError):
                self.blocked = Unavailable(f"the disk is full: {error}")
                if self._telling is None:
                    self._idle.set()
                self._retry = self._loop.call_later(_FULL_DISK_RETRY_S, self._submit, gathered)
                self._on_full()
            else:
                self._break(error)

        self._retry = None
        self._begun_at = time.monotonic()
        if not self._begin_write(gathered, done):
            self._worker.submit(lambda: self._write(gathered), done)

    def _waits_to_free_space(self) -> bool:
        """True if a command that frees space is not written yet."""
        waiting = [*self._full, self._gathered]
        if self._flushing is not None:
            waiting.append(self._flushing)
        return any(each.has_command(self._frees_space) for each in waiting)

    def _begin_write(self, gathered: GatheredUnits, done: Done) -> bool:
        """Write a flush without the worker's thread; False if that is not possible."""
        _, position, _ = self._at
        if self._file is None or position + FLUSH_FRAME_BYTES + gathered.bytes > self._limit:
            return False
        buffers = self._buffers(gathered)

        def written(_: None, error: BaseException | None) -> None:
            done(None if error else self._written(gathered, len(buffers[-1]), []), error)

        return self._worker.begin_write(self._file, buffers, position, written)

    def _buffers(self, gathered: GatheredUnits) -> list[Buffer]:
        """The bytes of a flush at the end of the file, and zeros ahead of it."""
        number, position, flush_number = self._at
        needed = FLUSH_FRAME_BYTES + gathered.bytes
        count = len(gathered.buffers) // 2
        frame = flush_frame(self._owner[0], flush_number, number, position, gathered.bytes, count)
        return [frame, *gathered.buffers, self._zeros_ahead(position + needed, needed)]

    def _written(self, gathered: GatheredUnits, ahead_bytes: int, new_files: list[int]) -> _Written:
        """A flush is durable at the end of the file, with that many zeros ahead of it."""
        number, position, flush_number = self._at
        end = position + FLUSH_FRAME_BYTES + gathered.bytes
        self._written_to = max(self._written_to, end + ahead_bytes)
        self._at = JournalPosition(number, end, flush_number + 1)
        return _Written(new_files, flush_number, position, end)

    def _flushed(self, written: _Written | None, gathered: GatheredUnits) -> None:
        if self._broken:
            return
        self._flushing = None
        if written is not None:
            self.blocked = None
            self.flush_number = written.flush_number
            self.flushed_at = self._loop.time()
            # uvloop's time is that of its iteration.
            self.sync_s.observe(time.monotonic() - self._begun_at)
        if self._telling is None:
            self._begin_telling(written, gathered)
            self._tell()
        else:
            self._finished = (written, gathered)

    def _begin_telling(self, written: _Written | None, gathered: GatheredUnits) -> None:
        if written is not None:
            self.files.extend(JournalFile(number) for number in written.files)
            self.files[-1].add(gathered.lowest, gathered.highest, written.position)
            self.files[-1].end = written.end
        self._telling = gathered
        if self._has_units() and not self._scheduled:
            self._begin_flush()

    def _tell(self) -> None:
        gathered = self._telling
        if self._broken or gathered is None:
            return
        try:
            self._on_durable(gathered.next_tokens())
        except Exception as error:
            # A bug. The rest of the flush was not applied, so nothing after it may be.
            self._break(error)
            return
        if gathered.told < len(gathered.tokens):
            self._loop.call_soon(self._tell)
        else:
            self._end_telling()

    def _end_telling(self) -> None:
        self._telling = None
        if self._finished is not None:
            finished, self._finished = self._finished, None
            self._begin_telling(*finished)
            self._loop.call_soon(self._tell)
        elif self._retry is not None or (
            self._flushing is None and not self._scheduled and not self._has_units()
        ):
            self._idle.set()

    def _break(self, error: BaseException) -> None:
        if self._broken:
            return
        self.give_up()
        self._on_fault(error)

    # --- on the worker ----------------------------------------------------------------------------

    @property
    def _limit(self) -> int:
        """End of the bytes of the newest file that every flush may use."""
        if self._size <= self._file_bytes:
            return self._size  # of a release, or with an option, without spare bytes
        return max(self._file_bytes, self._size - self._spare_bytes)

    def _write(self, gathered: GatheredUnits) -> _Written:
        number, position, flush_number = self._at
        needed = FLUSH_FRAME_BYTES + gathered.bytes
        new_files: list[int] = []
        if self._file is None and number and self._continues:
            self._file = self._disk.open(journal_path(self._directory, number))
            self._size = self._file.size()
        fits = position + needed <= (self._size if gathered.may_use_spare else self._limit)
        if self._file is None or (not fits and position > FILE_HEADER_BYTES):
            number += 1
            size = max(self._file_bytes, FILE_HEADER_BYTES + needed) + self._spare_bytes
            self._create_file(number, size)
            position = FILE_HEADER_BYTES
            new_files.append(number)
            self._at = JournalPosition(number, position, flush_number)
        elif not fits:
            self._grow(self._file, position + needed)
        assert self._file is not None
        buffers = self._buffers(gathered)
        self._file.write_durably(buffers, position)
        return self._written(gathered, len(buffers[-1]), new_files)

    def _zeros_ahead(self, end: int, needed: int) -> memoryview:
        """Zeros to write after a flush of `needed` bytes that ends at `end`."""
        if end <= self._written_to or needed >= _AHEAD_BYTES:
            return _ZEROS[:0]
        return _ZEROS[: min(-end % _AHEAD_BYTES, self._size - end)]

    def _create_file(self, number: int, size: int) -> None:
        path = journal_path(self._directory, number)
        try:
            file = self._disk.open(path, create=True)
            try:
                file.allocate(size)
                file.write_at([file_header(number, *self._owner)], 0)
            except OSError:
                file.close()
                self._disk.unlink(path)
                raise
        except OSError as error:
            _raise_if_full(error)
            raise
        file.sync()
        self._disk.sync_directory(self._directory)
        if self._file is not None:
            if self._at.position <= self._limit < self._size:
                self._file.truncate(self._limit)
            self._file.close()
        self._file, self._size, self._written_to = file, size, 0

    def _grow(self, file: File, size: int) -> None:
        """Extend a file found without flushes by recovery, smaller than its first flush."""
        try:
            file.allocate(size)
        except OSError as error:
            _raise_if_full(error)
            raise
        self._size = size

    def _unlink(self, numbers: list[int]) -> None:
        for number in numbers:
            self._disk.unlink(journal_path(self._directory, number))
            # Removals that are not durable yet may be lost in any order, and files with a gap
            # between them are rejected.
            self._disk.sync_directory(self._directory)

    def _unlinked(self, _result: None, error: BaseException | None) -> None:
        if error is not None:
            self._break(error)


class _DiskFullError(Exception):
    """There is no space for another journal file."""


def _raise_if_full(error: OSError) -> None:
    if is_disk_full(error):
        raise _DiskFullError(str(error)) from error

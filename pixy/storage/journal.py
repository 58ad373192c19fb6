"""The journal: the write-ahead log of every raft group of one node.

Records are gathered on the event loop and written by one worker, one flush at a time: records
appended during a flush go into the next one, so one sync serves all groups and all callers (group
commit). There is no timer: a flush begins at the end of the loop iteration in which the first
record is appended. `File.write_durably` writes and syncs it, `direct_writes` if it is large.

Recovery relies on this order: flush n+1 is written only after flush n was synced; a file is synced
before its successor is created; a file exists durably (file and directory synced) before its first
flush; a file is durably removed before the next one is removed.

The records of a durable flush are reported in pieces, one per iteration of the event loop, so that
other tasks do not wait for all answers. Meanwhile the next flush is written; it is reported, and
the one after it begins, when the previous one is reported completely.

Faults: a failed sync or write is never retried. The state of the kernel's pages is unknown, so
nothing outstanding is acknowledged and `on_fault` ends the process; recovery decides. A full disk
while a file is created is not such a fault: nothing of the flush was written, so it waits and is
retried, and `blocked` has the reason meanwhile.

A file is allocated when it is created, but a file system records for each block whether it was ever
written, and the sync of a block's first write waits for that record too: it takes half as long
again. So the first small flush in a stretch of the file also writes zeros up to the end of the
stretch, which later flushes overwrite. Zeros were there before, so a crash leaves nothing
different.

The roads not taken: a journal per group costs a sync for each; writing on the event loop stalls
every client during each sync.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pixy.errors import Unavailable
from pixy.storage.disk import Buffer, Disk, File, is_disk_full
from pixy.storage.journal_format import (
    FILE_HEADER_BYTES,
    FLUSH_FRAME_BYTES,
    RECORD_HEAD_BYTES,
    RecordKind,
    file_header,
    flush_frame,
    record_head,
)
from pixy.storage.worker import Worker

__all__ = ["EMPTY_JOURNAL", "Journal", "JournalFile", "JournalOptions", "JournalPosition", "journal_path"]

_ENTRIES = (RecordKind.ENTRY, RecordKind.RELOCATED_ENTRY)
_FULL_DISK_RETRY_S = 0.5
_FLUSH_BYTES_MAX = 4 << 20
"""A larger flush gains no throughput and delays all its callers."""
_AHEAD_BYTES = 256 << 10
"""Stretch that its first flush fills up with zeros. See the module."""
_ZEROS = memoryview(bytes(_AHEAD_BYTES))
_TOLD_RECORDS_MAX = 64
_TOLD_BYTES_MAX = 64 << 10
"""Limits of the records reported per loop iteration, at least one. Their callbacks take 1 or 2 ms.
"""


def journal_path(directory: Path, file_number: int) -> Path:
    """Path of a journal file."""
    return directory / f"{file_number:020d}.journal"


class JournalPosition(NamedTuple):
    """Position of the next flush. `file_number` 0: there is no file yet."""

    file_number: int
    position: int
    flush_number: int


EMPTY_JOURNAL = JournalPosition(file_number=0, position=0, flush_number=1)


@dataclass(slots=True)
class JournalFile:
    """Bookkeeping of one journal file.

    Invariant: `last_index` has every raft group with an entry in the file, relocated ones included,
    with the highest index there. So a file is retained for a group whose entries were copied into
    it, and for entries replaced since.
    """

    number: int
    last_index: dict[int, int] = field(default_factory=dict)

    def add(self, last_index: Mapping[int, int]) -> None:
        """Record entries in the file: the highest index of each raft group among them."""
        for raft_group, index in last_index.items():
            if index > self.last_index.get(raft_group, 0):
                self.last_index[raft_group] = index


@dataclass(slots=True)
class _Gathered:
    """Content of one flush.

    Invariants: `buffers` has a head and a payload per token; `bytes` is their size; `last_index` is
    as in `JournalFile`, but after a split may have entries of the other part, which only retains a
    file longer than needed.
    """

    buffers: list[Buffer] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    bytes: int = 0
    last_index: dict[int, int] = field(default_factory=dict)

    def split(self, size_max: int) -> "tuple[_Gathered, _Gathered]":
        """The records that fit into `size_max` bytes, at least one, and the rest."""
        size = records = 0
        for records in range(1, len(self.tokens) + 1):
            size += RECORD_HEAD_BYTES + len(self.buffers[2 * records - 1])
            if records == len(self.tokens):
                break
            if size + RECORD_HEAD_BYTES + len(self.buffers[2 * records + 1]) > size_max:
                break
        first = _Gathered(self.buffers[: 2 * records], self.tokens[:records], size, self.last_index)
        rest = _Gathered(
            self.buffers[2 * records :], self.tokens[records:], self.bytes - size, dict(self.last_index)
        )
        return first, rest

    def piece(self, first: int) -> int:
        """End of the records from `first` on that are reported in one iteration."""
        size = 0
        for end in range(first + 1, min(first + _TOLD_RECORDS_MAX, len(self.tokens)) + 1):
            size += len(self.buffers[2 * end - 1])
            if size >= _TOLD_BYTES_MAX:
                return end
        return min(first + _TOLD_RECORDS_MAX, len(self.tokens))


class _Written(NamedTuple):
    files: list[int]
    position: int


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Options of a `Journal`.

    Attributes:
        directory: existing directory of its files.
        owner: cluster id (16 bytes) and node id, written to every file.
        file_bytes: size at which a file is full.
        at: the end found by recovery.
        files: the files found by recovery, oldest first.
    """

    directory: Path
    owner: tuple[bytes, int]
    file_bytes: int
    at: JournalPosition = EMPTY_JOURNAL
    files: Sequence[JournalFile] = ()


class Journal:
    """Appends records to the journal of one node and reports when they are durable.

    Args:
        disk: the file system.
        worker: the journal thread, owned by the journal from here on.
        options: its files.
        on_durable: called with the tokens of records, in order; never with tokens of two flushes at
            once.
        on_fault: called with the error when nothing can be made durable any more.
        on_full: called when the disk is full.

    Attributes:
        files: its files, oldest first.
        blocked: reason why nothing can be written now; None otherwise.
        flushed_at: end of the last flush, in the loop's time.
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
    ) -> None:
        self._disk = disk
        self._worker = worker
        self._directory = options.directory
        self._owner = options.owner
        self._file_bytes = options.file_bytes
        self._on_durable = on_durable
        self._on_fault = on_fault
        self._on_full = on_full
        self._loop = asyncio.get_running_loop()
        # From here to `_at`: used only by the worker during a flush. The newest file, and the bytes
        # allocated for it.
        self._file: File | None = None
        self._size = 0
        # All blocks of the file up to here were written before; 0 if unknown.
        self._written_to = 0
        self._at = options.at
        self._gathered = _Gathered()
        self._flushing = False
        self._scheduled = False
        # The flush being reported, and the number of its records reported; the flush written
        # meanwhile. Invariant: `files` ends with the file of the first of them.
        self._telling: _Gathered | None = None
        self._told = 0
        self._finished: tuple[_Written, _Gathered] | None = None
        self._paused = False
        self._broken = False
        self._retry: asyncio.TimerHandle | None = None
        # Set while nothing is gathered, in flight or to be reported, and while gathered records
        # wait for disk space.
        self._idle = asyncio.Event()
        self._idle.set()
        self.files: list[JournalFile] = list(options.files)
        self.blocked: Unavailable | None = None
        self.flushed_at = float("-inf")

    def append(
        self, kind: int, entry_type: int, raft_group: int, index: int, term: int, payload: Buffer, token: Any
    ) -> None:
        """Add a record to the next flush. `payload` must not change until `on_durable` is called
        with `token`.

        An entry is relocated by appending the result of `read_entries` with the kind
        RELOCATED_ENTRY. Once that is durable, the group no longer needs the entry's old file. Only
        entries currently in the group's Raft log may be relocated.
        """
        gathered = self._gathered
        gathered.buffers.append(record_head(kind, entry_type, raft_group, index, term, payload))
        gathered.buffers.append(payload)
        gathered.bytes += RECORD_HEAD_BYTES + len(payload)
        gathered.tokens.append(token)
        if kind in _ENTRIES and index > gathered.last_index.get(raft_group, 0):
            gathered.last_index[raft_group] = index
        if self._may_schedule():
            if self._paused:
                self._idle.clear()
            else:
                self._schedule()

    def pause(self) -> None:
        """Start no further flush until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Start flushes again after `pause`."""
        self._paused = False
        if self._gathered.tokens and self._may_schedule():
            self._schedule()

    async def drained(self) -> None:
        """Wait until all appended records are durable, or cannot become so: the journal is broken
        or the disk is full.
        """
        while not (self._idle.is_set() or self._broken):
            await self._idle.wait()

    async def stop(self) -> None:
        """Write the appended records, then stop the worker. Nothing may be appended afterwards.

        On a full disk, records waiting for space are given up: they were not acknowledged.
        """
        await self.drained()
        self.abandon()

    def give_up(self) -> None:
        """Report no more records as durable, and release the waiters of `drained`."""
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

    # --- on the event loop ------------------------------------------------------------------------

    def _may_schedule(self) -> bool:
        return not (self._scheduled or self._flushing or self._finished)

    def _schedule(self) -> None:
        self._scheduled = True
        self._idle.clear()
        self._loop.call_soon(self._begin_flush)

    def _begin_flush(self) -> None:
        self._scheduled = False
        if self._broken or self._paused:
            return
        gathered, rest = self._gathered, None
        if gathered.bytes > _FLUSH_BYTES_MAX:
            gathered, rest = gathered.split(_FLUSH_BYTES_MAX)
        self._gathered = _Gathered() if rest is None else rest
        self._flushing = True
        self._idle.clear()
        self._submit(gathered)

    def _submit(self, gathered: "_Gathered") -> None:
        def done(written: _Written | None, error: BaseException | None) -> None:
            if error is None:
                assert written is not None
                self._flushed(written, gathered)
            elif isinstance(error, _DiskFullError):
                self.blocked = Unavailable(f"the disk is full: {error}")
                if self._telling is None:
                    self._idle.set()
                self._retry = self._loop.call_later(_FULL_DISK_RETRY_S, self._submit, gathered)
                self._on_full()
            else:
                self._break(error)

        self._retry = None
        self._worker.submit(lambda: self._write(gathered), done)

    def _flushed(self, written: _Written, gathered: "_Gathered") -> None:
        if self._broken:
            return
        self.blocked = None
        self._flushing = False
        self.flushed_at = self._loop.time()
        if self._telling is None:
            self._begin_telling(written, gathered)
            self._tell()
        else:
            self._finished = (written, gathered)

    def _begin_telling(self, written: _Written, gathered: "_Gathered") -> None:
        self.files.extend(JournalFile(number) for number in written.files)
        self.files[-1].add(gathered.last_index)
        self._telling, self._told = gathered, 0
        if self._gathered.tokens and not self._paused and not self._scheduled:
            self._begin_flush()

    def _tell(self) -> None:
        gathered = self._telling
        if self._broken or gathered is None:
            return
        first, self._told = self._told, gathered.piece(self._told)
        try:
            self._on_durable(gathered.tokens[first : self._told])
        except Exception as error:
            # A bug. The rest of the flush was not applied, so nothing after it may be.
            self._break(error)
            return
        if self._told < len(gathered.tokens):
            self._loop.call_soon(self._tell)
        else:
            self._end_telling()

    def _end_telling(self) -> None:
        self._telling = None
        if self._finished is not None:
            finished, self._finished = self._finished, None
            self._begin_telling(*finished)
            self._loop.call_soon(self._tell)
        elif self._retry is not None or not (self._flushing or self._scheduled or self._gathered.tokens):
            self._idle.set()

    def _break(self, error: BaseException) -> None:
        if self._broken:
            return
        self.give_up()
        self._on_fault(error)

    # --- on the worker ----------------------------------------------------------------------------

    def _write(self, gathered: "_Gathered") -> _Written:
        number, position, flush_number = self._at
        needed = FLUSH_FRAME_BYTES + gathered.bytes
        new_files: list[int] = []
        if self._file is None and number:
            self._file = self._disk.open(journal_path(self._directory, number))
            self._size = self._file.size()
        fits = position + needed <= self._size
        if self._file is None or (not fits and position > FILE_HEADER_BYTES):
            number += 1
            self._create_file(number, max(self._file_bytes, FILE_HEADER_BYTES + needed))
            position = FILE_HEADER_BYTES
            new_files.append(number)
            self._at = JournalPosition(number, position, flush_number)
        elif not fits:
            self._grow(self._file, position + needed)
        assert self._file is not None
        frame = flush_frame(
            self._owner[0], flush_number, number, position, gathered.bytes, len(gathered.tokens)
        )
        ahead = self._zeros_ahead(position + needed, needed)
        self._file.write_durably([frame, *gathered.buffers, ahead], position)
        self._at = JournalPosition(number, position + needed, flush_number + 1)
        return _Written(new_files, position + needed)

    def _zeros_ahead(self, end: int, needed: int) -> memoryview:
        """Zeros to write after a flush of `needed` bytes that ends at `end`."""
        if end <= self._written_to:
            return _ZEROS[:0]
        self._written_to = end
        if needed < _AHEAD_BYTES:
            self._written_to = min(end + -end % _AHEAD_BYTES, self._size)
        return _ZEROS[: self._written_to - end]

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

"""The journal: the write-ahead log of every raft group of one node.

Records are gathered on the event loop and written by one worker, one flush at a time: everything that was appended while a
flush was under way goes into the next one, so one sync serves all groups and all callers (group commit). There is no timer:
a flush begins at the end of the loop turn in which the first record came in.

Order, which recovery relies on: flush n+1 is written only after flush n was synced; a file is synced before its successor
is created; a file exists durably (file and directory synced) before its first flush; a file is durably gone before the next one goes.

What a flush has made durable is told piece by piece, a piece in each turn of the event loop, so that nobody else waits for the answers of
all. Meanwhile the next flush is written; it is told of, and the one behind it begins, when all of the one before is told.

Faults: a failed sync or write is never retried. What the kernel did with the pages is unknown, so nothing outstanding is
acknowledged and `on_fault` ends the process; recovery decides. A full disk while a file is created is not such a fault: nothing
of the flush was written, so it waits and is tried again, and `blocked` says why meanwhile.

A file is allocated when it is created, but a file system notes for each block whether it was ever written, and a sync of a block's first
write waits for that note too: it takes half as long again. So a small flush that comes first into a stretch of the file writes zeros to
the end of the stretch along with itself, and the flushes behind it write over those. Zeros are what was there before, so no crash leaves
anything else than without them.

The road not taken: a journal for each group costs a sync for each; writing on the event loop stalls every client for each
sync.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
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

__all__ = ["Journal", "JournalFile", "JournalPosition", "journal_path"]

_ENTRIES = (RecordKind.ENTRY, RecordKind.RELOCATED_ENTRY)
_FULL_DISK_RETRY_S = 0.5
_FLUSH_BYTES_MAX = 4 << 20
"""A larger flush gains no throughput and delays everybody in it."""
_AHEAD_BYTES = 256 << 10
"""A flush that is the first in a stretch of so many bytes fills the rest of it with zeros. See the module."""
_ZEROS = memoryview(bytes(_AHEAD_BYTES))
_TOLD_RECORDS_MAX = 64
_TOLD_BYTES_MAX = 64 << 10
"""What is told in one turn: records up to one of these bounds, at least one. What follows takes 1 or 2 ms."""


def journal_path(directory: Path, file_number: int) -> Path:
    """Where a journal file lives."""
    return directory / f"{file_number:020d}.journal"


class JournalPosition(NamedTuple):
    """Where the next flush goes. `file_number` 0 means that there is no file yet."""

    file_number: int
    position: int
    flush_number: int


@dataclass(slots=True)
class JournalFile:
    """What the journal must remember of one of its files.

    Invariant: `last_index` has every raft group that has an entry in the file, relocated ones included, with the highest index
    there. So a file is held for a group whose entries were copied into it, and for entries that were replaced since.
    """

    number: int
    last_index: dict[int, int] = field(default_factory=dict)

    def add(self, last_index: Mapping[int, int]) -> None:
        """Take note of entries that are in the file: the highest index of each raft group among them."""
        for raft_group, index in last_index.items():
            if index > self.last_index.get(raft_group, 0):
                self.last_index[raft_group] = index


@dataclass(slots=True)
class _Gathered:
    """What goes into one flush.

    Invariants: `buffers` has a head and a payload for each token; `bytes` is their size; `last_index` is as in `JournalFile`,
    though after a split it may have entries of the other part, which only keeps a file longer than needed.
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
        """Behind the last of the records from `first` on that are told in one turn."""
        size = 0
        for end in range(first + 1, min(first + _TOLD_RECORDS_MAX, len(self.tokens)) + 1):
            size += len(self.buffers[2 * end - 1])
            if size >= _TOLD_BYTES_MAX:
                return end
        return min(first + _TOLD_RECORDS_MAX, len(self.tokens))


class _Written(NamedTuple):
    files: list[int]
    position: int


class Journal:
    """Appends records to the journal of one node and tells when they are durable.

    Args:
        disk: the file system.
        directory: where the journal's files are; exists.
        owner: cluster id (16 bytes) and node id, stamped on every file.
        file_bytes: size at which a file is full.
        at: where recovery found the end.
        files: the files that recovery found, oldest first.
        worker: the journal thread. The journal owns it from here on.
        on_durable: called with the tokens of records, in order; never with those of two flushes at once.
        on_fault: called with what broke when nothing can be made durable any more.
        on_full: called when there is no room on the disk.

    Attributes:
        files: its files, oldest first.
        blocked: why nothing can be written at the moment, None if all is well.
        flushed_at: when the last flush ended, in the loop's time.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        owner: tuple[bytes, int],
        *,
        file_bytes: int,
        at: JournalPosition,
        files: Iterable[JournalFile],
        worker: Worker,
        on_durable: Callable[[list[Any]], None],
        on_fault: Callable[[BaseException], None],
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._owner = owner
        self._file_bytes = file_bytes
        self._worker = worker
        self._on_durable = on_durable
        self._on_fault = on_fault
        self._on_full = on_full
        self._loop = asyncio.get_running_loop()
        # Touched by the worker only, while a flush is under way, down to _at: the newest file, and the bytes allocated for it.
        self._file: File | None = None
        self._size = 0
        # Every block of the file up to here was written before. 0 where that is not known.
        self._written_to = 0
        self._at = at
        self._gathered = _Gathered()
        self._flushing = False
        self._scheduled = False
        # What is being told of, and the records of it that were told; the flush that was written meanwhile. Invariant: `files` ends
        # with the file that the first of them is in.
        self._telling: _Gathered | None = None
        self._told = 0
        self._finished: tuple[_Written, _Gathered] | None = None
        self._held = False
        self._broken = False
        self._retry: asyncio.TimerHandle | None = None
        # Set while nothing is gathered, under way or to be told, and while what is gathered waits for room on the disk.
        self._idle = asyncio.Event()
        self._idle.set()
        self.files: list[JournalFile] = list(files)
        self.blocked: Unavailable | None = None
        self.flushed_at = float("-inf")

    def append(
        self, kind: int, entry_type: int, raft_group: int, index: int, term: int, payload: Buffer, token: Any
    ) -> None:
        """Add a record to the next flush. `payload` must not change until `on_durable` got `token`.

        An entry is relocated by appending what `read_entries` gave with the kind RELOCATED_ENTRY. When that is durable, the group
        needs it from the file in which it was before no more. Only what is in the group's Raft log at this moment may be relocated.
        """
        gathered = self._gathered
        gathered.buffers.append(record_head(kind, entry_type, raft_group, index, term, payload))
        gathered.buffers.append(payload)
        gathered.bytes += RECORD_HEAD_BYTES + len(payload)
        gathered.tokens.append(token)
        if kind in _ENTRIES and index > gathered.last_index.get(raft_group, 0):
            gathered.last_index[raft_group] = index
        if self._may_schedule():
            if self._held:
                self._idle.clear()
            else:
                self._schedule()

    def hold(self) -> None:
        """Begin no further flush until `release`."""
        self._held = True

    def release(self) -> None:
        """Undo `hold`."""
        self._held = False
        if self._gathered.tokens and self._may_schedule():
            self._schedule()

    async def drained(self) -> None:
        """Wait until everything appended is durable, or cannot become so: the journal is broken or the disk is full."""
        while not (self._idle.is_set() or self._broken):
            await self._idle.wait()

    async def stop(self) -> None:
        """Write what was appended, then end the worker. Nothing may be appended afterwards.

        With a full disk what waits for room is given up: nobody was told that it is written.
        """
        await self.drained()
        self.abandon()

    def give_up(self) -> None:
        """Tell of nothing any more that it is durable, and let those go on who wait until everything is."""
        self._broken = True
        self._idle.set()

    def abandon(self) -> None:
        """End the worker without writing any more."""
        self._broken = True
        if self._retry is not None:
            self._retry.cancel()
        self._worker.stop()
        if self._file is not None:
            self._file.close()
            self._file = None

    def forget(self, files: list[JournalFile]) -> None:
        """Unlink the oldest files, one after the other; the caller has proven that nothing in them is needed."""
        assert self.files[: len(files)] == files, "only the oldest files may go"
        assert len(files) < len(self.files), "the newest file stays"
        del self.files[: len(files)]
        numbers = [file.number for file in files]
        self._worker.submit(lambda: self._unlink(numbers), self._unlinked)

    # --- on the event loop --------------------------------------------------------------------------------------

    def _may_schedule(self) -> bool:
        return not (self._scheduled or self._flushing or self._finished)

    def _schedule(self) -> None:
        self._scheduled = True
        self._idle.clear()
        self._loop.call_soon(self._begin_flush)

    def _begin_flush(self) -> None:
        self._scheduled = False
        if self._broken or self._held:
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
        if self._gathered.tokens and not self._held and not self._scheduled:
            self._begin_flush()

    def _tell(self) -> None:
        gathered = self._telling
        if self._broken or gathered is None:
            return
        first, self._told = self._told, gathered.piece(self._told)
        try:
            self._on_durable(gathered.tokens[first : self._told])
        except Exception as error:
            # A bug. The rest of the flush was not applied, so nothing behind it may be.
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

    # --- on the worker ------------------------------------------------------------------------------------------

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
        """What to write behind a flush of `needed` bytes that ends at `end`."""
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
        """Make room in a file without a flush: recovery found it, and it is smaller than its first flush."""
        try:
            file.allocate(size)
        except OSError as error:
            _raise_if_full(error)
            raise
        self._size = size

    def _unlink(self, numbers: list[int]) -> None:
        for number in numbers:
            self._disk.unlink(journal_path(self._directory, number))
            # Removals that are not durable yet are forgotten in any order, and files with a hole between them are refused.
            self._disk.sync_directory(self._directory)

    def _unlinked(self, _result: None, error: BaseException | None) -> None:
        if error is not None:
            self._break(error)


class _DiskFullError(Exception):
    """There is no room for another journal file."""


def _raise_if_full(error: OSError) -> None:
    if is_disk_full(error):
        raise _DiskFullError(str(error)) from error

"""Scan of the journal: proves every byte, gives verdicts, sorts the records by raft group.

A start (`recovery`) and a check (`inspect.check_journal`) run the same scan, so they cannot
disagree. A start acts on each verdict and ends at the first refusal; a check reports all of them.
The scan itself changes nothing.

The decisions about files and flushes, in the order in which they are made. Flush n is the expected
one: one above the last flush of this file or of the file before. A valid flush that comes later,
here or in a later file, proves that flush n was durable.

    row              found                                      verdict
    ---------------  -----------------------------------------  ------------------------------------
    absent           no file                                    empty journal; the node refuses it
                                                                beside topics, states or stages
    foreign name     name of no journal file                    refused
    temporary file   the same, as of a rename that was not      refused: no journal file is renamed
                     made or was lost
    missing file     gap in the file numbers                    refused
    newer version    header with a newer format version,        refused
                     whatever its checksum
    older version    valid header with an older version, of     accepted; the journal goes on in a
                     which nothing is written any more          file of the newest version
    version goes     a file of an older version than the file   refused: files are always made in
    back             before it                                  the newest version
    version 0        valid header with version 0, which was     refused
                     never written
    half created     last file: invalid header, then only       left by a crash during its creation,
                     zeros                                      when nothing in it was acknowledged:
                                                                removed, logged
    short            last file: shorter than a header           the same
    short before     earlier file: shorter than a header        refused
    lone leftover    as `half created`, but the only file, and  refused: the files before it are
                     its number is not 1                        missing
    bad header       any other invalid header                   refused
    foreign cluster  header with another cluster id             refused
    foreign node     header with another node id                refused
    renamed          header with another file number than the   refused
                     name
    beheaded         first file: number above 1, no valid       refused: the files before it were
                     first flush                                removed only after its first flush
    whole            valid flush n                              accepted
    zero tail        zeros or the end of the file, no later     end of the journal
                     flush
    torn tail        flush n as a crash tears it                never acknowledged: cut, the cut
                     (`torn_flush`), no later flush             synced, logged
    damaged tail     anything else, no later flush              refused: file, byte, reason. Flush n
                                                                may have been acknowledged, and a
                                                                node must not forget its promises
    bad checksum     anything but a valid flush n, later flush  refused: file, byte, reason
                     in the file
    bad end          the same, later file                       refused: file, byte, reason
    older file       first flush older than the end of the      refused: file, byte, reason
                     file before
    newer file       first flush newer than the end of the      refused: file, byte, reason
                     file before
    unknown kind     valid record of an unknown kind, or entry  refused: a newer release wrote it
                     of an unknown type
    later kind       the same, known, but not in the file's     refused: no release wrote it
                     version
    wrong count      valid flush, but its frame has another     refused: no crash leaves that
                     number of records
    undecodable      valid record whose payload cannot be       refused: the state that it holds is
                     decoded: hard state, applied positions,    lost
                     reset, starts of other nodes, replica
                     that is gone
    undecodable      entry whose payload cannot be decoded      accepted: it has no effect, see
    entry            (`entry_payloads`)                         `entry_payloads`
    incarnation      a number of a start of the node below an   refused: files of two copies of the
    goes back        earlier one; the same again is accepted    directory were mixed

`journal_groups` sorts the records by raft group; `journal_entries` decides the meaning of entries
and resets, and which of them are refused.

Behind a refusal the scan goes on as far as possible, but no longer trusts what it reads: `whole` is
False, and no further record is kept.

Memory: one file, what `make_entry` makes of the entries that no applied position has covered so
far, and a copy of the last flush.
"""

import re
from collections.abc import Generator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pixy.errors import CorruptData, DataDirectoryError, PixyError
from pixy.storage.disk import Disk, read_whole
from pixy.storage.journal.journal_files import EMPTY_JOURNAL, JournalFile, JournalPosition, journal_path
from pixy.storage.journal.journal_format import (
    FILE_HEADER_BYTES,
    FileHeader,
    FlushScan,
    first_flush_number,
    flush_number_at,
    is_zero,
    read_file_header,
)
from pixy.storage.journal.journal_groups import JournalGroups, MakeEntry
from pixy.storage.journal.torn_flush import why_not_torn

_NAME = re.compile(r"([0-9]{20})\.journal")

T = TypeVar("T", bound=tuple[Any, ...])


class ScannedFile(NamedTuple):
    """A file scanned to its end: flushes `first_flush` to `next_flush` - 1, up to byte `end`."""

    path: Path
    version: int
    first_flush: int
    next_flush: int
    records: int
    end: int
    file_bytes: int


class UnfinishedFile(NamedTuple):
    """The last file, left by a crash during its creation. A start removes it."""

    path: Path
    reason: str


class TornTail(NamedTuple):
    """The last flush, torn by a crash and never acknowledged. A start cuts the file at `byte`."""

    path: Path
    reason: str
    byte: int
    file_bytes: int


class RefusedStart(NamedTuple):
    """A fault for which a start is refused.

    Attributes:
        path: file or directory.
        reason: the fault as a check reports it, without the path.
        error: raised by a start; names the path.
        damaged_flush: number of a damaged last flush, 0 for any other fault.
        byte: where that flush begins.
    """

    path: Path
    reason: str
    error: Exception
    damaged_flush: int = 0
    byte: int = 0


class JournalScan(Generic[T]):
    """Scan of all files of a journal, oldest first.

    Iterate once; iteration blocks. The attributes are final when it has ended.

    Args:
        disk, directory: the journal's files.
        owner: cluster id and node id of the journal; None for those in the first valid header.
        make_entry: see `MakeEntry`.

    Attributes:
        at: end of the journal.
        files: accepted files, oldest first.
        records: records up to the first refusal, by raft group.
        unsynced: position and bytes in the last file of what may be in memory only: its header and
            its last flush.
        bytes_read: size of all files.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        owner: tuple[bytes, int] | None,
        make_entry: MakeEntry[T],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._owner = owner
        # Number of the flush that the next file begins with, None if only the file can tell.
        self._next_flush: int | None = None
        # Format version of the file before, 0 if there is none.
        self._version = 0
        self.at = EMPTY_JOURNAL
        self.files: list[JournalFile] = []
        self.records = JournalGroups(make_entry)
        self.unsynced: list[tuple[int, bytes]] = []
        self.bytes_read = 0

    @property
    def whole(self) -> bool:
        """True if no file is missing or refused, so that missing records never existed."""
        return self.records.trusted

    def __iter__(self) -> Iterator[ScannedFile | UnfinishedFile | TornTail | RefusedStart]:
        numbers = yield from self._file_numbers()
        for at, number in enumerate(numbers):
            if at and number != numbers[at - 1] + 1:
                self._distrust()
            yield from self._file(number, first=not at, last=number == numbers[-1])

    # --- files ----------------------------------------------------------------------------------

    def _file_numbers(self) -> Generator[RefusedStart, None, list[int]]:
        """Numbers of the files, ascending. All refusals of names come before any file is read."""
        numbers = []
        for name in self._disk.names(self._directory):
            match = _NAME.fullmatch(name)
            if match is None:
                # Whatever it is, it makes no record of the journal doubtful.
                path = self._directory / name
                yield RefusedStart(
                    path,
                    "not a journal file: the next start is refused",
                    DataDirectoryError(f"{path} is not a journal file; move it out of the way"),
                )
            else:
                numbers.append(int(match[1]))
        for before, after in pairwise(numbers):
            if after != before + 1:
                found = f"holds journal files {before} and {after}, but not those in between"
                error = CorruptData(f"{self._directory} {found}")
                yield RefusedStart(self._directory, f"files {before + 1} to {after - 1} are missing", error)
        return numbers

    def _file(
        self, number: int, *, first: bool, last: bool
    ) -> Iterator[ScannedFile | UnfinishedFile | TornTail | RefusedStart]:
        path = journal_path(self._directory, number)
        try:
            data = read_whole(self._disk, path)
        except OSError as error:
            yield self._refuse(RefusedStart(path, f"cannot be read: {error.strerror}", error))
            return
        self.bytes_read += len(data)
        header = judge_header(path, data, number, self._owner)
        if isinstance(header, str):
            may_be_unfinished = last and not (first and number > 1)
            if may_be_unfinished and is_zero(memoryview(data)[FILE_HEADER_BYTES:]):
                yield UnfinishedFile(path, header)
                return
            header = _refused_start(path, header)
        if isinstance(header, RefusedStart):
            yield self._refuse(header)
            return
        self._owner = self._owner or (header.cluster_id, header.node_id)
        if header.version < self._version:
            # Which flush comes next is certain nevertheless.
            self.records.trusted = False
            found = f"has format version {header.version} behind a file of version {self._version}"
            yield _refused_start(path, found)
        self._version = header.version
        begin = self._next_flush
        if begin is None:
            begin = 1 if first and number == 1 else first_flush_number(data)
        if begin is None:
            found = "no valid flush frame; the files before it are gone"
            yield self._refuse(_corrupt(path, FILE_HEADER_BYTES, found))
            return
        yield from self._flushes(path, data, header, begin, last=last)

    def _flushes(
        self, path: Path, data: bytes, header: FileHeader, begin: int, *, last: bool
    ) -> Iterator[ScannedFile | TornTail | RefusedStart]:
        view, file, records = memoryview(data), JournalFile(header.file_number, header.version), 0
        scan = FlushScan(data, header, begin)
        while True:
            try:
                for position, places in scan:
                    records += len(places)
                    for reason in self.records.take(file, view, position, places):
                        yield self._refuse(_refused_start(path, reason))
            except CorruptData as error:
                yield self._refuse(_refused_start(path, str(error)))
                return
            self._next_flush = scan.next_flush
            if scan.damage:
                yield self._judge_damage(path, view, header, scan, last=last)
            if scan.later_flush is None:
                break
            scan = FlushScan(data, header, flush_number_at(data, scan.later_flush) or 0, scan.later_flush)
        self.unsynced = [(0, data[:FILE_HEADER_BYTES])]
        if scan.last_flush is not None:
            self.unsynced.append((scan.last_flush, data[scan.last_flush : scan.end]))
        self.at = JournalPosition(file.number, scan.end, scan.next_flush)
        file.end = scan.end
        self.files.append(file)
        yield ScannedFile(path, file.version, begin, scan.next_flush, records, scan.end, len(data))

    def _judge_damage(
        self, path: Path, view: memoryview, header: FileHeader, scan: FlushScan, *, last: bool
    ) -> TornTail | RefusedStart:
        if scan.later_flush is not None:
            found = f"{scan.damage}; a valid flush follows at byte {scan.later_flush}"
            return self._refuse(_corrupt(path, scan.end, found))
        if not last:
            return self._refuse(_corrupt(path, scan.end, f"{scan.damage}; a later journal file follows"))
        reason = why_not_torn(view, scan.end, header, scan.next_flush)
        if not reason:
            return TornTail(path, scan.damage, scan.end, len(view))
        found = f"corrupt at byte {scan.end}: {scan.damage}"
        error = CorruptData(
            f"{path} is {found}; it is the last flush, but no crash tears it so: {reason}. "
            "What it holds may have been acknowledged; pixy storage check says what can be done"
        )
        found = f"{found}; no crash tears it so: {reason}"
        return self._refuse(RefusedStart(path, found, error, damaged_flush=scan.next_flush, byte=scan.end))

    def _refuse(self, refusal: RefusedStart) -> RefusedStart:
        self._distrust()
        return refusal

    def _distrust(self) -> None:
        self.records.trusted = False
        self._next_flush = None


def judge_header(
    path: Path, data: bytes, number: int, owner: tuple[bytes, int] | None
) -> FileHeader | str | RefusedStart:
    """Judge the header of journal file `number`.

    Returns:
        The header if it is valid and the owner's, any owner's if that is None; the reason if it is
        not valid, as a crash may leave it; a refusal if another node or release wrote it, or the
        file was renamed.
    """
    try:
        header = read_file_header(data)
    except DataDirectoryError as error:
        return _refused_start(path, str(error), DataDirectoryError)
    if isinstance(header, str):
        return header
    if owner is not None and (header.cluster_id, header.node_id) != owner:
        found = f"belongs to node {header.node_id} of cluster {header.cluster_id.hex()},"
        own = f"node {owner[1]} of cluster {owner[0].hex()}"
        return RefusedStart(
            path, f"{found} expected {own}", DataDirectoryError(f"{path} {found} this is {own}")
        )
    if header.file_number != number:
        reason = f"says that it is journal file {header.file_number}"
        return RefusedStart(path, reason, CorruptData(f"{path} {reason}"))
    return header


def _refused_start(path: Path, reason: str, error: type[PixyError] = CorruptData) -> RefusedStart:
    return RefusedStart(path, reason, error(f"{path}: {reason}"))


def _corrupt(path: Path, byte: int, found: str) -> RefusedStart:
    reason = f"corrupt at byte {byte}: {found}"
    return RefusedStart(path, reason, CorruptData(f"{path} is {reason}"))

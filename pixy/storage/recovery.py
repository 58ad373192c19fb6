"""Recovery of the journal: reads it whole, cuts its torn tail, sorts its records by raft group.

The decisions about files and flushes, in the order in which they are taken. Flush n is the
expected one: one above the last of the file before, or of this file. A valid flush that comes
later, here or in a later file, proves that flush n was durable.

    row                 found                                                         done
    ------------------  ------------------------------------------------------------  --------------------------------------
    absent              no file                                                       an empty journal; the node refuses it
                                                                                      beside topics or states
    foreign name        a name that is not a journal file's                           refused
    temporary file      the same, as of a file whose rename never was or was          refused: no journal file is renamed
                        forgotten
    missing file        file numbers with a hole                                      refused
    newer version       a header that says a version above ours, whatever its         refused
                        checksum
    version 0           a valid header of a version that was never written            refused
    half created        the last file: header not valid, all the rest zeros           left from a crash while it was created,
                                                                                      before anything in it was acknowledged:
                                                                                      removed, said
    short               the last file: shorter than a header                          the same
    short before        the same of a file before the last                            refused
    lone leftover       the same as `half created`, no file before it, and its        refused: the files before it are missing
                        number is not 1
    bad header          any other header that is not valid                            refused
    foreign cluster     a header with another cluster id                              refused
    foreign node        a header with another node id                                 refused
    renamed             a header with another file number than the name               refused
    beheaded            the first file has a number above 1 and no valid first flush  refused: the files before it went only
                                                                                      after this one had a flush
    whole               a valid flush n                                               taken
    zero tail           zeros, or the end of the file, and no later flush             the end of the journal
    torn tail           flush n as a crash tears it (`torn_flush`), and no later      never acknowledged: cut, the cut synced,
                        flush                                                         said
    damaged tail        anything else, and no later flush                             refused: file, byte, reason. Flush n may have
                                                                                      been acknowledged, and a node does not
                                                                                      forget what it has promised
    bad checksum        anything but a valid flush n, and a later flush in the file   refused: file, byte, reason
    bad end             the same, and a later file                                    refused: file, byte, reason
    older file          a file whose flushes are older than the file before it says   refused: file, byte, reason
    newer file          a file whose flushes are newer than the file before it says   refused: file, byte, reason
    unknown kind        a whole record of an unknown kind                             refused: a newer release wrote it
    wrong count         a whole flush with another number of records than its frame   refused: no crash leaves that
                        says

What entries mean, and which of them are refused, is decided in `journal_entries`.

What was read may not be on stable storage yet, if only the process ended and not the machine. The last file and the directory
are synced before anything relies on them. If it ended because a sync failed, then what was read may be in memory only, and no
sync writes it any more: so the header and the last flush of the last file, which alone may be such, are written again first.

Memory: most of a journal is applied, but that is told by applied positions that come later in it. So one pass proves every byte, a file
at a time, and remembers where the entries are that no applied position has covered so far; a second one reads what is left of them. At most
one file is in memory, beside entries that are needed and the places of those that were not covered yet. Every payload is a copy: no entry
keeps a file alive. The road not taken: keeping views and copying what is left of each file. Whatever is covered in a later file
would be copied for nothing.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import AppliedPosition, AppliedPositions
from pixy.storage.disk import Disk
from pixy.storage.journal import JournalFile, JournalPosition, journal_path
from pixy.storage.journal_entries import GroupEntries, entries_after
from pixy.storage.journal_format import (
    FILE_HEADER_BYTES,
    FLUSH_FRAME_BYTES,
    RECORD_HEAD_BYTES,
    FlushScan,
    JournalRecord,
    RecordKind,
    RecordPlace,
    first_flush_number,
    is_zero,
    journal_record,
    read_file_header,
    read_records,
)
from pixy.storage.torn_flush import why_not_torn

__all__ = ["RecoveredGroup", "RecoveredJournal", "read_entries", "recover_journal"]

log = structlog.get_logger(__name__)

_EMPTY = JournalPosition(file_number=0, position=0, flush_number=1)
_NAME = re.compile(r"(\d{20})\.journal")
_ENTRY = int(RecordKind.ENTRY)
_RELOCATED_ENTRY = int(RecordKind.RELOCATED_ENTRY)
_ENTRIES = frozenset((_ENTRY, _RELOCATED_ENTRY))
_HARD_STATE = int(RecordKind.HARD_STATE)

_Place = tuple[int, int, int, int]
"""Place of an entry: its term, file number, first byte, and the byte behind its last."""


@dataclass(slots=True)
class RecoveredGroup:
    """Records of one raft group in the journal.

    Attributes:
        entries: entries behind `applied`, or all of them if that is None, in order. There may be
            holes where a group needs nothing. Payloads are copies.
        hard_state: newest one, None if there is none; and the number of the file that holds it.
        applied: newest applied position of a partition, None if there is none; and its file.
    """

    entries: list[JournalRecord] = field(default_factory=list)
    hard_state: bytes | None = None
    hard_state_file: int = 0
    applied: AppliedPosition | None = None
    applied_file: int = 0

    def entries_after(self, index: int) -> list[JournalRecord]:
        """The entries behind `index`, up to which the group is applied.

        Raises:
            CorruptData: there is a hole, or terms go back; names raft group and indexes.
        """
        raft_group = self.entries[0].raft_group if self.entries else 0
        return entries_after(raft_group, self.entries, index)


@dataclass(slots=True)
class RecoveredJournal:
    """The whole journal."""

    at: JournalPosition = _EMPTY
    files: list[JournalFile] = field(default_factory=list)
    groups: dict[int, RecoveredGroup] = field(default_factory=dict)


def recover_journal(disk: Disk, directory: Path, owner: tuple[bytes, int]) -> RecoveredJournal:
    """Read the journal of `owner` (cluster id, node id). Blocks.

    Raises:
        DataDirectoryError: the journal belongs to somebody else, or a newer release wrote it.
        CorruptData: bytes that were once durable are damaged, or say what cannot be; names file, and byte or raft group.
    """
    recovery = _Recovery(disk, directory, owner)
    recovery.run()
    return recovery.journal


class _Recovery:
    """One pass over all files, oldest first, then one over what is needed of them."""

    def __init__(self, disk: Disk, directory: Path, owner: tuple[bytes, int]) -> None:
        self._disk = disk
        self._directory = directory
        self._owner = owner
        # Flush number that the next file begins with, None before the first file.
        self._next_flush: int | None = None
        # Position and bytes of what may be in memory only: header and last flush of the last file so far.
        self._unsure: list[tuple[int, bytes]] = []
        self._entries: dict[int, GroupEntries[_Place]] = {}
        self.journal = RecoveredJournal()

    def run(self) -> None:
        numbers = _file_numbers(self._disk, self._directory)
        for number in numbers:
            self._file(number, alone=1 < number == numbers[0], last=number == numbers[-1])
        if self.journal.files:
            _make_durable(self._disk, self._directory, self.journal.files[-1].number, self._unsure)
        self._fetch()

    def _file(self, number: int, *, alone: bool, last: bool) -> None:
        path = journal_path(self._directory, number)
        data = _read(self._disk, path)
        if not _header_is_valid(path, data, number, self._owner):
            _remove_leftover(self._disk, path, data, alone=alone, last=last)
            return
        if self._next_flush is None:
            self._next_flush = _first_flush(path, data, number)
        scan = FlushScan(data, number, self._next_flush)
        file = JournalFile(number)
        try:
            for records in scan:
                self._take(memoryview(data), records, file)
        except CorruptData as error:
            raise CorruptData(f"{path}: {error}") from error
        if scan.damage:
            _judge_damage(path, scan, last)
            _judge_tail(path, data, number, scan)
            _cut(self._disk, path, scan, len(data))
        self._next_flush = scan.next_flush
        self._unsure = [(0, data[:FILE_HEADER_BYTES])]
        if scan.last_flush is not None:
            self._unsure.append((scan.last_flush, data[scan.last_flush : scan.end]))
        self.journal.at = JournalPosition(number, scan.end, scan.next_flush)
        self.journal.files.append(file)

    def _take(self, view: memoryview, records: list[RecordPlace], file: JournalFile) -> None:
        """Sort the records of one flush to their groups."""
        number, last_index = file.number, file.last_index
        for place in records:
            at, end, kind, _, raft_group, index, term = place
            if kind in _ENTRIES:
                entries = self._entries.get(raft_group) or self._new_group(raft_group)
                take = entries.original if kind == _ENTRY else entries.relocated
                take(index, (term, number, at, end))
                if index > last_index.get(raft_group, 0):
                    last_index[raft_group] = index
            elif kind == _HARD_STATE:
                group = self.journal.groups.setdefault(raft_group, RecoveredGroup())
                group.hard_state, group.hard_state_file = bytes(view[at + RECORD_HEAD_BYTES : end]), number
            else:
                self._positions(view[at + RECORD_HEAD_BYTES : end], number)

    def _new_group(self, raft_group: int) -> GroupEntries[_Place]:
        entries = self._entries[raft_group] = GroupEntries(raft_group)
        group = self.journal.groups.setdefault(raft_group, RecoveredGroup())
        if group.applied is not None:
            entries.applied(group.applied.index)
        return entries

    def _positions(self, payload: memoryview, number: int) -> None:
        try:
            positions = AppliedPositions.FromString(bytes(payload)).positions
        except DecodeError as error:
            raise CorruptData(f"applied positions cannot be decoded: {error}") from error
        for position in positions:
            group = self.journal.groups.setdefault(position.raft_group, RecoveredGroup())
            group.applied, group.applied_file = position, number
            if position.raft_group in self._entries:
                self._entries[position.raft_group].applied(position.index)

    def _fetch(self) -> None:
        """Read the entries that are needed, file by file."""
        wanted: dict[int, list[tuple[int, int, int, int]]] = {}
        for raft_group, entries in self._entries.items():
            for index, (_, number, at, end) in entries:
                wanted.setdefault(number, []).append((raft_group, index, at, end))
        found: dict[int, dict[int, JournalRecord]] = {}
        for number in sorted(wanted):
            for record in self._fetch_file(number, [place[2:] for place in wanted.pop(number)]):
                found.setdefault(record.raft_group, {})[record.index] = record
        for raft_group, records in found.items():
            self.journal.groups[raft_group].entries = [records[index] for index in sorted(records)]

    def _fetch_file(self, number: int, places: list[tuple[int, int]]) -> Iterable[JournalRecord]:
        path = journal_path(self._directory, number)
        begin = min(at for at, _ in places)
        view = memoryview(_read(self._disk, path, begin, max(end for _, end in places)))
        for at, end in places:
            records = read_records(view, at - begin, end - begin)
            if isinstance(records, str) or len(records) != 1:
                raise CorruptData(f"{path} is corrupt at byte {at}: {records}")
            yield _copied(view, records[0])


def _copied(view: memoryview, place: RecordPlace) -> JournalRecord:
    record = journal_record(view, place)
    record.payload = bytes(record.payload)
    return record


def read_entries(
    disk: Disk, directory: Path, owner: tuple[bytes, int], number: int, above: Mapping[int, int]
) -> list[JournalRecord]:
    """Read the entries of some raft groups from one journal file, for relocation. Blocks.

    The caller appends to the journal the entries that are still in the Raft log of their group:
    those whose term is the log's at their index. The others were replaced by entries in later
    files.

    Args:
        disk, directory, owner: as of the journal.
        number: the file, which has a successor and is no longer written.
        above: by raft group, the index up to which entries are not needed.

    Returns:
        Entries ordered by raft group and index, none twice: those first written to this file and
        those relocated to it. Payloads are copies, together at most as large as the file.

    Raises:
        CorruptData: the file is damaged, or ends before its successor begins; names file, byte and reason.
        DataDirectoryError: the file belongs to somebody else.
        OSError: the file or its successor cannot be read.
    """
    path = journal_path(directory, number)
    data = _read(disk, path)
    if not _header_is_valid(path, data, number, owner):
        raise CorruptData(f"{path}: {read_file_header(data)}")
    view = memoryview(data)
    groups: dict[int, GroupEntries[tuple[int, RecordPlace]]] = {}
    for raft_group, index in above.items():
        groups[raft_group] = GroupEntries(raft_group)
        groups[raft_group].applied(index)
    scan = FlushScan(data, number, first_flush_number(data) or 0)
    try:
        for records in scan:
            for place in records:
                _add(groups, place)
    except CorruptData as error:
        raise CorruptData(f"{path}: {error}") from error
    _check_whole(disk, directory, number, scan)
    return [_copied(view, place) for _, entries in sorted(groups.items()) for _, (_, place) in entries]


def _add(groups: dict[int, GroupEntries[tuple[int, RecordPlace]]], place: RecordPlace) -> None:
    _, _, kind, _, raft_group, index, term = place
    if raft_group in groups and kind == _ENTRY:
        groups[raft_group].original(index, (term, place))
    elif raft_group in groups and kind == _RELOCATED_ENTRY:
        groups[raft_group].relocated(index, (term, place))


def _check_whole(disk: Disk, directory: Path, number: int, scan: FlushScan) -> None:
    """A file that has a successor has no torn tail, and ends with the flush before the successor's first."""
    path = journal_path(directory, number)
    if scan.damage:
        raise CorruptData(f"{path} is corrupt at byte {scan.end}: {scan.damage}")
    after = journal_path(directory, number + 1)
    follows = first_flush_number(_read(disk, after, 0, FILE_HEADER_BYTES + FLUSH_FRAME_BYTES))
    if follows is not None and follows != scan.next_flush:
        raise CorruptData(
            f"{path} is corrupt at byte {scan.end}: it ends there, but {after} begins with flush {follows}"
        )


def _file_numbers(disk: Disk, directory: Path) -> list[int]:
    numbers = []
    for name in disk.names(directory):
        match = _NAME.fullmatch(name)
        if match is None:
            raise DataDirectoryError(f"{directory / name} is not a journal file; move it out of the way")
        numbers.append(int(match[1]))
    for before, after in pairwise(numbers):
        if after != before + 1:
            raise CorruptData(
                f"{directory} holds journal files {before} and {after}, but not those in between"
            )
    return numbers


def _read(disk: Disk, path: Path, begin: int = 0, end: int | None = None) -> bytes:
    file = disk.open(path)
    try:
        return file.read_at((file.size() if end is None else end) - begin, begin)
    finally:
        file.close()


def _header_is_valid(path: Path, data: bytes, number: int, owner: tuple[bytes, int]) -> bool:
    try:
        header = read_file_header(data)
    except DataDirectoryError as error:
        raise DataDirectoryError(f"{path}: {error}") from error
    if isinstance(header, str):
        return False
    if (header.cluster_id, header.node_id) != owner:
        raise DataDirectoryError(
            f"{path} belongs to node {header.node_id} of cluster {header.cluster_id.hex()}, "
            f"this is node {owner[1]} of cluster {owner[0].hex()}"
        )
    if header.file_number != number:
        raise CorruptData(f"{path} says that it is journal file {header.file_number}")
    return True


def _first_flush(path: Path, data: bytes, number: int) -> int:
    """The number of the flush that the oldest file begins with."""
    first = 1 if number == 1 else first_flush_number(data)
    if first is None:
        raise CorruptData(
            f"{path} is corrupt at byte {FILE_HEADER_BYTES}: no valid flush frame; the files before it are gone"
        )
    return first


def _make_durable(disk: Disk, directory: Path, number: int, unsure: list[tuple[int, bytes]]) -> None:
    file = disk.open(journal_path(directory, number))
    try:
        for position, data in unsure:
            file.write_at([data], position)
        file.sync()
    finally:
        file.close()
    disk.sync_directory(directory)


def _remove_leftover(disk: Disk, path: Path, data: bytes, *, alone: bool, last: bool) -> None:
    if alone or not last or not is_zero(memoryview(data)[FILE_HEADER_BYTES:]):
        raise CorruptData(f"{path}: {read_file_header(data)}")
    log.warning("removed a journal file that a crash left unfinished", file=str(path))
    disk.unlink(path)
    disk.sync_directory(path.parent)


def _judge_damage(path: Path, scan: FlushScan, last: bool) -> None:
    if scan.later_flush is not None:
        raise CorruptData(
            f"{path} is corrupt at byte {scan.end}: {scan.damage}; a valid flush follows at byte {scan.later_flush}"
        )
    if not last:
        raise CorruptData(
            f"{path} is corrupt at byte {scan.end}: {scan.damage}; a later journal file follows"
        )


def _judge_tail(path: Path, data: bytes, number: int, scan: FlushScan) -> None:
    reason = why_not_torn(memoryview(data), scan.end, number, scan.next_flush)
    if reason:
        raise CorruptData(
            f"{path} is corrupt at byte {scan.end}: {scan.damage}; it is the last flush, but no crash tears it so: {reason}. "
            "What it holds may have been acknowledged; pixy storage check says what can be done"
        )


def _cut(disk: Disk, path: Path, scan: FlushScan, size: int) -> None:
    log.warning("cut the torn tail of the journal", file=str(path), byte=scan.end, reason=scan.damage)
    file = disk.open(path)
    try:
        file.truncate(scan.end)
        file.allocate(size)
        file.sync()
    finally:
        file.close()

"""Recovery of the journal at a start: cuts its torn tail, makes it durable, loads its entries.

`journal_scan` decides what is accepted, cut, removed or refused.

Bytes that were read may not be on stable storage yet, if only the process ended and not the
machine. The last file and the directory are synced before anything relies on them. If the process
ended because a sync failed, bytes may be in memory only, and no sync writes them any more. Only the
header and the last flush of the last file can be such bytes: they are written again first.

Memory: most entries of a journal are applied, but applied positions come later in it. So one pass,
the scan, proves every byte, a file at a time, and keeps the places of entries that no applied
position has covered so far; a second pass reads the entries that are left. At most one file is in
memory, beside the entries that are needed and the places of those not covered yet. Every payload is
a copy: no entry keeps a file alive. The road not taken: keeping views, and copying what is left of
each file. Entries covered in a later file would be copied for nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from pixy.errors import CorruptData
from pixy.proto.state_pb2 import AppliedPosition
from pixy.storage.disk import Disk
from pixy.storage.journal import EMPTY_JOURNAL, JournalFile, JournalPosition, journal_path
from pixy.storage.journal_entries import GroupEntries, entries_after
from pixy.storage.journal_format import (
    FILE_HEADER_BYTES,
    FLUSH_FRAME_BYTES,
    FlushScan,
    JournalRecord,
    RecordKind,
    RecordPlace,
    first_flush_number,
    journal_record,
    read_records,
)
from pixy.storage.journal_scan import (
    JournalScan,
    RefusedStart,
    ScannedGroup,
    TornTail,
    UnfinishedFile,
    judge_header,
    read_bytes,
)

__all__ = ["RecoveredGroup", "RecoveredJournal", "read_entries", "recover_journal"]

log = structlog.get_logger(__name__)

_ENTRY = int(RecordKind.ENTRY)
_RELOCATED_ENTRY = int(RecordKind.RELOCATED_ENTRY)

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

    at: JournalPosition = EMPTY_JOURNAL
    files: list[JournalFile] = field(default_factory=list)
    groups: dict[int, RecoveredGroup] = field(default_factory=dict)


def recover_journal(disk: Disk, directory: Path, owner: tuple[bytes, int]) -> RecoveredJournal:
    """Read the journal of `owner` (cluster id, node id). Blocks.

    Raises:
        DataDirectoryError: the journal belongs to another node, or a newer release wrote it.
        CorruptData: bytes that were once durable are damaged or contradict each other; names file,
            and byte or raft group.
        OSError: a file cannot be read.
    """
    scan = JournalScan(disk, directory, owner, _place_of)
    for verdict in scan:
        match verdict:
            case RefusedStart():
                raise verdict.error
            case TornTail():
                _cut(disk, verdict)
            case UnfinishedFile():
                _remove_leftover(disk, verdict)
    if scan.files:
        _make_durable(disk, directory, scan.files[-1].number, scan.unsynced)
    entries = _load_entries(disk, directory, scan.groups)
    groups = {
        raft_group: RecoveredGroup(
            entries.get(raft_group, []),
            group.hard_state,
            group.hard_state_file,
            group.applied,
            group.applied_file,
        )
        for raft_group, group in scan.groups.items()
    }
    return RecoveredJournal(scan.at, scan.files, groups)


def _place_of(file_number: int, _view: memoryview, place: RecordPlace) -> _Place:
    return place[6], file_number, place[0], place[1]


def _cut(disk: Disk, tail: TornTail) -> None:
    log.warning("cut the torn tail of the journal", file=str(tail.path), byte=tail.byte, reason=tail.reason)
    file = disk.open(tail.path)
    try:
        file.truncate(tail.byte)
        file.allocate(tail.file_bytes)
        file.sync()
    finally:
        file.close()


def _remove_leftover(disk: Disk, unfinished: UnfinishedFile) -> None:
    log.warning("removed a journal file that a crash left unfinished", file=str(unfinished.path))
    disk.unlink(unfinished.path)
    disk.sync_directory(unfinished.path.parent)


def _make_durable(disk: Disk, directory: Path, number: int, unsynced: list[tuple[int, bytes]]) -> None:
    file = disk.open(journal_path(directory, number))
    try:
        for position, data in unsynced:
            file.write_at([data], position)
        file.sync()
    finally:
        file.close()
    disk.sync_directory(directory)


def _load_entries(
    disk: Disk, directory: Path, groups: Mapping[int, ScannedGroup[_Place]]
) -> dict[int, list[JournalRecord]]:
    """The entries that are needed, in order, by raft group; read file by file."""
    needed: dict[int, list[tuple[int, int]]] = {}
    for group in groups.values():
        for _, (_, number, at, end) in group.entries:
            needed.setdefault(number, []).append((at, end))
    loaded: dict[int, dict[int, JournalRecord]] = {}
    for number in sorted(needed):
        for record in _load_file(disk, journal_path(directory, number), needed.pop(number)):
            loaded.setdefault(record.raft_group, {})[record.index] = record
    return {
        raft_group: [records[index] for index in sorted(records)] for raft_group, records in loaded.items()
    }


def _load_file(disk: Disk, path: Path, places: list[tuple[int, int]]) -> Iterable[JournalRecord]:
    begin = min(at for at, _ in places)
    view = memoryview(read_bytes(disk, path, begin, max(end for _, end in places)))
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
        CorruptData: the file is damaged, or ends before its successor begins; names file, byte and
            reason.
        DataDirectoryError: the file belongs to another node.
        OSError: the file or its successor cannot be read.
    """
    path = journal_path(directory, number)
    data = read_bytes(disk, path)
    header = judge_header(path, data, number, owner)
    if isinstance(header, RefusedStart):
        raise header.error
    if isinstance(header, str):
        raise CorruptData(f"{path}: {header}")
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
    """Check that a file with a successor has no torn tail and no flush missing before it."""
    path = journal_path(directory, number)
    if scan.damage:
        raise CorruptData(f"{path} is corrupt at byte {scan.end}: {scan.damage}")
    after = journal_path(directory, number + 1)
    follows = first_flush_number(read_bytes(disk, after, 0, FILE_HEADER_BYTES + FLUSH_FRAME_BYTES))
    if follows is not None and follows != scan.next_flush:
        raise CorruptData(
            f"{path} is corrupt at byte {scan.end}: it ends there, but {after} begins with flush {follows}"
        )

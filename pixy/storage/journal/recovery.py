"""Recovery of the journal at a start: cuts its torn tail, makes it durable, loads its entries.

`journal_scan` decides what is accepted, cut, removed or refused.

Bytes that were read may not be on stable storage yet, if only the process ended and not the
machine. The last file and the directory are synced before anything relies on them. If the process
ended because a sync failed, bytes may be in memory only, and no sync writes them any more. Only the
header and the last flush of the last file can be such bytes: they are written again first.

Memory: most entries of a journal are applied, but applied positions come later in it. So one pass,
the scan, proves every byte, a file at a time, and keeps the places of entries that no applied
position has covered so far; a second pass reads the entries that are left, without what lies far
between them. At most one file is in memory, beside the entries that are needed and the places of
those not covered yet. Every payload is a copy: no entry keeps a file alive. The road not taken:
keeping views, and copying what is left of each file. Entries covered in a later file would be
copied for nothing.

A last file of an older version without a flush gets a header of the newest version: a file that
stays without a flush could not be told from a damaged one, once the files before it are removed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from pixy.errors import CorruptData
from pixy.proto.state_pb2 import AppliedPosition
from pixy.storage.disk import Disk, is_disk_full
from pixy.storage.journal.journal_entries import entries_after
from pixy.storage.journal.journal_files import (
    EMPTY_JOURNAL,
    JournalFile,
    JournalPosition,
    forget_entries,
    journal_path,
)
from pixy.storage.journal.journal_format import (
    FILE_HEADER_BYTES,
    FORMAT_VERSION,
    JournalRecord,
    RecordPlace,
    file_header,
    journal_record,
    read_records,
)
from pixy.storage.journal.journal_groups import LogReset, ScannedGroup
from pixy.storage.journal.journal_scan import (
    JournalScan,
    RefusedStart,
    TornTail,
    UnfinishedFile,
)
from pixy.storage.journal.term_runs import TermRun

log = structlog.get_logger(__name__)

_Place = tuple[int, int, int, int]
"""Place of an entry: its term, file number, first byte, and the byte behind its last."""

_GAP_BYTES_MAX = 64 << 10
"""Bytes between two entries up to which one read of both is faster than two."""


@dataclass(slots=True)
class RecoveredGroup:
    """Records of one raft group in the journal.

    Attributes:
        raft_group: its id.
        entries: entries behind `applied`, or all of them if that is None, in order. There may be
            holes where a group needs nothing. Payloads are copies.
        hard_state: newest one, None if there is none; and the number of the file that holds it.
        applied: newest applied position of a partition, None if there is none; and its file.
        reset: newest reset of its log, None if there is none; and its file.
        first, last: indexes of the entries at the end of the log that the journal has without
            holes, applied ones included; 0 if there are none.
        terms: runs of their terms; the first one begins at `first`.
        commit: highest known commit index: of the hard state, or written with an entry; 0 for none.
        end: index of the last entry that the journal knows of, included in a reset or not.
    """

    raft_group: int
    entries: list[JournalRecord] = field(default_factory=list)
    hard_state: bytes | None = None
    hard_state_file: int = 0
    applied: AppliedPosition | None = None
    applied_file: int = 0
    reset: LogReset | None = None
    reset_file: int = 0
    first: int = 0
    last: int = 0
    terms: Sequence[TermRun] = ()
    commit: int = 0
    end: int = 0

    def term(self, index: int) -> int:
        """Term of an entry; 0 if the journal does not have it."""
        runs = [run for run in self.terms if run[0] <= index]
        return runs[-1][1] if runs and index <= self.last else 0

    def entries_after(self, index: int) -> list[JournalRecord]:
        """The entries behind `index`, up to which the group is applied.

        Raises:
            CorruptData: there is a hole, terms go back, or the log was reset behind `index`; names
                raft group and indexes.
        """
        reset = None if self.reset is None else self.reset.position
        return entries_after(self.raft_group, self.entries, index, reset)


@dataclass(slots=True)
class RecoveredJournal:
    """The whole journal.

    Attributes:
        at: its end.
        files: its files, oldest first.
        groups: records by raft group.
        incarnation: number of the node's newest start that the journal has, 0 for none; and its
            file.
        peer_starts: newest known starts of other nodes (`NodeStarts`), empty for none; and its
            file.
    """

    at: JournalPosition = EMPTY_JOURNAL
    files: list[JournalFile] = field(default_factory=list)
    groups: dict[int, RecoveredGroup] = field(default_factory=dict)
    incarnation: int = 0
    incarnation_file: int = 0
    peer_starts: bytes = b""
    peer_starts_file: int = 0


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
        _continue_file(scan, owner)
        _make_durable(disk, directory, scan.files[-1].number, scan.unsynced)
    for raft_group, number in scan.records.gone.items():
        forget_entries([file for file in scan.files if file.number < number], raft_group)
    entries = _load_entries(disk, directory, scan.files, scan.records.groups)
    groups = {
        raft_group: _recovered(raft_group, group, entries.get(raft_group, []))
        for raft_group, group in scan.records.groups.items()
    }
    records = scan.records
    return RecoveredJournal(
        scan.at,
        scan.files,
        groups,
        records.incarnation,
        records.incarnation_file,
        records.peer_starts,
        records.peer_starts_file,
    )


def _place_of(file: JournalFile, _view: memoryview, place: RecordPlace) -> _Place:
    return place[6], file.number, place[0], place[1]


def _recovered(raft_group: int, group: ScannedGroup[_Place], entries: list[JournalRecord]) -> RecoveredGroup:
    available = group.entries.available()
    return RecoveredGroup(
        raft_group,
        entries,
        group.hard_state,
        group.hard_state_file,
        group.applied,
        group.applied_file,
        group.reset,
        group.reset_file,
        available.first,
        available.last,
        available.terms,
        group.commit,
        group.end,
    )


def _continue_file(scan: JournalScan[_Place], owner: tuple[bytes, int]) -> None:
    """Make a last file of an older version without a flush one of the newest version."""
    last = scan.files[-1]
    if last.version < FORMAT_VERSION and last.end == FILE_HEADER_BYTES:
        last.version = FORMAT_VERSION
        scan.unsynced = [(0, file_header(last.number, *owner))]


def _cut(disk: Disk, tail: TornTail) -> None:
    log.warning("cut the torn tail of the journal", file=str(tail.path), byte=tail.byte, reason=tail.reason)
    file = disk.open(tail.path)
    try:
        file.truncate(tail.byte)
        try:
            file.allocate(tail.file_bytes)
        except OSError as error:
            if not is_disk_full(error):
                raise
            # A shorter file ends earlier.
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
    disk: Disk, directory: Path, files: Sequence[JournalFile], groups: Mapping[int, ScannedGroup[_Place]]
) -> dict[int, list[JournalRecord]]:
    """The entries that are needed, in order, by raft group; read file by file."""
    needed: dict[int, list[tuple[int, int]]] = {}
    for group in groups.values():
        for _, (_, number, at, end) in group.entries:
            needed.setdefault(number, []).append((at, end))
    loaded: dict[int, dict[int, JournalRecord]] = {}
    for file in files:
        if file.number in needed:
            path = journal_path(directory, file.number)
            for record in _load_file(disk, path, file.version, needed.pop(file.number)):
                loaded.setdefault(record.raft_group, {})[record.index] = record
    return {
        raft_group: [records[index] for index in sorted(records)] for raft_group, records in loaded.items()
    }


def _load_file(
    disk: Disk, path: Path, version: int, places: list[tuple[int, int]]
) -> Iterator[JournalRecord]:
    file = disk.open(path)
    try:
        for piece in _pieces(places):
            begin, behind = piece[0][0], piece[-1][1]
            view = memoryview(file.read_at(behind - begin, begin))
            for at, end in piece:
                records = read_records(view, at - begin, end - begin, version)
                if isinstance(records, str) or len(records) != 1:
                    raise CorruptData(f"{path} is corrupt at byte {at}: {records}")
                record = journal_record(view, records[0], version)
                record.payload = bytes(record.payload)
                yield record
    finally:
        file.close()


def _pieces(places: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Places of a file in its order; those of a piece are close to each other."""
    pieces: list[list[tuple[int, int]]] = []
    for place in sorted(places):
        if pieces and place[0] - pieces[-1][-1][1] <= _GAP_BYTES_MAX:
            pieces[-1].append(place)
        else:
            pieces.append([place])
    return pieces

"""What the journal says after a start: read it whole, cut its torn tail, tell what every raft group has.

The decision for each file:

    found                                                         done
    ------------------------------------------------------------  ------------------------------------------------
    a name that is not a journal file's                           refused
    file numbers with a hole                                      refused
    the last file: header not valid, all the rest zeros or        left from a crash while it was created, before
    nothing                                                       anything in it was acknowledged: removed, said
    the same, no file before it, and its number is not 1          refused: the files before it are missing
    the first file has a number above 1 and no valid first        refused: the files before it went only after this
    flush                                                         one had a flush
    any other header that is not valid                            refused
    cluster id or node id of somebody else; a newer version       refused
    the last file: a torn tail                                    cut, the cut synced, said
    damage before a later valid flush or a later file             refused: file, byte, reason

What was read may not be on stable storage yet, if only the process ended and not the machine. The last file and the directory
are synced before anything relies on them. If it ended because a sync failed, then what was read may be in memory only, and no
sync writes it any more: so the header and the last flush of the last file, which alone may be such, are written again first.

A record with an index that its group has already replaces that entry and what is behind it, as a new leader's entries do;
a record that would leave a hole is corruption.
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import structlog

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import AppliedPosition, AppliedPositions
from pixy.storage.disk import Disk
from pixy.storage.journal import JournalFile, JournalPosition, journal_path
from pixy.storage.journal_format import (
    FILE_HEADER_BYTES,
    JournalRecord,
    RecordKind,
    Scan,
    first_flush_number,
    is_zero,
    read_file_header,
    scan_flushes,
)

__all__ = ["RecoveredGroup", "RecoveredJournal", "recover_journal"]

log = structlog.get_logger(__name__)

_EMPTY = JournalPosition(file_number=0, position=0, flush_number=1)
_NAME = re.compile(r"(\d{20})\.journal")


@dataclass(slots=True)
class RecoveredGroup:
    """What the journal holds of one raft group.

    Attributes:
        entries: without holes in their indexes.
        hard_state: newest one, None if there is none; and the number of the file that holds it.
        applied: newest applied position of a partition, None if there is none; and its file.
    """

    entries: list[JournalRecord] = field(default_factory=list)
    hard_state: bytes | None = None
    hard_state_file: int = 0
    applied: AppliedPosition | None = None
    applied_file: int = 0


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
        CorruptData: bytes that were once durable are damaged; names file, byte and reason.
    """
    journal = RecoveredJournal()
    numbers = _file_numbers(disk, directory)
    next_flush: int | None = None
    unsure: list[tuple[int, bytes]] = []
    for number in numbers:
        path = journal_path(directory, number)
        data = _read(disk, path)
        last = number == numbers[-1]
        if not _header_is_valid(path, data, number, owner):
            _remove_leftover(disk, path, data, alone=number > 1 and number == numbers[0], last=last)
            break
        if next_flush is None:
            next_flush = _first_flush(path, data, number)
        try:
            scan = scan_flushes(data, number, next_flush)
        except CorruptData as error:
            raise CorruptData(f"{path}: {error}") from error
        if scan.damage:
            _judge_damage(disk, path, scan, len(data), last)
        next_flush = scan.next_flush
        journal.at = JournalPosition(number, scan.end, next_flush)
        journal.files.append(_collect(journal, scan.records, number))
        unsure = [(0, data[:FILE_HEADER_BYTES])]
        if scan.last_flush is not None:
            unsure.append((scan.last_flush, data[scan.last_flush : scan.end]))
    if journal.files:
        _make_durable(disk, directory, journal.files[-1].number, unsure)
    return journal


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


def _read(disk: Disk, path: Path) -> bytes:
    file = disk.open(path)
    try:
        return file.read_at(file.size(), 0)
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


def _judge_damage(disk: Disk, path: Path, scan: Scan, size: int, last: bool) -> None:
    if scan.later_flush is not None:
        raise CorruptData(
            f"{path} is corrupt at byte {scan.end}: {scan.damage}; a valid flush follows at byte {scan.later_flush}"
        )
    if not last:
        raise CorruptData(
            f"{path} is corrupt at byte {scan.end}: {scan.damage}; a later journal file follows"
        )
    log.warning("cut the torn tail of the journal", file=str(path), byte=scan.end, reason=scan.damage)
    file = disk.open(path)
    try:
        file.truncate(scan.end)
        file.allocate(size)
        file.sync()
    finally:
        file.close()


def _collect(journal: RecoveredJournal, records: list[JournalRecord], number: int) -> JournalFile:
    """Sort the records of one file to their groups."""
    file = JournalFile(number)
    for record in records:
        if record.kind is RecordKind.APPLIED_POSITIONS:
            for position in AppliedPositions.FromString(bytes(record.payload)).positions:
                group = journal.groups.setdefault(position.raft_group, RecoveredGroup())
                group.applied, group.applied_file = position, number
            continue
        group = journal.groups.setdefault(record.raft_group, RecoveredGroup())
        if record.kind is RecordKind.HARD_STATE:
            group.hard_state, group.hard_state_file = bytes(record.payload), number
        else:
            _add_entry(group.entries, record)
            file.last_index[record.raft_group] = record.index
    return file


def _add_entry(entries: list[JournalRecord], record: JournalRecord) -> None:
    if entries:
        expected = entries[-1].index + 1
        if record.index > expected:
            raise CorruptData(
                f"raft group {record.raft_group} has entry {record.index} where {expected} was expected"
            )
        if record.index < expected:
            del entries[max(0, record.index - entries[0].index) :]
    entries.append(record)

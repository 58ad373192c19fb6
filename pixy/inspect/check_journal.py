"""Checks the journal of a stopped node, file by file, and changes nothing.

Recovery stops at the first thing that it refuses; a check goes on and reports all of them.
`storage.recovery` and `storage.journal_entries` decide what each file should be. The verdicts:

    found                                                 verdict
    ----------------------------------------------------  -----------------------------------
    a torn tail, a last file that a crash left unfinished  warning
    a last flush that no crash tears so                    damaged, with advice
    everything else that recovery refuses                  damaged
    an entry that is no valid record batch                 damaged
    any other name in the directory                        damaged: the next start is refused

Flushes behind damage in durable bytes are still read, but not relied on: `whole` is False then.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pixy.errors import CorruptData, DataDirectoryError
from pixy.inspect.report import Report
from pixy.proto.state_pb2 import AppliedPosition, AppliedPositions
from pixy.records import check_batch, read_header
from pixy.storage import (
    FILE_HEADER_BYTES,
    Disk,
    EntryType,
    FlushScan,
    GroupEntries,
    JournalRecord,
    RecordKind,
    entries_after,
    first_flush_number,
    flush_number_at,
    is_zero,
    journal_path,
    journal_record,
    read_file_header,
    why_not_torn,
)

__all__ = [
    "CheckedEntry",
    "CheckedGroup",
    "CheckedJournal",
    "check_journal",
]


class CheckedEntry(NamedTuple):
    """Summary of an entry: the payload of a command, or the number of offsets of a record batch.

    The term comes first, as `GroupEntries` expects.
    """

    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on an entry
    entry_type: EntryType
    command: bytes
    offsets: int


@dataclass(slots=True)
class CheckedGroup:
    """Records of one raft group in the journal.

    Attributes:
        entries: entries behind `applied`, or all of them if that is None, in order.
        applied: newest applied position of a partition.
        hard_state: True if there is one.
    """

    entries: list[CheckedEntry] = field(default_factory=list)
    applied: AppliedPosition | None = None
    hard_state: bool = False

    def entries_after(self, raft_group: int, index: int) -> list[CheckedEntry]:
        """The entries behind `index`, up to which the group is applied.

        Raises:
            CorruptData: there is a hole, or terms go back.
        """
        return entries_after(raft_group, self.entries, index)


@dataclass(slots=True)
class CheckedJournal:
    """The whole journal.

    Attributes:
        files: number of files.
        groups: records by raft group.
        whole: True if nothing is damaged, so that missing records never existed.
    """

    files: int = 0
    groups: dict[int, CheckedGroup] = field(default_factory=dict)
    whole: bool = True

    def group(self, raft_group: int) -> CheckedGroup:
        """Records of one raft group, perhaps none."""
        return self.groups.get(raft_group) or CheckedGroup()


def check_journal(
    disk: Disk, directory: Path, owner: tuple[bytes, int] | None, report: Report
) -> CheckedJournal:
    """Check every file of a journal. Blocks.

    Args:
        owner: cluster id and node id that it should belong to, None if that is not known.
    """
    check = _JournalCheck(disk, directory, owner, report)
    check.run()
    return check.journal


class _JournalCheck:
    """One pass over the files of a journal, oldest first."""

    def __init__(self, disk: Disk, directory: Path, owner: tuple[bytes, int] | None, report: Report) -> None:
        self._disk = disk
        self._directory = directory
        self._owner = owner
        self._report = report
        # Flush number that the next file begins with, None if only the file itself can say.
        self._next_flush: int | None = None
        self._entries: dict[int, GroupEntries[CheckedEntry]] = {}
        self.journal = CheckedJournal()

    def run(self) -> None:
        numbers = self._file_numbers()
        self.journal.files = len(numbers)
        for at, number in enumerate(numbers):
            if at and number != numbers[at - 1] + 1:
                self._damaged(self._directory, f"files {numbers[at - 1] + 1} to {number - 1} are missing")
                self._next_flush = None
            self._file(number, first=not at, last=number == numbers[-1])
        for raft_group, entries in self._entries.items():
            self.journal.groups[raft_group].entries = [entry for _, entry in entries]

    def _file_numbers(self) -> list[int]:
        numbers = []
        for name in self._disk.names(self._directory):
            number = name.removesuffix(".journal")
            if name != journal_path(self._directory, int(number) if number.isdecimal() else 0).name:
                # The journal itself is as whole as it was.
                self._report.damaged(
                    "journal", self._directory / name, "not a journal file: the next start is refused"
                )
                continue
            numbers.append(int(number))
        return numbers

    def _file(self, number: int, *, first: bool, last: bool) -> None:
        path = journal_path(self._directory, number)
        try:
            data = _read(self._disk, path)
        except OSError as error:
            self._damaged(path, f"cannot be read: {error.strerror}")
            self._next_flush = None
            return
        self._report.bytes += len(data)
        reason = self._header_damage(data, number)
        if reason:
            leftover = last and not (first and number > 1) and is_zero(memoryview(data)[FILE_HEADER_BYTES:])
            if leftover and reason.begins_unfinished:
                found = f"a crash left it unfinished ({reason.text}): removed by the next start"
                self._report.warn("journal", path, found)
            else:
                self._damaged(path, reason.text)
                self._next_flush = None
            return
        begin = self._next_flush
        if begin is None:
            begin = 1 if first and number == 1 else first_flush_number(data)
        if begin is None:
            self._damaged(
                path,
                f"corrupt at byte {FILE_HEADER_BYTES}: no valid flush frame; the files before it are gone",
            )
            return
        self._flushes(path, data, number, begin, last=last)

    def _header_damage(self, data: bytes, number: int) -> "_HeaderDamage | None":
        try:
            header = read_file_header(data)
        except DataDirectoryError as error:
            return _HeaderDamage(str(error), begins_unfinished=False)
        if isinstance(header, str):
            return _HeaderDamage(header, begins_unfinished=True)
        self._owner = self._owner or (header.cluster_id, header.node_id)
        if (header.cluster_id, header.node_id) != self._owner:
            return _HeaderDamage(
                f"belongs to node {header.node_id} of cluster {header.cluster_id.hex()}, "
                f"expected node {self._owner[1]} of cluster {self._owner[0].hex()}",
                begins_unfinished=False,
            )
        if header.file_number != number:
            return _HeaderDamage(
                f"says that it is journal file {header.file_number}", begins_unfinished=False
            )
        return None

    def _flushes(self, path: Path, data: bytes, number: int, begin: int, *, last: bool) -> None:
        at, flush, records = FILE_HEADER_BYTES, begin, 0
        while True:
            scan = FlushScan(data, number, flush, at)
            try:
                for places in scan:
                    records += len(places)
                    self._collect(path, [journal_record(memoryview(data), place) for place in places])
            except CorruptData as error:
                self._damaged(path, str(error))
                self._next_flush = None
                return
            self._next_flush = scan.next_flush
            if scan.damage:
                self._tail(path, data, scan, number, last=last)
            if scan.later_flush is None:
                break
            at = scan.later_flush
            flush = flush_number_at(data, at) or 0
        flushes = f"flushes {begin} to {scan.next_flush - 1}" if scan.next_flush > begin else "no flush"
        self._report.add("journal", path, f"{flushes}, {records} records, {scan.end} of {len(data)} bytes")

    def _tail(self, path: Path, data: bytes, scan: FlushScan, number: int, *, last: bool) -> None:
        where = f"corrupt at byte {scan.end}: {scan.damage}"
        if scan.later_flush is not None:
            self._damaged(path, f"{where}; a flush at byte {scan.later_flush} follows")
        elif not last:
            self._damaged(path, f"{where}; a later journal file follows")
            self._next_flush = None
        elif reason := why_not_torn(memoryview(data), scan.end, number, scan.next_flush):
            self._damaged(path, f"{where}; no crash tears it so: {reason}", _advice(path, scan))
        else:
            self._report.warn(
                "journal",
                path,
                f"torn tail from byte {scan.end} on ({scan.damage}): never acknowledged, cut by the next start",
            )

    def _collect(self, path: Path, records: list[JournalRecord]) -> None:
        for record in records:
            if record.kind is RecordKind.APPLIED_POSITIONS:
                self._positions(path, record)
            elif record.kind is RecordKind.HARD_STATE:
                if self.journal.whole:
                    self._group(record.raft_group).hard_state = True
            else:
                entry = self._entry(path, record)
                if self.journal.whole:
                    entries = self._entries_of(record.raft_group)
                    take = entries.original if record.kind is RecordKind.ENTRY else entries.relocated
                    self._refusal(path, partial(take, record.index, entry))

    def _group(self, raft_group: int) -> CheckedGroup:
        return self.journal.groups.setdefault(raft_group, CheckedGroup())

    def _entries_of(self, raft_group: int) -> GroupEntries[CheckedEntry]:
        entries = self._entries.get(raft_group)
        if entries is None:
            entries = self._entries[raft_group] = GroupEntries(raft_group)
            self._group(raft_group)
        return entries

    def _refusal(self, path: Path, rule: Callable[[], None]) -> None:
        """Report why recovery will refuse this, if it will."""
        try:
            rule()
        except CorruptData as error:
            self._damaged(path, str(error))

    def _positions(self, path: Path, record: JournalRecord) -> None:
        try:
            positions = AppliedPositions.FromString(bytes(record.payload)).positions
        except DecodeError as error:
            self._damaged(path, f"applied positions cannot be decoded: {error}")
            return
        if self.journal.whole:
            for position in positions:
                self._group(position.raft_group).applied = position
                self._entries_of(position.raft_group).applied(position.index)

    def _entry(self, path: Path, record: JournalRecord) -> CheckedEntry:
        offsets, command = 0, b""
        if record.entry_type is EntryType.RECORD_BATCH:
            try:
                check_batch(record.payload)
                offsets = read_header(record.payload).last_offset_delta + 1
            except CorruptData as error:
                self._damaged(path, f"raft group {record.raft_group}, entry {record.index}: {error}")
        elif record.entry_type is EntryType.COMMAND:
            command = bytes(record.payload)
        return CheckedEntry(record.term, record.index, record.entry_type, command, offsets)

    def _damaged(self, path: Path, found: str, advice: str = "") -> None:
        self.journal.whole = False
        self._report.damaged("journal", path, found, advice)


def _advice(path: Path, scan: FlushScan) -> str:
    return (
        f"flush {scan.next_flush}, the last one, is damaged, and what it holds may have been acknowledged: records, committed offsets, "
        "changes of topics. So the next start is refused. Copy the whole directory first, and look for what damages the disk. An undamaged "
        "copy of this file from after the stop of the daemon can be put back: nothing is lost then. Without one this flush can only be "
        "given up, everything before it is kept, and clients miss what they were told is stored: "
        f"truncate --size={scan.end} {shlex.quote(str(path))}"
    )


class _HeaderDamage(NamedTuple):
    """Why a file's header is refused, and whether a crash while the file was created can look like that."""

    text: str
    begins_unfinished: bool


def _read(disk: Disk, path: Path) -> bytes:
    file = disk.open(path)
    try:
        return file.read_at(file.size(), 0)
    finally:
        file.close()

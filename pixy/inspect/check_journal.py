"""Checks the journal of a stopped node, file by file, and changes nothing.

A start stops at the first fault that it refuses; a check goes on and reports all of them. Both get
their verdicts from `storage.journal_scan`, which decides what each file should be:

    found                                                   reported as
    ------------------------------------------------------  --------------------------------------
    a torn tail, a last file that a crash left unfinished   warning
    a last flush that no crash tears so                     damaged, with advice
    everything else that a start refuses                    damaged
    a record batch with a wrong checksum                    damaged
    an entry that cannot be decoded                         warning: it has no effect
    any other name in the directory                         damaged: the next start is refused

Flushes behind damage in durable bytes are still read, but not relied on: `whole` is False then.
"""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pixy.errors import CorruptData
from pixy.inspect.report import Report
from pixy.multiraft import ADVICE, FoundState, why_impossible
from pixy.proto.state_pb2 import AppliedPosition, HardState
from pixy.records import check_batch, read_header
from pixy.storage import (
    FORMAT_VERSION,
    VERSION_WITH_OFFSETS,
    Disk,
    EntryType,
    JournalFile,
    JournalScan,
    LogReset,
    RecordPlace,
    RefusedStart,
    ScannedFile,
    TornTail,
    UnfinishedFile,
    batches_of,
    entries_after,
    journal_record,
    why_undecodable,
)


class CheckedEntry(NamedTuple):
    """Summary of an entry.

    Attributes:
        term: the first item, as `GroupEntries` expects.
        command: payload of a command.
        offsets: number of offsets that its record batches take.
        batches: base offset and next offset of each batch; empty in files of format version 1,
            whose batches have none yet.
        undecodable: reason why it has no effect, empty if it can be decoded.
    """

    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on an entry
    entry_type: EntryType
    command: bytes = b""
    offsets: int = 0
    batches: tuple[tuple[int, int], ...] = ()
    undecodable: str = ""


@dataclass(slots=True)
class CheckedGroup:
    """Records of one raft group in the journal.

    Attributes:
        entries: entries behind `applied`, or all of them if that is None, in order.
        applied: newest applied position of a partition.
        reset: newest reset of its log, None if there is none.
        hard_state: newest one, None if there is none.
        end: index of the last entry that the journal knows of, included in a reset or not.
    """

    entries: list[CheckedEntry] = field(default_factory=list)
    applied: AppliedPosition | None = None
    reset: LogReset | None = None
    hard_state: HardState | None = None
    end: int = 0

    def term(self, index: int) -> int:
        """Term of an entry behind `applied`; 0 if the journal does not have it."""
        return next((entry.term for entry in self.entries if entry.index == index), 0)

    def entries_after(self, raft_group: int, index: int) -> list[CheckedEntry]:
        """The entries behind `index`, up to which the group is applied.

        Raises:
            CorruptData: there is a hole, terms go back, or the log was reset behind `index`.
        """
        reset = None if self.reset is None else self.reset.position
        return entries_after(raft_group, self.entries, index, reset)


@dataclass(slots=True)
class CheckedJournal:
    """The whole journal.

    Attributes:
        files: number of files that a start accepts.
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
    scan = JournalScan(disk, directory, owner, _checked_entry)
    for verdict in scan:
        match verdict:
            case ScannedFile():
                report.add("journal", verdict.path, _summary(verdict))
            case UnfinishedFile():
                found = f"a crash left it unfinished ({verdict.reason}): removed by the next start"
                report.warn("journal", verdict.path, found)
            case TornTail():
                found = f"torn tail from byte {verdict.byte} on ({verdict.reason}): never acknowledged, cut by the next start"
                report.warn("journal", verdict.path, found)
            case RefusedStart():
                advice = _advice(verdict) if verdict.damaged_flush else ""
                report.damaged("journal", verdict.path, verdict.reason, advice)
    report.bytes += scan.bytes_read
    for raft_group, group in scan.records.groups.items():
        for index, entry in group.entries:
            if entry.undecodable:
                found = f"raft group {raft_group}, entry {index}: {entry.undecodable}; it has no effect, on any node"
                report.warn("journal", directory, found)
    _check_states(directory, scan, report)
    groups = {
        raft_group: CheckedGroup(
            [entry for _, entry in group.entries],
            group.applied,
            group.reset,
            None if group.hard_state is None else HardState.FromString(group.hard_state),
            group.end,
        )
        for raft_group, group in scan.records.groups.items()
    }
    return CheckedJournal(len(scan.files), groups, scan.whole)


def _check_states(directory: Path, scan: JournalScan[CheckedEntry], report: Report) -> None:
    """Report raft groups with impossible terms, indexes or configurations."""
    for raft_group, group in scan.records.groups.items():
        state = None if group.hard_state is None else HardState.FromString(group.hard_state)
        reset = None if group.reset is None else group.reset.position
        terms = group.entries.available().terms
        reason = why_impossible(FoundState(state, terms, group.end, reset, group.applied))
        if reason:
            found = f"raft group {raft_group}: {reason}: the next start is refused"
            report.damaged("journal", directory, found, ADVICE)


def _checked_entry(file: JournalFile, view: memoryview, place: RecordPlace) -> CheckedEntry:
    """Summary of an entry; raises CorruptData if the checksum of a record batch is wrong."""
    record = journal_record(view, place, file.version)
    entry = CheckedEntry(record.term, record.index, record.entry_type)
    if record.entry_type is EntryType.COMMAND:
        return entry._replace(command=bytes(record.payload))
    undecodable = why_undecodable(record.entry_type, record.payload)
    if undecodable:
        return entry._replace(undecodable=undecodable)
    batches = []
    try:
        for batch in batches_of(record):
            check_batch(batch)
            batches.append(read_header(batch))
    except CorruptData as error:
        raise CorruptData(f"raft group {record.raft_group}, entry {record.index}: {error}") from error
    entry = entry._replace(offsets=sum(each.last_offset_delta + 1 for each in batches))
    if file.version < VERSION_WITH_OFFSETS:
        return entry
    return entry._replace(batches=tuple([(each.base_offset, each.next_offset) for each in batches]))


def _summary(file: ScannedFile) -> str:
    flushes = "no flush"
    if file.next_flush > file.first_flush:
        flushes = f"flushes {file.first_flush} to {file.next_flush - 1}"
    version = f"format version {file.version}, " if file.version < FORMAT_VERSION else ""
    return f"{version}{flushes}, {file.records} records, {file.end} of {file.file_bytes} bytes"


def _advice(damage: RefusedStart) -> str:
    return (
        f"flush {damage.damaged_flush}, the last one, is damaged, and what it holds may have been acknowledged: "
        "records, committed offsets, changes of topics. So the next start is refused. Copy the whole directory "
        "first, and look for what damages the disk. An undamaged copy of this file from after the stop of the "
        "daemon can be put back: nothing is lost then. Without one this flush can only be given up, everything "
        "before it is kept, and clients miss what they were told is stored: "
        f"truncate --size={damage.byte} {shlex.quote(str(damage.path))}"
    )

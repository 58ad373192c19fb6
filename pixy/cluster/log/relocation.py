"""Relocation: entries of raft groups that cannot go on are written again at the end of the journal.

A damaged partition cannot apply its entries, a group without a quorum cannot commit them, so no
journal file with one of them could ever go. Once the journal is large in comparison, the entries
that only the oldest file has are written again, under a kind of their own: a relocated entry never
truncates its raft group.

Only entries that are in the group's log are relocated, judged when they are written: another leader
may have replaced them since they were read.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pixy.cluster.log.partition_condition import PartitionCondition
from pixy.cluster.log.replica import PartitionReplica, StateReplica
from pixy.entry_ids import LogPosition
from pixy.multiraft import RaftGroup
from pixy.storage import (
    VERSION_WITH_OFFSETS,
    EntryRange,
    FilePart,
    Journal,
    JournalFile,
    JournalReader,
    JournalRecord,
    RecordKind,
    Worker,
)

_ENTRIES_PER_ITERATION = 200


def is_stuck(group: RaftGroup) -> bool:
    """True if nothing that this node does can make the journal dispensable for the group."""
    application = group.application
    if isinstance(application, PartitionReplica):
        unwritable = application.condition is PartitionCondition.UNWRITABLE
        return unwritable or group.durable_index >= group.applied_index
    if isinstance(application, StateReplica):
        checkpoints = application.checkpoints
        newest = checkpoints[-1].end_offset if checkpoints else 0
        return not group.decides and not application.checkpointing and newest == group.applied_index
    return True


class Relocation:
    """Writes the entries of groups that are stuck again.

    Args:
        journal: the node's journal.
        groups: every raft group of the node by id; grows with new topics.
        file_bytes: size of a journal file.
        files: the thread that reads them.
        reader: reads the journal on that thread.
        on_fault: called with the error of a read.
    """

    def __init__(
        self,
        journal: Journal,
        groups: Mapping[int, RaftGroup],
        file_bytes: int,
        files: Worker,
        reader: JournalReader,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._journal = journal
        self._groups = groups
        self._file_bytes = file_bytes
        self._files = files
        self._reader = reader
        self._on_fault = on_fault
        self._stopped = False

    def stop(self) -> None:
        """Write nothing more, and call nobody back."""
        self._stopped = True

    def is_worth(self, files_kept: int) -> bool:
        """True if at least half of the journal would be removed, `files_kept` files not counted.

        With less, entries would be relocated again and again.
        """
        stuck_bytes = sum(_stuck_bytes(group) for group in self._groups.values() if is_stuck(group))
        stuck_files = stuck_bytes // self._file_bytes + 1
        return len(self._journal.files) > files_kept + 2 * stuck_files

    def begin(
        self, oldest: JournalFile, needed_by: Sequence[RaftGroup], then: Callable[[bool], None]
    ) -> None:
        """Write again the entries that only the oldest file has.

        Args:
            oldest: the oldest file.
            needed_by: the groups that need it, all of them stuck.
            then: called once all entries are appended to the journal, or with False if one of them
                cannot be relocated.
        """
        wanted = []
        for group in needed_by:
            lo, hi = group.durable_index + 1, group.storage.last_index() + 1
            wanted.append(EntryRange(group.raft_group, lo, hi, group.storage.term_runs()))
        begin = min(oldest.spans[each.raft_group][2] for each in wanted)
        part = FilePart(oldest.number, begin, oldest.end)
        self._files.submit(partial(self._reader.entries_of_file, part, wanted), partial(self._append, then))

    def _append(
        self, then: Callable[[bool], None], entries: list[JournalRecord] | None, error: BaseException | None
    ) -> None:
        if self._stopped:
            return
        if error is not None or entries is None:
            assert error is not None
            self._on_fault(error)
            return
        for entry in entries[:_ENTRIES_PER_ITERATION]:
            group = self._groups.get(entry.raft_group)
            if group is None or not group.has_entry(LogPosition(entry.term, entry.index)):
                continue
            known = group.storage.in_memory(entry.index)
            if known is None and entry.version < VERSION_WITH_OFFSETS:
                # A batch without its offset. The next start gives it one, and has it in memory.
                then(False)
                return
            self._relocate(entry, entry.payload if known is None else known.data)
        rest = entries[_ENTRIES_PER_ITERATION:]
        if rest:
            asyncio.get_running_loop().call_soon(self._append, then, rest, None)
        else:
            then(True)

    def _relocate(self, entry: JournalRecord, payload: bytes | bytearray | memoryview) -> None:
        record = (
            RecordKind.RELOCATED_ENTRY,
            entry.entry_type,
            entry.raft_group,
            entry.index,
            entry.term,
            entry.commit,
            entry.proposal,
            payload,
        )
        self._journal.append((record,), _nothing)


def _stuck_bytes(group: RaftGroup) -> int:
    """Bytes of a group's entries in the journal that have to be relocated."""
    application = group.application
    stuck = application.stuck_bytes if isinstance(application, PartitionReplica) else 0
    return stuck or group.storage.memory_bytes(group.durable_index)


def _nothing() -> None:
    """Callback of a record that no caller waits for; later records imply its durability."""

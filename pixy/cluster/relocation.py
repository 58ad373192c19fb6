"""Relocation: entries of damaged partitions are written again at the end of the journal.

A damaged partition cannot apply its entries, so no journal file with one of them could ever go.
Once the journal is large in comparison, the entries that only the oldest file has are written
again, under a kind of their own: a relocated entry never truncates its raft group.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from pixy.cluster.hard_states import TERM
from pixy.cluster.replica import PartitionReplica, Replica
from pixy.storage import (
    EntryRange,
    FilePart,
    Journal,
    JournalFile,
    JournalReader,
    JournalRecord,
    RecordKind,
    Worker,
)

__all__ = ["Relocation"]

_ENTRIES_PER_ITERATION = 200


class Relocation:
    """Writes the entries of damaged partitions again.

    Args:
        journal: the node's journal.
        replicas: every raft group of the node by id; grows with new topics.
        file_bytes: size of a journal file.
        files: the thread that reads them.
        reader: reads the journal on that thread.
        on_fault: called with the error of a read.
    """

    def __init__(
        self,
        journal: Journal,
        replicas: Mapping[int, Replica],
        file_bytes: int,
        files: Worker,
        reader: JournalReader,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._journal = journal
        self._replicas = replicas
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
        stuck_bytes = sum(
            replica.stuck_bytes
            for replica in self._replicas.values()
            if isinstance(replica, PartitionReplica)
        )
        stuck_files = stuck_bytes // self._file_bytes + 1
        return len(self._journal.files) > files_kept + 2 * stuck_files

    def begin(
        self, oldest: JournalFile, needed_by: Iterable[PartitionReplica], then: Callable[[], None]
    ) -> None:
        """Write again the entries that only the oldest file has; call `then` when all are in the
        journal's order.
        """
        wanted = [
            EntryRange(each.raft_group, each.durable_index + 1, each.last.index + 1, [(1, TERM)])
            for each in needed_by
        ]
        begin = min(oldest.spans[each.raft_group][2] for each in wanted)
        part = FilePart(oldest.number, begin, oldest.end)
        self._files.submit(partial(self._reader.entries_of_file, part, wanted), partial(self._append, then))

    def _append(
        self, then: Callable[[], None], entries: list[JournalRecord] | None, error: BaseException | None
    ) -> None:
        if self._stopped:
            return
        if error is not None or entries is None:
            assert error is not None
            self._on_fault(error)
            return
        for entry in entries[:_ENTRIES_PER_ITERATION]:
            if entry.raft_group in self._replicas:
                record = (
                    RecordKind.RELOCATED_ENTRY,
                    entry.entry_type,
                    entry.raft_group,
                    entry.index,
                    entry.term,
                    entry.commit,
                    entry.proposal,
                    entry.payload,
                )
                self._journal.append((record,), _nothing)
        rest = entries[_ENTRIES_PER_ITERATION:]
        if rest:
            asyncio.get_running_loop().call_soon(self._append, then, rest, None)
        else:
            then()


def _nothing() -> None:
    """Callback of a record that no caller waits for; later records imply its durability."""

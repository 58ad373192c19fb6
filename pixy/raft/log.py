"""The log of a node: its stable and unstable entries, and its commit and apply indexes.

    storage.first_index ..... unstable.offset ..... last_index
         applied <= applying <= committed

Entries up to `applying` were handed out to be applied, entries up to `applied` were acknowledged.
Nothing is handed out while the entries are not in memory, until they are loaded. Committed entries
are never replaced; a leader that asks for it has a bug (Raft §5.4.3, leader completeness).
"""

from bisect import bisect_left
from collections.abc import Sequence

from pixy.entry_ids import LogPosition
from pixy.raft.errors import Compacted, EntriesNotLoaded, EntryUnavailable, StorageError, panic
from pixy.raft.messages import Entry, Snapshot
from pixy.raft.sizes import NO_LIMIT, entries_size, limit_entries
from pixy.raft.storage import Storage
from pixy.raft.trace import Trace
from pixy.raft.unstable import Unstable


class RaftLog:
    """Reads from the storage, and writes nothing.

    Args:
        storage: stable entries.
        trace: trace sink.
    """

    __slots__ = (
        "_trace",
        "applied",
        "applying",
        "applying_awaits_entries",
        "committed",
        "storage",
        "unstable",
    )

    def __init__(self, storage: Storage, trace: Trace) -> None:
        self._trace = trace
        self.storage = storage
        self.unstable = Unstable(storage.last_index() + 1, trace)
        # Stored by a quorum. Invariant: applied <= applying <= committed <= last_index.
        self.committed = self.applying = self.applied = storage.first_index() - 1
        # The entries to hand out next were not in memory: nothing is, until entries are loaded.
        self.applying_awaits_entries = False

    def __str__(self) -> str:
        return (
            f"committed={self.committed}, applied={self.applied}, applying={self.applying}, "
            f"unstable.offset={self.unstable.offset}, unstable.offsetInProgress={self.unstable.offset_in_progress}, "
            f"len(unstable.Entries)={len(self.unstable.entries)}"
        )

    # --- contents ---------------------------------------------------------------------------------

    def first_index(self) -> int:
        """Index of the first available entry."""
        first = self.unstable.maybe_first_index()
        return self.storage.first_index() if first is None else first

    def last_index(self) -> int:
        """Index of the last entry."""
        entries = self.unstable.entries
        if entries:
            return entries[-1].index
        last = self.unstable.maybe_last_index()
        return self.storage.last_index() if last is None else last

    def last_position(self) -> LogPosition:
        """Term and index of the last entry."""
        entries = self.unstable.entries
        if entries:
            return LogPosition(entries[-1].term, entries[-1].index)
        index = self.last_index()
        try:
            return LogPosition(self.term(index), index)
        except StorageError as error:
            panic(self._trace, "unexpected error when getting the last term at %d: %s", index, error)

    def term(self, index: int) -> int:
        """Term of an entry, or of the one before the first.

        Raises:
            Compacted: the entry was compacted.
            EntryUnavailable: the entry does not exist yet.
        """
        unstable = self.unstable
        if index < unstable.offset and unstable.snapshot is None:
            return self.storage.term(index)
        known = unstable.maybe_term(index)
        if known is not None:
            return known
        # Entries in the storage below a pending snapshot are about to be replaced, and may conflict
        # with it.
        raise EntryUnavailable if index >= unstable.offset else Compacted

    def term_or_zero(self, index: int) -> int:
        """Term of an entry, 0 if it was compacted or does not exist yet."""
        try:
            return self.term(index)
        except StorageError:
            return 0

    def match_term(self, term: int, index: int) -> bool:
        """True if the entry at `index` has this term."""
        try:
            return self.term(index) == term
        except StorageError:
            return False

    def entries(self, lo: int, max_size: int) -> list[Entry]:
        """Entries from `lo` on, limited to `max_size` encoded bytes, but at least one if there is
        any.

        Raises:
            Compacted: `lo` was compacted.
            EntriesNotLoaded: `lo` is not in memory.
        """
        unstable = self.unstable
        if lo >= unstable.offset:
            # What is new to a follower, nearly always.
            return limit_entries(unstable.entries[lo - unstable.offset :], max_size)
        last = self.last_index()
        return self.slice(lo, last + 1, max_size) if lo <= last else []

    def slice(self, lo: int, hi: int, max_size: int) -> list[Entry]:
        """Entries in [lo, hi), limited to `max_size` encoded bytes and to those in memory, but at
        least one if there is any.

        Raises:
            Compacted: `lo` was compacted.
            EntriesNotLoaded: `lo` is not in memory.
        """
        self._check_bounds(lo, hi)
        offset = self.unstable.offset
        if lo == hi:
            return []
        if lo >= offset:
            return limit_entries(self.unstable.slice(lo, hi), max_size)
        cut = min(hi, offset)
        try:
            stable = self.storage.entries(lo, cut, max_size)
        except EntryUnavailable:
            panic(self._trace, "entries[%d:%d) is unavailable from storage", lo, cut)
        if hi <= offset or len(stable) < cut - lo:
            return stable
        if max_size >= NO_LIMIT:
            return stable + self.unstable.slice(offset, hi)
        room = max_size - entries_size(stable)
        if room <= 0:
            return stable
        rest = limit_entries(self.unstable.slice(offset, hi), room)
        # `limit_entries` always returns the first entry; here that entry is not the first of the
        # result.
        return stable if len(rest) == 1 and entries_size(rest) > room else stable + rest

    def _check_bounds(self, lo: int, hi: int) -> None:
        if lo > hi:
            panic(self._trace, "invalid slice %d > %d", lo, hi)
        if lo >= self.unstable.offset and hi <= self.unstable.offset + len(self.unstable.entries):
            return
        first = self.first_index()
        if lo < first:
            raise Compacted
        if hi > self.last_index() + 1:
            panic(self._trace, "slice[%d,%d) out of bound [%d,%d]", lo, hi, first, self.last_index())

    def snapshot(self) -> Snapshot:
        """The latest snapshot.

        Raises:
            SnapshotTemporarilyUnavailable: it is being created.
        """
        if self.unstable.snapshot is not None:
            return self.unstable.snapshot
        return self.storage.snapshot()

    # --- appending --------------------------------------------------------------------------------

    def maybe_append(self, previous: LogPosition, entries: Sequence[Entry], leader_commit: int) -> int | None:
        """Append a leader's entries (Raft figure 2, AppendEntries 2-5).

        Returns:
            Index of the last new entry, None if the log does not contain `previous`.
        """
        if not self.match_term(*previous):
            return None
        last_new = previous.index + len(entries)
        if entries:
            conflict = self.find_conflict(entries)
            if conflict:
                if conflict <= self.committed:
                    panic(
                        self._trace,
                        "entry %d conflict with committed entry [committed(%d)]",
                        conflict,
                        self.committed,
                    )
                skipped = conflict - previous.index - 1
                if skipped > len(entries):
                    panic(self._trace, "index, %d, is out of range [%d]", skipped, len(entries))
                self.append(entries[skipped:] if skipped else entries)
        self.commit_to(min(leader_commit, last_new))
        return last_new

    def append(self, entries: Sequence[Entry]) -> int:
        """Append consecutive entries, replacing everything from the first one's index on; returns
        the last index.
        """
        if entries:
            after = entries[0].index - 1
            if after < self.committed:
                panic(self._trace, "after(%d) is out of range [committed(%d)]", after, self.committed)
            self.unstable.truncate_and_append(entries)
        return self.last_index()

    def find_conflict(self, entries: Sequence[Entry]) -> int:
        """Index of the first entry that the log does not have, 0 if it has all of them.

        Two logs with the same entry are equal up to it (Raft §5.3, log matching), so the entries
        that match come first.
        """
        known = min(self.last_index() + 1 - entries[0].index, len(entries))
        at = 0
        if known > 0:
            at = bisect_left(range(known), True, key=lambda at: not self._has(entries[at]))
        if at == len(entries):
            return 0
        entry = entries[at]
        if at < known:
            self._trace.info(
                "found conflict at index %d [existing term: %d, conflicting term: %d]",
                entry.index,
                self.term_or_zero(entry.index),
                entry.term,
            )
        return entry.index

    def _has(self, entry: Entry) -> bool:
        return self.match_term(entry.term, entry.index)

    def find_conflict_by_term(self, index: int, term: int) -> LogPosition:
        """The last entry at or below `index` with a term <= `term`: the last one that may match a
        log with that term at that index.

        Its term is 0 if the log does not reach down that far. (Raft §5.3, fast log backtracking.)
        """
        while index > 0:
            try:
                own = self.term(index)
            except StorageError:
                return LogPosition(0, index)
            if own <= term:
                return LogPosition(own, index)
            index = self.term_start(index) - 1
        return LogPosition(0, 0)

    def term_start(self, index: int) -> int:
        """Index of an entry from which on all entries up to `index` have one term."""
        unstable = self.unstable
        if index >= unstable.offset:
            return unstable.term_start(index)
        return index if unstable.snapshot is not None else self.storage.term_start(index)

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the log by a snapshot."""
        self._trace.info(
            "log [%s] starts to restore snapshot [index: %d, term: %d]", self, snapshot.index, snapshot.term
        )
        self.committed = snapshot.index
        self.unstable.restore(snapshot)
        # What is being loaded is not needed any more.
        self.entries_loaded()

    # --- committing and applying ------------------------------------------------------------------

    def commit_to(self, index: int) -> None:
        """Advance the commit index; it never moves back."""
        if index <= self.committed:
            return
        if index > self.last_index():
            panic(
                self._trace,
                "tocommit(%d) is out of range [lastIndex(%d)]. Was the raft log corrupted, truncated, or lost?",
                index,
                self.last_index(),
            )
        self.committed = index

    def take_stable_committed(self) -> list[Entry]:
        """Hand out all committed entries that are stored on this node and in memory.

        Committed entries that are not stored here yet might be applied as well; a crash could then
        leave the application ahead of its log.
        """
        unstable = self.unstable
        lo, hi = self.applying + 1, min(self.committed, unstable.offset - 1) + 1
        if lo >= hi or self.applying_awaits_entries or unstable.snapshot is not None:
            return []
        try:
            entries = self.storage.entries(lo, hi, NO_LIMIT)
        except EntriesNotLoaded:
            self.applying_awaits_entries = True
            return []
        except StorageError as error:
            panic(self._trace, "unexpected error when getting unapplied entries (%s)", error)
        self.applying = entries[-1].index
        return entries

    def entries_loaded(self) -> None:
        """Hand out entries again that were not in memory."""
        self.applying_awaits_entries = False

    def applied_to(self, index: int) -> None:
        """Record that all entries up to `index` are applied."""
        if self.committed < index or index < self.applied:
            panic(
                self._trace,
                "applied(%d) is out of range [prevApplied(%d), committed(%d)]",
                index,
                self.applied,
                self.committed,
            )
        self.applied = index
        self.applying = max(self.applying, index)

    def check_invariants(self) -> None:
        """Assert the documented invariants."""
        self.unstable.check_invariants()
        assert self.applied <= self.applying <= self.committed <= self.last_index(), str(self)

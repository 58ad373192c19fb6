"""The tail of the log that is not in stable storage, or being written to it.

    storage                  | unstable.entries
    ... offset-3 .. offset-1 | offset .. offset_in_progress-1 | offset_in_progress ..
                               handed to the driver             not yet

Entries stay here until the driver reports them as stored, even after they were handed out. A new
leader may replace entries that are being stored: then the storage may have the old ones for a
while, and the ones here count. So an acknowledgement names the term of its last entry, and one that
does not match is ignored.

A received snapshot waits here as well. The log then begins behind it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

from pixy.entry_ids import LogPosition
from pixy.raft.errors import panic
from pixy.raft.messages import Entry, Snapshot
from pixy.raft.trace import Trace


class Unstable:
    """Entries from `offset` on, and possibly a snapshot at `offset` - 1."""

    __slots__ = ("_trace", "entries", "offset", "offset_in_progress", "snapshot", "snapshot_in_progress")

    def __init__(self, offset: int, trace: Trace) -> None:
        self._trace = trace
        # Invariant: consecutive indexes from `offset` on.
        self.entries: list[Entry] = []
        self.offset = offset
        # Invariant: offset <= offset_in_progress <= offset + len(entries).
        self.offset_in_progress = offset
        self.snapshot: Snapshot | None = None
        # Invariant: False without a snapshot.
        self.snapshot_in_progress = False

    def maybe_first_index(self) -> int | None:
        """First index of the log, if a snapshot determines it."""
        return self.snapshot.index + 1 if self.snapshot is not None else None

    def maybe_last_index(self) -> int | None:
        """Last index of the log, if it is determined here."""
        if self.entries:
            return self.offset + len(self.entries) - 1
        return self.snapshot.index if self.snapshot is not None else None

    def maybe_term(self, index: int) -> int | None:
        """Term of an entry, if it is known here."""
        if index < self.offset:
            snapshot = self.snapshot
            return snapshot.term if snapshot is not None and snapshot.index == index else None
        at = index - self.offset
        return self.entries[at].term if at < len(self.entries) else None

    def term_start(self, index: int) -> int:
        """Index of the first entry here that has the same term as the one at `index`, which must be
        here.
        """
        term = self.entries[index - self.offset].term
        return self.offset + bisect_left(self.entries, term, key=attrgetter("term"))

    def next_entries(self) -> list[Entry]:
        """Entries not handed out yet."""
        return self.entries[self.offset_in_progress - self.offset :]

    def next_snapshot(self) -> Snapshot | None:
        """The snapshot, if it was not handed out yet."""
        return None if self.snapshot_in_progress else self.snapshot

    def accept_in_progress(self) -> None:
        """Record that everything was handed out."""
        self.offset_in_progress = self.offset + len(self.entries)
        self.snapshot_in_progress = self.snapshot is not None

    def stable_to(self, position: LogPosition) -> None:
        """Remove stored entries up to this one; ignored if this one is no longer here."""
        term, index = position
        known = self.maybe_term(index)
        if known is None:
            self._trace.info("entry at index %d missing from unstable log; ignoring", index)
            return
        if index < self.offset:
            self._trace.info("entry at index %d matched unstable snapshot; ignoring", index)
            return
        if known != term:
            self._trace.info(
                "entry at (index,term)=(%d,%d) mismatched with entry at (%d,%d) in unstable log; ignoring",
                index,
                term,
                index,
                known,
            )
            return
        # A new list, which releases the memory of a burst.
        self.entries = [] if index == self.entries[-1].index else self.entries[index + 1 - self.offset :]
        self.offset = index + 1
        self.offset_in_progress = max(self.offset_in_progress, self.offset)

    def stable_snapshot_to(self, index: int) -> None:
        """Remove the snapshot of this index, which is stored."""
        if self.snapshot is not None and self.snapshot.index == index:
            self.snapshot = None
            self.snapshot_in_progress = False

    def restore(self, snapshot: Snapshot) -> None:
        """Replace everything by a snapshot."""
        self.offset = snapshot.index + 1
        self.offset_in_progress = self.offset
        self.entries = []
        self.snapshot = snapshot
        self.snapshot_in_progress = False

    def extend(self, entries: Sequence[Entry]) -> None:
        """Add entries that follow the last one of the log."""
        assert entries[0].index == self.offset + len(self.entries)
        self.entries.extend(entries)

    def truncate_and_append(self, entries: Sequence[Entry]) -> None:
        """Add consecutive entries; replace everything from the first index on (Raft §5.3)."""
        first = entries[0].index
        end = self.offset + len(self.entries)
        if first == end:
            self.entries.extend(entries)
        elif first <= self.offset:
            self._trace.info("replace the unstable entries from index %d", first)
            self.entries = list(entries)
            self.offset = first
            self.offset_in_progress = first
        else:
            self._trace.info("truncate the unstable entries before index %d", first)
            self.entries = [*self.slice(self.offset, first), *entries]
            self.offset_in_progress = min(self.offset_in_progress, first)

    def slice(self, lo: int, hi: int) -> list[Entry]:
        """Entries in [lo, hi), which must be here."""
        upper = self.offset + len(self.entries)
        if lo > hi:
            panic(self._trace, "invalid unstable.slice %d > %d", lo, hi)
        if lo < self.offset or hi > upper:
            panic(self._trace, "unstable.slice[%d,%d) out of bound [%d,%d]", lo, hi, self.offset, upper)
        return self.entries[lo - self.offset : hi - self.offset]

    def check_invariants(self) -> None:
        """Assert the documented invariants."""
        assert self.offset <= self.offset_in_progress <= self.offset + len(self.entries)
        assert [entry.index for entry in self.entries] == list(
            range(self.offset, self.offset + len(self.entries))
        )
        assert self.snapshot is not None or not self.snapshot_in_progress
        assert self.snapshot is None or self.snapshot.index < self.offset

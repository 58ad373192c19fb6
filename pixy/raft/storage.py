"""The core's interface to stable storage, and an in-memory implementation.

The core only reads; the driver writes (`pixy.raft.work`). Entries are looked up by index, so a
storage must know the term of each of its entries and of the one before its first: the *dummy*
entry, whose data may be gone. Terms never decrease, so the first index of each term is enough.
Payloads need not be in memory: `entries` may answer that they have to be loaded first.

`MemoryStorage` is for tests, simulations and benchmarks, and for state that needs no disk.
"""

from bisect import bisect_left
from operator import attrgetter
from typing import NamedTuple, Protocol

from pixy.raft.errors import Compacted, EntryUnavailable, RaftBug, SnapshotOutOfDate
from pixy.raft.messages import ConfState, Entry, HardState, Snapshot
from pixy.raft.sizes import limit_entries

__all__ = ["InitialState", "MemoryStorage", "Storage"]


class InitialState(NamedTuple):
    """Initial state of a restarted node.

    Attributes:
        hard_state: last stored hard state.
        conf_state: last stored configuration.
        conf_index: index of the last entry included in `conf_state`. Configuration changes up to
            here are in effect already; applying them again has no effect.
    """

    hard_state: HardState
    conf_state: ConfState
    conf_index: int


class Storage(Protocol):
    """Stable state. No method may block: the core calls them synchronously."""

    def initial_state(self) -> InitialState:
        """Last stored hard state and configuration; defaults for a new group."""

    def first_index(self) -> int:
        """Index of the first entry that `entries` can return, one after the dummy."""

    def last_index(self) -> int:
        """Index of the last entry, or of the dummy if there are no entries."""

    def term(self, index: int) -> int:
        """Term of an entry or of the dummy.

        Raises:
            Compacted: the index is below the dummy.
            EntryUnavailable: the index is above the last entry.
        """

    def term_start(self, index: int) -> int:
        """Index of the first entry, or of the dummy, that has the same term as the entry at
        `index`.

        Raises:
            Compacted: the index is below the dummy.
            EntryUnavailable: the index is above the last entry.
        """

    def entries(self, lo: int, hi: int, max_size: int) -> list[Entry]:
        """Entries in [lo, hi), limited to `max_size` encoded bytes, but at least one. May be fewer
        if only these are in memory.

        Raises:
            Compacted: `lo` is not above the dummy.
            EntryUnavailable: there are no entries.
            EntriesNotLoaded: the entry at `lo` is not in memory. The driver loads the range, or the
                beginning of it, and calls `RaftNode.entries_loaded`.
        """

    def snapshot(self) -> Snapshot:
        """The latest snapshot, at or above the dummy.

        Raises:
            SnapshotTemporarilyUnavailable: it is being created. The driver calls
                `RaftNode.snapshot_ready` when it is, or the core asks again after a heartbeat.
        """


class MemoryStorage:
    """Storage in memory."""

    __slots__ = ("_conf_index", "_conf_state", "_entries", "_hard_state", "_snapshot")

    def __init__(self) -> None:
        self._hard_state = HardState()
        self._snapshot = Snapshot()
        # Invariant: not older than the snapshot's configuration.
        self._conf_state, self._conf_index = ConfState(), 0
        # Invariant: never empty, consecutive; the first entry is the dummy.
        self._entries: list[Entry] = [Entry()]

    def initial_state(self) -> InitialState:
        """Hard state, and the latest configuration stored by itself or with a snapshot."""
        return InitialState(self._hard_state, self._conf_state, self._conf_index)

    def first_index(self) -> int:
        """Index after the dummy."""
        return self._entries[0].index + 1

    def last_index(self) -> int:
        """Index of the last entry or the dummy."""
        return self._entries[-1].index

    def term(self, index: int) -> int:
        """Raises Compacted or EntryUnavailable."""
        at = index - self._entries[0].index
        if at < 0:
            raise Compacted
        if at >= len(self._entries):
            raise EntryUnavailable
        return self._entries[at].term

    def term_start(self, index: int) -> int:
        """Raises Compacted or EntryUnavailable."""
        return self._entries[0].index + bisect_left(self._entries, self.term(index), key=attrgetter("term"))

    def entries(self, lo: int, hi: int, max_size: int) -> list[Entry]:
        """Raises Compacted or EntryUnavailable; RaftBug if `hi` is beyond the end."""
        dummy = self._entries[0].index
        if lo <= dummy:
            raise Compacted
        if hi > self.last_index() + 1:
            raise RaftBug(f"entries' hi({hi}) is out of bound lastindex({self.last_index()})")
        if len(self._entries) == 1:
            raise EntryUnavailable
        return limit_entries(self._entries[lo - dummy : hi - dummy], max_size)

    def snapshot(self) -> Snapshot:
        """The snapshot that was created or applied last."""
        return self._snapshot

    def set_hard_state(self, state: HardState) -> None:
        """Store the hard state."""
        self._hard_state = state

    def set_conf_state(self, state: ConfState, index: int) -> None:
        """Store the configuration as of the entry at `index`; an older one than the stored one is
        ignored.
        """
        if index >= self._conf_index:
            self._conf_state, self._conf_index = state, index

    def append(self, entries: list[Entry]) -> None:
        """Store consecutive entries; those from the first one's index on are replaced.

        Raises:
            RaftBug: the entries leave a gap.
        """
        if not entries:
            return
        dummy = self._entries[0].index
        if entries[-1].index <= dummy:
            return
        if entries[0].index <= dummy:
            entries = entries[dummy + 1 - entries[0].index :]
        at = entries[0].index - dummy
        if at > len(self._entries):
            raise RaftBug(f"missing log entry [last: {self.last_index()}, append at: {entries[0].index}]")
        self._entries[at:] = entries

    def apply_snapshot(self, snapshot: Snapshot) -> None:
        """Replace everything by a snapshot.

        Raises:
            SnapshotOutOfDate: the stored snapshot is not older.
        """
        if self._snapshot.index >= snapshot.index:
            raise SnapshotOutOfDate
        self._snapshot = snapshot
        self.set_conf_state(snapshot.conf_state, snapshot.index)
        self._entries = [Entry(snapshot.term, snapshot.index)]

    def create_snapshot(self, index: int, conf_state: ConfState | None, data: bytes) -> Snapshot:
        """Create the snapshot at an applied index; its configuration is the previous one if none is
        given.

        Raises:
            SnapshotOutOfDate: a newer one exists.
            RaftBug: there is no such entry.
        """
        if index <= self._snapshot.index:
            raise SnapshotOutOfDate
        if index > self.last_index():
            raise RaftBug(f"snapshot {index} is out of bound lastindex({self.last_index()})")
        self._snapshot = Snapshot(index, self.term(index), conf_state or self._snapshot.conf_state, data)
        self.set_conf_state(self._snapshot.conf_state, index)
        return self._snapshot

    def compact(self, index: int) -> None:
        """Drop everything up to and including `index`, which becomes the dummy.

        Raises:
            Compacted: this was compacted before.
            RaftBug: there is no such entry.
        """
        dummy = self._entries[0].index
        if index <= dummy:
            raise Compacted
        if index > self.last_index():
            raise RaftBug(f"compact {index} is out of bound lastindex({self.last_index()})")
        kept = self._entries[index - dummy]
        self._entries[: index - dummy + 1] = [Entry(kept.term, kept.index)]

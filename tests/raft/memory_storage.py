"""The storage of a Raft core in memory, as etcd's: for tests, simulations and benchmarks."""

from bisect import bisect_left
from operator import attrgetter

from pixy.raft import (
    Compacted,
    ConfState,
    Entry,
    EntryUnavailable,
    HardState,
    InitialState,
    RaftBug,
    Snapshot,
    StorageError,
)
from pixy.raft.sizes import limit_entries


class SnapshotOutOfDate(StorageError):
    """A newer snapshot exists."""

    text = "requested index is older than the existing snapshot"


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

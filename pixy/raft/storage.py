"""What the core reads from stable storage, and a storage in memory.

The core only reads; what is to be written is handed to the driver (`pixy.raft.ready`). It asks for entries by index, so a
storage must know the term of every entry it has and of the one before its first: the *dummy*, whose data may be gone.

`MemoryStorage` is for tests, simulations and benchmarks, and for state that needs no disk.
"""

from typing import NamedTuple, Protocol

from pixy.raft.errors import Compacted, EntryUnavailable, RaftBug, SnapshotOutOfDate
from pixy.raft.messages import ConfState, Entry, HardState, Snapshot
from pixy.raft.sizes import limit_entries

__all__ = ["InitialState", "MemoryStorage", "Storage"]


class InitialState(NamedTuple):
    """The state that a restart begins with.

    Attributes:
        hard_state: as stored last.
        conf_state: the configuration, as stored last.
        conf_index: index of the last entry that `conf_state` takes into account. Configuration changes up to here are in
            force already; applied again, they have no effect.
    """

    hard_state: HardState
    conf_state: ConfState
    conf_index: int


class Storage(Protocol):
    """What is stable. All methods answer from memory or quickly: the core does not wait."""

    def initial_state(self) -> InitialState:
        """Hard state and configuration as stored last; defaults for a new group."""

    def first_index(self) -> int:
        """The first entry that `entries` can give, one behind the dummy."""

    def last_index(self) -> int:
        """The last entry, or the dummy's index without entries."""

    def term(self, index: int) -> int:
        """The term of an entry, or of the dummy.

        Raises:
            Compacted: it was below the dummy.
            EntryUnavailable: it is behind the last entry.
        """

    def entries(self, lo: int, hi: int, max_size: int) -> list[Entry]:
        """The entries from `lo` to before `hi`, cut to `max_size` encoded bytes, but one at least.

        Raises:
            Compacted: `lo` is not behind the dummy.
            EntryUnavailable: there are no entries.
        """

    def snapshot(self) -> Snapshot:
        """The newest snapshot, at or above the dummy.

        Raises:
            SnapshotTemporarilyUnavailable: it is being made.
        """


class MemoryStorage:
    """Keeps everything in memory."""

    __slots__ = ("_conf_index", "_conf_state", "_entries", "_hard_state", "_snapshot")

    def __init__(self) -> None:
        self._hard_state = HardState()
        self._snapshot = Snapshot()
        # Invariant: not older than the snapshot's.
        self._conf_state, self._conf_index = ConfState(), 0
        # Invariant: never empty, consecutive; the first is the dummy.
        self._entries: list[Entry] = [Entry()]

    def initial_state(self) -> InitialState:
        """Hard state, and the newest configuration that was stored, by itself or with a snapshot."""
        return InitialState(self._hard_state, self._conf_state, self._conf_index)

    def first_index(self) -> int:
        """One behind the dummy."""
        return self._entries[0].index + 1

    def last_index(self) -> int:
        """The last entry's, or the dummy's."""
        return self._entries[-1].index

    def term(self, index: int) -> int:
        """Raises Compacted or EntryUnavailable."""
        at = index - self._entries[0].index
        if at < 0:
            raise Compacted
        if at >= len(self._entries):
            raise EntryUnavailable
        return self._entries[at].term

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
        """The newest one that was made or applied."""
        return self._snapshot

    def set_hard_state(self, state: HardState) -> None:
        """Stores it."""
        self._hard_state = state

    def set_conf_state(self, state: ConfState, index: int) -> None:
        """Stores the configuration as of the entry at `index`; an older one than is stored is ignored."""
        if index >= self._conf_index:
            self._conf_state, self._conf_index = state, index

    def append(self, entries: list[Entry]) -> None:
        """Stores consecutive entries; those from the first one's index on are replaced.

        Raises:
            RaftBug: they leave a hole.
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
        """Replaces everything by a snapshot.

        Raises:
            SnapshotOutOfDate: the one that is there is not older.
        """
        if self._snapshot.index >= snapshot.index:
            raise SnapshotOutOfDate
        self._snapshot = snapshot
        self.set_conf_state(snapshot.conf_state, snapshot.index)
        self._entries = [Entry(snapshot.term, snapshot.index)]

    def create_snapshot(self, index: int, conf_state: ConfState | None, data: bytes) -> Snapshot:
        """Makes the snapshot at an applied index; the configuration is that of the one before if none is given.

        Raises:
            SnapshotOutOfDate: there is a newer one.
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
        """Drops everything up to and with `index`, which becomes the dummy.

        Raises:
            Compacted: that was done.
            RaftBug: there is no such entry.
        """
        dummy = self._entries[0].index
        if index <= dummy:
            raise Compacted
        if index > self.last_index():
            raise RaftBug(f"compact {index} is out of bound lastindex({self.last_index()})")
        kept = self._entries[index - dummy]
        self._entries[: index - dummy + 1] = [Entry(kept.term, kept.index)]

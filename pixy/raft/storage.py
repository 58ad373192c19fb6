"""The core's interface to stable storage.

The core only reads; the driver writes (`pixy.raft.work`). Entries are looked up by index, so a
storage must know the term of each of its entries and of the one before its first: the *dummy*
entry, whose data may be gone. Terms never decrease, so the first index of each term is enough.
Payloads need not be in memory: `entries` may answer that they have to be loaded first.
"""

from typing import NamedTuple, Protocol

from pixy.raft.messages import ConfState, Entry, HardState, Snapshot


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

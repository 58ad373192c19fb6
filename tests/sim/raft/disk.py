"""A node's storage on a disk that loses unsynced writes.

A write is atomic, like a flush of the journal: after a crash it is there completely or not at all.
Writes survive in order: a crash keeps any prefix of the unsynced ones.

A cold storage has no entries in memory, apart from those that were loaded and not read yet. Now and
then it answers at once, and with fewer entries than were asked for. It takes time to create a
snapshot.
"""

from collections.abc import Callable
from random import Random

from pixy.raft import (
    NO_LIMIT,
    ConfState,
    EntriesNotLoaded,
    Entry,
    HardState,
    InitialState,
    Snapshot,
    SnapshotTemporarilyUnavailable,
)
from tests.raft.memory_storage import MemoryStorage

Write = Callable[[MemoryStorage], object]


class SimulatedStorage:
    """The running node's view of the storage, and what a crash leaves of it.

    Args:
        current: creates the snapshot to send to a follower.
        cold: source of randomness of a cold storage; None if all entries are in memory.

    Attributes:
        wanted: first indexes of the ranges to load.
        wants_snapshot: True if a snapshot is to be created.
    """

    def __init__(self, current: Callable[[], Snapshot], cold: Random | None) -> None:
        self._current = current
        self._cold = cold
        self.wanted: set[int] = set()
        self.wants_snapshot = False
        self._snapshot_ready = False
        self._loaded: set[int] = set()
        self._live = MemoryStorage()
        self._durable = MemoryStorage()
        self._unsynced: list[Write] = []

    # --- the core's interface --------------------------------------------------------------------

    def initial_state(self) -> InitialState:
        return self._live.initial_state()

    def first_index(self) -> int:
        return self._live.first_index()

    def last_index(self) -> int:
        return self._live.last_index()

    def term(self, index: int) -> int:
        return self._live.term(index)

    def term_start(self, index: int) -> int:
        return self._live.term_start(index)

    def entries(self, lo: int, hi: int, max_size: int) -> list[Entry]:
        entries = self._live.entries(lo, hi, max_size)
        if self._cold is None:
            return entries
        if lo not in self._loaded and self._cold.random() < 0.7:
            self.wanted.add(lo)
            raise EntriesNotLoaded
        return entries[: self._cold.randrange(len(entries)) + 1] if self._cold.random() < 0.5 else entries

    def snapshot(self) -> Snapshot:
        if self._cold is not None and not self._snapshot_ready:
            self.wants_snapshot = True
            raise SnapshotTemporarilyUnavailable
        self._snapshot_ready = False
        return self._current()

    # --- the driver's part -----------------------------------------------------------------------

    def load(self, lo: int) -> None:
        """Have the entries at `lo` in memory until `evict`."""
        self._loaded.add(lo)

    def create_snapshot(self) -> None:
        """Return the next snapshot that is asked for."""
        self._snapshot_ready = True

    def evict(self) -> None:
        """Forget what was loaded."""
        self._loaded.clear()

    def stored(self, lo: int, hi: int) -> list[Entry]:
        """Entries in [lo, hi), in memory or not."""
        return self._live.entries(lo, hi, NO_LIMIT)

    def stored_snapshot(self) -> Snapshot:
        """The snapshot that a restart begins with."""
        return self._live.snapshot()

    def write(self, state: HardState | None, snapshot: Snapshot | None, entries: list[Entry]) -> None:
        """Write these as a single write."""

        def write(storage: MemoryStorage) -> None:
            if state is not None:
                storage.set_hard_state(state)
            if snapshot is not None and snapshot.index > storage.snapshot().index:
                storage.apply_snapshot(snapshot)
            storage.append(entries)

        self._write(write)

    def write_conf_state(self, state: ConfState, index: int) -> None:
        """Store the configuration when it is applied: after a crash it may be ahead of the snapshot
        that a restart begins with.
        """
        self._write(lambda storage: storage.set_conf_state(state, index))

    def compact(self, index: int, conf_state: ConfState, data: bytes, kept: int) -> None:
        """Snapshot the applied state at `index`, and remove all but the last `kept` entries below
        it. Durable at once.
        """

        def compact(storage: MemoryStorage) -> None:
            storage.create_snapshot(index, conf_state, data)
            if index - kept >= storage.first_index():
                storage.compact(index - kept)

        self._write(compact)
        self.sync()

    def _write(self, write: Write) -> None:
        write(self._live)
        self._unsynced.append(write)

    def sync(self) -> None:
        """Make all writes durable."""
        for write in self._unsynced:
            write(self._durable)
        self._unsynced.clear()

    def crash(self, random: Random) -> None:
        """Lose all or some of the unsynced writes."""
        for write in self._unsynced[: random.randrange(len(self._unsynced) + 1)]:
            write(self._durable)
        self._unsynced.clear()
        self.wanted.clear()
        self._loaded.clear()
        self.wants_snapshot = self._snapshot_ready = False
        self._live = _copy(self._durable)


def _copy(storage: MemoryStorage) -> MemoryStorage:
    copy = MemoryStorage()
    copy._hard_state, copy._snapshot, copy._entries = (
        storage._hard_state,
        storage._snapshot,
        list(storage._entries),
    )
    copy._conf_state, copy._conf_index = storage._conf_state, storage._conf_index
    return copy

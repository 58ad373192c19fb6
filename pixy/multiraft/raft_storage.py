"""Stable state of one raft group, as the Raft core reads it: `pixy.raft.Storage` over the journal.

Of each entry the index and the term are known; terms never decrease, so they are kept as runs. The
entries that are not applied are in memory, and so are some of the applied ones, for followers that
are close behind (`entry_cache`). Older ones have to be loaded from the journal by another thread:
the core is told so, and asks again.

The driver writes here what it has written to the journal, once that is durable.

Invariants: `start` <= the applied entry <= `last_index`; the entries in memory are the last ones of
the log, without holes; no entry that is not applied is missing among them.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from pixy.entry_ids import LogPosition
from pixy.raft import (
    Compacted,
    ConfState,
    EntriesNotLoaded,
    Entry,
    EntryUnavailable,
    HardState,
    InitialState,
    Snapshot,
    SnapshotTemporarilyUnavailable,
)
from pixy.raft.sizes import limit_entries, payload_size

WantedEntries = tuple[int, int, int]
"""Entries that the core asked for: from the first index to below the second, up to a size."""


class RaftStorage:
    """Log, hard state and configuration of one raft group.

    Args:
        conf_state: its configuration.
        conf_index: index of the last configuration change included.

    Attributes:
        hard_state: term, vote and commit index.
        conf_state, conf_index: configuration, and the index up to which it includes changes.
        start: position before the first entry that is available.
        wanted: entries to be loaded, None if there are none.
        make_snapshot: creates a snapshot for a follower; None while there is none.
    """

    __slots__ = (
        "_in_memory_from",
        "_last",
        "_loaded",
        "_runs",
        "conf_index",
        "conf_state",
        "entries_in_memory",
        "hard_state",
        "make_snapshot",
        "start",
        "wanted",
    )

    def __init__(self, conf_state: ConfState, conf_index: int = 0) -> None:
        self.hard_state = HardState()
        self.conf_state = conf_state
        self.conf_index = conf_index
        self.start = LogPosition(0, 0)
        self._last = 0
        # Runs of entries of one term, as (first index, term), ascending; the first one begins at or
        # below `start`.
        self._runs: list[tuple[int, int]] = [(0, 0)]
        # The last entries of the log, from this index on.
        self._in_memory_from = 1
        self.entries_in_memory: list[Entry] = []
        # Entries loaded for a follower, until the core has been asked for its next work.
        self._loaded: list[Entry] | None = None
        self.wanted: WantedEntries | None = None
        self.make_snapshot: Callable[[], Snapshot | None] | None = None

    # --- the core's interface ---------------------------------------------------------------------

    def initial_state(self) -> InitialState:
        """Hard state and configuration."""
        return InitialState(self.hard_state, self.conf_state, self.conf_index)

    def first_index(self) -> int:
        """Index after `start`."""
        return self.start.index + 1

    def last_index(self) -> int:
        """Index of the last entry, or of `start`."""
        return self._last

    def term(self, index: int) -> int:
        """Raises Compacted or EntryUnavailable."""
        if index > self._last:
            raise EntryUnavailable
        first, term = self._runs[-1]
        return term if index >= first and index >= self.start.index else self._run(index)[1]

    def term_start(self, index: int) -> int:
        """Raises Compacted or EntryUnavailable."""
        if index > self._last:
            raise EntryUnavailable
        return max(self._run(index)[0], self.start.index)

    def _run(self, index: int) -> tuple[int, int]:
        if index < self.start.index:
            raise Compacted
        return self._runs[bisect_right(self._runs, index, key=_first_index) - 1]

    def entries(self, lo: int, hi: int, max_size: int) -> list[Entry]:
        """Raises Compacted, EntryUnavailable or EntriesNotLoaded."""
        if lo <= self.start.index:
            raise Compacted
        if hi > self._last + 1:
            raise EntryUnavailable
        at = lo - self._in_memory_from
        if at >= 0:
            return limit_entries(self.entries_in_memory[at : hi - self._in_memory_from], max_size)
        loaded = self._loaded
        if loaded is not None and loaded[0].index <= lo <= loaded[-1].index:
            first = loaded[0].index
            return limit_entries(loaded[lo - first : hi - first], max_size)
        if self.wanted is None:
            self.wanted = (lo, min(hi, self._in_memory_from), max_size)
        raise EntriesNotLoaded

    def snapshot(self) -> Snapshot:
        """Raises SnapshotTemporarilyUnavailable."""
        snapshot = None if self.make_snapshot is None else self.make_snapshot()
        if snapshot is None:
            raise SnapshotTemporarilyUnavailable
        return snapshot

    # --- the driver's part ------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> int:
        """Add consecutive entries; those from the first one's index on are replaced.

        Returns:
            Bytes of the replaced ones.
        """
        first = entries[0].index
        replaced = self._truncate(first) if first <= self._last else 0
        assert first == self._last + 1, f"entry {first} behind entry {self._last}"
        term = self._runs[-1][1]
        for entry in entries:
            if entry.term != term:
                term = entry.term
                self._runs.append((entry.index, term))
        self.entries_in_memory.extend(entries)
        self._last = entries[-1].index
        return replaced

    def append_next(self, entry: Entry) -> None:
        """Add the entry that follows the last one."""
        assert entry.index == self._last + 1, f"entry {entry.index} behind entry {self._last}"
        if entry.term != self._runs[-1][1]:
            self._runs.append((entry.index, entry.term))
        self.entries_in_memory.append(entry)
        self._last = entry.index

    def pass_by(self, entry: Entry) -> None:
        """Add the entry that follows the last one, and is not needed in memory: this node has the
        only vote, nothing is in memory, and it is being applied.
        """
        index = entry.index
        assert index == self._last + 1, f"entry {index} behind entry {self._last}"
        assert not self.entries_in_memory, f"entry {index} behind entries in memory"
        if entry.term != self._runs[-1][1]:
            self._runs.append((index, entry.term))
        self._last = index
        self._in_memory_from = index + 1

    def _truncate(self, first: int) -> int:
        assert first > self.start.index, f"entry {first} replaces entries up to {self.start.index}"
        assert first >= self._in_memory_from, f"entry {first} replaces an applied entry"
        replaced = payload_size(self.entries_in_memory[first - self._in_memory_from :])
        del self.entries_in_memory[first - self._in_memory_from :]
        while self._runs[-1][0] >= first:
            self._runs.pop()
        self._last = first - 1
        if self.wanted is not None and self.wanted[1] > first:
            self.wanted = None
        return replaced

    def release(self, index: int) -> None:
        """Drop entries up to `index`, which are applied, from memory."""
        count = min(index, self._last) + 1 - self._in_memory_from
        if count <= 0:
            return
        if count == len(self.entries_in_memory):
            self.entries_in_memory.clear()
        else:
            del self.entries_in_memory[:count]
        self._in_memory_from += count

    def load(self, entries: list[Entry] | None) -> None:
        """Keep loaded entries in memory, for the core's next question; None drops them."""
        self._loaded = entries or None

    def compact(self, index: int) -> None:
        """Move `start` up to `index`: entries up to there are not in the journal any more, and
        applied.
        """
        if index <= self.start.index:
            return
        self.start = LogPosition(self.term(index), index)
        at = bisect_right(self._runs, index, key=_first_index) - 1
        del self._runs[:at]
        self.release(index)

    def reset(self, start: LogPosition) -> None:
        """Replace the log by one that begins behind `start`, and has no entries."""
        self.start = start
        self._last = start.index
        self._runs = [(start.index, start.term)]
        self._in_memory_from = start.index + 1
        self.entries_in_memory = []
        self._loaded = self.wanted = None

    def recover(
        self, start: LogPosition, runs: Sequence[tuple[int, int]], last_index: int, tail: Sequence[Entry]
    ) -> None:
        """Take over what a start has found: entries behind `start`, of which `tail` is in memory.

        Args:
            runs: first index and term of each run of entries behind `start`.
            tail: the last entries; all behind the applied one are among them.
        """
        self.reset(start)
        for (first, term), (end, _) in pairwise([*runs, (last_index + 1, 0)]):
            if end > start.index + 1 and term != self._runs[-1][1]:
                self._runs.append((max(first, start.index + 1), term))
        self._last = last_index
        self._in_memory_from = last_index + 1 - len(tail)
        self.entries_in_memory = list(tail)

    def term_runs(self) -> list[tuple[int, int]]:
        """First index and term of each run of entries of one term."""
        return list(self._runs)

    def in_memory(self, index: int) -> Entry | None:
        """An entry, if it is in memory."""
        at = index - self._in_memory_from
        return self.entries_in_memory[at] if 0 <= at < len(self.entries_in_memory) else None

    def memory_bytes(self, above: int) -> int:
        """Payload of the entries in memory behind an index."""
        return payload_size(self.entries_in_memory[max(0, above + 1 - self._in_memory_from) :])


def _first_index(run: tuple[int, int]) -> int:
    return run[0]

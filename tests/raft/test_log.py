"""The log and its unstable tail against a plain list, under any sequence of operations."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.raft import (
    NO_LIMIT,
    Compacted,
    EntriesNotLoaded,
    Entry,
    EntryUnavailable,
    LogPosition,
    RaftBug,
    Snapshot,
)
from pixy.raft.log import RaftLog
from pixy.raft.sizes import entries_size
from pixy.raft.trace import NULL_TRACE
from tests.raft.memory_storage import MemoryStorage

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "truncate", "write", "stable", "commit", "hand out", "applied", "compact", "snapshot"]
        ),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    max_size=60,
)


@dataclass
class Model:
    """A naive log: all of its entries and the commit index.

    `first` is the index of the first entry.
    """

    entries: list[Entry] = field(default_factory=list)
    first: int = 1
    before: int = 0  # Term of the entry before the first.
    committed: int = 0
    applied: int = 0

    @property
    def last(self) -> int:
        return self.first + len(self.entries) - 1

    def term(self, index: int) -> int | None:
        if index == self.first - 1:
            return self.before
        return self.entries[index - self.first].term if self.first <= index <= self.last else None


class Driver:
    """Drives a log and its model like a node and its storage thread, with asynchronous writes."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.log = RaftLog(self.storage, NULL_TRACE)
        self.model = Model()
        self.term = 1
        self.writing: list[tuple[Snapshot | None, list[Entry], LogPosition]] = []
        self.written: list[tuple[Snapshot | None, LogPosition, int]] = []
        self.handed_out: list[list[Entry]] = []

    def append(self, count: int, back: int) -> None:
        """A leader's entries from some uncommitted index on; replaced entries get a later term."""
        model = self.model
        first = max(model.last + 1 - back, model.committed + 1)
        if first <= model.last:
            self.term += 1
        entries = [Entry(self.term, first + at, data=b"x" * (7 * at)) for at in range(count + 1)]
        previous = LogPosition(model.term(first - 1) or 0, first - 1)
        assert self.log.maybe_append(previous, entries, 0) == entries[-1].index
        model.entries[first - model.first :] = entries

    def write(self) -> None:
        """Ready: new entries are handed to the storage thread."""
        unstable = self.log.unstable
        snapshot, entries = unstable.next_snapshot(), unstable.next_entries()
        if snapshot is not None or entries:
            self.writing.append((snapshot, entries, self.log.last_position()))
            unstable.accept_in_progress()

    def stable(self) -> None:
        """The oldest write is done."""
        if self.writing:
            snapshot, entries, position = self.writing.pop(0)
            if snapshot is not None and snapshot.index > self.storage.snapshot().index:
                self.storage.apply_snapshot(snapshot)
            self.storage.append(entries)
            # A response of an earlier term is ignored; here every truncation begins a new term.
            if not self.writing or all(
                entry.term <= position.term for _, later, _ in self.writing for entry in later
            ):
                self.log.unstable.stable_to(position)
            if snapshot is not None:
                self.log.unstable.stable_snapshot_to(snapshot.index)
                self.log.applied_to(max(snapshot.index, self.log.applied))
                self.model.applied = self.log.applied

    def hand_out(self) -> None:
        log, model = self.log, self.model
        entries = log.take_stable_committed()
        if entries:
            first = entries[0].index
            assert entries == model.entries[first - model.first : first - model.first + len(entries)]
            assert first == (self.handed_out[-1][-1].index if self.handed_out else model.applied) + 1
            self.handed_out.append(entries)

    def applied(self) -> None:
        if self.handed_out:
            entries = self.handed_out.pop(0)
            self.log.applied_to(entries[-1].index)
            self.model.applied = entries[-1].index

    def compact(self, back: int) -> None:
        index = self.model.applied - back
        if (
            index >= self.model.first
            and index < self.log.unstable.offset
            and self.log.unstable.snapshot is None
        ):
            self.storage.compact(index)
            self.model.before = self.model.term(index) or 0
            self.model.entries = self.model.entries[index + 1 - self.model.first :]
            self.model.first = index + 1

    def restore(self, ahead: int) -> None:
        if self.handed_out:
            return  # The node ensures that a driver does not restore while it applies.
        index = self.model.last + 1 + ahead
        self.log.restore(Snapshot(index, self.term))
        self.model = Model([], index + 1, self.term, index, self.model.applied)

    def run(self, what: str, one: int, two: int) -> None:
        if what == "append":
            self.append(one, 0)
        elif what == "truncate":
            self.append(one, two + 1)
        elif what == "write":
            self.write()
        elif what == "stable":
            self.stable()
        elif what == "commit":
            self.model.committed = max(self.model.committed, min(self.model.committed + one, self.model.last))
            self.log.commit_to(self.model.committed)
        elif what == "hand out":
            self.hand_out()
        elif what == "applied":
            self.applied()
        elif what == "compact":
            self.compact(one)
        elif what == "snapshot" and one == 0:
            self.restore(two)


@pytest.mark.slow
@given(OPERATIONS)
def test_the_log_equals_its_model(operations: list[tuple[str, int, int]]) -> None:
    driver = Driver()
    for operation in operations:
        driver.run(*operation)
        log, model = driver.log, driver.model
        log.check_invariants()
        assert (log.first_index(), log.last_index(), log.committed) == (
            model.first,
            model.last,
            model.committed,
        )
        assert [log.term(index) for index in range(model.first - 1, model.last + 1)] == [
            model.term(index) for index in range(model.first - 1, model.last + 1)
        ]
        assert log.entries(model.first, NO_LIMIT) == model.entries
        for index in (model.first - 2, model.last + 1):
            with pytest.raises((Compacted, EntryUnavailable)):
                log.term(index)


@pytest.mark.slow
@given(OPERATIONS, st.integers(0, 100))
def test_a_limited_read_is_the_longest_prefix_that_fits(
    operations: list[tuple[str, int, int]], limit: int
) -> None:
    driver = Driver()
    for operation in operations:
        driver.run(*operation)
    model = driver.model
    if model.entries:
        got = driver.log.entries(model.first, limit)
        assert got == model.entries[: len(got)]
        assert len(got) == 1 or entries_size(got) <= limit
        assert len(got) == len(model.entries) or entries_size(model.entries[: len(got) + 1]) > limit


STEPS = st.lists(st.integers(0, 2), min_size=1, max_size=20)
"""Differences between the terms of consecutive entries."""


def log_of(terms: list[int], stored: int) -> RaftLog:
    """A log with these terms from index 1 on, the first ones of which are in the storage."""
    storage = MemoryStorage()
    entries = [Entry(term, at) for at, term in enumerate(terms, 1)]
    storage.append(entries[:stored])
    log = RaftLog(storage, NULL_TRACE)
    log.append(entries[stored:])
    return log


def terms_of(steps: list[int]) -> list[int]:
    return [1 + sum(steps[: at + 1]) for at in range(len(steps))]


@pytest.mark.slow
@given(STEPS, st.integers(0, 22), st.integers(0, 30), st.integers(0, 20), st.integers(0, 20))
def test_the_hint_is_the_last_entry_without_a_later_term(
    steps: list[int], index: int, term: int, stored: int, compacted: int
) -> None:
    terms = [0, *terms_of(steps)]
    log = log_of(terms[1:], stored)
    dummy = min(compacted, stored, len(steps))
    if dummy:
        assert isinstance(log.storage, MemoryStorage)
        log.storage.compact(dummy)
    index = expected = min(index, len(steps))
    while expected > dummy and terms[expected] > term:
        expected -= 1
    if expected == dummy and terms[expected] > term:
        expected -= 1  # The term there is not known any more.
    known = terms[expected] if expected >= dummy else 0
    if index < dummy:
        known, expected = 0, index
    assert log.find_conflict_by_term(index, term) == (known, expected)


@pytest.mark.slow
@given(STEPS, STEPS, st.integers(0, 20), st.integers(0, 20), st.integers(1, 20))
def test_a_conflict_is_the_first_entry_that_the_log_does_not_have(
    own: list[int], other: list[int], common: int, stored: int, first: int
) -> None:
    common = min(common, len(own), len(other))
    mine = terms_of(own)
    # Log matching: where the logs differ once, they have no common entry any more.
    theirs = [*mine[:common], *[term + 1000 for term in terms_of(other)[common:]]]
    entries = [Entry(term, at) for at, term in enumerate(theirs, 1)][
        min(first, common + 1, len(theirs)) - 1 :
    ]
    missing = [
        entry.index for entry in entries if entry.index > len(mine) or mine[entry.index - 1] != entry.term
    ]
    assert log_of(mine, stored).find_conflict(entries) == (missing[0] if missing else 0)


def test_a_search_for_a_conflict_asks_for_few_terms() -> None:
    class Counting(MemoryStorage):
        asked = 0

        def term(self, index: int) -> int:
            self.asked += 1
            return super().term(index)

    storage = Counting()
    storage.append([Entry(1 + at // 100, at) for at in range(1, 1000)])
    log = RaftLog(storage, NULL_TRACE)
    assert log.find_conflict_by_term(999, 5) == (5, 499)
    assert log.find_conflict([Entry(1 + at // 100 + at // 500, at) for at in range(1, 1000)]) == 500
    assert storage.asked < 40


def test_entries_that_are_not_in_memory_are_handed_out_when_they_are_loaded() -> None:
    class Cold(MemoryStorage):
        loaded = False

        def entries(self, lo: int, hi: int, max_size: int) -> list[Entry]:
            if not self.loaded:
                raise EntriesNotLoaded
            return super().entries(lo, min(hi, lo + 2), max_size)

    storage = Cold()
    storage.append([Entry(1, index) for index in range(1, 4)])
    log = RaftLog(storage, NULL_TRACE)
    log.append([Entry(1, 4)])
    log.commit_to(4)
    assert log.take_stable_committed() == []
    storage.loaded = True
    assert log.take_stable_committed() == [], "nobody has said that they are loaded"
    log.entries_loaded()
    for expected in ([1, 2], [3], []):
        assert [entry.index for entry in log.take_stable_committed()] == expected


@pytest.mark.parametrize(("limit", "count"), [(0, 1), (9, 2), (17, 2), (18, 3), (19, 3), (24, 4), (1000, 4)])
def test_a_read_across_the_end_of_the_storage_is_limited_like_any_other(limit: int, count: int) -> None:
    storage = MemoryStorage()
    log = RaftLog(storage, NULL_TRACE)
    # 4, 4, 10 and 4 bytes
    log.append([Entry(1, 1), Entry(1, 2), Entry(1, 3, data=b"1234"), Entry(1, 4)])
    storage.append(log.unstable.entries[:2])
    log.unstable.stable_to(LogPosition(1, 2))
    assert len(log.entries(1, limit)) == count


def test_replacing_a_committed_entry_is_a_bug() -> None:
    log = RaftLog(MemoryStorage(), NULL_TRACE)
    log.append([Entry(1, 1), Entry(1, 2)])
    log.commit_to(2)
    with pytest.raises(RaftBug, match=r"entry 2 conflict with committed entry \[committed\(2\)\]"):
        log.maybe_append(LogPosition(1, 1), [Entry(2, 2)], 0)
    with pytest.raises(RaftBug, match=r"after\(1\) is out of range \[committed\(2\)\]"):
        log.append([Entry(2, 2)])
    with pytest.raises(RaftBug, match=r"tocommit\(3\) is out of range \[lastIndex\(2\)\]"):
        log.commit_to(3)

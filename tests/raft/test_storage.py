"""The in-memory storage, which is also the model for all other storages."""

import pytest

from pixy.raft import NO_LIMIT, Compacted, ConfState, Entry, EntryUnavailable, RaftBug, Snapshot
from tests.raft.memory_storage import MemoryStorage, SnapshotOutOfDate


def storage(first: int = 4, last: int = 6) -> MemoryStorage:
    result = MemoryStorage()
    result.apply_snapshot(Snapshot(first - 1, 1, ConfState((1,))))
    result.append([Entry(index, index) for index in range(first, last + 1)])
    return result


def test_the_term_of_the_dummy_entry_is_available_and_none_below_it() -> None:
    stored = storage()
    assert (stored.first_index(), stored.last_index()) == (4, 6)
    assert [stored.term(index) for index in (3, 4, 6)] == [1, 4, 6]
    with pytest.raises(Compacted, match="requested index is unavailable due to compaction"):
        stored.term(2)
    with pytest.raises(EntryUnavailable, match="requested entry at index is unavailable"):
        stored.term(7)


def test_a_term_starts_at_its_first_entry_or_at_the_dummy() -> None:
    stored = storage()
    stored.append([Entry(6, 7), Entry(6, 8), Entry(9, 9)])
    assert [stored.term_start(index) for index in range(3, 10)] == [3, 4, 5, 6, 6, 6, 9]
    stored.compact(7)
    assert [stored.term_start(index) for index in (7, 8, 9)] == [7, 7, 9]
    with pytest.raises(Compacted):
        stored.term_start(6)
    with pytest.raises(EntryUnavailable):
        stored.term_start(10)


def test_entries_are_limited_in_size_but_at_least_one_is_returned() -> None:
    stored = storage()
    assert [entry.index for entry in stored.entries(4, 7, NO_LIMIT)] == [4, 5, 6]
    assert [entry.index for entry in stored.entries(4, 7, 0)] == [4]
    assert [entry.index for entry in stored.entries(4, 7, 8)] == [4, 5]
    with pytest.raises(Compacted):
        stored.entries(3, 5, NO_LIMIT)
    with pytest.raises(RaftBug, match=r"entries' hi\(8\) is out of bound lastindex\(6\)"):
        stored.entries(4, 8, NO_LIMIT)
    with pytest.raises(EntryUnavailable):
        storage(4, 3).entries(4, 4, NO_LIMIT)


def test_an_append_replaces_everything_from_its_first_entry_on() -> None:
    stored = storage()
    stored.append([Entry(9, 5)])
    assert [(entry.term, entry.index) for entry in stored.entries(4, 6, NO_LIMIT)] == [(4, 4), (9, 5)]
    stored.append([Entry(1, 2), Entry(1, 3), Entry(9, 4)])
    assert [(entry.term, entry.index) for entry in stored.entries(4, 5, NO_LIMIT)] == [(9, 4)]
    stored.append([Entry(1, 2)])
    assert stored.last_index() == 4
    with pytest.raises(RaftBug, match=r"missing log entry \[last: 4, append at: 6\]"):
        stored.append([Entry(9, 6)])


def test_compaction_keeps_the_last_compacted_entry_as_the_dummy() -> None:
    stored = storage()
    stored.compact(5)
    assert (stored.first_index(), stored.term(5)) == (6, 5)
    with pytest.raises(Compacted):
        stored.compact(5)
    with pytest.raises(RaftBug, match=r"compact 7 is out of bound lastindex\(6\)"):
        stored.compact(7)


def test_snapshots_only_get_newer() -> None:
    stored = storage()
    made = stored.create_snapshot(5, None, b"state")
    assert made == Snapshot(5, 5, ConfState((1,)), b"state")
    assert stored.snapshot() == made
    with pytest.raises(SnapshotOutOfDate, match="requested index is older than the existing snapshot"):
        stored.create_snapshot(5, None, b"")
    with pytest.raises(SnapshotOutOfDate):
        stored.apply_snapshot(Snapshot(5, 5))
    with pytest.raises(RaftBug, match=r"snapshot 9 is out of bound lastindex\(6\)"):
        stored.create_snapshot(9, None, b"")
    stored.apply_snapshot(Snapshot(9, 9))
    assert (stored.first_index(), stored.last_index(), stored.term(9)) == (10, 9, 9)

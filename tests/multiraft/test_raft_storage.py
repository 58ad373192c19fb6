"""A group's log as the Raft core sees it: terms of everything, entries that are in memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.entry_ids import LogPosition
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import (
    NO_LIMIT,
    Compacted,
    ConfState,
    EntriesNotLoaded,
    Entry,
    EntryUnavailable,
    InitialState,
    RaftError,
    Snapshot,
    SnapshotTemporarilyUnavailable,
)
from pixy.raft import HardState as Stored
from tests.raft.memory_storage import MemoryStorage

ALONE = ConfState((1,))


def entries(term: int, first: int, count: int) -> list[Entry]:
    return [Entry(term, index, data=b"%d" % index) for index in range(first, first + count)]


def storage_of(*runs: tuple[int, int]) -> RaftStorage:
    """Storage with entries: (term, count) of each run."""
    storage = RaftStorage(ALONE)
    for term, count in runs:
        storage.append(entries(term, storage.last_index() + 1, count))
    return storage


def test_a_new_group_is_empty() -> None:
    storage = RaftStorage(ALONE, 7)
    assert storage.initial_state() == InitialState(Stored(), ALONE, 7)
    assert (storage.first_index(), storage.last_index(), storage.term(0)) == (1, 0, 0)
    with pytest.raises(EntryUnavailable):
        storage.term(1)


def test_terms_are_known_by_runs() -> None:
    storage = storage_of((1, 3), (2, 2), (5, 1))
    assert [storage.term(index) for index in range(7)] == [0, 1, 1, 1, 2, 2, 5]
    assert [storage.term_start(index) for index in range(1, 7)] == [1, 1, 1, 4, 4, 6]


def test_terms_behind_the_last_entry_are_unknown() -> None:
    with pytest.raises(EntryUnavailable):
        storage_of((1, 3)).term_start(4)


def test_an_own_entry_may_begin_a_term() -> None:
    one, other = storage_of((1, 2)), storage_of((1, 2))
    one.append_next(Entry(4, 3))
    other.release(2)
    other.pass_by(Entry(4, 3))
    for storage in (one, other):
        assert (storage.last_index(), storage.term(2), storage.term(3)) == (3, 1, 4)
    assert [len(storage.entries_in_memory) for storage in (one, other)] == [3, 0]


def test_an_entry_that_passes_by_has_to_be_loaded() -> None:
    storage = storage_of((1, 2))
    storage.release(2)
    storage.pass_by(Entry(1, 3))
    with pytest.raises(EntriesNotLoaded):
        storage.entries(3, 4, NO_LIMIT)
    storage.append_next(Entry(1, 4))
    assert storage.entries(4, 5, NO_LIMIT) == [Entry(1, 4)]


@pytest.mark.parametrize("entry", [Entry(1, 2), Entry(1, 4)])
def test_an_own_entry_follows_the_last_one(entry: Entry) -> None:
    storage = storage_of((1, 2))
    with pytest.raises(AssertionError, match="behind entry 2"):
        storage.append_next(entry)
    storage.release(2)
    with pytest.raises(AssertionError, match="behind entry 2"):
        storage.pass_by(entry)


def test_an_entry_does_not_pass_by_others_in_memory() -> None:
    with pytest.raises(AssertionError, match="in memory"):
        storage_of((1, 2)).pass_by(Entry(1, 3))


@pytest.mark.parametrize(("replaced", "wanted"), [(4, None), (6, (2, 5, 1000))])
def test_replaced_entries_are_not_loaded(replaced: int, wanted: tuple[int, int, int] | None) -> None:
    storage = storage_of((1, 6))
    storage.release(3)
    with pytest.raises(EntriesNotLoaded):
        storage.entries(2, 5, 1000)
    storage.wanted = (2, 5, 1000)
    storage.append([Entry(2, replaced)])
    assert storage.wanted == wanted


def test_released_entries_keep_their_terms_and_have_to_be_loaded() -> None:
    storage = storage_of((1, 3), (2, 2))
    storage.release(4)
    assert storage.term(2) == 1
    assert storage.entries(5, 6, NO_LIMIT) == entries(2, 5, 1)
    with pytest.raises(EntriesNotLoaded):
        storage.entries(2, 6, 1000)
    assert storage.wanted == (2, 5, 1000)


def test_the_first_question_for_entries_is_loaded_first() -> None:
    storage = storage_of((1, 9))
    storage.release(9)
    for lo in (3, 7):
        with pytest.raises(EntriesNotLoaded):
            storage.entries(lo, 10, 1000)
    assert storage.wanted == (3, 10, 1000)


def test_loaded_entries_are_served_until_they_are_dropped() -> None:
    storage = storage_of((1, 9))
    storage.release(9)
    storage.load(entries(1, 3, 4))
    assert storage.entries(4, 10, NO_LIMIT) == entries(1, 4, 3)
    with pytest.raises(EntriesNotLoaded):
        storage.entries(2, 10, NO_LIMIT)
    storage.load(None)
    with pytest.raises(EntriesNotLoaded):
        storage.entries(4, 10, NO_LIMIT)


def test_a_new_leader_replaces_entries_and_their_terms() -> None:
    storage = storage_of((1, 3), (2, 3))
    assert storage.append(entries(4, 3, 1)) == 4, "bytes of the replaced ones"
    assert storage.last_index() == 3
    assert [storage.term(index) for index in range(1, 4)] == [1, 1, 4]


def test_an_applied_entry_is_never_replaced() -> None:
    storage = storage_of((1, 3))
    storage.release(2)
    with pytest.raises(AssertionError, match="entry 2 replaces an applied entry"):
        storage.append(entries(2, 2, 1))


def test_a_hole_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="entry 5 behind entry 3"):
        storage_of((1, 3)).append(entries(1, 5, 1))


def test_compaction_keeps_the_term_of_the_entry_before_the_first() -> None:
    storage = storage_of((1, 3), (2, 3))
    storage.compact(4)
    assert storage.start == LogPosition(2, 4)
    assert (storage.first_index(), storage.term(4)) == (5, 2)
    for refused in (storage.term, storage.term_start):
        with pytest.raises(Compacted):
            refused(3)
    with pytest.raises(Compacted):
        storage.entries(4, 6, NO_LIMIT)
    assert storage.entries(5, 7, NO_LIMIT) == entries(2, 5, 2)
    storage.compact(2)
    assert storage.start == LogPosition(2, 4), "it never moves back"


def test_a_reset_begins_the_log_anew() -> None:
    storage = storage_of((1, 3))
    storage.reset(LogPosition(7, 90))
    assert (storage.first_index(), storage.last_index(), storage.term(90)) == (91, 90, 7)
    storage.append(entries(8, 91, 2))
    assert [storage.term(index) for index in (90, 91, 92)] == [7, 8, 8]


def test_a_start_takes_over_a_log_of_which_the_tail_is_in_memory() -> None:
    storage = RaftStorage(ALONE)
    storage.recover(LogPosition(1, 2), [(1, 1), (4, 2), (6, 5)], 8, entries(5, 7, 2))
    assert storage.start == LogPosition(1, 2)
    assert [storage.term(index) for index in range(2, 9)] == [1, 1, 2, 2, 5, 5, 5]
    assert storage.entries(7, 9, NO_LIMIT) == entries(5, 7, 2)
    with pytest.raises(EntriesNotLoaded):
        storage.entries(6, 9, NO_LIMIT)
    assert (storage.memory_bytes(0), storage.memory_bytes(7), storage.memory_bytes(8)) == (2, 1, 0)


def test_a_start_without_a_tail_knows_the_last_entry() -> None:
    storage = RaftStorage(ALONE)
    storage.recover(LogPosition(3, 9), [(3, 5)], 9, [])
    assert (storage.first_index(), storage.last_index(), storage.term(9)) == (10, 9, 3)


def test_a_snapshot_is_unavailable_until_somebody_makes_it() -> None:
    storage = RaftStorage(ALONE)
    with pytest.raises(SnapshotTemporarilyUnavailable):
        storage.snapshot()
    storage.make_snapshot = lambda: None
    with pytest.raises(SnapshotTemporarilyUnavailable):
        storage.snapshot()
    snapshot = Snapshot(4, 2, ALONE)
    storage.make_snapshot = lambda: snapshot
    assert storage.snapshot() is snapshot


def answer(question: object) -> object:
    try:
        return question() if callable(question) else None
    except RaftError as error:
        return type(error)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "replace", "compact", "release"]), st.integers(0, 9)),
        max_size=40,
    )
)
def test_it_answers_as_a_storage_that_has_everything_in_memory(steps: list[tuple[str, int]]) -> None:
    storage, model = RaftStorage(ALONE), MemoryStorage()
    term = applied = 0
    for what, number in steps:
        last = model.last_index()
        if what == "append" or (what == "replace" and last - applied < 1):
            term += number % 2
            new = entries(max(term, 1), last + 1, number % 4 + 1)
        elif what == "replace":
            term += 1
            new = entries(term, applied + 1 + number % (last - applied), 2)
        else:
            new = []
            applied = min(last, applied + number)
            storage.release(applied)
            if what == "compact" and applied > model.first_index() - 1:
                storage.compact(applied)
                model.compact(applied)
        if new:
            storage.append(new)
            model.append(new)
        assert (storage.first_index(), storage.last_index()) == (model.first_index(), model.last_index())
        for index in range(model.last_index() + 2):
            for name in ("term", "term_start"):
                assert answer(lambda name=name, index=index: getattr(storage, name)(index)) == answer(
                    lambda name=name, index=index: getattr(model, name)(index)
                ), (name, index)
        for lo in range(applied + 1, model.last_index() + 1):
            assert storage.entries(lo, model.last_index() + 1, 20) == model.entries(
                lo, model.last_index() + 1, 20
            )

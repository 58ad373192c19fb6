"""The unstable tail of the log: acknowledgements of entries that were replaced meanwhile."""

import pytest

from pixy.raft import NULL_TRACE, Entry, LogPosition, RaftBug, Snapshot
from pixy.raft.unstable import Unstable


def unstable(*terms: int, first: int = 5) -> Unstable:
    result = Unstable(first, NULL_TRACE)
    if terms:
        result.truncate_and_append([Entry(term, first + at) for at, term in enumerate(terms)])
    return result


def test_an_acknowledged_entry_and_all_before_it_are_removed() -> None:
    log = unstable(1, 1, 1)
    log.accept_in_progress()
    log.stable_to(LogPosition(1, 6))
    assert [entry.index for entry in log.entries] == [7]
    log.check_invariants()


def test_an_acknowledgement_of_a_replaced_entry_is_ignored() -> None:
    log = unstable(1, 1)
    log.accept_in_progress()
    log.truncate_and_append([Entry(2, 5)])
    log.stable_to(LogPosition(1, 5))
    assert log.entries == [Entry(2, 5)]
    assert log.next_entries() == [Entry(2, 5)]


def test_entries_replaced_while_being_written_are_handed_out_again() -> None:
    log = unstable(1, 1, 1)
    log.accept_in_progress()
    log.truncate_and_append([Entry(2, 6), Entry(2, 7)])
    assert log.next_entries() == [Entry(2, 6), Entry(2, 7)]
    log.check_invariants()


def test_entries_below_the_first_unstable_one_replace_stored_ones() -> None:
    log = unstable(1)
    log.truncate_and_append([Entry(2, 3), Entry(2, 4)])
    assert (log.offset, [entry.index for entry in log.entries]) == (3, [3, 4])
    assert log.maybe_term(5) is None


def test_a_snapshot_determines_the_first_index_until_it_is_stored() -> None:
    log = unstable(1)
    log.restore(Snapshot(9, 2))
    assert (log.maybe_first_index(), log.maybe_last_index(), log.maybe_term(9)) == (10, 9, 2)
    log.stable_snapshot_to(8)
    assert log.next_snapshot() is not None
    log.accept_in_progress()
    assert log.next_snapshot() is None
    log.stable_snapshot_to(9)
    assert (log.maybe_first_index(), log.maybe_last_index()) == (None, None)


def test_reading_missing_entries_is_a_bug() -> None:
    with pytest.raises(RaftBug, match=r"unstable.slice\[4,6\) out of bound \[5,6\]"):
        unstable(1).slice(4, 6)
    with pytest.raises(RaftBug, match=r"invalid unstable.slice 6 > 5"):
        unstable(1).slice(6, 5)


def test_entries_handed_out_are_not_modified_by_later_appends() -> None:
    log = unstable(1)
    handed_out = log.next_entries()
    log.accept_in_progress()
    log.truncate_and_append([Entry(1, 6)])
    assert handed_out == [Entry(1, 5)]

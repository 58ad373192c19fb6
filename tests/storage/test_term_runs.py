"""Runs of terms, compared with a model that keeps the term of each index."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.storage.journal.term_runs import TermRun, TermRuns, joined

ADDED = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3)), max_size=20)


def runs_of(terms: dict[int, int], last: int) -> list[TermRun]:
    """Runs of the consecutive indexes that end with `last`."""
    first = last
    while first in terms:
        first -= 1
    runs: list[TermRun] = []
    for index in range(first + 1, last + 1):
        runs = joined(runs, [(index, terms[index])])
    return runs


@pytest.mark.slow
@given(ADDED, st.none() | st.integers(0, 13), ADDED)
def test_runs_are_those_of_the_model(
    before: list[tuple[int, int]], dropped: int | None, after: list[tuple[int, int]]
) -> None:
    runs, model = TermRuns(), dict[int, int]()
    for index, term in before:
        runs.add(index, term)
        model.setdefault(index, term)
    if dropped is not None:
        runs.drop(dropped)
        model = {index: term for index, term in model.items() if index > dropped}
    for index, term in after:
        runs.add(index, term)
        model.setdefault(index, term)
    assert runs.last == max(model, default=0)
    for last in range(14):
        assert runs.ending_with(last) == runs_of(model, last)


def test_ascending_entries_of_one_term_are_one_run() -> None:
    runs = TermRuns()
    for index in range(5, 1000):
        runs.add(index, 1 + (index >= 500))
    assert len(runs._runs) == 2
    assert runs.ending_with(999) == [(5, 1), (500, 2)]


def test_runs_of_one_term_at_a_joint_become_one() -> None:
    assert joined([(1, 1), (4, 2)], [(6, 2), (9, 3)]) == [(1, 1), (4, 2), (9, 3)]
    assert joined([(1, 1)], [(6, 2)]) == [(1, 1), (6, 2)]
    assert joined([], [(6, 2)]) == joined([(6, 2)], []) == [(6, 2)]

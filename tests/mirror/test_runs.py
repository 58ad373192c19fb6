"""The map of offsets, against a list of all records."""

from hypothesis import given
from hypothesis import strategies as st

from pixy.mirror.runs import RUNS_MAX, Run, add_run, translated

RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5)), max_size=400)
"""Gaps at the source and at the target before a run, and its records."""


def added(gaps: list[tuple[int, int, int]]) -> tuple[list[Run], list[tuple[int, int]]]:
    """The map, and source and target offset of every record."""
    runs: list[Run] = []
    records: list[tuple[int, int]] = []
    source = target = 0
    for source_gap, target_gap, count in gaps:
        source, target = source + source_gap, target + target_gap
        add_run(runs, Run(source, target, count))
        records += [(source + at, target + at) for at in range(count)]
        source, target = source + count, target + count
    return runs, records


@given(RUNS)
def test_an_offset_is_never_behind_that_of_its_record(gaps: list[tuple[int, int, int]]) -> None:
    runs, records = added(gaps)
    assert len(runs) <= RUNS_MAX
    end = records[-1][0] + 4 if records else 0
    newest = 0
    for offset in range(end):
        found = translated(runs, offset)
        assert found is not None
        assert found >= newest, "it goes back"
        newest = found
        later = [target for source, target in records if source >= offset]
        if later:
            assert found <= later[0]
        else:
            assert found == records[-1][1] + 1


@given(RUNS)
def test_few_runs_are_exact(gaps: list[tuple[int, int, int]]) -> None:
    runs, records = added(gaps[:50])
    for source, target in records:
        found = translated(runs, source)
        # A gap at the target alone is in front of its record.
        assert found == target or (found is not None and found < target and (source, target) == records[0])


def test_records_that_follow_each_other_in_both_are_one_run() -> None:
    runs: list[Run] = []
    for at in range(1000):
        add_run(runs, Run(5 + 3 * at, 3 * at, 3))
    assert runs == [Run(5, 0, 3000)]


def test_nothing_was_copied() -> None:
    assert translated([], 7) is None


def test_a_group_before_the_first_record_goes_to_that() -> None:
    assert translated([Run(100, 0, 5)], 3) == 0

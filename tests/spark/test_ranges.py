"""Ranges are packed into tasks: each record is in exactly one, and the limits hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.spark.ranges import PlannedRange, plan_tasks


def ranges_of(*sizes: int) -> list[PlannedRange]:
    return [PlannedRange("t", partition, 100, 100 + size, b"id") for partition, size in enumerate(sizes)]


SIZES = st.lists(st.integers(0, 50_000), max_size=12)
LIMITS = st.none() | st.integers(1, 60)


@pytest.mark.slow
@given(SIZES, LIMITS, st.none() | st.integers(500, 60_000))
def test_every_record_is_in_one_task_and_the_limits_hold(
    sizes: list[int], least: int | None, most: int | None
) -> None:
    tasks = plan_tasks(ranges_of(*sizes), least, most)
    pieces = sorted(piece for task in tasks for piece in task)
    joined: dict[int, list[tuple[int, int]]] = {}
    for piece in pieces:
        assert piece.records > 0
        assert most is None or piece.records <= most
        joined.setdefault(piece.partition, []).append((piece.first, piece.end))
    for partition, size in enumerate(sizes):
        bounds = [100, *(end for _, end in joined.get(partition, []))]
        assert [first for first, _ in joined.get(partition, [])] == bounds[:-1]
        assert bounds[-1] == 100 + size
    if least is not None:
        assert len(tasks) >= min(least, sum(sizes))


def test_small_ranges_share_a_task() -> None:
    assert [len(task) for task in plan_tasks(ranges_of(10, 0, 20, 30), None, None)] == [3]


def test_a_large_range_has_a_task_of_its_own() -> None:
    assert [
        [each.partition for each in task]
        for task in plan_tasks(ranges_of(9_000, 20_000, 900, 10, 9_500), None, None)
    ] == [
        [0],
        [1],
        [2, 3],
        [4],
    ]


def test_large_ranges_are_split_when_more_tasks_are_requested() -> None:
    tasks = plan_tasks(ranges_of(900, 100), 10, None)
    assert [task[0].records for task in tasks] == [100] * 10


def test_empty_ranges_need_no_task() -> None:
    assert plan_tasks(ranges_of(0, 0), 5, None) == []

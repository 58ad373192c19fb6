"""A node's clock: never backwards, and forward only when it is sure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.node_time import NodeTime
from tests.fakes.clock import FakeClock

HOUR = 3600
HOUR_MS = HOUR * 1000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def time(clock: FakeClock) -> NodeTime:
    return NodeTime(clock)


def test_it_begins_with_the_wall_clock_and_advances_with_monotonic_time(
    clock: FakeClock, time: NodeTime
) -> None:
    assert time.now_ms() == clock.wall_ms()
    clock.advance(1.234)
    assert time.now_ms() == clock.wall_ms()


@pytest.mark.parametrize("later", [0, HOUR, 100 * HOUR])
def test_a_wall_clock_that_is_set_back_does_not_count(clock: FakeClock, time: NodeTime, later: float) -> None:
    expected = clock.wall_ms() + later * 1000
    clock.step_wall(-5 * HOUR_MS)
    time.now_ms()
    clock.advance(later)
    assert time.now_ms() == expected


def test_a_wall_clock_that_is_set_forward_counts_after_an_hour(clock: FakeClock, time: NodeTime) -> None:
    before = time.now_ms()
    clock.step_wall(48 * HOUR_MS)
    assert time.now_ms() == before
    clock.advance(HOUR - 1)
    assert time.now_ms() == before + (HOUR - 1) * 1000
    clock.advance(1)
    assert time.now_ms() == clock.wall_ms() == before + 49 * HOUR_MS
    clock.advance(5)
    assert time.now_ms() == clock.wall_ms()


def test_the_hour_restarts_when_the_wall_clock_was_right_in_between(clock: FakeClock, time: NodeTime) -> None:
    before = time.now_ms()
    for _ in range(3):
        clock.step_wall(48 * HOUR_MS)
        time.now_ms()
        clock.advance(HOUR - 1)
        time.now_ms()
        clock.step_wall(-48 * HOUR_MS)
        time.now_ms()
    assert time.now_ms() == before + 3 * (HOUR - 1) * 1000


def test_a_wall_clock_slightly_ahead_is_ignored(clock: FakeClock, time: NodeTime) -> None:
    before = time.now_ms()
    clock.step_wall(59_999)
    time.now_ms()
    clock.advance(2 * HOUR)
    assert time.now_ms() == before + 2 * HOUR_MS


def test_setting_the_clock_forward_is_logged_once(
    clock: FakeClock, time: NodeTime, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.step_wall(90_000)
    for _ in range(5):
        time.now_ms()
    assert capsys.readouterr().out.count("was set forward") == 1


def test_the_age_of_records_is_never_measured_ahead_of_the_wall_clock(
    clock: FakeClock, time: NodeTime
) -> None:
    assert time.record_ms() == clock.wall_ms()
    clock.step_wall(-5 * HOUR_MS)
    stamped_ms = clock.wall_ms()
    clock.advance(60)
    assert time.record_ms() - stamped_ms == 60_000
    clock.step_wall(48 * HOUR_MS)
    assert time.record_ms() == time.now_ms() < clock.wall_ms()


@pytest.mark.slow
@given(st.lists(st.one_of(st.floats(0, 2 * HOUR), st.integers(-100 * HOUR_MS, 100 * HOUR_MS)), max_size=30))
def test_it_ascends_whatever_the_wall_clock_does(steps: list[float | int]) -> None:
    clock = FakeClock()
    time = NodeTime(clock)
    last = 0
    for step in steps:
        if isinstance(step, float):
            clock.advance(step)
        else:
            clock.step_wall(step)
        now = time.now_ms()
        assert now >= last
        last = now

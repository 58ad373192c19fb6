"""A node's clock: corrected by those of the other nodes, and followed only when that is sure."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.replicas.node_time import CLOCK_OFF_MS, NodeTime, OtherClocks, agreed_time
from tests.fakes.clock import FakeClock

MINUTE_MS = 60_000
HOUR = 3600
HOUR_MS = HOUR * 1000
DAY_MS = 24 * HOUR_MS
NOW = 1_700_000_000_000


class Bench:
    """A node, and the clocks of the others that it hears of.

    Args:
        own_ms: error of its clock.
        others_ms: errors of the others'.
        nodes: number of nodes; by default all of these.
        noted_ms: error of the time that it noted before its start.
        steady_ms: errors of the steady times that the others tell, the first ones of them; None for
            one that tells none.
    """

    def __init__(
        self,
        *others_ms: int,
        own_ms: int = 0,
        nodes: int | None = None,
        noted_ms: int | None = None,
        steady_ms: Sequence[int | None] = (),
    ) -> None:
        self.clock = FakeClock(wall_ms=NOW)
        self.clock.set_wall(own_ms)
        self.others_ms = list(others_ms)
        self.nodes = len(others_ms) + 1 if nodes is None else nodes
        self.steady_ms = steady_ms
        self.time = NodeTime(self.clock, has_peers=True)
        self.time.others = self._others
        if noted_ms is not None:
            self.time.resume(NOW + noted_ms)
        self.time.refresh()

    def _others(self) -> OtherClocks:
        true = self.clock.true_ms() - self.clock.monotonic_ns() // 1_000_000
        clocks = [true + error for error in self.others_ms]
        told = [
            (clock, true + steady)
            for clock, steady in zip(clocks, self.steady_ms, strict=False)
            if steady is not None
        ]
        return OtherClocks(self.nodes, clocks, told)

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.time.refresh()

    @property
    def stamp_error_ms(self) -> int:
        """Error of what this node stamps."""
        assert self.time.wall_ns() // 1_000_000 == self.time.wall_ms()
        return self.time.wall_ms() - self.clock.true_ms()

    @property
    def age_error_ms(self) -> int | None:
        """Error of the time that ages are measured by, None if nothing expires."""
        now_ms = self.time.age_ms()
        return None if now_ms is None else now_ms - self.clock.true_ms()


# --- what is agreed on ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clocks", "nodes", "agreed"),
    [
        ([0], 1, 0),
        ([0], 2, None),
        ([0], 0, None),
        ([0, 10], 2, 5),
        ([0, 10], 3, 5),
        ([0, 10], 4, None),  # two of four are no majority
        ([0, DAY_MS], 2, None),  # of two nobody knows who is right
        ([0, 0, DAY_MS], 3, 0),
        ([0, DAY_MS, -DAY_MS], 3, None),
        ([0, 0, DAY_MS], 4, None),
        ([0, 0, DAY_MS, DAY_MS], 4, None),
        ([0, 0, 0, DAY_MS], 4, 0),
        ([0, 0, 0, DAY_MS, -DAY_MS], 5, 0),
        ([0, CLOCK_OFF_MS, 2 * CLOCK_OFF_MS], 3, CLOCK_OFF_MS),
        ([0, CLOCK_OFF_MS + 1, 3 * CLOCK_OFF_MS], 3, None),
    ],
)
def test_a_majority_of_all_nodes_agrees_on_the_median_of_the_known_clocks(
    clocks: list[int], nodes: int, agreed: int | None
) -> None:
    assert agreed_time(clocks, nodes) == agreed


@pytest.mark.slow
@given(
    st.lists(st.integers(-CLOCK_OFF_MS // 2, CLOCK_OFF_MS // 2), min_size=2, max_size=6),
    st.lists(st.integers(-(10**15), 10**15), max_size=5),
)
def test_a_minority_cannot_move_it_beyond_the_clocks_of_the_others(
    right: list[int], wrong: list[int]
) -> None:
    wrong = wrong[: len(right) - 1]
    agreed = agreed_time([*right, *wrong], len(right) + len(wrong))
    assert agreed is not None
    assert min(right) <= agreed <= max(right)


# --- one wrong clock ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error_ms", [-8 * DAY_MS, -3 * HOUR_MS, -MINUTE_MS - 10, MINUTE_MS + 10, 10 * DAY_MS]
)
def test_a_node_whose_clock_is_off_from_the_start_stamps_by_the_others_and_lets_nothing_expire(
    error_ms: int,
) -> None:
    bench = Bench(5, -5, own_ms=error_ms)
    for _ in range(3):
        assert (abs(bench.stamp_error_ms) <= 5, bench.age_error_ms) == (True, None)
        assert bench.time.is_off(bench.time.own_ahead_ms)
        bench.later(5 * HOUR)


@pytest.mark.parametrize("error_ms", [-8 * DAY_MS, -3 * HOUR_MS, 3 * HOUR_MS, 10 * DAY_MS])
def test_a_clock_that_is_set_wrong_changes_no_stamp_not_even_before_the_next_look(error_ms: int) -> None:
    bench = Bench(0, 0)
    bench.later(1)
    bench.clock.step_wall(error_ms)
    assert bench.stamp_error_ms == 0
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, None)
    bench.later(2 * HOUR)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, None)
    bench.clock.set_wall(0)
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, 0)
    assert not bench.time.is_off(bench.time.own_ahead_ms)


@pytest.mark.parametrize("error_ms", [-8 * DAY_MS, 10 * DAY_MS])
def test_a_wrong_clock_elsewhere_changes_nothing(error_ms: int) -> None:
    bench = Bench(0, error_ms)
    for _ in range(3):
        assert (bench.stamp_error_ms, bench.age_error_ms) == (0, 0)
        bench.later(5 * HOUR)


@pytest.mark.parametrize("per_second_ms", [-10, 10])
def test_a_clock_that_drifts_away_is_followed_for_a_minute_at_most(per_second_ms: int) -> None:
    bench = Bench(0, 0)
    for _ in range(2 * HOUR // 10):
        bench.clock.step_wall(10 * per_second_ms)
        bench.later(10)
        assert abs(bench.stamp_error_ms) <= CLOCK_OFF_MS
        assert abs(bench.age_error_ms or 0) <= CLOCK_OFF_MS
    assert bench.age_error_ms is None


@pytest.mark.parametrize("error_ms", [-DAY_MS, -2 * MINUTE_MS, 2 * MINUTE_MS, DAY_MS])
def test_files_get_the_time_of_a_stamp_while_the_clock_of_their_machine_is_wrong(error_ms: int) -> None:
    bench = Bench(0, 100)
    assert bench.time.file_time_ms() is None
    bench.clock.step_wall(error_ms)
    assert bench.time.file_time_ms() == bench.time.wall_ms(), "also before the next look"
    bench.later(1)
    assert bench.time.file_time_ms() == bench.clock.true_ms()
    bench.clock.set_wall(0)
    assert bench.time.file_time_ms() is None
    bench.clock.set_wall(MINUTE_MS // 2)
    assert bench.time.file_time_ms() is None


def test_small_corrections_of_a_clock_are_followed_at_once() -> None:
    bench = Bench(0, 0)
    for error_ms in (400, -30_000, 29_000):
        bench.clock.set_wall(error_ms)
        bench.later(1)
        assert (bench.stamp_error_ms, bench.age_error_ms) == (error_ms, error_ms)


# --- no majority ----------------------------------------------------------------------------------


@pytest.mark.parametrize("errors_ms", [(), (DAY_MS,), (DAY_MS, -DAY_MS)])
def test_without_a_majority_the_time_goes_on_and_nothing_expires(errors_ms: tuple[int, ...]) -> None:
    bench = Bench(0, 0)
    bench.others_ms = list(errors_ms)
    bench.clock.step_wall(-8 * DAY_MS)
    bench.later(5 * HOUR)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, None)


@pytest.mark.parametrize(("own_ms", "other_ms"), [(-8 * DAY_MS, 0), (0, -8 * DAY_MS)])
def test_of_two_clocks_that_never_agreed_the_later_one_counts_for_stamps(own_ms: int, other_ms: int) -> None:
    bench = Bench(other_ms, own_ms=own_ms)
    bench.later(5 * HOUR)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, None)


def test_a_later_clock_counts_for_stamps_also_once_its_node_is_silent() -> None:
    bench = Bench(0, own_ms=-8 * DAY_MS, nodes=3)
    bench.others_ms = []
    bench.later(HOUR)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, None)


def test_a_node_that_is_not_known_yet_agrees_with_nobody() -> None:
    bench = Bench(own_ms=DAY_MS, nodes=0)
    bench.later(5 * HOUR)
    assert bench.age_error_ms is None
    settled = [bench.time.is_settled]
    bench.nodes, bench.others_ms = 3, [0, 0]
    settled.append(bench.time.is_settled)
    assert (settled, bench.stamp_error_ms) == ([False, True], 0)


@pytest.mark.parametrize("own_ms", [-40 * DAY_MS, 40 * DAY_MS])
def test_a_node_that_was_alone_stamps_by_the_latest_clock_when_others_disagree(own_ms: int) -> None:
    bench = Bench(own_ms=own_ms)
    assert bench.stamp_error_ms == own_ms
    bench.others_ms, bench.nodes = [0, HOUR_MS], 3
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (max(own_ms, HOUR_MS), None)


def test_the_first_nodes_beside_a_lone_one_correct_it_at_once() -> None:
    bench = Bench(own_ms=10 * DAY_MS, nodes=1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (10 * DAY_MS, 10 * DAY_MS)
    bench.nodes, bench.others_ms = 3, [0, 0]
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, None)


@pytest.mark.parametrize(
    ("others_ms", "nodes", "settled"),
    [((), 3, False), ((0,), 3, True), ((DAY_MS,), 3, False), ((DAY_MS,), 2, True), ((), 1, True)],
)
def test_the_time_is_settled_once_it_is_agreed_on_or_all_clocks_are_known(
    others_ms: tuple[int, ...], nodes: int, *, settled: bool
) -> None:
    assert Bench(*others_ms, nodes=nodes).time.is_settled is settled


# --- all clocks, or that of a lone node -----------------------------------------------------------


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("error_ms", [-48 * HOUR_MS, 48 * HOUR_MS])
def test_a_jump_of_all_clocks_counts_after_an_hour(others: int, error_ms: int) -> None:
    bench = Bench(*[0] * others)
    bench.clock.set_wall(error_ms)
    bench.others_ms = [error_ms] * others
    late_ms, early_ms = max(0, error_ms), min(0, error_ms)
    for seconds in (0, HOUR - 1):
        bench.later(seconds)
        assert (bench.stamp_error_ms, bench.age_error_ms) == (late_ms, early_ms)
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (error_ms, error_ms)


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("error_ms", [-48 * HOUR_MS, 48 * HOUR_MS])
def test_after_a_start_the_clocks_are_compared_with_the_time_before_it(others: int, error_ms: int) -> None:
    bench = Bench(*[error_ms] * others, own_ms=error_ms, noted_ms=0)
    for seconds in (0, HOUR - 1):
        bench.later(seconds)
        assert (bench.stamp_error_ms, bench.age_error_ms) == (max(0, error_ms), min(0, error_ms))
        assert bench.time.steady_ms() == bench.clock.true_ms()
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (error_ms, error_ms)


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("noted_ms", [None, -MINUTE_MS, MINUTE_MS])
def test_the_clocks_count_at_once_after_a_start_in_the_same_minute(others: int, noted_ms: int | None) -> None:
    bench = Bench(*[0] * others, noted_ms=noted_ms)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, 0)


def test_without_a_majority_after_a_start_stamps_have_the_time_before_it_too() -> None:
    bench = Bench(nodes=3, own_ms=-48 * HOUR_MS, noted_ms=0)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, None)
    assert bench.time.steady_ms() == bench.clock.true_ms(), "others may ask for it"
    bench.others_ms = [-48 * HOUR_MS]
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, -48 * HOUR_MS)


def test_nodes_that_join_a_lone_one_do_not_end_the_hour() -> None:
    bench = Bench()
    bench.clock.set_wall(48 * HOUR_MS)
    bench.later(1)
    bench.others_ms, bench.nodes = [48 * HOUR_MS] * 2, 3
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (48 * HOUR_MS, 0)


@pytest.mark.parametrize("error_ms", [-48 * HOUR_MS, 48 * HOUR_MS])
@pytest.mark.parametrize("steady_ms", [(0,), (None, 0), (0, 0)])
def test_a_node_that_joins_after_a_jump_goes_by_the_time_before_it_for_an_hour(
    error_ms: int, steady_ms: tuple[int | None, ...]
) -> None:
    bench = Bench(error_ms, error_ms, own_ms=error_ms, steady_ms=steady_ms)
    for seconds in (0, 60, HOUR - 61):
        bench.later(seconds)
        if seconds:
            bench.steady_ms = [error_ms] * 2  # theirs is over
        assert (bench.stamp_error_ms, bench.age_error_ms) == (max(0, error_ms), min(0, error_ms))
        assert bench.time.steady_ms() == bench.clock.true_ms()
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (error_ms, error_ms)


def test_of_several_steady_times_the_earliest_counts_for_ages() -> None:
    bench = Bench(DAY_MS, DAY_MS, own_ms=DAY_MS, steady_ms=(DAY_MS, HOUR_MS))
    assert (bench.stamp_error_ms, bench.age_error_ms) == (DAY_MS, HOUR_MS)


@pytest.mark.parametrize(("steady_ms", "age_error_ms"), [(DAY_MS, 0), (-DAY_MS, -DAY_MS)])
def test_a_node_whose_clock_is_off_can_only_tell_of_an_earlier_time(
    steady_ms: int, age_error_ms: int
) -> None:
    """It founded the cluster with this clock, or it alone was set right after a jump of all."""
    bench = Bench(steady_ms, 0, steady_ms=(steady_ms,))
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, age_error_ms)


@pytest.mark.parametrize("seed", range(50))
def test_one_faulty_teller_of_three_makes_nothing_expire_early_or_live_for_ever(seed: int) -> None:
    """All clocks are right, and one node tells any steady time, before or after the other is heard.

    A node that joins never measures ages by a later time than the true one. Its stamps are right
    once both others are heard, and its ages within an hour.
    """
    rng = Random(seed)
    faulty_ms = rng.choice([-1, 1]) * rng.choice([HOUR_MS, 400 * DAY_MS])
    is_first = rng.random() < 0.5
    bench = Bench(0, nodes=3, steady_ms=(faulty_ms if is_first else 0,))
    assert bench.time.is_settled is not (is_first and faulty_ms > 0)
    for _ in range(rng.randint(0, 5)):
        bench.later(rng.randint(0, 5))
        assert (bench.age_error_ms or 0) <= 0
        assert bench.stamp_error_ms in (0, faulty_ms)
    bench.others_ms, bench.steady_ms = [0, 0], (faulty_ms, 0) if is_first else (0, faulty_ms)
    for seconds in (0, 1, 60, HOUR - 62, 1):
        bench.later(seconds)
        assert bench.time.is_settled
        assert (bench.stamp_error_ms, bench.age_error_ms) in [(0, 0), (0, faulty_ms)]
        assert (bench.age_error_ms or 0) <= 0
    bench.later(HOUR)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, 0)


def test_a_time_that_was_told_before_any_majority_agreed_still_counts() -> None:
    """Its teller lost its disk and was removed, and all clocks jumped to the same time."""
    bench = Bench(0, -HOUR_MS, own_ms=-2 * HOUR_MS, steady_ms=(0,))
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, None)
    bench.others_ms, bench.nodes, bench.steady_ms = [DAY_MS], 2, ()
    bench.clock.set_wall(DAY_MS)
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (DAY_MS, 0)
    bench.later(HOUR)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (DAY_MS, DAY_MS)


def test_nothing_expires_before_a_node_that_joins_knows_the_time_before_it() -> None:
    """All nodes that it hears of first may have joined as well."""
    bench = Bench(DAY_MS, DAY_MS, own_ms=DAY_MS, nodes=5)
    assert (bench.stamp_error_ms, bench.age_error_ms, bench.time.steady_ms()) == (DAY_MS, None, None)
    assert bench.time.is_settled
    bench.others_ms.append(DAY_MS)
    bench.steady_ms = (None, None, 0)
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (DAY_MS, 0)


def test_nobody_has_told_a_time_for_an_hour() -> None:
    bench = Bench(0, nodes=3)
    for seconds in (0, HOUR - 1):
        bench.later(seconds)
        assert (bench.stamp_error_ms, bench.age_error_ms) == (0, None)
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, 0)


def test_none_of_all_nodes_tells_a_time() -> None:
    bench = Bench(0, nodes=3)
    bench.others_ms.append(0)
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, 0)


@pytest.mark.parametrize("error_ms", [-48 * HOUR_MS, 48 * HOUR_MS])
def test_a_moment_without_a_majority_forgets_no_jump_of_a_lone_node(error_ms: int) -> None:
    bench = Bench(own_ms=0)
    bench.clock.set_wall(error_ms)
    bench.later(1)
    bench.nodes = 2  # has joined, and is not connected
    bench.later(1)
    late_ms, early_ms = max(0, error_ms), min(0, error_ms)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (late_ms, None)
    bench.others_ms = [error_ms]
    for seconds in (0, HOUR - 1):
        bench.later(seconds)
        assert (bench.stamp_error_ms, bench.age_error_ms) == (late_ms, early_ms)
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (error_ms, error_ms)


@pytest.mark.parametrize("error_ms", [-48 * HOUR_MS, 48 * HOUR_MS])
def test_stamps_do_not_go_back_when_a_majority_is_lost_within_the_hour(error_ms: int) -> None:
    """They would be too old at its end."""
    bench = Bench(0, 0)
    bench.clock.set_wall(error_ms)
    bench.others_ms = [error_ms] * 2
    bench.later(1)
    bench.others_ms = []
    for own_ms in (error_ms, -DAY_MS, 400 * DAY_MS):
        bench.clock.set_wall(own_ms)
        bench.later(4)
        assert (bench.stamp_error_ms, bench.age_error_ms) == (max(0, error_ms), None)


def test_the_hour_begins_again_after_a_moment_without_a_majority() -> None:
    bench = Bench(0)
    bench.clock.set_wall(DAY_MS)
    bench.others_ms = [DAY_MS]
    bench.later(0)
    bench.others_ms = []
    bench.later(HOUR - 1)
    bench.others_ms = [DAY_MS]
    bench.later(1)
    bench.later(HOUR - 2)
    assert bench.age_error_ms == 0
    bench.later(2)
    assert bench.age_error_ms == DAY_MS


def test_a_lone_node_that_others_correct_forward_has_nothing_removed_by_their_time_for_an_hour() -> None:
    bench = Bench(own_ms=-10 * DAY_MS, nodes=1)
    bench.nodes, bench.others_ms = 3, [0, 0]
    bench.later(1)
    bench.clock.set_wall(0)
    bench.later(1)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, -10 * DAY_MS)
    bench.later(HOUR)
    assert (bench.stamp_error_ms, bench.age_error_ms) == (0, 0)


def test_the_hour_begins_again_with_another_jump() -> None:
    bench = Bench()
    for error_ms in (48 * HOUR_MS, 0, 48 * HOUR_MS, 72 * HOUR_MS, 0, 48 * HOUR_MS):
        bench.clock.set_wall(error_ms)
        bench.later(0)
        bench.later(HOUR - 1)
        assert bench.age_error_ms == 0


def test_a_jump_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench()
    bench.clock.step_wall(90_000)
    for _ in range(5):
        bench.later(1)
    assert capsys.readouterr().out.count("the clocks have jumped") == 1


def test_a_clock_that_is_off_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(0, 0)
    bench.clock.step_wall(90_000)
    for _ in range(5):
        bench.later(1)
    assert capsys.readouterr().out.count("the clock of this machine is off") == 1


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.floats(0, HOUR), st.sampled_from([0, 1, 2]), st.integers(-(10**10), 10**10)), max_size=30
    ),
)
def test_no_stamp_is_early_and_no_age_is_late_while_one_clock_of_three_is_wrong(
    steps: list[tuple[float, int, int]],
) -> None:
    bench = Bench(0, 0)
    for seconds, node, error_ms in steps:
        bench.clock.set_wall(error_ms if node == 0 else 0)
        bench.others_ms = [error_ms if node == each else 0 for each in (1, 2)]
        bench.later(seconds)
        assert abs(bench.stamp_error_ms) <= CLOCK_OFF_MS
        assert abs(bench.age_error_ms or 0) <= CLOCK_OFF_MS

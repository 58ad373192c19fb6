"""Plans of moves: what is urgent comes first, nothing good is given up, and a plan ends."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.peering.move_planner import (
    INCOMING_MAX,
    PLANNED_MAX,
    ClusterView,
    PlannedMove,
    plan_moves,
    plan_rebalance,
)
from pixy.cluster.state.topic import Move, Topic
from pixy.proto.state_pb2 import MoveReason

RAISE = MoveReason.MOVE_REASON_RAISE
REPLACE = MoveReason.MOVE_REASON_REPLACE
DRAIN = MoveReason.MOVE_REASON_DRAIN
REMOVE = MoveReason.MOVE_REASON_REMOVE
LOWER = MoveReason.MOVE_REASON_LOWER
CANCEL = MoveReason.MOVE_REASON_CANCEL
MOVE = MoveReason.MOVE_REASON_MOVE


def topic(
    *replicas: Sequence[int], name: str = "t", replication: int = 3, moves: Mapping[int, Move] | None = None
) -> Topic:
    """A topic."""
    groups = tuple(range(1000, 1000 + len(replicas)))
    config = {"replication": str(replication)}
    return Topic(name, b"i" * 16, 1, config, groups, tuple(map(tuple, replicas)), 0, {}, moves or {})


def view(
    nodes: Collection[int],
    *,
    down: Collection[int] = (),
    away: Collection[int] = (),
    drained: Collection[int] = (),
    removed: Collection[int] = (),
) -> ClusterView:
    up = frozenset({*nodes} - {*down} - {*away})
    leaving = frozenset({*drained, *removed})
    return ClusterView(up - leaving, up, frozenset(away) - leaving, leaving, frozenset(removed))


def planned(of: Topic, seen: ClusterView) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(move.partition, move.reason, move.target) for move in plan_moves([of], seen)]


# --- new moves ------------------------------------------------------------------------------------


def test_partitions_of_a_node_that_was_alone_get_replicas_and_leaders_on_all() -> None:
    found = planned(topic((1,), (1,), (1,)), view({1, 2, 3}))
    assert [(number, reason) for number, reason, _ in found] == [(0, RAISE), (1, RAISE), (2, RAISE)]
    assert [{*target} for _, _, target in found] == [{1, 2, 3}] * 3
    assert sorted(target[0] for _, _, target in found) == [1, 2, 3]


def test_replicas_come_as_far_as_nodes_are_there() -> None:
    assert [{*target} for _, _, target in planned(topic((1,)), view({1, 2}))] == [{1, 2}]
    assert planned(topic((1,)), view({1, 2, 3}, down={2, 3})) == []
    assert planned(topic((1,), replication=1), view({1, 2, 3})) == []
    assert [{*target} for _, _, target in planned(topic((1, 2)), view({1, 2, 3}))] == [{1, 2, 3}]


def test_the_least_loaded_nodes_get_the_replicas() -> None:
    full = topic((4, 5), (4, 5), name="full", replication=2)
    few = topic((6,), name="few", replication=1)
    [move] = plan_moves([full, few, topic((1,), replication=2)], view({1, 4, 5, 6}))
    assert {*move.target} == {1, 6}


def test_a_node_that_was_away_for_too_long_is_replaced() -> None:
    assert planned(topic((1, 2, 3)), view({1, 2, 3, 4}, away={3})) == [(0, REPLACE, (1, 2, 4))]
    assert planned(topic((1, 2, 3)), view({1, 2, 3, 4}, down={3})) == []
    assert planned(topic((1, 2, 3)), view({1, 2, 3}, away={3})) == [], "nobody is there instead"


def test_a_drained_node_gives_its_replicas_away_as_far_as_others_can_take_them() -> None:
    assert planned(topic((1, 2, 3)), view({1, 2, 3, 4}, drained={1})) == [(0, DRAIN, (4, 2, 3))]
    assert planned(topic((1, 2, 3)), view({1, 2, 3}, drained={1})) == []
    assert planned(topic((1,), replication=1), view({1, 2}, drained={1})) == [(0, DRAIN, (2,))]


def test_replicas_go_that_are_too_many_the_worst_ones_first() -> None:
    five = topic((1, 2, 3, 4, 5), replication=3)
    assert planned(five, view(range(1, 6))) == [(0, LOWER, (1, 2, 3))]
    assert planned(five, view(range(1, 6), down={2})) == [(0, LOWER, (1, 3, 4))]
    assert planned(five, view(range(1, 6), away={1}, down={3})) == [(0, LOWER, (2, 4, 5))]
    assert planned(five, view(range(1, 6), drained={5, 2})) == [(0, LOWER, (1, 3, 4))]
    one = planned(topic((1, 2, 3), replication=1), view({1, 2, 3}, away={1}))
    assert one == [(0, LOWER, (2,))]


def test_what_is_urgent_comes_first() -> None:
    seen = view(range(1, 8), away={7}, drained={6})
    mixed = topic((1, 2, 6), (1, 2, 3, 4), (1,), (1, 2, 7))
    assert [reason for _, reason, _ in planned(mixed, seen)] == [REPLACE, RAISE, DRAIN, LOWER]


def test_few_partitions_move_to_a_node_at_a_time() -> None:
    many = topic(*[(1,)] * 1000, replication=2)
    incoming = Counter(target for _, _, targets in planned(many, view({1, 2, 3})) for target in targets)
    assert (incoming[2], incoming[3]) == (INCOMING_MAX, INCOMING_MAX)
    under_way = {number: Move(1, RAISE, (1, 2)) for number in range(INCOMING_MAX - 1)}
    assert len(planned(topic(*[(1,)] * 1000, replication=2, moves=under_way), view({1, 2}))) == 1


def test_partitions_for_which_there_is_no_room_stay_as_they_are() -> None:
    many = topic(*[(1, 2, 3), (3, 1, 2)] * 500)
    found = planned(many, view({1, 2, 3, 4}, away={3}))
    assert len(found) == INCOMING_MAX
    assert {4 in target for _, _, target in found} == {True}


def test_a_plan_for_many_partitions_has_its_limits() -> None:
    many = topic(*[(1, 2, 3)] * 2 * PLANNED_MAX, replication=2)
    assert len(planned(many, view({1, 2, 3}))) == PLANNED_MAX


# --- moves under way ------------------------------------------------------------------------------


def test_a_partition_that_moves_is_left_alone() -> None:
    moving = topic((1, 2), (1, 2), moves={0: Move(1, MOVE, (1, 4))})
    assert [number for number, _, _ in planned(moving, view({1, 2, 3, 4}))] == [1]


def test_a_node_that_comes_back_is_not_replaced() -> None:
    moving = topic((1, 2, 3), moves={0: Move(1, REPLACE, (1, 2, 4))})
    assert planned(moving, view({1, 2, 3, 4}, away={3})) == []
    assert planned(moving, view({1, 2, 3, 4})) == [(0, CANCEL, (1, 2, 3))]
    assert planned(topic((1, 2, 3), moves={0: Move(1, CANCEL, (1, 2, 3))}), view({1, 2, 3, 4})) == []


def test_a_node_that_is_not_drained_any_more_keeps_its_replicas() -> None:
    moving = topic((1, 2, 3), moves={0: Move(1, DRAIN, (1, 2, 4))})
    assert planned(moving, view({1, 2, 3, 4}, drained={3})) == []
    assert planned(moving, view({1, 2, 3, 4})) == [(0, CANCEL, (1, 2, 3))]


@pytest.mark.parametrize("gone", ["away", "drained", "removed"])
def test_a_partition_does_not_move_to_a_node_that_goes_itself(gone: str) -> None:
    moving = topic((1, 2, 3), moves={0: Move(1, DRAIN, (1, 2, 4))})
    seen = view({1, 2, 3, 4, 5}, **{"drained": {3}} | {gone: {3, 4} if gone == "drained" else {4}})
    assert planned(moving, seen) == [(0, DRAIN, (1, 2, 5))]
    assert planned(moving, view({1, 2, 3, 4}, away={4}, drained={3})) == [(0, CANCEL, (1, 2, 3))]


def test_the_replicas_of_a_removed_node_go_to_another_one() -> None:
    moving = topic((1, 2, 3), moves={0: Move(1, REMOVE, (1, 2))})
    assert planned(moving, view({1, 2, 4}, removed={3})) == [(0, REMOVE, (1, 2, 4))]
    assert planned(moving, view({1, 2}, removed={3})) == []


def test_a_move_in_a_command_is_as_it_was_seen() -> None:
    moving = replace(topic((1, 2, 3), (1, 2, 3), moves={1: Move(7, DRAIN, (1, 2, 4))}), placements={1: 5})
    message = PlannedMove(moving, 1, CANCEL, (1, 2, 3)).message()
    assert (message.topic, message.topic_id, message.partition, message.raft_group) == (
        "t",
        b"i" * 16,
        1,
        1001,
    )
    assert (message.placement, message.plan, [*message.target]) == (5, 7, [1, 2, 3])
    assert PlannedMove(moving, 0, CANCEL, (1,)).message().plan == 0


# --- even numbers ---------------------------------------------------------------------------------


def test_a_node_that_comes_later_gets_its_share_of_replicas_and_leaders() -> None:
    before = topic(*[(1, 2), (2, 1)] * 6, replication=2)
    moves = plan_rebalance([before], view({1, 2, 3}))
    after = ended(before, moves)
    assert Counter(node_id for replicas in after.replicas for node_id in replicas) == {1: 8, 2: 8, 3: 8}
    assert Counter(replicas[0] for replicas in after.replicas) == {1: 4, 2: 4, 3: 4}
    assert len(moves) <= 8, "no more moves than replicas that go there"
    assert plan_rebalance([after], view({1, 2, 3})) == []


def test_what_moves_or_is_not_well_stays_where_it_is() -> None:
    full = topic((1,), (1,), (1, 2), replication=1, moves={0: Move(1, MOVE, (2,))})
    assert [move.partition for move in plan_rebalance([full], view({1, 2, 3}, down={2}))] == [1]
    assert plan_rebalance([full], view({1, 2, 3}, drained={3, 2})) == []


# --- any view -------------------------------------------------------------------------------------

NODES = range(1, 8)
SOME = st.frozensets(st.sampled_from(NODES))
REPLICAS = st.lists(st.sampled_from(NODES), min_size=1, max_size=5, unique=True).map(tuple)
REASONS = st.sampled_from([RAISE, REPLACE, DRAIN, REMOVE, LOWER, MOVE, CANCEL])
MOVES = st.dictionaries(st.integers(0, 3), st.builds(Move, st.just(1), REASONS, REPLICAS))


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    replicas = draw(st.lists(REPLICAS, min_size=1, max_size=6))
    moves = {number: move for number, move in draw(MOVES).items() if number < len(replicas)}
    drawn = topic(*replicas, name=draw(st.sampled_from("abc")), replication=draw(st.integers(1, 4)))
    return replace(drawn, moves=moves)


VIEWS = st.builds(
    lambda down, away, drained, removed: view(
        {*NODES} - removed, down=down, away=away, drained=drained, removed=removed
    ),
    SOME,
    SOME,
    SOME,
    SOME,
)


def ended(of: Topic, moves: Collection[PlannedMove]) -> Topic:
    """A topic after the end of these moves and of those that were under way."""
    placed = list(of.placed)
    for move in moves:
        placed[move.partition] = move.target
    return replace(of, replicas=tuple(placed), moves={})


@pytest.mark.slow
@given(st.lists(topics(), max_size=3, unique_by=lambda each: each.name), VIEWS)
def test_whatever_is_seen_nothing_good_is_given_up(all_topics: list[Topic], seen: ClusterView) -> None:
    found = plan_moves(all_topics, seen)
    assert len({(move.topic.name, move.partition) for move in found}) == len(found)
    for move in found:
        replicas, target = move.topic.replicas[move.partition], move.target
        assert len({*target}) == len(target) > 0
        assert target != move.topic.placed[move.partition]
        under_way = move.topic.moves.get(move.partition)
        if under_way is None:
            assert {*target} - {*replicas} <= seen.usable
            bad = seen.away | seen.leaving
            lost = {*replicas} - {*target} - bad
            wanted = int(move.topic.config["replication"])
            assert not lost or len(target) == wanted
            kept = len(replicas) - len({*replicas} & seen.removed)
            assert len(target) >= min(wanted, kept)
    assert [move.message() for move in plan_moves(all_topics, seen)] == [move.message() for move in found]


@pytest.mark.slow
@given(st.lists(topics(), max_size=3, unique_by=lambda each: each.name), VIEWS)
def test_a_plan_comes_to_an_end(all_topics: list[Topic], seen: ClusterView) -> None:
    for _ in range(3):
        found = plan_moves(all_topics, seen)
        all_topics = [ended(each, [move for move in found if move.topic is each]) for each in all_topics]
    assert plan_moves(all_topics, seen) == []
    for each in all_topics:
        wanted = min(int(each.config["replication"]), len(seen.usable))
        for replicas in each.replicas:
            assert len(replicas) >= min(wanted, len({*replicas} | seen.usable))
            if seen.usable - {*replicas}:
                assert not {*replicas} & (seen.away | seen.leaving)


@pytest.mark.slow
@given(st.lists(topics(), max_size=3, unique_by=lambda each: each.name), VIEWS)
def test_even_numbers_come_to_an_end_and_are_better_than_before(
    all_topics: list[Topic], seen: ClusterView
) -> None:
    def squares() -> tuple[int, int]:
        placed = [replicas for each in all_topics for replicas in each.placed]
        counts = Counter(node_id for replicas in placed for node_id in replicas)
        leaders = Counter(replicas[0] for replicas in placed)
        return sum(each * each for each in counts.values()), sum(each * each for each in leaders.values())

    for _ in range(40):
        found, before = plan_rebalance(all_topics, seen), squares()
        if not found:
            return
        for move in found:
            replicas = move.topic.replicas[move.partition]
            assert len({*move.target}) == len(move.target) == len(replicas)
            assert {*move.target} | {*replicas} <= seen.usable
        all_topics = [
            replace(
                ended(each, [move for move in found if move.topic is each]),
                moves=each.moves,
                replicas=tuple(
                    next((move.target for move in found if move.topic is each and move.partition == n), old)
                    for n, old in enumerate(each.replicas)
                ),
            )
            for each in all_topics
        ]
        assert squares() < before
    raise AssertionError("it does not end")

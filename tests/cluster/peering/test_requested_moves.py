"""Plans that clients ask for: what can move, and why the rest does not."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from pixy.cluster.peering.move_planner import INCOMING_MAX, ClusterView
from pixy.cluster.peering.requested_moves import (
    CancelPlan,
    DrainPlan,
    MovePlan,
    MoveRequest,
    MovesPlanned,
    RebalancePlan,
    plan_request,
    view_of,
)
from pixy.cluster.state import MOVES_LEVEL, MOVES_MAX, MetadataState
from pixy.cluster.state.topic import Move, Topic
from pixy.errors import FailedPrecondition, NotFound, PixyError, UnknownPartition, UnknownTopic
from pixy.proto.state_pb2 import (
    DrainNode,
    InitCluster,
    MetadataCommand,
    MoveReason,
    NodeRecord,
    RegisterNode,
    RemoveNode,
    StartNode,
)
from pixy.records import TopicPartition

MOVE, REBALANCE = MoveReason.MOVE_REASON_MOVE, MoveReason.MOVE_REASON_REBALANCE
DRAIN, CANCEL = MoveReason.MOVE_REASON_DRAIN, MoveReason.MOVE_REASON_CANCEL


def apply(state: MetadataState, **command: Any) -> None:
    result = state.apply(MetadataCommand(**command).SerializeToString())
    assert not isinstance(result, PixyError), result


def nodes(count: int) -> MetadataState:
    """Metadata of so many nodes."""
    state, level = MetadataState(), MOVES_LEVEL
    first = NodeRecord(node_id=1, secret=b"1", incarnation=1, feature_level=level)
    apply(state, init_cluster=InitCluster(groups_count=2, first_node=first))
    for node_id in range(2, count + 1):
        secret = b"%d" % node_id
        apply(state, register_node=RegisterNode(secret=secret, feature_level=level))
        apply(
            state,
            start_node=StartNode(node_id=node_id, secret=secret, incarnation=1, feature_level=level),
        )
    return state


def topic(*replicas: tuple[int, ...], moves: Mapping[int, Move] | None = None) -> Topic:
    groups = tuple(range(1000, 1000 + len(replicas)))
    return Topic("t", b"i" * 16, 1, {}, groups, replicas, 0, {}, moves or {})


def planned(
    request: MoveRequest, of: Topic, count: int = 4, down: Collection[int] = (), drained: Collection[int] = ()
) -> MovesPlanned:
    state = nodes(count)
    state.topics["t"] = of
    for node_id in drained:
        apply(state, drain_node=DrainNode(node_id=node_id, draining=True))
    return plan_request(
        request, state.topics, state.registered, view_of(state, {*range(1, count + 1)} - {*down})
    )


def shown(plan: MovesPlanned) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(move.partition, move.reason, move.target) for move in plan.moves]


# --- the view -------------------------------------------------------------------------------------


def test_nodes_that_are_down_drained_or_removed_get_nothing() -> None:
    state = nodes(5)
    apply(state, drain_node=DrainNode(node_id=2, draining=True))
    apply(state, remove_node=RemoveNode(node_id=3, moves_replicas=True))
    assert view_of(state, [1, 2, 3, 4]) == ClusterView(
        usable=frozenset({1, 4}),
        up=frozenset({1, 2, 3, 4}),
        leaving=frozenset({2, 3}),
        removed=frozenset({3}),
    )


# --- drain ----------------------------------------------------------------------------------------


def test_the_plan_of_a_drain_is_what_the_cluster_will_begin() -> None:
    plan = planned(DrainPlan(3), topic((1, 2, 3), (1, 2, 4)))
    assert (shown(plan), plan.left_out) == ([(0, DRAIN, (2, 1, 4))], [])


def test_a_drain_says_what_stays_and_what_follows() -> None:
    plan = planned(DrainPlan(3), topic((1, 2, 3)), 3)
    assert plan.moves == []
    assert plan.left_out == [
        "1 partition will keep a replica on node 3, t-0 for instance: no other node can take it"
    ]
    many = planned(DrainPlan(3), topic(*[(1, 2, 3)] * (INCOMING_MAX + 2)))
    assert len(many.moves) == INCOMING_MAX
    assert many.left_out == ["2 partitions more will follow: a node takes so many at a time"]


def test_an_unknown_node_cannot_be_drained() -> None:
    with pytest.raises(NotFound, match="no node 9 that stays, only nodes 1, 2"):
        planned(DrainPlan(9), topic((1, 2)), 2)


# --- move -----------------------------------------------------------------------------------------


def moved(of: Topic, source: int, to: int, number: int = 0) -> MovesPlanned:
    return planned(MovePlan(TopicPartition("t", number), source, to), of)


def test_one_replica_takes_the_place_of_the_other() -> None:
    assert shown(moved(topic((1, 2, 3)), 1, 4)) == [(0, MOVE, (4, 2, 3))]
    under_way = topic((1, 2, 3), moves={0: Move(7, MOVE, (1, 2, 4))})
    (again,) = moved(under_way, 2, 3).moves
    assert again.target == (1, 3, 4)
    assert again.message().plan == 7


def test_a_replica_moves_from_a_node_that_has_one_to_one_that_can_take_it() -> None:
    of = topic((1, 2, 3))
    with pytest.raises(FailedPrecondition, match="has no replica on node 4, only on nodes 1, 2, 3"):
        moved(of, 4, 1)
    with pytest.raises(FailedPrecondition, match="has a replica on node 2 already"):
        moved(of, 1, 2)
    wanted = MovePlan(TopicPartition("t", 0), 1, 4)
    with pytest.raises(NotFound, match="no node 4 that can take replicas"):
        planned(wanted, of, down={4})
    with pytest.raises(NotFound, match="no node 4 that can take replicas"):
        planned(wanted, of, drained={4})
    with pytest.raises(UnknownPartition):
        moved(of, 1, 4, 1)
    with pytest.raises(UnknownTopic):
        planned(MovePlan(TopicPartition("other", 0), 1, 4), of)


# --- rebalance ------------------------------------------------------------------------------------


def test_a_rebalance_leaves_nodes_that_are_down_or_drained_alone() -> None:
    full = topic(*[(1, 2, 3)] * 4)
    moves = shown(planned(RebalancePlan(), full))
    assert moves
    assert {reason for _, reason, _ in moves} == {REBALANCE}
    for others in (planned(RebalancePlan(), full, down={4}), planned(RebalancePlan(), full, drained={4})):
        assert all(4 not in move.target for move in others.moves)


# --- cancel ---------------------------------------------------------------------------------------


def test_moves_by_command_are_taken_back_and_others_would_begin_anew() -> None:
    moving = topic(
        (1, 2, 3),
        (1, 2, 3),
        (1, 2, 3),
        (1, 2, 3),
        moves={0: Move(1, MOVE, (1, 2, 4)), 1: Move(2, DRAIN, (1, 2, 4)), 3: Move(3, REBALANCE, (4, 2, 3))},
    )
    plan = planned(CancelPlan(), moving)
    assert shown(plan) == [(0, CANCEL, (1, 2, 3)), (3, CANCEL, (1, 2, 3))]
    assert plan.left_out == [
        "1 partition not taken back (drain), t-1 for instance: a node is drained, and can be undrained"
    ]
    assert shown(planned(CancelPlan(TopicPartition("t", 3)), moving)) == [(3, CANCEL, (1, 2, 3))]
    with pytest.raises(FailedPrecondition, match="partition 2 of topic t does not move"):
        planned(CancelPlan(TopicPartition("t", 2)), moving)


def test_a_plan_has_as_many_moves_as_a_command() -> None:
    count = MOVES_MAX + 5
    moves = {number: Move(1, MOVE, (1, 2, 4)) for number in range(count)}
    plan = planned(CancelPlan(), topic(*[(1, 2, 3)] * count, moves=moves))
    assert len(plan.moves) == MOVES_MAX
    assert plan.left_out == ["5 partitions more: ask again once these move"]

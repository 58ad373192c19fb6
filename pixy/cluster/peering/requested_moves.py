"""Plans of moves that a client asks for, by the view of the node that it asks.

Pure. Nothing is begun here: the client sees the plan, and gives it back. Each move says which
placement and which move of the partition it was made for, so metadata leaves it out if there is
another one by then (`pixy.cluster.state.partition_moves`).

    request      moves
    -----------  -----------------------------------------------------------------------------------
    DrainPlan    what the cluster will begin by itself once the node is drained
    MovePlan     one replica, from a node to another one
    Rebalance    from the nodes with the most replicas to those with the fewest
    CancelPlan   back to the replicas that serve; not what the cluster would begin anew
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pixy.cluster.peering.move_planner import ClusterView, PlannedMove, plan_moves, plan_rebalance
from pixy.cluster.state import MOVES_MAX, MetadataState, Topic, reason_name
from pixy.errors import FailedPrecondition, NotFound, UnknownPartition, UnknownTopic
from pixy.proto.state_pb2 import MoveReason
from pixy.records import TopicPartition

_MOVE = MoveReason.MOVE_REASON_MOVE
_REBALANCE = MoveReason.MOVE_REASON_REBALANCE
_CANCEL = MoveReason.MOVE_REASON_CANCEL

REQUESTED = {reason_name(reason): reason for reason in (_MOVE, _REBALANCE, _CANCEL)}
"""Reasons of moves that clients begin, by name. The others are the cluster's own."""

_WHY_BEGUN_ANEW = {
    MoveReason.MOVE_REASON_RAISE: "it has fewer replicas than `replication` asks for",
    MoveReason.MOVE_REASON_REPLACE: "a node has been away for too long, and may come back",
    MoveReason.MOVE_REASON_DRAIN: "a node is drained, and can be undrained",
    MoveReason.MOVE_REASON_REMOVE: "a node was removed",
    MoveReason.MOVE_REASON_LOWER: "it has more replicas than `replication` asks for",
    _CANCEL: "it is taken back already",
}


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """Plan of what becomes of the replicas of a node that is drained."""

    node_id: int


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Plan of the move of one replica."""

    partition: TopicPartition
    from_node: int
    to_node: int


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """Plan of moves that make the numbers of replicas even."""


@dataclass(frozen=True, slots=True)
class CancelPlan:
    """Plan that takes the move of a partition back, or those of all."""

    partition: TopicPartition | None = None


MoveRequest = DrainPlan | MovePlan | RebalancePlan | CancelPlan


class MovesPlanned(NamedTuple):
    """Answer to a request.

    Attributes:
        moves: those that can begin.
        left_out: sentences about what does not move, or not yet.
    """

    moves: Sequence[PlannedMove]
    left_out: Sequence[str] = ()


def view_of(metadata: MetadataState, reached: Iterable[int]) -> ClusterView:
    """The nodes as one of them sees them.

    Args:
        reached: nodes that it can reach, itself among them.
    """
    nodes, up = metadata.nodes, frozenset(reached)
    removed = frozenset(node_id for node_id, node in nodes.items() if node.removed)
    draining = frozenset(node_id for node_id, node in nodes.items() if node.draining)
    leaving = draining | removed
    return ClusterView(
        usable=up.intersection(metadata.started) - leaving, up=up, leaving=leaving, removed=removed
    )


def plan_request(
    request: MoveRequest, topics: Mapping[str, Topic], registered: Sequence[int], view: ClusterView
) -> MovesPlanned:
    """The plan for a request.

    Args:
        topics: by name.
        registered: nodes that stay.
        view: of the node that is asked.

    Raises:
        NotFound: a node is not there.
        UnknownTopic, UnknownPartition: the partition is not there.
        FailedPrecondition: it cannot move so.
    """
    match request:
        case DrainPlan():
            if request.node_id not in registered:
                raise NotFound(f"no node {request.node_id} that stays, only {_listed(registered)}")
            return _drained(topics.values(), view, request.node_id)
        case MovePlan():
            return MovesPlanned([_moved(request, topics, view)])
        case RebalancePlan():
            return _first(plan_rebalance(topics.values(), view))
        case CancelPlan():
            return _cancelled(request, topics)


def _drained(topics: Iterable[Topic], view: ClusterView, node_id: int) -> MovesPlanned:
    others = replace(view, usable=view.usable - {node_id}, leaving=view.leaving | {node_id})
    topics = list(topics)
    moves = [
        move
        for move in plan_moves(topics, others)
        if node_id in move.topic.placed[move.partition] and node_id not in move.target
    ]
    planned = {(move.topic.name, move.partition) for move in moves}
    waiting, staying = 0, []
    for topic in topics:
        for number, placed in enumerate(topic.placed):
            if node_id not in placed or (topic.name, number) in planned:
                continue
            if others.usable.issubset(placed):
                staying.append(f"{topic.name}-{number}")
            else:
                waiting += 1
    left_out = []
    if waiting:
        left_out.append(f"{_partitions(waiting)} more will follow: a node takes so many at a time")
    if staying:
        left_out.append(
            f"{_partitions(len(staying))} will keep a replica on node {node_id}, {staying[0]} for instance: no other node "
            "can take it"
        )
    return _first(moves, left_out)


def _moved(request: MovePlan, topics: Mapping[str, Topic], view: ClusterView) -> PlannedMove:
    topic = _topic_of(request.partition, topics)
    number, source, destination = request.partition.partition, request.from_node, request.to_node
    placed = topic.placed[number]
    name = f"partition {number} of topic {topic.name}"
    if source not in placed:
        raise FailedPrecondition(f"{name} has no replica on node {source}, only on {_listed(placed)}")
    if destination in placed:
        raise FailedPrecondition(f"{name} has a replica on node {destination} already")
    if destination not in view.usable:
        raise NotFound(
            f"no node {destination} that can take replicas: nodes that are up, and neither drained nor removed, are "
            f"{_listed(sorted(view.usable))}"
        )
    target = tuple(destination if node_id == source else node_id for node_id in placed)
    return PlannedMove(topic, number, _MOVE, target)


def _cancelled(request: CancelPlan, topics: Mapping[str, Topic]) -> MovesPlanned:
    if request.partition is None:
        moving = [(topic, number) for topic in topics.values() for number in topic.moves]
    else:
        topic, number = _topic_of(request.partition, topics), request.partition.partition
        if number not in topic.moves:
            raise FailedPrecondition(f"partition {number} of topic {topic.name} does not move")
        moving = [(topic, number)]
    moves: list[PlannedMove] = []
    going_on: dict[MoveReason.ValueType, list[str]] = defaultdict(list)
    for topic, number in moving:
        reason = topic.moves[number].reason
        if reason in _WHY_BEGUN_ANEW:
            going_on[reason].append(f"{topic.name}-{number}")
        else:
            moves.append(PlannedMove(topic, number, _CANCEL, topic.replicas[number]))
    left_out = [
        f"{_partitions(len(names))} not taken back ({reason_name(reason)}), {names[0]} for instance: "
        f"{_WHY_BEGUN_ANEW[reason]}"
        for reason, names in going_on.items()
    ]
    return _first(moves, left_out)


def _first(moves: Sequence[PlannedMove], left_out: Sequence[str] = ()) -> MovesPlanned:
    """As many moves as a command may have."""
    if len(moves) <= MOVES_MAX:
        return MovesPlanned(moves, left_out)
    more = f"{_partitions(len(moves) - MOVES_MAX)} more: ask again once these move"
    return MovesPlanned(moves[:MOVES_MAX], [*left_out, more])


def _topic_of(partition: TopicPartition, topics: Mapping[str, Topic]) -> Topic:
    """The topic of a partition that is there."""
    name, number = partition
    topic = topics.get(name)
    if topic is None:
        raise UnknownTopic(f"unknown topic {name}")
    if not 0 <= number < len(topic.replicas):
        raise UnknownPartition(f"unknown partition {number} of topic {name}")
    return topic


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _listed(node_ids: Sequence[int]) -> str:
    return f"node{'' if len(node_ids) == 1 else 's'} {', '.join(map(str, node_ids))}"

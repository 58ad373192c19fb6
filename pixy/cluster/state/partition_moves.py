"""Moves of partitions in `metadata`: they begin, get other targets, and end. Pure.

    command      a partition of it     is taken if
    -----------  --------------------  -------------------------------------------------------------
    BeginMoves   that does not move    the target is another than the replicas
    BeginMoves   that moves            its proposer has seen this move; the target may be the
                                       replicas, which takes the move back
    EndMoves     that moves            plan and target are those of the command

and its topic is there, and has not ended another move meanwhile. All nodes of a new target have
started, and are not removed.

A move that was taken back is under way until it ends, too: the voters may be those of the first
target already. The leader of the partition knows them: it proposes the end, when they are the
target and nothing else is on its way. A plan has a number that no other one ever gets. So an end
that comes late, when the target has been another one and is the same again, ends nothing.

A move to the nodes that a partition has does not count: those that were there from the beginning
know its first members without being told (`Partitions`), and no configuration has changed that
would have its leader tell them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from pixy.cluster.state.topic import Move, Topic
from pixy.proto.state_pb2 import BeginMoves, EndMoves, MoveReason, PartitionMove

MOVES_MAX = 1000
"""Partitions of one command."""


class MovesChanged(NamedTuple):
    """Moves have begun or ended.

    Attributes:
        topics: those that have changed.
        refused: partitions of the command that were left out, each with the reason.
    """

    topics: tuple[Topic, ...]
    refused: tuple[str, ...]


def reason_name(reason: MoveReason.ValueType) -> str:
    """A reason for users: "raise", "drain"."""
    known = reason in MoveReason.values()
    return MoveReason.Name(reason).removeprefix("MOVE_REASON_").lower() if known else "unknown"


def partition_move(topic: Topic, number: int, target: Iterable[int]) -> PartitionMove:
    """A partition of a command, which has no effect if it is not as it is here by then."""
    move = topic.moves.get(number)
    return PartitionMove(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=number,
        raft_group=topic.raft_groups[number],
        placement=topic.placement(number),
        plan=0 if move is None else move.plan,
        target=target,
    )


def begun(
    command: BeginMoves, topics: Mapping[str, Topic], nodes: Collection[int], plan: int
) -> MovesChanged:
    """The topics of a command with its moves.

    Args:
        nodes: those that may have replicas.
        plan: its number.
    """

    def why_refused(topic: Topic, asked: PartitionMove) -> str:
        target, replicas = tuple(asked.target), topic.replicas[asked.partition]
        strangers = sorted({*target} - {*nodes})
        if not target or len({*target}) < len(target):
            return f"no replicas, or two on one node: {list(target)}"
        if strangers:
            return f"node {strangers[0]} has no replicas: it has left, or not started"
        if target == replicas and not asked.plan:
            return f"it is on nodes {list(target)}"
        return ""

    def changed(topic: Topic, asked: Iterable[PartitionMove]) -> Topic:
        moves = {each.partition: Move(plan, command.reason, tuple(each.target)) for each in asked}
        return replace(topic, moves={**topic.moves, **moves})

    return _changed(command.moves, topics, why_refused, changed)


def ended(command: EndMoves, topics: Mapping[str, Topic]) -> MovesChanged:
    """The topics of a command with the targets of its moves as replicas."""

    def why_refused(topic: Topic, asked: PartitionMove) -> str:
        move = topic.moves.get(asked.partition)
        if move is None or move.target != tuple(asked.target):
            return f"it does not move to nodes {list(asked.target)}"
        return ""

    def changed(topic: Topic, asked: Iterable[PartitionMove]) -> Topic:
        replicas, placements, moves = list(topic.replicas), dict(topic.placements), dict(topic.moves)
        founders = dict(topic.founders)
        for each in asked:
            target = moves.pop(each.partition).target
            if {*target} != {*replicas[each.partition]}:
                placements[each.partition] = each.placement + 1
                founders.pop(each.partition, None)
            replicas[each.partition] = target
        return replace(topic, replicas=tuple(replicas), placements=placements, moves=moves, founders=founders)

    return _changed(command.moves, topics, why_refused, changed)


def _changed(
    moves: Iterable[PartitionMove],
    topics: Mapping[str, Topic],
    why_refused: Callable[[Topic, PartitionMove], str],
    changed: Callable[[Topic, Iterable[PartitionMove]], Topic],
) -> MovesChanged:
    """The topics of some moves as `changed` makes them, without the moves that are refused."""
    taken: dict[str, dict[int, PartitionMove]] = {}
    refused = []
    for asked in moves:
        topic = topics.get(asked.topic)
        if topic is None or topic.topic_id != asked.topic_id:
            reason = "the topic was deleted"
        else:
            reason = _why_other(topic, asked) or why_refused(topic, asked)
        if not reason and asked.partition in taken.setdefault(asked.topic, {}):
            reason = "it is there twice"
        if reason:
            refused.append(f"partition {asked.partition} of topic {asked.topic}: {reason}")
        else:
            taken[asked.topic][asked.partition] = asked
    return MovesChanged(
        tuple([changed(topics[name], asked.values()) for name, asked in taken.items() if asked]),
        tuple(refused),
    )


def _why_other(topic: Topic, asked: PartitionMove) -> str:
    """Reason to refuse a partition that is not as the proposer saw it, empty if it is."""
    number = asked.partition
    if not 0 <= number < len(topic.raft_groups) or topic.raft_groups[number] != asked.raft_group:
        return "there is no such partition"
    move = topic.moves.get(number)
    if topic.placement(number) != asked.placement or (0 if move is None else move.plan) != asked.plan:
        return "it has moved, or begun to move, meanwhile"
    return ""

"""A topic with raft group and replicas of each partition, and its record in a checkpoint.

The replicas of a partition serve it; a move names other nodes that are to have them, its target.
Invariant: the replicas change when a move ends, or when nodes are lost, never before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pixy.cluster.state.nodes import FIRST_NODE
from pixy.cluster.state.placement import ReplicaSets
from pixy.multiraft import FIRST_PARTITION_GROUP
from pixy.proto.state_pb2 import MoveReason, PartitionPlacement, ReplicaSet, TopicRecord
from pixy.records import check_topic_name

_VERSION_MAX = 2**30
_NUMBER_MAX = 2**53
"""Beyond these no cluster gets, and what is stored has room for more."""


class Move(NamedTuple):
    """A move of a partition that has begun.

    Attributes:
        plan: number of the command that has begun it, or changed its target.
        target: nodes that are to have the replicas, the preferred leader first.
    """

    plan: int
    reason: MoveReason.ValueType
    target: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic.

    Attributes:
        version: 1 at creation, raised by every change of partitions and options.
        raft_groups: raft group of each partition, by its number.
        replicas: nodes of each partition, by its number; the first one is preferred as leader.
        alterations: commands to change partitions and options, also those that changed nothing;
            others than those that name it are not counted.
        placements: number of moves to other nodes that have ended, of the partitions with any.
        moves: those under way, by number of the partition.
        founders: nodes that partitions were made on, of those that have lost some of them since
            and have not moved. A replica that opens late is one of these, however few are left.
    """

    name: str
    topic_id: bytes
    version: int
    config: Mapping[str, str]
    raft_groups: tuple[int, ...]
    replicas: ReplicaSets = ()
    alterations: int = 0
    placements: Mapping[int, int] = field(default_factory=dict)
    moves: Mapping[int, Move] = field(default_factory=dict)
    founders: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def placed(self) -> ReplicaSets:
        """The nodes of each partition, as of the end of all moves."""
        if not self.moves:
            return self.replicas
        placed = list(self.replicas)
        for number, move in self.moves.items():
            placed[number] = move.target
        return tuple(placed)

    def nodes(self, number: int) -> tuple[int, ...]:
        """Nodes that may have a replica of a partition: those that serve it, then those that a move
        brings it to, one of which may lead already.
        """
        move = self.moves.get(number)
        return self.replicas[number] if move is None else with_target(self.replicas[number], move)

    def placement(self, number: int) -> int:
        """Number of moves of a partition to other nodes that have ended. 0: its replicas have been
        there since it was made.
        """
        return self.placements.get(number, 0)

    def is_placed_on(self, number: int, node_id: int) -> bool:
        """True if a node has a replica of a partition, or is to get one."""
        if number < len(self.replicas) and node_id in self.replicas[number]:
            return True
        move = self.moves.get(number)
        return move is not None and node_id in move.target

    def without(self, node_id: int) -> "Topic":
        """The topic after the loss of a node; only replicas without another one stay there."""
        left = {replicas: _without(replicas, node_id) or replicas for replicas in set(self.replicas)}
        replicas = tuple([left[each] for each in self.replicas])
        lost = {
            number: before
            for number, (before, after) in enumerate(zip(self.replicas, replicas, strict=True))
            if after != before and not self.placement(number)
        }
        moves = {
            number: move._replace(target=_without(move.target, node_id) or replicas[number])
            for number, move in self.moves.items()
        }
        return replace(self, replicas=replicas, moves=moves, founders={**lost, **self.founders})

    def moved_from(self, node_id: int, plan: int) -> "Topic":
        """The topic when a node leaves: its replicas are to go, except those without another."""
        moves = dict(self.moves)
        for number, (placed, replicas) in enumerate(zip(self.placed, self.replicas, strict=True)):
            if node_id in placed and replicas != (node_id,):
                target = _without(placed, node_id) or _without(replicas, node_id)
                moves[number] = Move(plan, MoveReason.MOVE_REASON_REMOVE, target)
        return replace(self, moves=moves)

    def record(self) -> TopicRecord:
        """The topic as a record of a checkpoint."""
        sets = {replicas: number for number, replicas in enumerate(dict.fromkeys(self.replicas))}
        return TopicRecord(
            name=self.name,
            topic_id=self.topic_id,
            config=self.config,
            changes=self.version - 1,
            raft_groups=self.raft_groups,
            replica_sets=[ReplicaSet(node_ids=replicas) for replicas in sets],
            replica_set=[sets[replicas] for replicas in self.replicas],
            alterations=self.alterations,
            placements=[
                self._placement_record(number)
                for number in sorted({*self.placements, *self.moves, *self.founders})
            ],
        )

    def _placement_record(self, number: int) -> PartitionPlacement:
        record = PartitionPlacement(partition=number, placement=self.placement(number))
        move = self.moves.get(number)
        if move is not None:
            record.plan, record.reason = move.plan, move.reason
            record.target.extend(move.target)
        record.founders.extend(self.founders.get(number, ()))
        return record


def with_target(replicas: tuple[int, ...], move: Move) -> tuple[int, ...]:
    """Replicas, and the further ones of a move's target."""
    return tuple(dict.fromkeys([*replicas, *move.target]))


def _without(nodes: tuple[int, ...], node_id: int) -> tuple[int, ...]:
    return tuple([each for each in nodes if each != node_id])


def topic_of(record: TopicRecord) -> Topic:
    """The topic of a record."""
    raft_groups = tuple(record.raft_groups)
    sets = [tuple(each.node_ids) for each in record.replica_sets]
    replicas = tuple([sets[number] for number in record.replica_set])
    if not sets:  # a release without other nodes
        replicas = ((FIRST_NODE,),) * len(raft_groups)
    return Topic(
        record.name,
        record.topic_id,
        record.changes + 1,
        dict(record.config),
        raft_groups,
        replicas,
        record.alterations,
        {each.partition: each.placement for each in record.placements if each.placement},
        {
            each.partition: Move(each.plan, each.reason, tuple(each.target))
            for each in record.placements
            if each.target
        },
        {each.partition: tuple(each.founders) for each in record.placements if each.founders},
    )


def check_restored_topic(topic: Topic, next_node_id: int, next_raft_group: int, next_plan: int) -> None:
    """Raises ValueError if no commands lead to a topic, or the next one would exceed a number.

    Args:
        next_node_id, next_raft_group, next_plan: the first ones that were never given out.
    """
    check_topic_name(topic.name)
    versions = (topic.version, topic.alterations + 1)
    if len(topic.replicas) != len(topic.raft_groups) or not all(
        0 < each <= _VERSION_MAX for each in versions
    ):
        raise ValueError(f"version {topic.version} of topic {topic.name}, or its replicas")
    targets = [move.target for move in topic.moves.values()]
    for nodes in {*topic.replicas, *targets, *topic.founders.values()}:
        if not nodes or len({*nodes}) < len(nodes) or not all(0 < each < next_node_id for each in nodes):
            raise ValueError(f"replicas on nodes {list(nodes)} in topic {topic.name}")
    if not all(
        0 <= each < len(topic.replicas) for each in (*topic.placements, *topic.moves, *topic.founders)
    ):
        raise ValueError(f"a move of a partition that topic {topic.name} does not have")
    if not all(0 < each <= _NUMBER_MAX for each in topic.placements.values()):
        raise ValueError(f"a partition of topic {topic.name} that has moved too often")
    if not all(0 < move.plan < next_plan for move in topic.moves.values()):
        raise ValueError(f"a move of topic {topic.name} by a plan that was never made")
    groups = set(topic.raft_groups)
    if len(groups) < len(topic.raft_groups):
        raise ValueError(f"a raft group of topic {topic.name} twice")
    if not all(FIRST_PARTITION_GROUP <= each < next_raft_group for each in groups):
        raise ValueError(f"a raft group of topic {topic.name} that was never given out")

"""The state machine of raft group `metadata`: nodes, topics, and raft group and replicas of each
partition.

Pure and deterministic: every replica that applies the same commands has the same state. Ids of
nodes, topics and raft groups are never reused.

Replicas of a partition are placed when it is created (`placement`), move on command
(`partition_moves`), and lose nodes that are lost. So do they nodes that leave, while a node knows
no moves.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from pixy.cluster.state.commands import decoded
from pixy.cluster.state.newer_command import newer_command
from pixy.cluster.state.nodes import (
    FIRST_NODE,
    MOVES_LEVEL,
    PRODUCERS_LEVEL,
    NodeInfo,
    NodeTable,
    node_record,
)
from pixy.cluster.state.partition_moves import MovesChanged, begun, ended
from pixy.cluster.state.placement import ReplicaCounts, place, replication_of
from pixy.cluster.state.topic import Topic, check_restored_topic, topic_of
from pixy.errors import (
    FailedPrecondition,
    InvalidArgument,
    PixyError,
    ResourceExhausted,
    StaleTopicVersion,
    TopicExists,
    UnknownTopic,
    VoidEntry,
)
from pixy.multiraft import FIRST_PARTITION_GROUP
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import (
    AlterTopic,
    BeginMoves,
    ClusterRecord,
    CreateTopic,
    DeleteTopic,
    DrainNode,
    EndMoves,
    InitCluster,
    MetadataCommand,
    NodeRecord,
    RegisterNode,
    RemoveNode,
    TopicRecord,
)
from pixy.records import check_topic_name

METADATA_GROUP = 1
"""The raft group of this state machine."""

WHY_NO_MOVES = (
    f"replicas do not move: that needs feature level {MOVES_LEVEL}, which a cluster has once every node has started with "
    "a release that has it"
)
"""Reason to refuse a command about moves."""

WHY_NO_PRODUCERS = (
    f"idempotent producers are not served: that needs feature level {PRODUCERS_LEVEL}, which a cluster has once every "
    "node has started with a release that has it"
)
"""Reason to refuse producer ids, and batches with one."""

PARTITIONS_MAX = 10_000
_GROUPS_MAX = 800
"""State groups of consumer groups; that of sinks has the number 900."""
_RAFT_GROUP_MAX = 2**53
_NODE_ID_MAX = 2**30
_PLAN_MAX = 2**53
_PRODUCER_ID_MAX = 2**62
"""Beyond these no cluster gets, and what is stored has room for more."""
_CLUSTER_KEY = b"cluster"
_NODE_KEY = b"node/"
_TOPIC_KEY = b"topic/"


def check_partitions(count: int) -> None:
    """Reject a number of partitions that no topic may have.

    Raises:
        InvalidArgument: states the allowed range.
    """
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidArgument(f"{count} partitions; 1 to {PARTITIONS_MAX} are allowed")


class DeletedTopic(NamedTuple):
    """A topic as it was when it was deleted."""

    topic: Topic


class LeftNode(NamedTuple):
    """A node is removed or lost, and no replica of these topics any more."""

    node: NodeInfo
    topics: tuple[Topic, ...]


MetadataResult = Topic | DeletedTopic | LeftNode | MovesChanged | int | PixyError | None
"""Result of a command; the number is the id of a registered node, or the first producer id of a
block.
"""


class MetadataState:
    """Nodes, topics and the raft groups of their partitions.

    Attributes:
        groups_count: number of state groups for consumer groups; 0 before the cluster's first
            entry.
        topics: by name.
        next_raft_group: raft group of the next partition. Invariant: above every raft group ever
            assigned.
        next_plan: number of the next plan of moves. Invariant: above every number ever given.
        next_producer_id: first id of the next block of producer ids. Invariant: above every id ever
            given.
        partitions: number of partitions of all topics. Invariant: their sum.
    """

    def __init__(self) -> None:
        self.groups_count = 0
        self.next_raft_group = FIRST_PARTITION_GROUP
        self.next_plan = 1
        self.next_producer_id = 0
        self.topics: dict[str, Topic] = {}
        self.partitions = 0
        self._table = NodeTable()
        # Invariant: they count the replicas of `topics`, as of the end of all moves.
        self._counts = ReplicaCounts()

    @property
    def nodes(self) -> dict[int, NodeInfo]:
        """All nodes that ever were in the cluster, by id; another object after each change."""
        return self._table.nodes

    @property
    def next_node_id(self) -> int:
        """Id of the next node: above every id ever assigned."""
        return self._table.next_node_id

    @property
    def registered(self) -> list[int]:
        """Ids of the nodes that are not removed, ascending; at least one."""
        return self._table.registered

    @property
    def started(self) -> list[int]:
        """Ids of the registered nodes that have started, ascending; at least one."""
        return self._table.started

    @property
    def waiting(self) -> list[int]:
        """Ids of the registered nodes that have never started, ascending."""
        return self._table.waiting()

    def judge_node(self, command: RegisterNode) -> int | PixyError | None:
        """As `NodeTable.judge`."""
        return self._table.judge(command)

    @property
    def feature_level(self) -> int:
        """Newest commands that every registered node knows."""
        return self._table.feature_level

    @property
    def largest_message_bytes(self) -> int:
        """As in `NodeTable`."""
        return self._table.largest_message_bytes

    def replicas_on(self, node_id: int) -> int:
        """Number of replicas on a node, as of the end of all moves."""
        return self._counts.replicas[node_id]

    def under_replicated(self) -> list[str]:
        """Topics with fewer replicas than their replication and the started nodes allow."""
        nodes = set(self.started)
        return [
            topic.name
            for topic in self.topics.values()
            if any(
                len(nodes.intersection(replicas)) < min(replication_of(topic.config), len(nodes))
                for replicas in set(topic.replicas)
            )
        ]

    def apply(self, payload: bytes, term: int = 0) -> MetadataResult:
        """Apply one command; returns its result for the proposer.

        Raises:
            DataDirectoryError: a newer release wrote it.
        """
        command = decoded(MetadataCommand, payload)
        if isinstance(command, VoidEntry):
            return command
        result: MetadataResult = None
        match command.WhichOneof("command"):
            case "init_cluster":
                result = self._init_cluster(command.init_cluster)
            case "create_topic":
                result = self._create_topic(command.create_topic)
            case "alter_topic":
                result = self._alter_topic(command.alter_topic)
            case "delete_topic":
                result = self._delete_topic(command.delete_topic)
            case "allocate_producer_ids":
                result = self._allocate_producer_ids(command.allocate_producer_ids.count)
            case _:
                result = self._apply_to_nodes(command)
        return result

    def _apply_to_nodes(self, command: MetadataCommand) -> MetadataResult:
        """Apply a command about nodes, or moves between them."""
        result: MetadataResult = None
        match command.WhichOneof("command"):
            case "register_node":
                result = self._table.register(command.register_node)
            case "start_node":
                result = self._table.start(command.start_node)
            case "remove_node":
                result = self._remove_node(command.remove_node)
            case "forget_node":
                result = self._forget_node(command.forget_node.node_id)
            case "drain_node" | "begin_moves" | "end_moves" if self.feature_level < MOVES_LEVEL:
                result = FailedPrecondition(WHY_NO_MOVES)
            case "drain_node":
                result = self._drain_node(command.drain_node)
            case "begin_moves":
                result = self._begin_moves(command.begin_moves)
            case "end_moves":
                result = self._end_moves(command.end_moves)
            case _:
                raise newer_command("state group metadata")
        return result

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        """The whole state as checkpoint records.

        May be consumed on another thread while commands are applied.
        """
        cluster = ClusterRecord(
            groups_count=self.groups_count,
            next_raft_group=self.next_raft_group,
            next_node_id=self._table.next_node_id,
            next_plan=0 if self.next_plan == 1 else self.next_plan,
            next_producer_id=self.next_producer_id,
        )
        return _records(cluster, self.nodes, list(self.topics.values()))

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the whole state by a checkpoint's records.

        Raises:
            ValueError: no commands lead to this state; what a record lacks raises others.
        """
        self.topics, self.partitions = {}, 0
        self._table, self._counts = NodeTable(), ReplicaCounts()
        for key, value in records:
            if key == _CLUSTER_KEY:
                cluster = parsed(ClusterRecord, value)
                self.groups_count, self.next_raft_group = cluster.groups_count, cluster.next_raft_group
                self.next_plan = cluster.next_plan or 1
                self.next_producer_id = cluster.next_producer_id
                self._table.next_node_id = max(self._table.next_node_id, cluster.next_node_id)
            elif key.startswith(_NODE_KEY):
                self._table.restore(parsed(NodeRecord, value))
            else:
                topic = topic_of(parsed(TopicRecord, value))
                self.topics[topic.name] = topic
                self.partitions += len(topic.raft_groups)
                self._counts.add(topic.placed)
        _check_restored(self)

    def _init_cluster(self, command: InitCluster) -> PixyError | None:
        first = command.first_node if command.HasField("first_node") else None
        if not 0 < command.groups_count <= _GROUPS_MAX or (first and first.node_id != FIRST_NODE):
            return FailedPrecondition(
                f"a cluster has 1 to {_GROUPS_MAX} state groups, and begins with node 1"
            )
        if not self.groups_count:
            self.groups_count = command.groups_count
            if first is not None:
                first.removed = first.lost = False
                self._table.restore(first)
        return None

    def _create_topic(self, command: CreateTopic) -> Topic | PixyError:
        try:
            check_topic_name(command.name)
            check_partitions(command.partitions)
        except PixyError as error:
            return error
        if command.name in self.topics:
            return TopicExists(f"topic {command.name} exists already")
        refusal = self.exceeded(1, command.partitions, command.max_topics, command.max_partitions)
        if refusal is not None:
            return refusal
        topic = Topic(command.name, command.topic_id, 1, dict(command.config), (), ())
        topic = self.topics[topic.name] = self._with_partitions(
            topic, command.partitions, command.unreachable_nodes
        )
        return topic

    def _alter_topic(self, command: AlterTopic) -> Topic | PixyError:
        topic = self._named(command)
        if isinstance(topic, UnknownTopic):
            return topic
        present = len(topic.raft_groups)
        wanted = command.partitions or present
        if not present <= wanted <= PARTITIONS_MAX:
            return InvalidArgument(
                f"{wanted} partitions; topic {topic.name} has {present}, and {present} to {PARTITIONS_MAX} are allowed"
            )
        refusal = self.exceeded(0, wanted - present, 0, command.max_partitions)
        if refusal is not None:
            return refusal
        config = {name: value for name, value in topic.config.items() if name not in command.unset_config}
        config |= command.set_config
        changes = wanted != present or config != topic.config
        if command.HasField("alterations"):
            if changes and command.alterations != topic.alterations:
                return StaleTopicVersion(
                    f"topic {topic.name} was altered meanwhile, by another call: look at it, and ask again"
                )
            topic = self.topics[topic.name] = replace(topic, alterations=topic.alterations + 1)
        if changes:
            topic = replace(topic, version=topic.version + 1, config=config)
            topic = self.topics[topic.name] = self._with_partitions(
                topic, wanted - present, command.unreachable_nodes
            )
        return topic

    def _delete_topic(self, command: DeleteTopic) -> DeletedTopic | PixyError:
        topic = self._named(command)
        if isinstance(topic, UnknownTopic):
            return topic
        del self.topics[command.name]
        self._counts.remove(topic.placed)
        self.partitions -= len(topic.raft_groups)
        return DeletedTopic(topic)

    def _allocate_producer_ids(self, count: int) -> int | PixyError:
        # A node that never has peers is in no table, and applies all that it proposes.
        if self.nodes and self.feature_level < PRODUCERS_LEVEL:
            return FailedPrecondition(WHY_NO_PRODUCERS)
        first = self.next_producer_id
        self.next_producer_id += count
        return first

    def _named(self, command: AlterTopic | DeleteTopic) -> Topic | UnknownTopic:
        """The topic of a command, which may come late: another one may have the name."""
        topic = self.topics.get(command.name)
        if topic is None:
            return UnknownTopic(f"unknown topic {command.name}")
        if command.topic_id not in (b"", topic.topic_id):
            return UnknownTopic(f"topic {command.name} was deleted meanwhile, and made anew")
        return topic

    def exceeded(
        self, topics: int, partitions: int, max_topics: int, max_partitions: int
    ) -> ResourceExhausted | None:
        """The limit that so many more topics and partitions would exceed, 0 for none; None if they
        fit.
        """
        if topics > 0 and 0 < max_topics < len(self.topics) + topics:
            return ResourceExhausted(
                f"the cluster has {len(self.topics)} topics, limits.max_topics allows {max_topics}"
            ).at_limit("limits.max_topics")
        if partitions > 0 and 0 < max_partitions < self.partitions + partitions:
            return ResourceExhausted(
                f"the cluster has {self.partitions} partitions, limits.max_partitions allows {max_partitions}: "
                f"{partitions} more do not fit"
            ).at_limit("limits.max_partitions")
        return None

    def _with_partitions(self, topic: Topic, count: int, unreachable: Collection[int]) -> Topic:
        """A topic with `count` further partitions, as `place`."""
        first = self.next_raft_group
        self.next_raft_group += count
        self.partitions += count
        replication = replication_of(topic.config)
        nodes = self._table.placeable()
        placed = place(count, replication, nodes, self._counts, topic.placed, {*unreachable})
        self._counts.add(placed)
        raft_groups = (*topic.raft_groups, *range(first, self.next_raft_group))
        return replace(topic, raft_groups=raft_groups, replicas=topic.replicas + placed)

    # --- nodes that leave, and moves --------------------------------------------------------------

    def _remove_node(self, command: RemoveNode) -> LeftNode | PixyError | None:
        """A node leaves; refused while it has replicas that no other node has."""
        node_id = command.node_id
        node = self._table.leaving(node_id)
        if isinstance(node, PixyError):
            return node
        if node.removed:
            return None
        left_meanwhile = sorted({*command.staying} - {*self.registered})
        if left_meanwhile:
            return FailedPrecondition(
                f"node {node_id} stays: node {left_meanwhile[0]} has left since it was checked that the others can do "
                "without it; ask again"
            )
        alone = (node_id,)
        for topic in self.topics.values():
            if alone in topic.replicas:
                return FailedPrecondition(
                    f"node {node_id} has the only replica of partition {topic.replicas.index(alone)} of topic {topic.name}"
                )
        left = self._table.remove(node, lost=False)
        if not command.moves_replicas:
            return LeftNode(left, self._without(node_id))
        plan = self.next_plan
        topics = [
            topic.moved_from(node_id, plan)
            for topic in self.topics.values()
            if node_id in chain.from_iterable({*topic.placed})
        ]
        if topics:
            self.next_plan += 1
        return LeftNode(left, self._replaced(topics))

    def _forget_node(self, node_id: int) -> LeftNode | PixyError | None:
        """A node is lost; it keeps replicas that no other node has."""
        node = self._table.leaving(node_id)
        if isinstance(node, PixyError):
            return node
        if node.lost:
            return None
        return LeftNode(self._table.remove(node, lost=True), self._without(node_id))

    def _without(self, node_id: int) -> tuple[Topic, ...]:
        """Take a node out of all replicas and targets."""
        topics = [
            changed
            for topic in self.topics.values()
            if node_id in chain.from_iterable({*topic.replicas, *topic.placed})
            and (changed := topic.without(node_id)) != topic
        ]
        return self._replaced(topics)

    def _drain_node(self, command: DrainNode) -> PixyError | None:
        return self._table.drain(command.node_id, draining=command.draining)

    def _begin_moves(self, command: BeginMoves) -> MovesChanged:
        result = begun(command, self.topics, self.started, self.next_plan)
        if result.topics:
            self.next_plan += 1
        self._replaced(result.topics)
        return result

    def _end_moves(self, command: EndMoves) -> MovesChanged:
        result = ended(command, self.topics)
        self._replaced(result.topics)
        return result

    def _replaced(self, topics: Iterable[Topic]) -> tuple[Topic, ...]:
        """Put topics with other replicas or moves in the place of the present ones."""
        for topic in topics:
            self._counts.remove(self.topics[topic.name].placed)
            self._counts.add(topic.placed)
            self.topics[topic.name] = topic
        return tuple(topics)


def _records(
    cluster: ClusterRecord, nodes: Mapping[int, NodeInfo], topics: list[Topic]
) -> Iterable[tuple[bytes, bytes]]:
    yield _CLUSTER_KEY, cluster.SerializeToString()
    for node in nodes.values():
        yield _NODE_KEY + b"%d" % node.node_id, node_record(node).SerializeToString()
    for topic in topics:
        yield _TOPIC_KEY + topic.name.encode(), topic.record().SerializeToString()


def _check_restored(state: MetadataState) -> None:
    """Raises ValueError if no commands lead to a state, or the next one would exceed a number."""
    if not 0 <= state.groups_count <= _GROUPS_MAX:
        raise ValueError(f"{state.groups_count} state groups")
    if not FIRST_PARTITION_GROUP <= state.next_raft_group <= _RAFT_GROUP_MAX:
        raise ValueError(f"raft group {state.next_raft_group} is the next one")
    ids = [*state.nodes, state.next_node_id]
    if not all(0 < each <= _NODE_ID_MAX for each in ids):
        raise ValueError(f"nodes {ids[:-1]}, node {ids[-1]} is the next one")
    if not 0 < state.next_plan <= _PLAN_MAX:
        raise ValueError(f"plan {state.next_plan} is the next one")
    if not 0 <= state.next_producer_id <= _PRODUCER_ID_MAX:
        raise ValueError(f"producer id {state.next_producer_id} is the next one")
    seen: set[int] = set()
    for topic in state.topics.values():
        check_restored_topic(topic, state.next_node_id, state.next_raft_group, state.next_plan)
        if not seen.isdisjoint(topic.raft_groups):
            raise ValueError(f"a raft group of topic {topic.name} twice")
        seen.update(topic.raft_groups)

"""The commands that callers of a node run in its state groups: topics, nodes, consumer groups.

Each is durable and applied here on return.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import structlog

from pixy.cluster.log import PartitionReplica
from pixy.cluster.peering import (
    AppliedElsewhere,
    MoveRequest,
    MovesPlanned,
    ReplicaQuorums,
    plan_request,
    view_of,
)
from pixy.cluster.publications import StagingRouter
from pixy.cluster.replicas import CommandProposals, StateGroups
from pixy.cluster.state import (
    IDENTITY_LEVEL,
    MOVES_LEVEL,
    PLACEMENT_LEVEL,
    POLICY_LEVEL,
    PRODUCERS_LEVEL,
    REMOVING_LEVEL,
    SEEN_LEVEL,
    WHY_NO_MOVES,
    WHY_NO_PRODUCERS,
    ClusterLimits,
    DeletedTopic,
    MovesChanged,
    Topic,
    alter_command,
    create_command,
    delete_command,
    is_compacted,
    removal,
    why_no_such_replicas,
)
from pixy.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    PixyError,
    ResourceExhausted,
    StaleTopicVersion,
    Unavailable,
    UnknownTopic,
)
from pixy.multiraft import NEVER, Repeated
from pixy.proto.node_calls_pb2 import JoinRequest
from pixy.proto.state_pb2 import (
    AllocateProducerIds,
    BeginMoves,
    CommitOffsets,
    DeleteOffsets,
    DrainNode,
    ForgetNode,
    GroupsCommand,
    MetadataCommand,
    MoveReason,
    NodeRecord,
    PartitionCommand,
    PartitionMove,
    RegisterNode,
    SetLogBeginOffset,
    StartNode,
)
from pixy.raft.quorum import is_majority

log = structlog.get_logger(__name__)

_COMMAND_S = 15.0
"""Seconds until a request for a command is answered in any case; a change of leaders takes two."""
_CONFIRM_S = 5.0
_AGAIN_S = 1.0
"""Seconds within which a change is tried again that has met another one."""
_TOLD_S = 5.0
"""Seconds that other nodes get to apply a deletion that is answered without them too."""
_PLANNED_AT_ONCE = 500
"""Partitions whose moves are planned in a step of the event loop."""
_FIRST_START_S = 300.0
"""Seconds that a node which has joined gets for its first start while others wait to join."""


@dataclass(frozen=True, slots=True)
class OtherNodes:
    """The other nodes, as commands need them.

    Attributes:
        is_reachable: true of a node that can be reached.
        confirm: waits until metadata has what was committed before, for some seconds.
        applied: waits until they have applied a deletion.
    """

    is_reachable: Callable[[int], bool]
    confirm: Callable[[float], Awaitable[None]]
    applied: AppliedElsewhere


class NodeCommands:
    """Commands of one node.

    Args:
        proposals: proposes them.
        state_groups: the state machines that they change.
        staging: staged writes, which a topic is not deleted under.
        random_bytes: source of ids.
        limits: of the cluster.
        others: the other nodes.
    """

    def __init__(
        self,
        proposals: CommandProposals,
        state_groups: StateGroups,
        staging: StagingRouter,
        random_bytes: Callable[[int], bytes],
        limits: ClusterLimits,
        others: OtherNodes,
    ) -> None:
        self._proposals = proposals
        self._state_groups = state_groups
        self._metadata = state_groups.metadata
        self._staging = staging
        self._random_bytes = random_bytes
        self.limits = limits
        self._is_reachable, self._confirm = others.is_reachable, others.confirm
        self._applied = others.applied
        # When a node was first refused for the sake of these, which have joined and not started.
        self._waiting_since: dict[int, float] = {}

    # --- topics -----------------------------------------------------------------------------------

    async def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> Topic:
        """Create a topic.

        Raises:
            InvalidTopic, InvalidArgument, TopicExists, ResourceExhausted.
            FailedPrecondition: a node has an older release, which would not honour an option.
        """
        self._check_policy(config)
        topic_id = self._random_bytes(16)
        command = create_command(name, topic_id, partitions, config)
        if name not in self._metadata.topics:
            await self._check_replication(config, name)
        topic = await self._topic(name, command, topic_id)
        _say_uncompacted(name, config)
        return topic

    async def alter_topic(self, name: str, partitions: int | None, config: Mapping[str, str | None]) -> Topic:
        """Add partitions to a topic, or change its options.

        Raises:
            UnknownTopic, InvalidArgument, ResourceExhausted.
            StaleTopicVersion: another call has altered it meanwhile.
            FailedPrecondition: as `create_topic`.
        """
        self._check_policy(config)
        until = asyncio.get_running_loop().time() + _AGAIN_S
        while True:
            try:
                topic = await self._alter_topic(name, partitions, config)
                _say_uncompacted(name, config)
                return topic
            except StaleTopicVersion:
                # At the same moment, unless this node or the call was held up.
                if asyncio.get_running_loop().time() >= until:
                    raise

    def _check_policy(self, config: Mapping[str, str | None]) -> None:
        """Raise `FailedPrecondition` while a node would delete what a topic with these options
        keeps.
        """
        groups = self._state_groups
        if is_compacted(config) and groups.metadata.nodes and groups.feature_level < POLICY_LEVEL:
            raise FailedPrecondition(
                f"topic option cleanup_policy={config['cleanup_policy']} needs feature level {POLICY_LEVEL}, which a "
                "cluster has once every node has started with a release that has it"
            )

    async def _alter_topic(
        self, name: str, partitions: int | None, config: Mapping[str, str | None]
    ) -> Topic:
        topic_id = await self._identify(name)
        known = self._metadata.topics.get(name)
        seen = None if known is None or self._state_groups.feature_level < SEEN_LEVEL else known.alterations
        command = alter_command(name, partitions, config, topic_id, seen)
        await self._check_replication(command.alter_topic.set_config, name)
        return await self._topic(name, command, b"" if known is None else known.topic_id)

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic and its records. On return no replica of it acknowledges any more.

        Args:
            force: also if records of it are staged, or nodes that cannot be reached may acknowledge
                further ones until they hear of the deletion.

        Raises:
            UnknownTopic, FailedPrecondition.
            Unavailable: such nodes cannot be reached; the topic stays.
            DeadlineExceeded: the topic may be deleted, or is, and such nodes do not answer.
        """
        command = delete_command(name, await self._identify(name))
        topic = self._metadata.topics.get(name)
        if topic is None:
            await self._run(command, _COMMAND_S)
            return
        if not force:
            self._check_closable(topic)
        until = asyncio.get_running_loop().time() + _COMMAND_S
        with self._staging.deleting(topic, force=force):
            result = await self._run(command, _COMMAND_S, frees_space=True)
        if isinstance(result, DeletedTopic):
            topic = result.topic
        await self._close_elsewhere(topic, until, force=force)

    def _check_closable(self, topic: Topic) -> None:
        """Raise `Unavailable` if nodes that cannot be reached may acknowledge for a topic."""
        quorums = ReplicaQuorums(topic)
        present = {each.node_id for each in self._metadata.nodes.values() if not each.lost}
        silent = {each for each in quorums.nodes & present if not self._is_reachable(each)}
        if quorums.is_majority(silent):
            raise Unavailable(
                f"{_names_of(silent)} cannot be reached, and may go on to acknowledge messages for topic {topic.name}; force "
                "deletes it all the same"
            )

    async def _close_elsewhere(self, topic: Topic, until: float, *, force: bool) -> None:
        """Wait until the nodes that do not know of the deletion of a topic acknowledge nothing."""
        quorums, left = ReplicaQuorums(topic), until - asyncio.get_running_loop().time()
        silent = await self._applied.wait(
            self._state_groups.metadata_replica.group,
            quorums.nodes,
            lambda silent: not quorums.is_majority(silent),
            min(left, _TOLD_S) if force else left,
            gives_up=force,
        )
        if not force and quorums.is_majority(silent):
            raise DeadlineExceeded(
                f"topic {topic.name} is deleted, but {_names_of(silent)} may acknowledge messages for it until they hear of it"
            )

    async def delete_records(self, replica: PartitionReplica, offset: int) -> None:
        """Remove the records of a partition below an offset. On return no node that can be reached
        serves them any more, unless it has not applied that in `_TOLD_S`.

        Raises:
            UnknownPartition: its topic was deleted.
            FailedPrecondition: a node has an older release.
        """
        self.check_removing()
        if offset > replica.log.begin_offset:
            command = PartitionCommand(set_log_begin_offset=SetLogBeginOffset(offset=offset, for_client=True))
            await self._proposals.run(replica, command.SerializeToString(), _COMMAND_S)
        if replica.group is not None:
            nodes = replica.replicas if replica.move is None else (*replica.replicas, *replica.move.target)
            await self._applied.wait(replica.group, nodes, _is_empty, _TOLD_S, gives_up=True)

    async def _identify(self, name: str) -> bytes:
        """Id of the topic that has a name now. The command may be carried out long after its caller
        has given it up, when another topic has it.

        Returns:
            b"" while there are nodes that would not look at it.

        Raises:
            UnknownTopic: there is none.
            Unavailable: metadata has no leader that answers in time.
        """
        if self._state_groups.feature_level < IDENTITY_LEVEL:
            return b""
        if len(self._metadata.registered) > 1:
            await self._confirm(_CONFIRM_S)
        topic = self._metadata.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"unknown topic {name}")
        return topic.topic_id

    async def _topic(self, name: str, command: MetadataCommand, topic_id: bytes) -> Topic:
        """Carry out a command.

        Args:
            topic_id: of the topic that it is for, empty if unknown. Another one may have its name
                by the time that a repetition of the command is answered.
        """
        await self._check_limits(command)
        self.limits.limit(command)
        self._name_unreachable(command)
        topic = await self._run(command, _COMMAND_S)
        if isinstance(topic, Repeated):
            topic = self._metadata.topics.get(name)
            if topic is None or topic_id not in (b"", topic.topic_id):
                raise UnknownTopic(f"topic {name} was deleted meanwhile")
        assert isinstance(topic, Topic)
        return topic

    async def _check_replication(self, wanted: Mapping[str, str], name: str) -> None:
        """Refuse a number of replicas that the topic cannot get: nothing would come of it."""

        def refusal() -> InvalidArgument | None:
            topic, nodes = self._metadata.topics.get(name), len(self._metadata.started)
            move = self._state_groups.feature_level >= MOVES_LEVEL
            return why_no_such_replicas(wanted, nodes, topic, move=move)

        if refusal() is None:
            return
        if len(self._metadata.registered) > 1:
            # Another node may have joined.
            await self._confirm(_CONFIRM_S)
        if (refused := refusal()) is not None:
            raise refused

    def _name_unreachable(self, command: MetadataCommand) -> None:
        """Add the nodes that this one does not reach to a command that may place replicas, if every
        node knows them.
        """
        if self._state_groups.feature_level < PLACEMENT_LEVEL:
            return
        kind = command.create_topic if command.HasField("create_topic") else command.alter_topic
        started = self._metadata.started
        kind.unreachable_nodes.extend(node_id for node_id in started if not self._is_reachable(node_id))

    async def _check_limits(self, command: MetadataCommand) -> None:
        """Refuse without an entry what exceeds a limit: who is refused may ask again and again."""
        if self.limits.judge(command) is None:
            return
        if len(self._metadata.registered) > 1:
            # Another node may have deleted something.
            await self._confirm(_CONFIRM_S)
        refusal = self.limits.judge(command)
        if refusal is not None:
            raise refusal

    # --- nodes ------------------------------------------------------------------------------------

    async def register_node(self, request: JoinRequest) -> int:
        """Register a node that wants to join; returns its id.

        Raises:
            ResourceExhausted: too many nodes have joined, and not started.
        """
        command = RegisterNode(
            secret=request.secret,
            address=request.address,
            grpc_address=request.grpc_address,
            rack=request.rack,
            version=request.version,
            feature_level=request.feature_level,
        )
        # Without an entry, as far as is known here: whoever asks may ask again and again.
        judged = self._metadata.judge_node(command)
        if isinstance(judged, ResourceExhausted):
            await self._give_up_waiting()
        if isinstance(judged, PixyError):
            raise judged
        if judged is not None:
            return judged
        result = await self._run(MetadataCommand(register_node=command))
        node_id: int = result.value if isinstance(result, Repeated) else result
        return node_id

    async def _give_up_waiting(self) -> None:
        """Forget nodes that have joined and are not there, once another one has waited long enough
        for their places.
        """
        now = asyncio.get_running_loop().time()
        self._waiting_since = {
            node_id: self._waiting_since.get(node_id, now) for node_id in self._metadata.waiting
        }
        for node_id, since in self._waiting_since.items():
            if now - since >= _FIRST_START_S and not self._is_reachable(node_id):
                await self.forget_node(node_id)

    async def start_node(self, own: NodeRecord) -> None:
        """Tell the cluster of the start of this node."""
        command = StartNode(
            node_id=own.node_id,
            secret=own.secret,
            address=own.address,
            grpc_address=own.grpc_address,
            rack=own.rack,
            incarnation=own.incarnation,
            process=own.process,
            version=own.version,
            feature_level=own.feature_level,
            max_message_bytes=own.max_message_bytes,
        )
        await self._run(MetadataCommand(start_node=command))

    async def remove_node(self, node_id: int, staying: Iterable[int] = ()) -> None:
        """Take a node out of the cluster.

        Args:
            staying: the nodes that it was checked for that they can do without it.

        Raises:
            NotFound: there is no such node.
            FailedPrecondition: it is the only one, has the only replica of a partition, or one of
                `staying` has left meanwhile.
            Unavailable: no majority in time; the node stays.
        """
        await self._run(removal(node_id, staying, self._state_groups.feature_level), _COMMAND_S)

    async def forget_node(self, node_id: int) -> None:
        """Give up a node that is lost.

        Raises:
            NotFound: there is no such node.
            FailedPrecondition: it is the only one, or is running.
            Unavailable: no majority without it; the node stays.
        """
        if node_id in self._metadata.nodes and self._is_reachable(node_id):
            raise FailedPrecondition(f"node {node_id} is running: only a lost node can be forgotten")
        self._check_majority_without(node_id)
        await self._run(MetadataCommand(forget_node=ForgetNode(node_id=node_id)), _COMMAND_S)

    async def drain_node(self, node_id: int, *, draining: bool) -> None:
        """Have a node give its replicas to others, or no longer.

        Raises:
            NotFound: there is no such node.
            FailedPrecondition: a node has an older release.
            Unavailable: no majority in time.
        """
        self.check_moving()
        command = DrainNode(node_id=node_id, draining=draining)
        await self._run(MetadataCommand(drain_node=command), _COMMAND_S)

    async def plan_moves(self, request: MoveRequest) -> MovesPlanned:
        """Plan moves, and begin none.

        Raises:
            NotFound, UnknownTopic, UnknownPartition: what is to move, or where to, is not there.
            FailedPrecondition: it cannot move so, or a node has an older release.
            Unavailable: no majority in time.
        """
        self.check_moving()
        if len(self._metadata.registered) > 1:
            await self._confirm(_CONFIRM_S)
        reached = [node_id for node_id in self._metadata.registered if self._is_reachable(node_id)]
        seen = {**self._metadata.topics}, self._metadata.registered, view_of(self._metadata, reached)
        if self._metadata.partitions <= _PLANNED_AT_ONCE:
            return plan_request(request, *seen)
        return await asyncio.to_thread(plan_request, request, *seen)

    async def begin_moves(
        self, reason: MoveReason.ValueType, moves: Sequence[PartitionMove]
    ) -> Sequence[str]:
        """Have partitions move to other nodes, or moves under way to others than before.

        Args:
            moves: the partitions as they were seen, no more than `MOVES_MAX`.

        Returns:
            The partitions that are not as they were seen any more, each with the reason.

        Raises:
            FailedPrecondition: a node has an older release.
            Unavailable: no majority in time.
        """
        self.check_moving()
        command = MetadataCommand(begin_moves=BeginMoves(reason=reason, moves=moves))
        result = await self._run(command, _COMMAND_S)
        return result.refused if isinstance(result, MovesChanged) else ()

    async def allocate_producer_ids(self, count: int) -> int:
        """Take a block of producer ids, which nobody else ever gets; returns the first one.

        Raises:
            FailedPrecondition: a node has an older release.
            Unavailable, DeadlineExceeded: no majority in time.
        """
        self.check_producers()
        command = MetadataCommand(allocate_producer_ids=AllocateProducerIds(count=count))
        result = await self._run(command, _COMMAND_S)
        first: int = result.value if isinstance(result, Repeated) else result
        return first

    def check_producers(self) -> None:
        """Raise `FailedPrecondition` while a node would not know what producers have written."""
        groups = self._state_groups
        if groups.metadata.nodes and groups.feature_level < PRODUCERS_LEVEL:
            raise FailedPrecondition(WHY_NO_PRODUCERS)

    def check_moving(self) -> None:
        """Raise `FailedPrecondition` while a node would not know moves."""
        if self._state_groups.feature_level < MOVES_LEVEL:
            raise FailedPrecondition(WHY_NO_MOVES)

    def _check_majority_without(self, node_id: int) -> None:
        """Raise `Unavailable` if a state group decides nothing without a node: it would be put out
        by its own vote, when it comes back, or be missing for good.
        """
        for replica in self._state_groups.replicas():
            voters = replica.group.storage.conf_state.voters
            reached = [each for each in voters if each != node_id and self._is_reachable(each)]
            if len(voters) > 1 and node_id in voters and not is_majority(reached, voters):
                raise Unavailable(
                    f"of the {len(voters)} voters of {replica.name} this node reaches {len(reached)} without node {node_id}, "
                    "which is no majority: start the others, or if they are lost, stop this node and run pixy cluster recover"
                )

    async def _run(
        self, command: MetadataCommand, timeout_s: float = NEVER, *, frees_space: bool = False
    ) -> Any:
        replica, payload = self._state_groups.metadata_replica, command.SerializeToString()
        return await self._proposals.run(replica, payload, timeout_s, frees_space=frees_space)

    # --- consumer groups --------------------------------------------------------------------------

    async def delete_offsets(self, consumer_group: str, topic: str, topic_id: bytes, seen: int) -> None:
        """Remove the offsets of a consumer group in a topic, or with an empty name in all.

        Args:
            seen: `GroupsState.checksum` of these offsets. The command may be carried out long after
                its caller has given it up, when the group has begun anew.

        Raises:
            UnknownGroup: it has none.
            FailedPrecondition: it has members, other offsets by now, or a node has an older
                release.
        """
        self.check_removing()
        command = DeleteOffsets(group=consumer_group, topic=topic, topic_id=topic_id)
        if self._state_groups.feature_level >= SEEN_LEVEL:
            command.seen = seen
        await self.change_group(consumer_group, GroupsCommand(delete_offsets=command).SerializeToString())

    async def delete_partition_offsets(
        self, consumer_group: str, topic: str, topic_id: bytes, partitions: Collection[int]
    ) -> None:
        """Remove the offsets of a consumer group in partitions that the coordinator of a classic
        group knows to be subscribed to by nobody.

        Raises:
            UnknownGroup: it has none.
            FailedPrecondition: one of pixy's own consumers subscribes to the topic.
        """
        command = DeleteOffsets(
            group=consumer_group, topic=topic, topic_id=topic_id, partitions=sorted(partitions)
        )
        await self.change_group(consumer_group, GroupsCommand(delete_offsets=command).SerializeToString())

    def check_removing(self) -> None:
        """Raise `FailedPrecondition` while a node would not know a removal for a client."""
        if not self._state_groups.is_lone and self._state_groups.feature_level < REMOVING_LEVEL:
            raise FailedPrecondition(
                "a node of the cluster has an older release: offsets and records can be removed once all have this one"
            )

    def name_seen(self, command: CommitOffsets) -> None:
        """Have offsets that a client sets refused if others are set or removed until then: they may
        come long after their caller has given up. No effect while a node would not look at it.
        """
        if self._state_groups.feature_level >= SEEN_LEVEL:
            state = self._state_groups.offsets_of(command.group)
            for each in command.offsets:
                each.set_ms = state.set_ms(command.group, each.topic_id, each.partition)

    async def change_group(self, consumer_group: str, payload: bytes) -> Any:
        """Run a `GroupsCommand` in the state group of a consumer group; returns its result.

        Raises:
            Unavailable: no majority can be reached, or no leader answers in time.
            DeadlineExceeded: it may be carried out.
        """
        replica = self._state_groups.group_of(consumer_group)
        voters = replica.group.storage.conf_state.voters
        reached = [each for each in voters if self._is_reachable(each)]
        if voters and not is_majority(reached, voters):
            raise Unavailable(
                f"no majority: this node reaches {len(reached)} of the {len(voters)} nodes of {replica.name}"
            )
        return await self._proposals.run(replica, payload, _COMMAND_S)


def _say_uncompacted(topic: str, config: Mapping[str, str | None]) -> None:
    if is_compacted(config):
        policy = config["cleanup_policy"]
        kept = "all of them are kept" if policy == "compact" else "they are deleted by age and size"
        log.warning(f"records of a topic are not compacted: {kept}", topic=topic, cleanup_policy=policy)


def _is_empty(nodes: AbstractSet[int]) -> bool:
    return not nodes


def _names_of(nodes: AbstractSet[int]) -> str:
    return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, sorted(nodes)))}"

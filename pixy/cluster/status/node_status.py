"""Status of a cluster as a node knows it: by itself, and with what the others tell."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError

import pixy
from pixy.aio.steps import in_steps
from pixy.cluster.log import PartitionReplica, cluster_id_of
from pixy.cluster.peering import NodePeers, PeerMethod, Relays, view_of
from pixy.cluster.replicas import Partitions, StateGroups
from pixy.cluster.state import MOVES_LEVEL, NodeInfo, Topic, reason_name
from pixy.cluster.status.status import (
    ClusterStatus,
    CopyStatus,
    DamagedReplica,
    DiskSpace,
    MemberState,
    MemberStatus,
    MoveStatus,
    NodeStatus,
    RaftGroupStatus,
    merged,
    with_unreported,
    without_gone,
)
from pixy.cluster.status.status_messages import decode_status, encode_status, is_possible
from pixy.errors import PixyError
from pixy.multiraft import FIRST_PARTITION_GROUP, RaftGroup
from pixy.proto.pixy_cluster_pb2 import StatusResponse
from pixy.proto.state_pb2 import NodeIdentity
from pixy.raft import StateType
from pixy.raft.progress import Progress, ProgressState
from pixy.records import TopicPartition

T = TypeVar("T")

_ASK_TIMEOUT_S = 2.0
_GROUPS_AT_ONCE = 500
"""More raft groups are more work than a step of the event loop should have."""
_BYTES_AT_ONCE = 256 << 10
_UNKNOWN_MAX = 1000
"""Raft groups, and nodes, that another node may know and this one does not yet."""
_WAITS_FOR_STAGES = (
    "stages of staged writes are on its only node, and have to be published or discarded first"
)
_GROUP_BYTES_MAX = 1 << 10
"""Of a raft group in a status, on average: its name, and some members."""


class SelfReports(NamedTuple):
    """Callables that tell what is wrong with a node itself, and what it has left.

    Attributes:
        not_ready: why it has not started, empty once it has.
        blocked: why it writes no messages, empty while it does.
        troubles: what else the node knows to be wrong.
        disk: with its data.
        needs_only_replicas: true of a topic whose partitions cannot get other replicas yet.
    """

    not_ready: Callable[[], str]
    blocked: Callable[[], str]
    troubles: Callable[[], Sequence[str]]
    disk: Callable[[], DiskSpace]
    needs_only_replicas: Callable[[bytes], bool]


class StatusReports:
    """Reports of one node.

    Args:
        identity: of the node.
        incarnation: number of its start.
        state_groups, partitions: its raft groups.
        peers: the other nodes; None if it never has any.
        knows: tells what is wrong with the node itself.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        incarnation: int,
        state_groups: StateGroups,
        partitions: Partitions,
        peers: NodePeers | None,
        knows: SelfReports,
    ) -> None:
        self._cluster_id, self._node_id = cluster_id_of(identity), identity.node_id
        self._incarnation = incarnation
        self._state_groups = state_groups
        self._partitions = partitions
        self._peers = peers
        self._not_ready, self._blocked, self._troubles, self._disk, self._needs_only_replicas = knows
        self._loop = asyncio.get_running_loop()

    async def own(self) -> ClusterStatus:
        """Status as far as this node knows it, with all nodes that were ever removed; without raft
        groups until it has started.
        """
        not_ready = self._not_ready()
        if not_ready:
            return ClusterStatus(self._cluster_id, self._nodes(), (), (), not_ready)
        return ClusterStatus(
            self._cluster_id,
            self._nodes(),
            await self._raft_groups(),
            tuple(self._state_groups.metadata.under_replicated()),
            "" if self._peers is None else self._peers.waiting_for,
            can_move=self._state_groups.feature_level >= MOVES_LEVEL,
            moves=tuple(self._moves()),
        )

    async def merged(self) -> ClusterStatus:
        """Status with what the other nodes know of raft groups."""
        own = await self.own()
        if self._peers is None or self._not_ready():
            return without_gone(own)
        relays = self._peers.relays
        reached = [each.node_id for each in self._peers.members if relays.through(each.node_id) is not None]
        answers = await asyncio.gather(*(self._ask(relays, node_id) for node_id in reached))
        topics = list(self._state_groups.metadata.topics.values())
        state_groups = [each.group.raft_group for each in self._state_groups.replicas()]

        def work() -> ClusterStatus:
            partitions = list(_partitions_of(topics))
            known = {*state_groups, *(raft_group for raft_group, _, _ in partitions)}
            told = list(filter(None, (status_of(answer, known) for answer in answers)))
            return without_gone(with_unreported(merged(own, told), partitions))

        partitions = sum(len(topic.raft_groups) for topic in topics)
        return await _judge(own, work, sum(map(len, answers)), partitions)

    async def answer(self, _: int, __: bytes) -> bytes:
        """Answer another node that asks."""
        own = await self.own()
        return await _judge(own, lambda: encode_status(own).SerializeToString())

    async def _ask(self, relays: Relays, node_id: int) -> bytes:
        """Status by another node, empty if it does not answer in time."""
        try:
            return await relays.call(node_id, PeerMethod.STATUS, b"", _ASK_TIMEOUT_S)
        except PixyError:
            return b""

    def _nodes(self) -> tuple[NodeStatus, ...]:
        """The nodes that are not lost."""
        peers = self._peers
        if peers is None:
            own = NodeStatus(
                self._node_id, "", version=pixy.__version__, incarnation=self._incarnation, is_self=True
            )
            return (self._judged(own),)
        nodes = sorted(self._state_groups.metadata.nodes.values(), key=lambda node: node.node_id)
        return tuple(self._judged(self._node(node, peers)) for node in nodes if not node.lost)

    def _judged(self, node: NodeStatus) -> NodeStatus:
        if not node.is_self:
            return node
        blocked = self._blocked()
        problem = f"it writes no messages: {blocked}" if blocked else node.problem
        return replace(node, problem=problem, troubles=tuple(self._troubles()), disk=self._disk())

    def _node(self, node: NodeInfo, peers: NodePeers) -> NodeStatus:
        member = peers.members.get(node.node_id)
        heard = None if member is None or member.heard_at is None else self._loop.time() - member.heard_at
        is_self = node.node_id == self._node_id
        through = None if is_self else peers.relays.through(node.node_id)
        problem = peers.members.refused.get(node.node_id, "")
        if not problem and member is not None and not member.up and through is None:
            # One of the two may refuse the other one, for instance as one of another cluster.
            problem = peers.channel.trouble(node.node_id)
        return NodeStatus(
            node.node_id,
            node.address,
            node.grpc_address,
            node.rack,
            node.version,
            node.incarnation,
            up=peers.members.is_reachable(node.node_id),
            is_self=is_self,
            heard_s=heard,
            clock_offset_ms=peers.clocks.offset_ms(node.node_id),
            problem=problem,
            through=0 if through in (node.node_id, None) else through,
            removed=node.removed,
            max_message_bytes=node.max_message_bytes,
            draining=node.draining,
            replicas=self._state_groups.metadata.replicas_on(node.node_id),
            kept=self._kept_on(node) if node.draining and not node.removed else 0,
        )

    def _kept_on(self, node: NodeInfo) -> int:
        """Replicas on a drained node that no other node can take."""
        metadata = self._state_groups.metadata
        usable = view_of(metadata, filter(self._is_reached, metadata.registered)).usable
        return sum(
            count
            for topic in metadata.topics.values()
            for placed, count in Counter(topic.placed).items()
            if node.node_id in placed and usable.issubset(placed)
        )

    def _is_reached(self, node_id: int) -> bool:
        return self._peers is None or self._peers.members.is_reachable(node_id)

    def _moves(self) -> Iterator[MoveStatus]:
        """Moves as metadata has them, and what this node does for them."""
        for topic in self._state_groups.metadata.topics.values():
            for number, move in topic.moves.items():
                replicas, raft_group = topic.replicas[number], topic.raft_groups[number]
                waits = replicas == (self._node_id,) and self._needs_only_replicas(topic.topic_id)
                yield MoveStatus(
                    raft_group,
                    TopicPartition(topic.name, number),
                    reason_name(move.reason),
                    replicas,
                    move.target,
                    _WAITS_FOR_STAGES if waits else "",
                    self._copies(raft_group) if self._node_id in move.target else (),
                )

    def _copies(self, raft_group: int) -> tuple[CopyStatus, ...]:
        """The copy that this node fetches, if it does or should."""
        if self._peers is None:
            return ()
        progress, waits = self._peers.copy_progress(raft_group)
        if progress is None:
            return (CopyStatus(self._node_id, waits=waits),) if waits else ()
        rate = progress.bytes_per_second(self._loop.time())
        return (CopyStatus(self._node_id, progress.copied_bytes, progress.total_bytes, rate),)

    async def _raft_groups(self) -> tuple[RaftGroupStatus, ...]:
        groups = [
            raft_group_status(each.group, each.name, self._node_id) for each in self._state_groups.replicas()
        ]
        groups += [
            _partition_status(each, self._node_id)
            async for each in in_steps(list(self._partitions))
            if each.group is not None or each.fault is not None
        ]
        return tuple(sorted(groups, key=lambda group: group.raft_group))


async def _judge(own: ClusterStatus, work: Callable[[], T], size: int = 0, partitions: int = 0) -> T:
    """Do work on a status, and on so many bytes of others, or on partitions; on another thread if
    that is much.
    """
    is_much = max(len(own.groups), partitions) > _GROUPS_AT_ONCE or size > _BYTES_AT_ONCE
    return await asyncio.to_thread(work) if is_much else work()


def _partitions_of(topics: Iterable[Topic]) -> Iterator[tuple[int, str, tuple[int, ...]]]:
    """Raft group, name and nodes of each partition of some topics."""
    for topic in topics:
        for number, (raft_group, replicas) in enumerate(zip(topic.raft_groups, topic.replicas, strict=True)):
            yield raft_group, f"{topic.name}-{number}", replicas


def status_of(answer: bytes, known: Collection[int]) -> ClusterStatus | None:
    """Status by another node, of the raft groups that are known here; None if it gives none, or one
    of more than there can be.
    """
    elements_max = len(known) + _UNKNOWN_MAX
    if not answer or len(answer) > elements_max * _GROUP_BYTES_MAX:
        return None
    try:
        message = StatusResponse.FromString(answer)
    except DecodeError:
        return None
    if not is_possible(message, elements_max):
        return None
    status = decode_status(message)
    return replace(status, groups=tuple(each for each in status.groups if each.raft_group in known))


def status_of_nobody(not_ready: str) -> ClusterStatus:
    """Status of a node that does not know yet who it is."""
    own = NodeStatus(0, "", version=pixy.__version__, is_self=True)
    return ClusterStatus(b"", (own,), (), (), not_ready)


def raft_group_status(group: RaftGroup, name: str, node_id: int) -> RaftGroupStatus:
    """The status of a raft group as this node knows it: its members only if it leads."""
    config, storage = group.storage.conf_state, group.storage
    leader, term = group.leader, storage.hard_state.term
    members: tuple[MemberStatus, ...] = ()
    if not group.has_peers and node_id in config.voters:
        # It leads as soon as it is asked for something.
        leader = node_id
        members = (MemberStatus(node_id, storage.last_index(), 0, MemberState.LEADER),)
    elif group.node is not None:
        raft = group.node.raft
        term = raft.term
        if raft.state is StateType.LEADER:
            last = raft.log.last_index()
            members = tuple(
                MemberStatus(
                    member, progress.match, last - progress.match, _state(group, member == node_id, progress)
                )
                for member, progress in sorted(raft.tracker.progress.items())
            )
    return RaftGroupStatus(
        group.raft_group,
        name,
        leader,
        term,
        tuple(config.voters),
        tuple(sorted({*config.learners, *config.learners_next})),
        tuple(config.voters_outgoing),
        members,
    )


def _partition_status(replica: PartitionReplica, node_id: int) -> RaftGroupStatus:
    """The status of a partition whose raft group was used, or that is damaged."""
    name = "{}-{}".format(*replica.partition)
    if replica.group is not None:
        status = raft_group_status(replica.group, name, node_id)
        if not status.voters:
            # It is to get the records of a partition that moves, and has not heard of its members.
            status = replace(status, voters=tuple(sorted(replica.replicas)))
    else:
        leader = node_id if replica.replicas == (node_id,) else 0
        status = RaftGroupStatus(replica.raft_group, name, leader, 0, tuple(sorted(replica.replicas)))
    if replica.fault is None or node_id not in replica.replicas:
        return status
    return replace(status, damaged=(DamagedReplica(node_id, str(replica.fault)),))


def _state(group: RaftGroup, is_leader: bool, progress: Progress) -> MemberState:
    if is_leader:
        return MemberState.LEADER
    match progress.state:
        case ProgressState.REPLICATE:
            return MemberState.REPLICATING
        case ProgressState.SNAPSHOT:
            is_partition = group.raft_group >= FIRST_PARTITION_GROUP
            return MemberState.COPY if is_partition else MemberState.CHECKPOINT
        case _:
            return MemberState.PROBING

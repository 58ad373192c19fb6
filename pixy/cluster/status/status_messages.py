"""The status of a cluster as a message of pixy_cluster.proto, for clients and between nodes."""

from pixy.cluster.state import NODES_MAX
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
)
from pixy.multiraft import FIRST_PARTITION_GROUP
from pixy.proto import pixy_cluster_pb2 as pb
from pixy.records import TopicPartition

_SILENT_MS_MAX = 2**53
"""Longest silence: another node's may be any number, and seconds are less exact than that."""


_TEXT_MAX = 2000
_DAMAGE_MAX = 300
"""Characters of the damage of a partition, or of what it waits for: there may be 10 000 of them."""
TROUBLES_MAX = 200


def encode_status(status: ClusterStatus) -> pb.StatusResponse:
    """The status as a message, without the judgements of it."""
    return pb.StatusResponse(
        cluster_id=status.cluster_id,
        node_id=status.self_id,
        nodes=map(_encode_node, status.nodes),
        groups=map(_encode_group, status.groups),
        under_replicated=status.under_replicated,
        not_ready=status.not_ready,
        can_move=status.can_move,
        moves=map(_encode_move, status.moves),
    )


def is_possible(message: pb.StatusResponse, elements_max: int) -> bool:
    """True if the status of another node has no more elements than one can have: so many raft
    groups or nodes, of which each has members on nodes of the cluster.
    """
    lists = (message.nodes, message.groups, message.under_replicated, message.moves)
    if any(len(node.troubles) > TROUBLES_MAX for node in message.nodes[:elements_max]):
        return False
    return (
        all(len(each) <= elements_max for each in lists)
        and all(
            len(each) <= NODES_MAX
            for group in message.groups
            for each in (group.voters, group.learners, group.voters_outgoing, group.members, group.damaged)
        )
        and all(
            len(each) <= NODES_MAX
            for move in message.moves
            for each in (move.replicas, move.target, move.copies)
        )
    )


def decode_status(message: pb.StatusResponse) -> ClusterStatus:
    """The status that another node has sent."""
    return ClusterStatus(
        message.cluster_id,
        tuple(_decode_node(node, is_self=node.node_id == message.node_id) for node in message.nodes),
        tuple(map(_decode_group, message.groups)),
        tuple(message.under_replicated),
        message.not_ready,
        can_move=message.can_move,
        moves=tuple(map(_decode_move, message.moves)),
    )


def _encode_node(node: NodeStatus) -> pb.NodeStatus:
    return pb.NodeStatus(
        node_id=node.node_id,
        address=node.address,
        grpc_address=node.grpc_address,
        rack=node.rack,
        version=node.version,
        incarnation=node.incarnation,
        up=node.up,
        silent_ms=None if node.heard_s is None else min(round(node.heard_s * 1000), _SILENT_MS_MAX),
        clock_offset_ms=node.clock_offset_ms,
        problem=node.problem,
        through=node.through,
        removed=node.removed,
        max_message_bytes=node.max_message_bytes,
        troubles=node.troubles[:TROUBLES_MAX],
        disk_bytes=node.disk.total_bytes,
        disk_free_bytes=node.disk.free_bytes,
        draining=node.draining,
        replicas=node.replicas,
        kept_replicas=node.kept,
    )


def _decode_node(node: pb.NodeStatus, *, is_self: bool) -> NodeStatus:
    return NodeStatus(
        node.node_id,
        node.address,
        node.grpc_address,
        node.rack,
        node.version,
        node.incarnation,
        node.up,
        is_self,
        node.silent_ms / 1000 if node.HasField("silent_ms") else None,
        node.clock_offset_ms,
        node.problem[:_TEXT_MAX],
        node.through,
        node.removed,
        node.max_message_bytes,
        tuple(trouble[:_TEXT_MAX] for trouble in node.troubles),
        DiskSpace(node.disk_bytes, node.disk_free_bytes),
        node.draining,
        node.replicas,
        node.kept_replicas,
    )


def _encode_group(group: RaftGroupStatus) -> pb.RaftGroupStatus:
    return pb.RaftGroupStatus(
        raft_group=group.raft_group,
        name=group.name,
        leader=group.leader,
        term=group.term,
        voters=group.voters,
        learners=group.learners,
        voters_outgoing=group.voters_outgoing,
        members=[
            pb.MemberStatus(
                node_id=member.node_id, match=member.match, behind=member.behind, state=member.state.value
            )
            for member in group.members
        ],
        is_partition=group.raft_group >= FIRST_PARTITION_GROUP,
        damaged=[pb.DamagedReplica(node_id=id, reason=reason[:_DAMAGE_MAX]) for id, reason in group.damaged],
    )


def _decode_group(group: pb.RaftGroupStatus) -> RaftGroupStatus:
    return RaftGroupStatus(
        group.raft_group,
        group.name[:_TEXT_MAX],
        group.leader,
        group.term,
        tuple(group.voters),
        tuple(group.learners),
        tuple(group.voters_outgoing),
        tuple(
            MemberStatus(each.node_id, each.match, each.behind, _decode_state(each.state))
            for each in group.members
        ),
        tuple(DamagedReplica(each.node_id, each.reason[:_DAMAGE_MAX]) for each in group.damaged),
    )


def _decode_state(state: str) -> MemberState:
    """A member's state; that of a newer release counts as one that cannot confirm entries."""
    return MemberState(state) if state in set(MemberState) else MemberState.PROBING


def _encode_move(move: MoveStatus) -> pb.MoveStatus:
    topic, partition = move.partition
    return pb.MoveStatus(
        raft_group=move.raft_group,
        topic=topic,
        partition=partition,
        reason=move.reason,
        replicas=move.replicas,
        target=move.target,
        waits=move.waits,
        copies=[
            pb.CopyStatus(
                node_id=copy.node_id,
                copied_bytes=copy.copied_bytes,
                total_bytes=copy.total_bytes,
                bytes_per_second=copy.bytes_per_second,
                waits=copy.waits[:_DAMAGE_MAX],
            )
            for copy in move.copies
        ],
    )


def _decode_move(move: pb.MoveStatus) -> MoveStatus:
    return MoveStatus(
        move.raft_group,
        TopicPartition(move.topic[:_TEXT_MAX], move.partition),
        move.reason[:_TEXT_MAX],
        tuple(move.replicas),
        tuple(move.target),
        move.waits[:_DAMAGE_MAX],
        tuple(
            CopyStatus(
                copy.node_id,
                copy.copied_bytes,
                copy.total_bytes,
                copy.bytes_per_second,
                copy.waits[:_DAMAGE_MAX],
            )
            for copy in move.copies
        ),
    )

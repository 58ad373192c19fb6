"""Groups of Kafka's classic protocol as they are stored. Pure."""

from sys import intern

from pixy.classic_groups import StoredClassicGroup, StoredClassicMember
from pixy.proto import state_pb2 as pb

_OBJECT_BYTES = 512
"""Memory of a member besides its names and bytes, about."""


def classic_record(group: StoredClassicGroup) -> pb.ClassicGroupRecord:
    """A group as a message."""
    return pb.ClassicGroupRecord(
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader,
        is_assigned=group.is_assigned,
        members=[pb.ClassicMemberRecord(**each._asdict()) for each in group.members],
    )


def classic_group_of(message: pb.ClassicGroupRecord) -> StoredClassicGroup:
    """The group in a message."""
    return StoredClassicGroup(
        message.generation,
        intern(message.protocol_type),
        intern(message.protocol),
        message.leader,
        message.is_assigned,
        tuple([_member_of(each) for each in message.members]),
    )


def _member_of(message: pb.ClassicMemberRecord) -> StoredClassicMember:
    return StoredClassicMember(
        message.member_id,
        message.instance_id if message.HasField("instance_id") else None,
        intern(message.client_id),
        intern(message.client_host),
        message.session_timeout_ms,
        message.rebalance_timeout_ms,
        message.metadata,
        message.assignment,
    )


def classic_bytes(group: StoredClassicGroup | None) -> int:
    """Memory of a group, about."""
    if group is None:
        return 0
    return sum(
        _OBJECT_BYTES + len(each.member_id) + len(each.metadata) + len(each.assignment)
        for each in group.members
    )

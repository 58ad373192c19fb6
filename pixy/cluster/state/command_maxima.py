"""Largest commands that a node may propose: elements of each repeated field, and bytes. Pure.

A command of the node that leads may have as many bytes: so what one node takes of a client, each
does. Elements are scanned of the commands of other nodes alone.

Every node works on each element in one step when it applies the command. The maxima are those of
requests of clients, and of what a node makes for all partitions of a cluster; see `element_maxima`.
"""

from collections.abc import Mapping

from google.protobuf.descriptor import Descriptor

from pixy.cluster.state.element_maxima import ElementMaxima
from pixy.cluster.state.metadata import METADATA_GROUP
from pixy.cluster.state.nodes import NODES_MAX
from pixy.cluster.state.partition_moves import MOVES_MAX
from pixy.cluster.state.producer_commands import EXPIRED_MAX
from pixy.cluster.state.publications import SINKS_GROUP
from pixy.multiraft import FIRST_PARTITION_GROUP
from pixy.proto.state_pb2 import GroupsCommand, MetadataCommand, PartitionCommand, SinksCommand
from pixy.staging import EXTENTS_MAX

_OPTIONS = 1000
_STAGES = 2000
_PARTITIONS = 20_000
"""Of all topics, in one command."""
_GROUPS = 20_000

BYTES_MAX: Mapping[Descriptor, int] = {
    MetadataCommand.DESCRIPTOR: 1 << 20,
    SinksCommand.DESCRIPTOR: 8 << 20,
    GroupsCommand.DESCRIPTOR: 8 << 20,
    PartitionCommand.DESCRIPTOR: 16 << 20,
}

ELEMENTS_MAX: Mapping[str, int] = {
    "CreateTopic.config": _OPTIONS,
    "AlterTopic.set_config": _OPTIONS,
    "AlterTopic.unset_config": _OPTIONS,
    "CreateTopic.unreachable_nodes": NODES_MAX,
    "AlterTopic.unreachable_nodes": NODES_MAX,
    "RemoveNode.staying": NODES_MAX,
    "BeginMoves.moves": MOVES_MAX,
    "EndMoves.moves": MOVES_MAX,
    "PartitionMove.target": 10 * MOVES_MAX,
    "PublishStages.stage_ids": _STAGES,
    "PublishStages.parts": _PARTITIONS,
    "FinishPublications.publications": _PARTITIONS,
    "ExpireSinks.sink_ids": _PARTITIONS,
    "PieceRecord.parts": _STAGES,
    "DiscardStages.stage_ids": _STAGES,
    "ExpireStages.stages": _PARTITIONS,
    "CommitOffsets.offsets": _PARTITIONS,
    "ForgetTopics.topic_ids": _PARTITIONS,
    "CutOffsets.ends": 10 * _PARTITIONS,
    "DeleteOffsets.partitions": _PARTITIONS,
    "ClassicGroupRecord.members": _GROUPS,
    "TouchGroups.groups": _GROUPS,
    "ExpireGroups.groups": _GROUPS,
    "ExpelProcess.groups": _GROUPS,
    "GroupMember.topics": _PARTITIONS,
    "SetTargets.targets": _GROUPS,
    "GroupTarget.members": _GROUPS,
    "GroupTarget.topics": _PARTITIONS,
    "TopicTarget.owners": 10 * _PARTITIONS,
    "ReleasePartitions.topics": _PARTITIONS,
    "TopicPartitions.partitions": _PARTITIONS,
    "PublishParts.parts": _STAGES,
    "ExpireProducers.producer_ids": EXPIRED_MAX,
    "ExpireProducers.offsets": EXPIRED_MAX,
    "PublishedPart.pieces": EXTENTS_MAX,
    "PublishedPart.piece_bytes": EXTENTS_MAX,
    "PublishedPart.piece_records": EXTENTS_MAX,
    "PublishedPart.piece_crcs": EXTENTS_MAX,
}
"""By message and field."""

_LARGE_BYTES = 1 << 20
"""Fewer bytes are none too many, for any raft group."""
_MAXIMA = ElementMaxima(BYTES_MAX, ELEMENTS_MAX, "command")


def why_too_many_bytes(raft_group: int, payload: bytes | bytearray) -> str:
    """Reason why a command to a raft group has more bytes than any node may propose, empty if it
    has not.
    """
    size = len(payload)
    if size < _LARGE_BYTES or size <= (maximum := BYTES_MAX[_descriptor_of(raft_group)]):
        return ""
    return f"a command of {size} bytes, at most {maximum} are allowed"


def why_too_large(raft_group: int, payload: bytes | bytearray) -> str:
    """Reason why a command to a raft group is larger than a correct node's, empty if it is not."""
    return why_too_many_bytes(raft_group, payload) or _MAXIMA.why_exceeded(
        _descriptor_of(raft_group), payload
    )


def _descriptor_of(raft_group: int) -> Descriptor:
    if raft_group >= FIRST_PARTITION_GROUP:
        return PartitionCommand.DESCRIPTOR
    if raft_group == METADATA_GROUP:
        return MetadataCommand.DESCRIPTOR
    return SinksCommand.DESCRIPTOR if raft_group == SINKS_GROUP else GroupsCommand.DESCRIPTOR

"""Largest commands that a node may propose: elements of each repeated field, and bytes. Pure.

A command of the node that leads may have as many bytes: so what one node takes of a client, each
does. Elements are scanned of the commands of other nodes alone.

Protobuf makes an object for each element, and every node works on each in one step when it applies
the command; the number of bytes says little about either. So the tags are scanned before anything
is parsed, as those of requests of clients are (`pixy.rpc.field_limits`), and the scan ends at the
first field beyond its maximum. Elements count together, in whatever message they are nested. The
maxima are those of requests of clients, and of what a node makes for all partitions of a cluster.

What is malformed is left to protobuf.
"""

from collections import Counter
from collections.abc import Mapping

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from pixy.cluster.metadata import FIRST_PARTITION_GROUP, METADATA_GROUP
from pixy.cluster.nodes import NODES_MAX
from pixy.cluster.sinks import SINKS_GROUP
from pixy.proto.state_pb2 import GroupsCommand, MetadataCommand, PartitionCommand, SinksCommand
from pixy.staging import EXTENTS_MAX

__all__ = ["BYTES_MAX", "ELEMENTS_MAX", "why_too_large", "why_too_many_bytes"]

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
    "PublishStages.stage_ids": _STAGES,
    "PublishStages.parts": _PARTITIONS,
    "FinishPublications.publications": _PARTITIONS,
    "ExpireSinks.sink_ids": _PARTITIONS,
    "PieceRecord.parts": _STAGES,
    "DiscardStages.stage_ids": _STAGES,
    "ExpireStages.stages": _PARTITIONS,
    "CommitOffsets.offsets": _PARTITIONS,
    "ForgetTopics.topic_ids": _PARTITIONS,
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
    "PublishedPart.pieces": EXTENTS_MAX,
    "PublishedPart.piece_bytes": EXTENTS_MAX,
    "PublishedPart.piece_records": EXTENTS_MAX,
    "PublishedPart.piece_crcs": EXTENTS_MAX,
}
"""By message and field."""

_TAGS_MAX = 100_000
"""Fields of a command that are scanned: those of messages with a repeated field in them."""
_LARGE_BYTES = 1 << 20
"""Fewer bytes are none too many, for any raft group."""
_SMALL_BYTES = 2000
"""Fewer bytes exceed nothing: an element has two at least."""
_PACKED_BYTES = 10
"""Most bytes of a packed number."""
_VARINT, _I64, _LENGTH_DELIMITED, _I32 = 0, 1, 2, 5
_FIXED_BYTES = {_I64: 8, _I32: 4}


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
    if len(payload) < _SMALL_BYTES:
        return ""
    reason = why_too_many_bytes(raft_group, payload)
    if reason:
        return reason
    try:
        return _Scan(payload).message(_descriptor_of(raft_group), 0, len(payload))
    except IndexError:
        return ""  # cut short, which protobuf refuses


def _descriptor_of(raft_group: int) -> Descriptor:
    if raft_group >= FIRST_PARTITION_GROUP:
        return PartitionCommand.DESCRIPTOR
    if raft_group == METADATA_GROUP:
        return MetadataCommand.DESCRIPTOR
    return SinksCommand.DESCRIPTOR if raft_group == SINKS_GROUP else GroupsCommand.DESCRIPTOR


class _Scan:
    """Numbers of elements in a command, as far as it was scanned."""

    def __init__(self, payload: bytes | bytearray) -> None:
        self._payload = payload
        self._counts: Counter[str] = Counter()
        self._tags = 0

    def message(self, descriptor: Descriptor, at: int, end: int) -> str:
        """Scan a message between two places; returns the reason if there is too much in it."""
        repeated, nested = _TABLES[descriptor]
        payload = self._payload
        while at < end:
            self._tags += 1
            if self._tags > _TAGS_MAX:
                return f"a command of more than {_TAGS_MAX} fields"
            tag, at = _varint(payload, at)
            number, wire_type = tag >> 3, tag & 7
            size = _FIXED_BYTES.get(wire_type, 0)
            if wire_type == _VARINT:
                _, at = _varint(payload, at)
            elif wire_type == _LENGTH_DELIMITED:
                size, at = _varint(payload, at)
            elif not size:
                return ""  # a group, which protobuf skips, or damage
            field = repeated.get(number)
            if field is not None:
                name, maximum, is_number = field
                is_packed = is_number and wire_type == _LENGTH_DELIMITED
                self._counts[name] += size // _PACKED_BYTES if is_packed else 1
                if self._counts[name] > maximum:
                    return f"more than {maximum} elements of {name} in a command"
            inner = nested.get(number)
            if inner is not None and wire_type == _LENGTH_DELIMITED:
                reason = self.message(inner, at, min(at + size, end))
                if reason:
                    return reason
            at += size
        return ""


def _varint(payload: bytes | bytearray, at: int) -> tuple[int, int]:
    """A varint, of which ten bytes are looked at, and the place behind it."""
    value = shift = 0
    while True:
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift >= 70:
            return value, at


_Table = tuple[dict[int, tuple[str, int, bool]], dict[int, Descriptor]]
_TABLES: dict[Descriptor, _Table] = {}


def _enter(descriptor: Descriptor) -> bool:
    """Make the table of a message and of those in it; True if there is a repeated field in it."""
    if descriptor not in _TABLES:
        labels = DescriptorProto()
        descriptor.CopyToProto(labels)
        repeated: dict[int, tuple[str, int, bool]] = {}
        nested: dict[int, Descriptor] = {}
        _TABLES[descriptor] = repeated, nested
        for field, label in zip(descriptor.fields, labels.field, strict=True):
            if label.label == FieldDescriptorProto.LABEL_REPEATED:
                name = f"{descriptor.name}.{field.name}"
                is_text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
                is_number = not is_text and field.message_type is None
                repeated[field.number] = name, ELEMENTS_MAX[name], is_number
            if field.message_type is not None and _enter(field.message_type):
                nested[field.number] = field.message_type
    return any(_TABLES[descriptor])


for _descriptor in BYTES_MAX:
    _enter(_descriptor)

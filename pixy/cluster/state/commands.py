"""Commands of raft groups, as their state machines decode them. Pure.

    payload                                            then
    -------------------------------------------------  ---------------------------------------------
    no message, or a message without anything in it;   no effect, on every node alike: the result is
    a publication that is impossible                   `VoidEntry`
    a command that this release knows                  applied
    fields that this release does not know, and no     the node ends (`newer_command`): others may
    command that it knows                              know the command, and would differ

So a newer command is a message that protobuf can parse, and garbage one that it cannot: no release
writes that. The road not taken: to end at garbage as well. Every node that applies the entry would
end, at every start.
"""

from itertools import islice
from operator import le, lt
from typing import TypeVar

from google.protobuf.message import DecodeError

from pixy.entry_ids import INDEX_MAX
from pixy.errors import VoidEntry
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import (
    GroupsCommand,
    MetadataCommand,
    PartitionCommand,
    PublishedPart,
    PublishParts,
    SinksCommand,
)

_PART_BYTES_MAX = 1 << 36
"""More than any stage has. So the offsets of all parts of an entry stay far below 63 bits."""

C = TypeVar("C", MetadataCommand, GroupsCommand, SinksCommand, PartitionCommand)


def undecodable() -> VoidEntry:
    """The result of an entry that cannot be decoded. It is part of a group's state, so it has the
    same text everywhere.
    """
    return VoidEntry("the entry cannot be decoded: it has no effect")


def decoded(kind: type[C], payload: bytes) -> C | VoidEntry:
    """A command, perhaps of a newer release."""
    try:
        command = parsed(kind, payload)
    except DecodeError:
        return undecodable()
    # Fields that are not known keep their bytes.
    is_empty = command.WhichOneof("command") is None and not command.ByteSize()
    return undecodable() if is_empty else command


def partition_command(payload: bytes | bytearray) -> PartitionCommand | VoidEntry:
    """A command to a partition, perhaps of a newer release."""
    command = decoded(PartitionCommand, bytes(payload))
    if isinstance(command, VoidEntry) or _is_possible(command.publish_parts):
        return command
    return undecodable()


def _is_possible(published: PublishParts) -> bool:
    """True for a publication whose numbers are some, and whose lists fit together; also if there is
    none.
    """
    parts = published.parts
    if max(published.publication, published.predecessor) > INDEX_MAX:
        return False
    stages = [part.stage_number for part in parts if part.stage_number]
    return len({*stages}) == len(stages) and all(map(_is_consistent, parts))


def _is_consistent(part: PublishedPart) -> bool:
    pieces = len(part.pieces)
    if not pieces == len(part.piece_bytes) == len(part.piece_records) == len(part.piece_crcs):
        return False
    if not part.stage_number:
        return not pieces and 0 <= part.records <= _PART_BYTES_MAX
    ascending = all(map(lt, part.pieces, islice(part.pieces, 1, None)))
    fitting = all(map(le, part.piece_records, part.piece_bytes))
    return (
        ascending
        and fitting
        and part.bytes <= _PART_BYTES_MAX
        and part.records == sum(part.piece_records)
        and part.bytes == sum(part.piece_bytes)
    )


def publication_in(payload: bytes | bytearray) -> PublishParts:
    """The publication in a command to a partition; an empty one, which no partition takes, if it
    has none.
    """
    command = partition_command(payload)
    return PublishParts() if isinstance(command, VoidEntry) else command.publish_parts

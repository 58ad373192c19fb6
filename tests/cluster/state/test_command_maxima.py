"""Largest commands of other nodes: each repeated field of each command has a maximum."""

import time
from typing import Any

import pytest

from pixy.cluster.state.command_maxima import BYTES_MAX, ELEMENTS_MAX, why_too_large
from pixy.cluster.state.groups import FIRST_GROUPS_GROUP
from pixy.cluster.state.metadata import METADATA_GROUP
from pixy.cluster.state.publications import SINKS_GROUP
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP
from pixy.proto import state_pb2 as pb
from pixy.rpc.field_limits import repeated_fields

GROUPS: dict[Any, int] = {
    pb.MetadataCommand: METADATA_GROUP,
    pb.SinksCommand: SINKS_GROUP,
    pb.GroupsCommand: FIRST_GROUPS_GROUP,
    pb.PartitionCommand: FIRST_PARTITION_GROUP,
}


def paths_of(kind: Any) -> list[str]:
    """Paths to the repeated fields in the commands of a raft group."""
    return [path for path in repeated_fields(kind.DESCRIPTOR) if "." in path]


def name_of(descriptor: Any, path: str) -> str:
    first, _, rest = path.partition(".")
    field = descriptor.fields_by_name[first]
    return name_of(field.message_type, rest) if rest else f"{descriptor.name}.{first}"


CASES = [(kind, path) for kind in GROUPS for path in paths_of(kind)]


def element_of(descriptor: Any, name: str) -> bytes:
    """An element of a repeated field that has no bytes, or is a number."""
    field = descriptor.fields_by_name[name]
    if field.message_type is not None or field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        return bytes([field.number << 3 | 2, 0])
    if field.type == field.TYPE_FIXED32:
        return bytes([field.number << 3 | 5, 0, 0, 0, 0])
    return bytes([field.number << 3, 0])


def varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def command_of(kind: Any, path: str, count: int) -> bytes:
    """A command with so many elements; all nested ones in one message."""
    descriptor, numbers = kind.DESCRIPTOR, []
    *above, last = path.split(".")
    for name in above:
        field = descriptor.fields_by_name[name]
        numbers.append(field.number)
        descriptor = field.message_type
    body = element_of(descriptor, last) * count
    for number in reversed(numbers):
        body = bytes([number << 3 | 2]) + varint(len(body)) + body
    return body


def test_each_repeated_field_of_each_command_has_a_maximum_and_nothing_else() -> None:
    assert {name_of(kind.DESCRIPTOR, path) for kind, path in CASES} == set(ELEMENTS_MAX)
    assert {kind.DESCRIPTOR for kind in GROUPS} == set(BYTES_MAX)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "path"), CASES, ids=[f"{kind.__name__}.{path}" for kind, path in CASES])
def test_elements_beyond_the_maximum_are_refused_before_they_are_parsed(kind: Any, path: str) -> None:
    maximum = min(ELEMENTS_MAX[name_of(kind.DESCRIPTOR, path)], 99_000)
    fine, more = command_of(kind, path, maximum), command_of(kind, path, maximum + 10_000)
    kind.FromString(fine)
    assert why_too_large(GROUPS[kind], fine) == ""
    assert "more than" in why_too_large(GROUPS[kind], more)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), [*zip(GROUPS, (2, 1, 1, 2), strict=True)])
def test_the_largest_command_of_nothing_takes_little_time_to_refuse(kind: Any, number: int) -> None:
    for element in (b"\x0a\x00", b"\x7a\x00", b"\x78\x00"):
        inner = element * (BYTES_MAX[kind.DESCRIPTOR] // 2 - 10)
        payload = bytes([number << 3 | 2]) + varint(len(inner)) + inner
        begin = time.process_time()
        assert "more than" in why_too_large(GROUPS[kind], payload)
        assert time.process_time() - begin < 1.0
        assert "bytes, at most" in why_too_large(GROUPS[kind], payload + inner)


def test_elements_of_nested_messages_count_together() -> None:
    topics = [pb.TopicPartitions(topic_id=bytes(16), partitions=range(1000)) for _ in range(200)]
    command = pb.GroupsCommand(release_partitions=pb.ReleasePartitions(group="g", topics=topics))
    payload = command.SerializeToString()
    # Packed, a number has up to ten bytes.
    assert "TopicPartitions.partitions" in why_too_large(GROUPS[pb.GroupsCommand], payload)


@pytest.mark.slow
def test_commands_of_correct_nodes_are_none_too_large() -> None:
    offset: dict[str, Any] = {
        "topic": "t" * 200,
        "topic_id": bytes(16),
        "offset": 2**62,
        "metadata": "m" * 100,
    }
    offsets = [pb.CommittedOffset(partition=number, **offset) for number in range(10_000)]
    commit = pb.GroupsCommand(commit_offsets=pb.CommitOffsets(group="g", offsets=offsets))
    assert why_too_large(GROUPS[pb.GroupsCommand], commit.SerializeToString()) == ""
    pieces = range(10_000)
    part = pb.PublishedPart(
        stage_number=1, pieces=pieces, piece_bytes=pieces, piece_records=pieces, piece_crcs=pieces
    )
    publish = pb.PartitionCommand(publish_parts=pb.PublishParts(publication=1, parts=[part] * 40))
    assert why_too_large(GROUPS[pb.PartitionCommand], publish.SerializeToString()) == ""


@pytest.mark.parametrize("size", [0, 1, 1999, 2000, 5000])
def test_what_is_malformed_is_left_to_protobuf(size: int) -> None:
    for byte in (b"\xff", b"\x0b", b"\x0a", b"\x07"):
        for group in GROUPS.values():
            assert isinstance(why_too_large(group, byte * size), str)

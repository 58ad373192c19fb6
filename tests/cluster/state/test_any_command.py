"""Commands with any fields: a state machine takes or refuses them, and its state goes through a
checkpoint. It never raises: that would end every node that applies the entry.
"""

import asyncio
from random import Random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pixy.cluster.log.replica import StateMachine
from pixy.cluster.state.commands import partition_command
from pixy.cluster.state.entry_offsets import published_records
from pixy.cluster.state.groups import GroupsState
from pixy.cluster.state.metadata import MetadataState
from pixy.cluster.state.publication_parts import part_commands
from pixy.cluster.state.publications import Publication, SinksState
from pixy.cluster.state.topic_config import log_options
from pixy.config import StorageConfig
from pixy.errors import VoidEntry
from pixy.proto.state_pb2 import (
    AddPiece,
    GroupsCommand,
    MetadataCommand,
    OpenStage,
    PartitionCommand,
    PieceRecord,
    PublishStages,
    SealRecord,
    SinksCommand,
    TopicRecord,
)
from pixy.staging import seal_crc

pytestmark = pytest.mark.slow

COMMANDS = 40
TEXTS = ["a", "b", "topic", "", "x" * 300, "\u00e9", "a/b"]
BYTES = [b"", b"a", b"topicidtopicid12", b"\xff" * 16, bytes(5)]
CONFIG = ["", "1", "-1", "abc", "3", "9" * 5000]
SMALL = {"generation", "number", "epoch", "node_id", "incarnation"}
"""Fields in which only small numbers have much of an effect."""
RANGES = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_ENUM: (0, 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 2**64 - 1),
}
MACHINES = [(MetadataCommand, MetadataState), (GroupsCommand, GroupsState), (SinksCommand, SinksState)]


def value(random: Random, field: FieldDescriptor) -> object:
    if field.type == FieldDescriptor.TYPE_STRING:
        return random.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return random.choice(BYTES)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return random.random() < 0.5
    if field.name in SMALL and random.random() < 0.8:
        return random.randint(1, 3)
    if field.name == "partitions" and field.type == FieldDescriptor.TYPE_INT32:
        return random.choice([-1, 0, 1, 2, 20, 2**31 - 1])
    least, most = RANGES[field.type]
    return random.choice([0, 1, 2, 3, 1, 2, 3, least, most, random.randint(least, most)])


def fill(random: Random, message: Message) -> None:
    """Set most of the fields of a message, and one of each choice."""
    descriptor = message.DESCRIPTOR
    chosen = {choice.name: random.choice(list(choice.fields)) for choice in descriptor.oneofs}
    for field in descriptor.fields:
        choice = field.containing_oneof
        if random.random() < 0.15 if choice is None else chosen[choice.name] is not field:
            continue
        fill_field(random, message, field)


def fill_field(random: Random, message: Message, field: Any) -> None:
    present = getattr(message, field.name)
    if field.type != FieldDescriptor.TYPE_MESSAGE:
        if hasattr(present, "append"):
            present.extend([value(random, field) for _ in range(random.choice([0, 1, 1, 2, 3]))])
        else:
            setattr(message, field.name, value(random, field))
    elif field.message_type.GetOptions().map_entry:
        for _ in range(random.randint(0, 3)):
            present[
                random.choice([*TEXTS, "replication", "segment_bytes", "retention_ms", "retention.ms"])
            ] = random.choice(CONFIG)
    elif hasattr(present, "add"):
        for _ in range(random.choice([0, 1, 1, 2, 3])):
            fill(random, present.add())
    else:
        present.SetInParent()
        fill(random, present)


def stage_commands(random: Random, state: SinksState) -> list[SinksCommand]:
    """A stage of any pieces with the right seal, and its publication."""
    sink_id, stage_id = random.choice(TEXTS), random.choice(TEXTS)
    stage, crcs, commands = state.table.next_stage, [], []
    for number in range(random.randint(0, 3)):
        piece = PieceRecord()
        fill(random, piece)
        piece.number = number
        for part in piece.parts:
            if random.random() < 0.7:
                part.records, part.bytes = sorted([abs(part.records) % 99, part.bytes % 99])
                part.partition = abs(part.partition) % 3
        crcs.append(piece.crc)
        commands.append(SinksCommand(add_piece=AddPiece(stage=stage, piece=piece)))
    seal = SealRecord(pieces=len(crcs), crc=seal_crc(crcs))
    return [
        SinksCommand(open_stage=OpenStage(sink_id=sink_id, stage_id=stage_id)),
        *commands,
        SinksCommand(add_piece=AddPiece(stage=stage, seal=seal)),
        SinksCommand(
            publish_stages=PublishStages(
                sink_id=sink_id, stage_ids=[stage_id] * 2, reset_sink=True, replicated=True
            )
        ),
    ]


def check(state: StateMachine, result: object) -> None:
    """A node acts on a result without an error, too."""
    if isinstance(state, MetadataState):
        state.under_replicated()
        for topic in state.topics.values():
            log_options(StorageConfig(), topic.config)
    elif isinstance(state, SinksState):
        if isinstance(result, Publication):
            publications = [*state.publications.values()]
            assert all(len(asyncio.run(part_commands(each))) <= len(each.parts) for each in publications)
    elif isinstance(state, GroupsState):
        for names in state.scan(100):
            for name in names:
                state.membership(name).check_invariants()


def seen(state: StateMachine) -> dict[bytes, object]:
    """A state, whatever the order of a topic's options."""
    return {
        key: TopicRecord.FromString(value) if key.startswith(b"topic/") else value
        for key, value in state.snapshot()
    }


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("command", "machine"), MACHINES)
def test_any_command_is_applied_or_refused(
    command: type[Message], machine: type[StateMachine], seed: int
) -> None:
    random, state = Random(seed), machine()
    for _ in range(COMMANDS):
        message = command()
        fill(random, message)
        messages: list[Message] = [message]
        if isinstance(state, SinksState) and random.random() < 0.3:
            messages += stage_commands(random, state)
        for each in messages:
            check(state, state.apply(each.SerializeToString(), 3))
        again = machine()
        again.restore(list(state.snapshot()))
        assert seen(again) == seen(state)


@pytest.mark.parametrize("seed", range(20))
def test_any_command_to_a_partition_is_possible_or_has_no_effect(seed: int) -> None:
    """The leader counts its records, and a follower those of what it has not applied."""
    random = Random(seed)
    end, publication = 0, 0
    for _ in range(10 * COMMANDS):
        command = PartitionCommand()
        fill(random, command)
        payload = command.SerializeToString()
        known = partition_command(payload)
        before = publication
        publication, records = published_records(payload, publication)
        end += records
        assert 0 <= records < 2**50
        assert before <= publication < 2**62
        assert isinstance(known, VoidEntry) or known == command
        publication = publication if random.random() < 0.5 else 0
    assert end < 2**60

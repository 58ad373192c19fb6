"""Commands with any fields: a state machine takes or refuses them, and its state goes through a
checkpoint. It never raises: that would end every node that applies the entry.
"""

from random import Random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pixy.cluster.groups import GroupsState
from pixy.cluster.metadata import MetadataState
from pixy.cluster.replica import StateMachine
from pixy.cluster.sinks import SinksState
from pixy.proto.state_pb2 import GroupsCommand, MetadataCommand, SinksCommand

pytestmark = pytest.mark.slow

COMMANDS = 40
TEXTS = ["a", "b", "topic", "", "x" * 300, "\u00e9", "a/b"]
BYTES = [b"", b"a", b"topicidtopicid12", b"\xff" * 16, bytes(5)]
CONFIG = ["", "1", "-1", "abc", "3", "9" * 5000]
SMALL = {"generation", "number", "epoch", "node_id", "incarnation"}
"""Fields in which only small numbers have much of an effect."""
RANGES = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
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
            present[random.choice([*TEXTS, "replication", "retention.ms"])] = random.choice(CONFIG)
    elif hasattr(present, "add"):
        for _ in range(random.choice([0, 1, 1, 2, 3])):
            fill(random, present.add())
    else:
        present.SetInParent()
        fill(random, present)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("command", "machine"), MACHINES)
def test_any_command_is_applied_or_refused(
    command: type[Message], machine: type[StateMachine], seed: int
) -> None:
    random, state = Random(seed), machine()
    for _ in range(COMMANDS):
        message = command()
        fill(random, message)
        state.apply(message.SerializeToString(), 3)
    again = machine()
    again.restore(list(state.snapshot()))
    assert sorted(key for key, _ in again.snapshot()) == sorted(key for key, _ in state.snapshot())

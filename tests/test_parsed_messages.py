"""Messages that protobuf has not parsed: wrong bytes, or too little memory."""

import builtins
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from pixy import parsed_messages
from pixy.cluster.state import commands
from pixy.errors import VoidEntry
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import DrainNode, MetadataCommand

COMMAND = MetadataCommand(drain_node=DrainNode(node_id=1))
PAYLOAD = COMMAND.SerializeToString()


class Short:
    """A class of messages that lacks memory so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def FromString(self, payload: bytes) -> MetadataCommand:  # as protobuf has it
        self.times -= 1
        if self.times >= 0:
            raise DecodeError("Error parsing message")
        return MetadataCommand.FromString(payload)


def without_memory(*_: object) -> bytearray:
    raise MemoryError


def test_wrong_bytes_are_wrong() -> None:
    with pytest.raises(DecodeError):
        parsed(MetadataCommand, PAYLOAD[:-1])


def test_bytes_that_had_no_memory_for_a_moment_are_parsed() -> None:
    kind: Any = Short(1)
    assert parsed(kind, PAYLOAD) == COMMAND


def test_lack_of_memory_does_not_void_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = Short(100)
    monkeypatch.setattr(parsed_messages, "bytearray", without_memory, raising=False)
    with pytest.raises(MemoryError):
        commands.decoded(kind, PAYLOAD)
    monkeypatch.setattr(parsed_messages, "bytearray", builtins.bytearray)
    assert isinstance(commands.decoded(kind, PAYLOAD), VoidEntry)
    assert commands.decoded(MetadataCommand, PAYLOAD) == COMMAND

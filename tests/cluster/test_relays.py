"""Messages and calls that a node passes on for others: only those of the node that sends them."""

from collections.abc import Sequence
from typing import cast

import pytest

from pixy.cluster.peer_messages import MessageKind
from pixy.cluster.relays import Relays
from pixy.errors import FailedPrecondition
from pixy.peers import FrameDamage, PeerChannel
from pixy.proto.node_calls_pb2 import Relayed
from pixy.raft import MalformedMessage
from tests.peers.support import hello_of


class Channel:
    """Connections to all nodes, which note what they are given."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def is_connected(self, _: int) -> bool:
        return True

    def send(self, node_id: int, kind: int, _: Sequence[bytes]) -> bool:
        assert kind == MessageKind.RELAYED
        self.sent.append(node_id)
        return True

    async def call(self, node_id: int, *_: object, **__: object) -> bytes:
        self.sent.append(node_id)
        return b"answer"


def relayed(sender: int) -> Relayed:
    return Relayed(target=3, sender=hello_of(sender).to_message(), kind=1, payload=b"x", timeout_ms=1000)


async def test_what_a_node_sends_for_itself_is_passed_on() -> None:
    channel = Channel()
    relays = Relays(cast(PeerChannel, channel), lambda: hello_of(1))
    relays.pass_on(2, relayed(2))
    assert await relays.pass_call_on(2, relayed(2)) == b"answer"
    assert channel.sent == [3, 3]


async def test_what_a_node_sends_in_the_name_of_another_is_not() -> None:
    channel = Channel()
    relays = Relays(cast(PeerChannel, channel), lambda: hello_of(1))
    with pytest.raises(MalformedMessage, match="node 2 sends a message of node 4"):
        relays.pass_on(2, relayed(4))
    with pytest.raises(FailedPrecondition, match="node 2 makes a call of node 4"):
        await relays.pass_call_on(2, relayed(4))
    assert channel.sent == []


async def test_a_sender_that_cannot_be_is_not_passed_on() -> None:
    channel = Channel()
    relays = Relays(cast(PeerChannel, channel), lambda: hello_of(1))
    impossible = relayed(2)
    impossible.sender.incarnation = 2**49
    with pytest.raises(FrameDamage, match=f"the start {2**49}"):
        relays.pass_on(2, impossible)
    with pytest.raises(FailedPrecondition, match=f"the start {2**49}"):
        await relays.pass_call_on(2, impossible)
    assert channel.sent == []


async def test_a_node_that_has_left_reaches_nobody() -> None:
    class Connected(Channel):
        def is_connected(self, node_id: int) -> bool:
            return node_id == 2

    relays = Relays(cast(PeerChannel, Connected()), lambda: hello_of(1))
    relays.heard(2, [3, 4])
    assert [relays.through(each) for each in (2, 3, 5)] == [2, 2, None]
    relays.left(2)
    assert relays.through(3) is None

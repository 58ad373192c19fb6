"""Messages and calls that a node passes on for others: only those of the node that sends them."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from pixy.cluster.peering.peer_messages import MessageKind
from pixy.cluster.peering.relays import RELAYED_CALLS_MAX, RELAYED_CALLS_OF_NODE, Relays
from pixy.errors import FailedPrecondition, Unavailable
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


class Waiting(Channel):
    """Connections to nodes that do not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float] = []

    async def call(self, node_id: int, *arguments: object, **_: object) -> bytes:
        self.sent.append(node_id)
        self.timeouts.append(cast(float, arguments[2]))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        return await answer


async def started(relays: Relays, caller: int, count: int, call: Relayed) -> list[asyncio.Task[bytes]]:
    """Calls of a node that are passed on and not refused."""
    tasks = [asyncio.create_task(relays.pass_call_on(caller, call)) for _ in range(count)]
    await asyncio.sleep(0)
    return [task for task in tasks if not (task.done() and task.exception())]


async def test_calls_that_are_passed_on_are_bounded_by_node_and_in_all_and_in_time() -> None:
    channel = Waiting()
    relays = Relays(cast(PeerChannel, channel), lambda: hello_of(1))
    longest = relayed(2)
    longest.timeout_ms = 2**32 - 1
    of_two = await started(relays, 2, 2 * RELAYED_CALLS_OF_NODE, longest)
    assert len(of_two) == RELAYED_CALLS_OF_NODE
    assert set(channel.timeouts) == {60.0}
    others = [await started(relays, node, 2 * RELAYED_CALLS_OF_NODE, relayed(node)) for node in range(4, 9)]
    assert [len(each) for each in others] == [RELAYED_CALLS_OF_NODE] * 3 + [0] * 2
    assert len(channel.sent) == RELAYED_CALLS_MAX
    with pytest.raises(Unavailable, match="2048 calls of other nodes are being passed on"):
        await relays.pass_call_on(9, relayed(9))
    for task in (*of_two, *others[0]):
        task.cancel()
    await asyncio.sleep(0)
    (again,) = await started(relays, 9, 1, relayed(9))
    for task in (again, *others[1], *others[2]):
        task.cancel()
    await asyncio.sleep(0)


@pytest.mark.slow
async def test_the_bytes_of_calls_that_are_passed_on_are_bounded() -> None:
    relays = Relays(cast(PeerChannel, Waiting()), lambda: hello_of(1))
    counts = []
    tasks = []
    for node in (2, 4, 5):
        large = relayed(node)
        large.payload = bytes(15 << 20)
        found = await started(relays, node, 5, large)
        counts.append(len(found))
        tasks += found
    assert counts == [2, 1, 0], "of 64 MiB that a connection carries"
    for task in tasks:
        task.cancel()
    await asyncio.sleep(0)


async def test_a_node_that_has_left_reaches_nobody() -> None:
    class Connected(Channel):
        def is_connected(self, node_id: int) -> bool:
            return node_id == 2

    relays = Relays(cast(PeerChannel, Connected()), lambda: hello_of(1))
    relays.heard(2, [3, 4])
    assert [relays.through(each) for each in (2, 3, 5)] == [2, 2, None]
    relays.left(2)
    assert relays.through(3) is None


async def test_nothing_goes_by_way_of_others_to_a_node_that_is_refused() -> None:
    class Connected(Channel):
        def is_connected(self, node_id: int) -> bool:
            return node_id == 2

    channel = Connected()
    relays = Relays(cast(PeerChannel, channel), lambda: hello_of(1))
    relays.heard(2, [3])
    relays.refused.add(3)
    relays.send(3, 1, (b"x",))
    assert channel.sent == []
    relays.refused.discard(3)
    relays.send(3, 1, (b"x",))
    assert channel.sent == [2]

"""Peers on real sockets."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from pixy.errors import DeadlineExceeded, FailedPrecondition, PeerRefused, ShuttingDown, Unavailable
from pixy.peers import Address, Hello, PeerOptions, TcpNetwork
from pixy.peers.stranger_rate import StrangerRate
from tests.fakes.waiting import until
from tests.peers.support import LOOPBACK, PeerNode, hello_of, peer_nodes

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def run(new_loop: Callable[[], Any], scenario: Callable[[], Any]) -> None:
    loop = new_loop()
    try:
        loop.run_until_complete(scenario())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


@pytest.mark.slow
@pytest.mark.parametrize("new_loop", LOOPS)
def test_messages_arrive_in_order(new_loop: Any) -> None:
    async def scenario() -> None:
        async with peer_nodes(3) as (one, two, three):
            for number in range(1000):
                assert one.channel.send(2, 1, [b"m", str(number).encode()])
                assert three.channel.send(2, number % 256, [b"x" * (number * 20), b"y" * number])
            await until(lambda: len(two.messages) == 2000)
            ours = [payload for node_id, _, payload in two.messages if node_id == 1]
            assert ours == [b"m%d" % number for number in range(1000)]
            theirs = [(kind, payload) for node_id, kind, payload in two.messages if node_id == 3]
            assert theirs == [(number % 256, b"x" * (number * 20) + b"y" * number) for number in range(1000)]

    run(new_loop, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("new_loop", LOOPS)
def test_calls_are_answered_by_number(new_loop: Any) -> None:
    async def scenario() -> None:
        gates = [asyncio.Event() for _ in range(3)]

        async def answer(caller: Hello, method: int, payload: bytes) -> bytes:
            await gates[method].wait()
            return payload + b"%d" % caller.node_id

        async with peer_nodes(2) as (one, two):
            two.on_call = answer
            calls = [asyncio.ensure_future(one.channel.call(2, method, b"a", 60.0)) for method in range(3)]
            gates[2].set()
            assert await calls[2] == b"a1"
            assert not calls[0].done()
            gates[1].set()
            gates[0].set()
            assert await asyncio.gather(*calls) == [b"a1", b"a1", b"a1"]
            large = bytes(20 << 20)
            assert await one.channel.call(2, 0, large, 60.0, bulk=True) == large + b"1"

    run(new_loop, scenario)


@pytest.mark.slow
async def test_errors_of_calls_reach_the_caller() -> None:
    async def fail(_: Hello, method: int, __: bytes) -> bytes:
        if method:
            await asyncio.sleep(60)
        raise FailedPrecondition("not here")

    async with peer_nodes(2) as (one, two):
        two.on_call = fail
        with pytest.raises(FailedPrecondition, match="not here"):
            await one.channel.call(2, 0, b"", 60.0)
        with pytest.raises(DeadlineExceeded):
            await one.channel.call(2, 1, b"", 0.05)
        with pytest.raises(Unavailable, match="no connection to node 3"):
            await one.channel.call(3, 1, b"", 0.05)


async def test_a_connection_that_ends_is_seen_and_comes_back() -> None:
    async with peer_nodes(2) as (one, two):
        two.channel.disconnect(1)
        await until(lambda: one.downs == [(2, True)] and one.ups == [2, 2])
        assert one.channel.send(2, 1, [b"again"])
        await until(lambda: two.messages == [(1, 1, b"again")])
        assert two.downs == [], "its own disconnect is no news for a node"
        assert not two.channel.send(1, 1, [b"x"])


async def test_a_node_is_asked_and_called_by_its_address() -> None:
    async with peer_nodes(2, connected=False) as (one, two):
        assert await one.channel.ask(two.address, 60.0) == two.shown
        assert await one.channel.ask(one.address, 60.0) == one.shown
        answer = await one.channel.call_address(two.address, 7, b"join", 60.0)
        assert answer == b"0 7 join", "a passing connection names no node"


async def test_nodes_that_ask_and_stay_are_few_and_no_nodes() -> None:
    async with peer_nodes(2, connected=False) as (one, two):
        asked = [await two.channel._dial_passing(one.address, 60.0) for _ in range(70)]
        await until(lambda: sum(each.end.done() for each in asked) == 6)
        assert all(each.end.done() for each in asked[:6])
        assert asked[0].end.result().reason == "others ask or join"
        assert not one.peers._is_node("127.0.0.1")
        two.connect(one)
        await until(lambda: one.peers._is_node("127.0.0.1"))


async def test_nobody_listens_at_an_address() -> None:
    async with peer_nodes(2, connected=False) as (one, two):
        await two.stop()
        with pytest.raises(Unavailable, match="cannot be reached"):
            await one.channel.ask(two.address, 60.0)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await one.channel.call_address(two.address, 7, b"join", 60.0)


@pytest.mark.parametrize("hook", ["recognize", "admit"])
async def test_a_node_that_refuses_says_why_to_the_node_that_dials(hook: str) -> None:
    async with peer_nodes(2, connected=False) as (one, two):
        setattr(two, hook, lambda _: "node 1 was removed")
        one.connect(two)
        two.connect(one)
        await until(lambda: "peer refuses this node: node 1 was removed" in one.channel.trouble(2))
        await until(lambda: "this node refuses the peer: node 1 was removed" in two.channel.trouble(1))
        assert (await one.channel.ask(two.address, 60.0)).node_id == 2, "questions are free"


async def test_clusters_share_a_socket_and_are_told_apart() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, clusters=frozenset({"later"}))
    async with peer_nodes(1, options, connected=False) as (one,):
        other = PeerNode(hello_of(2, cluster="other"), TcpNetwork(), options)
        later = PeerNode(hello_of(3, cluster="later"), TcpNetwork(), options)
        with pytest.raises(PeerRefused, match='no embedded cluster "other" is configured on the node'):
            await other.channel.ask(one.address, 60.0)
        with pytest.raises(Unavailable, match=r'^cluster "later" is starting on the node that was dialled'):
            await later.channel.ask(one.address, 60.0)
        await one.channel.stop()
        with pytest.raises(ShuttingDown):
            await one.channel.ask(one.address, 60.0)
        with pytest.raises(Unavailable, match=r'^cluster "default" is stopping on the node that was dialled'):
            await PeerNode(hello_of(4), TcpNetwork(), options).channel.ask(one.address, 60.0)
        await other.stop()
        await later.stop()


async def test_a_shared_secret_protects_a_node() -> None:
    with_secret = PeerOptions(address=LOOPBACK, secrets=lambda: (b"s" * 32,))
    async with peer_nodes(2, with_secret) as (one, two):
        assert await one.channel.call(2, 1, b"x", 60.0) == b"1 1 x"
        for secrets, reason in (([], "has no shared secret"), ([b"t" * 32], "must have the same content")):
            options = PeerOptions(address=LOOPBACK, mutual_tls=True, secrets=partial(tuple, secrets))
            stranger = PeerNode(hello_of(3), TcpNetwork(), options)
            with pytest.raises(PeerRefused, match=reason):
                await stranger.channel.ask(two.address, 60.0)
            await stranger.stop()


async def test_the_share_of_strangers_is_not_that_of_a_node_that_is_named_by_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node is away: only its name is known, and what it means."""
    async with peer_nodes(2, connected=False) as (node, other):
        await other.stop()
        node.channel.connect(2, Address("localhost", other.address.port))
        await until(lambda: node.peers._is_node("127.0.0.1"))
        assert node.peers._is_node("::ffff:127.0.0.1")
        # Strangers have had theirs.
        monkeypatch.setattr(StrangerRate, "takes", lambda *_: False)
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection(*node.address, local_addr=("127.0.0.9", 0))
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        [line] = [each for each in logs if "its share of this second" in each["event"]]
        assert line["peer"] == "127.0.0.9"
        assert len(node.peers._slots) == 0
        assert (await node.channel.ask(node.address, 5.0)).node_id == 1


async def test_peers_stop_twice_and_before_they_start() -> None:
    node = PeerNode(hello_of(1), TcpNetwork(), PeerOptions(address=LOOPBACK, mutual_tls=True))
    await node.stop()
    await node.stop()


@pytest.mark.slow
@pytest.mark.parametrize("new_loop", LOOPS)
def test_an_answer_that_came_while_the_process_was_paused_counts(new_loop: Any) -> None:
    """A loop that stands still beyond the deadline of a call whose answer takes many reads."""
    peer = PeerNode(hello_of(2), TcpNetwork(), PeerOptions(address=LOOPBACK, mutual_tls=True))
    started, done = threading.Event(), threading.Event()

    async def go_on() -> None:
        await peer.start()
        started.set()
        await asyncio.get_running_loop().run_in_executor(None, done.wait)
        await peer.stop()

    async def answer(_: Hello, __: int, ___: bytes) -> bytes:
        return bytes(4 << 20)

    async def scenario() -> None:
        node = PeerNode(hello_of(1), TcpNetwork(), PeerOptions(address=LOOPBACK, mutual_tls=True))
        await node.start()
        node.connect(peer)
        await until(lambda: not node.channel.trouble(2))
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, time.sleep, 1.5)
        assert len(await node.channel.call(2, 1, b"", 0.5, bulk=True)) == 4 << 20
        assert node.downs == []
        await node.stop()

    peer.on_call = answer
    thread = threading.Thread(target=run, args=(new_loop, go_on))
    thread.start()
    try:
        started.wait()
        run(new_loop, scenario)
    finally:
        done.set()
        thread.join()

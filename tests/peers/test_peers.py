"""Peers on real sockets."""

import asyncio

import pytest

from pixy.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from pixy.peers import Hello
from tests.fakes.waiting import until
from tests.peers.support import peer_nodes


async def test_messages_arrive_in_order() -> None:
    async with peer_nodes(3) as (one, two, three):
        for number in range(1000):
            assert one.channel.send(2, 1, [b"m", str(number).encode()])
            assert three.channel.send(2, number % 256, [b"x" * (number * 20)])
        await until(lambda: len(two.messages) == 2000)
        ours = [payload for node_id, _, payload in two.messages if node_id == 1]
        assert ours == [b"m%d" % number for number in range(1000)]
        theirs = [(kind, payload) for node_id, kind, payload in two.messages if node_id == 3]
        assert theirs == [(number % 256, b"x" * (number * 20)) for number in range(1000)]


async def test_calls_are_answered_by_number() -> None:
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


async def test_a_node_that_stops_is_seen_and_comes_back() -> None:
    async with peer_nodes(2) as (one, two):
        two.channel.disconnect(1)
        await until(lambda: one.downs == [(2, True)] and one.ups == [2, 2])
        assert one.channel.send(2, 1, [b"again"])
        await until(lambda: two.messages == [(1, 1, b"again")])


async def test_a_node_is_asked_and_called_by_its_address() -> None:
    async with peer_nodes(2, connected=False) as (one, two):
        assert await one.channel.ask(two.address, 60.0) == two.hello
        assert await one.channel.ask(one.address, 60.0) == one.hello
        assert await one.channel.call_address(two.address, 7, b"join", 60.0) == b"1 7 join"

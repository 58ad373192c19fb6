"""Handshakes that do not come to an end."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from pixy.peers import Address, PeerOptions
from pixy.peers.frames import HELLO
from pixy.peers.handshake import Handshake
from pixy.peers.hello import Greeting, LinkPurpose
from tests.fakes.waiting import until
from tests.peers.support import LOOPBACK, hello_of, peer_nodes
from tests.peers.test_link import RawPeer, raw_peer

SECRET = b"0123456789abcdef" * 4


@pytest.mark.slow
async def test_a_peer_that_accepts_and_says_nothing_is_dialled_again() -> None:
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), LOOPBACK.host, 0)
    silent = Address(*server.sockets[0].getsockname())
    options = replace(PeerOptions(address=LOOPBACK, mutual_tls=True), handshake_s=0.05, retry_s=0.001)
    try:
        async with peer_nodes(1, options) as (node,):
            node.channel.connect(2, silent)
            await until(lambda: len(writers) >= 6)  # two connections an attempt
    finally:
        for writer in writers:
            writer.close()
        server.close()


async def prove(peer: RawPeer) -> None:
    """Prove the shared secret, and see that it was believed."""
    greeting = Greeting(hello_of(0), LinkPurpose.PASSING, bytes(32), True)
    side = Handshake([SECRET], bytes(32), greeting)
    for kind, payload in side.begin():
        peer.send(kind, payload)
    kind, *_, opening = await peer.read()
    for answer, payload in side.receive(kind, bytes(opening)):
        peer.send(answer, payload)
    assert (await peer.read())[0] == HELLO


@pytest.mark.parametrize("knows", [False, True])
async def test_handshakes_that_have_proven_the_secret_and_stop_keep_no_node_out(knows: bool) -> None:
    options = PeerOptions(
        address=LOOPBACK, secrets=lambda: (SECRET,), handshakes_max=8, handshake_s=60.0, retry_s=0.01
    )
    async with peer_nodes(2, options, connected=False) as (one, two), AsyncExitStack() as stack:
        if knows:
            one.connect(two)
            await until(lambda: one.ups == [2])
        for _ in range(20):
            await prove(await stack.enter_async_context(raw_peer(one)))
        two.connect(one)
        await until(lambda: not two.channel.trouble(1))

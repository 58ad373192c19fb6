"""Handshakes that do not come to an end."""

import asyncio
from dataclasses import replace

import pytest

from pixy.peers import Address, PeerOptions
from tests.fakes.waiting import until
from tests.peers.support import LOOPBACK, peer_nodes


@pytest.mark.slow
async def test_a_peer_that_accepts_and_says_nothing_is_dialled_again() -> None:
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), LOOPBACK.host, 0)
    silent = Address(*server.sockets[0].getsockname())
    options = replace(PeerOptions(address=LOOPBACK), handshake_s=0.05, retry_s=0.001)
    try:
        async with peer_nodes(1, options) as (node,):
            node.channel.connect(2, silent)
            await until(lambda: len(writers) >= 6)  # two connections an attempt
    finally:
        for writer in writers:
            writer.close()
        server.close()

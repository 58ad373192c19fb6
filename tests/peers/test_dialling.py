"""Attempts to connect, and the pauses between them."""

import asyncio
from dataclasses import replace
from random import Random

import pytest
from structlog.testing import capture_logs

from pixy.errors import Unavailable
from pixy.peers import Address, PeerOptions
from pixy.peers.dialling import RetryPauses
from tests.fakes.waiting import until
from tests.peers.support import LOOPBACK, PeerNode, SimulatedPeers, hello_of, host_of, simulate


def test_the_first_retry_is_at_once_and_later_pauses_double() -> None:
    pauses = RetryPauses(PeerOptions(), Random(1))
    assert pauses.next() == 0.0
    longest = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    for limit in longest:
        assert limit / 2 <= pauses.next() <= limit


def test_a_connection_that_has_stood_is_retried_at_once() -> None:
    pauses = RetryPauses(PeerOptions(), Random(1))
    for _ in range(6):
        pauses.next()
    pauses.stood(0.5)
    assert pauses.next() > 0.5
    pauses.stood(1.0)
    assert pauses.next() == 0.0
    assert pauses.next() <= 0.05


def test_two_nodes_do_not_come_back_together() -> None:
    one, other = (RetryPauses(PeerOptions(), Random(seed)) for seed in (1, 2))
    assert [one.next() for _ in range(5)][1:] != [other.next() for _ in range(5)][1:]


def test_a_connection_that_is_reset_is_back_within_a_round_trip() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, _ = peers.nodes
        await asyncio.sleep(2.0)
        began = asyncio.get_running_loop().time()
        peers.network.reset(host_of(1), host_of(2))
        await until(lambda: one.ups == [2, 2])
        assert asyncio.get_running_loop().time() - began < 0.15

    simulate(scenario)


def test_a_peer_that_comes_back_after_long_is_dialled_when_it_dials() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        loop = asyncio.get_running_loop()
        one, two = peers.nodes
        options = replace(peers.options, address=two.address)
        for part in range(5):
            peers.processes[2].kill()
            await asyncio.sleep(30.0 + part / 3)
            hello = hello_of(2, process=b"again %d." % part, incarnation=part + 2)
            process = peers.processes[2] = peers.network.process(host_of(2))
            again = PeerNode(hello, process, options)
            await again.start()
            again.connect(one)
            began = loop.time()
            await until(lambda: one.channel.is_connected(2))
            assert loop.time() - began < 0.15
            await again.stop()

    simulate(scenario)


@pytest.mark.slow
def test_two_peers_that_lose_each_others_connections_at_once_pause() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        lost = 0
        for _ in range(30_000):
            await asyncio.sleep(0.001)
            if len(one.ups) + len(two.ups) > lost:
                lost = len(one.ups) + len(two.ups)
                peers.network.reset(host_of(1), host_of(2))
        assert 10 < lost < 120, "in 30 s"

    simulate(scenario)


def test_a_peer_that_is_gone_is_logged_once() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        peers.processes[2].kill()
        with capture_logs() as logs:
            await asyncio.sleep(60.0)
        missed = [entry["reason"] for entry in logs if "node 2 at 127.0.0.2" in entry["peer"]]
        assert "cannot be reached" in missed[-1]
        assert len(missed) <= 4, "of each connection once in its handshake, and once that nobody listens"

    simulate(scenario)


def test_a_peer_that_does_not_answer_is_given_up_in_time() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, handshake_s=1.0)

    async def scenario(peers: SimulatedPeers) -> None:
        one, _ = peers.nodes
        loop = asyncio.get_running_loop()
        peers.network.cut(host_of(2), host_of(1))
        await asyncio.sleep(3.0)
        began = loop.time()
        address = Address(host_of(2), peers.nodes[1].address.port)
        with pytest.raises(Unavailable, match="does not answer within 1 s"):
            await one.channel.ask(address, 10.0)
        assert loop.time() - began < 1.1
        with pytest.raises(Unavailable, match=r"does not answer within 0\.3 s"):
            await one.channel.ask(address, 0.3)

    simulate(scenario, options=options)


def test_a_handshake_without_an_answer_leaves_no_connection() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, handshake_s=1.0, silence_s=1e9)

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        transports = peers.processes[1].transports
        before = len(transports)
        peers.network.stall(host_of(2), host_of(1))
        asked = asyncio.ensure_future(one.channel.ask(two.address, 10.0))
        await until(lambda: len(transports) == before + 1)
        with pytest.raises(Unavailable, match="does not answer within 1 s"):
            await asked
        assert len(transports) == before

    simulate(scenario, options=options)

"""The rule that peers on other machines are authenticated."""

import pytest

from pixy.errors import StartError
from pixy.peers import Address, PeerOptions, Peers, TcpNetwork
from pixy.peers.protection import why_unprotected

ELSEWHERE = Address("192.0.2.1", 19094)


def test_loopback_needs_no_protection() -> None:
    assert why_unprotected(Address("127.0.0.1", 1), PeerOptions()) is None


def test_other_addresses_need_a_secret_or_mutual_tls() -> None:
    reason = why_unprotected(ELSEWHERE, PeerOptions())
    assert reason is not None
    assert "cluster.secret_file or cluster.tls" in reason
    assert why_unprotected(ELSEWHERE, PeerOptions(secrets=lambda: (b"x" * 32,))) is None
    assert why_unprotected(ELSEWHERE, PeerOptions(mutual_tls=True)) is None


@pytest.mark.parametrize("host", ["", "0.0.0.0", "192.0.2.1"])
async def test_peers_do_not_listen_for_other_machines_unprotected(host: str) -> None:
    peers = Peers(TcpNetwork(), PeerOptions(address=Address(host, 0)))
    with pytest.raises(
        StartError, match=rf"peer_addr {host}:0 may be reached from, or lead to, other machines"
    ):
        await peers.start()
    await peers.stop()

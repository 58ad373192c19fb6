"""The rule that peers are authenticated."""

import pytest

from pixy.errors import ConfigError
from pixy.peers import Address, PeerOptions, Peers, TcpNetwork
from pixy.peers.protection import why_unprotected


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
def test_every_address_needs_a_secret_or_mutual_tls(host: str) -> None:
    address = Address(host, 19094)
    reason = why_unprotected(address, PeerOptions())
    assert reason is not None
    assert "cluster.secret_file or cluster.tls" in reason
    assert why_unprotected(address, PeerOptions(secrets=lambda: (b"x" * 32,))) is None
    assert why_unprotected(address, PeerOptions(mutual_tls=True)) is None


@pytest.mark.parametrize("host", ["", "0.0.0.0", "192.0.2.1", "127.0.0.1", "localhost"])
async def test_peers_do_not_listen_unprotected(host: str) -> None:
    peers = Peers(TcpNetwork(), PeerOptions(address=Address(host, 0)))
    with pytest.raises(ConfigError, match=rf"peer_addr {host}:0 is for other nodes, and nobody has to prove"):
        await peers.start()
    await peers.stop()

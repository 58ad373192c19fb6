"""The rule that peers are authenticated. On loopback too: any user of the machine can connect."""

from pixy.peers.address import Address
from pixy.peers.options import PeerOptions


def why_unprotected(address: Address, options: PeerOptions) -> str | None:
    """A reason not to listen on an address and not to dial it, or None."""
    if options.secrets() or options.mutual_tls:
        return None
    return (
        f"{address} is for other nodes, and nobody has to prove to be one: set cluster.secret_file or cluster.tls, the same "
        "on all nodes. `openssl rand -hex 32` makes a secret"
    )

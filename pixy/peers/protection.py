"""The rule that peers on other machines are authenticated."""

from pixy.peers.address import Address
from pixy.peers.options import PeerOptions


def why_unprotected(address: Address, options: PeerOptions) -> str | None:
    """A reason not to listen on an address and not to dial it, or None."""
    if options.secrets() or options.mutual_tls or address.is_loopback:
        return None
    return (
        f"{address} may be reached from, or lead to, other machines: peers need cluster.secret_file or cluster.tls, "
        "the same on all nodes; without them only loopback addresses are allowed"
    )

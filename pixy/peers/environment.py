"""State shared by all connections of a daemon to its peers."""

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from pixy.faults import OnFault
from pixy.peers.network import Network
from pixy.peers.options import PeerOptions
from pixy.peers.refusals import RefusalLog

if TYPE_CHECKING:
    from pixy.peers.link import PeerLink

__all__ = ["PeerEnvironment"]


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """State shared by all connections.

    Attributes:
        network: opens connections.
        options: see `PeerOptions`.
        random: for nonces and pauses.
        on_fault: called with exceptions that nobody expected.
        links: connections with a transport, oldest first.
        refusals: log of refused connections.
    """

    network: Network
    options: PeerOptions
    random: Random
    on_fault: OnFault
    links: "dict[PeerLink, None]" = field(default_factory=dict)
    refusals: RefusalLog = field(default_factory=RefusalLog)

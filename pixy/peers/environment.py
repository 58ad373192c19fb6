"""State shared by all connections of a daemon to its peers."""

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from pixy.faults import OnFault
from pixy.peers.network import Network
from pixy.peers.options import PeerOptions
from pixy.peers.refusals import RefusalLog
from pixy.peers.traffic import PeerTraffic

if TYPE_CHECKING:
    from pixy.peers.link import PeerLink


@dataclass(slots=True)
class FrameLimit:
    """Largest frame that a node of any cluster of the process may send, 0 while none has told.

    The limits of the options apply where they are larger.
    """

    bytes_max: int = 0


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
        frames: what nodes have told of their frames.
        uncounted: traffic of handshakes, and of connections of no node.
    """

    network: Network
    options: PeerOptions
    random: Random
    on_fault: OnFault
    links: "dict[PeerLink, None]" = field(default_factory=dict)
    refusals: RefusalLog = field(default_factory=RefusalLog)
    frames: FrameLimit = field(default_factory=FrameLimit)
    uncounted: PeerTraffic = field(default_factory=PeerTraffic)

    def take_frames(self, bytes_max: int) -> None:
        """Take and send frames with this payload, on all connections between nodes, from here on.

        For all clusters of the process alike; it never gets less.
        """
        if bytes_max > self.frames.bytes_max:
            self.frames.bytes_max = bytes_max
            for link in self.links:
                link.take_frames(bytes_max)

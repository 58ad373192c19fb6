"""Counts of what this node exchanges with another one."""

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class PeerTraffic:
    """All connections with one node, whichever side has dialled them, since the start.

    Attributes:
        sent_frames, sent_bytes, received_frames, received_bytes: once a handshake is over.
        reconnects: connections that were dialled in place of ones that had ended.
    """

    sent_frames: int = 0
    sent_bytes: int = 0
    received_frames: int = 0
    received_bytes: int = 0
    reconnects: int = 0

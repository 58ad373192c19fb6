"""Connections to the other nodes of a cluster, for the payload of other layers.

`Peers` has one listening socket for all clusters of a daemon, `PeerChannel` is the view of one of
them. `network` is what they stand on, `frames` the bytes, `handshake` the rules by which two nodes
accept each other.
"""

from pixy.peers.address import Address
from pixy.peers.channel import PeerChannel
from pixy.peers.failures import decode_answer, decode_apart, decode_failure, encode_failure
from pixy.peers.frames import FrameDamage
from pixy.peers.handshake_side import NotYet
from pixy.peers.hello import Claim, Hello, join_hash
from pixy.peers.options import Answer, NextSlice, PeerHooks, PeerOptions
from pixy.peers.peers import Peers
from pixy.peers.secrets import SharedSecrets
from pixy.peers.tcp import TcpNetwork
from pixy.peers.tls import PeerCertificates
from pixy.peers.traffic import PeerTraffic

__all__ = [
    "Address",
    "Answer",
    "Claim",
    "FrameDamage",
    "Hello",
    "NextSlice",
    "NotYet",
    "PeerCertificates",
    "PeerChannel",
    "PeerHooks",
    "PeerOptions",
    "PeerTraffic",
    "Peers",
    "SharedSecrets",
    "TcpNetwork",
    "decode_answer",
    "decode_apart",
    "decode_failure",
    "encode_failure",
    "join_hash",
]

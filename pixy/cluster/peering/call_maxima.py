"""Largest calls of other nodes: elements of each repeated field of their requests. Pure.

A frame of 16 MiB, or of 64, has millions of elements, and the answer is work for each. The maxima
are those of a cluster with 20 000 partitions; see `element_maxima`. Answers have as many bytes as
what was asked for can have.
"""

from collections.abc import Mapping

from google.protobuf.descriptor import Descriptor

from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.cluster.state import CALL_PIECES_MAX, ElementMaxima
from pixy.proto.consumer_calls_pb2 import ConsumerCall
from pixy.proto.node_calls_pb2 import LeadersRequest, OffsetsRequest, PutPiecesRequest

_PARTITIONS = 20_000
_ACKS = 1000
"""Acks of one partition that a node passes on in a call: it has half as many."""
_POSITIONS = 50_000
"""Records that clients of a node wait for, or were given, at a time."""

REQUESTS: Mapping[int, Descriptor] = {
    PeerMethod.OFFSETS: OffsetsRequest.DESCRIPTOR,
    PeerMethod.LEADERS: LeadersRequest.DESCRIPTOR,
    PeerMethod.CONSUME: ConsumerCall.DESCRIPTOR,
    PeerMethod.PUT_PIECES: PutPiecesRequest.DESCRIPTOR,
}
"""Requests with repeated fields, by method."""

ELEMENTS_MAX: Mapping[str, int] = {
    "RangesRequest.raft_groups": _PARTITIONS,
    "LeadersRequest.raft_groups": _PARTITIONS,
    "PassedAck.more_offsets": _ACKS,
    "Reset.partitions": _PARTITIONS,
    "SetOffsets.partitions": _PARTITIONS,
    "OffersRequest.held": _POSITIONS,
    "Settled.delivered": _POSITIONS,
    "Settled.acked": _POSITIONS,
    "Settled.undelivered": _POSITIONS,
    "PutPiecesRequest.pieces": CALL_PIECES_MAX,
}
"""By message and field."""

_MAXIMA = ElementMaxima(REQUESTS.values(), ELEMENTS_MAX, "call")


def why_too_large(method: int, payload: bytes) -> str:
    """Reason why the request of a call is larger than a correct node's, empty if it is not."""
    request = REQUESTS.get(method)
    return "" if request is None else _MAXIMA.why_exceeded(request, payload)

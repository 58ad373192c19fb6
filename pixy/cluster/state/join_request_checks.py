"""Checks of requests to join and their answers, and of the nodes that another one tells of: what a
node says of itself is kept in metadata, and all dial it.
"""

import ipaddress
from collections.abc import Iterable, Sequence

from pixy.cluster.state.nodes import NODES_MAX, NodeInfo
from pixy.entry_ids import NODE_ID_MAX
from pixy.errors import FailedPrecondition
from pixy.peers import Address
from pixy.proto.node_calls_pb2 import JoinRequest, JoinResponse
from pixy.proto.state_pb2 import NodeRecord, RegisterNode

_SECRET_BYTES = 16
_CLUSTER_ID_BYTES = 16
LEVEL_MAX = 1000
"""Largest feature level: no release gets there, and a level that is reached never falls."""
TEXT_MAX = 300
_TOLD_MAX = 2 * NODES_MAX
"""Nodes that another one may name: those of a cluster, and as many that are leaving it."""


def check_join(request: JoinRequest | RegisterNode) -> None:
    """Check the request of a node that wants to join, or the command that another node makes of it.

    Raises:
        FailedPrecondition: no node sends it.
    """
    size = len(request.secret)
    if size != _SECRET_BYTES:
        raise FailedPrecondition(
            f"a node with a secret of {size} bytes cannot join, {_SECRET_BYTES} are expected"
        )
    if request.feature_level > LEVEL_MAX:
        raise FailedPrecondition(
            f"a node with feature level {request.feature_level} cannot join, at most {LEVEL_MAX} is allowed"
        )
    for name in ("address", "grpc_address", "rack", "version"):
        text = getattr(request, name)
        if len(text) > TEXT_MAX or not text.isprintable():
            raise FailedPrecondition(f"a node cannot join with an impossible {name}")
    try:
        Address.of_node(request.address)
    except ValueError as error:
        raise FailedPrecondition(f"a node cannot join whose peer address {error}") from error


def check_place(request: JoinRequest, present: Iterable[NodeInfo]) -> None:
    """Check that no other node is where one that wants to join says that it is.

    Args:
        request: that `check_join` has passed.
        present: this node, and those that it is connected to. Where one was that is gone, another
            may be: a node whose disk was lost.

    Raises:
        FailedPrecondition: another node is there.
    """
    for node in present:
        if node.secret != request.secret and _place(node.address) == _place(request.address):
            raise FailedPrecondition(f"a node cannot join at {request.address}: node {node.node_id} is there")


def _place(address: str) -> tuple[str, int] | None:
    try:
        host, port = Address.parse(address.lower())
    except ValueError:
        return None
    try:
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        return host, port


def check_joined(answer: JoinResponse) -> None:
    """Check the answer to a request to join, which becomes the identity of this node.

    Raises:
        FailedPrecondition: no node gives it.
    """
    if len(answer.nodes) > _TOLD_MAX:
        raise FailedPrecondition(f"it names {len(answer.nodes)} nodes, at most {_TOLD_MAX} are possible")
    ids = [answer.node_id, *(node.node_id for node in answer.nodes)]
    if len(answer.cluster_id) != _CLUSTER_ID_BYTES or not all(0 < each <= NODE_ID_MAX for each in ids):
        raise FailedPrecondition(
            f"it answers with a cluster id of {len(answer.cluster_id)} bytes and node {answer.node_id} of {ids[1:]}; "
            f"expected are {_CLUSTER_ID_BYTES} bytes and ids from 1 to {NODE_ID_MAX}"
        )
    if answer.feature_level > LEVEL_MAX:
        raise FailedPrecondition(
            f"it answers with feature level {answer.feature_level}, at most {LEVEL_MAX} is allowed"
        )


def check_told(nodes: Sequence[NodeRecord]) -> None:
    """Check the nodes that another one tells of, of which this node dials each.

    Raises:
        FailedPrecondition: no node tells of them.
    """
    if len(nodes) > _TOLD_MAX:
        raise FailedPrecondition(f"{len(nodes)} nodes, at most {_TOLD_MAX} are possible")
    for node in nodes:
        # A node of a release without secrets gets one with its next start.
        if not 0 < node.node_id <= NODE_ID_MAX or len(node.secret) not in (0, _SECRET_BYTES):
            raise FailedPrecondition(f"a node {node.node_id} with a secret of {len(node.secret)} bytes")

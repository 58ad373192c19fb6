"""Checks of requests to join: what a node says of itself is kept in metadata, and all dial it."""

from pixy.errors import FailedPrecondition
from pixy.peers import Address
from pixy.proto.node_calls_pb2 import JoinRequest

__all__ = ["check_join"]

_SECRET_BYTES = 16
_TEXT_MAX = 300


def check_join(request: JoinRequest) -> None:
    """Check the request of a node that wants to join.

    Raises:
        FailedPrecondition: no node sends it.
    """
    size = len(request.secret)
    if size != _SECRET_BYTES:
        raise FailedPrecondition(
            f"a node with a secret of {size} bytes cannot join, {_SECRET_BYTES} are expected"
        )
    for name in ("address", "grpc_address", "rack", "version"):
        text = getattr(request, name)
        if len(text) > _TEXT_MAX or not text.isprintable():
            raise FailedPrecondition(f"a node cannot join with an impossible {name}")
    try:
        Address.parse(request.address)
    except ValueError as error:
        raise FailedPrecondition(f"a node cannot join with the peer address {error}") from error

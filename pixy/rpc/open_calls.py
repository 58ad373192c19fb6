"""Bound on the open calls of all connections: a call that waits costs kilobytes, bytes or not.

Owns the numbers. Connections count their calls themselves, inline: each call passes here twice.
"""

from pixy.client_address import share_of
from pixy.rpc.headers import Refusal, refusal_fields
from pixy.rpc.status import GrpcError, Status

__all__ = ["ClientCalls", "OpenCalls"]

_LIMIT = "grpc.max_calls"
_SHARE = f"client_share_percent of {_LIMIT}"


class ClientCalls:
    """Open connections and calls of one client address.

    Attributes:
        connections: number of them.
        open: calls of these connections.
    """

    __slots__ = ("connections", "open")

    def __init__(self) -> None:
        self.connections = self.open = 0


class OpenCalls:
    """Calls that have begun and were not answered.

    Args:
        limit: of all connections.
        client_share_percent: part of them that one client address may have.

    Attributes:
        limit: see above.
        share: of one client address.
        open: calls of all connections.
    """

    __slots__ = ("_beyond_limit", "_beyond_share", "limit", "open", "share")

    def __init__(self, limit: int, client_share_percent: int) -> None:
        self.limit = limit
        self.share = share_of(limit, client_share_percent)
        self.open = 0
        self._beyond_limit = _refusal(_LIMIT, f"the server has {limit} open calls, {_LIMIT}: try again later")
        self._beyond_share = _refusal(
            _SHARE,
            f"clients of this address have {self.share} open calls, their share (`client_share_percent`) "
            f"of {_LIMIT}, {limit}: wait until some of them are answered",
        )

    def refusal(self) -> tuple[str, Refusal]:
        """The limit that one more call of a client exceeds, and its answer."""
        if self.open >= self.limit:
            return _LIMIT, self._beyond_limit
        return _SHARE, self._beyond_share


def _refusal(limit: str, text: str) -> Refusal:
    return Refusal(refusal_fields(GrpcError(Status.RESOURCE_EXHAUSTED, text, limit=limit)))

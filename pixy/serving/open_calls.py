"""Bound on the open calls of all connections: a call that waits costs kilobytes, bytes or not.

Owns the numbers. Connections count their calls themselves, inline: each call passes here twice.
"""

from typing import NamedTuple

from pixy.client_address import share_of

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


class Excess(NamedTuple):
    """The bound that one more call of a client exceeds: its option, and the text for the client."""

    limit: str
    text: str


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
        self._beyond_limit = Excess(_LIMIT, f"the server has {limit} open calls, {_LIMIT}: try again later")
        self._beyond_share = Excess(
            _SHARE,
            f"clients of this address have {self.share} open calls, their share (`client_share_percent`) "
            f"of {_LIMIT}, {limit}: wait until some of them are answered",
        )

    def excess(self) -> Excess:
        """See `Excess`."""
        return self._beyond_limit if self.open >= self.limit else self._beyond_share

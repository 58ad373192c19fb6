"""Bound on the open calls of all connections: a call that waits costs kilobytes, bytes or not.

Owns the numbers. Connections count their calls themselves, inline, because each call passes twice:
they count those of their client address alone, which is granted some of the calls of all in
advance.
"""

from typing import NamedTuple

from pixy.client_address import share_of

_LIMIT = "grpc.max_calls"
_SHARE = f"client_share_percent of {_LIMIT}"
_GRANTED = 256
"""Calls that are granted at a time."""


class ClientCalls:
    """Open connections and calls of one client address.

    Attributes:
        connections: number of them.
        open: calls of these connections.
        granted: calls that may be open before `OpenCalls.grant` is asked for more.
    """

    __slots__ = ("connections", "granted", "open")

    def __init__(self) -> None:
        self.connections = self.open = self.granted = 0


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
        clients: by address, each with a connection.
    """

    __slots__ = ("_beyond_limit", "_beyond_share", "_granted", "_limit", "_share", "clients")

    def __init__(self, limit: int, client_share_percent: int) -> None:
        self._limit = limit
        self._share = share_of(limit, client_share_percent)
        # Invariant: the sum of what is granted to each client, at most `_limit`.
        self._granted = 0
        self.clients: dict[str, ClientCalls] = {}
        self._beyond_limit = Excess(_LIMIT, f"the server has {limit} open calls, {_LIMIT}: try again later")
        self._beyond_share = Excess(
            _SHARE,
            f"clients of this address have {self._share} open calls, their share (`client_share_percent`) "
            f"of {_LIMIT}, {limit}: wait until some of them are answered",
        )

    @property
    def open(self) -> int:
        """Calls of all connections."""
        return sum(client.open for client in self.clients.values())

    def grant(self, client: ClientCalls) -> bool:
        """Grant more calls to a client that has opened all of its own.

        Returns:
            False if one more would exceed a bound.
        """
        if client.open >= self._share:
            return False
        if self._granted >= self._limit:
            self._take_back()
        more = min(_GRANTED, self._share - client.granted, self._limit - self._granted)
        client.granted += more
        self._granted += more
        return more > 0

    def _take_back(self) -> None:
        """Leave no client more than it uses."""
        self._granted = 0
        for client in self.clients.values():
            client.granted = client.open
            self._granted += client.open

    def excess(self) -> Excess:
        """See `Excess`."""
        return self._beyond_limit if self.open >= self._limit else self._beyond_share

    def gone(self, address: str) -> None:
        """The last connection of a client has gone."""
        self._granted -= self.clients.pop(address).granted

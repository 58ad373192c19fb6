"""Clients that have closed their side, known by one question for all connections.

An answer that its client will not read must not count as delivered. A transport that has not read
the client's end yet, or has paused reading, does not know of it, nor does one of TLS whose client
has closed without a word of TLS: so the system is asked before answers are written. No protocol
here has use for a client that only reads.

The road not taken: to ask for each connection before each of its writes, which takes a twentieth of
the time of a small answer.
"""

import select
import sys
from typing import Protocol

_AT_ONCE = 64
"""Ends that a question tells of; then it is repeated."""


class WatchedClient(Protocol):
    """The transport of a client.

    Attributes:
        client_left: the client has closed its side.
    """

    client_left: bool


class ClientEnds:
    """Clients of one server that have closed their side, on Linux; elsewhere nobody ever has.

    Attributes:
        asked: the system was asked since the last `expire`, or since a client is watched.
    """

    __slots__ = ("_epoll", "_watched", "asked")

    def __init__(self) -> None:
        self._epoll = select.epoll() if sys.platform == "linux" else None
        # By descriptor.
        self._watched: dict[int, WatchedClient] = {}
        self.asked = False

    def watch(self, descriptor: int, client: WatchedClient) -> None:
        """Tell a client of its end, until its socket is closed and it is forgotten."""
        if self._epoll is not None:
            # Each end is reported once: clients whose end nobody reads would hide the others.
            self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLET)
            self._watched[descriptor] = client
            self.asked = False

    def forget(self, descriptor: int, client: WatchedClient) -> None:
        """The socket of a client is closed; the system watches it no more. Its descriptor may be
        another client's already.
        """
        if self._watched.get(descriptor) is client:
            del self._watched[descriptor]

    def expire(self) -> None:
        """Time has passed since the last question."""
        self.asked = False

    def ask(self) -> None:
        """Set `client_left` of all who have."""
        self.asked = True
        if self._epoll is None:
            return
        left = _AT_ONCE
        while left == _AT_ONCE:
            events = self._epoll.poll(0, _AT_ONCE)
            left = len(events)
            for descriptor, _ in events:
                if descriptor in self._watched:
                    self._watched[descriptor].client_left = True

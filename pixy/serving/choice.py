"""Several protocols on one port: ALPN chooses that of a connection, or in plain text its first
bytes.

Each factory in turn is asked whether it claims the bytes; the next one is asked when it certainly
does not. A connection that no factory claims is the first one's, which knows how to tell its
client; so is a connection that does not say enough in time.
"""

from collections.abc import Sequence
from typing import Protocol

from pixy.serving.link import Link, ProtocolFactory
from pixy.serving.protocol import ConnectionCore, ConnectionProtocol, End, RequestCounts

_BEGIN_BYTES_MAX = 256
"""With more, a factory that needs more does not get the connection."""


class ChoosableFactory(ProtocolFactory, Protocol):
    """Opens connections of a protocol whose first bytes tell it from others."""

    def claims(self, begin: bytes) -> bool | None:
        """True for the first bytes of a connection that speaks the protocol, False for those of
        others, None if more bytes are needed.
        """


class ProtocolChoice:
    """Opens connections of several protocols, see `ProtocolFactory`.

    Args:
        factories: of the protocols, at least one.
    """

    def __init__(self, factories: Sequence[ChoosableFactory]) -> None:
        self._factories = factories
        self.alpn = [name for factory in factories for name in factory.alpn]

    def open(self, link: Link, accepted_at: float) -> ConnectionProtocol:
        """See `ProtocolFactory`."""
        name = link.transport.alpn
        if name is None:
            return _Undecided(link, self._factories, accepted_at)
        named = (factory for factory in self._factories if name in factory.alpn)
        return next(named, self._factories[0]).open(link, accepted_at)

    def close(self) -> None:
        """See `ProtocolFactory`."""
        for factory in self._factories:
            factory.close()


class _Undecided:
    """A connection whose first bytes are to come, see `ConnectionProtocol`. The chosen protocol
    replaces it.
    """

    __slots__ = ("_accepted_at", "_begin", "_factories", "_link", "closed")

    pending = has_output = False
    data_expected = kept_bytes = 0
    counts = RequestCounts()

    def __init__(self, link: Link, factories: Sequence[ChoosableFactory], accepted_at: float) -> None:
        self._link = link
        self._factories = factories
        self._accepted_at = accepted_at
        # All bytes that have come.
        self._begin = b""
        self.closed = False

    @property
    def core(self) -> ConnectionCore:
        """See `ConnectionProtocol`."""
        return self

    @property
    def buffered_bytes(self) -> int:
        """See `ConnectionCore`."""
        return len(self._begin)

    def receive(self, chunk: bytes, now: float, work: int) -> None:
        """See `ConnectionProtocol`."""
        self._begin += chunk
        factory = self._maybe_choose()
        if factory is not None:
            self._open(factory, now, work)

    def take_output(self, most: int) -> bytes:
        """See `ConnectionCore`."""
        return b""

    def set_unwritten(self, size: int) -> None:
        """See `ConnectionCore`."""

    def tick(self, now: float) -> None:
        """See `ConnectionProtocol`."""
        handshake_s = self._link.environment.options.handshake_s
        if handshake_s and now - self._accepted_at >= handshake_s:
            self._open(self._factories[0], now, _BEGIN_BYTES_MAX).tick(now)

    def announce_drain(self) -> None:
        """See `ConnectionProtocol`."""

    def drain(self, now: float) -> None:
        """See `ConnectionProtocol`. The client has asked for nothing yet."""
        self.closed = True

    def terminate(self, end: End) -> None:
        """See `ConnectionProtocol`."""
        self.closed = True
        self._link.dropped()

    def _maybe_choose(self) -> ChoosableFactory | None:
        """The factory of the connection, None if more bytes are needed."""
        for factory in self._factories:
            claims = factory.claims(self._begin)
            if claims:
                return factory
            if claims is None and len(self._begin) <= _BEGIN_BYTES_MAX:
                return None
        return self._factories[0]

    def _open(self, factory: ChoosableFactory, now: float, work: int) -> ConnectionProtocol:
        protocol = factory.open(self._link, self._accepted_at)
        self._link.run(protocol)
        protocol.receive(self._begin, now, work)
        return protocol

"""A connection's protocol: bytes in, work, bytes out. HTTP/2 with gRPC is one.

A protocol never touches its transport. Its link brings it input in slices, as the fair scheduler
allows, and takes its output when the transport wants it. A protocol that has output outside
`receive` and `tick` says so by `Link.touch`.

It has two parts, which may be one object: a core that has the bytes and does nothing, and the
protocol itself, which acts. The link asks the core a dozen times for each chunk, so nothing stands
between them.

    terminate    nothing more is received. All that runs learns that its client is gone, in slices
                 if it is much; then the protocol calls `Link.dropped`.
    closed       the output that is left is the last: the link writes it and closes.

A bug in any of these methods ends this connection alone.
"""

from enum import Enum, auto
from typing import NamedTuple, Protocol


class End(Enum):
    """The reason for which a link terminates its protocol."""

    LOST = auto()
    """The transport is gone. May come after another reason."""
    GRACE_OVER = auto()
    """The time of a drain is over."""
    EVICTED = auto()
    """All connections together hold too much memory, and this one holds most."""
    NOT_AGREED = auto()
    """TLS has not agreed upon the protocol (ALPN)."""


class RequestCounts(NamedTuple):
    """A protocol's part of `ConnectionCounters`."""

    calls: int = 0
    running: int = 0
    resets_received: int = 0
    resets_sent: int = 0
    request_bytes: int = 0
    queued_bytes: int = 0


class ConnectionCore(Protocol):
    """Bytes of a connection: input that is not processed, output that is not written."""

    @property
    def pending(self) -> bool:
        """True if input is left: `ConnectionProtocol.receive` continues with it."""

    @property
    def data_expected(self) -> int:
        """Bytes that come next and cost little, 0 if nothing is known: a read may be as large."""

    @property
    def has_output(self) -> bool:
        """True if there are bytes to be written."""

    @property
    def closed(self) -> bool:
        """True when nothing more is received, and no output follows but what is there."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory: input that is not processed, and answers that the client has not
        taken.
        """

    def take_output(self, most: int) -> bytes:
        """Bytes to be written: all of them, or at least `most` if these are more."""

    def set_unwritten(self, size: int) -> None:
        """Bytes of earlier output are still in a transport that is full. They count as buffered
        until the next `take_output`.
        """


class ConnectionProtocol(Protocol):
    """The behaviour of one connection, from its first byte to its last.

    Attributes:
        core: the same object for life.
    """

    @property
    def core(self) -> ConnectionCore: ...

    @property
    def kept_bytes(self) -> int:
        """Bytes in memory beside those of the core: incomplete requests."""

    @property
    def counts(self) -> RequestCounts:
        """Counts so far."""

    def receive(self, chunk: bytes, now: float, work: int) -> None:
        """Act on input.

        Args:
            chunk: never modified by anybody. Empty to continue with `pending` input.
            now: seconds on the server's clock.
            work: bytes to look at before others have their turn; the rest stays `pending`.
        """

    def tick(self, now: float) -> None:
        """Act on the time. Called about once a second until the end."""

    def announce_drain(self) -> None:
        """Tell the client to send new requests elsewhere; those that come here are served."""

    def drain(self, now: float) -> None:
        """Take no new requests, and close after the running ones."""

    def terminate(self, end: End) -> None:
        """End now, see above. Called again, it does no harm."""


class _NoProtocol:
    """Before the transport is made, and after everybody knows of the end."""

    __slots__ = ()

    pending = has_output = False
    closed = True
    data_expected = buffered_bytes = kept_bytes = 0
    counts = RequestCounts()

    @property
    def core(self) -> ConnectionCore:
        """See `ConnectionProtocol`."""
        return self

    def receive(self, chunk: bytes, now: float, work: int) -> None:
        """See `ConnectionProtocol`."""

    def take_output(self, most: int) -> bytes:
        """See `ConnectionCore`."""
        return b""

    def set_unwritten(self, size: int) -> None:
        """See `ConnectionCore`."""

    def tick(self, now: float) -> None:
        """See `ConnectionProtocol`."""

    def announce_drain(self) -> None:
        """See `ConnectionProtocol`."""

    def drain(self, now: float) -> None:
        """See `ConnectionProtocol`."""

    def terminate(self, end: End) -> None:
        """See `ConnectionProtocol`."""


NO_PROTOCOL: ConnectionProtocol = _NoProtocol()

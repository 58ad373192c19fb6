"""A tiny protocol for connections: each line comes back.

echo TEXT    `TEXT`, at once
hold         nothing until the connection drains or ends; `held` then
large N      N bytes, of which the client takes what it likes
"""

from collections.abc import Callable

from pixy.serving import End, Link, RequestCounts
from pixy.serving.protocol import ConnectionCore

_BEGINNINGS = (b"echo ", b"hold\n", b"large ")
_LINE_BYTES_MAX = 1000


class LineConnection:
    """See `ConnectionProtocol`."""

    data_expected = kept_bytes = 0

    def __init__(self, link: Link, factory: "LineFactory") -> None:
        self._link = link
        self._factory = factory
        self._input = b""
        self._output = b""
        self._held = self._unwritten = 0
        self._draining = self._ended = False
        self._calls = 0
        self.ends: list[End] = []

    @property
    def core(self) -> ConnectionCore:
        """See `ConnectionProtocol`."""
        return self

    @property
    def pending(self) -> bool:
        """See `ConnectionCore`."""
        return b"\n" in self._input and not self.closed

    @property
    def has_output(self) -> bool:
        """See `ConnectionCore`."""
        return bool(self._output)

    @property
    def closed(self) -> bool:
        """See `ConnectionCore`."""
        return self._ended or (self._draining and not self._held)

    @property
    def buffered_bytes(self) -> int:
        """See `ConnectionCore`."""
        return len(self._input) + len(self._output) + self._unwritten

    @property
    def counts(self) -> RequestCounts:
        """See `ConnectionProtocol`."""
        return RequestCounts(calls=self._calls, running=self._held, queued_bytes=len(self._output))

    def receive(self, chunk: bytes, now: float, work: int) -> None:
        """See `ConnectionProtocol`."""
        self._input += chunk
        while work > 0 and self.pending:
            line, _, self._input = self._input.partition(b"\n")
            work -= len(line) + 1
            self._answer(line)
        if not self.pending and len(self._input) > _LINE_BYTES_MAX:
            self._output += b"too long\n"
            self._ended = True

    def take_output(self, most: int) -> bytes:
        """See `ConnectionCore`."""
        self._unwritten = 0
        taken, self._output = self._output[:most], self._output[most:]
        return taken

    def set_unwritten(self, size: int) -> None:
        """See `ConnectionCore`."""
        self._unwritten = size

    def tick(self, now: float) -> None:
        """See `ConnectionProtocol`."""

    def announce_drain(self) -> None:
        """See `ConnectionProtocol`."""
        self._release()

    def drain(self, now: float) -> None:
        """See `ConnectionProtocol`."""
        self._draining = True
        self._release()

    def terminate(self, end: End) -> None:
        """See `ConnectionProtocol`."""
        self.ends.append(end)
        self._ended = True
        self._link.dropped()

    def _answer(self, line: bytes) -> None:
        self._calls += 1
        self._factory.spend()
        command, _, rest = line.partition(b" ")
        if command == b"hold":
            self._held += 1
        elif command == b"large":
            self._output += bytes(int(rest))
        else:
            self._output += rest + b"\n"

    def _release(self) -> None:
        self._output += b"held\n" * self._held
        self._held = 0


class LineFactory:
    """See `ChoosableFactory`.

    Attributes:
        opened: all connections.
        spend: called for each line, for instance to advance the time.
        closed: the server has stopped.
    """

    alpn = ("line", "")

    def __init__(self) -> None:
        self.opened: list[LineConnection] = []
        self.spend: Callable[[], None] = lambda: None
        self.closed = False

    def claims(self, begin: bytes) -> bool | None:
        """See `ChoosableFactory`."""
        if begin.startswith(_BEGINNINGS):
            return True
        return None if any(beginning.startswith(begin) for beginning in _BEGINNINGS) else False

    def open(self, link: Link, accepted_at: float) -> LineConnection:
        """See `ProtocolFactory`."""
        self.opened.append(LineConnection(link, self))
        return self.opened[-1]

    def close(self) -> None:
        """See `ProtocolFactory`."""
        self.closed = True

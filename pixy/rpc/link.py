"""The life of a connection on its transport: when to read, to write and to close. Knows no gRPC.

The transport brings a chunk, the core makes events of it, the layer above acts on them, and at the
end everything that was answered leaves in one write. Later answers are gathered over all
connections, and each connection writes once.

Isolation of connections from each other:

- One read brings at most 32 KiB, or the rest of a DATA frame up to 64 KiB. At most `turn_bytes` of
  it are served in a slice. A connection that has used up its share of the
  loop queues (`workload`, `fair_scheduler`), and nothing is read from it until all its input is
  served.
- While the transport is full, nothing is read, served or taken from the core. Output that a client
  does not read counts against the core's `output_bytes` wherever it is.
- A client that takes nothing for `http2.send_stall_s`, or does not read the last bytes within
  `linger_s`, is cut off.

The end: the output is closed first (see `transport`), and input is discarded until the client
closes too, or for `linger_s`. At most 1 MiB of it is read in a second, so a client that sends
without end costs nothing, and still learns why. The road not taken: to cut off a client that has
sent that much. The system's buffers hold many times a window, and a client that has not come to
read yet would lose the GOAWAY.

An exception of the core, or while its events are acted on, is a bug that concerns this connection
alone: it is reported, and the connection ends (`broken`). None reaches the transport, the ticker or
the flusher, because these have other connections to serve.
"""

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol

from pixy.futures import resolve
from pixy.http2 import ErrorCode, Event, Http2Connection
from pixy.rpc.environment import Environment
from pixy.rpc.memory import NOTED_BYTES
from pixy.rpc.receipts import Receipts
from pixy.rpc.transport import Transport
from pixy.rpc.workload import Workload

__all__ = ["EventLayer", "Link"]

P = ParamSpec("P")

_SENT_BYTES_MAX = 65_536
"""Bytes that the streaming calls of a connection send in one iteration of the loop."""
_WRITTEN_BYTES_MAX = 1 << 20
"""Output of a connection that is joined and written in one iteration of the loop."""
_DISCARDED_BYTES_MAX = 1 << 20
"""Input that is discarded in a second after the end.

With megabytes, a client with many connections that have ended, each with full buffers, would delay
the others by milliseconds.
"""


class _Phase(Enum):
    OPENING = auto()
    """In the TLS handshake."""
    SERVING = auto()
    DRAINING = auto()
    """New calls are refused; running calls may finish."""
    CLOSING = auto()
    """Everything has ended; the transport writes the rest, and input is discarded."""
    CLOSED = auto()
    """The transport is gone."""
    RETIRED = auto()
    """All calls know, too.

    The link refers to no layer above any more, so reference counts free the connection.
    """


# Tuples: the hash of an enum's member is a function in Python.
_LIVE = (_Phase.SERVING, _Phase.DRAINING)
_OVER = (_Phase.CLOSING, _Phase.CLOSED, _Phase.RETIRED)
_GONE = (_Phase.CLOSED, _Phase.RETIRED)


class EventLayer(Protocol):
    """The layer above a link.

    Attributes:
        touched: a flush is certain to come.
    """

    touched: bool

    @property
    def kept_bytes(self) -> int:
        """Bytes of requests that are not complete."""

    def touch(self) -> None:
        """Schedule a flush for the end of this iteration of the loop."""

    def flush(self) -> None:
        """Flush the link."""

    def act(self, events: Sequence[Event]) -> None:
        """Act on events of the core."""

    def drop(self) -> None:
        """The client is gone: tell all calls, in slices, and then call `Link.dropped`."""

    def drain_began(self) -> None:
        """The client is to open new streams elsewhere."""

    def closed(self) -> None:
        """The connection is gone, or was never made."""


def _contained(work: "Callable[Concatenate[Link, P], None]") -> "Callable[Concatenate[Link, P], None]":
    """Let a bug in a method that is called from outside end this connection alone."""

    @wraps(work)
    def contained(link: "Link", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            work(link, *args, **kwargs)
        except Exception as bug:
            link.broken(bug)

    return contained


class Link(asyncio.BufferedProtocol):
    """A connection's transport, core and share of the loop, from its first byte to its last.

    Args:
        layer: acts on the core's events.
        environment: shared by all connections.
        core: of the connection.
        receipts: of its answers.
        now: seconds on the server's clock.
        secure: the transport is TLS.

    Attributes:
        transport: of asyncio.
        workload: the connection's share of the loop.
    """

    __slots__ = (
        "_blocked_since",
        "_discarded_bytes",
        "_drain_at",
        "_end_at",
        "_environment",
        "_layer",
        "_noted_bytes",
        "_phase",
        "_receipts",
        "_send_waiters",
        "_unflushed_bytes",
        "core",
        "transport",
        "workload",
    )

    def __init__(
        self,
        layer: EventLayer,
        environment: Environment,
        core: Http2Connection,
        receipts: Receipts,
        now: float,
        *,
        secure: bool,
    ) -> None:
        self._layer = layer
        self._environment = environment
        self.core = core
        self._receipts = receipts
        self.transport = Transport(secure=secure)
        self.workload = Workload(self, core, environment, now)
        self._phase = _Phase.OPENING
        # Since when the transport is full.
        self._blocked_since = 0.0
        # Streaming handlers that wait to send more, and bytes sent since the last write.
        self._send_waiters: list[asyncio.Future[None]] = []
        self._unflushed_bytes = 0
        # Begin of a drain, and the time by which it must be over.
        self._drain_at = self._end_at = float("inf")
        # Bytes that the server's memory knows of.
        self._noted_bytes = 0
        # Input that was discarded after the end, in about a second.
        self._discarded_bytes = 0

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.transport.peer

    # --- for the layer above ----------------------------------------------------------------------

    def touch(self) -> None:
        """Schedule a flush, for output of the core that came without the layer above."""
        self._layer.touch()

    def dropped(self) -> None:
        """All calls were told of the end."""
        if self._phase is _Phase.CLOSED:
            self._phase = _Phase.RETIRED
            self._layer.closed()
            del self._layer, self.workload

    async def wait_sendable(self, size: int) -> None:
        """Return when the transport takes more.

        Streaming handlers have sent `size` bytes since they last asked.
        """
        self._unflushed_bytes += size
        while self._phase not in _OVER and (
            not self.transport.writable or self._unflushed_bytes >= _SENT_BYTES_MAX
        ):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._send_waiters.append(waiter)
            # Output that the client's window has let out may have been written before it was
            # counted here: then nobody else asks for a flush.
            self._layer.touch()
            await waiter

    def flush(self) -> None:
        """Write output that can be written, the rest of very much in later iterations of the loop,
        and close after the last of it.
        """
        if self.transport.writable and self._phase not in _OVER:
            self._write()
        if self._noted_bytes or self.core.buffered_bytes >= NOTED_BYTES:
            self.note_held()

    def broken(self, bug: Exception) -> None:
        """End without a word: the core and the layer above may disagree."""
        self._environment.note(bug)
        if self._phase not in _GONE:
            self._phase = _Phase.CLOSING
            self.abort()

    # --- asyncio.BufferedProtocol -----------------------------------------------------------------

    @_contained
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        environment = self._environment
        speaks_http2 = self.transport.made(transport)
        if self._phase in _GONE:
            # It was given up while it was made.
            self.transport.abort()
            return
        self._phase = _Phase.SERVING
        if not speaks_http2:
            environment.counters.refused += 1
            environment.strangers.hit("TLS without the protocol h2 of ALPN", self.peer)
            self.core.terminate_http1()
            self._layer.touch()
            return
        environment.counters.accepted += 1
        age_s = environment.options.age_s
        if age_s:
            self._drain_at = environment.monotonic() + age_s * environment.rng.uniform(0.9, 1.1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        environment = self._environment
        buffer, size = environment.read_buffer, self.core.data_expected
        return buffer if size <= len(buffer) else environment.data_buffer[:size]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._phase in _OVER:
            self._discard(nbytes)
        else:
            self.workload.received(bytes(self._environment.data_buffer[:nbytes]))

    @_contained
    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.transport.writable = False
        self._blocked_since = self._environment.monotonic()
        self.regulate()

    @_contained
    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.transport.writable = True
        if self._phase not in _GONE:
            self.workload.resume()
            self.regulate()
            self._layer.touch()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`. The transport closes."""
        self.transport.eof = True

    @_contained
    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._phase is _Phase.RETIRED:
            return
        self._phase = _Phase.CLOSED
        self.workload.forget_input()
        try:
            # Answers from here on are undelivered.
            self.core.terminate(ErrorCode.NO_ERROR, "the connection is lost")
        finally:
            self._wake_send_waiters()
            self.note_held()
            self._layer.drop()

    def never_made(self) -> None:
        """The listener has given up the connection, mostly in its TLS handshake."""
        self._environment.counters.handshakes_failed += 1
        if self._phase is not _Phase.RETIRED:
            self._phase = _Phase.CLOSED
            self._layer.closed()

    # --- for the workload -------------------------------------------------------------------------

    def takes_input(self) -> bool:
        """See `Served`."""
        return self.transport.writable and self._phase not in _OVER

    def serve(self, chunk: bytes, now: float) -> None:
        """See `Served`."""
        layer = self._layer
        # Answers to this chunk leave at its end.
        layer.touched = True
        try:
            layer.act(self.core.receive(chunk, now, self._environment.options.turn_bytes))
        except Exception as bug:
            self.broken(bug)
            return
        layer.flush()

    def note_held(self) -> None:
        """See `Served`."""
        if self._phase in _GONE:
            held = 0
        elif self._phase is _Phase.CLOSING:
            held = self.transport.buffered_bytes
        else:
            held = self.core.buffered_bytes + self._layer.kept_bytes + self.workload.unserved_bytes
        if abs(held - self._noted_bytes) >= NOTED_BYTES or (self._noted_bytes and not held):
            self._noted_bytes = held
            self._environment.memory.note(self, held)

    def regulate(self) -> None:
        """See `Served`."""
        if self._phase not in _GONE:
            self.transport.set_reading(self._may_read())

    # --- life -------------------------------------------------------------------------------------

    @_contained
    def announce_drain(self) -> None:
        """Tell the client to open new streams elsewhere. Calls that come here are served."""
        if self._phase is _Phase.SERVING:
            self.core.announce_drain()
            self._layer.touch()
            self._layer.drain_began()

    @_contained
    def begin_drain(self, grace_s: float) -> None:
        """Refuse new calls, and end with the running ones, at most `grace_s` seconds from now."""
        now = self._environment.monotonic()
        self._end_at = min(self._end_at, now + grace_s)
        if self._phase is _Phase.SERVING:
            self._phase = _Phase.DRAINING
            self.core.begin_drain(now)
            self._layer.touch()
            self._layer.drain_began()

    @_contained
    def tick(self, now: float) -> None:
        """Act on the time. Called about once a second."""
        options = self._environment.options
        if self._phase is _Phase.OPENING or self._phase in _GONE:
            return
        if self._phase is _Phase.SERVING and now >= self._drain_at:
            self.begin_drain(options.age_grace_s)
        if now >= self._end_at and self.core.closed:
            self.transport.abort()
        elif now >= self._end_at:
            self.end()
        elif self._phase is _Phase.CLOSING:
            self._discarded_bytes = 0
            self.regulate()
        elif self.transport.writable:
            self._layer.act(self.core.tick(now))
            self._layer.flush()
        elif options.http2.send_stall_s and now - self._blocked_since >= options.http2.send_stall_s:
            self._environment.limits.hit("grpc.stall_timeout", self.peer)
            self.transport.abort()

    @_contained
    def end(self) -> None:
        """End now: cancel running calls, and tell the client that the connection is gone."""
        if self._phase in _LIVE:
            self.core.terminate(ErrorCode.NO_ERROR, "the grace period is over")
            self._end_at = self._environment.monotonic() + self._environment.options.linger_s
            self._layer.drop()
            self._layer.flush()

    @_contained
    def evict(self) -> None:
        """See `Holder`."""
        self._noted_bytes = 0
        if self._phase in _LIVE:
            self._environment.counters.faulty += 1
            self.core.terminate(
                ErrorCode.ENHANCE_YOUR_CALM, "the server's buffers are full, and this connection holds most"
            )
            self._layer.drop()
            self._layer.flush()
        if not self.transport.writable:
            # The transport would hold it for as long as the client does not read.
            self.abort()

    def abort(self) -> None:
        """End now, without a word."""
        if self._phase not in _GONE:
            self.transport.abort()

    def make_room(self, size: int) -> None:
        """Write until the core takes as many bytes, or the transport no more.

        Inside a call's answer, whose caller does not expect to hear of other answers meanwhile: the
        next flush tells their receipts.
        """
        while (
            self.core.send_capacity < size
            and self.core.has_output
            and self.transport.writable
            and self._phase not in _OVER
        ):
            self._write(tell_receipts=False)
        self.note_held()

    # --- inside -----------------------------------------------------------------------------------

    def _write(self, *, tell_receipts: bool = True) -> None:
        try:
            output = self.core.take_output(_WRITTEN_BYTES_MAX)
            self._unflushed_bytes = 0
            is_all = not self.core.has_output
            delivers = tell_receipts and is_all and self._receipts.in_output and self.transport.has_client()
            if output:
                self.transport.write(output)
            if delivers and self.transport.took_writes():
                self._receipts.handed_over()
            if not self.transport.writable:
                self.core.set_unwritten(self.transport.buffered_bytes)
            elif self._send_waiters:
                self._wake_send_waiters()
            if not is_all:
                self._layer.touch()
            elif self.core.closed:
                self._close()
        except Exception as bug:
            self.broken(bug)

    def _wake_send_waiters(self) -> None:
        waiters, self._send_waiters = self._send_waiters, []
        for waiter in waiters:
            resolve(waiter, None)

    def _close(self) -> None:
        """Everything was said: end, and let the client read the last bytes."""
        self._phase = _Phase.CLOSING
        self._end_at = self._environment.monotonic() + self._environment.options.linger_s
        self.workload.forget_input()
        self._wake_send_waiters()
        if self.transport.close():
            self.workload.held_back = False
            self.regulate()

    def _discard(self, size: int) -> None:
        """Bytes came after the end."""
        self._discarded_bytes += size
        if not self._may_read():
            self.regulate()

    def _may_read(self) -> bool:
        """True while input is served and the transport is not full; after the end, below a
        bound.
        """
        if self._phase is _Phase.CLOSING:
            return self._discarded_bytes < _DISCARDED_BYTES_MAX
        return self.transport.writable and not self.workload.held_back

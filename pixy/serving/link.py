"""The life of a connection on its transport: when to read, to write and to close.

An iteration of the loop has three parts: transports bring chunks, protocols act on these, and each
connection with output writes once. The roads not taken: to act on each chunk at once, which takes a
tenth longer with many connections, as reading and acting push each other out of the processor's
caches; and to write at the end of each chunk. A client that sleeps is woken by the first write,
which costs more than the rest of it; with many connections to one client it would sleep again
before the next. A chunk of more than `NOTED_BYTES` does not wait for the others: the next read may
follow at once, and has to be paused before if this one is too much.

Isolation of connections from each other:

- One read brings at most 32 KiB, or what is known to be data up to 64 KiB. At most `turn_bytes` of
  it are served in a slice. A connection that has used up its share of the loop queues (`workload`,
  `fair_scheduler`), and nothing is read from it until all its input is served.
- While the transport is full, nothing is read, served or taken from the protocol, which knows of
  the output that its client does not read (`set_unwritten`). Nothing is read or served either while
  the protocol takes nothing (`pause_input`).
- A client that takes nothing for `stall_s`, or does not read the last bytes within `linger_s`, is
  cut off.

The end: the output is closed first (see `transport`), and input is discarded until the client
closes too, or for `linger_s`. At most 1 MiB of it is read in a second, so a client that sends
without end costs nothing, and still learns why. The road not taken: to cut off a client that has
sent that much. The system's buffers hold many times as much, and a client that has not come to read
yet would lose the protocol's last word.

An exception of the protocol is a bug that concerns this connection alone: it is reported, and the
connection ends (`broken`). None reaches the transport, the ticker or the flusher, because these
have other connections to serve.
"""

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol

from pixy.aio.futures import resolve
from pixy.serving.counters import ConnectionCounters
from pixy.serving.environment import Environment
from pixy.serving.memory import NOTED_BYTES
from pixy.serving.open_calls import ClientCalls
from pixy.serving.protocol import NO_PROTOCOL, ConnectionCore, ConnectionProtocol, End
from pixy.serving.receipts import Receipts
from pixy.serving.transport import Transport
from pixy.serving.workload import Workload

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

    The link refers to its protocol no more, so reference counts free the connection.
    """


# Tuples: the hash of an enum's member is a function in Python.
_LIVE = (_Phase.SERVING, _Phase.DRAINING)
_OVER = (_Phase.CLOSING, _Phase.CLOSED, _Phase.RETIRED)
_GONE = (_Phase.CLOSED, _Phase.RETIRED)


class ProtocolFactory(Protocol):
    """Opens the protocol of each connection."""

    @property
    def alpn(self) -> Sequence[str]:
        """Names of the protocol in TLS (ALPN); "" stands for clients that name none."""

    def open(self, link: "Link", accepted_at: float) -> ConnectionProtocol:
        """The protocol of a connection whose transport is made.

        Args:
            link: of the connection.
            accepted_at: seconds on the server's clock.
        """

    def close(self) -> None:
        """The server has stopped: no connection is left."""


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
    """A connection's transport, protocol and share of the loop, from its first byte to its last.

    Args:
        environment: shared by all connections.
        factory: opens the protocol when the transport is made.
        client: counts of its client address.
        closed: called when the connection is gone, or was never made.
        secure: the transport is TLS.

    Attributes:
        environment, client: see above.
        protocol, core: of the connection.
        receipts: of answers that are under way.
        transport: of asyncio.
        workload: the connection's share of the loop.
        touched: a flush is certain to come.
    """

    __slots__ = (
        "_accepted_at",
        "_blocked_since",
        "_bytes_out",
        "_closed",
        "_discarded_bytes",
        "_drain_at",
        "_end_at",
        "_factory",
        "_last_counters",
        "_noted_bytes",
        "_over",
        "_paused",
        "_phase",
        "_send_waiters",
        "_unflushed_bytes",
        "client",
        "core",
        "environment",
        "protocol",
        "receipts",
        "touched",
        "transport",
        "workload",
    )

    def __init__(
        self,
        environment: Environment,
        factory: ProtocolFactory,
        client: ClientCalls,
        closed: Callable[["Link"], None],
        *,
        secure: bool,
    ) -> None:
        self.environment = environment
        self._factory = factory
        self.client = client
        self._closed = closed
        self.protocol: ConnectionProtocol = NO_PROTOCOL
        self.core: ConnectionCore = NO_PROTOCOL.core
        self.receipts = Receipts(environment.note)
        self.transport = Transport(environment.client_ends, secure=secure)
        self._accepted_at = environment.monotonic()
        self.workload = Workload(self, environment, self._accepted_at)
        self.touched = False
        self._phase = _Phase.OPENING
        # Invariant: true in the phases of `_OVER`.
        self._over = False
        self._bytes_out = 0
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
        # The protocol takes no input.
        self._paused = False
        # Of a connection that is gone: somebody may be on the way through all connections.
        self._last_counters: ConnectionCounters | None = None

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.transport.peer

    @property
    def counters(self) -> ConnectionCounters:
        """Counts so far."""
        return self._last_counters or ConnectionCounters(
            peer=self.peer,
            age_s=self.environment.monotonic() - self._accepted_at,
            bytes_in=self.workload.bytes_in,
            bytes_out=self._bytes_out,
            waits=self.workload.waits,
            **self.protocol.counts._asdict(),
        )

    # --- for the protocol -------------------------------------------------------------------------

    def run(self, protocol: ConnectionProtocol) -> None:
        """Run a protocol from here on."""
        self.protocol, self.core = protocol, protocol.core

    def touch(self) -> None:
        """Schedule a flush for the end of this iteration of the loop: there is output."""
        if not self.touched:
            self.touched = True
            self.environment.flush_later(self)

    def pause_input(self) -> None:
        """Receive nothing until `resume_input`: the protocol has enough to do."""
        self._paused = True
        self.regulate()

    def resume_input(self) -> None:
        """Go on after `pause_input`."""
        self._paused = False
        if self._phase not in _GONE:
            self.workload.resume()
            self.regulate()

    def dropped(self) -> None:
        """All that ran knows of the end."""
        if self._phase is _Phase.CLOSED:
            self._become(_Phase.RETIRED)
            self._last_counters = self.counters
            self._closed(self)
            self.run(NO_PROTOCOL)
            del self.workload

    async def wait_sendable(self, size: int) -> None:
        """Return when the transport takes more.

        Streaming handlers have sent `size` bytes since they last asked.
        """
        self._unflushed_bytes += size
        while not self._over and (not self.transport.writable or self._unflushed_bytes >= _SENT_BYTES_MAX):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._send_waiters.append(waiter)
            # Output that the client's window has let out may have been written before it was
            # counted here: then nobody else asks for a flush.
            self.touch()
            await waiter

    def flush(self) -> None:
        """Write output that can be written, the rest of very much in later iterations of the loop,
        and close after the last of it.
        """
        self.touched = False
        if self.transport.writable and not self._over:
            self._write()
        if self._noted_bytes or self.core.buffered_bytes >= NOTED_BYTES:
            self.note_held()

    def charge(self, seconds: float) -> None:
        """See `Gathered`."""
        if not self._over:
            self.workload.charge(seconds)

    def broken(self, bug: Exception) -> None:
        """End without a word: who knows what the protocol would say."""
        self.environment.note(bug)
        if self._phase not in _GONE:
            self._become(_Phase.CLOSING)
            self.abort()

    # --- asyncio.BufferedProtocol -----------------------------------------------------------------

    @_contained
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        environment, factory = self.environment, self._factory
        self.transport.made(transport)
        if self._phase in _GONE:
            # It was given up while it was made.
            self.transport.abort()
            return
        self.run(factory.open(self, self._accepted_at))
        self._become(_Phase.SERVING)
        agreed = self.transport.alpn
        if agreed is not None and agreed not in factory.alpn:
            environment.counters.refused += 1
            self.protocol.terminate(End.NOT_AGREED)
            self.touch()
            return
        environment.counters.accepted += 1
        age_s = environment.options.age_s
        if age_s:
            self._drain_at = environment.monotonic() + age_s * environment.rng.uniform(0.9, 1.1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        environment = self.environment
        buffer, size = environment.read_buffer, self.core.data_expected
        return buffer if size <= len(buffer) else environment.data_buffer[:size]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._over:
            self._discarded_bytes += nbytes
            if not self._may_read():
                self.regulate()
            return
        environment = self.environment
        chunk = environment.data_buffer[:nbytes].tobytes()
        if nbytes <= NOTED_BYTES:
            environment.serve_later(self, chunk)
        else:
            environment.serve_now()
            self.received(chunk)

    @_contained
    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.transport.writable = False
        self._blocked_since = self.environment.monotonic()
        self.regulate()

    @_contained
    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.transport.writable = True
        if self._phase not in _GONE:
            self.workload.resume()
            self.regulate()
            self.touch()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`. The transport closes."""
        self.transport.eof = True

    @_contained
    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._phase is _Phase.RETIRED:
            return
        self._become(_Phase.CLOSED)
        self.transport.lost()
        self.workload.forget_input()
        self._wake_send_waiters()
        self.note_held()
        if self.protocol is NO_PROTOCOL:  # a bug has kept it from being opened
            self.dropped()
        # Answers from here on are undelivered.
        self.protocol.terminate(End.LOST)

    def never_made(self) -> None:
        """The listener has given up the connection, mostly in its TLS handshake."""
        self.environment.counters.handshakes_failed += 1
        if self._phase is not _Phase.RETIRED:
            self._become(_Phase.CLOSED)
            self._closed(self)

    def received(self, chunk: bytes) -> None:
        """See `Gathered`."""
        try:
            # It may have ended since.
            if not self._over:
                self.workload.received(chunk)
        except Exception as bug:
            self.broken(bug)

    # --- for the workload -------------------------------------------------------------------------

    def takes_input(self) -> bool:
        """See `Served`."""
        return self.transport.writable and not self._paused and not self._over

    def serve(self, chunk: bytes, now: float) -> None:
        """See `Served`."""
        try:
            self.protocol.receive(chunk, now, self.environment.options.turn_bytes)
        except Exception as bug:
            self.broken(bug)
            return
        if not self.touched:
            core = self.core
            if core.has_output or core.closed:
                self.touch()
            elif self._noted_bytes or core.buffered_bytes >= NOTED_BYTES:
                self.note_held()

    def note_held(self) -> None:
        """See `Served`."""
        if self._phase in _GONE:
            held = 0
        elif self._phase is _Phase.CLOSING:
            held = self.transport.buffered_bytes
        else:
            held = self.core.buffered_bytes + self.protocol.kept_bytes + self.workload.unserved_bytes
        if abs(held - self._noted_bytes) >= NOTED_BYTES or (self._noted_bytes and not held):
            self._noted_bytes = held
            self.environment.memory.note(self, held)

    def regulate(self) -> None:
        """See `Served`."""
        if self._phase not in _GONE:
            self.transport.set_reading(self._may_read())

    # --- life -------------------------------------------------------------------------------------

    @_contained
    def announce_drain(self) -> None:
        """Tell the client to send new requests elsewhere. Those that come here are served."""
        if self._phase is _Phase.SERVING:
            self.protocol.announce_drain()
            self.touch()

    @_contained
    def begin_drain(self, grace_s: float) -> None:
        """Refuse new calls, and end with the running ones, at most `grace_s` seconds from now."""
        now = self.environment.monotonic()
        self._end_at = min(self._end_at, now + grace_s)
        if self._phase is _Phase.SERVING:
            self._become(_Phase.DRAINING)
            self.protocol.drain(now)
            self.touch()

    @_contained
    def tick(self, now: float) -> None:
        """Act on the time. Called about once a second."""
        options = self.environment.options
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
        elif not self.transport.writable and options.stall_s and now - self._blocked_since >= options.stall_s:
            self.environment.limits.hit("grpc.stall_timeout", self.peer)
            self.transport.abort()
        else:
            self.protocol.tick(now)
            self.touch()
        self.note_held()

    @_contained
    def end(self) -> None:
        """End now: cancel running calls, and tell the client that the connection is gone."""
        if self._phase in _LIVE:
            self._end_at = self.environment.monotonic() + self.environment.options.linger_s
            self.protocol.terminate(End.GRACE_OVER)
            self.touch()

    @_contained
    def evict(self) -> None:
        """See `Holder`."""
        self._noted_bytes = 0
        if self._phase in _LIVE:
            self.environment.counters.faulty += 1
            self.protocol.terminate(End.EVICTED)
            self.touch()
        if not self.transport.writable:
            # The transport would hold it for as long as the client does not read.
            self.abort()

    def abort(self) -> None:
        """End now, without a word."""
        if self._phase not in _GONE:
            self.transport.abort()

    def maybe_write(self) -> bool:
        """Write a part of the output now; False if there is none, or the transport takes no more.

        Inside a call's answer, whose caller does not expect to hear of other answers meanwhile: the
        next flush tells their receipts.
        """
        if not (self.core.has_output and self.transport.writable) or self._over:
            return False
        self._write(tell_receipts=False)
        return True

    # --- inside -----------------------------------------------------------------------------------

    def _become(self, phase: _Phase) -> None:
        self._phase = phase
        self._over = phase in _OVER

    def _write(self, *, tell_receipts: bool = True) -> None:
        try:
            core, transport, receipts = self.core, self.transport, self.receipts
            output = core.take_output(_WRITTEN_BYTES_MAX)
            self._unflushed_bytes = 0
            size = len(output)
            is_all = size < _WRITTEN_BYTES_MAX or not core.has_output
            delivers = tell_receipts and is_all and receipts.in_output and transport.has_client()
            self._bytes_out += size
            is_taken = size and transport.write(output)
            if delivers and (is_taken or transport.took_writes()):
                receipts.handed_over()
            if not transport.writable:
                core.set_unwritten(transport.buffered_bytes)
            elif self._send_waiters:
                self._wake_send_waiters()
            if not is_all:
                self.touch()
            elif core.closed:
                self._close()
        except Exception as bug:
            self.broken(bug)

    def _wake_send_waiters(self) -> None:
        waiters, self._send_waiters = self._send_waiters, []
        for waiter in waiters:
            resolve(waiter, None)

    def _close(self) -> None:
        """Everything was said: end, and let the client read the last bytes."""
        self._become(_Phase.CLOSING)
        self._end_at = self.environment.monotonic() + self.environment.options.linger_s
        self.workload.forget_input()
        self._wake_send_waiters()
        if self.transport.close():
            self.workload.held_back = False
            self.regulate()

    def _may_read(self) -> bool:
        """True while input is served and the transport is not full; after the end, for a while."""
        if self._phase is _Phase.CLOSING:
            return self._discarded_bytes < _DISCARDED_BYTES_MAX
        return self.transport.writable and not self._paused and not self.workload.held_back

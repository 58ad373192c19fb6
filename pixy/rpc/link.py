"""A transport of asyncio on one side, the HTTP/2 core on the other: what is received when, written when, and closed how. Knows no gRPC.

The transport brings a chunk; the core makes events of it; the layer above acts on them; and at the end everything that was answered
leaves in one write. Answers that come later are gathered over all connections, and each of these writes once.

What keeps one connection from harming the others:

- One read brings 32 KiB at most, or what is left of a DATA frame, up to 64 KiB. Of that `turn_bytes` are served, then the others have
  their turn. A connection that has used up its share of the loop waits in line (`workload`, `turns`), and nothing is read from it until
  everything that it has sent was served.
- While the transport has more to write than it likes, nothing is read, served or taken from the core. What a client does not read counts as
  part of the core's `output_bytes` wherever it is.
- A client that takes nothing for `http2.send_stall_s`, or that does not read the last bytes within `linger_s`, is cut off.

The end: a socket that is closed while input is unread makes TCP throw away what was written, so the client would not see why it ended.
So the end is said first (`write_eof`), and what the client still sends is thrown away, until it closes too, or for `linger_s`. Of that
1 MiB is read in a second, so who sends without end costs nothing, and is told all the same. The road not taken: to cut off who
has sent so much. The system's buffers hold many times a window, and a client that has not come to read yet would lose the GOAWAY.

An exception of the core, or while its events are acted on, is a bug that concerns this connection alone: it is reported, and the
connection ends (`broken`). None gets to the transport, to who ticks or to who flushes, because these have other connections to serve.
"""

import asyncio
import contextlib
import select
import socket
import sys
from collections.abc import Callable
from enum import Enum, auto
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from pixy.futures import resolve
from pixy.http2 import ErrorCode, Event
from pixy.rpc.call import Receipt
from pixy.rpc.environment import Environment
from pixy.rpc.memory import NOTED_BYTES
from pixy.rpc.workload import Workload

__all__ = ["Link"]

P = ParamSpec("P")

_ROOM_BYTES = 65_536
"""What the streaming calls of a connection may send in one turn of the loop."""
_DISCARDED_BYTES = 1 << 20
"""What is thrown away of a connection that has ended in a second. With megabytes, who has many connections ended, each with all that its
buffers hold, makes others wait for milliseconds."""
_UNIX = "unix"
"""The peer of a unix socket."""
_TCP_ESTABLISHED = 1
"""The state of a socket that neither side has closed: the first byte of Linux's `struct tcp_info`."""


class _Phase(Enum):
    OPENING = auto()
    """In the handshake of TLS."""
    SERVING = auto()
    DRAINING = auto()
    """No more calls are taken; what runs may finish."""
    CLOSING = auto()
    """Everything has ended; the transport writes what is left, and what comes is thrown away."""
    CLOSED = auto()
    """The transport is gone."""


def _contained(work: "Callable[Concatenate[Link, P], None]") -> "Callable[Concatenate[Link, P], None]":
    """What is done to a connection from outside: a bug in it ends that connection."""

    @wraps(work)
    def contained(link: "Link", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            work(link, *args, **kwargs)
        except Exception as bug:
            link.broken(bug)

    return contained


class Link(Workload):
    """A connection from its first byte to its last.

    Args:
        environment: what all connections share.
        closed: called when the connection is gone, or was never made.
        secure: the transport is TLS.
    """

    __slots__ = (
        "_blocked_since",
        "_closed",
        "_discarded_bytes",
        "_drain_at",
        "_end_at",
        "_eof",
        "_noted_bytes",
        "_phase",
        "_receipts",
        "_room_waiters",
        "_secure",
        "_socket",
        "_touched",
        "_transport",
        "_unflushed_bytes",
        "accepted_at",
        "bytes_out",
        "peer",
    )

    def __init__(self, environment: Environment, closed: Callable[["Link"], None], *, secure: bool) -> None:
        super().__init__(environment)
        self._closed = closed
        self._secure = secure
        self._transport: Any = None
        # The socket below; and whether the client has said that it sends no more.
        self._socket: Any = None
        self._eof = False
        self.peer = ""
        self.accepted_at = self.now
        self._phase = _Phase.OPENING
        # See `ConnectionCounters`.
        self.bytes_out = 0
        # Whether a flush is sure to come.
        self._touched = False
        # Since when the transport wants no more.
        self._blocked_since = 0.0
        # Who wants to know of an answer that is in the output.
        self._receipts: list[Receipt] = []
        # Who waits to send more, and what was sent since the last flush.
        self._room_waiters: list[asyncio.Future[None]] = []
        self._unflushed_bytes = 0
        # When a drain begins, and when it must be over.
        self._drain_at = self._end_at = float("inf")
        # What the server's memory knows of.
        self._noted_bytes = 0
        # What was thrown away behind the end, in about a second.
        self._discarded_bytes = 0

    # --- for the layer above ----------------------------------------------------------------------------------------

    def _act(self, events: list[Event]) -> None:
        """Act on events of the core."""
        raise NotImplementedError

    def _written(self) -> None:
        """What was in the output was given to the transport, which may not have taken it (`_takes`), and there are receipts for it."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Nobody waits for any answer any more: tell all calls, in the connection's turns, and `_dropped` when that is done."""
        raise NotImplementedError

    def _kept_bytes(self) -> int:
        """Bytes of requests that are not complete."""
        raise NotImplementedError

    def _dropped(self) -> None:
        """All calls were told of the end."""
        if self._phase is _Phase.CLOSED:
            self._closed(self)

    def touch(self) -> None:
        """There is something to write, which happens once at the end of the turn."""
        if not self._touched:
            self._touched = True
            self.environment.flush_later(self)

    async def wait_room(self, size: int) -> None:
        """Streaming calls go on here when the transport takes more. `size` bytes were sent."""
        self._unflushed_bytes += size
        while self._phase not in _OVER and (not self._writable or self._unflushed_bytes >= _ROOM_BYTES):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room_waiters.append(waiter)
            # What waited for the client's window may have been written before it was counted here: then nobody else asks for a flush.
            self.touch()
            await waiter

    def make_room(self) -> None:
        """More is to be answered than the core accepts: write what there is, in the middle of the turn.

        Receipts wait for its end: who answers one call does not expect to hear of others meanwhile.
        """
        receipts, self._receipts = self._receipts, []
        self.flush()
        self._receipts = receipts

    def broken(self, bug: Exception) -> None:
        """Nobody knows what the core and the layer above think of each other: end without a word."""
        self.environment.note(bug)
        if self._phase is not _Phase.CLOSED:
            self._phase = _Phase.CLOSING
            self.abort()

    # --- transport --------------------------------------------------------------------------------------------------

    @_contained
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = transport
        environment = self.environment
        if self._phase is _Phase.CLOSED:
            # It was given up while it was made.
            self._transport.abort()
            return
        if not self._speaks_http2():
            environment.counters.refused += 1
            self._phase = _Phase.CLOSED
            self._transport.abort()
            return
        environment.counters.accepted += 1
        self._phase = _Phase.SERVING
        self.peer = _address(transport.get_extra_info("peername"))
        self._socket = transport.get_extra_info("socket")
        age_s = environment.options.age_s
        if age_s:
            self._drain_at = environment.monotonic() + age_s * environment.rng.uniform(0.9, 1.1)
        self.touch()

    def _speaks_http2(self) -> bool:
        """RFC 9113 §3.2: over TLS, ALPN must have chosen it."""
        if not self._secure:
            return True
        tls = self._transport.get_extra_info("ssl_object")
        return tls is not None and tls.selected_alpn_protocol() == "h2"

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        environment = self.environment
        buffer, size = environment.read_buffer, self.core.data_expected
        return buffer if size <= len(buffer) else environment.data_buffer[:size]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._phase in _OVER:
            self._discard(nbytes)
        else:
            self.received(bytes(self.environment.data_buffer[:nbytes]))

    @_contained
    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._writable = False
        self._blocked_since = self.environment.monotonic()
        self._regulate()

    @_contained
    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._writable = True
        if self._has_input():
            self._wait_turn()
        self._regulate()
        self.touch()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`. The transport closes, and takes nothing from here on."""
        self._eof = True

    @_contained
    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._phase = _Phase.CLOSED
        self._forget_input()
        try:
            # What is answered from here on goes nowhere.
            self.core.terminate(ErrorCode.NO_ERROR, "the connection is lost")
        finally:
            self._wake_room_waiters()
            self.note_held()
            self._drop()

    def never_made(self) -> None:
        """The handshake of TLS has failed."""
        self.environment.counters.handshakes_failed += 1
        self._phase = _Phase.CLOSED
        self._closed(self)

    # --- work -------------------------------------------------------------------------------------------------------

    def _takes_input(self) -> bool:
        return self._writable and self._phase not in _OVER

    def _serve(self, chunk: bytes, now: float) -> None:
        self.now = now
        # What is answered meanwhile leaves at the end of this.
        self._touched = True
        try:
            self._act(self.core.receive(chunk, now, self.environment.options.turn_bytes))
        except Exception as bug:
            self.broken(bug)
            return
        self.flush()
        self._spend()

    # --- life -------------------------------------------------------------------------------------------------------

    @_contained
    def announce_drain(self) -> None:
        """Tell the client to make new calls elsewhere. Those that come here are served."""
        if self._phase is _Phase.SERVING:
            self.core.announce_drain()
            self.touch()

    @_contained
    def begin_drain(self, grace_s: float) -> None:
        """Take no more calls, and end when those that run are over, at the latest `grace_s` seconds from now."""
        now = self.environment.monotonic()
        self._end_at = min(self._end_at, now + grace_s)
        if self._phase is _Phase.SERVING:
            self._phase = _Phase.DRAINING
            self.core.begin_drain(now)
            self.touch()

    @_contained
    def tick(self, now: float) -> None:
        """Do what time demands. Call it about once a second."""
        options = self.environment.options
        if self._phase in (_Phase.OPENING, _Phase.CLOSED):
            return
        if self._phase is _Phase.SERVING and now >= self._drain_at:
            self.begin_drain(options.age_grace_s)
        if now >= self._end_at and self.core.closed:
            self._transport.abort()
        elif now >= self._end_at:
            self.end()
        elif self._phase is _Phase.CLOSING:
            self._discarded_bytes = 0
            self._regulate()
        elif self._writable:
            self._act(self.core.tick(now))
            self.flush()
        elif options.http2.send_stall_s and now - self._blocked_since >= options.http2.send_stall_s:
            self._transport.abort()

    @_contained
    def end(self) -> None:
        """End now: calls that still run are cancelled, and their clients told that the connection is gone."""
        if self._phase in (_Phase.SERVING, _Phase.DRAINING):
            self.core.terminate(ErrorCode.NO_ERROR, "the time to finish is over")
            self._end_at = self.environment.monotonic() + self.environment.options.linger_s
            self._drop()
            self.flush()

    @_contained
    def give_up(self) -> None:
        """See `Holder`."""
        self._noted_bytes = 0
        if self._phase in (_Phase.SERVING, _Phase.DRAINING):
            self.environment.counters.faulty += 1
            self.core.terminate(
                ErrorCode.ENHANCE_YOUR_CALM, "the server holds too much, and most for this connection"
            )
            self._drop()
            self.flush()
        if not self._writable:
            # The transport holds it, and would for as long as the client does not read.
            self.abort()

    def abort(self) -> None:
        """End now, without a word."""
        if self._transport is not None and self._phase is not _Phase.CLOSED:
            self._transport.abort()

    def _close(self) -> None:
        """Everything was said: end, and let the client read the last bytes."""
        self._phase = _Phase.CLOSING
        self._end_at = self.environment.monotonic() + self.environment.options.linger_s
        self._forget_input()
        self._wake_room_waiters()
        if self._secure or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._held_back = False
        with contextlib.suppress(OSError):  # the client has gone first
            self._transport.write_eof()
        self._regulate()

    def _discard(self, size: int) -> None:
        """Bytes came behind the end."""
        self._discarded_bytes += size
        if not self._may_read():
            self._regulate()

    # --- output -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write everything that can be written, and close behind the last of it."""
        self._touched = False
        if self._writable and self._phase not in _OVER:
            self._write()
        if self._noted_bytes or self.core.buffered_bytes >= NOTED_BYTES:
            self.note_held()

    def _write(self) -> None:
        try:
            output = self.core.take_output()
            self._unflushed_bytes = 0
            if output:
                self.bytes_out += len(output)
                self._transport.write(output)
            if self._receipts:
                self._written()
            if self._room_waiters or not self._writable:
                self._after_write()
            if self.core.closed:
                self._close()
        except Exception as bug:
            self.broken(bug)

    def note_held(self) -> None:
        """See `Workload`."""
        if self._phase is _Phase.CLOSED:
            held = 0
        elif self._phase is _Phase.CLOSING:
            held = self._transport.get_write_buffer_size()
        else:
            held = self.core.buffered_bytes + self._kept_bytes()
            if self._unserved:
                held += sum(map(len, self._unserved))
        if abs(held - self._noted_bytes) >= NOTED_BYTES or (self._noted_bytes and not held):
            self._noted_bytes = held
            self.environment.memory.note(self, held)

    def _takes(self) -> bool:
        """True when the transport has taken what was just written, and the client has not closed.

        A transport that is closing throws it away. One that has not read the client's end yet, or has paused reading, does not know of it,
        nor does one of TLS whose client has closed without a word of TLS: so the socket is asked. HTTP/2 has no use for a client that
        only reads.
        """
        if self._eof or self._transport.is_closing():
            return False
        if self._socket is None or sys.platform != "linux":
            return True
        return not _peer_has_closed(self._socket, unix=self.peer == _UNIX)

    def _after_write(self) -> None:
        if self._writable:
            self._wake_room_waiters()
        else:
            self.core.set_unwritten(self._transport.get_write_buffer_size())

    def _wake_room_waiters(self) -> None:
        if self._room_waiters:
            waiters, self._room_waiters = self._room_waiters, []
            for waiter in waiters:
                resolve(waiter, None)

    def _regulate(self) -> None:
        if self._phase is _Phase.CLOSED:
            return
        change: Callable[[], None] = (
            self._transport.resume_reading if self._may_read() else self._transport.pause_reading
        )
        with contextlib.suppress(RuntimeError):  # of a transport that is closing
            change()

    def _may_read(self) -> bool:
        """Read while everything that was read is served, and the transport takes what is written; behind the end so much in a second."""
        if self._phase is _Phase.CLOSING:
            return self._discarded_bytes < _DISCARDED_BYTES
        return self._writable and not self._held_back


_OVER = frozenset((_Phase.CLOSING, _Phase.CLOSED))


def _peer_has_closed(below: socket.socket, *, unix: bool) -> bool:
    """True when the other side of a socket has closed, or this one has."""
    try:
        if unix:
            poll = select.poll()
            poll.register(below.fileno(), select.POLLRDHUP)
            return bool(poll.poll(0))
        state: bytes = below.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except (OSError, ValueError):
        # It was closed: asyncio's has no descriptor any more, uvloop's a negative one.
        return True
    return state[0] != _TCP_ESTABLISHED


def _address(peername: object) -> str:
    if isinstance(peername, tuple):
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return _UNIX

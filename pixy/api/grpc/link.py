"""A transport of asyncio on one side, the HTTP/2 core on the other: what is received when, written when, and closed how. Knows no gRPC.

The transport brings a chunk; the core makes events of it; the layer above acts on them; and at the end everything that was answered
leaves in one write. Answers that come later are gathered over all connections, and each of these writes once.

What keeps one connection from harming the others:

- One read brings 32 KiB at most, or what is left of a DATA frame, up to 64 KiB. Of that `turn_bytes` are served, then the others have
  their turn. A connection that has used up its share of the loop waits in line (`turns`), and nothing is read from it until
  everything that it has sent was served.
- While the transport has more to write than it likes, nothing is read, served or taken from the core. What a client does not read counts as
  part of the core's `output_bytes` wherever it is.
- A client that takes nothing for `http2.send_stall_s`, or that does not read the last bytes within `linger_s`, is cut off.

The end: a socket that is closed while input is unread makes TCP throw away what was written, so the client would not see why it ended.
So the end is said first (`write_eof`), and what the client still sends is thrown away, until it closes too, or for `linger_s`. Of that
1 MiB is read in a second, so who sends without end costs nothing, and is told all the same. The road not taken: to cut off who
has sent so much. The system's buffers hold many times a window, and a client that has not come to read yet would lose the GOAWAY.

An exception of the core is a bug that concerns this connection alone: it is logged, and the connection ends.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import structlog

from pixy.api.grpc.call import Receipt
from pixy.api.grpc.environment import Environment
from pixy.api.grpc.turns import CREDIT_S, SHARE, TURN_S
from pixy.futures import resolve
from pixy.http2 import Connection, ErrorCode, Event

__all__ = ["Link"]

log = structlog.get_logger(__name__)

_ROOM_BYTES = 65_536
"""What the streaming calls of a connection may send in one turn of the loop."""
_DISCARDED_BYTES = 1 << 20
"""What is thrown away of a connection that has ended in a second. With megabytes, who has many connections ended, each with all that its
buffers hold, makes others wait for milliseconds."""
_TCP_ESTABLISHED = 1
"""The state of a socket that neither side has closed: the first byte of Linux's `struct tcp_info`."""


class _Phase(Enum):
    OPENING = auto()
    """In the handshake of TLS."""
    SERVING = auto()
    DRAINING = auto()
    """GOAWAY was sent; what runs may finish."""
    CLOSING = auto()
    """Everything has ended; the transport writes what is left, and what comes is thrown away."""
    CLOSED = auto()
    """The transport is gone."""


class Link(asyncio.BufferedProtocol):
    """A connection from its first byte to its last.

    Args:
        environment: what all connections share.
        closed: called when the connection is gone, or was never made.
        secure: the transport is TLS.
    """

    __slots__ = (
        "_blocked_since",
        "_closed",
        "_credit_s",
        "_discarded_bytes",
        "_drain_at",
        "_end_at",
        "_eof",
        "_held_back",
        "_jobs",
        "_phase",
        "_receipts",
        "_room_waiters",
        "_secure",
        "_served_s",
        "_socket",
        "_touched",
        "_transport",
        "_unflushed_bytes",
        "_unserved",
        "_waiting",
        "_writable",
        "accepted_at",
        "bytes_in",
        "bytes_out",
        "core",
        "environment",
        "now",
        "peer",
        "waits",
    )

    def __init__(self, environment: Environment, closed: Callable[["Link"], None], *, secure: bool) -> None:
        self.environment = environment
        self._closed = closed
        self._secure = secure
        self._transport: Any = None
        # What is below TLS, None without it; and whether the client has said over TLS that it sends no more.
        self._socket: Any = None
        self._eof = False
        self.peer = ""
        # When the last slice of work began, in seconds on the server's clock.
        self.now = self.accepted_at = environment.monotonic()
        self.core = Connection(environment.options.http2, self.now)
        self._phase = _Phase.OPENING
        # See `ConnectionCounters`.
        self.bytes_in = self.bytes_out = self.waits = 0
        # What was left of this connection's share of the loop at `now`, in seconds; less than 0 if it has used more, or is new.
        self._credit_s = -CREDIT_S
        # How long the last slice of work took.
        self._served_s = 0.0
        # Chunks that the core has not seen, and work that must be over before it sees more: each job does a step, and returns whether it
        # is done. Invariant: while there is work that nothing keeps from being done, _waiting.
        self._unserved: list[bytes] = []
        self._jobs: list[Callable[[], bool]] = []
        # Whether it stands in line for its turn, and whether nothing is read because that takes long.
        self._waiting = self._held_back = False
        # Whether a flush is sure to come.
        self._touched = False
        # Whether the transport wants more; since when not.
        self._writable = True
        self._blocked_since = 0.0
        # Who wants to know of an answer that is in the output.
        self._receipts: list[Receipt] = []
        # Who waits to send more, and what was sent since the last flush.
        self._room_waiters: list[asyncio.Future[None]] = []
        self._unflushed_bytes = 0
        # When a drain begins, and when it must be over.
        self._drain_at = self._end_at = float("inf")
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
        """Nobody waits for any answer any more."""
        raise NotImplementedError

    def touch(self) -> None:
        """There is something to write, which happens once at the end of the turn."""
        if not self._touched:
            self._touched = True
            self.environment.flush_later(self)

    def do(self, job: Callable[[], bool]) -> None:
        """Do work in steps. The client's next bytes are not looked at before it is done.

        Args:
            job: does one step, of a fraction of a millisecond; returns whether it was the last one.
        """
        if self._jobs or self.environment.monotonic() - self.now >= TURN_S or not job():
            self._jobs.append(job)
            self._wait_turn()

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

    # --- transport --------------------------------------------------------------------------------------------------

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
        if self._secure:
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

    def received(self, chunk: bytes) -> None:
        """The transport has brought bytes, which are kept and never changed."""
        self.bytes_in += len(chunk)
        if self._waiting or not self._writable:
            # A transport may bring more of what it has, although it was told to read nothing.
            self._unserved.append(chunk)
            return
        now = self.environment.monotonic()
        # Credit comes with time.
        self._credit_s = min(self._credit_s + (now - self.now) * SHARE, CREDIT_S)
        turns = self.environment.turns
        if self._credit_s > 0:
            self._serve(chunk, now)
        elif turns.free:
            self._serve(chunk, now)
            turns.charge(self._served_s)
        else:
            self._unserved.append(chunk)
            self._wait_turn()
            return
        if self.core.pending:
            self._wait_turn()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._writable = False
        self._blocked_since = self.environment.monotonic()
        self._regulate()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._writable = True
        if self._unserved or self._jobs or self.core.pending:
            self._wait_turn()
        self._regulate()
        self.touch()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`. The transport closes, and takes nothing from here on."""
        self._eof = True

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._phase = _Phase.CLOSED
        self._forget_work()
        self._drop()
        self._wake_room_waiters()
        self._closed(self)

    def never_made(self) -> None:
        """The handshake of TLS has failed."""
        self.environment.counters.handshakes_failed += 1
        self._phase = _Phase.CLOSED
        self._closed(self)

    # --- work -------------------------------------------------------------------------------------------------------

    def work(self) -> bool:
        """See `Worker`."""
        if self._phase in _OVER or not self._writable:
            # With a transport that wants nothing it stands in line again when that is over.
            self._waiting = False
            return False
        if self._jobs:
            self._do_step()
        else:
            chunk = self._unserved.pop(0) if self._unserved and not self.core.pending else b""
            self._serve(chunk, self.environment.monotonic())
        self._waiting = bool(self._jobs or self._unserved or self.core.pending) and self._phase not in _OVER
        if not self._waiting and self._held_back:
            self._held_back = False
            self._regulate()
        return self._waiting

    def hold_back(self) -> None:
        """See `Worker`."""
        if self._waiting and not self._held_back:
            self._held_back = True
            self._regulate()

    def _wait_turn(self) -> None:
        if not self._waiting:
            self._waiting = True
            self.waits += 1
            self.environment.turns.wait(self)

    def _do_step(self) -> None:
        self.now = self.environment.monotonic()
        try:
            if self._jobs[0]():
                del self._jobs[0]
        except Exception as bug:
            self._faulty(bug)
        self._spend()

    def _spend(self) -> None:
        """The work since `now` is charged."""
        self._served_s = served_s = self.environment.monotonic() - self.now
        self._credit_s = max(self._credit_s - served_s, -CREDIT_S)

    def _serve(self, chunk: bytes, now: float) -> None:
        """Let the core look at as much as one slice has, act on it, and write what was answered."""
        self.now = now
        try:
            events = self.core.receive(chunk, now, self.environment.options.turn_bytes)
        except Exception:
            self._broken()
            return
        # What is answered meanwhile leaves at the end of this.
        self._touched = True
        try:
            self._act(events)
        except Exception as bug:
            self._faulty(bug)
            return
        self.flush()
        self._spend()

    def _faulty(self, bug: Exception) -> None:
        self.environment.on_fault(bug)
        self._phase = _Phase.CLOSING
        self._transport.abort()

    def _forget_work(self) -> None:
        self._unserved.clear()
        self._jobs.clear()

    # --- life -------------------------------------------------------------------------------------------------------

    def begin_drain(self, grace_s: float) -> None:
        """Take no more calls, and end when those that run are over, at the latest `grace_s` seconds from now."""
        self._end_at = min(self._end_at, self.environment.monotonic() + grace_s)
        if self._phase is _Phase.SERVING:
            self._phase = _Phase.DRAINING
            self.core.begin_drain()
            self.touch()

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
            try:
                self._act(self.core.tick(now))
            except Exception as bug:
                self._faulty(bug)
                return
            self.flush()
        elif options.http2.send_stall_s and now - self._blocked_since >= options.http2.send_stall_s:
            self._transport.abort()

    def end(self) -> None:
        """End now: calls that still run are cancelled, and their clients told that the connection is gone."""
        if self._phase in (_Phase.SERVING, _Phase.DRAINING):
            self.core.terminate(ErrorCode.NO_ERROR, "the time to finish is over")
            self._end_at = self.environment.monotonic() + self.environment.options.linger_s
            self._drop()
            self.flush()

    def abort(self) -> None:
        """End now, without a word."""
        if self._transport is not None and self._phase is not _Phase.CLOSED:
            self._transport.abort()

    def _close(self) -> None:
        """Everything was said: end, and let the client read the last bytes."""
        self._phase = _Phase.CLOSING
        self._end_at = self.environment.monotonic() + self.environment.options.linger_s
        self._forget_work()
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
        if not self._writable or self._phase in _OVER:
            return
        try:
            output = self.core.take_output()
        except Exception:
            self._broken()
            return
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

    def _takes(self) -> bool:
        """Whether the transport has taken what was just written.

        One that is closing throws it away. Those of TLS do not say so when the client has closed without a word of TLS, so the socket is
        asked: as long as it knows of no end, the transport cannot know of one. HTTP/2 has no use for a client that only reads.
        """
        if self._eof or self._transport.is_closing():
            return False
        if self._socket is None or sys.platform != "linux":
            return True
        try:
            state: bytes = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except (OSError, ValueError):
            # It was closed: asyncio's has no descriptor any more, uvloop's a negative one.
            return False
        return state[0] == _TCP_ESTABLISHED

    def _after_write(self) -> None:
        if self._writable:
            self._wake_room_waiters()
        else:
            self.core.hold_output(self._transport.get_write_buffer_size())

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

    def _broken(self) -> None:
        log.exception("a fault in the HTTP/2 core ended a connection", peer=self.peer)
        self.environment.counters.faulty += 1
        self._phase = _Phase.CLOSING
        self._transport.abort()


_OVER = frozenset((_Phase.CLOSING, _Phase.CLOSED))


def _address(peername: object) -> str:
    if isinstance(peername, tuple):
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "unix"

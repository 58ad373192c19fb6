"""State that all connections of a server share, whatever their protocol: limits, time, scheduler,
memory, counters, tasks.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from pixy.aio.tasks import Tasks
from pixy.clock import Clock
from pixy.serving.busy_poll import BusyPoll
from pixy.serving.client_ends import ClientEnds
from pixy.serving.counters import Totals
from pixy.serving.fair_scheduler import FairScheduler
from pixy.serving.limit_log import LimitLog
from pixy.serving.memory import Memory
from pixy.serving.open_calls import OpenCalls

_MIB = 1 << 20
_READ_BYTES = 32 * 1024
_DATA_READ_BYTES = 64 * 1024
_WRITES_PER_QUESTION = 64
"""Connections that write between two questions for clients that have left: about a millisecond."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The limits of a server, for the connections of all protocols together. Times are in seconds;
    0 switches a time off.

    Attributes:
        buffer_bytes: bytes of incomplete requests and unread answers, of all connections.
        connections_max: connections in all; more are closed at once.
        calls_max: open calls of all connections; more are refused.
        client_share_percent: part of connections, open calls and admitted large requests that one
            client address may have.
        turn_bytes: input of one connection in a slice of its work, see
            `ConnectionProtocol.receive`.
        handshake_s: time for the handshake of TLS, and on a port of several protocols for the
            bytes that tell which.
        stall_s: time for a client to take something of what the transport holds.
        age_s: older connections are drained, a tenth earlier or later.
        age_grace_s: time for the running calls of such a connection.
        linger_s: time for a client to read the last bytes of a connection that has ended.
    """

    buffer_bytes: int = 256 * _MIB
    connections_max: int = 10_000
    calls_max: int = 50_000
    client_share_percent: int = 50
    turn_bytes: int = 16 * 1024
    handshake_s: float = 10
    stall_s: float = 300
    age_s: float = 0
    age_grace_s: float = 30
    linger_s: float = 5


class Gathered(Protocol):
    """A connection with input or output, which an iteration of the loop gathers."""

    def received(self, chunk: bytes) -> None:
        """Serve input that was read. Raises nothing."""

    def flush(self) -> None:
        """Write output."""

    def charge(self, seconds: float) -> None:
        """Charge the time of a flush."""


class Environment:
    """Shared by the connections of one server in the running event loop.

    Args:
        options: limits.
        clock: the one source of time of all connections.
        rng: spreads events that would hit all connections at once.
        on_fault: called with each bug of a handler or of a protocol.

    Attributes:
        monotonic: seconds on `clock`.
        draining: the server drains; new connections are served nevertheless.
        tasks: of handlers, and of the server itself. An exception that ends one is noted.
        limits: log of the limits that clients reach.
        open_calls: of all connections.
        client_ends: of their clients.
    """

    def __init__(
        self, options: ServerOptions, clock: Clock, rng: Random, on_fault: Callable[[BaseException], None]
    ) -> None:
        self.options = options
        self.clock = clock
        self.monotonic = clock.monotonic
        self.rng = rng
        self._on_fault = on_fault
        self.draining = False
        self.counters = Totals()
        self.scheduler = FairScheduler(clock.monotonic)
        self.limits = LimitLog()
        self.open_calls = OpenCalls(options.calls_max, options.client_share_percent)
        self.client_ends = ClientEnds()
        self.memory = Memory(options.buffer_bytes, self.limits)
        self.tasks = Tasks(self.note)
        # Every connection reads into this buffer, one at a time: into its first part, which bounds
        # a read, unless all that comes is known to be data.
        self.data_buffer = memoryview(bytearray(_DATA_READ_BYTES))
        self.read_buffer = self.data_buffer[:_READ_BYTES]
        self._loop = asyncio.get_running_loop()
        # Input that is served, and connections with output that is written, at the end of this
        # iteration of the loop, which is scheduled.
        self._unserved: list[tuple[Gathered, bytes]] = []
        self._unflushed: list[Gathered] = []
        self._end_scheduled = False
        self._busy_poll = BusyPoll()

    def note(self, bug: BaseException) -> None:
        """Count and report a bug. It must end nothing but a call or a connection."""
        self.counters.bugs += 1
        self._on_fault(bug)

    def serve_later(self, connection: Gathered, chunk: bytes) -> None:
        """Serve input of a connection at the end of this iteration of the loop."""
        self._unserved.append((connection, chunk))
        if not self._end_scheduled:
            self._schedule_end()

    def serve_now(self) -> None:
        """Serve all input that was read so far."""
        unserved, self._unserved = self._unserved, []
        for connection, chunk in unserved:
            connection.received(chunk)

    def flush_later(self, connection: Gathered) -> None:
        """Flush a connection at the end of this iteration of the loop."""
        self._unflushed.append(connection)
        if not self._end_scheduled:
            self._schedule_end()

    def _schedule_end(self) -> None:
        self._end_scheduled = True
        self._loop.call_soon(self._end_iteration)

    def _end_iteration(self) -> None:
        if self._busy_poll.active and self._unserved:
            self._busy_poll.found()
        self.serve_now()
        # Answers to it are written here; what receipts cause, in the next iteration.
        self._end_scheduled = False
        connections, self._unflushed = self._unflushed, []
        begun = self.monotonic()
        for at, connection in enumerate(connections):
            if not at % _WRITES_PER_QUESTION:
                self.client_ends.expire()
            connection.flush()
            ended = self.monotonic()
            connection.charge(ended - begun)
            begun = ended
        if len(connections) == 1:
            self._busy_poll.answered()

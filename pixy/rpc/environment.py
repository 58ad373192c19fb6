"""State that the connections of a server share: methods, limits, time, scheduler, counters,
tasks.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from pixy.address_quota import AddressQuota
from pixy.client_address import share_of
from pixy.clock import Clock
from pixy.faults import internal_error
from pixy.http2 import Options
from pixy.rpc.counters import Totals
from pixy.rpc.deadlines import Deadlines
from pixy.rpc.fair_scheduler import FairScheduler
from pixy.rpc.interception import Interceptor
from pixy.rpc.limit_log import LimitLog
from pixy.rpc.memory import Memory
from pixy.rpc.methods import Method
from pixy.rpc.open_calls import OpenCalls
from pixy.rpc.status import GrpcError, Status
from pixy.tasks import Tasks

__all__ = ["Environment", "Flushable", "ServerOptions"]

_MIB = 1 << 20
_READ_BYTES = 32 * 1024
_DATA_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The limits of a server. Times are in seconds; 0 switches a time off.

    Attributes:
        http2: of each connection.
        message_bytes_max: largest message that a client may send, compressed or not.
        request_bytes_max: bytes of incomplete requests, per connection.
        buffer_bytes: bytes of incomplete requests and unread answers, of all connections.
        request_s: time to complete a request that has begun, or a message for which a handler
            waits.
        connections_max: connections in all; more are closed at once.
        calls_max: open calls of all connections; more are refused.
        client_share_percent: part of connections, open calls and admitted large requests that one
            client address may have.
        turn_bytes: input of one connection in a slice of its work, see `Http2Connection.receive`.
        age_s: older connections are drained, a tenth earlier or later.
        age_grace_s: time for the running calls of such a connection.
        linger_s: time for a client to read the last bytes of a connection that has ended.
    """

    http2: Options = field(default_factory=Options)
    message_bytes_max: int = 4 * _MIB
    request_bytes_max: int = 16 * _MIB
    buffer_bytes: int = 256 * _MIB
    request_s: float = 120
    connections_max: int = 10_000
    calls_max: int = 50_000
    client_share_percent: int = 50
    turn_bytes: int = 16 * 1024
    age_s: float = 0
    age_grace_s: float = 30
    linger_s: float = 5


class Flushable(Protocol):
    """A connection with output."""

    def flush(self) -> None: ...

    def charge(self, seconds: float) -> None: ...


class Environment:
    """Shared by the connections of one server in the running event loop.

    Args:
        methods: by path.
        options: limits.
        clock: the one source of time of all connections.
        rng: spreads events that would hit all connections at once.
        on_fault: called with each bug of a handler or of this package.
        intercept: sees each call before its handler.

    Attributes:
        monotonic: seconds on `clock`.
        draining: the server drains; new connections are served nevertheless.
        tasks: of handlers, and of the server itself. An exception that ends one is noted.
        limits: log of the limits that clients reach.
        strangers: log of clients that speak something else.
        open_calls: of all connections.
    """

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        options: ServerOptions,
        clock: Clock,
        rng: Random,
        on_fault: Callable[[BaseException], None],
        intercept: Interceptor,
    ) -> None:
        self.methods = methods
        self.options = options
        self.monotonic = clock.monotonic
        self.rng = rng
        self._on_fault = on_fault
        self.intercept = intercept
        self.draining = False
        self.deadlines = Deadlines(clock)
        self.counters = Totals()
        self.scheduler = FairScheduler(clock.monotonic)
        self.limits = LimitLog()
        self.strangers = LimitLog("a client does not speak gRPC", "reason")
        self.open_calls = OpenCalls(options.calls_max, options.client_share_percent)
        self.memory = Memory(options.buffer_bytes, self.limits)
        uploads_bytes = options.buffer_bytes // 2
        uploads_share = share_of(uploads_bytes, options.client_share_percent)
        self.upload_quota = AddressQuota(uploads_bytes, uploads_share)
        self.tasks = Tasks(self.note)
        # Every connection reads into this buffer, one at a time: into its first part, which bounds
        # a read, unless all that comes is known to be data.
        self.data_buffer = memoryview(bytearray(_DATA_READ_BYTES))
        self.read_buffer = self.data_buffer[:_READ_BYTES]
        self._loop = asyncio.get_running_loop()
        # Connections with output that is written at the end of this iteration of the loop.
        self._unflushed: list[Flushable] = []

    def note(self, bug: BaseException) -> None:
        """Count and report a bug. It must end nothing but a call or a connection."""
        self.counters.bugs += 1
        self._on_fault(bug)

    def status_of(self, error: Exception, method: Method) -> GrpcError:
        """The status of a handler's error; INTERNAL for a bug, which is noted."""
        translated = error if isinstance(error, GrpcError) else method.translate(error)
        if translated is None:
            self.note(error)
            translated = GrpcError(Status.INTERNAL, str(internal_error(error)))
        return translated

    def flush_later(self, connection: Flushable) -> None:
        """Flush a connection at the end of this iteration of the loop."""
        if not self._unflushed:
            self._loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        connections, self._unflushed = self._unflushed, []
        begun = self.monotonic()
        for connection in connections:
            connection.flush()
            ended = self.monotonic()
            connection.charge(ended - begun)
            begun = ended

"""What all connections of one server share: methods, limits, time, turns, tasks, and what is counted of all."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from pixy.clock import Clock
from pixy.faults import internal_error
from pixy.futures import failure_of
from pixy.http2 import Options
from pixy.rpc.counters import Totals
from pixy.rpc.deadlines import Deadlines
from pixy.rpc.fair_scheduler import FairScheduler
from pixy.rpc.interception import Interceptor
from pixy.rpc.memory import Memory
from pixy.rpc.methods import Method
from pixy.rpc.status import GrpcError, Status
from pixy.rpc.uploads import UploadRoom

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
        request_bytes_max: bytes of requests that are not complete, per connection.
        buffer_bytes: of all connections together: requests that are not complete, and answers that are not read.
        request_s: until a request that has begun must be complete, and a message on a stream for which the handler waits.
        connections_max: connections in all; more are closed at once.
        turn_bytes: what is served of one connection before the others have their turn, see `Connection.receive`.
        age_s: a connection that is older is closed gracefully, a tenth earlier or later.
        age_grace_s: how long the calls of such a connection may still run.
        linger_s: how long a client may take to read the last bytes of a connection that has ended.
    """

    http2: Options = field(default_factory=Options)
    message_bytes_max: int = 4 * _MIB
    request_bytes_max: int = 16 * _MIB
    buffer_bytes: int = 256 * _MIB
    request_s: float = 120
    connections_max: int = 10_000
    turn_bytes: int = 16 * 1024
    age_s: float = 0
    age_grace_s: float = 30
    linger_s: float = 5


class Flushable(Protocol):
    """A connection that has something to write."""

    def flush(self) -> None: ...

    def charge(self, seconds: float) -> None: ...


class Environment:
    """Shared by the connections of one server in the running event loop.

    Args:
        methods: by path.
        options: limits.
        clock: what all times are measured on.
        rng: spreads what would happen to all connections at once.
        on_fault: called with each exception that is a bug of a handler or of this layer.
        intercept: decides whether a call may begin, and who its caller is.

    Attributes:
        draining: the server drains; connections that are new are served nevertheless.
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
        self.memory = Memory(options.buffer_bytes)
        self.upload_room = UploadRoom(options.buffer_bytes // 2)
        self.tasks: set[asyncio.Task[None]] = set()
        # Where every connection reads into, one at a time: the first part of it, which bounds what one read can bring, unless all that
        # comes is known to be data.
        self.data_buffer = memoryview(bytearray(_DATA_READ_BYTES))
        self.read_buffer = self.data_buffer[:_READ_BYTES]
        self._loop = asyncio.get_running_loop()
        # Connections that have something to write when this turn of the loop is over.
        self._unflushed: list[Flushable] = []

    def note(self, bug: BaseException) -> None:
        """Count and report an exception that nobody expected. It must end nothing but a call or a connection."""
        self.counters.bugs += 1
        self._on_fault(bug)

    def status_of(self, error: Exception, method: Method) -> GrpcError:
        """The status for an error that ends a call of a method, as its service translates it; INTERNAL for a bug, which is noted."""
        translated = error if isinstance(error, GrpcError) else method.translate(error)
        if translated is None:
            self.note(error)
            translated = GrpcError(Status.INTERNAL, str(internal_error(error)))
        return translated

    def flush_later(self, connection: Flushable) -> None:
        """Let a connection write once, behind everything that happens in this turn of the loop."""
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

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a handler in a task that the server owns. It must not raise."""
        task = self._loop.create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if (bug := failure_of(task)) is not None:
            self.note(bug)

"""A service with every kind of method, defined by hand in place of a generated descriptor."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.wrappers_pb2 import DESCRIPTOR as WRAPPERS
from google.protobuf.wrappers_pb2 import BytesValue

from pixy.clock import Clock, SystemClock
from pixy.config import TlsConfig
from pixy.rpc import (
    GrpcError,
    GrpcFactory,
    GrpcOptions,
    Handler,
    Interceptor,
    Service,
    Status,
    StreamCall,
    UnaryCall,
)
from pixy.rpc.interception import principal_of_certificate
from pixy.serving import (
    ChoosableFactory,
    Link,
    ProtocolChoice,
    ProtocolFactory,
    Receipt,
    Server,
    ServerOptions,
)

_METHODS = {
    "Unary": (False, False),
    "Task": (False, False),
    "Unserved": (False, False),
    "Collect": (True, False),
    "Repeat": (False, True),
    "Chat": (True, True),
}


def _descriptor() -> Any:
    file = FileDescriptorProto(
        name="test/echo.proto", package="test", syntax="proto3", dependency=[WRAPPERS.name]
    )
    service = file.service.add(name="Echo")
    for name, (client_streaming, server_streaming) in _METHODS.items():
        service.method.add(
            name=name,
            input_type=".google.protobuf.BytesValue",
            output_type=".google.protobuf.BytesValue",
            client_streaming=client_streaming,
            server_streaming=server_streaming,
        )
    pool = DescriptorPool()
    pool.AddSerializedFile(WRAPPERS.serialized_pb)
    pool.Add(file)
    return pool.FindServiceByName("test.Echo")


DESCRIPTOR = _descriptor()


def value(text: bytes) -> bytes:
    """A serialized message of the service."""
    return BytesValue(value=text).SerializeToString()


class Work:
    """Cancellation handle of a unary handler."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    def cancel(self) -> None:
        """See `Cancellable`."""
        self.cancelled.set()


@dataclass
class Echo:
    """Echoes requests; their contents select special behavior.

    Attributes:
        held: held unary calls in order, with their cancellation handles.
        arrived: set when a call is held.
        cancelled: streaming calls and tasks whose handlers were cancelled.
        received, sent: messages of streaming calls.
        spend: called for each call of `Task`, each message of `Chat` and each step of `Unary`, for
            instance to advance the time.
    """

    held: list[tuple[UnaryCall, Work]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    received: int = 0
    sent: int = 0
    receipts: Sequence[Receipt] = ()
    spend: Callable[[], None] = lambda: None

    def service(self) -> Service:
        """The service's definition."""
        handlers: dict[str, Handler] = {
            "Unary": self.unary,
            "Task": self.task,
            "Collect": self.collect,
            "Repeat": self.repeat,
            "Chat": self.chat,
        }
        return Service(DESCRIPTOR, handlers)

    def unary(self, request: BytesValue, call: UnaryCall) -> Work | None:
        """`hold` is held, `fail` fails, `bug` raises, `metadata` sends metadata back, `drop...` is
        dropped, `steps` echoes after ten steps, `later bug` raises in one; all else is echoed.
        """
        command = request.value
        if command in {b"steps", b"later bug"}:
            call.first_step(partial(self._step, 10, request, call))
            return None
        if command.startswith(b"drop"):
            request = BytesValue()
        if command == b"hold":
            work = Work()
            self.held.append((call, work))
            self.arrived.set()
            return work
        if command == b"fail":
            raise GrpcError(Status.ABORTED, "no: 100 %\né ", b"\x08\x0a", [("why-bin", b"\xff")])
        if command == b"bug":
            raise KeyError("secret")
        if command == b"who":
            request = BytesValue(value=call.principal.encode())
        if command == b"compress":
            call.compress = True
        if command == b"metadata":
            for key, content in call.metadata:
                call.add_initial_metadata(key, content)
                call.add_trailing_metadata(key, content)
        call.answer(request)
        return None

    def _step(self, left: int, request: BytesValue, call: UnaryCall) -> None:
        self.spend()
        if left:
            call.step_later(partial(self._step, left - 1, request, call))
        elif request.value == b"steps":
            call.answer(request)
        else:
            raise KeyError("secret")

    async def task(self, request: BytesValue, call: UnaryCall) -> BytesValue:
        """`hold` waits forever, `fail` fails, `bug` raises, all else is echoed."""
        self.spend()
        if request.value == b"hold":
            await self._for_ever()
        if request.value == b"fail":
            raise GrpcError(Status.ABORTED, "no")
        if request.value == b"bug":
            raise KeyError("secret")
        return request

    async def collect(self, call: StreamCall) -> BytesValue:
        """Joins all messages except `drop...`; `wait` waits before the next one is received."""
        parts = []
        async for message in call:
            self.received += 1
            if not message.value.startswith(b"drop"):
                parts.append(message.value)
            if message.value == b"wait":
                await self._for_ever()
        return BytesValue(value=b",".join(parts))

    async def repeat(self, request: BytesValue, call: StreamCall) -> None:
        """`<count> <size>`: sends that many messages of that size.

        `hold` waits forever; `bug` raises after a message.
        """
        if request.value == b"hold":
            await self._for_ever()
        if request.value == b"drain":
            self.arrived.set()
            await call.wait_drain()
            return
        count, size = map(int, request.value.split())
        for number in range(count):
            receipt = self.receipts[number] if self.receipts else None
            await call.send(BytesValue(value=bytes(size)), receipt)
            self.sent += 1
        if size == 7:
            raise KeyError("secret")

    async def chat(self, call: StreamCall) -> None:
        """Echoes each message as it arrives; `fail` fails."""
        async for message in call:
            self.received += 1
            self.spend()
            if message.value == b"fail":
                call.add_trailing_metadata("late", "yes")
                raise GrpcError(Status.ABORTED, "no")
            await call.send(message)

    async def _for_ever(self) -> None:
        self.arrived.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@dataclass
class EchoServer:
    """A running server of an `Echo`."""

    echo: Echo
    server: Server
    factory: GrpcFactory
    address: str
    faults: list[BaseException]

    @property
    def links(self) -> list[Link]:
        """Links of all connections."""
        return list(self.server._connections)

    @property
    def connections(self) -> list[Any]:
        """All connections."""
        return [link.protocol for link in self.links]


async def serve(services: Iterable[Service], faults: list[BaseException]) -> tuple[Server, str]:
    """Serve on a free port; returns the server and its address."""
    server = Server(ServerOptions(), SystemClock(), faults.append)
    factory = GrpcFactory(server.environment, services, GrpcOptions())
    return server, await server.listen("127.0.0.1:0", factory)


@asynccontextmanager
async def open_echo(
    options: GrpcOptions | None = None,
    limits: ServerOptions | None = None,
    tls: TlsConfig | None = None,
    unix: str = "",
    clock: Clock | None = None,
    intercept: Interceptor = principal_of_certificate,
    beside: Sequence[ChoosableFactory] = (),
) -> AsyncIterator[EchoServer]:
    """Serve on a free port or a Unix socket, with the system clock by default.

    Args:
        beside: further protocols on the same port.
    """
    echo, faults = Echo(), list[BaseException]()
    server = Server(limits or ServerOptions(), clock or SystemClock(), faults.append, Random(1))
    factory = GrpcFactory(server.environment, [echo.service()], options or GrpcOptions(), intercept)
    offered: ProtocolFactory = ProtocolChoice([factory, *beside]) if beside else factory
    address = await (
        server.listen_unix(unix, offered) if unix else server.listen("127.0.0.1:0", offered, tls)
    )
    try:
        yield EchoServer(echo, server, factory, address, faults)
    finally:
        await server.stop(0)

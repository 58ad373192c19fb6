"""A server of a few routes, and a client that reads answers byte for byte."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from pixy.clock import Clock, SystemClock
from pixy.config import TlsConfig
from pixy.errors import TopicMissing
from pixy.serving import Link, Receipt, Server, ServerOptions
from pixy.web import JSON, TEXT, Answer, Exchange, HttpError, Route, Router, WebFactory, WebOptions


class HeldWork:
    """Cancellation handle of a held exchange."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    def cancel(self) -> None:
        """See `Revocable`."""
        self.cancelled.set()


@dataclass
class WebServer:
    """A running server with its routes.

    Attributes:
        held: exchanges of /hold in order, with their cancellation handles.
        cancelled: set when the coroutine of /wait or /stream is cancelled.
        sent: pieces of /stream.
        receipts: of the pieces of /stream.
    """

    server: Server
    faults: list[BaseException]
    address: str = ""
    held: list[tuple[Exchange, HeldWork]] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0
    receipts: list[Receipt] = field(default_factory=list)

    @property
    def links(self) -> list[Link]:
        """Links of all connections."""
        return list(self.server._connections)

    def routes(self) -> list[Route]:
        """All routes."""
        return [
            Route("GET", "/echo/{word}", self.echo),
            Route("POST", "/echo/{word}", self.echo, body_bytes_max=100_000),
            Route("GET", "/task/{word}", self.task),
            Route("GET", "/hold", self.hold),
            Route("GET", "/wait", self.wait),
            Route("GET", "/large/{size}", self.large),
            Route("GET", "/stream/{count}/{size}", self.stream),
        ]

    def echo(self, exchange: Exchange) -> None:
        """Answers with the word and the body; `fail`, `missing` and `bug` raise."""
        word = exchange.parameters["word"]
        self._maybe_raise(word)
        exchange.answer(TEXT, word.encode() + exchange.body)

    async def task(self, exchange: Exchange) -> Answer:
        """The same as a coroutine."""
        self._maybe_raise(exchange.parameters["word"])
        return Answer(JSON, exchange.parameters["word"].encode())

    def hold(self, exchange: Exchange) -> HeldWork:
        """Is answered by the test."""
        work = HeldWork()
        self.held.append((exchange, work))
        return work

    async def wait(self, exchange: Exchange) -> None:
        """Waits for ever."""
        await self._for_ever()

    def large(self, exchange: Exchange) -> None:
        """Answers with that many bytes."""
        exchange.answer(TEXT, bytes(int(exchange.parameters["size"])))

    async def stream(self, exchange: Exchange) -> None:
        """Answers with pieces; `bug` as their number raises after one, -1 waits for ever."""
        count, size = exchange.parameters["count"], int(exchange.parameters["size"])
        await exchange.begin(TEXT)
        try:
            for number in range(1 if count in {"bug", "-1"} else int(count)):
                receipt = self.receipts[number] if self.receipts else None
                await exchange.send(b"x" * size, receipt)
                self.sent += 1
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if count == "bug":
            raise KeyError("secret")
        if count == "-1":
            await self._for_ever()

    async def _for_ever(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def _maybe_raise(self, word: str) -> None:
        if word == "fail":
            raise HttpError(418, "no: é")
        if word == "missing":
            raise TopicMissing("topic x does not exist")
        if word == "bug":
            raise KeyError("secret")


@asynccontextmanager
async def open_web(
    options: WebOptions | None = None,
    limits: ServerOptions | None = None,
    tls: TlsConfig | None = None,
    clock: Clock | None = None,
    routes: Iterable[Route] | None = None,
) -> AsyncIterator[WebServer]:
    """Serve on a free port, with the system clock by default; other `routes` than its own."""
    faults: list[BaseException] = []
    limits = limits or ServerOptions(linger_s=0.05)
    server = Server(limits, clock or SystemClock(), faults.append, Random(1))
    web = WebServer(server, faults)
    factory = WebFactory(server.environment, Router(routes or web.routes()), options or WebOptions())
    web.address = await server.listen("127.0.0.1:0", factory, tls)
    try:
        yield web
    finally:
        await server.stop(0)


class RawAnswer(NamedTuple):
    """An answer of a server; names of fields in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


class WebClient:
    """Sends bytes, and reads answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    def request(self, method: str, target: str, body: bytes | None = None, *fields: str) -> None:
        """Send a request. A content type belongs to the fields."""
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *fields]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    async def answer(self, *, has_body: bool = True) -> RawAnswer:
        """The next answer."""
        async with asyncio.timeout(60):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
            fields = {name.lower(): value for name, _, value in (each.partition(": ") for each in lines)}
            body = await self._body(fields) if has_body else b""
        return RawAnswer(int(line.split(" ")[1]), fields, body)

    async def call(self, method: str, target: str, body: bytes | None = None, *fields: str) -> RawAnswer:
        """Send a request and read its answer."""
        self.request(method, target, body, *fields)
        return await self.answer(has_body=method != "HEAD")

    async def closed(self) -> bytes:
        """The rest until the server closes."""
        async with asyncio.timeout(60):
            return await self.reader.read()

    async def _body(self, fields: dict[str, str]) -> bytes:
        if fields.get("transfer-encoding") == "chunked":
            pieces = []
            while size := int(await self.reader.readline(), 16):
                pieces.append(await self.reader.readexactly(size))
                await self.reader.readline()
            await self.reader.readline()
            return b"".join(pieces)
        if "content-length" in fields:
            return await self.reader.readexactly(int(fields["content-length"]))
        return await self.reader.read()


@asynccontextmanager
async def open_client(address: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[WebClient]:
    """Connect to `host:port` or `unix:path`."""
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        host, port = address.rsplit(":", 1)
        name = "localhost" if tls else None
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, server_hostname=name)
    try:
        yield WebClient(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

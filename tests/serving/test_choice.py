"""pixy/serving/choice.py: gRPC and a tiny protocol on one port, in fair shares of one server."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from pixy.config import TlsConfig
from pixy.http2 import PREFACE
from pixy.serving import End, Link, ServerOptions
from pixy.serving.fair_scheduler import CREDIT_S, QUANTUM_S
from tests.fakes.certificates import make_certificate
from tests.fakes.clock import FakeClock
from tests.fakes.echo import EchoServer, open_echo, value
from tests.fakes.grpc_client import RawClient, open_client
from tests.fakes.line_echo import LineFactory
from tests.fakes.waiting import settle, until
from tests.serving.support import FakeTransport, connected

UNARY = "/test.Echo/Unary"
MIB = 1 << 20
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def opened(
    limits: ServerOptions | None = None, tls: TlsConfig | None = None
) -> AsyncIterator[tuple[EchoServer, LineFactory]]:
    """A server of gRPC and of lines on one port."""
    lines = LineFactory()
    async with open_echo(limits=limits or ServerOptions(linger_s=0.05), tls=tls, beside=[lines]) as echo:
        yield echo, lines
    assert echo.faults == []
    assert lines.closed


@asynccontextmanager
async def connect(echo: EchoServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Streams]:
    host, port = echo.address.rsplit(":", 1)
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, server_hostname=name)
    async with asyncio.timeout(30):
        yield reader, writer
    writer.close()


async def calls(client: RawClient) -> None:
    assert (await client.call(UNARY, value(b"x"))).status == 0


@pytest.mark.parametrize("pieces", [[b"echo one\necho two\n"], [b"e", b"cho one\necho", b" two\n"]])
async def test_each_connection_has_the_protocol_of_its_first_bytes(pieces: Sequence[bytes]) -> None:
    async with (
        opened() as (echo, lines),
        open_client(echo.address) as client,
        connect(echo) as (reader, writer),
    ):
        for piece in pieces:
            before = sum(each.bytes_in for each in echo.server.connection_counters)
            writer.write(piece)
            await until(lambda: sum(each.bytes_in for each in echo.server.connection_counters) > before)  # noqa: B023 - called within the turn
        await calls(client)
        assert await reader.readexactly(8) == b"one\ntwo\n"
        await calls(client)
        assert len(lines.opened) == 1
        assert (echo.server.counters.calls, echo.server.counters.accepted) == (4, 2)


async def test_the_preface_of_http2_may_come_byte_by_byte() -> None:
    async with opened() as (echo, _):
        link, transport = undecided(echo)
        for at in range(len(PREFACE)):
            assert type(link.protocol).__name__ == "_Undecided"
            link.workload.received(PREFACE[at : at + 1])
        assert link.protocol in echo.connections
        assert type(link.protocol).__name__ == "GrpcConnection"
        link.workload.received(b"\0\0\0\4\0\0\0\0\0")
        link.flush()
        assert len(transport.written) > 9
        link.connection_lost(None)


def undecided(echo: EchoServer, factory: LineFactory | None = None) -> tuple[Link, FakeTransport]:
    """A connection that has said nothing."""
    (listener,) = echo.server._listeners
    link = echo.server.maybe_open("127.0.0.1:1", factory or listener.factory, secure=False)
    assert link is not None
    transport = FakeTransport()
    link.connection_made(transport)
    return link, transport


@pytest.mark.parametrize(
    ("begin", "answer"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 505 "),
        (b"\x16\x03\x01\x00\xa5", b"not an HTTP/2 client preface"),
        (b"echolot", b"not an HTTP/2 client preface"),
    ],
)
async def test_bytes_that_nothing_claims_are_answered_by_the_first_protocol(
    begin: bytes, answer: bytes
) -> None:
    async with opened() as (echo, lines), connect(echo) as (reader, writer):
        writer.write(begin)
        assert answer in await reader.read()
        assert lines.opened == []


@pytest.mark.parametrize("begin", [b"", b"P", b"ech"])
async def test_a_connection_that_does_not_say_enough_in_time_is_the_first_protocols(begin: bytes) -> None:
    clock = FakeClock()
    async with open_echo(clock=clock, beside=[LineFactory()]) as echo:
        link, transport = undecided(echo)
        link.workload.received(begin) if begin else None
        link.tick(clock.monotonic() + 9)
        assert not transport.written
        link.tick(clock.monotonic() + 11)
        link.flush()
        assert b"timeout" in transport.written or b"preface" in transport.written
        link.connection_lost(None)
        assert echo.server.connections == 0


@pytest.mark.slow
@pytest.mark.parametrize("begin", [b"", b"ech"])
async def test_an_undecided_connection_does_not_delay_the_end_of_a_server(begin: bytes) -> None:
    async with opened() as (echo, _), connect(echo) as (reader, writer):
        writer.write(begin)
        await until(lambda: echo.server.counters.bytes_in == len(begin) and echo.server.connections)
        echo.server.begin_drain()
        async with asyncio.timeout(30):
            await echo.server.stop(3600)
        assert await reader.read() == b""


async def test_an_undecided_connection_that_is_lost_is_gone() -> None:
    async with opened() as (echo, _):
        link, _ = undecided(echo)
        link.workload.received(b"ec")
        assert echo.server.memory.total == 0, "a few bytes are not worth a note"
        link.connection_lost(None)
        assert (echo.server.connections, echo.server.counters.bytes_in) == (0, 2)


# --- shared by both -------------------------------------------------------------------------------


async def test_connections_of_all_protocols_count_together() -> None:
    limits = ServerOptions(connections_max=2, client_share_percent=100)
    async with (
        opened(limits) as (echo, _),
        open_client(echo.address) as client,
        connect(echo) as (reader, writer),
    ):
        writer.write(b"echo x\n")
        await reader.readline()
        await calls(client)
        async with connect(echo) as (refused, _):
            assert await refused.read() == b""
        assert (echo.server.counters.refused, echo.server.connections) == (1, 2)
        assert echo.server.limits_reached == ["grpc.max_connections"]


@pytest.mark.slow
async def test_those_that_hold_most_memory_are_evicted_whatever_they_speak() -> None:
    async with opened(ServerOptions(buffer_bytes=8 * MIB)) as (echo, lines), AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client(echo.address, window=0))
        client.request("/test.Echo/Repeat", value(b"1 3000000"))
        await until(lambda: echo.server.memory.total > 2 * MIB)
        _, hoarder = await stack.enter_async_context(connect(echo))
        hoarder.write(b"large 9000000\n")
        await until(lambda: lines.opened and End.EVICTED in lines.opened[0].ends)
        # What its transport did not take is there until the next turn of the loop.
        await until(lambda: echo.server.memory.total <= 8 * MIB)
        assert client.goaways == []
        assert set(echo.server.limits_reached) == {"grpc.buffer_bytes"}


@pytest.mark.slow
async def test_busy_connections_of_all_protocols_share_one_scheduler() -> None:
    clock = FakeClock()
    lines = LineFactory()
    lines.spend = lambda: clock.advance(QUANTUM_S / 10)
    async with open_echo(clock=clock, beside=[lines]) as echo:
        grpc, transport = connected(echo)
        busy, written = undecided(echo)
        clock.advance(10 * CREDIT_S)
        busy.workload.received(b"echo x\n" * 20_000)
        busy.flush()
        assert 0 < len(written.written) < 10_000, "a slice at a time"
        before = grpc.workload.waits
        grpc.workload.received(b"\0\0\x08\6\0\0\0\0\0" + b"the ping")
        grpc.link.flush()
        assert transport.written.endswith(b"the ping"), "within its share, it waits for nobody"
        grpc.workload._credit_s = -CREDIT_S
        grpc.workload.received(b"\0\0\x08\6\0\0\0\0\0" + b"the next")
        assert grpc.workload.waits == before + 1, "beyond it, it queues behind the lines"
        await settle(3)
        assert transport.written.endswith(b"the next")
        assert len(written.written) < 20_000
        for link in (grpc.link, busy):
            link.connection_lost(None)


@pytest.mark.slow
@pytest.mark.parametrize("drain", ["announced", "stopped"])
async def test_a_drain_tells_connections_of_all_protocols(drain: str) -> None:
    async with (
        opened() as (echo, _),
        open_client(echo.address) as client,
        connect(echo) as (reader, writer),
    ):
        await calls(client)
        writer.write(b"hold\n")
        await until(lambda: echo.server.counters.calls == 2)
        if drain == "announced":
            echo.server.begin_drain()
        else:
            stopping = asyncio.create_task(echo.server.stop(3600))
        assert await reader.readline() == b"held\n"
        await client.until(lambda: bool(client.goaways))
        if drain == "announced":
            writer.write(b"echo on\n")
            assert await reader.readline() == b"on\n"
        else:
            await client.until_closed()
            assert await reader.read() == b""
            await stopping


@pytest.mark.slow
@pytest.mark.parametrize("begin", [b"echo x\n", b"hold\n"])
async def test_a_grace_that_is_over_ends_connections_of_all_protocols(begin: bytes) -> None:
    async with opened() as (echo, lines), connect(echo) as (_, writer):
        writer.write(begin)
        await until(lambda: echo.server.counters.calls == 1)
        await echo.server.stop(0)
        assert echo.server.connections == 0
        assert End.LOST in lines.opened[0].ends


# --- TLS ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("names", [["line"], ["line", "h2"], []])
async def test_alpn_chooses_the_protocol_over_tls(tmp_path: Path, names: list[str]) -> None:
    make_certificate(tmp_path, "one")
    tls = TlsConfig(certificate_path=str(tmp_path / "one.pem"), key_path=str(tmp_path / "one.key"))
    trusted = ssl.create_default_context(cafile=str(tmp_path / "one.pem"))
    if names:
        trusted.set_alpn_protocols(names)
    grpcs = ssl.create_default_context(cafile=str(tmp_path / "one.pem"))
    grpcs.set_alpn_protocols(["h2"])
    async with opened(tls=tls) as (echo, lines), open_client(echo.address, tls=grpcs) as client:
        await calls(client)
        async with connect(echo, trusted) as (reader, writer):
            if names == ["line", "h2"]:  # the server's order counts
                assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
                return
            writer.write(b"echo x\n")
            assert await reader.readline() == b"x\n"
        assert len(lines.opened) == 1

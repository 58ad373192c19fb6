"""pixy/serving/server.py: drain and stop, and ticks of every connection."""

import asyncio
import time
from contextlib import AsyncExitStack, suppress

import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from pixy.http2 import Options
from pixy.rpc import GrpcOptions, Service, StreamCall
from pixy.serving import Link, ProtocolFactory, ServerOptions
from pixy.serving.listeners import Listener, bind_tcp
from tests.fakes.echo import DESCRIPTOR, open_echo, serve, value
from tests.fakes.grpc_client import open_client
from tests.fakes.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow

UNARY, REPEAT = "/test.Echo/Unary", "/test.Echo/Repeat"


async def test_stop_lets_running_calls_finish_and_takes_no_new_connections() -> None:
    async with open_echo(limits=ServerOptions(linger_s=1)) as echo, open_client(echo.address) as client:
        stream_id = client.request(UNARY, value(b"hold"))
        await echo.echo.arrived.wait()
        stopping = asyncio.create_task(echo.server.stop(10))
        await client.until(lambda: bool(client.goaways))
        try:
            async with open_client(echo.address):
                raise AssertionError("it listens")
        except ConnectionRefusedError:
            pass
        echo.echo.held[0][0].answer(BytesValue())
        assert (await client.answer(stream_id)).status == 0
        await client.until_closed()
        await stopping
        # RFC 9113 §6.8: twice, first with the largest id.
        assert [goaway.last_stream_id for goaway in client.goaways] == [2**31 - 1, stream_id]


async def test_stop_waits_no_longer_than_the_grace_and_cancels_running_calls() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        client.request(UNARY, value(b"hold"))
        client.request(REPEAT, value(b"hold"))
        await client.until(lambda: True)
        await echo.echo.arrived.wait()
        began = time.monotonic()
        await echo.server.stop(0.2)
        assert time.monotonic() - began >= 0.2
        assert echo.echo.cancelled.is_set()
        assert echo.echo.held[0][1].cancelled.is_set()
        assert echo.server.connections == 0
        await client.until_closed()
        assert client.goaways[-1].debug == b"the grace period is over"


async def test_stop_does_not_wait_for_a_handler_that_ignores_its_cancellation() -> None:
    async def deaf(request: BytesValue, call: StreamCall) -> None:
        begun.set()
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()
        raise KeyError("after the end")

    begun, released, faults = asyncio.Event(), asyncio.Event(), list[BaseException]()
    server, address = await serve([Service(DESCRIPTOR, {"Repeat": deaf})], faults)
    async with open_client(address) as client:
        client.request(REPEAT, value(b""))
        await begun.wait()
        async with asyncio.timeout(PATIENCE_S):
            await server.stop(0)
        released.set()
        await until(lambda: bool(faults))
        assert isinstance(faults[0], KeyError)


async def test_a_drain_sends_calls_elsewhere_and_serves_those_that_come_until_the_stop() -> None:
    async with open_echo(limits=ServerOptions(linger_s=1)) as echo, open_client(echo.address) as before:
        await before.call(UNARY, value(b"x"))
        echo.server.begin_drain()
        await before.until(lambda: bool(before.goaways))
        assert (await before.call(UNARY, value(b"ack"))).status == 0
        # Clients of gRPC open another connection; with a GOAWAY of its own they would never get
        # through.
        async with open_client(echo.address) as behind:
            assert (await behind.call(UNARY, value(b"ack"))).status == 0
            assert behind.goaways == []
            stopping = asyncio.create_task(echo.server.stop(10))
            await before.until_closed()
            await behind.until_closed()
            await stopping
        last = 2**31 - 1
        assert [goaway.last_stream_id for goaway in before.goaways] == [last, 3]
        assert [goaway.last_stream_id for goaway in behind.goaways] == [last, 1]


async def test_a_streaming_handler_that_waits_for_the_drain_ends_its_call_before_the_grace_is_over() -> None:
    async with open_echo(limits=ServerOptions(linger_s=1)) as echo, open_client(echo.address) as client:
        before = client.request(REPEAT, value(b"drain"))
        await echo.echo.arrived.wait()
        echo.server.begin_drain()
        assert (await client.answer(before)).status == 0
        async with open_client(echo.address) as late:
            assert (await late.call(REPEAT, value(b"drain"))).status == 0, "it hears of a drain that goes on"


@pytest.mark.parametrize("age_s", [0, 0.01], ids=["stop", "age"])
async def test_a_streaming_handler_learns_that_its_connection_drains(age_s: float) -> None:
    async with (
        open_echo(limits=ServerOptions(age_s=age_s, linger_s=1)) as echo,
        open_client(echo.address) as client,
    ):
        stream_id = client.request(REPEAT, value(b"drain"))
        await echo.echo.arrived.wait()
        stopping = [] if age_s else [asyncio.create_task(echo.server.stop(60))]
        assert (await client.answer(stream_id)).status == 0
        await client.until_closed()
        await asyncio.gather(*stopping)


async def test_a_stop_in_the_iteration_of_an_accept_does_not_wait_for_the_connection() -> None:
    async with open_echo() as echo:
        sock, address = bind_tcp("127.0.0.1:0")
        stops: list[asyncio.Task[None]] = []

        class Stopping:
            """Stops the server between the accept of a connection and its first callback."""

            options = echo.server.options
            note = echo.server.note

            def maybe_open(self, peer: str, factory: ProtocolFactory, *, secure: bool) -> Link | None:
                stops.append(asyncio.create_task(listener.close()))
                stops.append(asyncio.create_task(echo.server.stop(3600)))
                return echo.server.maybe_open(peer, factory, secure=secure)

        listener = Listener(sock, address, Stopping(), echo.factory)
        listener.start()
        async with open_client(address) as client, asyncio.timeout(30):
            await client.until_closed()
            await asyncio.gather(*stops)
        assert echo.server.connections == 0


async def test_stop_without_connections_returns_at_once_and_may_be_repeated() -> None:
    async with open_echo() as echo:
        async with asyncio.timeout(PATIENCE_S):
            await echo.server.stop(2 * PATIENCE_S)
            await echo.server.stop(2 * PATIENCE_S)


async def test_every_one_of_many_connections_is_ticked() -> None:
    options = GrpcOptions(http2=Options(idle_s=0.1))
    async with open_echo(options) as echo, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_client(echo.address)) for _ in range(23)]
        for client in clients:
            await client.call(UNARY, value(b"x"))
        for client in clients:
            await client.until_closed()
        assert echo.server.counters.accepted == 23


async def test_counters_count_connections_calls_and_bytes() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        await client.call(UNARY, value(b"x"))
        await client.call("/none/None", value(b"x"))
        counters = echo.server.counters
        assert (counters.accepted, counters.calls, counters.rejected) == (1, 1, 1)
        assert counters.bytes_in > 100
        assert counters.bytes_out > 100

"""pixy/serving/memory.py: the memory of all connections is bounded, and incomplete requests end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from pixy.http2 import ErrorCode, Options
from pixy.rpc import GrpcOptions, Status
from pixy.serving import ServerOptions
from pixy.serving.limit_log import LimitLog
from pixy.serving.memory import Memory
from tests.fakes.clock import FakeClock
from tests.fakes.echo import EchoServer, open_echo, value
from tests.fakes.grpc_client import RawClient, open_client, prefixed
from tests.fakes.waiting import until
from tests.serving.support import connected

UNARY, CHAT, REPEAT, COLLECT = (
    "/test.Echo/Unary",
    "/test.Echo/Chat",
    "/test.Echo/Repeat",
    "/test.Echo/Collect",
)
MIB = 1 << 20
SMALL = ServerOptions(buffer_bytes=4 * MIB)


class Holder:
    """Holds bytes until it is evicted."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.given_up = False

    def evict(self) -> None:
        self.given_up = True


async def test_those_that_hold_most_are_evicted_when_all_together_hold_too_much() -> None:
    memory = Memory(100, LimitLog())
    few, most, some = Holder("few"), Holder("most"), Holder("some")
    memory.note(few, 10)
    memory.note(most, 60)
    memory.note(some, 30)
    await asyncio.sleep(0)
    assert not most.given_up
    memory.note(few, 11)
    await asyncio.sleep(0)
    assert (few.given_up, most.given_up, some.given_up, memory.total) == (False, True, False, 41)
    for each in (few, most, some):
        memory.note(each, 0)
    assert memory.total == 0


async def test_an_excess_within_one_iteration_evicts_nobody() -> None:
    memory, holder = Memory(100, LimitLog()), Holder("brief")
    memory.note(holder, 200)
    memory.note(holder, 20)
    await asyncio.sleep(0)
    assert not holder.given_up


async def hold_requests(client: RawClient, size: int) -> None:
    """Send so many bytes of requests that stay incomplete."""
    part = prefixed(value(bytes(100_000)))[:16_000]
    for _ in range(size // len(part)):
        client.data(client.begin(UNARY), part)
        await client.until(lambda: client.h2.outbound_flow_control_window >= len(part))


@pytest.mark.slow
async def test_incomplete_requests_of_all_connections_are_bounded_and_an_honest_client_is_served() -> None:
    async with open_echo(limits=SMALL) as echo, AsyncExitStack() as stack:
        honest, *hoarders = [await stack.enter_async_context(open_client(echo.address)) for _ in range(6)]
        for hoarder in hoarders:
            await hold_requests(hoarder, MIB)
        await until(lambda: any(each.bytes_in > MIB / 2 for each in echo.server.connection_counters))
        last = hoarders[-1]
        await hold_requests(last, MIB)
        await last.until_closed()
        assert [goaway.code for goaway in last.goaways] == [ErrorCode.ENHANCE_YOUR_CALM]
        assert (await honest.call(UNARY, value(b"x"))).status == 0
        held = sum(each.request_bytes for each in echo.server.connection_counters)
        assert held <= SMALL.buffer_bytes


async def test_unread_answers_of_all_connections_are_bounded() -> None:
    async with open_echo(limits=SMALL) as echo, AsyncExitStack() as stack:
        honest, *lazy = [
            await stack.enter_async_context(open_client(echo.address, window=0)) for _ in range(6)
        ]
        for client in lazy:
            client.request(REPEAT, value(b"1 1000000"))
        await until(lambda: echo.server.counters.faulty >= 1)
        queued = sum(each.queued_bytes for each in echo.server.connection_counters)
        assert queued <= SMALL.buffer_bytes
        answer = honest.request(UNARY, value(b"x"))
        honest.open_window(answer, 1000)
        assert (await honest.answer(answer)).status == 0


async def test_a_connection_that_is_gone_holds_nothing() -> None:
    async with open_echo() as echo:
        memory = echo.server.memory
        async with open_client(echo.address) as client:
            await hold_requests(client, MIB)
            await until(lambda: memory.total > MIB / 2)
        await until(lambda: not echo.server.connections)
        assert memory.total == 0


async def test_incomplete_frames_count() -> None:
    async with open_echo() as echo:
        connection, _ = connected(echo)
        connection.workload.received((40_000).to_bytes(3, "big") + b"\xaa" + bytes(5) + bytes(30_000))
        await until(lambda: echo.server.memory.total >= 30_000)  # perhaps in the next turn
        connection.link.connection_lost(None)
        assert echo.server.memory.total == 0


# --- time -----------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def echo(clock: FakeClock) -> AsyncIterator[EchoServer]:
    quiet = Options(keepalive_s=0, handshake_s=0)
    async with open_echo(replace(GrpcOptions(), request_s=60, http2=quiet), clock=clock) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (UNARY, b""),
        (UNARY, prefixed(value(b"x"))),
        (UNARY, prefixed(value(b"x"))[:3]),
        (REPEAT, prefixed(value(b"1 1"))),
        (CHAT, prefixed(value(b"x"))[:3]),
        (CHAT, prefixed(value(b"first")) + prefixed(value(b"x"))[:3]),
    ],
)
async def test_a_request_that_stays_incomplete_ends(
    echo: EchoServer, clock: FakeClock, path: str, sent: bytes
) -> None:
    async with open_client(echo.address) as client:
        stream_id = client.begin(path)
        client.data(stream_id, sent)
        await until(lambda: echo.server.counters.calls == 1)
        await client.call(UNARY, value(b"behind"))
        clock.advance(59)
        await client.call(UNARY, value(b"behind"))
        assert not client.answers[stream_id].ended
        clock.advance(2)
        answer = await client.answer(stream_id)
        assert answer.status == Status.DEADLINE_EXCEEDED
        assert "grpc.request_timeout" in answer.message


@pytest.mark.slow
async def test_complete_requests_and_streams_without_a_message_may_take_any_time(
    echo: EchoServer, clock: FakeClock
) -> None:
    async with open_client(echo.address) as client:
        client.request(UNARY, value(b"hold"))
        idle = client.begin(CHAT)
        client.data(idle, prefixed(value(b"x")))
        in_parts = client.begin(UNARY)
        body = prefixed(value(b"hold"))
        client.data(in_parts, body[:4])
        client.data(in_parts, body[4:], end=True)
        await until(lambda: len(echo.echo.held) == 2 and echo.echo.received == 1)
        clock.advance(1000)
        # Ticks come ten times a second; one that ends something would have come with this.
        for _ in range(3):
            await client.call(UNARY, value(b"behind"))
            await asyncio.sleep(0.15)
        assert not any(client.answers[stream_id].ended for stream_id in (idle, in_parts))


@pytest.mark.slow
async def test_an_upload_has_its_time_from_its_admission_on(clock: FakeClock) -> None:
    options = GrpcOptions(
        request_s=60, request_bytes_max=5 * MIB, http2=Options(keepalive_s=0, handshake_s=0)
    )
    async with open_echo(options, clock=clock) as echo, open_client(echo.address) as client:
        body = prefixed(value(b"drop" + bytes(3 * MIB)))
        first, second = client.begin(UNARY), client.begin(UNARY)
        await client.upload(first, body[:200_000], end=False)
        await client.call(UNARY, value(b"behind"))
        await client.upload(second, body[:200_000], end=False)
        await client.call(UNARY, value(b"behind"))
        clock.advance(61)
        assert (await client.answer(first)).status == Status.DEADLINE_EXCEEDED
        await client.upload(second, body[200_000:])
        assert (await client.answer(second)).status == 0

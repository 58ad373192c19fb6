"""pixy/serving/workload.py and steps.py: the work of a connection is charged."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from hpack import Encoder

from pixy.http2.frames import END_HEADERS, END_STREAM, FrameType, frame, rst_stream
from pixy.serving.fair_scheduler import QUANTUM_S
from tests.fakes.clock import FakeClock
from tests.fakes.echo import EchoServer, open_echo, value
from tests.fakes.grpc_client import prefixed
from tests.fakes.waiting import until
from tests.serving.support import NotedReceipt, connected

UNARY, TASK, CHAT = "/test.Echo/Unary", "/test.Echo/Task", "/test.Echo/Chat"
MESSAGE_S = QUANTUM_S / 10
"""Cost of a message for the server in these tests."""
SLICE_S_MAX = 3 * QUANTUM_S
"""The credit of a connection, the time of an iteration of the loop for those without credit, and
the slice that exceeds it.
"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def echo(clock: FakeClock) -> AsyncIterator[EchoServer]:
    async with open_echo(clock=clock) as server:
        server.echo.spend = lambda: clock.advance(MESSAGE_S)
        yield server


def request(path: str, stream_id: int, *messages: bytes, end: bool = True, timeout: str = "") -> bytes:
    """Frames of a request."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
    fields += [("content-type", "application/grpc"), ("te", "trailers")]
    fields += [("grpc-timeout", timeout)] if timeout else []
    # Without the dynamic table, so that blocks of any encoder can stand behind each other.
    block = Encoder().encode([(*field, True) for field in fields])
    body = prefixed(*(value(message) for message in messages))
    head = frame(FrameType.HEADERS, END_HEADERS, stream_id, block)
    return head + frame(FrameType.DATA, END_STREAM if end else 0, stream_id, body)


async def longest_turn_s(clock: FakeClock, turns: int) -> float:
    """Run iterations of the loop; returns the longest in seconds."""
    longest = 0.0
    for _ in range(turns):
        before = clock.monotonic()
        await asyncio.sleep(0)
        longest = max(longest, clock.monotonic() - before)
    return longest


def lose(*connections: Any) -> None:
    for connection in connections:
        connection.link.connection_lost(None)


@pytest.mark.slow
@pytest.mark.parametrize("floods", [1, 4])
async def test_a_flood_of_messages_on_streams_does_not_block_the_loop(
    echo: EchoServer, clock: FakeClock, floods: int
) -> None:
    connections = [connected(echo)[0] for _ in range(floods)]
    for connection in connections:
        connection.workload.received(request(CHAT, 1, *[b""] * 1000, end=False))
    assert await longest_turn_s(clock, 100 * floods) <= SLICE_S_MAX
    assert echo.echo.received > 300 * floods
    lose(*connections)


async def test_coroutines_of_unary_calls_do_not_block_the_loop(echo: EchoServer, clock: FakeClock) -> None:
    connection, transport = connected(echo)
    connection.workload.received(b"".join(request(TASK, stream_id, b"x") for stream_id in range(1, 400, 2)))
    assert await longest_turn_s(clock, 100) <= SLICE_S_MAX
    assert transport.written.count(prefixed(value(b"x"))) == 200
    lose(connection)


async def test_handlers_that_work_in_steps_do_not_block_the_loop(echo: EchoServer, clock: FakeClock) -> None:
    floods = [connected(echo) for _ in range(4)]
    for connection, _ in floods:
        calls = (request(UNARY, stream_id, b"steps") for stream_id in range(1, 200, 2))
        connection.workload.received(b"".join(calls))
    assert await longest_turn_s(clock, 1000) <= SLICE_S_MAX
    assert [transport.written.count(prefixed(value(b"steps"))) for _, transport in floods] == [100] * 4
    lose(*(connection for connection, _ in floods))


async def test_requests_whose_handlers_are_tasks_begin_over_several_slices(
    echo: EchoServer, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, transport = connected(echo)
    spawn = connection.environment.tasks.spawn

    def slow_spawn(*arguments: Any) -> Any:
        clock.advance(MESSAGE_S)
        return spawn(*arguments)

    monkeypatch.setattr(connection.environment.tasks, "spawn", slow_spawn)
    before = clock.monotonic()
    connection.workload.received(b"".join(request(TASK, stream_id, b"x") for stream_id in range(1, 200, 2)))
    assert clock.monotonic() - before <= SLICE_S_MAX
    assert await longest_turn_s(clock, 100) <= SLICE_S_MAX
    assert transport.written.count(prefixed(value(b"x"))) == 100
    lose(connection)


async def test_a_calm_connection_is_served_beside_floods_of_streams(
    echo: EchoServer, clock: FakeClock
) -> None:
    floods = [connected(echo)[0] for _ in range(4)]
    calm, transport = connected(echo)
    for flood in floods:
        flood.workload.received(request(CHAT, 1, *[b""] * 1000, end=False))
    await longest_turn_s(clock, 20)
    calm.workload.received(request(TASK, 1, b"calm"))
    # Its turn comes behind a slice of each of the four, two in a turn.
    await longest_turn_s(clock, 4)
    assert value(b"calm") in transport.written
    lose(calm, *floods)


@pytest.mark.slow
async def test_queued_connections_share_evenly_whatever_their_work_is(
    echo: EchoServer, clock: FakeClock
) -> None:
    streams, tasks = connected(echo)[0], connected(echo)[0]
    spent = {"streams": 0, "tasks": 0}

    def spend() -> None:
        task = asyncio.current_task()
        assert task is not None
        spent["tasks" if task.get_name().endswith("Task") else "streams"] += 1
        clock.advance(MESSAGE_S)

    echo.echo.spend = spend
    streams.workload.received(request(CHAT, 1, *[b""] * 2000, end=False))
    tasks.workload.received(b"".join(request(TASK, stream_id, b"x") for stream_id in range(1, 4000, 2)))
    await longest_turn_s(clock, 40)
    assert 0.7 <= spent["streams"] / spent["tasks"] <= 1.4
    lose(streams, tasks)


async def test_input_is_served_beside_steps_that_never_end(echo: EchoServer, clock: FakeClock) -> None:
    connection, transport = connected(echo)
    connection.workload.received(request(CHAT, 1, *[b""] * 2000, end=False))
    connection.workload.received(request(CHAT, 3, *[b""] * 2000, end=False))
    await longest_turn_s(clock, 5)
    connection.workload.received(frame(FrameType.PING, 0, 0, b"12345678"))
    await longest_turn_s(clock, 5)
    assert b"12345678" in transport.written
    assert echo.echo.received < 4000
    # Nothing but steps is in line, so the connection is read.
    assert transport.said[-1:] != ["pause"]
    lose(connection)


async def test_reset_calls_are_cancelled_in_slices_of_their_connection(
    echo: EchoServer, clock: FakeClock
) -> None:
    connection, _ = connected(echo)
    streams = range(1, 400, 2)
    connection.workload.received(b"".join(request(TASK, stream_id, b"hold") for stream_id in streams))
    await longest_turn_s(clock, 300)
    cancelled = 0

    class Slow(asyncio.Event):
        def set(self) -> None:
            nonlocal cancelled
            cancelled += 1
            clock.advance(MESSAGE_S)

    echo.echo.cancelled = Slow()
    connection.workload.received(b"".join(rst_stream(stream_id, 8) for stream_id in streams))
    assert await longest_turn_s(clock, 300) <= SLICE_S_MAX
    assert cancelled == len(streams)
    lose(connection)


async def test_calls_at_their_deadline_end_in_slices_of_their_connection(
    echo: EchoServer, clock: FakeClock
) -> None:
    connection, _ = connected(echo)
    streams = range(1, 400, 2)
    connection.workload.received(
        b"".join(request(UNARY, stream_id, b"hold", timeout="1S") for stream_id in streams)
    )
    await longest_turn_s(clock, 10)
    for _, work in echo.echo.held:
        work.cancel = lambda: clock.advance(MESSAGE_S)  # type: ignore[method-assign]  # one that takes time
    assert len(echo.echo.held) == len(streams)
    clock.advance(1.1)
    before = clock.monotonic()
    for call, _ in echo.echo.held:
        call.deadline_exceeded()
    assert clock.monotonic() - before <= SLICE_S_MAX
    assert await longest_turn_s(clock, 300) <= SLICE_S_MAX
    assert echo.server.counters.deadlines == len(streams)
    assert not any(call.running for call, _ in echo.echo.held)
    lose(connection)


async def test_the_calls_of_a_lost_connection_end_in_its_slices_before_it_is_gone(
    echo: EchoServer, clock: FakeClock
) -> None:
    connection, _ = connected(echo)
    streams = range(1, 1000, 2)
    connection.workload.received(b"".join(request(UNARY, stream_id, b"hold") for stream_id in streams))
    await longest_turn_s(clock, 30)
    held = [call for call, _ in echo.echo.held]
    assert len(held) == len(streams)
    # It has used up its share, and so has the turn.
    connection.link.charge(1)
    lose(connection)
    assert all(call.running for call in held)
    late = NotedReceipt()
    held[0].answer(BytesValue(), late)
    assert late.said == ["undelivered"]
    await until(lambda: not echo.server.connections)
    assert not any(call.running for call in held)
    assert echo.server.counters.gone == len(held) - 1


async def test_later_answers_are_charged_when_they_are_written(echo: EchoServer, clock: FakeClock) -> None:
    connection, transport = connected(echo)
    connection.workload.received(request(UNARY, 1, b"hold"))
    connection.workload._credit_s = QUANTUM_S
    transport.full = lambda: clock.advance(MESSAGE_S)
    ((call, _),) = echo.echo.held
    call.answer(BytesValue())
    await asyncio.sleep(0)
    assert connection.workload._credit_s == pytest.approx(QUANTUM_S - MESSAGE_S)
    lose(connection)

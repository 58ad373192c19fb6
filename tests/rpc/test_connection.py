"""pixy/rpc/connection.py: misbehaviour of one connection affects no other; how it ends."""

import asyncio

import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from structlog.testing import capture_logs

from pixy.http2 import ErrorCode, Options
from pixy.http2.token_buckets import TokenBucketOptions
from pixy.rpc import GrpcOptions, Status
from pixy.rpc.connection import GrpcConnection
from pixy.serving import ServerOptions
from pixy.serving.workload import Workload
from tests.fakes.clock import FakeClock
from tests.fakes.echo import EchoServer, open_echo, value
from tests.fakes.grpc_client import open_client, prefixed
from tests.fakes.waiting import until

UNARY, REPEAT = "/test.Echo/Unary", "/test.Echo/Repeat"


async def still_serves(echo: EchoServer) -> None:
    async with open_client(echo.address) as other:
        assert (await other.call(UNARY, value(b"x"))).status == Status.OK


async def test_only_the_timeout_is_read_of_a_section_that_differs_in_nothing_else() -> None:
    async with open_echo(clock=FakeClock()) as echo, open_client(echo.address) as client:
        for seconds in range(100, 110):
            client.request(UNARY, value(b"hold"), [("grpc-timeout", f"{seconds}S")])
        await until(lambda: len(echo.echo.held) == 10)
        calls = [call for call, _ in echo.echo.held]
        assert len({id(call.head) for call in calls[1:]}) == 1
        deadlines = [call.deadline for call in calls if call.deadline is not None]
        assert len(deadlines) == 10
        assert [deadline - deadlines[0] for deadline in deadlines] == pytest.approx(range(10))
        for fields, status in (
            ([("grpc-timeout", "soon")], Status.INTERNAL),
            ([("grpc-encoding", "br"), ("grpc-timeout", "100S")], Status.UNIMPLEMENTED),
        ):
            assert (await client.call(UNARY, value(b"x"), fields)).status == status


@pytest.mark.slow
async def test_calls_end_at_their_deadlines_whatever_begins_and_ends_between_them() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        late, soon, never = [], [], []
        for number in range(20):
            late.append(client.request(UNARY, value(b"hold"), [("grpc-timeout", f"{300 + number}m")]))
            never.append(client.request(UNARY, value(b"hold")))
            assert (await client.call(UNARY, value(b"x"), [("grpc-timeout", "100S")])).status == Status.OK
            soon.append(client.request(UNARY, value(b"hold"), [("grpc-timeout", f"{60 - number}m")]))
            await asyncio.sleep(0.002)
        for stream_ids in (soon, late):
            for stream_id in stream_ids:
                assert (await client.answer(stream_id)).status == Status.DEADLINE_EXCEEDED
            assert not any(client.answers[stream_id].ended for stream_id in never)
        assert echo.server.counters.deadlines == 40
        (connection,) = echo.connections
        assert len(connection._calls) == len(never)


async def test_a_client_that_breaks_the_protocol_gets_goaway_and_others_are_served() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        client.request(UNARY, value(b"hold"))
        await echo.echo.arrived.wait()
        client.writer.write(b"\0\0\1\0\0\0\0\0\0x")  # DATA on stream 0
        await client.until_closed()
        assert [goaway.code for goaway in client.goaways] == [1]
        await echo.echo.held[0][1].cancelled.wait()
        await still_serves(echo)
        assert echo.server.counters.faulty == 1


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_not_read_from_and_finally_cut_off() -> None:
    limits = ServerOptions(stall_s=0.2)
    async with open_echo(limits=limits) as echo, open_client(echo.address, window=2**31 - 1) as slow:
        slow.open_window(0, 2**30)
        slow.request(REPEAT, value(b"3000 100000"))
        await until(lambda: any(not each.transport.writable for each in echo.links))
        before = echo.server.counters.calls
        for _ in range(20):
            slow.request(UNARY, value(b"unread"))
        await still_serves(echo)
        assert echo.server.counters.calls == before + 1
        await until(lambda: not echo.server.connections)
        assert echo.echo.sent < 1000


async def test_a_connection_beyond_the_limit_is_closed_at_once() -> None:
    async with open_echo(limits=ServerOptions(connections_max=1)) as echo:
        async with open_client(echo.address) as first:
            await first.call(UNARY, value(b"x"))
            async with open_client(echo.address) as second:
                await second.until_closed()
            assert (echo.server.counters.accepted, echo.server.counters.refused) == (1, 1)
            assert (await first.call(UNARY, value(b"x"))).status == 0
        await until(lambda: not echo.server.connections)
        await still_serves(echo)


@pytest.mark.slow
async def test_a_connection_that_reaches_its_age_drains() -> None:
    limits = ServerOptions(age_s=0.2, age_grace_s=30)
    async with open_echo(limits=limits) as echo, open_client(echo.address) as client:
        stream_id = client.request(UNARY, value(b"hold"))
        await client.until(lambda: bool(client.goaways))
        assert client.goaways[0].code == 0
        echo.echo.held[0][0].answer(BytesValue())
        assert (await client.answer(stream_id)).status == 0
        await client.until_closed()
        assert [goaway.last_stream_id for goaway in client.goaways] == [2**31 - 1, stream_id]


@pytest.mark.slow
async def test_calls_beyond_the_grace_of_an_old_connection_are_cut_off() -> None:
    limits = ServerOptions(age_s=0.1, age_grace_s=0.2)
    async with open_echo(limits=limits) as echo, open_client(echo.address) as client:
        client.request(UNARY, value(b"hold"))
        await client.until_closed()
        await echo.echo.held[0][1].cancelled.wait()


@pytest.mark.slow
async def test_a_client_without_a_preface_is_cut_off() -> None:
    options = GrpcOptions(http2=Options(handshake_s=0.1))
    async with open_echo(options) as echo:
        host, port = echo.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(10):
            assert (await reader.read()).endswith(b"handshake timeout")
        writer.close()


HTTP1_TEXT = b"This port serves gRPC over HTTP/2. There is no HTTP/1.1 API.\n"


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET / HTTP/1.1\r\nHost: pixy\r\n\r\n"],
        [b"POST /topics/t/messages HTTP/1.1\r\n", b"Host: pixy\r\n\r\nx"],
        [b"P", b"UT / HTTP/1.1\r\n\r\n"],
        [b"H", b"EAD / HTTP/1.0\r\n\r\n"],
    ],
)
@pytest.mark.parametrize("is_slice_over", [False, True])
async def test_a_request_of_http1_is_answered_in_http1_once(
    pieces: list[bytes], is_slice_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workload, "step_over", is_slice_over)
    with capture_logs() as logs:
        async with open_echo() as echo:
            host, port = echo.address.rsplit(":", 1)
            for _ in range(2):
                reader, writer = await asyncio.open_connection(host, int(port))
                async with asyncio.timeout(10):
                    writer.write(pieces[0])
                    if len(pieces) > 1:
                        await until(lambda: any(each.workload.bytes_in for each in echo.links))
                        writer.writelines(pieces[1:])
                    answer = await reader.read()
                writer.close()
                await until(lambda: not echo.server.connections)
                head, _, body = answer.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 505 HTTP Version Not Supported\r\n")
                assert f"Content-Length: {len(body)}".encode() in head
                assert body == HTTP1_TEXT
            assert echo.server.counters.faulty == 2
            assert [each["times"] for each in logs if each["event"] == "a client does not speak gRPC"] == [1]


@pytest.mark.slow
async def test_unread_input_after_the_end_does_not_keep_a_connection() -> None:
    limits = ServerOptions(linger_s=0.2)
    async with open_echo(limits=limits) as echo, open_client(echo.address, window=2**31 - 1) as slow:
        slow.open_window(0, 2**30)
        slow.request(REPEAT, value(b"3000 100000"))
        await until(lambda: any(not each.transport.writable for each in echo.links))
        for link in echo.links:
            link.end()
        await until(lambda: not echo.server.connections)


async def test_data_after_an_early_answer_are_ignored() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        stream_id = client.begin(UNARY)
        client.data(stream_id, prefixed(b"", b""))
        answer = await client.answer(stream_id)
        assert answer.status == Status.UNIMPLEMENTED
        assert (await client.call(UNARY, value(b"next"))).status == 0


# --- resets ---------------------------------------------------------------------------------------


async def held(echo: EchoServer, calls: int) -> None:
    """Wait until so many calls are held."""
    await until(lambda: len(echo.echo.held) == calls)


async def settled(connection: GrpcConnection, resets: int) -> None:
    """Wait until so many resets were received, or the connection is closed."""
    await until(lambda: connection.resets_received == resets or connection.core.closed)


async def reset_some(lived_s: float, timeout: str) -> list[int]:
    """Reset 40 calls, each after a time, with a bucket of 10 tokens; returns the codes of
    GOAWAY.
    """
    few, clock = TokenBucketOptions(burst=10, per_second=0, per_frame=0), FakeClock()
    async with (
        open_echo(GrpcOptions(http2=Options(resets=few)), clock=clock) as echo,
        open_client(echo.address) as client,
    ):
        await client.call(UNARY, value(b"x"))
        (connection,) = echo.connections
        for number in range(1, 41):
            stream_id = client.request(UNARY, value(b"hold"), [("grpc-timeout", timeout)])
            await held(echo, number)
            clock.advance(lived_s)
            client.reset(stream_id)
            await settled(connection, number)
            if connection.core.closed:
                await client.until_closed()
                break
        return [goaway.code for goaway in client.goaways]


@pytest.mark.parametrize(
    ("lived_s", "timeout"), [(0.55, "1S"), (0.99, "1S"), (0.25, "300m"), (0.03, "50m"), (0.003, "5m")]
)
async def test_resets_near_the_deadlines_of_calls_are_no_attack(lived_s: float, timeout: str) -> None:
    assert await reset_some(lived_s, timeout) == []


@pytest.mark.parametrize(
    ("lived_s", "timeout"), [(0.0, "1S"), (0.4, "1S"), (0.1, "300m"), (0.0, "1m"), (0.0, "1n"), (0.0, "1H")]
)
async def test_resets_long_before_deadlines_end_the_connection(lived_s: float, timeout: str) -> None:
    assert await reset_some(lived_s, timeout) == [ErrorCode.ENHANCE_YOUR_CALM]

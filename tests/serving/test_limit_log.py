"""pixy/serving/limit_log.py: one line a minute for each limit that is reached."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from pixy.http2 import ErrorCode, Options
from pixy.http2.token_buckets import TokenBucketOptions
from pixy.rpc import GrpcOptions
from pixy.serving import ServerOptions
from pixy.serving.limit_log import LimitLog
from tests.fakes.echo import EchoServer, open_echo, value
from tests.fakes.grpc_client import open_client
from tests.fakes.waiting import until

UNARY = "/test.Echo/Unary"


def lines(logs: list[Any]) -> list[tuple[str, int, str]]:
    return [
        (each["limit"], each["times"], each["clients"])
        for each in logs
        if each["event"] == "a limit is reached"
    ]


async def test_the_first_hit_is_logged_at_once_and_those_of_the_next_minute_in_one_line() -> None:
    with capture_logs() as logs:
        limits = LimitLog(interval_s=0.05)
        limits.hit("a", "10.0.0.1:1")
        assert lines(logs) == [("a", 1, "10.0.0.1 1")]
        limits.hit("b", "10.0.0.1:1")
        for port in range(3):
            limits.hit("a", f"10.0.0.1:{port}")
        limits.hit("a", "10.0.0.2:9", 5)
        await until(lambda: len(lines(logs)) == 3)
        assert lines(logs)[1:] == [("b", 1, "10.0.0.1 1"), ("a", 8, "10.0.0.2 5, 10.0.0.1 3")]
        limits.hit("a", "10.0.0.3:9")
        limits.stop()
        assert lines(logs)[3:] == [("a", 1, "10.0.0.3 1")]


async def test_a_quiet_limit_is_forgotten_and_its_next_hit_logged_at_once() -> None:
    with capture_logs() as logs:
        limits = LimitLog(interval_s=0.01)
        limits.hit("a", "10.0.0.1:1")
        assert limits.reached == ["a"]
        await until(lambda: not limits.reached)
        limits.hit("a", "10.0.0.1:1")
        assert lines(logs) == [("a", 1, "10.0.0.1 1")] * 2
        limits.stop()


async def test_memory_and_lines_are_bounded_whoever_and_whatever_hits() -> None:
    with capture_logs() as logs:
        limits = LimitLog()
        for number in range(1000):
            limits.hit(f"limit {number}", "10.0.0.1:1")
            limits.hit("limit 0", f"10.1.{number // 250}.{number % 250}:1")
        assert len(lines(logs)) == 101
        limits.stop()
        of_first = next(each for each in lines(logs)[101:] if each[0] == "limit 0")
        assert of_first[1] == 1000
        assert of_first[2].startswith("others ")
        assert of_first[2].endswith(" and 60 more")


# --- at a server ----------------------------------------------------------------------------------


async def two_connections(echo: EchoServer) -> None:
    async with open_client(echo.address) as first:
        assert (await first.call(UNARY, value(b"x"))).status == 0
        host, port = echo.address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as second:
            second.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(second, 1) == b""


async def a_large_message(echo: EchoServer) -> None:
    async with open_client(echo.address) as client:
        assert (await client.call(UNARY, value(bytes(2000)))).status == 8


async def three_streams(echo: EchoServer) -> None:
    async with open_client(echo.address) as client:
        streams = [client.request(UNARY, value(b"hold")) for _ in range(3)]
        assert (await client.answer(streams[-1])).reset == ErrorCode.REFUSED_STREAM


async def two_calls(echo: EchoServer) -> None:
    async with open_client(echo.address) as client:
        client.request(UNARY, value(b"hold"))
        assert (await client.call(UNARY, value(b"x"))).status == 8


async def large_headers(echo: EchoServer) -> None:
    async with open_client(echo.address) as client:
        answer = await client.call(UNARY, value(b"x"), [("a", "x" * 1500)])
        assert answer.reset == ErrorCode.ENHANCE_YOUR_CALM


async def many_pings(echo: EchoServer) -> None:
    async with open_client(echo.address) as client:
        for _ in range(5):
            client.h2.ping(b"12345678")
        client.send()
        await client.until_closed()


LIMITED: list[tuple[str, ServerOptions | GrpcOptions, Callable[[EchoServer], Any]]] = [
    ("grpc.max_connections", ServerOptions(connections_max=1, client_share_percent=100), two_connections),
    ("client_share_percent of grpc.max_connections", ServerOptions(connections_max=2), two_connections),
    ("grpc.max_calls", ServerOptions(calls_max=1, client_share_percent=100), two_calls),
    ("client_share_percent of grpc.max_calls", ServerOptions(calls_max=2), two_calls),
    ("grpc.max_message_bytes", GrpcOptions(message_bytes_max=1000), a_large_message),
    ("grpc.max_concurrent_streams", GrpcOptions(http2=Options(max_concurrent_streams=2)), three_streams),
    ("header list too large", GrpcOptions(http2=Options(max_header_list_bytes=1024)), large_headers),
    ("too_many_pings", GrpcOptions(http2=Options(pings=TokenBucketOptions(2, 0.001, 0))), many_pings),
]


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "options", "hit"), LIMITED, ids=[each[0] for each in LIMITED])
async def test_a_client_that_is_refused_or_cut_off_is_in_the_log(
    limit: str, options: ServerOptions | GrpcOptions, hit: Callable[[EchoServer], Any]
) -> None:
    with capture_logs() as logs:
        async with (
            open_echo(options) if isinstance(options, GrpcOptions) else open_echo(limits=options)
        ) as echo:
            await hit(echo)
    found = lines(logs)
    assert {each[0] for each in found} == {limit}
    assert all(each[2].startswith("127.0.0.1 ") for each in found)

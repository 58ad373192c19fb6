"""pixy/serving/open_calls.py: calls that wait are bounded, all and of a client."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.serving import ServerOptions
from pixy.serving.memory import NOTED_BYTES
from tests.fakes.echo import open_echo, value
from tests.fakes.grpc_client import RawClient, open_client
from tests.fakes.waiting import until

UNARY, CHAT = "/test.Echo/Unary", "/test.Echo/Chat"
RESOURCE_EXHAUSTED = 8


def limited(calls_max: int, client_share_percent: int = 100) -> ServerOptions:
    return ServerOptions(calls_max=calls_max, client_share_percent=client_share_percent)


def held(path: str) -> Callable[[RawClient], int]:
    return lambda client: client.request(path, value(b"hold"))


def begun(path: str) -> Callable[[RawClient], int]:
    return lambda client: client.begin(path)


WAITING = {
    "unary": held(UNARY),
    "unary, in a task": held("/test.Echo/Task"),
    "unary, not complete": begun(UNARY),
    "answers that stream": held("/test.Echo/Repeat"),
    "requests that stream": begun("/test.Echo/Collect"),
    "both stream": begun(CHAT),
}


@pytest.mark.parametrize("wait", WAITING.values(), ids=WAITING)
async def test_calls_that_wait_are_bounded_and_their_places_are_free_when_they_end(
    wait: Callable[[RawClient], int],
) -> None:
    async with open_echo(limits=limited(2)) as echo:
        async with open_client(echo.address) as client, open_client(echo.address) as other:
            first = wait(client)
            wait(client)
            for refused in (client, other):
                await until(lambda: echo.server.open_calls == 2)
                answer = await refused.answer(wait(refused))
                assert answer.status == RESOURCE_EXHAUSTED
                assert "2 open calls, grpc.max_calls" in answer.message
            client.reset(first)
            await until(lambda: echo.server.open_calls == 1)
            for _ in range(3):
                assert (await other.call(UNARY, value(b"x"))).status == 0
        await until(lambda: echo.server.connections == 0)
        assert echo.server.open_calls == 0


async def test_the_place_of_a_call_is_free_after_each_end() -> None:
    async with open_echo(limits=limited(1)) as echo, open_client(echo.address) as client:
        for request, fields, status in (
            (b"x", [], 0),
            (b"fail", [], 10),
            (b"bug", [], 13),
            (b"hold", [("grpc-timeout", "10m")], 4),
            (b"x" * 10_000, [], 0),
        ):
            answer = await client.call(UNARY, value(request), fields)
            assert answer.status == status
            assert echo.server.open_calls == 0


async def test_one_address_has_a_share_of_the_open_calls(tmp_path: Path) -> None:
    async with open_echo(limits=limited(4, client_share_percent=50)) as echo:
        unix = await echo.server.listen_unix(str(tmp_path / "s"), echo.factory)
        async with open_client(echo.address) as hostile, open_client(echo.address) as same:
            for _ in range(2):
                hostile.begin(CHAT)
            await until(lambda: echo.server.open_calls == 2)
            refused = await same.call(UNARY, value(b"x"))
            assert refused.status == RESOURCE_EXHAUSTED
            assert "2 open calls, their share" in refused.message
            async with open_client(unix) as honest:
                assert (await honest.call(UNARY, value(b"x"))).status == 0


@pytest.mark.slow
async def test_answers_that_are_not_read_count_with_the_memory_of_their_streams() -> None:
    async with open_echo() as echo, open_client(echo.address, window=0) as client:
        await client.call(UNARY, value(b"fail"))
        for _ in range(100):
            client.request(UNARY, value(b"x"))
        await until(lambda: echo.server.memory.total > 100 * 1024 - NOTED_BYTES)
        await until(lambda: echo.server.open_calls == 0)


@pytest.mark.slow
async def test_streams_beyond_the_memory_of_a_server_end_the_connection() -> None:
    async with (
        open_echo(limits=ServerOptions(buffer_bytes=64 * 1024)) as echo,
        open_client(echo.address, window=0) as client,
    ):
        for _ in range(100):
            client.request(UNARY, value(b"x"))
        await client.until_closed()

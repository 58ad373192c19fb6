"""A bug ends its call, or its connection at most, and never another one."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from pixy.faults import internal_error
from pixy.rpc import Status
from tests.fakes.echo import EchoServer, open_echo, value
from tests.fakes.grpc_client import RawClient, open_client
from tests.fakes.waiting import until
from tests.serving.support import NotedReceipt

UNARY, TASK, REPEAT = "/test.Echo/Unary", "/test.Echo/Task", "/test.Echo/Repeat"


class Breaking:
    """A proxy of an object with one method that raises."""

    def __init__(self, real: Any, method: str) -> None:
        self._real = real
        self._method = method

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            return self._break
        return getattr(self._real, name)

    def _break(self, *_: object, **__: object) -> Any:
        raise AssertionError("a bug")


class BrokenReceipt:
    """A receipt with a bug."""

    def delivered(self) -> None:
        raise KeyError("delivered")

    def undelivered(self) -> None:
        raise KeyError("undelivered")


async def serves(client: RawClient) -> None:
    assert (await client.call(UNARY, value(b"x"))).status == Status.OK


def break_core(echo: EchoServer, method: str) -> None:
    """Put a bug into a method of the first connection's core."""
    connection = echo.connections[0]
    broken: Any = Breaking(connection.core, method)
    connection.core = connection.link.core = broken


@pytest.mark.parametrize(
    ("path", "body"), [(UNARY, b"bug"), (UNARY, b"later bug"), (TASK, b"bug"), (REPEAT, b"1 7")]
)
async def test_a_bug_of_a_handler_ends_its_call_with_an_id_that_the_log_has(path: str, body: bytes) -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        answer = await client.call(path, value(body))
        (fault,) = echo.faults
        assert (answer.status, answer.message) == (Status.INTERNAL, str(internal_error(fault)))
        assert isinstance(fault, KeyError)
        await serves(client)
        assert echo.server.counters.bugs == 1


@pytest.mark.slow
async def test_a_bug_after_the_end_of_its_call_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stubborn(*_: object) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        raise KeyError("late")

    async with open_echo() as echo, open_client(echo.address) as client:
        monkeypatch.setattr(echo.echo, "_for_ever", stubborn)
        answer = await client.call(TASK, value(b"hold"), [("grpc-timeout", "50m")])
        assert answer.status == Status.DEADLINE_EXCEEDED
        await until(lambda: echo.faults)
        assert (len(echo.faults), echo.server.counters.bugs) == (1, 1)
        await serves(client)


@pytest.mark.parametrize("method", ["receive", "maybe_respond", "take_output", "tick"])
async def test_a_bug_of_the_core_ends_its_connection_alone(method: str) -> None:
    async with open_echo() as echo, open_client(echo.address) as broken:
        await serves(broken)
        break_core(echo, method)
        async with open_client(echo.address) as other:
            held = other.request(UNARY, value(b"hold"))
            await until(lambda: echo.echo.held)
            broken.request(UNARY, value(b"x"))
            await broken.until_closed()
            echo.echo.held[0][0].answer(BytesValue(value=b"y"))
            assert (await other.answer(held)).status == Status.OK
            await serves(other)
        assert [str(fault) for fault in echo.faults] == ["a bug"]
        assert echo.server.counters.bugs == 1


@pytest.mark.parametrize("method", ["send_data", "send_trailers"])
async def test_a_bug_of_the_core_while_a_stream_answers_ends_its_connection_alone(method: str) -> None:
    async with open_echo() as echo, open_client(echo.address) as broken:
        await serves(broken)
        break_core(echo, method)
        stream_id = broken.request(REPEAT, value(b"1 5"))
        if method == "send_data":  # the handler was told, and the client is
            assert (await broken.answer(stream_id)).status == Status.INTERNAL
        else:
            await broken.until_closed()
        async with open_client(echo.address) as other:
            await serves(other)
        assert [str(fault) for fault in echo.faults] == ["a bug"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["begin_drain", "terminate"])
async def test_a_bug_of_the_core_does_not_keep_the_server_from_stopping(method: str) -> None:
    async with open_echo() as echo, open_client(echo.address) as broken, open_client(echo.address) as other:
        await serves(broken)
        break_core(echo, method)
        await serves(other)
        other.request(UNARY, value(b"hold"))
        broken.request(UNARY, value(b"hold"))
        await until(lambda: len(echo.echo.held) == 2)
        await echo.server.stop(0)
        assert echo.server.connections == 0
        assert {str(fault) for fault in echo.faults} == {"a bug"}


async def test_a_deadline_of_a_broken_connection_does_not_stop_those_of_others() -> None:
    async with open_echo() as echo, open_client(echo.address) as broken:
        await serves(broken)
        break_core(echo, "send_trailers")
        async with open_client(echo.address) as other:
            broken.request(UNARY, value(b"hold"), [("grpc-timeout", "20m")])
            await broken.until_closed()
            answer = await other.call(UNARY, value(b"hold"), [("grpc-timeout", "20m")])
            assert answer.status == Status.DEADLINE_EXCEEDED
        assert echo.server.counters.bugs == 1


async def test_a_bug_of_a_receipt_does_not_keep_others_from_being_told() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        for _ in range(2):
            client.request(UNARY, value(b"hold"))
        await until(lambda: len(echo.echo.held) == 2)
        receipt = NotedReceipt()
        (first, _), (second, _) = echo.echo.held
        first.answer(BytesValue(value=b"1"), BrokenReceipt())
        second.answer(BytesValue(value=b"2"), receipt)
        await receipt.spoken.wait()
        assert receipt.said == ["delivered"]
        assert [str(fault) for fault in echo.faults] == ["'delivered'"]
        await serves(client)


async def test_a_bug_of_a_receipt_of_a_lost_connection_does_not_keep_others_from_being_told() -> None:
    async with open_echo() as echo:
        async with open_client(echo.address, window=0) as client:
            for _ in range(2):
                client.request(UNARY, value(b"hold"))
            await until(lambda: len(echo.echo.held) == 2)
            receipt = NotedReceipt()
            (first, _), (second, _) = echo.echo.held
            first.answer(BytesValue(value=b"1"), BrokenReceipt())
            second.answer(BytesValue(value=b"2"), receipt)
        await receipt.spoken.wait()
        assert receipt.said == ["undelivered"]
        assert [str(fault) for fault in echo.faults] == ["'undelivered'"]


@pytest.mark.parametrize(
    "spoil", [lambda call: call.answer(object()), lambda call: call.answer(None, BrokenReceipt())]
)
async def test_an_answer_that_cannot_be_serialized_does_not_raise_in_the_caller(
    spoil: Callable[[Any], None],
) -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        stream_id = client.request(UNARY, value(b"hold"))
        await until(lambda: echo.echo.held)
        spoil(echo.echo.held[0][0])
        assert (await client.answer(stream_id)).status == Status.INTERNAL
        assert isinstance(echo.faults[0], AttributeError)
        await serves(client)


@pytest.mark.slow
async def test_a_bug_of_a_cancellation_ends_neither_connection_nor_server() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        stream_id = client.request(UNARY, value(b"hold"), [("grpc-timeout", "50m")])
        await until(lambda: echo.echo.held)
        echo.echo.held[0][1].cancelled = None  # type: ignore[assignment]  # a bug
        assert (await client.answer(stream_id)).status == Status.DEADLINE_EXCEEDED
        assert isinstance(echo.faults[0], AttributeError)
        await serves(client)


@pytest.mark.parametrize("path", [TASK, REPEAT])
async def test_a_call_that_is_reset_as_it_arrives_leaves_nothing_behind(path: str) -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        sent: list[bytes] = []
        write = client.writer.write
        client.writer.write = sent.append  # type: ignore[method-assign,assignment]  # all of it in one read
        for _ in range(3):
            client.reset(client.request(path, value(b"hold")))
        write(b"".join(sent))
        client.writer.write = write  # type: ignore[method-assign]
        await until(lambda: echo.server.counters.gone == 3)
        await serves(client)
        assert (echo.faults, len(echo.server.environment.tasks)) == ([], 0)

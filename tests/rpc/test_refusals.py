"""pixy/rpc/refusals.py: the answers to requests that begin no call."""

import asyncio

import pytest
from hpack import Encoder

from pixy.http2.frames import END_HEADERS, FrameType, frame
from pixy.rpc import GrpcOptions, Status
from tests.fakes.clock import FakeClock
from tests.fakes.echo import open_echo, value
from tests.fakes.grpc_client import open_client
from tests.serving.support import connected

UNARY = "/test.Echo/Unary"


@pytest.mark.parametrize(
    ("fields", "method", "status"),
    [
        ([("content-type", "text/html")], "POST", "415"),
        ([("content-type", "application/grpc-web")], "POST", "415"),
        ([], "GET", "405"),
    ],
)
async def test_a_request_other_than_grpc_gets_an_http_status(
    fields: list[tuple[str, str]], method: str, status: str
) -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        stream_id = client.begin(UNARY, fields, method=method)
        assert (await client.call(UNARY, value(b"x"))).status == 0
        assert client.answers[stream_id].headers == {}, "answered before the request is complete"
        client.data(stream_id, b"anything", end=True)
        answer = await client.answer(stream_id)
        assert (answer.headers[":status"], answer.headers["content-type"]) == (status, "text/plain")
        assert (answer.body.startswith(b"this is a gRPC server"), answer.trailers) == (True, {})
        assert echo.server.counters.rejected == 1


@pytest.mark.parametrize("path", ["/test.Echo/None", "/test.Echo/Unserved", "/none/Unary", "/"])
async def test_a_method_without_a_handler_is_unimplemented(path: str) -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        answer = await client.answer(client.begin(path))
        assert (answer.status, answer.headers[":status"]) == (Status.UNIMPLEMENTED, "200")


async def test_an_unknown_encoding_is_unimplemented_and_the_answer_names_the_known_ones() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        answer = await client.call(UNARY, value(b"x"), [("grpc-encoding", "br")])
        assert (answer.status, answer.headers["grpc-accept-encoding"]) == (12, "identity,gzip")


async def test_a_request_other_than_grpc_that_is_never_complete_is_answered_when_its_time_is_over() -> None:
    clock = FakeClock()
    async with open_echo(GrpcOptions(request_s=60), clock=clock) as echo:
        connection, transport = connected(echo)
        fields = [(":method", "POST"), (":scheme", "http"), (":path", UNARY), (":authority", "x")]
        block = Encoder().encode([*fields, ("content-type", "text/html"), ("te", "trailers")])
        connection.workload.received(frame(FrameType.HEADERS, END_HEADERS, 1, block))
        for seconds, answered in ((59, False), (1, True)):
            clock.advance(seconds)
            connection.link.tick(clock.monotonic())
            # The answer leaves in this iteration of the loop.
            await asyncio.sleep(0)
            assert (b"this is a gRPC server" in transport.written) is answered
        assert echo.server.counters.rejected == 1
        connection.link.connection_lost(None)


async def test_a_refused_request_that_is_reset_is_forgotten() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        client.reset(client.begin(UNARY, [("content-type", "text/html")]))
        assert (await client.call(UNARY, value(b"x"))).status == Status.OK
        (connection,) = echo.connections
        assert (connection.incomplete.since, echo.server.counters.rejected) == ({}, 0)

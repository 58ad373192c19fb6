"""Calls that wait for long keep nothing of the bytes of their requests: neither fields that the
server does not know, nor acks that were taken.
"""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import grpc
import pytest
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from pixy.backend import TopicPartition
from pixy.proto import pixy_log_pb2 as pb
from pixy.rpc import methods
from tests.fakes.server import FakeServer, serve_cluster
from tests.fakes.waiting import settle, until

UNKNOWN = b"\xaa\x06\x80\x40" + bytes(8192)
"""A field of 8 KiB that no message has: number 101."""


class Request:
    """A parsed request, with a weak reference to it, which messages have not."""

    def __init__(self, message: Any) -> None:
        self._message = message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


class Requests:
    """The requests that came.

    Attributes:
        parsed: their number.
        kept: those that something in the server refers to.
    """

    def __init__(self) -> None:
        self.parsed = 0
        self.kept = WeakSet[Request]()

    def parser(self, descriptor: Any) -> Any:
        """As `GetMessageClass`."""
        parse = message_factory.GetMessageClass(descriptor).FromString

        def parsed(body: bytes) -> Request:
            request = Request(parse(body))
            self.parsed += 1
            self.kept.add(request)
            return request

        return SimpleNamespace(FromString=parsed)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    requests = Requests()
    monkeypatch.setattr(methods, "GetMessageClass", requests.parser)
    return requests


@pytest.fixture
async def server(requests: Requests) -> AsyncIterator[FakeServer]:
    async with serve_cluster() as served:
        await served.backend.create_topic("t", 1)
        yield served


FETCH = pb.FetchRequest(
    ranges=[pb.FetchRange(topic="t", from_offset=1, to_offset=-1)] * 50, max_wait_ms=60_000
)
CONSUME = pb.ConsumeBatchRequest(
    topic="t",
    group="g",
    max_messages=1,
    acks=[pb.MessagePosition(partition=0, offset=0)] * 120,
    auto_ack=True,
)
WATCH = health_pb2.HealthCheckRequest(service="n" * 8000)
REFLECT = reflection_pb2.ServerReflectionRequest(file_by_filename="n" * 8000)
WAITING: dict[str, Any] = {
    "/pixy.log.v1.Log/Fetch": FETCH,
    "/pixy.log.v1.Log/ConsumeBatch": CONSUME,
    "/grpc.health.v1.Health/Watch": WATCH,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": REFLECT,
}


@pytest.mark.parametrize("method", WAITING)
async def test_a_call_that_waits_keeps_nothing_of_its_request(
    server: FakeServer, requests: Requests, method: str
) -> None:
    server.backend.log(TopicPartition("t", 0)).append(b"a")
    connection: Any = grpc.aio.insecure_channel(server.address)  # of bytes, which its types do not know
    async with connection as channel:
        first = pb.ConsumeBatchRequest(topic="t", group="g", max_messages=1, auto_ack=True)
        await channel.unary_unary("/pixy.log.v1.Log/ConsumeBatch")(first.SerializeToString())
        call = channel.stream_stream(method)()
        await call.write(WAITING[method].SerializeToString() + UNKNOWN)
        if "Reflection" not in method:
            await call.done_writing()
        await until(lambda: requests.parsed == 2)
        await until(lambda: not requests.kept)
        await settle()
        assert not call.done()
        call.cancel()

"""A service with a handler of each of the five kinds, called with grpc's own client."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.wrappers_pb2 import DESCRIPTOR as WRAPPERS
from google.protobuf.wrappers_pb2 import Int64Value

from pixy.rpc import Handler, Service, Status, StreamCall, UnaryCall
from pixy.rpc.status import GrpcError
from tests.fakes.echo import serve

METHODS = {
    "Negate": (False, False),
    "Double": (False, False),
    "Count": (False, True),
    "Sum": (True, False),
    "RunningSums": (True, True),
    "Forgotten": (False, False),
}


def described() -> Any:
    """`toy.Calculator`, as protoc would describe it."""
    file = FileDescriptorProto(name="toy.proto", package="toy", syntax="proto3", dependency=[WRAPPERS.name])
    service = file.service.add(name="Calculator")
    number = ".google.protobuf.Int64Value"
    for name, (client_streaming, server_streaming) in METHODS.items():
        service.method.add(
            name=name,
            input_type=number,
            output_type=number,
            client_streaming=client_streaming,
            server_streaming=server_streaming,
        )
    pool = DescriptorPool()
    pool.AddSerializedFile(WRAPPERS.serialized_pb)
    pool.Add(file)
    return pool.FindServiceByName("toy.Calculator")


class TooLargeError(Exception):
    """An error that the service raises on purpose."""


def negate(request: Int64Value, call: UnaryCall) -> None:
    """A plain function."""
    call.answer(Int64Value(value=-request.value))


async def double(request: Int64Value, call: UnaryCall) -> Int64Value:
    """A coroutine."""
    if request.value > 1_000:
        raise TooLargeError(f"{request.value} is more than 1000")
    return Int64Value(value=2 * request.value)


async def count(request: Int64Value, call: StreamCall) -> None:
    """A server stream."""
    for number in range(request.value):
        await call.send(Int64Value(value=number))


async def total(call: StreamCall) -> Int64Value:
    """A client stream."""
    return Int64Value(value=sum([request.value async for request in call]))


async def running_sums(call: StreamCall) -> None:
    """A bidirectional stream."""
    reached = 0
    async for request in call:
        reached += request.value
        await call.send(Int64Value(value=reached))


HANDLERS: dict[str, Handler] = {
    "Negate": negate,
    "Double": double,
    "Count": count,
    "Sum": total,
    "RunningSums": running_sums,
}


def translate(error: Exception) -> GrpcError | None:
    return GrpcError(Status.OUT_OF_RANGE, str(error)) if isinstance(error, TooLargeError) else None


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    faults: list[BaseException] = []
    service = Service(described(), HANDLERS, translate)
    server, address = await serve([service], faults)
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel
    await server.stop(0)
    assert faults == []


CODEC: dict[str, Any] = {
    "request_serializer": Int64Value.SerializeToString,
    "response_deserializer": Int64Value.FromString,
}


@pytest.mark.parametrize(("method", "answer"), [("Negate", -21), ("Double", 42)])
async def test_one_request_has_one_response(channel: grpc.aio.Channel, method: str, answer: int) -> None:
    call: Any = channel.unary_unary(f"/toy.Calculator/{method}", **CODEC)
    assert (await call(Int64Value(value=21))).value == answer


async def test_one_request_has_many_responses(channel: grpc.aio.Channel) -> None:
    call: Any = channel.unary_stream("/toy.Calculator/Count", **CODEC)
    assert [response.value async for response in call(Int64Value(value=3))] == [0, 1, 2]


async def test_many_requests_have_one_response(channel: grpc.aio.Channel) -> None:
    call: Any = channel.stream_unary("/toy.Calculator/Sum", **CODEC)
    assert (await call(iter([Int64Value(value=1), Int64Value(value=2)]))).value == 3


async def test_requests_and_responses_alternate(channel: grpc.aio.Channel) -> None:
    call: Any = channel.stream_stream("/toy.Calculator/RunningSums", **CODEC)
    numbers = [Int64Value(value=number) for number in (5, 6, 7)]
    assert [response.value async for response in call(iter(numbers))] == [5, 11, 18]


@pytest.mark.parametrize(
    ("method", "code", "details"),
    [
        ("Double", grpc.StatusCode.OUT_OF_RANGE, "5000 is more than 1000"),
        ("Forgotten", grpc.StatusCode.UNIMPLEMENTED, "unknown method /toy.Calculator/Forgotten"),
    ],
)
async def test_an_error_has_the_status_that_the_service_gives_it(
    channel: grpc.aio.Channel, method: str, code: grpc.StatusCode, details: str
) -> None:
    call: Any = channel.unary_unary(f"/toy.Calculator/{method}", **CODEC)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(Int64Value(value=5_000))
    assert (caught.value.code(), caught.value.details()) == (code, details)

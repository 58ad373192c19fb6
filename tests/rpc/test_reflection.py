"""pixy/rpc/reflection.py: descriptions of services, in both versions."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.wrappers_pb2 import BytesValue
from grpc_reflection.v1alpha import reflection_pb2 as pb

from pixy.rpc.health import HEALTH
from pixy.rpc.reflection import Reflection
from tests.fakes.echo import DESCRIPTOR, serve

Ask = Any


@pytest.fixture(params=["v1", "v1alpha"])
async def ask(request: pytest.FixtureRequest) -> AsyncIterator[Ask]:
    """Sends requests of one version and returns the answers."""
    faults: list[BaseException] = []
    services = Reflection([DESCRIPTOR, HEALTH]).services()
    server, address = await serve(services, faults)
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(
            f"/grpc.reflection.{request.param}.ServerReflection/ServerReflectionInfo",
            request_serializer=pb.ServerReflectionRequest.SerializeToString,
            response_deserializer=pb.ServerReflectionResponse.FromString,
        )

        async def ask(*requests: pb.ServerReflectionRequest) -> list[pb.ServerReflectionResponse]:
            return [answer async for answer in call(iter(requests))]

        yield ask
    await server.stop(0)
    assert faults == []


def files(answer: pb.ServerReflectionResponse) -> list[str]:
    serialized = answer.file_descriptor_response.file_descriptor_proto
    return [FileDescriptorProto.FromString(file).name for file in serialized]


async def test_services_are_listed_with_its_own(ask: Ask) -> None:
    (answer,) = await ask(pb.ServerReflectionRequest(list_services=""))
    assert [service.name for service in answer.list_services_response.service] == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "test.Echo",
    ]


@pytest.mark.parametrize("symbol", ["test.Echo", "test.Echo.Unary"])
async def test_a_symbol_brings_its_file_and_what_that_imports(ask: Ask, symbol: str) -> None:
    (answer,) = await ask(pb.ServerReflectionRequest(file_containing_symbol=symbol))
    assert files(answer) == ["test/echo.proto", "google/protobuf/wrappers.proto"]


@pytest.mark.parametrize(
    "symbol",
    [
        "google.protobuf.BytesValue.value",
        "grpc.health.v1.HealthCheckResponse.ServingStatus",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflectionRequest.message_request",
    ],
)
async def test_symbols_of_every_kind_are_found(ask: Ask, symbol: str) -> None:
    (answer,) = await ask(pb.ServerReflectionRequest(file_containing_symbol=symbol))
    assert files(answer)


async def test_files_are_found_by_name_and_requests_told_apart(ask: Ask) -> None:
    first = pb.ServerReflectionRequest(host="h", file_by_filename="test/echo.proto")
    second = pb.ServerReflectionRequest(file_by_filename="grpc/reflection/v1/reflection.proto")
    answers = await ask(first, second)
    assert [files(answer)[0] for answer in answers] == [
        "test/echo.proto",
        "grpc/reflection/v1/reflection.proto",
    ]
    assert (answers[0].valid_host, answers[0].original_request) == ("h", first)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (pb.ServerReflectionRequest(file_by_filename="none"), grpc.StatusCode.NOT_FOUND),
        (pb.ServerReflectionRequest(file_containing_symbol="none"), grpc.StatusCode.NOT_FOUND),
        (pb.ServerReflectionRequest(all_extension_numbers_of_type="none"), grpc.StatusCode.NOT_FOUND),
        (
            pb.ServerReflectionRequest(
                file_containing_extension=pb.ExtensionRequest(containing_type="a", extension_number=1)
            ),
            grpc.StatusCode.NOT_FOUND,
        ),
        (pb.ServerReflectionRequest(), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_an_unknown_name_is_an_error_inside_the_answer(
    ask: Ask, request_: pb.ServerReflectionRequest, code: grpc.StatusCode
) -> None:
    (answer,) = await ask(request_)
    assert answer.error_response.error_code == code.value[0]


async def test_a_message_without_extensions_has_no_numbers(ask: Ask) -> None:
    name = BytesValue.DESCRIPTOR.full_name
    (answer,) = await ask(pb.ServerReflectionRequest(all_extension_numbers_of_type=name))
    assert answer.all_extension_numbers_response.base_type_name == name
    assert list(answer.all_extension_numbers_response.extension_number) == []

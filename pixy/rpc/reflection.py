"""The service `ServerReflection` of grpc.reflection.v1 and v1alpha.

Clients discover services without .proto files. It knows the files of the given services and their
imports, and nothing else of the process. The two versions differ in the name of their package only.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, cast

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2 as pb

from pixy.rpc.methods import Service
from pixy.rpc.status import Status
from pixy.rpc.stream import StreamCall

# The published types of the package are incomplete.
_V1_ALPHA: ServiceDescriptor = cast(Any, pb.DESCRIPTOR).services_by_name["ServerReflection"]
_V1_FILE = "grpc/reflection/v1/reflection.proto"


class Reflection:
    """Descriptions of services, and of reflection itself.

    Args:
        services: all others of the server.
    """

    def __init__(self, services: Iterable[ServiceDescriptor]) -> None:
        self._versions = [_V1_ALPHA, _v1_service()]
        served = [*services, *self._versions]
        self._names = sorted(service.full_name for service in served)
        self._files: dict[str, FileDescriptor] = {}
        for service in served:
            self._add(service.file)
        # Files that define a symbol, or an extension by its extended message and number.
        self._symbols: dict[str, FileDescriptor] = {}
        self._extensions: dict[tuple[str, int], FileDescriptor] = {}
        for file in self._files.values():
            self._symbols.update(dict.fromkeys(_symbols(file), file))
            for extension in _extensions(file):
                extended = extension.containing_type
                assert extended is not None
                self._extensions[extended.full_name, extension.number] = file

    def services(self) -> list[Service]:
        """The service with its handler, in both versions."""
        return [
            Service(version, {"ServerReflectionInfo": self.info}, maxima={}) for version in self._versions
        ]

    async def info(self, call: StreamCall) -> None:
        """# reflection.proto: ServerReflectionInfo"""
        while (received := await call.receive()) is not None:
            # The classes of the two versions have the same fields, and not the same names.
            request = pb.ServerReflectionRequest.FromString(received.SerializeToString())
            answer = self._answer(request)
            answer.valid_host = request.host
            answer.original_request.CopyFrom(request)
            # The next one may never come.
            del received, request
            await call.send(answer)
            del answer

    def _answer(self, request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            listed = pb.ListServiceResponse(service=[pb.ServiceResponse(name=name) for name in self._names])
            return pb.ServerReflectionResponse(list_services_response=listed)
        if kind == "all_extension_numbers_of_type":
            return self._numbers_of(request.all_extension_numbers_of_type)
        if kind == "file_by_filename":
            return _file_answer(self._files.get(request.file_by_filename))
        if kind == "file_containing_symbol":
            return _file_answer(self._symbols.get(request.file_containing_symbol))
        if kind == "file_containing_extension":
            extension = request.file_containing_extension
            return _file_answer(self._extensions.get((extension.containing_type, extension.extension_number)))
        return _error(Status.INVALID_ARGUMENT, "the request has no message_request")

    def _numbers_of(self, message: str) -> pb.ServerReflectionResponse:
        if message not in self._symbols:
            return _not_found()
        numbers = sorted(number for extended, number in self._extensions if extended == message)
        answer = pb.ExtensionNumberResponse(base_type_name=message, extension_number=numbers)
        return pb.ServerReflectionResponse(all_extension_numbers_response=answer)

    def _add(self, file: FileDescriptor) -> None:
        if file.name not in self._files:
            self._files[file.name] = file
            for imported in file.dependencies:
                self._add(imported)


@cache
def _v1_service() -> ServiceDescriptor:
    """The service of v1, in a pool of its own: another library may add it to the default one."""
    alpha = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    text = text_format.MessageToString(alpha).replace("grpc.reflection.v1alpha", "grpc.reflection.v1")
    file = text_format.Parse(text, FileDescriptorProto())
    file.name = _V1_FILE
    pool = DescriptorPool()
    pool.Add(file)
    return pool.FindServiceByName("grpc.reflection.v1.ServerReflection")


def _symbols(file: FileDescriptor) -> Iterator[str]:
    for message in _messages(file.message_types_by_name.values()):
        yield message.full_name
        yield from (field.full_name for field in message.fields)
        yield from (nested.full_name for nested in message.enum_types)
        yield from (f"{message.full_name}.{oneof.name}" for oneof in message.oneofs)
    for service in file.services_by_name.values():
        yield service.full_name
        yield from (method.full_name for method in service.methods)
    yield from (enum.full_name for enum in file.enum_types_by_name.values())
    yield from (extension.full_name for extension in _extensions(file))


def _messages(messages: Iterable[Descriptor]) -> Iterator[Descriptor]:
    for message in messages:
        yield message
        yield from _messages(message.nested_types)


def _extensions(file: FileDescriptor) -> Iterator[FieldDescriptor]:
    yield from file.extensions_by_name.values()
    for message in _messages(file.message_types_by_name.values()):
        yield from message.extensions


def _file_answer(file: FileDescriptor | None) -> pb.ServerReflectionResponse:
    """The file and its imports, transitively."""
    if file is None:
        return _not_found()
    found: dict[str, bytes] = {}
    waiting = [file]
    while waiting:
        next_file = waiting.pop()
        if next_file.name not in found:
            found[next_file.name] = next_file.serialized_pb
            waiting += next_file.dependencies
    answer = pb.FileDescriptorResponse(file_descriptor_proto=found.values())
    return pb.ServerReflectionResponse(file_descriptor_response=answer)


def _not_found() -> pb.ServerReflectionResponse:
    return _error(Status.NOT_FOUND, "not found")


def _error(status: Status, message: str) -> pb.ServerReflectionResponse:
    error = pb.ErrorResponse(error_code=status, error_message=message)
    return pb.ServerReflectionResponse(error_response=error)

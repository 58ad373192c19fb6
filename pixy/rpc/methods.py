"""What can be called: services as their generated descriptors say, with a handler for each method.

A handler is one of three kinds, by the method and by what it is:

    unary, a plain function    takes the request and the call, answers now or later with `UnaryCall.answer` or `fail`. Returns what to
                               cancel if the caller goes away first, or None. Costs no task.
    unary, a coroutine         takes the request and the call, returns the answer.
    streaming, a coroutine     takes the call; receives and sends as it likes.

`Service.translate` decides what the client is told of an error that a handler raises. Any other exception is a bug: it is logged, and the
client is told INTERNAL, and under which id it is in the log.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from pixy.rpc.status import GrpcError

if TYPE_CHECKING:
    from pixy.rpc.call import UnaryCall
    from pixy.rpc.stream import StreamCall

__all__ = ["Cancellable", "Handler", "Method", "Service", "Translate", "method_table"]

Message = Any
"""A protobuf message of the class that the descriptor names."""


class Cancellable(Protocol):
    """Work that goes on after a handler has returned."""

    def cancel(self) -> object:
        """Nobody waits for it any more."""


UnaryFunction = Callable[[Message, "UnaryCall"], Cancellable | None]
UnaryCoroutine = Callable[[Message, "UnaryCall"], Awaitable[Message]]
StreamHandler = Callable[["StreamCall"], Awaitable[None]]
Handler = Callable[..., Any]
"""One of the three."""
Translate = Callable[[Exception], GrpcError | None]
"""The status of an error that a handler raised on purpose; None for any other exception, which is a bug."""
Parse = Callable[[Any], Any]
"""Takes bytes or bytearray; raises `DecodeError`."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service and what serves it.

    Attributes:
        descriptor: of the service, as protoc generates it.
        handlers: by the method's name; a method without one is answered UNIMPLEMENTED.
        translate: the status of an error other than `GrpcError`.
        parsers: by the method's name; what makes of the bytes of a request what its handler takes, if that is not the message.
    """

    descriptor: ServiceDescriptor
    handlers: Mapping[str, Handler]
    translate: Translate = lambda _: None
    parsers: Mapping[str, Parse] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Method:
    """A method that can be called. `unary`, `coroutine` or `stream` is set, as its handler is.

    Attributes:
        name: as in its path, without the slash in front.
        parse: makes of the bytes of a request what the handler takes: the message, if the service does not say otherwise.
        client_streams, server_streams: how many messages the request and the answer have: any number, or one.
    """

    name: str
    parse: Parse
    client_streams: bool
    server_streams: bool
    translate: Translate
    unary: UnaryFunction | None = None
    coroutine: UnaryCoroutine | None = None
    stream: StreamHandler | None = None


def method_table(services: Iterable[Service]) -> dict[bytes, Method]:
    """All methods by their path."""
    table: dict[bytes, Method] = {}
    for service in services:
        methods = service.descriptor.methods_by_name
        unknown = service.handlers.keys() - methods.keys()
        assert not unknown, f"{service.descriptor.full_name} has no methods {unknown}"
        for name, handler in service.handlers.items():
            method = _method(methods[name], handler, service)
            table[b"/" + method.name.encode()] = method
    return table


def _method(descriptor: MethodDescriptor, handler: Any, service: Service) -> Method:
    streams = descriptor.client_streaming or descriptor.server_streaming
    kind = "stream" if streams else "coroutine" if iscoroutinefunction(handler) else "unary"
    assert not streams or iscoroutinefunction(handler), (
        f"{descriptor.full_name} streams and needs a coroutine"
    )
    return Method(
        f"{service.descriptor.full_name}/{descriptor.name}",
        service.parsers.get(descriptor.name) or GetMessageClass(descriptor.input_type).FromString,
        descriptor.client_streaming,
        descriptor.server_streaming,
        service.translate,
        **{kind: handler},
    )

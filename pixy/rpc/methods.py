"""Services that a server has: descriptors as protoc generates them, and a handler for each method.

    method                     handler           takes            answers
    unary                      plain function    request, call    with `UnaryCall.answer` or `fail`
    unary                      coroutine         request, call    returns the response
    server streaming           coroutine         request, call    with `StreamCall.send`
    client streaming           coroutine         call             returns the response
    bidirectional streaming    coroutine         call             with `StreamCall.send`

A plain function costs no task: it answers at once or later, and returns the work to cancel if the
client goes away first, or None. Streamed requests are read with `async for request in call`.

A handler lets go of its request before it waits for long: the message keeps all bytes that came,
fields that the server does not know among them. What waits for other calls is counted
(`CallEnvironment.parsed_semaphores`).

`Service.translate` maps the errors that handlers raise on purpose to statuses. Any other exception
is a bug: the client gets INTERNAL with the id under which the log has the traceback.
"""

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from pixy.metrics import TIME_BOUNDS, Histogram
from pixy.rpc.field_limits import FieldLimits
from pixy.rpc.status import GrpcError

if TYPE_CHECKING:
    from pixy.rpc.call import UnaryCall

Message = Any
"""A protobuf message of the class that the descriptor names."""


class Cancellable(Protocol):
    """Work of a call that outlives its handler."""

    def cancel(self) -> object:
        """End the work: its call is over."""


UnaryFunction = Callable[[Message, "UnaryCall"], Cancellable | None]
UnaryCoroutine = Callable[[Message, "UnaryCall"], Awaitable[Message]]
StreamHandler = Callable[..., Awaitable[Any]]
"""Any of the three that stream."""
Handler = Callable[..., Any]
"""Any of the five."""
Translate = Callable[[Exception], GrpcError | None]
"""The status of an error that a handler raised on purpose, None for a bug."""
Parse = Callable[[Any], Any]
"""The request in bytes or a bytearray; raises `DecodeError`."""
Check = Callable[[bytes | bytearray], int]
"""Of the bytes of a request before they are parsed: its memory once it is parsed; raises
`GrpcError`.
"""
Maxima = Mapping[str, Mapping[str, int]]
"""Largest number of elements, by method and repeated field of its request; a method without a row
has no repeated field.
"""
LargeFields = Mapping[str, Collection[str]]
"""Fields without a maximum of their own in bytes, by method, as paths in its request."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service and its handlers.

    Attributes:
        descriptor: of the service, as protoc generates it.
        handlers: by method name; a method without one is answered UNIMPLEMENTED.
        translate: the status of an error other than `GrpcError`.
        parsers: by method name; a parser replaces the message class of the request.
        maxima: of the repeated fields of all requests; None for no limits.
        large: fields of requests that may be large, if there are limits.
        weighed: methods with a plain function, whose larger requests wait for memory as those of
            coroutines do, and which call `UnaryCall.request_memory`.
    """

    descriptor: ServiceDescriptor
    handlers: Mapping[str, Handler]
    translate: Translate = lambda _: None
    parsers: Mapping[str, Parse] = field(default_factory=dict)
    maxima: Maxima | None = None
    large: LargeFields = field(default_factory=dict)
    weighed: Collection[str] = ()


class MethodCounts:
    """Ends of the calls of a method.

    Attributes:
        durations: from arrival to answer, of unary calls with status OK. Of calls that are answered
            together one is timed, and stands for all.
        ended: all other calls by status; CANCELLED of clients that have gone.
    """

    __slots__ = ("durations", "ended")

    def __init__(self) -> None:
        self.durations = Histogram(TIME_BOUNDS)
        self.ended: Counter[int] = Counter()


def count_together(answered: Sequence[MethodCounts], duration_s: float) -> None:
    """Count calls that were answered together.

    Args:
        answered: counts of the method of each, mostly the same.
        duration_s: stands for all.
    """
    first, times = answered[0], len(answered)
    if answered.count(first) == times:
        first.durations.observe(duration_s, times)
    else:
        for counts in answered:
            counts.durations.observe(duration_s)


@dataclass(frozen=True, slots=True)
class Method:
    """A method with its handler: exactly one of `unary`, `coroutine` and `stream` is set.

    Attributes:
        name: as in the path, without the leading slash.
        parse: the request as the handler takes it, from its bytes.
        check: of the fields of a request; needless if it has less than `checked_bytes_min`, and
            then its memory is small, and no server refuses its size.
        is_weighed: requests that are not small wait until there is memory for them parsed.
        client_streams, server_streams: any number of requests or responses, rather than one.
        counts: of its calls.
    """

    name: str
    parse: Parse
    check: Check
    checked_bytes_min: int
    client_streams: bool
    server_streams: bool
    translate: Translate
    is_weighed: bool = False
    unary: UnaryFunction | None = None
    coroutine: UnaryCoroutine | None = None
    stream: StreamHandler | None = None
    counts: MethodCounts = field(default_factory=MethodCounts)


def method_table(services: Iterable[Service]) -> dict[bytes, Method]:
    """All methods by path."""
    table: dict[bytes, Method] = {}
    for service in services:
        methods = service.descriptor.methods_by_name
        unknown = service.handlers.keys() - methods.keys()
        assert not unknown, f"{service.descriptor.full_name} has no methods {unknown}"
        strange = {*(service.maxima or ()), *service.large}.difference(methods.keys())
        assert not strange, f"{service.descriptor.full_name} has maxima of unknown methods {strange}"
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
    is_weighed = kind == "coroutine" or descriptor.name in service.weighed
    return Method(
        f"{service.descriptor.full_name}/{descriptor.name}",
        service.parsers.get(descriptor.name) or GetMessageClass(descriptor.input_type).FromString,
        *_check(descriptor, service, is_weighed=is_weighed),
        descriptor.client_streaming,
        descriptor.server_streaming,
        service.translate,
        is_weighed,
        **{kind: handler},
    )


def _check(descriptor: MethodDescriptor, service: Service, *, is_weighed: bool) -> tuple[Check, int]:
    """The check of a method's requests, and the size from which it is needed."""
    if service.maxima is None:
        return lambda _: 0, sys.maxsize
    maxima, large = service.maxima.get(descriptor.name, {}), service.large.get(descriptor.name, ())
    limits = FieldLimits(descriptor.input_type, maxima, large)
    return limits.check, min(limits.bytes_min, limits.weighed_bytes_min) if is_weighed else limits.bytes_min

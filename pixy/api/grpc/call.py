"""From a method of a service to a handler of gRPC: the status of an error, and what becomes of a bug.

A method takes the request's message and returns the answer's, or raises; it sees nothing of gRPC. What does need to, because it
streams, is wrapped by `answering` itself.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from pixy.errors import Internal, PixyError, UnknownCluster
from pixy.proxy import Proxy

__all__ = ["Method", "answering", "proxy_of", "serialize", "unary_handler"]

Method = Callable[[Any], Awaitable[Any]]
"""Request to answer, both protobuf messages."""

_STATUS = {code.value[0]: code for code in grpc.StatusCode}

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]


def unary_handler(method: Method, request: Any, on_fault: Callable[[BaseException], None]) -> "Handler":
    """A handler of unary calls.

    Args:
        method: what serves the call.
        request: the class of its request.
        on_fault: as in `answering`.
    """
    handle = answering(lambda message, _: method(message), on_fault)
    return grpc.unary_unary_rpc_method_handler(handle, request.FromString, serialize)


def answering(
    serve: "Callable[[Any, Context], Awaitable[Any]]", on_fault: Callable[[BaseException], None]
) -> "Callable[[Any, Context], Awaitable[Any]]":
    """What serves a call, ending it with the status of the error that comes of it.

    Args:
        serve: takes the request's message and gRPC's context.
        on_fault: called with an exception that is a bug; the caller is answered INTERNAL.
    """

    async def handle(message: Any, context: "Context") -> Any:
        refused: PixyError
        try:
            return await serve(message, context)
        except PixyError as error:
            refused = error
        except Exception as bug:
            on_fault(bug)
            refused = Internal("internal error; the daemon's log has the details")
        await context.abort(_STATUS[refused.grpc_status], str(refused))
        raise AssertionError("abort raises")

    return handle


def proxy_of(proxies: Mapping[str, Proxy], cluster: str) -> Proxy:
    """The proxy of the cluster that a request names.

    Raises:
        UnknownCluster: none is configured under that name.
    """
    proxy = proxies.get(cluster)
    if proxy is None:
        raise UnknownCluster(f"proxy `{cluster}` does not exist")
    return proxy


def serialize(message: Any) -> bytes:
    """The bytes of a protobuf message."""
    serialized: bytes = message.SerializeToString()
    return serialized

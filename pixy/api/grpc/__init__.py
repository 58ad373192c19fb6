"""The gRPC door: a server on pixy's HTTP/2 core for any service, and the services that a daemon has."""

from pixy.api.grpc.call import Receipt, UnaryCall
from pixy.api.grpc.counters import ConnectionCounters, Counters
from pixy.api.grpc.door import GrpcServer
from pixy.api.grpc.environment import ServerOptions
from pixy.api.grpc.methods import Handler, Service
from pixy.api.grpc.server import RpcServer
from pixy.api.grpc.status import GrpcError, Status
from pixy.api.grpc.stream import StreamCall

__all__ = [
    "ConnectionCounters",
    "Counters",
    "GrpcError",
    "GrpcServer",
    "Handler",
    "Receipt",
    "RpcServer",
    "ServerOptions",
    "Service",
    "Status",
    "StreamCall",
    "UnaryCall",
]

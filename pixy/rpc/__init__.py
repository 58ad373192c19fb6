"""A gRPC server on pixy's HTTP/2 core for any service that has a descriptor.

It knows no service of pixy: health and reflection are the two that describe others.
"""

from pixy.rpc.call import UnaryCall, answer_all
from pixy.rpc.call_environment import GrpcOptions
from pixy.rpc.factory import GrpcFactory
from pixy.rpc.health import HEALTH, Health
from pixy.rpc.interception import CallHead, Interceptor
from pixy.rpc.joined import AnswerParts, JoinedMessage, join_in_steps
from pixy.rpc.messages import pack_message, pack_prefix
from pixy.rpc.methods import Cancellable, Handler, LargeFields, Maxima, Method, Service
from pixy.rpc.reflection import Reflection
from pixy.rpc.status import GrpcError, Status
from pixy.rpc.stream import StreamCall

__all__ = [
    "HEALTH",
    "AnswerParts",
    "CallHead",
    "Cancellable",
    "GrpcError",
    "GrpcFactory",
    "GrpcOptions",
    "Handler",
    "Health",
    "Interceptor",
    "JoinedMessage",
    "LargeFields",
    "Maxima",
    "Method",
    "Reflection",
    "Service",
    "Status",
    "StreamCall",
    "UnaryCall",
    "answer_all",
    "join_in_steps",
    "pack_message",
    "pack_prefix",
]

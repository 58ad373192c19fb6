"""Connections of clients, whatever they speak: listeners, transports, and fair shares of one event
loop, one memory and one number of connections.

What a connection runs is a `ConnectionProtocol`. This package knows none: no HTTP, no gRPC, no
Kafka, no service of pixy.
"""

from pixy.serving.choice import ChoosableFactory, ProtocolChoice
from pixy.serving.environment import Environment, ServerOptions
from pixy.serving.limit_log import LimitLog
from pixy.serving.link import Link, ProtocolFactory
from pixy.serving.open_calls import Excess
from pixy.serving.protocol import End, RequestCounts
from pixy.serving.receipts import Receipt, Receipts
from pixy.serving.server import Server
from pixy.serving.steps import Steps
from pixy.serving.workload import Workload

__all__ = [
    "ChoosableFactory",
    "End",
    "Environment",
    "Excess",
    "LimitLog",
    "Link",
    "ProtocolChoice",
    "ProtocolFactory",
    "Receipt",
    "Receipts",
    "RequestCounts",
    "Server",
    "ServerOptions",
    "Steps",
    "Workload",
]

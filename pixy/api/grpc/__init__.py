"""pixy's gRPC services, one file each, and the class that serves all of them."""

from pixy.api.grpc.maxima import LARGE_FIELDS, REPEATED_MAX
from pixy.api.grpc.options import server_options
from pixy.api.grpc.server import GrpcServer

__all__ = ["LARGE_FIELDS", "REPEATED_MAX", "GrpcServer", "server_options"]

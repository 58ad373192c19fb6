"""pixy's gRPC services, one file each, and the class that serves all of them."""

from pixy.api.grpc.options import server_options
from pixy.api.grpc.server import GrpcServer

__all__ = ["GrpcServer", "server_options"]

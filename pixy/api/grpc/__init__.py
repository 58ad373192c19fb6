"""pixy's gRPC services, one file each, and the server that has all of them."""

from pixy.api.grpc.maxima import REPEATED_MAX
from pixy.api.grpc.server import GrpcServer

__all__ = ["REPEATED_MAX", "GrpcServer"]

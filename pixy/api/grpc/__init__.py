"""The gRPC door: the kafkapixy service, health checking and reflection."""

from pixy.api.grpc.server import GrpcServer

__all__ = ["GrpcServer"]

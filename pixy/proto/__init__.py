"""Generated protobuf and gRPC stubs (`make proto`), for pixy itself and for Python clients of its API."""

from pixy.proto import (
    kafkapixy_pb2,
    kafkapixy_pb2_grpc,
    pixy_log_pb2,
    pixy_log_pb2_grpc,
    pixy_topics_pb2,
    pixy_topics_pb2_grpc,
    state_pb2,
)

__all__ = [
    "kafkapixy_pb2",
    "kafkapixy_pb2_grpc",
    "pixy_log_pb2",
    "pixy_log_pb2_grpc",
    "pixy_topics_pb2",
    "pixy_topics_pb2_grpc",
    "state_pb2",
]

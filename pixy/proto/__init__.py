"""Generated protobuf and gRPC stubs (`make proto`), for pixy itself and for Python clients of its API.

Import the module that is needed, as in `from pixy.proto import kafkapixy_pb2`. The package imports none of them itself: the Raft core
and its users do without grpcio.
"""

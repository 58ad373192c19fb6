"""Generated protobuf and gRPC stubs (`make proto`), for pixy and for Python clients of its API.

Import a module by name, as in `from pixy.proto import kafkapixy_pb2`. The package itself imports
none of them: the Raft core and its users do not need grpcio.
"""

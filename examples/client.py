"""A client in Python: produce a message, consume it, acknowledge it.

    python examples/client.py [ADDRESS]

Any gRPC client of kafkapixy.proto works the same; this one uses the stubs that come with pixy.
"""

import sys

import grpc

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

with grpc.insecure_channel(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:19091") as channel:
    pixy = KafkaPixyStub(channel)
    pixy.Produce(pb.ProdRq(topic="greetings", key_undefined=True, message=b"hello from Python"))
    got = pixy.ConsumeNAck(pb.ConsNAckRq(topic="greetings", group="python", no_ack=True))
    pixy.Ack(pb.AckRq(topic="greetings", group="python", partition=got.partition, offset=got.offset))
    print(got.partition, got.offset, got.message.decode())

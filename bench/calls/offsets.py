"""Offsets of the measured topics, which verify the counts of h2load: it sees no gRPC status."""

import time

import grpc

from bench.calls.local import FILLED_TOPIC
from bench.kit.processes import Server
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

CALL_SECONDS_MAX = 30.0
GROUP = "bench"


def end_of(daemon: Server, topic: str) -> int:
    """Messages that a topic had ever."""
    return sum(entry.end for entry in _offsets(daemon, topic))


def rewind(daemon: Server) -> None:
    """Let the group consume the filled topic from its begin on."""
    with grpc.insecure_channel(daemon.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        entries = [
            pb.PartitionOffset(partition=e.partition, offset=-2) for e in _offsets(daemon, FILLED_TOPIC)
        ]
        request = pb.SetOffsetsRq(topic=FILLED_TOPIC, group=GROUP, offsets=entries)
        KafkaPixyStub(channel).SetOffsets(request, timeout=CALL_SECONDS_MAX)


def await_commit(daemon: Server, consumed: int) -> None:
    """Wait until the group has committed as many messages as were answered; more must be left."""
    until = time.monotonic() + CALL_SECONDS_MAX
    while True:
        entries = _offsets(daemon, FILLED_TOPIC)
        if sum(entry.offset for entry in entries) >= consumed:
            break
        if time.monotonic() > until:
            raise RuntimeError(
                f"{consumed} polls were answered, but not so many messages are acked: {entries}"
            )
    if not any(entry.lag for entry in entries):
        raise RuntimeError("the topic ran dry: fill in more")


def _offsets(daemon: Server, topic: str) -> list[pb.PartitionOffset]:
    with grpc.insecure_channel(daemon.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        request = pb.GetOffsetsRq(topic=topic, group=GROUP)
        return list(KafkaPixyStub(channel).GetOffsets(request, timeout=CALL_SECONDS_MAX).offsets)

"""Loads on the service `Log` of a running daemon, by grpcio's client in a process of its own.

    python -m bench.log.loads append ADDRESS JSON   whole batches, several requests in flight
    python -m bench.log.loads fetch ADDRESS JSON    all partitions, one stream after the other

Prints one JSON object: bytes of batches, seconds.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import cycle
from typing import Any

import grpc

from pixy.proto import pixy_log_pb2 as pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from pixy.records import NewRecord, build_batch

TOPIC = "bulk"
_KEY_BYTES, _VALUE_BYTES = 8, 100
_BATCHES = 16
"""Number of distinct batches, which are sent repeatedly."""
_OPTIONS = [("grpc.max_receive_message_length", -1)]


def append(
    channel: grpc.Channel,
    *,
    partitions: int,
    batch_bytes: int,
    request_bytes: int,
    total_bytes: int,
    in_flight: int,
) -> dict[str, Any]:
    """Append `total_bytes` of batches to a new topic."""
    TopicsStub(channel).CreateTopic(topics_pb.CreateTopicRequest(topic=TOPIC, partitions=partitions))
    return fill(
        channel,
        partitions=partitions,
        batch_bytes=batch_bytes,
        request_bytes=request_bytes,
        total_bytes=total_bytes,
        in_flight=in_flight,
    )


def fill(
    channel: grpc.Channel,
    *,
    topic: str = TOPIC,
    partitions: int,
    batch_bytes: int,
    request_bytes: int,
    total_bytes: int,
    in_flight: int,
) -> dict[str, Any]:
    """Append `total_bytes` of batches to the partitions of a topic in turn."""
    stub = LogStub(channel)
    batches = [_batch(batch_bytes) for _ in range(_BATCHES)]
    per_request = max(1, request_bytes // len(batches[0]))
    requests = []
    for first in range(_BATCHES):
        chosen = [batches[(first + at) % _BATCHES] for at in range(per_request)]
        requests.append(pb.PartitionBatches(topic=topic, batches=b"".join(chosen)))
    under_way: deque[Any] = deque()
    sent = 0
    started = time.perf_counter()
    for request, partition in zip(cycle(requests), cycle(range(partitions)), strict=False):
        if sent >= total_bytes:
            break
        if len(under_way) >= in_flight:
            _check(under_way.popleft().result())
        request.partition = partition
        under_way.append(stub.Append.future(pb.AppendRequest(partitions=[request])))
        sent += len(request.batches)
    while under_way:
        _check(under_way.popleft().result())
    return {"bytes": sent, "seconds": time.perf_counter() - started}


def fetch(channel: grpc.Channel, *, partitions: int, max_bytes: int, decode: bool) -> dict[str, Any]:
    """Fetch everything. Without `decode` the client does not parse the responses."""
    fetching: Any = LogStub(channel).Fetch
    if not decode:
        fetching = channel.unary_stream(
            "/pixy.log.v1.Log/Fetch", request_serializer=pb.FetchRequest.SerializeToString
        )
    size = 0
    started = time.perf_counter()
    for partition in range(partitions):
        ranges = [pb.FetchRange(topic=TOPIC, partition=partition, to_offset=-1)]
        for answer in fetching(pb.FetchRequest(ranges=ranges, max_bytes=max_bytes)):
            size += len(answer.batches) if decode else len(answer)
    return {"bytes": size, "seconds": time.perf_counter() - started}


def _batch(size: int) -> bytes:
    # Current timestamps, because retention deletes old records.
    now_ms = time.time_ns() // 1_000_000
    records = []
    for number in range(size // (_KEY_BYTES + _VALUE_BYTES + 8)):
        records.append(NewRecord(number.to_bytes(_KEY_BYTES, "big"), os.urandom(_VALUE_BYTES), (), now_ms))
    return bytes(build_batch(records))


def _check(answer: pb.AppendResponse) -> None:
    for result in answer.results:
        if result.code:
            raise SystemExit(result.message)


_LOADS: dict[str, Callable[..., dict[str, Any]]] = {"append": append, "fetch": fetch}

if __name__ == "__main__":
    what, address, arguments = sys.argv[1:]
    with grpc.insecure_channel(address, options=_OPTIONS) as opened:
        print(json.dumps(_LOADS[what](opened, **json.loads(arguments))))

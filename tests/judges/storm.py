"""A storm of calls from its own process: `python -m tests.judges.storm ADDRESS SECONDS SEED`.

Calls every method of every service concurrently on several connections, each call with a deadline
of 1 to 50 ms, and cancels every third one before that. Requests are chosen to share topics, groups
and sinks. At the end it prints as JSON how often each method was called, and the outcomes of the
calls.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_cluster_pb2 as cluster_pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from tests.fakes.batches import batch_of
from tests.integration.daemon import CHANNEL_OPTIONS

CONNECTIONS, CALLERS = 4, 5
DEADLINE_S_MIN, DEADLINE_S_MAX = 0.001, 0.050
CANCELLED = 1 / 3
TOPICS = [f"storm-{number}" for number in range(4)]
GROUPS = [f"group-{number}" for number in range(3)]
SINKS = [f"sink-{number}" for number in range(3)]
STAGES = [f"stage-{number}" for number in range(5)]
PARTITIONS = 4
BATCH = batch_of(*[bytes(1000)] * 8)
LARGE_BATCH = batch_of(*[bytes(1000)] * 60)

_SERVICES: list[ServiceDescriptor] = [
    pb.DESCRIPTOR.services_by_name["KafkaPixy"],
    log_pb.DESCRIPTOR.services_by_name["Log"],
    topics_pb.DESCRIPTOR.services_by_name["Topics"],
    cluster_pb.DESCRIPTOR.services_by_name["Cluster"],
    # The published types of these packages are incomplete.
    cast(Any, health_pb2.DESCRIPTOR).services_by_name["Health"],
    cast(Any, reflection_pb2.DESCRIPTOR).services_by_name["ServerReflection"],
]
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method for service in _SERVICES for method in service.methods
}
"""All methods to call, by path."""

Make = Callable[[random.Random], Any]


def _partition_batches(rng: random.Random) -> log_pb.PartitionBatches:
    batch = LARGE_BATCH if rng.random() < 0.3 else BATCH
    return log_pb.PartitionBatches(
        topic=rng.choice(TOPICS), partition=rng.randrange(PARTITIONS), batches=batch
    )


def _query(rng: random.Random) -> log_pb.OffsetQuery:
    at: Any = rng.choice([{"earliest": True}, {"latest": True}, {"timestamp_ms": 1500}])
    return log_pb.OffsetQuery(topic=rng.choice(TOPICS), partition=rng.randrange(PARTITIONS), **at)


def _fetch(rng: random.Random) -> log_pb.FetchRequest:
    ranges = [
        log_pb.FetchRange(
            topic=rng.choice(TOPICS), partition=rng.randrange(PARTITIONS), from_offset=0, to_offset=-1
        )
        for _ in range(2)
    ]
    return log_pb.FetchRequest(ranges=ranges, max_wait_ms=rng.choice([0, 1000]))


def _stage(rng: random.Random) -> log_pb.StageRequest:
    request = log_pb.StageRequest(
        sink_id=rng.choice(SINKS), stage_id=rng.choice(STAGES), partitions=[_partition_batches(rng)]
    )
    if rng.random() < 0.5:
        request.seal.CopyFrom(log_pb.Seal(pieces=1, crc=rng.randrange(2**32)))
    return request


def _delete_records(rng: random.Random) -> topics_pb.DeleteRecordsRequest:
    removed = topics_pb.RecordsToDelete(partition=rng.randrange(PARTITIONS), before_offset=rng.randrange(100))
    return topics_pb.DeleteRecordsRequest(topic=rng.choice(TOPICS), partitions=[removed])


def _publish(rng: random.Random) -> log_pb.PublishRequest:
    return log_pb.PublishRequest(
        sink_id=rng.choice(SINKS),
        epoch=rng.randrange(1000),
        query_id="q",
        stage_ids=rng.sample(STAGES, rng.randrange(2)),
    )


def _consume(rng: random.Random) -> pb.ConsNAckRq:
    request = pb.ConsNAckRq(topic=rng.choice(TOPICS), group=rng.choice(GROUPS))
    match rng.randrange(3):
        case 0:
            request.no_ack = True
        case 1:
            request.auto_ack = True
        case _:
            request.ack_partition, request.ack_offset = rng.randrange(PARTITIONS), rng.randrange(100)
    return request


def _ack(rng: random.Random) -> pb.AckRq:
    return pb.AckRq(
        topic=rng.choice(TOPICS),
        group=rng.choice(GROUPS),
        partition=rng.randrange(PARTITIONS),
        offset=rng.randrange(100),
    )


_MAKES: Mapping[str, Make] = {
    "Produce": lambda rng: pb.ProdRq(
        topic=rng.choice(TOPICS), key_undefined=True, message=bytes(rng.choice([10, 1000, 20_000]))
    ),
    "ConsumeNAck": _consume,
    "ConsumeBatch": lambda rng: log_pb.ConsumeBatchRequest(
        topic=rng.choice(TOPICS), group=rng.choice(GROUPS), max_messages=rng.choice([1, 100])
    ),
    "Ack": _ack,
    "GetOffsets": lambda rng: pb.GetOffsetsRq(topic=rng.choice(TOPICS), group=rng.choice(GROUPS)),
    "SetOffsets": lambda rng: pb.SetOffsetsRq(
        topic=rng.choice(TOPICS),
        group=rng.choice(GROUPS),
        offsets=[pb.PartitionOffset(partition=rng.randrange(PARTITIONS), offset=rng.choice([-1, -2, 0]))],
    ),
    "ListTopics": lambda rng: pb.ListTopicRq(with_partitions=rng.random() < 0.5),
    "ListConsumers": lambda rng: pb.ListConsumersRq(topic=rng.choice(TOPICS)),
    "ListGroups": lambda rng: topics_pb.ListGroupsRequest(),
    "DeleteGroup": lambda rng: topics_pb.DeleteGroupRequest(
        group=rng.choice(GROUPS), topic=rng.choice(TOPICS)
    ),
    "GetTopicMetadata": lambda rng: pb.GetTopicMetadataRq(topic=rng.choice(TOPICS), with_partitions=True),
    "DescribeTopics": lambda rng: log_pb.DescribeTopicsRequest(
        topics=[rng.choice(TOPICS)], create_missing=rng.random() < 0.5
    ),
    "ListOffsets": lambda rng: log_pb.ListOffsetsRequest(queries=[_query(rng)]),
    "Fetch": _fetch,
    "Append": lambda rng: log_pb.AppendRequest(partitions=[_partition_batches(rng)]),
    "Stage": _stage,
    "Publish": _publish,
    "Discard": lambda rng: log_pb.DiscardRequest(sink_id=rng.choice(SINKS), stage_ids=[rng.choice(STAGES)]),
    "CreateTopic": lambda rng: topics_pb.CreateTopicRequest(topic=rng.choice(TOPICS), partitions=PARTITIONS),
    "AlterTopic": lambda rng: topics_pb.AlterTopicRequest(
        topic=rng.choice(TOPICS), set={"retention.bytes": str(rng.randrange(1 << 20, 1 << 24))}
    ),
    "DeleteTopic": lambda rng: topics_pb.DeleteTopicRequest(topic=TOPICS[0], force=True),
    "DeleteRecords": _delete_records,
    "DescribeTopic": lambda rng: topics_pb.DescribeTopicRequest(topic=rng.choice(TOPICS)),
    "Status": lambda rng: cluster_pb.StatusRequest(),
    "RemoveNode": lambda rng: cluster_pb.RemoveNodeRequest(node_id=rng.randrange(3)),
    "ForgetNode": lambda rng: cluster_pb.ForgetNodeRequest(node_id=rng.randrange(3)),
    "DrainNode": lambda rng: cluster_pb.DrainNodeRequest(
        node_id=rng.randrange(3), draining=rng.random() < 0.5
    ),
    "PlanMoves": lambda rng: cluster_pb.PlanMovesRequest(rebalance=True),
    "BeginMoves": lambda rng: cluster_pb.BeginMovesRequest(tokens=[rng.randbytes(10)]),
    "ExportState": lambda rng: cluster_pb.ExportStateRequest(),
    "Check": lambda rng: health_pb2.HealthCheckRequest(),
    "Watch": lambda rng: health_pb2.HealthCheckRequest(service="KafkaPixy"),
    "ServerReflectionInfo": lambda rng: reflection_pb2.ServerReflectionRequest(list_services=""),
}
_OFTEN = {
    "Append": 8,
    "Produce": 4,
    "ConsumeNAck": 4,
    "Fetch": 3,
    "DeleteTopic": 0.1,
}
"""Weights of methods that are called more often than others."""


class Storm:
    """The calls of one process.

    Args:
        address: address of the daemon.
        seed: seed of all random choices.
    """

    def __init__(self, address: str, seed: int) -> None:
        self._address = address
        self._rng = random.Random(seed)
        self._paths = list(METHODS)
        self._weights = [_OFTEN.get(method.name, 1) for method in METHODS.values()]
        self.calls: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Call for that many seconds."""
        until = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(self._connection(until))

    async def _connection(self, until: float) -> None:
        async with grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS) as channel:
            calls = {path: _multi_callable(channel, path) for path in self._paths}
            async with asyncio.TaskGroup() as group:
                for _ in range(CALLERS):
                    group.create_task(self._caller(calls, until))

    async def _caller(self, calls: Mapping[str, Any], until: float) -> None:
        loop, rng = asyncio.get_running_loop(), self._rng
        while loop.time() < until:
            (path,) = rng.choices(self._paths, self._weights)
            method = METHODS[path]
            request = _MAKES[method.name](rng)
            timeout_s = rng.uniform(DEADLINE_S_MIN, DEADLINE_S_MAX)
            call = calls[path](_stream(request) if method.client_streaming else request, timeout=timeout_s)
            if rng.random() < CANCELLED:
                loop.call_later(rng.uniform(0, timeout_s), call.cancel)
            self.calls[method.name] += 1
            self.ends[await _end_of(call, method)] += 1


async def _stream(request: Any) -> AsyncIterator[Any]:
    while True:
        yield request
        await asyncio.sleep(0.002)


def _multi_callable(channel: grpc.aio.Channel, path: str) -> Any:
    method = METHODS[path]
    ways = {False: "unary", True: "stream"}
    make = getattr(channel, f"{ways[method.client_streaming]}_{ways[method.server_streaming]}")
    return make(path, request_serializer=lambda message: message.SerializeToString())


async def _end_of(call: Any, method: MethodDescriptor) -> str:
    try:
        if method.server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return "CANCELLED"
    return "OK"


def main() -> None:
    """See the module's docstring."""
    address, seconds, seed = sys.argv[1:]
    storm = Storm(address, int(seed))
    asyncio.run(storm.run(float(seconds)))
    print(json.dumps({"calls": storm.calls, "ends": storm.ends}))


if __name__ == "__main__":
    main()

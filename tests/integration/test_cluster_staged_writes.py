"""Nodes of a cluster are killed with SIGKILL, one of them or all together, while sinks stage and
publish at any of them; every epoch is published completely and once, in order, and no stage is ever
lost.

Each call goes to another node, and is repeated at the next one until it is answered.

PIXY_CRASH_SEED repeats the random choices of a run; timing depends on the machine.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from pixy.proto import pixy_log_pb2 as pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from tests.fakes.waiting import until
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import proxy_config
from tests.integration.test_staged_writes import CONFIG, Sink, check

if TYPE_CHECKING:
    from pixy.proto.pixy_log_pb2_grpc import LogAsyncStub

pytestmark = [pytest.mark.process, pytest.mark.no_debug]

SINKS = 3
STORAGE = {"segment_bytes": "1MiB", "checkpoint_entries": 50, "retention": 0}
"""The records are old by their timestamps."""
CALL_S = 10.0
ANSWER_S = 90.0
RECONNECTS = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
REPEATED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class ClusterLog:
    """The service at all nodes of a cluster: each call begins at the next one.

    Attributes:
        in_flight: number of calls that a node has not answered, by its number and the call.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._next = count()
        self._channels = {
            node.number: grpc.aio.insecure_channel(node.address, RECONNECTS) for node in cluster.nodes
        }
        self.in_flight: Counter[tuple[int, str]] = Counter()

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def wait_in_flight(self, node: ClusterNode, name: str) -> None:
        await until(lambda: self.in_flight[node.number, name])

    async def Stage(self, request: pb.StageRequest, timeout: float) -> pb.StageResponse:  # as the stub
        answer: pb.StageResponse = await self._call("Stage", request)
        return answer

    async def Publish(self, request: pb.PublishRequest, timeout: float) -> pb.PublishResponse:  # as the stub
        answer: pb.PublishResponse = await self._call("Publish", request)
        return answer

    async def _call(self, name: str, request: Any) -> Any:
        loop = asyncio.get_running_loop()
        until = loop.time() + ANSWER_S
        while loop.time() < until:
            number = next(self._next) % len(self._channels) + 1
            stub: LogAsyncStub = LogStub(self._channels[number])
            self.in_flight[number, name] += 1
            try:
                return await getattr(stub, name)(request, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                if error.code() not in REPEATED:
                    raise
            finally:
                self.in_flight[number, name] -= 1
            await asyncio.sleep(0.05)
        raise AssertionError(f"no node answers {name}")


async def kill_and_start(cluster: Cluster, nodes: list[ClusterNode]) -> None:
    for node in nodes:
        node.signal(signal.SIGKILL)
    for node in nodes:
        node.kill()
    await asyncio.to_thread(cluster.start, *(node.number for node in nodes))


async def leader_of_nothing(cluster: Cluster) -> ClusterNode:
    """A node that leads neither `sinks` nor the first partition, as far as there is one."""
    leaders = [await asyncio.to_thread(cluster.leader, name) for name in ("sinks", "t-0")]
    return next(node for node in cluster.nodes if node not in leaders)


async def test_every_epoch_is_published_once_whichever_node_dies(tmp_path: Path) -> None:
    seed = int(os.environ.get("PIXY_CRASH_SEED", random.randrange(1 << 32)))
    rng = random.Random(seed)
    with Cluster(tmp_path, config=proxy_config(**CONFIG | {"storage": STORAGE})) as cluster:
        await asyncio.to_thread(cluster.start)
        log = ClusterLog(cluster)
        async with grpc.aio.insecure_channel(cluster[1].address) as channel:
            stub: LogAsyncStub = LogStub(channel)
            await stub.DescribeTopics(pb.DescribeTopicsRequest(topics=["t"], create_missing=True))
        sinks = [Sink(f"sink{number}", rng) for number in range(SINKS)]
        running = [asyncio.create_task(sink.run(log)) for sink in sinks]  # type: ignore[arg-type]  # as far as it uses the stub
        for name in ("sinks", "t-0"):
            for what in ("Stage", "Publish"):
                victim = await asyncio.to_thread(cluster.leader, name)
                await log.wait_in_flight(victim, what)
                await kill_and_start(cluster, [victim])
                assert not any(task.done() for task in running), [task for task in running if task.done()]
        for what in ("Stage", "Publish"):
            victim = await leader_of_nothing(cluster)
            await log.wait_in_flight(victim, what)
            await kill_and_start(cluster, [victim])
        for node, what in zip(cluster.nodes, ("Stage", "Publish", "Publish"), strict=True):
            await log.wait_in_flight(node, what)
            await kill_and_start(cluster, cluster.nodes)
            assert not any(task.done() for task in running), [task for task in running if task.done()]
        epochs = [sink.epoch for sink in sinks]
        await until(lambda: all(sink.epoch > before + 1 for sink, before in zip(sinks, epochs, strict=True)))
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await log.close()
        assert sum(sink.counts["stages lost"] for sink in sinks) == 0, "a stage is lost"
        for node in cluster.nodes:
            await check(node, sinks, f"seed {seed}, {node}")

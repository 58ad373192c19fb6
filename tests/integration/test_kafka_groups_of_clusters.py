"""Consumer groups of Kafka's clients at three nodes: their coordinator is killed, stopped or
paused, and members go on.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as ConfluentTopic

from pixy.kafka_messages.generated.find_coordinator import FindCoordinatorRequest
from pixy.proto import kafkapixy_pb2 as pb
from tests.api.kafka.group_support import FIND_COORDINATOR
from tests.fakes.kafka_client import kafka_client
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster
from tests.integration.daemon import Daemon

pytestmark = [pytest.mark.process, pytest.mark.slow]

TOPIC, GROUP, PARTITIONS, ROUND = "orders", "workers", 6, 600


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", config={"kafka_addr": "127.0.0.1:0"}) as cluster:
        cluster.start()
        for node in cluster.nodes:
            node.config["kafka_addr"] = node.addresses["kafka"]  # also after a restart
        admin = AdminClient({"bootstrap.servers": addresses(cluster)})
        for future in admin.create_topics([ConfluentTopic(TOPIC, PARTITIONS)]).values():
            future.result(60)
        yield cluster


def addresses(cluster: Cluster) -> str:
    return ",".join(node.addresses["kafka"] for node in cluster.nodes)


def produce(cluster: Cluster, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": addresses(cluster), "enable.idempotence": True})
    for number in numbers:
        producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(120) == 0


def coordinator(cluster: Cluster, node: Daemon) -> int:
    """Id of the node that coordinates the group, as a node says; -1 for none."""

    async def ask() -> int:
        async with kafka_client(node.addresses["kafka"]) as client:
            answer = await client.call(FIND_COORDINATOR, 2, FindCoordinatorRequest(GROUP))
            return int(answer.node_id)

    return asyncio.run(ask())


class Worker:
    """A consumer that commits each message that it has read.

    Attributes:
        found: messages that it has read.
        assignments: number of partitions after each rebalance.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.found: Counter[int] = Counter()
        self.assignments: list[int] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": addresses(cluster),
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 30_000,
                "heartbeat.interval.ms": 500,
                "socket.timeout.ms": 5000,
            }
        )
        self.consumer.subscribe([TOPIC], on_assign=self._assigned)

    def _assigned(self, _: Consumer, partitions: list[Any]) -> None:
        self.assignments.append(len(partitions))

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.found[int(message.value())] += 1
            self.consumer.commit(message, asynchronous=True)

    def commit(self) -> None:
        """Commit all that it has read."""
        positions = self.consumer.position(self.consumer.assignment())
        self.consumer.commit(offsets=positions, asynchronous=False)


def committed(node: Daemon) -> int:
    answer = node.stub().GetOffsets(pb.GetOffsetsRq(topic=TOPIC, group=GROUP), timeout=10)
    return sum(max(each.offset, 0) for each in answer.offsets)


@pytest.mark.parametrize("how", ["kill", "stop", "pause"])
def test_members_go_on_without_a_rebalance_when_their_coordinator_is_lost(cluster: Cluster, how: str) -> None:
    produce(cluster, range(ROUND))
    workers = [Worker(cluster), Worker(cluster)]

    def have(count: int) -> bool:
        for worker in workers:
            worker.poll()
        found = workers[0].found + workers[1].found
        return len(found) >= count and [len(each.consumer.assignment()) for each in workers] == [3, 3]

    def shown() -> str:
        return f"{[len(each.found) for each in workers]} {[each.assignments for each in workers]}"

    try:
        until_blocking(lambda: have(ROUND), shown)
        for worker in workers:
            worker.commit()
        rebalances = [len(worker.assignments) for worker in workers]
        before = coordinator(cluster, cluster.nodes[0])
        lost = cluster.ids()[before]
        left = next(node for node in cluster.nodes if node is not lost)
        match how:
            case "kill":
                lost.kill()
            case "stop":
                lost.stop()
            case "pause":
                lost.pause()
        until_blocking(lambda: coordinator(cluster, left) not in (-1, before))
        produce(cluster, range(ROUND, 2 * ROUND))
        until_blocking(lambda: have(2 * ROUND), shown)
        for worker in workers:
            worker.commit()
        assert committed(left) == 2 * ROUND
        if how == "pause":
            lost.resume()
        else:
            lost.start()
        produce(cluster, range(2 * ROUND, 3 * ROUND))
        until_blocking(lambda: have(3 * ROUND), shown)
        assert [len(worker.assignments) for worker in workers] == rebalances
        found = workers[0].found + workers[1].found
        assert found == Counter(range(3 * ROUND)), "without a rebalance each message comes once"
    finally:
        for worker in workers:
            worker.consumer.close()

"""Kafka's clients at three nodes: brokers, leaders, and their failover."""

import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as ConfluentTopic

from tests.api.kafka.support import PRODUCE, batch, produce_request
from tests.conftest import require
from tests.fakes.kafka_client import kafka_client
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

PARTITIONS = 6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", config={"kafka_addr": "127.0.0.1:0"}) as cluster:
        cluster.start()
        for node in cluster.nodes:
            node.config["kafka_addr"] = node.addresses["kafka"]  # also after a restart
        yield cluster


def addresses(cluster: Cluster) -> str:
    return ",".join(node.addresses["kafka"] for node in cluster.nodes)


def make_topic(cluster: Cluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": addresses(cluster)})
    for future in admin.create_topics([ConfluentTopic(topic, PARTITIONS)]).values():
        future.result(60)


def listed(cluster: Cluster, number: int = 1) -> str:
    """The cluster as kcat sees it at a node."""
    kcat = require("kcat", "apt-get install kcat")
    command = [kcat, "-L", "-b", cluster[number].addresses["kafka"]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def brokers_of(text: str) -> set[str]:
    return set(re.findall(r"broker \d at (\S+)", text))


def leaders_of(text: str) -> list[int]:
    return [int(each) for each in re.findall(r"leader (-?\d+)", text)]


def names_all(seen: Callable[[], str], brokers: set[str]) -> bool:
    """True when a node knows all brokers, and leaders of all partitions."""
    text = seen()
    return brokers_of(text) == brokers and -1 not in leaders_of(text)


def consumed(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """All values, partition by partition in the order of their offsets."""
    options = {"bootstrap.servers": addresses(cluster), "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer({**options, "enable.partition.eof": True})
    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    ended: set[int] = set()
    try:
        consumer.assign([ConfluentPartition(topic, number, OFFSET_BEGINNING) for number in found])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (
            len(ended) < PARTITIONS or sum(map(len, found.values())) < count
        ):
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found[message.partition()].append(message.value())
            elif message is not None:
                ended.add(message.partition())
    finally:
        consumer.close()
    return [value for values in found.values() for value in values]


def test_every_node_names_all_brokers_and_leaders(cluster: Cluster) -> None:
    make_topic(cluster, "orders")
    nodes = {node.addresses["kafka"] for node in cluster.nodes}
    for number in (1, 2, 3):
        seen = partial(listed, cluster, number)
        until_blocking(partial(names_all, seen, nodes), seen)
    assert len({*leaders_of(listed(cluster))}) > 1
    assert "replicas: 1,2,3" in listed(cluster)
    gone = cluster.id_of(cluster[3])
    cluster[3].kill()
    left = {cluster[number].addresses["kafka"] for number in (1, 2)}
    until_blocking(
        lambda: brokers_of(listed(cluster)) == left and not {gone, -1} & {*leaders_of(listed(cluster))},
        lambda: listed(cluster),
    )


async def test_records_go_to_leaders(cluster: Cluster) -> None:
    make_topic(cluster, "orders")
    until_blocking(lambda: -1 not in leaders_of(listed(cluster)), lambda: listed(cluster))
    ids = cluster.ids()
    leader = leaders_of(listed(cluster))[0]
    codes = {}
    for node_id, node in ids.items():
        listed(cluster, node.number)  # it knows the others then
        async with kafka_client(node.addresses["kafka"]) as client:
            answer = await client.call(PRODUCE, 9, produce_request("orders", {0: batch(b"a")}))
            codes[node_id] = answer.responses[0].partition_responses[0].error_code
    assert codes == {node_id: 0 if node_id == leader else 6 for node_id in ids}


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_an_idempotent_producer_loses_and_doubles_nothing(cluster: Cluster, how: str) -> None:
    make_topic(cluster, "orders")
    options = {
        "bootstrap.servers": addresses(cluster),
        "enable.idempotence": True,
        "linger.ms": 1,
        "batch.num.messages": 20,
        "socket.timeout.ms": 5000,
        "retry.backoff.ms": 50,
    }
    producer, failed, delivered = Producer(options), [], Counter[int]()

    def told(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)
        else:
            delivered[message.partition()] += 1

    def produce(numbers: range) -> None:
        for number in numbers:
            while True:
                try:
                    producer.produce(
                        "orders", b"%d" % number, partition=number % PARTITIONS, on_delivery=told
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)

    produce(range(3000))
    until_blocking(lambda: producer.poll(0.01) is not None and sum(delivered.values()) > 500)
    node = cluster.leader("orders-0")
    if how == "kill":
        node.kill()
    else:
        node.pause()
    produce(range(3000, 9000))
    if how == "kill":
        node.start()
    else:
        until_blocking(lambda: producer.poll(0.01) is not None and sum(delivered.values()) > 6000)
        node.resume()
    assert producer.flush(120) == 0
    assert failed == []
    found = consumed(cluster, "orders", 9000)
    by_partition = [b"%d" % number for part in range(PARTITIONS) for number in range(part, 9000, PARTITIONS)]
    assert found == by_partition

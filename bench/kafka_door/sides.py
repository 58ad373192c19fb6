"""The servers: pixy, and Apache Kafka as it comes, which syncs nothing. A node of each, or three,
on the same cores.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.kit import processes
from bench.spark.kafka import PATIENCE
from tests.integration.clusters import Cluster
from tests.kafka.cluster import KafkaCluster

_SECONDS_MAX = 60.0
_ASK_EVERY_S = 0.05
_QUIET = "log_level"
"""Option of librdkafka; 0 leaves out what it says of connections that end."""


@dataclass(frozen=True, slots=True)
class Side:
    """Servers under measurement.

    Attributes:
        address: of Kafka's protocol, of all nodes, divided by commas.
        pids: of the nodes.
        grpc: address of gRPC, empty in Kafka.
    """

    name: str
    address: str
    pids: tuple[int, ...]
    grpc: str = ""

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, and wait for its leaders."""
        admin = self._admin()
        for made in admin.create_topics([NewTopic(topic, partitions)]).values():
            made.result(_SECONDS_MAX)
        until = time.monotonic() + _SECONDS_MAX
        while True:
            found = admin.list_topics(topic, timeout=_SECONDS_MAX).topics[topic].partitions
            if len(found) == partitions and all(each.leader >= 0 for each in found.values()):
                return
            if time.monotonic() > until:
                raise RuntimeError(f"{topic} of {self.name} has no leaders")
            time.sleep(_ASK_EVERY_S)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        admin = self._admin()  # its answers end with it
        for gone in admin.delete_topics([topic]).values():
            gone.result(_SECONDS_MAX)

    def count(self, topic: str) -> int:
        """Number of messages in a topic."""
        partitions = self._admin().list_topics(topic, timeout=_SECONDS_MAX).topics[topic].partitions
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "unused", _QUIET: 0})
        try:
            return sum(
                consumer.get_watermark_offsets(TopicPartition(topic, number), _SECONDS_MAX)[1]
                for number in partitions
            )
        finally:
            consumer.close()

    def cpu_seconds(self) -> float:
        """Processor time of all nodes."""
        return sum(processes.cpu_seconds(pid) for pid in self.pids)

    def rss_bytes(self) -> int:
        """Resident memory of all nodes."""
        return sum(processes.rss_bytes(pid) for pid in self.pids)

    def _admin(self) -> Any:
        return AdminClient({"bootstrap.servers": self.address, _QUIET: 0})


Sides = Sequence[Side]


@contextmanager
def open_sides(folder: Path, nodes: int) -> Iterator[Sides]:
    """Pixy and Kafka with 1 or 3 nodes each, and their data in `folder`."""
    with ExitStack() as stack:
        pixy = _pixy_node(folder) if nodes == 1 else _pixy_cluster(folder / "pixy", nodes)
        yield [stack.enter_context(pixy), stack.enter_context(_kafka(folder / "kafka", nodes))]


_CONFIG = {
    "kafka_addr": "127.0.0.1:0",
    "proxies": {"default": {"storage": {"group_initial_rebalance_delay": "0s"}}},
}
"""The delay is that of the tests' Kafka too, and in no figure."""


@contextmanager
def _pixy_node(folder: Path) -> Iterator[Side]:
    with processes.daemon(folder, _CONFIG) as server:
        yield Side("pixy", server.kafka_address, (server.pid,), server.address)


@contextmanager
def _pixy_cluster(folder: Path, nodes: int) -> Iterator[Side]:
    with Cluster(folder, nodes, config=_CONFIG) as cluster:
        cluster.start()
        address = ",".join(node.addresses["kafka"] for node in cluster.nodes)
        yield Side("pixy", address, tuple(node.process.pid for node in cluster.nodes))


@contextmanager
def _kafka(folder: Path, brokers: int) -> Iterator[Side]:
    cluster = KafkaCluster(folder, brokers, properties=PATIENCE, java=("-Xmx512m",))
    try:
        cluster.start()
        yield Side("Kafka", ",".join(cluster.addresses), tuple(each.pid for each in cluster.brokers))
    finally:
        cluster.kill()

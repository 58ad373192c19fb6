"""The nodes of a cluster as Kafka's clients see them: brokers with addresses, and the leaders of
partitions.

Where the backend knows no other nodes that clients could go to, this process is the only broker and
leads everything: the backend brings records to where they belong.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pixy.backend import BrokerNode, PartitionDescription, TopicPartition
from pixy.config import split_address
from pixy.proxy import Proxy

NO_LEADER = -1


class Leadership(NamedTuple):
    """The leader and the replicas of a partition, by the ids of brokers."""

    leader: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int] = ()


class Brokers:
    """The brokers of one cluster.

    Args:
        proxy: of the cluster.

    Attributes:
        own_address: where clients reach this node, as "host:port"; known once it listens.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.own_address = ""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        return self._proxy.broker_nodes.cluster_id

    @property
    def own_id(self) -> int:
        """The id of this broker."""
        return self._proxy.broker_nodes.own_id

    def all(self) -> list[BrokerNode]:
        """All brokers, this one among them, by id."""
        nodes = self._proxy.broker_nodes
        others = {each.node_id: each for each in nodes.brokers}
        own = others.get(nodes.own_id, BrokerNode(nodes.own_id, "", ""))
        return sorted({**others, nodes.own_id: own._replace(address=self.own_address)}.values())

    def leads(self, partition: TopicPartition) -> bool:
        """True unless another broker leads a partition that is known here."""
        nodes = self._proxy.broker_nodes
        if not nodes.brokers:
            return True
        topic = self._proxy.log.known(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return True
        return topic.partitions[partition.partition].leader in (nodes.own_id, NO_LEADER)

    def leadership(self, partition: PartitionDescription) -> Leadership:
        """The leader and the replicas of a partition."""
        nodes = self._proxy.broker_nodes
        if not nodes.brokers:
            own = (nodes.own_id,)
            return Leadership(nodes.own_id, own, own)
        offline = [each for each in partition.replicas if each not in partition.isr]
        return Leadership(partition.leader, partition.replicas, partition.isr, offline)


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of an address."""
    host, port = split_address(address)
    return host, port

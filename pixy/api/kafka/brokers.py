"""The nodes of a cluster as Kafka's clients see them: brokers with addresses, and the leaders of
partitions.

A partition that no other broker leads is this one's for its clients: a node without this API may
lead it, or a Kafka that pixy is in front of. The backend brings records to where they belong.
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

    async def find(self) -> None:
        """Ask the other nodes, for `all`, `leads` and `leadership`."""
        await self._proxy.find_brokers()

    def leads(self, partition: TopicPartition) -> bool:
        """True unless another broker leads a partition that is known here.

        Raises:
            Unavailable: the cluster has not been reached yet.
        """
        nodes = self._proxy.broker_nodes
        if not nodes.brokers:
            return True
        topic = self._proxy.log.known(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return True
        leader = topic.partitions[partition.partition].leader
        return all(each.node_id != leader for each in nodes.brokers)

    def leadership(self, partition: PartitionDescription) -> Leadership:
        """The leader and the replicas of a partition."""
        nodes = self._proxy.broker_nodes
        own, leader, replicas, isr = nodes.own_id, partition.leader, partition.replicas, partition.isr
        if not nodes.brokers:
            return Leadership(own, (own,), (own,))
        if leader != NO_LEADER and all(each.node_id != leader for each in nodes.brokers):
            leader = own
        return Leadership(leader, replicas, isr, [each for each in replicas if each not in isr])


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of an address."""
    host, port = split_address(address)
    return host, port

"""Finds topics and partitions, here or on other nodes.

A node's metadata may be behind that of the cluster, so a partition that it does not know is unknown
only after a linearizable read. One that it knows is found at once: if it is gone, its replicas say
so. Topics are always found by a linearizable read.
"""

from collections.abc import Iterable

from pixy.cluster import Node, PartitionReplica, RemotePartition, Topic
from pixy.errors import UnknownPartition, UnknownTopic
from pixy.records import TopicPartition

CONFIRM_S = 5.0
"""Seconds that a linearizable read may take: longer than a change of leaders."""

PartitionRoute = PartitionReplica | RemotePartition
"""A partition with a replica here, or one that other nodes have to be asked for."""


class PartitionRouter:
    """Finds what clients name.

    Args:
        node: this node.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def here(self, partition: TopicPartition) -> PartitionReplica | None:
        """A partition that can be served from here. None: ask `find`.

        A replica that is damaged or waits for a copy counts if there is no other one.
        """
        replica = self._node.partition(partition)
        if replica is None or not self._node.partitions.has_replica(replica):
            return None
        whole = replica.fault is None and not replica.needs_copy
        return replica if whole or not replica.replicas[1:] else None

    def find_nowait(self, partition: TopicPartition) -> PartitionRoute | None:
        """A partition; None if this node does not know it."""
        replica = self.here(partition)
        if replica is not None:
            return replica
        topic = self._node.metadata.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.raft_groups):
            return None
        here = self._node.node_id
        others = tuple([each for each in topic.nodes(partition.partition) if each != here])
        return RemotePartition(partition, topic.raft_groups[partition.partition], others)

    async def find(self, partition: TopicPartition) -> PartitionRoute:
        """A partition.

        Raises:
            UnknownPartition: there is none.
            Unavailable: the cluster's metadata has no leader that could tell.
        """
        place = self.find_nowait(partition)
        if place is None and not self._node.is_alone:
            await self._node.confirm_metadata(CONFIRM_S)
            place = self.find_nowait(partition)
        if place is None:
            raise self.unknown(partition)
        return place

    async def check_known(self, partitions: Iterable[TopicPartition]) -> None:
        """Return if all of these partitions are known, as of that moment.

        Raises:
            UnknownPartition: one is not there.
            Unavailable: the cluster's metadata has no leader that could tell.
        """
        while unknown := next((each for each in partitions if self.find_nowait(each) is None), None):
            await self.find(unknown)

    def unknown(self, partition: TopicPartition) -> UnknownPartition:
        """The error of an unknown partition."""
        topic = self._node.metadata.topics.get(partition.topic)
        count = 0 if topic is None else len(topic.raft_groups)
        return UnknownPartition(
            f"unknown partition {partition.partition} of topic {partition.topic}, which has {count}"
        )

    def takes_entries(self, partition: TopicPartition) -> PartitionReplica | None:
        """A replica here that applies entries, readable or not; None if there is none."""
        replica = self._node.partition(partition)
        if replica is None or replica.group is None or replica.group.application is None:
            return None
        if not self._node.partitions.has_replica(replica):
            return None
        return None if replica.needs_copy else replica

    async def topics(self, names: Iterable[str] | None = None) -> list[Topic]:
        """All topics, or those of `names` that exist, sorted by name: one read for all.

        Raises:
            Unavailable: the cluster's metadata has no leader that could tell.
        """
        if not self._node.is_alone:
            await self._node.confirm_metadata(CONFIRM_S)
        known = self._node.metadata.topics
        return [known[name] for name in sorted(known if names is None else known.keys() & {*names})]

    async def topic(self, name: str) -> Topic:
        """A topic as of now.

        Raises:
            UnknownTopic: there is none.
            Unavailable: the cluster's metadata has no leader that could tell.
        """
        if not self._node.is_alone:
            await self._node.confirm_metadata(CONFIRM_S)
        topic = self._node.metadata.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"unknown topic {name}")
        return topic

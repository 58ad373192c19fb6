"""Metadata of a Kafka cluster: brokers and topics. Pure: takes responses, does no I/O.

Changes reach brokers one after the other, and any broker may answer, so a response can be older
than the metadata:

    topic deleted by this process       its id is never reused: responses that still have it are
                                        ignored
    topic created by this process       for the first seconds, responses without it are ignored,
                                        which are from lagging brokers
    topic created or deleted by others  the response counts, whichever broker sent it

A topic without an id in the response (a broker before Kafka 2.8) is ignored. A description is the
same object until something of it changes.

Kafka has no topic versions, so they are computed here: 1000 per partition, and 1 for each change of
options that this process has seen since the number of partitions changed (999 at most). So two
versions of a topic, from any two processes, are equal only with equal numbers of partitions:
records that were partitioned by one version are in the right partitions by the other. Leaders and
replicas change without a new version, because partitioning does not depend on them.

Invariant: `names` has exactly the ids of `topics`.
"""

from collections.abc import Collection, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from pixy.backend.protocol import PartitionDescription, TopicDescription

__all__ = ["Broker", "Metadata"]

_NO_ERROR = 0
_UNKNOWN_TOPIC = 3
_HEARD_OF_S = 5.0
"""Time in which a new topic reaches all brokers."""
_DELETED_MAX = 10_000
_VERSIONS_PER_PARTITION = 1000


class Broker(NamedTuple):
    """The address of a broker."""

    node_id: int
    host: str
    port: int


class Metadata:
    """The cluster as this process knows it.

    Attributes:
        brokers: live brokers by node id.
        topics: by name, without Kafka's internal ones.
        names: names of topics by topic id.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, TopicDescription] = {}
        self.names: dict[bytes, str] = {}
        # Topics created by this process, with the time until which responses without them are
        # ignored.
        self._new: dict[str, float] = {}
        # Ids of topics that this process deleted, oldest first.
        self._deleted: dict[bytes, None] = {}

    def leader(self, topic: str, partition: int) -> int:
        """Node id, -1 if there is no such partition or it has no leader."""
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return -1
        return known.partitions[partition].leader

    def apply(self, answer: Any, asked: Collection[str] | None, now: float) -> set[str]:
        """Apply a Metadata response.

        Args:
            asked: the topics that the request named; None: all.
            now: seconds, of a monotonic clock.

        Returns:
            The names of topics that are new, gone, or described differently.
        """
        if answer.brokers:
            self.brokers = {
                node_id: Broker(node_id, host, port) for node_id, host, port, *_ in answer.brokers
            }
        self._new = {name: until for name, until in self._new.items() if until > now}
        changed = set()
        missing = set(self.topics if asked is None else asked)
        for error, name, topic_id, is_internal, partitions, *_ in answer.topics:
            if error == _UNKNOWN_TOPIC or is_internal or topic_id in self._deleted:
                continue
            missing.discard(name)
            if error == _NO_ERROR and partitions and self._describe(name, topic_id, partitions):
                changed.add(name)
        for name in missing - self._new.keys():
            if self._forget(name) is not None:
                changed.add(name)
        return changed

    def set_config(self, name: str, config: Mapping[str, str]) -> TopicDescription | None:
        """Apply the options of a topic; returns its description, None if it is unknown."""
        known = self.topics.get(name)
        if known is None:
            return None
        return self._put(known.name, known.topic_id, known.partitions, config)

    def created(self, name: str, now: float) -> None:
        """This process has created a topic."""
        self._new[name] = now + _HEARD_OF_S

    def deleted(self, name: str) -> None:
        """This process has deleted a topic."""
        known = self._forget(name)
        self._new.pop(name, None)
        if known is not None:
            self._deleted[known.topic_id] = None
            if len(self._deleted) > _DELETED_MAX:
                del self._deleted[next(iter(self._deleted))]

    def _describe(self, name: str, topic_id: bytes, partitions: Any) -> bool:
        described = tuple(
            PartitionDescription(number, leader, tuple(replicas), tuple(isr))
            for _, number, leader, _, replicas, isr, *_ in sorted(partitions, key=itemgetter(1))
        )
        before = self.topics.get(name)
        if before is not None and before.topic_id != topic_id:
            self._forget(name)
            before = None
        config: Mapping[str, str] = {} if before is None else before.config
        return self._put(name, topic_id, described, config) is not before

    def _put(
        self,
        name: str,
        topic_id: bytes,
        partitions: tuple[PartitionDescription, ...],
        config: Mapping[str, str],
    ) -> TopicDescription:
        before = self.topics.get(name)
        if before is not None and (before.partitions, before.config) == (partitions, config):
            return before
        version = _next_version(before, config, len(partitions))
        description = TopicDescription(name, topic_id, version, config, partitions)
        self.topics[name] = description
        self.names[topic_id] = name
        return description

    def _forget(self, name: str) -> TopicDescription | None:
        known = self.topics.pop(name, None)
        if known is not None:
            del self.names[known.topic_id]
        return known


def _next_version(before: TopicDescription | None, config: Mapping[str, str], partitions: int) -> int:
    """The version of a topic with these options and partitions; see the module."""
    if before is None or len(before.partitions) != partitions:
        return partitions * _VERSIONS_PER_PARTITION
    if before.config == config:
        return before.version
    return min(before.version + 1, (partitions + 1) * _VERSIONS_PER_PARTITION - 1)

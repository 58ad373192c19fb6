"""What is known of a Kafka cluster's brokers and topics. Pure: takes answers, does no I/O.

Brokers hear of changes one after the other, and any of them may be asked, so an answer can be older than what is known already:

    a topic that this process deleted      its id is never used again: an answer that still has it is passed over
    a topic that this process created      an answer without it, in the first seconds, comes from a broker that has not heard of it yet
    a topic that others created or deleted   the answer counts, whichever broker gave it

A topic without an id in the answer (a broker before Kafka 2.8) is not known. A description is the same object until something of it
changes.

Kafka has no version of a topic, so one is made here: 1000 for each partition, and 1 for each change of options that this process has seen
since the number of partitions changed (999 at most). So two versions of a topic, of any two processes or lives of a process, are equal only
if it had as many partitions: records that were given their partitions with one version are in the right ones with the other. Leaders and
replicas come and go without a new version, because no record's partition depends on them.

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
"""How long brokers may take to hear of a topic."""
_DELETED_MAX = 10_000
_VERSIONS_PER_PARTITION = 1000


class Broker(NamedTuple):
    """Where a broker listens."""

    node_id: int
    host: str
    port: int


class Metadata:
    """The cluster as this process knows it.

    Attributes:
        brokers: those that live, by node id.
        topics: by name, without Kafka's internal ones.
        names: of topics, by topic id.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, TopicDescription] = {}
        self.names: dict[bytes, str] = {}
        # Created by this process, and until when an answer without them says nothing.
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
        """Take an answer to a Metadata request.

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
        """The options of a topic have been read; returns its description, None if it is not known."""
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
    """See above: of a topic that has these options and so many partitions."""
    if before is None or len(before.partitions) != partitions:
        return partitions * _VERSIONS_PER_PARTITION
    if before.config == config:
        return before.version
    return min(before.version + 1, (partitions + 1) * _VERSIONS_PER_PARTITION - 1)

"""Metadata of a Kafka cluster: brokers and topics. Pure: takes responses, does no I/O.

Changes reach brokers one after the other, and any broker may answer, so a response can be older
than the metadata:

    known topic that is missing, or     it stays as it is, and is doubted until the brokers have
    has another id                      been asked for it (`settle`)
    known topic with fewer partitions   ignored: Kafka removes none
    partition with an earlier leader    ignored: the broker has not heard of the election since
    epoch
    topic deleted by this process       its id is never reused: responses that still have it are
                                        ignored
    unknown topic                       the response counts, whichever broker sent it

What the brokers say of a doubted topic:

    each that answers has it            it is there
    a majority of all lack it, and      it is gone; another one of its name takes its place
    none that answers has it
    else                                doubted for `_DOUBTED_S`, as Kafka's own clients do
                                        (topic.metadata.propagation.max.ms); then it is gone if more
                                        brokers lack it than have it

A description is the same object until something of it changes.

Kafka has no topic versions, so they are computed here: 1000 per partition, and 1 for each change of
options that this process has seen since the number of partitions changed (999 at most). So two
versions of a topic, from any two processes, are equal only with equal numbers of partitions:
records that were partitioned by one version are in the right partitions by the other. Leaders and
replicas change without a new version, because partitioning does not depend on them.

Invariant: `names` has exactly the ids of `topics`, and `doubted` only names of `topics`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from pixy.backend.protocol import PartitionDescription, TopicDescription

_NO_ERROR = 0
_UNKNOWN_TOPIC = 3
_DOUBTED_S = 30.0
"""Time in which a change reaches all brokers that live."""
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
        doubted: known topics that a response lacked, with the time of that.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, TopicDescription] = {}
        self.names: dict[bytes, str] = {}
        self.doubted: dict[str, float] = {}
        # Leader epochs of the partitions of topics, by topic id.
        self._epochs: dict[bytes, list[int]] = {}
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
            The names of topics that are new or described differently.
        """
        if answer.brokers:
            self.brokers = {
                node_id: Broker(node_id, host, port) for node_id, host, port, *_ in answer.brokers
            }
        found, changed = set(), set()
        for error, name, topic_id, is_internal, partitions, *_ in answer.topics:
            if error == _UNKNOWN_TOPIC or is_internal or topic_id in self._deleted:
                continue
            known = self.topics.get(name)
            if error == _NO_ERROR and known is not None and known.topic_id != topic_id:
                continue
            found.add(name)
            if error == _NO_ERROR and partitions and self._describe(name, topic_id, partitions):
                changed.add(name)
        expected = self.topics.keys() if asked is None else self.topics.keys() & asked
        for name in expected - found:
            self.doubted.setdefault(name, now)
        return changed

    def settle(self, answers: Iterable[Any], now: float) -> set[str]:
        """Decide about doubted topics.

        Args:
            answers: the Metadata responses of all brokers that answer, to requests that name them.

        Returns:
            The names of those that are gone or replaced.
        """
        there: Counter[str] = Counter()
        lacking: Counter[str] = Counter()
        others: dict[str, tuple[bytes, Any]] = {}
        for answer in answers:
            for error, name, topic_id, _, partitions, *_ in answer.topics:
                if name not in self.doubted or topic_id in self._deleted:
                    continue
                is_other = error == _NO_ERROR and topic_id != self.topics[name].topic_id
                if not is_other and error != _UNKNOWN_TOPIC:
                    there[name] += 1
                    continue
                lacking[name] += 1
                if partitions:
                    others[name] = topic_id, partitions
        gone = set()
        for name, since in list(self.doubted.items()):
            late = now >= since + _DOUBTED_S
            agreed = 2 * lacking[name] > len(self.brokers) and not there[name]
            if agreed or (late and lacking[name] > there[name]):
                self._forget(name)
                gone.add(name)
                if name in others:
                    self._describe(name, *others[name])
            elif late or (there[name] and not lacking[name]):
                del self.doubted[name]
        return gone

    def set_config(self, name: str, config: Mapping[str, str]) -> TopicDescription | None:
        """Apply the options of a topic; returns its description, None if it is unknown."""
        known = self.topics.get(name)
        if known is None:
            return None
        return self._put(known.name, known.topic_id, known.partitions, config)

    def created(self, name: str, topic_id: bytes) -> None:
        """This process has created a topic, so another one of its name was deleted."""
        known = self.topics.get(name)
        if known is not None and known.topic_id != topic_id:
            self.deleted(name)

    def deleted(self, name: str) -> None:
        """This process has deleted a topic."""
        known = self._forget(name)
        if known is not None:
            self._deleted[known.topic_id] = None
            if len(self._deleted) > _DELETED_MAX:
                del self._deleted[next(iter(self._deleted))]

    def _describe(self, name: str, topic_id: bytes, partitions: Any) -> bool:
        before = self.topics.get(name)
        known = () if before is None else before.partitions
        if len(known) > len(partitions):
            return False
        epochs = self._epochs.setdefault(topic_id, [])
        described = []
        for _, number, leader, epoch, replicas, isr, *_ in sorted(partitions, key=itemgetter(1)):
            if number >= len(known):
                epochs.append(epoch)
            elif epoch < epochs[number]:
                described.append(known[number])
                continue
            epochs[number] = epoch
            described.append(PartitionDescription(number, leader, tuple(replicas), tuple(isr)))
        config: Mapping[str, str] = {} if before is None else before.config
        return self._put(name, topic_id, tuple(described), config) is not before

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
        self.doubted.pop(name, None)
        if known is not None:
            del self.names[known.topic_id], self._epochs[known.topic_id]
        return known


def _next_version(before: TopicDescription | None, config: Mapping[str, str], partitions: int) -> int:
    """The version of a topic with these options and partitions; see the module."""
    if before is None or len(before.partitions) != partitions:
        return partitions * _VERSIONS_PER_PARTITION
    if before.config == config:
        return before.version
    return min(before.version + 1, (partitions + 1) * _VERSIONS_PER_PARTITION - 1)

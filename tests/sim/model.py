"""A naive model of the log: its required content after all requests.

Of the requests sent and not acknowledged in a life, any prefix may be applied: of the batches of a
partition, of the commits of a consumer group, of the changes of topics. Data shown once stays: a
reader may have seen it.

A topic is identified by its creation, not by its name: nothing of a deleted one may be seen again.
Records are deleted from the front only, and only as far as options of the topic allow, or have
allowed before.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pixy.cluster import MetadataState
from pixy.cluster.state.topic_config import log_options
from pixy.config import StagingConfig, StorageConfig
from pixy.records import OffsetCommit
from pixy.storage import LogOptions
from tests.fakes.clock import FakeClock
from tests.sim.model_offsets import OffsetsModel, PartitionId
from tests.sim.model_partition import Allowed, PartitionModel, Sent
from tests.sim.model_staging import StagingModel
from tests.sim.model_topics import TopicModel, TopicsModel


class FoundPartition(NamedTuple):
    """Records from the log begin offset on."""

    begin: int
    records: Sequence[Sent]


class Found(NamedTuple):
    """Content of a started log.

    `damaged` has the unreadable partitions, with the number of records read before.
    """

    metadata: MetadataState
    partitions: Mapping[PartitionId, FoundPartition]
    committed: Mapping[tuple[str, PartitionId], OffsetCommit]
    damaged: frozenset[PartitionId] = frozenset()


class Promised(NamedTuple):
    """The range of records that a partition must have at least."""

    begin: int
    end: int


class _Storage(NamedTuple):
    storage: StorageConfig
    from_ms: int
    until_ms: int | None = None


class Model:
    """All requests, and their acknowledgements.

    Args:
        clock: the simulated clock.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        # Options of each process, and the time until which they applied.
        self._storages: list[_Storage] = []
        self.topics = TopicsModel(clock)
        self.offsets = OffsetsModel(clock)
        self.staging = StagingModel(clock)

    def begin_life(self, storage: StorageConfig, staging: StagingConfig | None = None) -> None:
        """Begin a process with these options."""
        self.staging.begin_life(round((staging or StagingConfig()).expiry * 1000))
        self.offsets.begin_life(round(storage.offsets_retention * 1000))
        if self._storages:
            self._storages[-1] = self._storages[-1]._replace(until_ms=self.clock.true_ms())
        self._storages.append(_Storage(storage, self.clock.true_ms()))

    def see(self, metadata: MetadataState) -> Mapping[str, TopicModel]:
        """Raise AssertionError if these topics are impossible; returns their models."""
        self.topics.see(metadata)
        for topic in self.topics.deleted:
            self.offsets.forget_topic(topic.topic_id)
        return self.topics.live

    def partition(self, partition: PartitionId) -> PartitionModel:
        """A partition seen so far, also of a deleted topic."""
        return self.topics.by_id(partition.topic_id).partitions[partition.partition]

    @property
    def outstanding(self) -> str:
        """Unanswered requests as text; empty if none."""
        topics = [*self.topics.live.values(), *self.topics.deleted]
        parts = [
            f"{topic.name}-{number}"
            for topic in topics
            for number, partition in enumerate(topic.partitions)
            if partition.outstanding
        ]
        if self.topics.unanswered:
            parts.append(f"{self.topics.unanswered} changes of topics")
        return ", ".join([*parts, *self.offsets.outstanding])

    def promised(self) -> dict[PartitionId, Promised]:
        """The ranges that a reader starting now must find."""
        return {
            PartitionId(topic.topic_id, number): Promised(partition.begin, partition.promised)
            for topic in self.topics.live.values()
            if topic.topic_id
            for number, partition in enumerate(topic.partitions)
        }

    def show_begin(self, partition: PartitionId, begin: int) -> None:
        """Record a log begin offset; raise AssertionError if it is impossible."""
        allowed = self._allowed(self.topics.by_id(partition.topic_id))
        self.partition(partition).check_begin(begin, allowed, self.clock.latest_ms)

    def options(self, topic: TopicModel) -> LogOptions:
        """Effective options of a topic's logs."""
        return log_options(self._storages[-1].storage, topic.state.config)

    def check(self, found: Found, promised: Mapping[PartitionId, Promised]) -> None:
        """Raise AssertionError if a log with this content has lost, invented or changed anything.

        Args:
            promised: the ranges promised when the reading began.
        """
        live = {topic.topic_id for topic in self.see(found.metadata).values()}
        for partition, (begin, records) in found.partitions.items():
            of = self.partition(partition)
            name = f"{self.topics.by_id(partition.topic_id).name}-{partition.partition}"
            try:
                if partition in found.damaged:
                    of.check_some(begin, records)
                else:
                    expected = promised.get(partition, Promised(0, 0))
                    of.check(begin, records, expected.end)
                    assert begin >= expected.begin, f"the log began at {expected.begin}, now at {begin}"
                    self.show_begin(partition, max(begin, of.begin))
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error
        for partition in promised:
            assert partition in found.partitions or partition.topic_id not in live, (
                f"{partition} is not found"
            )
        self.offsets.check(found.committed)

    def adopt(self, found: Found, *, ends_known: bool = False) -> None:
        """Adopt the content after a start: it counts as acknowledged, and nothing else as sent.

        Args:
            ends_known: the ends of the partitions were recorded, and more was sent since.
        """
        self.see(found.metadata)
        self.topics.adopt(found.metadata)
        for partition, (begin, records) in found.partitions.items():
            if partition not in found.damaged and not ends_known:
                self.partition(partition).adopt(begin + len(records))
        self.offsets.adopt(found.committed)

    def _allowed(self, topic: TopicModel) -> Iterator[Allowed]:
        """All options that may have applied to a topic."""
        for storage, began_ms, ended_ms in self._storages:
            for config, from_ms, until_ms in topic.configs:
                if (ended_ms is None or from_ms <= ended_ms) and (until_ms is None or began_ms <= until_ms):
                    ends = [end for end in (ended_ms, until_ms) if end is not None]
                    yield Allowed(log_options(storage, config), min(ends, default=None))

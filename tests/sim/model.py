"""What a log must hold after everything that was asked of it: the plainest description there is.

Between two ends of a process, of what was sent and not acknowledged any beginning may be there: of the batches of a partition, of the
commits of a consumer group, of the changes of topics. Whatever has been shown once stays: a reader may have seen it.

A topic is what was created, not its name: of a deleted one nothing may be seen again. Records go from the front only, and only as far
as options of the topic allow, or have allowed before.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pixy.cluster import MetadataState
from pixy.cluster.topic_config import log_options
from pixy.config import StagingConfig, StorageConfig
from pixy.records import OffsetCommit
from pixy.storage import LogOptions
from tests.fakes.clock import FakeClock
from tests.sim.model_offsets import OffsetsModel, PartitionId
from tests.sim.model_partition import Allowed, PartitionModel, Sent
from tests.sim.model_staging import StagingModel
from tests.sim.model_topics import Change, TopicModel, TopicsModel

__all__ = [
    "Change",
    "Found",
    "FoundPartition",
    "Model",
    "PartitionId",
    "PartitionModel",
    "Sent",
    "TopicModel",
]


class FoundPartition(NamedTuple):
    """Records from the log begin offset on."""

    begin: int
    records: Sequence[Sent]


class Found(NamedTuple):
    """What a started log shows.

    `damaged` has the partitions that were refused, with as many records as were read before.
    """

    metadata: MetadataState
    partitions: Mapping[PartitionId, FoundPartition]
    committed: Mapping[tuple[str, PartitionId], OffsetCommit]
    damaged: frozenset[PartitionId] = frozenset()


class Promised(NamedTuple):
    """Where the records of a partition begin at least, and up to which offset they go at least."""

    begin: int
    end: int


class _Storage(NamedTuple):
    storage: StorageConfig
    from_ms: int
    until_ms: int | None = None


class Model:
    """Everything that was asked for, and how far it is acknowledged.

    Args:
        clock: what time it is.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        # What each process was told, and until when that has counted.
        self._storages: list[_Storage] = []
        self.topics = TopicsModel(clock)
        self.offsets = OffsetsModel(clock)
        self.staging = StagingModel(clock)

    def begin_life(self, storage: StorageConfig, staging: StagingConfig | None = None) -> None:
        """A process begins that is told this."""
        self.staging.begin_life(round((staging or StagingConfig()).expiry * 1000))
        self.offsets.begin_life(round(storage.offsets_retention * 1000))
        if self._storages:
            self._storages[-1] = self._storages[-1]._replace(until_ms=self.clock.true_ms())
        self._storages.append(_Storage(storage, self.clock.true_ms()))

    def see(self, metadata: MetadataState) -> Mapping[str, TopicModel]:
        """Raise AssertionError if there cannot be these topics; returns what they are."""
        self.topics.see(metadata)
        for topic in self.topics.deleted:
            self.offsets.forget_topic(topic.topic_id)
        return self.topics.live

    def partition(self, partition: PartitionId) -> PartitionModel:
        """A partition that was seen, also of a deleted topic."""
        return self.topics.by_id(partition.topic_id).partitions[partition.partition]

    @property
    def outstanding(self) -> str:
        """What is not answered, empty if nothing."""
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
        """What whoever begins to read must find."""
        return {
            PartitionId(topic.topic_id, number): Promised(partition.begin, partition.promised)
            for topic in self.topics.live.values()
            if topic.topic_id
            for number, partition in enumerate(topic.partitions)
        }

    def show_begin(self, partition: PartitionId, begin: int) -> None:
        """Raise AssertionError if a partition's log cannot begin there; from here on it does."""
        allowed = self._allowed(self.topics.by_id(partition.topic_id))
        self.partition(partition).check_begin(begin, allowed, self.clock.latest_ms)

    def options(self, topic: TopicModel) -> LogOptions:
        """What the logs of a topic are told."""
        return log_options(self._storages[-1].storage, topic.state.config)

    def check(self, found: Found, promised: Mapping[PartitionId, Promised]) -> None:
        """Raise AssertionError if a log that shows this has lost, invented or changed anything.

        Args:
            promised: what was promised when the reading began.
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
        """What a start shows: from here on, that was acknowledged, and nothing else was sent.

        Args:
            ends_known: where the partitions ended was noted, and more was sent since.
        """
        self.see(found.metadata)
        self.topics.adopt(found.metadata)
        for partition, (begin, records) in found.partitions.items():
            if partition not in found.damaged and not ends_known:
                self.partition(partition).adopt(begin + len(records))
        self.offsets.adopt(found.committed)

    def _allowed(self, topic: TopicModel) -> Iterator[Allowed]:
        """Every options that may have counted for a topic."""
        for storage, began_ms, ended_ms in self._storages:
            for config, from_ms, until_ms in topic.configs:
                if (ended_ms is None or from_ms <= ended_ms) and (until_ms is None or began_ms <= until_ms):
                    ends = [end for end in (ended_ms, until_ms) if end is not None]
                    yield Allowed(log_options(storage, config), min(ends, default=None))

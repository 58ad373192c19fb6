"""Reads all data of a node during concurrent changes."""

from collections.abc import Callable

from pixy.backend import EmbeddedBackend
from pixy.cluster import MetadataState, Node, Topic
from pixy.errors import CorruptData, OffsetOutOfRange, UnknownPartition, UnknownTopic
from pixy.records import OffsetCommit, TopicPartition, read_records
from tests.sim.model import Found, FoundPartition
from tests.sim.model_offsets import PartitionId
from tests.sim.model_partition import Sent

GROUPS = ("g", "h", "i")
"""The consumer groups."""


async def read_everything(
    node: Node, backend: EmbeddedBackend, on_damage: Callable[[CorruptData], None] | None = None
) -> Found:
    """All data of a backend; checks that offsets have no holes.

    Args:
        on_damage: called with the error of an unreadable partition; without it the error is raised.
    """
    partitions: dict[PartitionId, FoundPartition] = {}
    damaged: set[PartitionId] = set()
    for topic in list(node.metadata.topics.values()):
        for number in range(len(topic.raft_groups)):
            reading = _Reading(node, backend, topic, number)
            id = PartitionId(topic.topic_id, number)
            try:
                await reading.read()
            except (UnknownPartition, UnknownTopic):
                assert not reading.is_there(), "a partition that is there is unknown"
                break
            except CorruptData as error:
                if on_damage is None:
                    raise
                on_damage(error)
                damaged.add(id)
            partitions[id] = FoundPartition(reading.begin, reading.records)
    # A consistent snapshot: nothing here suspends.
    metadata = MetadataState()
    metadata.topics = dict(node.metadata.topics)
    metadata.next_raft_group = node.metadata.next_raft_group
    return Found(metadata, partitions, read_committed(node), frozenset(damaged))


def read_committed(node: Node) -> dict[tuple[str, PartitionId], OffsetCommit]:
    """All committed offsets."""
    return {
        (group, PartitionId(topic.topic_id, number)): commit
        for topic in node.metadata.topics.values()
        for group in GROUPS
        for number, commit in node.state_groups.offsets_of(group).committed(group, topic.topic_id).items()
    }


def read_batches(batches: object, offset: int) -> list[Sent]:
    """Records of batches fetched from an offset on; checks that they are consecutive."""
    records: list[Sent] = []
    assert isinstance(batches, list | tuple)
    for batch in batches:
        for record in read_records(batch):
            if record.offset < offset:
                continue
            expected = offset + len(records)
            assert record.offset == expected, f"offset {record.offset} where {expected} was expected"
            records.append(Sent(record.key, record.value, record.timestamp))
    return records


class _Reading:
    """One partition from end to end.

    Attributes:
        begin, records: begin and records found so far.
    """

    def __init__(self, node: Node, backend: EmbeddedBackend, topic: Topic, number: int) -> None:
        self._node = node
        self._backend = backend
        self._topic = topic
        self._number = number
        self.begin = 0
        self.records: list[Sent] = []

    def is_there(self) -> bool:
        """True if the topic is still the same."""
        topic = self._node.metadata.topics.get(self._topic.name)
        return topic is not None and topic.topic_id == self._topic.topic_id

    async def read(self) -> None:
        """Read up to the current end.

        Raises:
            UnknownPartition, UnknownTopic: the topic is deleted.
            CorruptData: the partition is damaged.
        """
        if not self.is_there():
            raise UnknownTopic(self._topic.name)
        offsets = (await self._backend.offset_ranges(self._topic.name))[self._number]
        self.begin, end = offsets.begin, offsets.end
        await self._fetch()  # one that is not ready reports it, even if empty
        while (at := self.begin + len(self.records)) < end:
            await self._fetch()
            assert self.begin + len(self.records) > at, f"nothing at offset {at}, the end is {end}"
        if self.begin > end:  # all of that has been deleted meanwhile
            self.records = []
            await self.read()
        else:
            del self.records[end - self.begin :]

    async def _fetch(self) -> None:
        if not self.is_there():
            raise UnknownTopic(self._topic.name)
        at = self.begin + len(self.records)
        try:
            result = await self._backend.fetch(
                TopicPartition(self._topic.name, self._number), at, max_bytes=4000, max_wait=0
            )
        except OffsetOutOfRange as error:
            if error.begin <= at:
                raise AssertionError(f"offset {at} is refused") from error
            self.begin = error.begin
            self.records = []
        else:
            self.records += read_batches(result.batches, at)

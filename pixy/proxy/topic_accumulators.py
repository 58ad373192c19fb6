"""The accumulated records of a topic, by partition, and the choice of the partition of a record.

Records without a key that come together go to one partition, if the partitioner `stays` (KIP-480).
They go to partitions that this process leads, if it leads some, else to those with a leader, while
there are any.
"""

from collections.abc import Sequence
from typing import Any

from pixy.backend import TopicDescription, TopicPartition
from pixy.proxy.produce_answers import ProduceDone
from pixy.records import HEADER_BYTES, NewRecordFields, Partitioner

__all__ = ["PartitionAccumulator", "TopicAccumulators"]


class PartitionAccumulator:
    """The accumulated records of one partition."""

    __slots__ = (
        "batch_bytes",
        "bytes",
        "dirty",
        "dones",
        "in_flight",
        "partition",
        "records",
        "since",
        "waiters",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.records: list[NewRecordFields] = []
        # For each record: the callback of its caller, None if asynchronous, and the caller.
        self.dones: list[ProduceDone | None] = []
        self.waiters: list[Any] = []
        # Size of the records in the buffer.
        self.bytes = 0
        # Arrival of the first record.
        self.since = 0.0
        # Upper bound for the size of their batch, uncompressed.
        self.batch_bytes = HEADER_BYTES
        # Batches in flight.
        self.in_flight = 0
        # In the list of accumulators to flush.
        self.dirty = False


class _ReadyPartitions:
    """A partitioner that chooses among some partitions for records without a key."""

    def __init__(self, partitioner: Partitioner, ready: Sequence[int]) -> None:
        self._partitioner = partitioner
        self._ready = ready
        self.stays = partitioner.stays

    def __call__(self, key: bytes | None, partitions: int) -> int:
        if key is None:
            return self._ready[self._partitioner(None, len(self._ready))]
        return self._partitioner(key, partitions)


class TopicAccumulators:
    """The accumulators and the partitioner of a topic."""

    __slots__ = ("_chooses", "_count", "_partitioner", "accumulators", "description", "unkeyed")

    def __init__(self, description: TopicDescription, partitioner: Partitioner) -> None:
        self._partitioner = partitioner
        # By partition, created by the first record: a topic may have 10 000 partitions.
        self.accumulators: dict[int, PartitionAccumulator] = {}
        # The accumulator of records without a key, while it has records; None: choose one.
        self.unkeyed: PartitionAccumulator | None = None
        self.describe(description)

    @property
    def unanswered(self) -> bool:
        """True if records are accumulated or in flight."""
        return any(each.records or each.in_flight for each in self.accumulators.values())

    def choose(self, key: bytes | None) -> PartitionAccumulator:
        """The accumulator for a record, by the partitioner."""
        number = self._chooses(key, self._count)
        accumulator = self.accumulators.get(number)
        if accumulator is None:
            partition = TopicPartition(self.description.name, number)
            accumulator = self.accumulators[number] = PartitionAccumulator(partition)
        if key is None and self._partitioner.stays:
            self.unkeyed = accumulator
        return accumulator

    def describe(self, description: TopicDescription) -> None:
        """Take over a new description."""
        self.description = description
        partitions = description.partitions
        self._count = len(partitions)
        for number in [number for number in self.accumulators if number >= self._count]:
            del self.accumulators[number]
        ready = description.led_here or [each.partition for each in partitions if each.leader >= 0]
        self.unkeyed = None
        self._chooses: Partitioner = self._partitioner
        if 0 < len(ready) < len(partitions):
            self._chooses = _ReadyPartitions(self._partitioner, ready)

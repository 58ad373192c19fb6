"""The accumulated records of a topic, by partition."""

import asyncio
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from pixy.aio.retries import Backoff
from pixy.backend import TopicDescription, TopicPartition
from pixy.errors import PixyError
from pixy.proxy.keyless_partitions import partition_choice
from pixy.proxy.produce_answers import ProduceDone
from pixy.records import HEADER_BYTES, Header, NewRecordFields, Partitioner

RECORD_OVERHEAD_BYTES = 36
"""Largest overhead of a record in a batch: its attributes and seven varints."""
HEADER_OVERHEAD_BYTES = 10
"""Largest overhead of each of its headers."""
HEADER_MEMORY_BYTES = 160
"""Memory of a header besides its name and value: a tuple and two objects."""
_HEADERS_OF = itemgetter(2)


class ProduceBatch(NamedTuple):
    """A batch that was sent, and is not answered.

    Attributes:
        dones: for each record the callback of its caller, None if asynchronous.
        waiters: the callers.
        size: bytes of the records in the buffer.
        records: kept to be sent again; None without asynchronous ones.
        until: time on the monotonic clock until which these are sent again.
    """

    accumulator: "PartitionAccumulator"
    dones: list[ProduceDone | None]
    waiters: list[Any]
    size: int
    records: list[NewRecordFields] | None
    until: float


class SilentRecords:
    """The records of partitions that do not answer, and their bytes."""

    __slots__ = ("bytes", "records")

    def __init__(self, records: int = 0, size: int = 0) -> None:
        self.records = records
        self.bytes = size


class PartitionAccumulator:
    """The accumulated records of one partition."""

    __slots__ = (
        "asynchronous",
        "backoff",
        "batch_bytes",
        "behind",
        "bytes",
        "dirty",
        "dones",
        "due",
        "fault",
        "in_flight",
        "kept",
        "marks",
        "partition",
        "records",
        "retry",
        "silent",
        "since",
        "unanswered",
        "unanswered_bytes",
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
        # Arrival of the first synchronous record, or earlier; None without one.
        self.since: float | None = None
        # Upper bound for the size of their batch, uncompressed.
        self.batch_bytes = HEADER_BYTES
        # Some of the records are asynchronous.
        self.asynchronous = False
        # Batches in flight, kept ones included.
        self.in_flight = 0
        # Their records, and the size of these.
        self.unanswered = 0
        self.unanswered_bytes = 0
        # The partition does not answer; see `silent_partitions`.
        self.silent: SilentRecords | None = None
        # Asynchronous records that failed and are sent again, oldest first.
        self.kept: deque[ProduceBatch] = deque()
        # Those behind the batch that was tried last. Invariant: 0 without kept ones.
        self.behind = 0
        # The next attempt. Invariant: None unless all batches in flight are kept.
        self.retry: asyncio.TimerHandle | None = None
        # The last failure, and the pauses after failures. Invariant: set while batches are kept.
        self.fault: PixyError | None = None
        self.backoff: Backoff | None = None
        # Times, and the numbers of records that had arrived by then. Invariant: both ascend.
        self.marks: list[tuple[float, int]] = []
        # In the list of accumulators to flush.
        self.dirty = False
        # Some of the records were left by the last flush, to be sent when its batch is answered.
        self.due = False

    def mark(self, time: float, gap: float) -> None:
        """Note that all records had arrived by a time; marks within the gap become one."""
        marks = self.marks
        while marks and marks[-1][0] > time:
            marks.pop()
        if marks and marks[-1][0] > time - gap:
            time = marks.pop()[0]
        marks.append((time, len(self.records)))

    def take(self, count: int, until: float) -> tuple[ProduceBatch, float | None]:
        """Take out the first records.

        Args:
            count: their number.
            until: see `ProduceBatch`.

        Returns:
            The records, and the arrival of the first synchronous one among them.
        """
        records, dones, waiters, since = self.records, self.dones, self.waiters, self.since
        if count == len(records):
            until = until if self.asynchronous else 0.0
            taken = ProduceBatch(self, dones, waiters, self.bytes, records, until)
            self.records, self.dones, self.waiters = [], [], []
            self.bytes, self.batch_bytes, self.since = 0, HEADER_BYTES, None
            self.asynchronous = self.due = False
            if self.marks:
                self.marks = []
            return taken, since
        self.records, self.dones, self.waiters = records[count:], dones[count:], waiters[count:]
        del records[count:], dones[count:], waiters[count:]
        size, asynchronous = sum(map(record_size, records)), dones.count(None)
        self.bytes -= size
        self.batch_bytes -= sum(map(batch_bytes, records))
        self.due = True
        if since is not None:
            self._forget_first(count, since)
        taken = ProduceBatch(self, dones, waiters, size, records, until if asynchronous else 0.0)
        return taken, None if asynchronous == count else since

    def take_synchronous(self, before: float) -> ProduceBatch | None:
        """Take out the synchronous records that were there at a mark before that time, if any."""
        time, count = before, 0
        while self.marks and self.marks[0][0] <= before:
            time, count = self.marks.pop(0)
        taken = [at for at in range(count) if self.dones[at] is not None]
        if not taken:
            return None
        gone = frozenset(taken)
        left = [at for at in range(len(self.records)) if at not in gone]
        batch = ProduceBatch(
            self,
            [self.dones[at] for at in taken],
            [self.waiters[at] for at in taken],
            sum(record_size(self.records[at]) for at in taken),
            None,
            0.0,
        )
        self.batch_bytes -= sum(batch_bytes(self.records[at]) for at in taken)
        self.bytes -= batch.size
        self.records = [self.records[at] for at in left]
        self.dones = [self.dones[at] for at in left]
        self.waiters = [self.waiters[at] for at in left]
        self._forget_first(len(taken), time)
        return batch

    def _forget_first(self, count: int, since: float) -> None:
        """Some of the first records were taken out, and no synchronous one that is left has come
        before that time.
        """
        marks = [(time, number - count) for time, number in self.marks]
        first = next((at for at, done in enumerate(self.dones) if done is not None), None)
        if first is None:
            self.since = None
        else:
            self.since = max([since, *(time for time, number in marks if number <= first)])
        self.marks = [(time, number) for time, number in marks if number > 0]


def first_run(marks: Sequence[tuple[float, int]], since: float, count: int) -> int:
    """Number of the first records that came one after the other.

    Args:
        marks: of their accumulator.
        since: arrival of the first one.
        count: number of all of them.
    """
    for time, number in marks:
        if time > since:
            return number
    return count


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

    @property
    def messages(self) -> int:
        """Number of records that are accumulated or in flight."""
        return sum(len(each.records) + each.unanswered for each in self.accumulators.values())

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

    def is_leaderless(self, accumulator: PartitionAccumulator) -> bool:
        """True if an accumulator was chosen for a partition without a leader."""
        return self.description.partitions[accumulator.partition.partition].leader < 0

    def describe(self, description: TopicDescription) -> None:
        """Take over a new description."""
        self.description = description
        self._count = len(description.partitions)
        for number in [number for number in self.accumulators if number >= self._count]:
            del self.accumulators[number]
        self.unkeyed = None
        self._chooses = partition_choice(self._partitioner, description)


def record_size(record: NewRecordFields) -> int:
    """Size of a record in the buffer."""
    key, value, headers, _ = record
    size = len(key or b"") + len(value or b"")
    return size + headers_bytes(headers) + HEADER_MEMORY_BYTES * len(headers) if headers else size


def headers_bytes(headers: Sequence[Header]) -> int:
    """Size of the headers of a record: their names and values."""
    return sum(len(name if name.isascii() else name.encode()) + len(value or b"") for name, value in headers)


def batch_bytes(record: NewRecordFields) -> int:
    """Upper bound for the size of a record in a batch."""
    headers_only = (HEADER_OVERHEAD_BYTES - HEADER_MEMORY_BYTES) * len(record[2])
    return record_size(record) + RECORD_OVERHEAD_BYTES + headers_only


def content_bytes(batch: ProduceBatch) -> int:
    """Size of the keys, values and headers of a batch with its records."""
    assert batch.records is not None
    return batch.size - HEADER_MEMORY_BYTES * sum(map(len, map(_HEADERS_OF, batch.records)))

"""Batches that wait to be written, by partition."""

from collections import deque
from typing import NamedTuple

from pixy.backend.protocol import AppendDone, TopicPartition

__all__ = ["PendingBatch", "ProduceQueue", "ProducerId"]


class ProducerId(NamedTuple):
    """Who we are for a broker that looks for repetitions."""

    id: int
    epoch: int


class PendingBatch:
    """A batch that is not answered yet."""

    __slots__ = ("answered", "batch", "deadline", "done", "maybe_written", "records", "sequenced")

    def __init__(self, batch: bytearray, records: int, done: AppendDone, deadline: float) -> None:
        self.batch = batch
        self.records = records
        self.done = done
        self.deadline = deadline
        # Whether its header has the producer's id and the sequence of its partition.
        self.sequenced = False
        # Whether an attempt may have been written that was not answered.
        self.maybe_written = False
        # Its time ran out while it was in flight.
        self.answered = False


class ProduceQueue:
    """The batches of one partition, in order; the first one may be in flight."""

    __slots__ = (
        "backoff_s",
        "in_flight",
        "not_before",
        "partition",
        "pending",
        "producer",
        "reason",
        "sent",
        "sequence",
        "topic_id",
    )

    def __init__(self, partition: TopicPartition, topic_id: bytes) -> None:
        self.partition = partition
        self.topic_id = topic_id
        # Invariant: deadlines ascend.
        self.pending: deque[PendingBatch] = deque()
        self.in_flight = False
        # Whether the attempt under way has left us.
        self.sent = False
        # None: the next batch to be sequenced starts with a new id.
        self.producer: ProducerId | None = None
        # Of the next record. Invariant: one past the last record that is known to be written with this id.
        self.sequence = 0
        # Why the first batch is not written yet, and when it is tried again.
        self.reason = ""
        self.backoff_s = 0.0
        self.not_before = 0.0

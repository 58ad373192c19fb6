"""The queue of batches of one partition.

Batches of messages, which come from all clients (`DivisibleDone`), and whole batches of single
clients (`ClientDone`) take turns, and so do these clients: one may queue thousands of small
batches, of which each is one request. Those of messages, and those of a client, stay in their
order.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import NamedTuple

from pixy.aio.retries import Backoff
from pixy.backend.protocol import BATCH_MEMORY_BYTES, AppendDone
from pixy.records import TopicPartition


class ProducerId(NamedTuple):
    """Producer id and epoch, by which brokers detect duplicates."""

    id: int
    epoch: int


class PendingBatch:
    """An unanswered batch."""

    __slots__ = (
        "answered",
        "batch",
        "client",
        "deadline",
        "done",
        "limit_s",
        "maybe_written",
        "of_messages",
        "records",
        "sequenced",
        "unordered",
        "whole_maybe_written",
    )

    def __init__(
        self,
        batch: bytearray,
        records: int,
        done: AppendDone,
        deadline: float,
        limit_s: float,
        *,
        aged: bool = False,
    ) -> None:
        self.batch = batch
        self.records = records
        self.done = done
        self.of_messages = hasattr(done, "divide")
        # Its client, if it has turns of its own.
        self.client: str | None = None if self.of_messages else getattr(done, "client", None)
        self.deadline = deadline
        # Its time limit, before its age counts.
        self.limit_s = limit_s
        # Those ahead of it may have more time: it came with an age, or overtook others.
        self.unordered = aged or self.of_messages or self.client is not None
        # Its header has the producer id and sequence.
        self.sequenced = False
        # An attempt without a response may have been written.
        self.maybe_written = False
        # It is a part of a batch that may have been written as a whole, until a part is written.
        self.whole_maybe_written = False
        # Its time ran out while it was in flight.
        self.answered = False

    @property
    def size(self) -> int:
        """Memory that it takes."""
        return len(self.batch) + BATCH_MEMORY_BYTES

    @property
    def outcome_unknown(self) -> bool:
        """True if its records may have been written."""
        return self.maybe_written or self.whole_maybe_written


class ProduceQueue:
    """The batches of one partition; the first one may be in flight.

    Args:
        partition, topic_id: the partition, and the id of its topic.
        backoff: pauses between the attempts of a batch.
        limit_s: the common time limit of batches.
    """

    __slots__ = (
        "_by_client",
        "_limit_s",
        "_messages",
        "_unordered",
        "backoff",
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

    def __init__(self, partition: TopicPartition, topic_id: bytes, backoff: Backoff, limit_s: float) -> None:
        self._limit_s = limit_s
        self.partition = partition
        self.topic_id = topic_id
        # The next batches in order, the first one of each client among them. Invariant: the
        # deadlines of those with the common limit that are not `unordered` ascend.
        self.pending: deque[PendingBatch] = deque()
        # All batches of each client, in order. Invariant: their deadlines ascend; none is empty.
        self._by_client: dict[str, deque[PendingBatch]] = {}
        # Number of `pending` batches of messages, and of unordered ones.
        self._messages = 0
        self._unordered = 0
        self.in_flight = False
        # The attempt in flight has been sent.
        self.sent = False
        # None: the next batch gets a new producer id.
        self.producer: ProducerId | None = None
        # Sequence of the next record. Invariant: one past the last record known to be written with
        # this id.
        self.sequence = 0
        # The last error of the first batch, and the time of its next attempt.
        self.reason = ""
        self.backoff = backoff
        self.not_before = 0.0

    def add(self, pending: PendingBatch) -> None:
        """Add a batch."""
        if pending.client is not None:
            of_client = self._by_client.setdefault(pending.client, deque())
            of_client.append(pending)
            if len(of_client) > 1:
                return
        self._add_next(pending)

    def _add_next(self, pending: PendingBatch) -> None:
        """Add a batch that is due, behind the last one of its kind and one of the other kind."""
        kind = pending.of_messages
        of_kind = self._messages if kind else len(self.pending) - self._messages
        place = 1
        if of_kind == len(self.pending):
            place = of_kind
        elif of_kind:
            places = (at for at, each in enumerate(self.pending) if each.of_messages is kind)
            place += 1 + next(islice(places, of_kind - 1, None))
        self.pending.insert(place, pending)
        self._messages += kind
        self._unordered += pending.unordered

    def add_first(self, pending: PendingBatch) -> None:
        """Add a part of the batch that was the first one."""
        self.pending.appendleft(pending)
        self._messages += pending.of_messages
        self._unordered += pending.unordered

    def remove(self, pending: PendingBatch) -> None:
        """Remove a batch; the next one of its client is due."""
        following: deque[PendingBatch] = deque()
        if pending.client is not None:
            following = self._by_client[pending.client]
            was_due = following[0] is pending
            following.remove(pending)
            if not following:
                del self._by_client[pending.client]
            if not was_due:
                return
        self.pending.remove(pending)
        self._messages -= pending.of_messages
        self._unordered -= pending.unordered
        if following:
            self._add_next(following[0])

    def remove_rest(self, failed: PendingBatch) -> list[PendingBatch]:
        """Remove the batches behind a removed one that were appended together with it."""
        rest = []
        if failed.client is not None:
            while (batches := self._by_client.get(failed.client)) and batches[0].done is failed.done:
                rest.append(batches[0])
                self.remove(batches[0])
        return rest

    def __iter__(self) -> Iterator[PendingBatch]:
        """All batches."""
        yield from self.pending
        for of_client in self._by_client.values():
            yield from islice(of_client, 1, None)

    def expired(self, now: float) -> tuple[list[PendingBatch], float]:
        """Unanswered batches whose time is over, and the next deadline."""
        found = []
        next_deadline, unordered = inf, 0
        for pending in self.pending:
            unordered += pending.unordered
            if pending.answered:
                continue
            if pending.deadline <= now:
                found.append(pending)
                continue
            next_deadline = min(next_deadline, pending.deadline)
            if pending.unordered or unordered < self._unordered:
                continue
            if pending.limit_s == self._limit_s:
                break
        for of_client in self._by_client.values():
            for pending in islice(of_client, 1, None):
                if pending.deadline > now:
                    next_deadline = min(next_deadline, pending.deadline)
                    break
                found.append(pending)
        return found, next_deadline

    @property
    def in_doubt(self) -> bool:
        """True if the sequence may have been used, and no batch behind the first one will tell."""
        first = self.pending[0]
        return first.maybe_written or (
            first.whole_maybe_written and not (len(self.pending) > 1 and self.pending[1].whole_maybe_written)
        )

    def part_written(self) -> None:
        """The first batch was written. If it is a part, the whole was not: the broker would not
        have accepted its sequence.
        """
        for pending in self.pending:
            if not pending.whole_maybe_written:
                return
            pending.whole_maybe_written = False

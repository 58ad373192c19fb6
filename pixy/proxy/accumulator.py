"""Accumulates produced records into record batches: the only buffer between clients and the
backend.

Each partition has an accumulator. While a batch of the partition is in flight, records accumulate;
the answer flushes them as one batch. With nothing in flight a lone record is flushed at once, and
concurrent records when the linger target is reached, after 2 ms at the latest. The linger target is
the number of records that were outstanding at the last flush: their callers, just answered, are
about to send again, and a batch with its sync costs many times what a record costs. With
`producer.flush_frequency` every flush lingers for that time instead.

A record without a key goes to the partition of the last one while that accumulator has records
(KIP-480): a batch costs as much as ten records, so concurrent records share a batch, in a partition
that is chosen anew for each. The partitioners `random` and `roundrobin` choose per record, as their
names say.

The buffer has limits in messages and bytes, which count records from their arrival to their answer.
Callers that find it full queue in FIFO order; the queue is bounded as well. No accepted record is
dropped silently: it is answered, or, if asynchronous, counted and logged.

The accumulator holds each topic's description. A record with another description updates it:

    more partitions               used from this record on; the others keep their records
    partitions without a leader   records without a key go to the others, while there are any
    partitions led here           records without a key go there, if there are some
    deleted                       accumulated and in-flight records get the backend's error, queued
                                  ones `TopicMissing`
    deleted and created again     accumulated records go to the new topic, in order, as if they had
                                  come a moment later; those of a partition that the new topic lacks
                                  get the backend's error

Accepted records never recreate a deleted topic: whoever deletes a topic does not expect it back
with the rest of its records. Deleted topics are forgotten whenever the number of known topics has
doubled.
"""

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import structlog

from pixy.backend import Backend, TopicDescription
from pixy.clock import Clock
from pixy.config import ProducerConfig
from pixy.errors import PixyError, TopicMissing, Unavailable
from pixy.faults import OnFault, internal_error
from pixy.proxy.produce_answers import ProduceAnswers, ProduceDone
from pixy.proxy.topic_accumulators import PartitionAccumulator, TopicAccumulators
from pixy.records import COMPRESSION, HEADER_BYTES, Header, NewRecordFields, Partitioner, build_batch

__all__ = ["Accumulators", "headers_bytes"]

log = structlog.get_logger(__name__)

_LINGER_S = 0.002
_BATCHES_PER_ITERATION = 64
_ANSWERS_PER_ITERATION = 512
"""Batches sent, and records of a batch answered, in one iteration of the loop: 1 or 2 ms each."""
_NEVER = sys.maxsize
_TOPICS_MIN = 64
_RECORD_OVERHEAD_BYTES = 36
"""Largest overhead of a record in a batch: its attributes and seven varints."""
_HEADER_OVERHEAD_BYTES = 10
"""Largest overhead of each of its headers."""


Produce = tuple[TopicDescription, bytes | None, bytes, Sequence[Header], int, ProduceDone, Any, bool]
"""The arguments of `Accumulators.append`."""


class _Waiting:
    """A record that is queued for room in the buffer."""

    __slots__ = ("_give_up", "produce", "since")

    def __init__(self, produce: Produce, since: float, give_up: "Callable[[_Waiting], None]") -> None:
        self.produce = produce
        self.since = since
        self._give_up = give_up

    @property
    def size(self) -> int:
        return self.produce[4]

    def cancel(self) -> None:
        """The caller is gone; the record is not written if it is still queued."""
        self._give_up(self)


class _Batch(NamedTuple):
    """A batch in flight."""

    accumulator: PartitionAccumulator
    dones: list[ProduceDone | None]
    waiters: list[Any]
    size: int


class Accumulators:
    """The producer's buffer of one cluster.

    Args:
        backend: the cluster.
        options: the `producer` section of the configuration.
        partitioner: chooses the partition of a record; each topic gets a copy, which may count.
        clock: for the timestamps of records.
        on_fault: called with an exception that is a bug. Callers are answered INTERNAL.

    Attributes:
        buffered: records that are accumulated or in flight.
        buffered_bytes: size of their keys, values and headers.
    """

    def __init__(
        self,
        backend: Backend,
        options: ProducerConfig,
        partitioner: Partitioner,
        clock: Clock,
        on_fault: OnFault,
    ) -> None:
        self._backend = backend
        self._options = options
        self._records_max, self._bytes_max = options.channel_buffer_size, options.buffer_bytes
        self._partitioner = partitioner
        self._wall_ns = clock.wall_ns
        self._monotonic = clock.monotonic
        self._on_fault = on_fault
        self._compression = COMPRESSION[options.compression]
        self._loop = asyncio.get_running_loop()
        # By name. May hold deleted topics, until it has grown to `_topics_max`.
        self._topics: dict[str, TopicAccumulators] = {}
        self._topics_max = _TOPICS_MIN
        self._dirty: list[PartitionAccumulator] = []
        self._flush_scheduled = False
        self._flush_timer: asyncio.TimerHandle | None = None
        # Records in flight, and the number of accumulated records that ends the linger.
        self._in_flight = 0
        self._linger_s = options.flush_frequency or _LINGER_S
        self._linger_target = _NEVER if options.flush_frequency else 1
        # Queued for room, in order of arrival.
        self._waiting: OrderedDict[_Waiting, None] = OrderedDict()
        self._waiting_bytes = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._answers = ProduceAnswers(self._monotonic)
        self.buffered = 0
        self.buffered_bytes = 0

    def append(  # noqa: PLR0913, PLR0917  # once per record: an options object costs as much as the rest of it
        self,
        description: TopicDescription,
        key: bytes | None,
        value: bytes,
        headers: Sequence[Header],
        size: int,
        done: ProduceDone,
        waiter: Any,
        sync: bool,
        since: float | None = None,
    ) -> _Waiting | None:
        """Accept a record.

        Args:
            description: the current description of the topic.
            size: bytes of key, value and headers together.
            done: answers `waiter`, together with the other callers of its batch.
            since: arrival of a record that has queued and has room; None for a new record.

        Returns:
            The queued record, to be cancelled if the caller goes away; None if there is room.

        Raises:
            Unavailable: the queue is full.
        """
        # `_has_room`, inlined.
        if since is None and (
            self._waiting
            or self.buffered >= self._records_max
            or (self.buffered_bytes + size > self._bytes_max and self.buffered)
        ):
            return self._wait((description, key, value, headers, size, done, waiter, sync))
        topic = self._topics.get(description.name)
        if topic is None or topic.description is not description:
            topic = self._look_at(description)
        accumulator = topic.unkeyed if key is None else None
        if accumulator is None or not accumulator.records:
            accumulator = topic.choose(key)
        batch_bytes = size + _RECORD_OVERHEAD_BYTES
        if headers:
            batch_bytes += _HEADER_OVERHEAD_BYTES * len(headers)
        dirty = accumulator.dirty
        if dirty and accumulator.batch_bytes + batch_bytes > self._options.flush_bytes:
            self._flush(accumulator)
            dirty = False
        if not accumulator.records:
            accumulator.since = self._monotonic() if since is None else since
        accumulator.records.append((key, value, headers, self._wall_ns() // 1_000_000))
        accumulator.bytes += size
        accumulator.batch_bytes += batch_bytes
        if not self.buffered:
            self._empty.clear()
        self.buffered += 1
        self.buffered_bytes += size
        if not dirty and not accumulator.in_flight:
            self._mark_dirty(accumulator)
        if self._flush_timer is not None and self.buffered - self._in_flight >= self._linger_target:
            self._flush_timer.cancel()
            self._flush_timer = None
            self._loop.call_soon(self._flush_dirty)
        accumulator.waiters.append(waiter)
        if sync:
            accumulator.dones.append(done)
        else:
            accumulator.dones.append(None)
            done((waiter,), -1, -1, None)
        return None

    @property
    def waiting(self) -> int:
        """Number of queued records."""
        return len(self._waiting)

    @property
    def lost(self) -> int:
        """Asynchronous records that were not written."""
        return self._answers.lost

    async def drained(self) -> None:
        """Flush everything, and wait until it is answered."""
        self._flush_dirty()
        await self._empty.wait()

    def abandon(self) -> int:
        """Give up all unanswered records and return their number.

        They may or may not be written.
        """
        messages = self.buffered + len(self._waiting)
        if messages:
            log.error("stopped with messages that are not known to be written", messages=messages)
        return messages

    # --- into the buffer --------------------------------------------------------------------------

    def _has_room(self, size: int) -> bool:
        return self.buffered < self._records_max and (
            self.buffered_bytes + size <= self._bytes_max or not self.buffered
        )

    def _wait(self, produce: Produce) -> _Waiting:
        options = self._options
        waiting = _Waiting(produce, self._monotonic(), self._give_up)
        if (
            len(self._waiting) >= options.waiting_requests
            or self._waiting_bytes + waiting.size > options.buffer_bytes
        ):
            raise Unavailable(
                f"the producer's buffer is full and {len(self._waiting)} requests wait for room in it; slow down, or "
                "increase producer.channel_buffer_size, producer.buffer_bytes or producer.waiting_requests"
            ).at_limit("producer.waiting_requests")
        self._waiting[waiting] = None
        self._waiting_bytes += waiting.size
        self._empty.clear()
        return waiting

    def _give_up(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:
            del self._waiting[waiting]
            self._waiting_bytes -= waiting.size
            self._maybe_empty()

    def _look_at(self, description: TopicDescription) -> TopicAccumulators:
        """The topic with this description."""
        topic = self._topics.get(description.name)
        if topic is None:
            if len(self._topics) >= self._topics_max:
                self._forget_deleted()
            topic = self._topics[description.name] = TopicAccumulators(description, copy(self._partitioner))
        if topic.description != description:
            topic.describe(description)
        topic.description = description
        return topic

    def _forget_deleted(self) -> None:
        """Forget deleted topics. One with unanswered records stays, to keep their order."""
        self._topics = {
            name: topic
            for name, topic in self._topics.items()
            if self._backend.topic(name) is not None or topic.unanswered
        }
        self._topics_max = max(_TOPICS_MIN, 2 * len(self._topics))

    def _admit_waiting(self) -> None:
        while self._waiting and self._has_room(next(iter(self._waiting)).size):
            waiting, _ = self._waiting.popitem(last=False)
            self._waiting_bytes -= waiting.size
            before, key, value, headers, size, done, waiter, sync = waiting.produce
            description = self._backend.topic(before.name)
            if description is not None:
                self.append(description, key, value, headers, size, done, waiter, sync, waiting.since)
            else:
                deleted = f"topic {before.name} was deleted while the message waited for room in the producer's buffer"
                done((waiter,), -1, -1, TopicMissing(deleted))

    def _maybe_empty(self) -> None:
        if not self.buffered and not self._waiting:
            self._empty.set()

    # --- out of the buffer ------------------------------------------------------------------------

    def _mark_dirty(self, accumulator: PartitionAccumulator) -> None:
        """Flush an accumulator at the end of the linger."""
        accumulator.dirty = True
        self._dirty.append(accumulator)
        if self._flush_scheduled:
            return
        self._flush_scheduled = True
        if self.buffered - self._in_flight >= self._linger_target:
            self._loop.call_soon(self._flush_dirty)
        else:
            self._flush_timer = self._loop.call_later(self._linger_s, self._flush_dirty)

    def _flush_dirty(self) -> None:
        """Flush the partitions without a batch in flight."""
        self._flush_scheduled = False
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._linger_target != _NEVER:
            self._linger_target = max(1, self.buffered)
        dirty, self._dirty = self._dirty[:_BATCHES_PER_ITERATION], self._dirty[_BATCHES_PER_ITERATION:]
        for accumulator in dirty:
            if accumulator.dirty:
                self._flush(accumulator)
        if self._dirty and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_dirty)

    def _flush(self, accumulator: PartitionAccumulator) -> None:
        """Send all accumulated records, in batches of at most `flush_bytes`, overhead included."""
        records, size = accumulator.records, accumulator.bytes
        dones, waiters = accumulator.dones, accumulator.waiters
        batch_bytes, limit = accumulator.batch_bytes, self._options.flush_bytes
        accumulator.records, accumulator.dones, accumulator.waiters, accumulator.bytes = [], [], [], 0
        accumulator.batch_bytes, accumulator.dirty = HEADER_BYTES, False
        if batch_bytes <= limit:
            self._send(_Batch(accumulator, dones, waiters, size), records)
            return
        first = size = 0
        batch_bytes = HEADER_BYTES
        for at, record in enumerate(records):
            record_size = _size(record)
            added = _batch_bytes(record_size, record[2])
            if at > first and batch_bytes + added > limit:
                part = _Batch(accumulator, dones[first:at], waiters[first:at], size)
                self._send(part, records[first:at])
                first, size, batch_bytes = at, 0, HEADER_BYTES
            size += record_size
            batch_bytes += added
        self._send(_Batch(accumulator, dones[first:], waiters[first:], size), records[first:])

    def _send(self, batch: _Batch, records: list[NewRecordFields]) -> None:
        accumulator = batch.accumulator
        age_s = self._monotonic() - accumulator.since
        accumulator.in_flight += 1
        self._in_flight += len(records)
        appended = partial(self._appended, batch)
        try:
            packed = build_batch(records, self._compression)
            self._backend.append(accumulator.partition, packed, len(records), appended, age_s)
        except PixyError as error:
            appended(-1, error)
        except Exception as bug:
            self._on_fault(bug)
            appended(-1, internal_error(bug))

    def _appended(self, batch: _Batch, base_offset: int, error: PixyError | None) -> None:
        accumulator, dones, waiters, size = batch
        if len(dones) > _ANSWERS_PER_ITERATION:
            rest = _Batch(accumulator, dones[_ANSWERS_PER_ITERATION:], waiters[_ANSWERS_PER_ITERATION:], size)
            self._loop.call_soon(self._appended, rest, base_offset + _ANSWERS_PER_ITERATION, error)
            dones, waiters, size = dones[:_ANSWERS_PER_ITERATION], waiters[:_ANSWERS_PER_ITERATION], 0
        else:
            accumulator.in_flight -= 1
        self._in_flight -= len(dones)
        self.buffered -= len(dones)
        self.buffered_bytes -= size
        self._answers.answer(dones, waiters, accumulator.partition.partition, base_offset, error)
        if self._waiting:
            self._admit_waiting()
        if accumulator.records and not accumulator.in_flight and not accumulator.dirty:
            self._mark_dirty(accumulator)
        self._maybe_empty()


def _size(record: NewRecordFields) -> int:
    """Size of a record in the buffer."""
    key, value, headers, _ = record
    return len(key or b"") + len(value or b"") + headers_bytes(headers)


def headers_bytes(headers: Sequence[Header]) -> int:
    """Size of a record's headers: their names and values."""
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)


def _batch_bytes(size: int, headers: Sequence[Header]) -> int:
    """Upper bound for the size of a record in a batch."""
    return size + _RECORD_OVERHEAD_BYTES + _HEADER_OVERHEAD_BYTES * len(headers)

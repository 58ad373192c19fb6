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
that is chosen anew for each. Asynchronous ones go on to another partition behind every ten: a
single client may send hundreds while a batch is in flight, and kafka-pixy spreads them. The
partitioners `random` and `roundrobin` choose per record, as their names say.

The buffer has limits in messages and bytes, which count records from their arrival to their answer.
Callers that find it full queue in FIFO order; the queue is bounded as well. Partitions that do not
answer have at most half of the buffer (`silent_partitions`). No accepted record is dropped
silently: it is answered, or, if asynchronous, counted and logged.

Asynchronous records survive an outage of the backend. They are written within
`KeptRecords.keep_s`, counted
from the flush that sends them first; this is longer than the limit of synchronous records, because
nobody waits:

    all records of a batch are asynchronous   the backend has that time: it knows what it has sent,
                                              and repeats nothing that was written
    some are                                  it has the limit of the synchronous ones, from the
                                              arrival of the first of them; they get its error, the
                                              others are kept
    the backend refuses them at once          asynchronous ones are kept

What is kept is sent again after growing pauses, batch by batch; what comes later for the partition
stays behind it. Of these later records the synchronous ones are answered at their own limit, and so
are callers that queue for room meanwhile. If the outcome of a mixed batch, or of a part of one, is
unknown at that limit, its asynchronous records may be written twice: better than not at all.

A flush with asynchronous records is one batch. What does not fit into it is flushed when it is
answered, and so are records that have come later behind a batch which was in flight for long: each
batch has its own time, and none is written before the one ahead of it has failed for good. Batches
of synchronous records alone are sent at once: none of them is sent again.

A batch that the backend refuses because of some of its records is divided (`divided_batches`), so
that only these fail. Records that are too large for a topic whose limit is known are refused before
they are sent.

The accumulator holds each topic's description. A record with another description updates it:

    more partitions               used from this record on; the others keep their records
    partitions without a leader   records without a key go to the others, while there are any
    partitions led here           records without a key go there, if there are some
    deleted                       accumulated, in-flight and queued records get `Unavailable`
    deleted and created again     accumulated records go to the new topic, in order, as if they had
                                  come a moment later; those of a partition that the new topic lacks
                                  get `Unavailable`

That is no mistake of their callers, who may try again: a later call is told what is wrong with it,
if anything is.

Accepted records never recreate a deleted topic: whoever deletes a topic does not expect it back
with the rest of its records. Deleted topics are forgotten whenever the number of known topics has
doubled.
"""

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import structlog

from pixy.backend import Backend, Batch, DividedPart, TopicDescription
from pixy.clock import Clock
from pixy.config import ProducerConfig
from pixy.errors import PixyError, Unavailable, UnknownPartition
from pixy.faults import OnFault, internal_error
from pixy.metrics import BYTE_BOUNDS, Histogram
from pixy.proxy.batch_sizes import BatchSizes
from pixy.proxy.divided_batches import BatchDone, Divided, divided, without
from pixy.proxy.kept_records import KeptRecords
from pixy.proxy.late_records import LateRecords
from pixy.proxy.lost_messages import LostMessages
from pixy.proxy.produce_answers import ProduceDone, answer
from pixy.proxy.produced_counts import ProducedCounts
from pixy.proxy.silent_partitions import SilentPartitions
from pixy.proxy.topic_accumulators import (
    HEADER_MEMORY_BYTES,
    HEADER_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    PartitionAccumulator,
    ProduceBatch,
    TopicAccumulators,
    content_bytes,
    first_run,
)
from pixy.records import COMPRESSION, Header, Partitioner, build_batch

log = structlog.get_logger(__name__)

_LINGER_S = 0.002
_BATCHES_PER_ITERATION = 64
_ANSWERS_PER_ITERATION = 512
"""Batches sent, and records of a batch answered, in one iteration of the loop: 1 or 2 ms each."""
_TOGETHER_MAX = 10
"""Asynchronous records without a key that go to one partition, one behind the other."""
_NEVER = sys.maxsize
_TOPICS_MIN = 64
_TOPICS_LOGGED = 100


Produce = tuple[TopicDescription, bytes | None, bytes | None, Sequence[Header], int, ProduceDone, Any, bool]
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
        buffered_bytes: size of their keys, values and headers, with `HEADER_MEMORY_BYTES` for each
            header.
        produced: what was written.
        sent_bytes: sizes of the batches that were sent.
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
        self._kept = KeptRecords(options, self._monotonic, self._append, self._give_up_kept)
        self._late = LateRecords(options.timeout, self._monotonic, self._answer_late, self._refuse_queued)
        self._lost = LostMessages()
        self._silent = SilentPartitions(
            options.channel_buffer_size, options.buffer_bytes, self._admit_waiting
        )
        self._abandoned = False
        self.buffered = 0
        self.buffered_bytes = 0
        self.produced = ProducedCounts()
        self.sent_bytes = Histogram(BYTE_BOUNDS)

    def append(  # noqa: PLR0912, PLR0913, PLR0917  # once per record: an options object costs as much as the rest of it
        self,
        description: TopicDescription,
        key: bytes | None,
        value: bytes | None,
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
            size: `record_size` of the record.
            done: answers `waiter`, together with the other callers of its batch.
            since: arrival of a record that has queued and has room; None for a new record.

        Returns:
            The queued record, to be cancelled if the caller goes away; None if there is room.

        Raises:
            Unavailable: the queue is full, or the partition does not answer and there is no room
                for more of its records.
        """
        # `_has_room`, inlined.
        if since is None and (
            self._waiting
            or self.buffered >= self._silent.records_max
            or (self.buffered_bytes + size > self._silent.bytes_max and self.buffered)
        ):
            return self._wait((description, key, value, headers, size, done, waiter, sync))
        topic = self._topics.get(description.name)
        if topic is None or topic.description is not description:
            topic = self._look_at(description)
        accumulator = topic.unkeyed if key is None else None
        if (
            accumulator is None
            or not accumulator.records
            or (not sync and len(accumulator.records) >= _TOGETHER_MAX)
        ):
            accumulator = topic.choose(key)
        if accumulator.silent is not None or not accumulator.records:
            self._check_leader(topic, accumulator, size)
        packed_bytes = size + RECORD_OVERHEAD_BYTES
        if headers:
            packed_bytes += (HEADER_OVERHEAD_BYTES - HEADER_MEMORY_BYTES) * len(headers)
        dirty = accumulator.dirty
        if dirty and accumulator.batch_bytes + packed_bytes > self._options.flush_bytes:
            self._flush(accumulator)
            dirty = False
        if accumulator.silent is not None:
            self._silent.count(accumulator.silent, 1, size)
        accumulator.records.append((key, value, headers, self._wall_ns() // 1_000_000))
        accumulator.bytes += size
        accumulator.batch_bytes += packed_bytes
        if not self.buffered:
            self._empty.clear()
        self.buffered += 1
        self.buffered_bytes += size
        if since is not None:
            self._late.admitted(accumulator, since)
        if not dirty and not accumulator.in_flight:
            self._mark_dirty(accumulator)
        if self._flush_timer is not None and self.buffered - self._in_flight >= self._linger_target:
            self._flush_timer.cancel()
            self._flush_timer = None
            self._loop.call_soon(self._flush_dirty)
        accumulator.waiters.append(waiter)
        if sync:
            if accumulator.since is None:
                accumulator.since = self._monotonic() if since is None else since
            accumulator.dones.append(done)
        else:
            accumulator.dones.append(None)
            accumulator.asynchronous = True
            done((waiter,), -1, -1, None)
        return None

    @property
    def waiting(self) -> int:
        """Number of queued records."""
        return len(self._waiting)

    @property
    def lost(self) -> int:
        """Asynchronous records that were not written."""
        return self._lost.total

    async def drained(self) -> None:
        """Flush everything, and wait until it is answered."""
        self._flush_dirty()
        await self._empty.wait()

    def abandon(self) -> int:
        """Give up all unanswered records and return their number.

        They may or may not be written.
        """
        self._abandoned = True
        self._kept.stop()
        self._late.stop()
        self._silent.stop()
        messages = self.buffered + len(self._waiting)
        if messages:
            topics = {name: topic.messages for name, topic in self._topics.items() if topic.unanswered}
            most = sorted(topics, key=lambda name: -topics[name])[:_TOPICS_LOGGED]
            log.error(
                "stopped with messages that are not known to be written",
                messages=messages,
                topics={name: topics[name] for name in most},
            )
        return messages

    def report_lost(self) -> None:
        """Log the asynchronous records that were lost since the last report."""
        self._lost.report()

    # --- into the buffer --------------------------------------------------------------------------

    def _has_room(self, size: int) -> bool:
        return self.buffered < self._silent.records_max and (
            self.buffered_bytes + size <= self._silent.bytes_max or not self.buffered
        )

    def _wait(self, produce: Produce) -> _Waiting:
        options = self._options
        waiting = _Waiting(produce, self._monotonic(), self._give_up)
        if self._silent.any:
            self._check_silent(produce[0], produce[1], waiting.size)
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

    def _check_silent(self, description: TopicDescription, key: bytes | None, size: int) -> None:
        """Check that a record may queue, if its partition is certain already."""
        if len(description.partitions) == 1 or (key is not None and self._partitioner.stays):
            accumulator = self._look_at(description).choose(key)
            if accumulator.silent is not None:
                self._silent.check(accumulator, size)

    def _check_leader(self, topic: TopicAccumulators, accumulator: PartitionAccumulator, size: int) -> None:
        """Check that there is room for a record, if its partition does not answer."""
        if accumulator.silent is None and topic.is_leaderless(accumulator):
            self._silent.begin(accumulator)
        if accumulator.silent is not None:
            self._silent.check(accumulator, size)

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
        admitted = 0
        while self._waiting and self._has_room(next(iter(self._waiting)).size):
            if admitted == _ANSWERS_PER_ITERATION:
                self._loop.call_soon(self._admit_waiting)
                break
            admitted += 1
            waiting, _ = self._waiting.popitem(last=False)
            self._waiting_bytes -= waiting.size
            before, key, value, headers, size, done, waiter, sync = waiting.produce
            description = self._backend.topic(before.name)
            if description is None:
                deleted = (
                    f"topic {before.name} was deleted while the message waited for room in the producer's buffer; the message "
                    "was not written: try again"
                )
                done((waiter,), -1, -1, Unavailable(deleted))
                continue
            try:
                self.append(description, key, value, headers, size, done, waiter, sync, waiting.since)
            except Unavailable as error:
                done((waiter,), -1, -1, error)
        self._maybe_empty()

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
        """Send accumulated records: as one batch, and the others when it is answered.

        If all are synchronous, many batches are sent at a time.
        """
        if accumulator.silent is None:
            self._silent.watch(accumulator)
        now = self._monotonic()
        self._late.watch(accumulator, now)
        accumulator.dirty = False
        self._send(accumulator, now)
        sent = 1
        while accumulator.due and not accumulator.asynchronous and sent < _BATCHES_PER_ITERATION:
            self._send(accumulator, now)
            sent += 1

    def _send(self, accumulator: PartitionAccumulator, now: float) -> None:
        """Send the first accumulated records as a batch, as many as fit into it and have one age.
        Those that are too large for the topic are refused.
        """
        since, count = accumulator.since, len(accumulator.records)
        if accumulator.marks and since is not None and now - since > self._late.pause_s:
            count = first_run(accumulator.marks, since, count)
        limit = self._backend.batch_bytes_max(accumulator.partition.topic)
        too_large: list[int] = []
        if accumulator.batch_bytes > min(self._options.flush_bytes, limit or _NEVER):
            sizes = BatchSizes(self._options.flush_bytes, limit, self._compression)
            count, too_large = sizes.fitting(accumulator.records, 0, count)
        batch, since = accumulator.take(count, now + self._kept.keep_s)
        accumulator.in_flight += 1
        accumulator.unanswered += count
        accumulator.unanswered_bytes += batch.size
        self._in_flight += count
        age_s = self._options.timeout - self._kept.keep_s if since is None else now - since
        if not too_large:
            self._append(batch, age_s)
            return
        assert batch.records is not None
        error = sizes.error(accumulator.partition.topic)
        for part in self._parts(batch, without(batch, batch.records, dict.fromkeys(too_large, error))):
            self._append(part, age_s)

    def _flush_due(self, accumulator: PartitionAccumulator) -> None:
        """Send what the last flush has left."""
        if accumulator.in_flight:
            return
        if accumulator.records:
            self._flush(accumulator)
        else:
            accumulator.due = False
            self._late.unwatch(accumulator)

    def _append(self, batch: ProduceBatch, age_s: float) -> None:
        try:
            packed, done = self._pack(batch), self._done(batch)
            self._backend.append(batch.accumulator.partition, packed, len(batch.dones), done, age_s)
        except PixyError as error:
            self._appended(batch, -1, error)
        except Exception as bug:
            self._on_fault(bug)
            self._appended(batch, -1, internal_error(bug))

    def _done(self, batch: ProduceBatch) -> BatchDone:
        # Only asynchronous records are needed once more.
        kept = batch if batch.until else batch._replace(records=None)
        return BatchDone(kept, content_bytes(batch), self._appended, self._divide)

    def _pack(self, batch: ProduceBatch) -> bytearray:
        assert batch.records is not None
        packed = build_batch(batch.records, self._compression)
        self.sent_bytes.observe(len(packed))
        return packed

    def _divide(
        self,
        batch: ProduceBatch,
        packed: Batch,
        faults: Mapping[int, PixyError],
        bytes_max: int | None,
    ) -> list[DividedPart]:
        """Divide a batch in flight; see `DivisibleDone.divide`."""
        sizes = None
        if bytes_max is not None:
            sizes = BatchSizes(self._options.flush_bytes, bytes_max, self._compression)
        parts = self._parts(batch, divided(batch, packed, faults, sizes))
        return [DividedPart(self._pack(part), len(part.dones), self._done(part)) for part in parts]

    def _parts(self, batch: ProduceBatch, divided: Divided) -> list[ProduceBatch]:
        """The parts of a batch that are written; the others are answered soon."""
        parts, refused = divided
        batch.accumulator.in_flight += len(parts) + len(refused) - 1
        self._loop.call_soon(self._refuse, deque(refused))
        return parts

    def _refuse(self, refused: deque[tuple[ProduceBatch, PixyError]]) -> None:
        """Answer records that are at fault, each of which may have an error of its own."""
        for _ in range(min(len(refused), _BATCHES_PER_ITERATION)):
            part, error = refused.popleft()
            self._appended(part, -1, error)
        if refused:
            self._loop.call_soon(self._refuse, refused)

    def _appended(
        self, batch: ProduceBatch, base_offset: int, error: PixyError | None, written_bytes: int = 0
    ) -> None:
        accumulator, dones, waiters, size, _, until = batch
        if until and error is not None and self._kept.may_keep(batch, error):
            dones, waiters, size = self._kept.keep(batch, error)
        if len(dones) > _ANSWERS_PER_ITERATION:
            at = slice(_ANSWERS_PER_ITERATION, None)
            rest = ProduceBatch(accumulator, dones[at], waiters[at], size, None, 0.0)
            self._loop.call_soon(self._appended, rest, base_offset + _ANSWERS_PER_ITERATION, error)
            dones, waiters, size = dones[:_ANSWERS_PER_ITERATION], waiters[:_ANSWERS_PER_ITERATION], 0
        else:
            accumulator.in_flight -= 1
        accumulator.unanswered -= len(dones)
        accumulator.unanswered_bytes -= size
        self._in_flight -= len(dones)
        if dones:
            if error is None:
                self.produced.add(accumulator.partition.topic, len(dones), written_bytes)
            self._answer(accumulator, dones, waiters, size, base_offset, error)
        if error is None or not accumulator.in_flight:
            self._silent.answered(accumulator, error)
        if self._waiting:
            self._admit_waiting()
        self._go_on(accumulator, error)
        self._maybe_empty()

    def _answer(
        self,
        accumulator: PartitionAccumulator,
        dones: list[ProduceDone | None],
        waiters: list[Any],
        size: int,
        base_offset: int,
        error: PixyError | None,
    ) -> None:
        self.buffered -= len(dones)
        self.buffered_bytes -= size
        if accumulator.silent is not None:
            self._silent.count(accumulator.silent, -len(dones), -size)
        topic, partition = accumulator.partition
        if isinstance(error, UnknownPartition):
            # It was there when the records came.
            error = Unavailable(
                f"topic {topic} was deleted, or replaced by one without partition {partition}, while the message was on its "
                "way; the message was not written: try again"
            )
        asynchronous = answer(dones, waiters, partition, base_offset, error)
        if error is not None and asynchronous and not self._abandoned:
            self._lost.add(topic, asynchronous, error)

    def _go_on(self, accumulator: PartitionAccumulator, error: PixyError | None) -> None:
        """Send what is due after an answer."""
        if accumulator.kept:
            self._kept.go_on(accumulator, error)
        elif accumulator.in_flight:
            return
        elif accumulator.due:
            self._loop.call_soon(self._flush_due, accumulator)
        else:
            self._late.unwatch(accumulator)
            if accumulator.records and not accumulator.dirty:
                self._mark_dirty(accumulator)

    def _give_up_kept(self, batch: ProduceBatch, error: PixyError) -> None:
        self._appended(batch, -1, error)

    # --- late records -----------------------------------------------------------------------------

    def _answer_late(self, batch: ProduceBatch, error: Unavailable) -> None:
        self._answer(batch.accumulator, batch.dones, batch.waiters, batch.size, -1, error)
        self._admit_waiting()
        self._maybe_empty()

    def _refuse_queued(self, since: float, error: Unavailable) -> None:
        """Refuse callers that have queued for room since a time."""
        while self._waiting and (first := next(iter(self._waiting))).since <= since:
            first.cancel()
            done, waiter = first.produce[5], first.produce[6]
            done((waiter,), -1, -1, error)

"""An idempotent producer of whole record batches: in order, each written once.

Every partition has a queue (`produce_queue`). Its first batch is *in flight*, the others wait: with
one batch of a partition in flight, retries cannot reorder, and the broker detects every duplicate
(it remembers the last five batches). Each broker gets one request at a time, with the first batches
of all partitions that it leads; batches that come meanwhile accumulate for the next one.

A batch gets producer id, epoch and sequence when it is first sent and keeps them in every retry: if
an attempt was written without a response, the broker answers the next one with its offset. The
sequence of a partition advances only when a batch is known to be written. If that is unknown (the
batch has timed out), or the broker disagrees, the partition continues with a new producer id and
sequence 0.

A batch has `delivery_timeout_s`, less the age that it comes with, which may be negative. Single
attempts end earlier, so that a broker that hangs leaves time for its successor. At the end:

    not written (no leader, no connection, refused)    Unavailable, with the last reason
    an attempt was sent, its outcome is unknown        DeadlineExceeded, with the last reason
    refused for good (too large, not allowed, ...)     that error, at once
    the same behind an attempt of unknown outcome      DeadlineExceeded, with that error, at once

Brokers judge a batch before they look for duplicates. So if the options of the topic have changed
meanwhile, they refuse a batch that they have written.

A batch of several callers that is refused because of some of its records is divided
(`DivisibleDone`), in the place where it is, with the time that it has left. If it is too large, the
limit of its topic is asked for first (`topic_limits`). Nothing of the batch was written, so its
first part gets its sequence. Unless an attempt without a response was written, and only the next
one refused: then the broker does not accept the sequence of the part, and none is written again.

With a `TransactionalId` the batches belong to its transaction: id and epoch are the transaction's.
A broker that disagrees about them, or a batch with an unknown outcome, is an error, and the owner
aborts. Nobody waits for a single one of these batches, so the time of each begins when it is the
first of its partition, however many are before it.

Limits: `buffer_bytes` of queued and in-flight batches; `_REQUEST_BYTES` of one request.

Road not taken: several requests in flight to a broker. It answers them in order anyway, and
accumulating makes fewer, larger requests.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

import structlog

from pixy.aio.retries import Backoff
from pixy.aio.tasks import Tasks
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.errors import (
    CORRUPT_MESSAGE,
    DUPLICATE_SEQUENCE_NUMBER,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    PRODUCER_FENCED,
    RECORD_LIST_TOO_LARGE,
    REQUEST_TIMED_OUT,
    UNKNOWN_PRODUCER_ID,
    UNKNOWN_SERVER_ERROR,
    BrokerFault,
    code_name,
    error_for_code,
    is_retriable,
)
from pixy.backend.kafka.options import KafkaOptions
from pixy.backend.kafka.produce_queue import PendingBatch, ProduceQueue, ProducerId
from pixy.backend.kafka.topic_limits import TopicLimits
from pixy.backend.protocol import BATCH_MEMORY_BYTES, AppendDone, DivisibleDone
from pixy.errors import DeadlineExceeded, Internal, PixyError, ShuttingDown, Unavailable, UnknownPartition
from pixy.faults import internal_error
from pixy.kafka_protocol.messages import PRODUCE
from pixy.kafka_protocol.transaction_messages import INIT_PRODUCER_ID
from pixy.records import TopicPartition, patch_producer

_log = structlog.get_logger(__name__)

PURPOSE = "produce"
TRANSACTIONS = "transactions"
"""Transactions have connections of their own: their bulk would delay messages."""

_ALL_REPLICAS = -1
_REQUEST_BYTES = 8 << 20
_SEQUENCES = 2**31
_ATTEMPTS_MIN = 3
"""Attempts without a response that fit into `delivery_timeout_s`."""
_ATTEMPT_MIN_S = 0.2
_LOOK_S = 0.02
"""Time between two looks for batches whose time is over."""
_MAYBE_WRITTEN = frozenset({REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND})
_OUT_OF_STEP = frozenset(
    {OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID, PRODUCER_FENCED}
)
_OF_RECORDS = frozenset({MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, INVALID_RECORD})
"""Some records of the batch are at fault, or it has too many."""


class TransactionalId(NamedTuple):
    """A transactional id, with the producer id and epoch from its coordinator."""

    name: str
    producer: ProducerId


class _PartitionAnswer(NamedTuple):
    """The response for one partition.

    Attributes:
        record_errors: numbers of the records at fault, with the broker's reasons (KIP-467); empty
            if it does not name them.
    """

    code: int
    offset: int
    message: str | None
    record_errors: Mapping[int, str | None]


_MISSING = _PartitionAnswer(UNKNOWN_SERVER_ERROR, -1, "the answer lacks the partition", {})


class Producer:
    """Writes the batches of one cluster.

    Args:
        client: connections and metadata.
        options: acks, time limits and sizes.
        on_fault: called with an exception that is a bug.
        transaction: the transaction of all batches, if any.
        topic_ids: ids of topics, by name; batches for others of these names are refused.

    Attributes:
        buffered_bytes: memory of the unanswered batches.
        limits: what is known of the topics' limits.
    """

    def __init__(
        self,
        client: KafkaClient,
        options: KafkaOptions,
        on_fault: Callable[[BaseException], None],
        transaction: TransactionalId | None = None,
        topic_ids: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        self._client = client
        self._options = options
        self._transactional_id = None if transaction is None else transaction.name
        self._acks = options.required_acks if transaction is None else _ALL_REPLICAS
        self._topic_ids = topic_ids
        self._purpose = PURPOSE if transaction is None else TRANSACTIONS
        self._loop = asyncio.get_running_loop()
        self._attempt_s = max(options.delivery_timeout_s / _ATTEMPTS_MIN, _ATTEMPT_MIN_S)
        self._queues: dict[TopicPartition, ProduceQueue] = {}
        # Queues whose first batch is due once its leader is known and free, in order of arrival.
        self._ready: dict[ProduceQueue, None] = {}
        # Brokers with a request in flight.
        self._busy: set[int] = set()
        self._scheduled = False
        # Set to the earliest deadline or earlier. Invariant: `_expires_at` is its time, infinite
        # without a timer.
        self._timer: asyncio.TimerHandle | None = None
        self._expires_at = inf
        # The producer id of partitions without one.
        self._producer: ProducerId | None = None if transaction is None else transaction.producer
        # Partitions that no batch of a transaction is written to any more.
        self._ended: set[TopicPartition] = set()
        self._tasks = Tasks(on_fault)
        self._empty = asyncio.Event()
        self._empty.set()
        self._stopped = False
        self.buffered_bytes = 0
        self.limits = TopicLimits(client)
        client.listeners.append(self._topics_changed)

    def append(
        self,
        partition: TopicPartition,
        batch: bytearray,
        records: int,
        done: AppendDone,
        age_s: float = 0.0,
    ) -> None:
        """Queue a batch; as `Backend.append`."""
        known = self._client.metadata.topics.get(partition.topic)
        if known is None or not 0 <= partition.partition < len(known.partitions):
            count = 0 if known is None else len(known.partitions)
            raise UnknownPartition(
                f"unknown partition {partition.partition} of topic {partition.topic}, which has {count}"
            )
        if self._stopped:
            done(-1, ShuttingDown())
            return
        size = len(batch) + BATCH_MEMORY_BYTES
        if self.buffered_bytes and self.buffered_bytes + size > self._options.buffer_bytes:
            error = Unavailable(f"{self.buffered_bytes} bytes wait to be written to Kafka; slow down")
            done(-1, error.at_limit("producer.buffer_bytes"))
            return
        now, limit_s = self._loop.time(), self._options.delivery_timeout_s
        queue = self._queues.get(partition)
        if queue is None or queue.topic_id != known.topic_id:
            if queue is not None:
                self._end_sequence(queue)
            expected_id = self._topic_ids.get(partition.topic, known.topic_id)
            if partition in self._ended or expected_id != known.topic_id:
                done(-1, self._deleted(partition))
                return
            queue = ProduceQueue(partition, known.topic_id, self._backoff(), limit_s)
            self._queues[partition] = queue
        limit_s -= min(age_s, 0.0)
        deadline = now + limit_s - max(age_s, 0.0)
        if self._transactional_id is not None and queue.pending:
            deadline = inf
        pending = PendingBatch(batch, records, done, deadline, limit_s, aged=age_s > 0)
        if pending.deadline <= now:
            done(-1, self._time_is_over(queue, pending))
            return
        is_first = not queue.pending
        queue.add(pending)
        self.buffered_bytes += size
        self._empty.clear()
        self._watch(pending.deadline)
        if is_first:
            self._make_ready(queue)

    async def written(self) -> None:
        """Wait until all batches are answered."""
        await self._empty.wait()

    def give_up(self) -> None:
        """Answer all batches soon, without further attempts."""
        self._limit(self._loop.time())

    def _limit(self, latest: float) -> None:
        for queue in self._queues.values():
            for pending in queue:
                pending.deadline = min(pending.deadline, latest)
        self._watch(latest)

    async def stop(self) -> None:
        """Refuse further batches, and return when all others are answered, at their deadlines and
        within `delivery_timeout_s` at the latest.
        """
        self._stopped = True
        self._limit(self._loop.time() + self._options.delivery_timeout_s)
        await self._empty.wait()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.wait_all()
        if self._topics_changed in self._client.listeners:
            self._client.listeners.remove(self._topics_changed)

    # --- out --------------------------------------------------------------------------------------

    def _make_ready(self, queue: ProduceQueue) -> None:
        if queue.pending and not queue.in_flight:
            self._ready[queue] = None
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        """Send one request to every broker without one in flight, with its ready batches."""
        self._scheduled = False
        leader_of = self._client.metadata.leader
        requests: dict[int, list[ProduceQueue]] = {}
        sizes: dict[int, int] = {}
        for queue in list(self._ready):
            leader = leader_of(*queue.partition)
            if leader < 0:
                self._no_leader(queue)
                continue
            size = len(queue.pending[0].batch)
            if leader in self._busy or (leader in sizes and sizes[leader] + size > _REQUEST_BYTES):
                continue
            requests.setdefault(leader, []).append(queue)
            sizes[leader] = sizes.get(leader, 0) + size
            del self._ready[queue]
        for leader, queues in requests.items():
            self._busy.add(leader)
            for queue in queues:
                queue.in_flight, queue.sent = True, False
            self._tasks.spawn(self._send(leader, queues), f"produce to broker {leader}")

    def _no_leader(self, queue: ProduceQueue) -> None:
        """Let the first batch wait for a change of metadata."""
        queue.reason = self._client.no_leader(queue.partition)
        if self._loop.time() >= queue.not_before:
            self._back_off(queue)

    async def _send(self, leader: int, queues: list[ProduceQueue]) -> None:
        try:
            await self._send_in_time(leader, queues)
        except Exception as bug:
            self._tasks.on_fault(bug)
            self._fail_in_flight(queues, internal_error(bug))
        finally:
            self._busy.discard(leader)
            self._schedule()

    async def _send_in_time(self, leader: int, queues: list[ProduceQueue]) -> None:
        """One request and its answer."""
        try:
            producer = await self._producer_id_for(queues)
            queues = self._drop_late(queues)
            self._sequence(queues, producer)
            await self._client.connect(leader, self._purpose, self._attempt_s)
            queues = self._drop_late(queues)
            answers = await self._exchange(leader, queues) if queues else {}
        except PixyError as error:
            # `stop` waits for the batches of a request in flight; the client stops after the
            # producer.
            maybe_sent = isinstance(error, BrokerFault) and error.sent
            for queue in queues:
                self._failed(queue, str(error), maybe_written=queue.sent and maybe_sent)
            self._client.request_refresh({queue.partition.topic for queue in queues})
        else:
            for queue in queues:
                self._answered(queue, answers.get(queue.partition, _MISSING))

    def _drop_late(self, queues: Iterable[ProduceQueue]) -> list[ProduceQueue]:
        """Drop batches that were answered while their request was prepared, or whose topic has
        gone: they must not be written any more, and have no place in the sequence.
        """
        in_time = []
        for queue in queues:
            if queue.pending[0].answered or self._is_gone(queue):
                self._give_up(queue)
            else:
                in_time.append(queue)
        return in_time

    async def _exchange(
        self, leader: int, queues: list[ProduceQueue]
    ) -> dict[TopicPartition, _PartitionAnswer]:
        """The response for each partition.

        Does not suspend before the batches are sent.
        """
        for queue in queues:
            queue.sent = True
        answer = await self._client.send(leader, self._request(queues), self._purpose, self._attempt_s)
        return {
            TopicPartition(topic, number): _PartitionAnswer(error, offset, message, dict(record_errors))
            for topic, partitions in answer.topics
            for number, error, offset, _, _, record_errors, message in partitions
        }

    def _request(self, queues: Iterable[ProduceQueue]) -> Any:
        topics: dict[str, list[tuple[int, bytearray]]] = {}
        for queue in queues:
            topic, number = queue.partition
            topics.setdefault(topic, []).append((number, queue.pending[0].batch))
        return PRODUCE(self._transactional_id, self._acks, int(self._attempt_s * 1000), list(topics.items()))

    def _sequence(self, queues: Iterable[ProduceQueue], producer: ProducerId | None) -> None:
        """Write producer id and sequence into new batches.

        Args:
            producer: the id of queues that have none.
        """
        for queue in queues:
            if queue.producer is None:
                queue.producer = producer
                queue.sequence = 0
                queue.pending[0].sequenced = False
            pending = queue.pending[0]
            if not pending.sequenced:
                assert queue.producer is not None
                transactional = self._transactional_id is not None
                patch_producer(pending.batch, *queue.producer, queue.sequence, transactional=transactional)
                pending.sequenced = True

    async def _producer_id_for(self, queues: Iterable[ProduceQueue]) -> ProducerId | None:
        """The producer id for queues without one, None if there are none."""
        if all(queue.producer is not None for queue in queues):
            return None
        if self._producer is None:
            answer = await self._client.send_any(
                INIT_PRODUCER_ID(None, 0), timeout_s=self._attempt_s, repeatable=True
            )
            if answer.error_code:
                raise error_for_code(answer.error_code, "cannot get a producer id")
            self._producer = ProducerId(answer.producer_id, answer.producer_epoch)
        return self._producer

    # --- answers ----------------------------------------------------------------------------------

    def _answered(self, queue: ProduceQueue, answer: _PartitionAnswer) -> None:
        """Handle the result of the first batch."""
        code, pending = answer.code, queue.pending[0]
        reason = answer.message or code_name(code)
        if code == 0:
            queue.sequence = (queue.sequence + pending.records) % _SEQUENCES
            queue.part_written()
            self._settle(queue, answer.offset, None)
        elif code in _OUT_OF_STEP and pending.whole_maybe_written:
            self._whole_written(queue)
        elif code in _OUT_OF_STEP and self._transactional_id is None:
            # It is not in the log, else the broker would have detected a duplicate.
            self._start_over(queue)
            pending.maybe_written = False
            self._failed(queue, reason, maybe_written=False)
        elif code == CORRUPT_MESSAGE or (is_retriable(code) and code not in _OUT_OF_STEP):
            # What is corrupt was so on its way; a leader that cannot replicate was perhaps deposed.
            self._client.request_refresh([queue.partition.topic])
            self._failed(queue, reason, maybe_written=code in _MAYBE_WRITTEN)
        elif self._is_gone(queue):
            self._give_up(queue)
        elif not self._may_divide(queue, answer):
            self._refused(queue, answer)
        elif code == MESSAGE_TOO_LARGE and self.limits.batch_bytes_max(queue.partition.topic) is None:
            queue.sent = False
            self._tasks.spawn(self._ask_and_divide(queue, answer), f"limit of {queue.partition.topic}")
        else:
            self._divide(queue, answer)

    def _fail_in_flight(self, queues: Iterable[ProduceQueue], error: PixyError) -> None:
        """Fail batches with an unknown outcome after a bug, without a retry; their partitions start
        over.
        """
        for queue in queues:
            if queue.in_flight and queue.pending:
                self._start_over(queue)
                self._settle(queue, -1, error)

    def _may_divide(self, queue: ProduceQueue, answer: _PartitionAnswer) -> bool:
        """False if the answer to a refused batch is that of all its records."""
        pending = queue.pending[0]
        return (
            answer.code in _OF_RECORDS
            and pending.records > 1
            and not pending.answered
            and isinstance(pending.done, DivisibleDone)
        )

    async def _ask_and_divide(self, queue: ProduceQueue, answer: _PartitionAnswer) -> None:
        """Divide the first batch, still in flight, when the limit of its topic was asked for."""
        pending = queue.pending[0]
        try:
            await self.limits.ask(queue.partition.topic)
            if not (queue.in_flight and queue.pending and queue.pending[0] is pending):
                return  # a bug has ended it
            if pending.answered or self._is_gone(queue):
                self._give_up(queue)
            else:
                self._divide(queue, answer)
        except Exception as bug:
            self._tasks.on_fault(bug)
            self._fail_in_flight([queue], internal_error(bug))

    def _divide(self, queue: ProduceQueue, answer: _PartitionAnswer) -> None:
        """Replace the first batch by its parts."""
        pending = queue.pending[0]
        faults = {
            record: self._refusal(queue, answer, message)
            for record, message in answer.record_errors.items()
            if 0 <= record < pending.records
        }
        limit = self.limits.batch_bytes_max(queue.partition.topic)
        if limit is not None and (len(pending.batch) <= limit or pending.outcome_unknown):
            limit = None  # it is not what the batch exceeds, or not what it exceeded before
        assert isinstance(pending.done, DivisibleDone)
        parts = pending.done.divide(pending.batch, faults, limit)
        if not parts and queue.in_doubt:
            self._start_over(queue)
        self._take_first(queue)
        for part in reversed(parts):
            divided = PendingBatch(part.batch, part.records, part.done, pending.deadline, pending.limit_s)
            divided.whole_maybe_written = pending.outcome_unknown
            self.buffered_bytes += divided.size
            queue.add_first(divided)
        if not self.buffered_bytes:
            self._empty.set()
        self._make_ready(queue)

    def _refusal(self, queue: ProduceQueue, answer: _PartitionAnswer, message: str | None) -> PixyError:
        """The error of a refused batch, or of some of its records. A transaction is aborted with
        what may have been written.
        """
        topic, number = queue.partition
        error = error_for_code(answer.code, f"cannot write to {topic}-{number}", message or answer.message)
        if queue.pending[0].outcome_unknown and self._transactional_id is None:
            return DeadlineExceeded(
                f"it is not known whether {topic}-{number} was written: an attempt had no answer, then {error}"
            )
        return error

    def _refused(self, queue: ProduceQueue, answer: _PartitionAnswer) -> None:
        if answer.code == DUPLICATE_SEQUENCE_NUMBER:
            self._start_over(queue)
            self._settle(queue, -1, self._without_offset(queue))
            return
        if queue.in_doubt or answer.code == UNKNOWN_SERVER_ERROR:
            self._start_over(queue)
        topic = queue.partition.topic
        if answer.code == MESSAGE_TOO_LARGE and self.limits.batch_bytes_max(topic) is None:
            self._tasks.spawn(self._ask(topic), f"limit of {topic}")
        message = next(iter(answer.record_errors.values()), None)
        self._settle(queue, -1, self._refusal(queue, answer, message))

    async def _ask(self, topic: str) -> None:
        """Learn the limit of a topic, for those that append to it next."""
        await self.limits.ask(topic)

    def _whole_written(self, queue: ProduceQueue) -> None:
        """The first batch, and some behind it, are parts of one that was written before it was
        divided.
        """
        self._start_over(queue)
        while queue.pending and queue.pending[0].whole_maybe_written:
            self._settle(queue, -1, self._without_offset(queue))

    @staticmethod
    def _without_offset(queue: ProduceQueue) -> Internal:
        topic, number = queue.partition
        return Internal(f"the batch was written to {topic}-{number}, but Kafka did not return its offset")

    def _failed(self, queue: ProduceQueue, reason: str, maybe_written: bool) -> None:
        """An attempt failed: retry the batch unless its time is over."""
        queue.in_flight = False
        queue.reason = reason
        pending = queue.pending[0]
        pending.maybe_written |= maybe_written
        if pending.answered or self._is_gone(queue):
            self._give_up(queue)
            return
        self._back_off(queue)

    def _backoff(self) -> Backoff:
        longest = self._options.retry_backoff_s
        return Backoff(longest / 100, longest)

    def _back_off(self, queue: ProduceQueue) -> None:
        pause_s = queue.backoff.grow()
        queue.not_before = self._loop.time() + pause_s
        self._ready.pop(queue, None)
        self._loop.call_later(pause_s, self._make_ready, queue)

    def _start_over(self, queue: ProduceQueue) -> None:
        """Continue the partition with a new producer id."""
        if self._transactional_id is None and self._producer == queue.producer:
            self._producer = None
        queue.producer = None
        if queue.pending:
            queue.pending[0].sequenced = False

    def _end_sequence(self, queue: ProduceQueue) -> None:
        """A queue goes, perhaps with a topic that the brokers know again later.

        Another one for the partition never has its producer id: the broker would take the first
        batches for repeats of those here, and confirm them without writing them.
        """
        if self._transactional_id is not None:
            self._ended.add(queue.partition)
        elif self._producer == queue.producer:
            self._producer = None

    def _settle(self, queue: ProduceQueue, offset: int, error: PixyError | None) -> None:
        """The first batch is answered; the next one is due."""
        pending = self._take_first(queue)
        if self._is_gone(queue):
            self._answer(pending, offset, error)
            self._fail_all(queue)
            return
        rest = [] if error is None else self._take_rest(queue, pending)
        if queue.pending:
            self._begin(queue.pending[0])
            self._make_ready(queue)
        for each in (pending, *rest):
            self._answer(each, offset, error)

    def _take_rest(self, queue: ProduceQueue, failed: PendingBatch) -> list[PendingBatch]:
        """The batches that a client appended behind one that failed: they would leave a hole."""
        rest = queue.remove_rest(failed)
        self.buffered_bytes -= sum(each.size for each in rest)
        return rest

    def _begin(self, pending: PendingBatch) -> None:
        """A batch is the first of its partition."""
        if pending.deadline == inf:
            pending.deadline = self._loop.time() + self._options.delivery_timeout_s
            self._watch(pending.deadline)

    def _take_first(self, queue: ProduceQueue) -> PendingBatch:
        pending = queue.pending[0]
        queue.remove(pending)
        self._ready.pop(queue, None)
        queue.in_flight = False
        queue.reason = ""
        queue.backoff.reset()
        queue.not_before = 0.0
        self.buffered_bytes -= pending.size
        return pending

    def _answer(self, pending: PendingBatch, offset: int, error: PixyError | None) -> None:
        if not pending.answered:
            pending.answered = True
            pending.done(offset, error)
        if not self.buffered_bytes:
            self._empty.set()

    # --- deadlines --------------------------------------------------------------------------------

    def _watch(self, deadline: float) -> None:
        """Set the timer for `_expire` to `deadline` or earlier."""
        if deadline < self._expires_at:
            if self._timer is not None:
                self._timer.cancel()
            self._expires_at = deadline
            self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        """Answer batches whose time is over."""
        now = self._loop.time()
        self._timer, self._expires_at = None, inf
        for queue in list(self._queues.values()):
            expired, next_deadline = queue.expired(now)
            for pending in expired:
                if not pending.answered:
                    self._run_out(queue, pending)
            self._watch(max(next_deadline, now + _LOOK_S))

    def _run_out(self, queue: ProduceQueue, pending: PendingBatch) -> None:
        if queue.in_flight and queue.pending[0] is pending:
            # The result of the attempt in flight only matters for the sequence.
            pending.maybe_written |= queue.sent
            self._answer(pending, -1, self._time_is_over(queue, pending))
            return
        if queue.pending[0] is pending:
            self._give_up(queue)
            return
        queue.remove(pending)
        self.buffered_bytes -= pending.size
        for each in (pending, *self._take_rest(queue, pending)):
            self._answer(each, -1, self._time_is_over(queue, each))

    def _give_up(self, queue: ProduceQueue) -> None:
        """Answer the first batch without another attempt."""
        pending = queue.pending[0]
        if queue.in_doubt:
            self._start_over(queue)
        gone = self._is_gone(queue)
        self._settle(
            queue, -1, self._deleted(queue.partition) if gone else self._time_is_over(queue, pending)
        )

    def _time_is_over(self, queue: ProduceQueue, pending: PendingBatch) -> PixyError:
        topic, number = queue.partition
        limit = f"{pending.limit_s:g} s"
        reason = queue.reason or self._client.fault or "the broker has not answered"
        if pending.outcome_unknown:
            return DeadlineExceeded(
                f"it is not known whether {topic}-{number} was written within {limit}: {reason}"
            )
        return Unavailable(f"{topic}-{number} could not be written within {limit}: {reason}")

    # --- topics come and go -----------------------------------------------------------------------

    def _topics_changed(self, names: set[str]) -> None:
        for queue in [each for each in self._queues.values() if each.partition.topic in names]:
            if self._is_gone(queue) and not queue.in_flight:
                self._fail_all(queue)
            else:
                self._make_ready(queue)  # its leader may have moved

    def _is_gone(self, queue: ProduceQueue) -> bool:
        """True if its topic was deleted; for good, once another queue has its place."""
        topic, number = queue.partition
        known = self._client.metadata.topics.get(topic)
        return (
            self._queues.get(queue.partition) is not queue
            or known is None
            or known.topic_id != queue.topic_id
            or number >= len(known.partitions)
        )

    def _fail_all(self, queue: ProduceQueue) -> None:
        """Fail the batches of a deleted topic, none of which is in flight."""
        self._ready.pop(queue, None)
        if self._queues.get(queue.partition) is queue:
            self._end_sequence(queue)
            del self._queues[queue.partition]
        while queue.pending:
            pending = queue.pending[0]
            queue.remove(pending)
            self.buffered_bytes -= pending.size
            self._answer(pending, -1, self._deleted(queue.partition))
        if not self.buffered_bytes:
            self._empty.set()

    @staticmethod
    def _deleted(partition: TopicPartition) -> UnknownPartition:
        return UnknownPartition(f"topic {partition.topic} was deleted")

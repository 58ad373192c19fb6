"""Fetches from Kafka: many waiting fetches share few Fetch requests.

A fetch queues in the *lane* of its partition's leader. In each iteration of the loop the queued
fetches of a lane are sent together, in one request on a free connection. A lane has `_CONNECTIONS`
of them, because a broker answers nothing else on a connection while it holds a request without
data. Fetches of one partition from the same offset share an entry of the request; other offsets go
into other requests, in order of arrival.

Fetches that returned without data are *idle*. Those of a partition share one entry, whatever their
offsets: while there is nothing at the smallest one, there is nothing at the others. And while more
offsets of a partition wait for a connection, the broker does not hold the request of one: it
returns with data, or is idle. So readers ahead of the end, which only an open transaction ends, are
in nobody's way.

The broker holds a request until there is data, or until the next *tick* of the lane
(`fetch_max_wait_s`), which is common to all of its requests: then their fetches return together and
continue in one request. So the idle partitions of a lane cost one request per tick, and a new fetch
is sent at once on another connection, or at the next tick if all are held.

Results are whole batches, validated and read committed: control batches and those of aborted
transactions are removed, and `next_offset` skips them like compacted offsets. The end is the last
stable offset.

Transient errors (no leader, no connection, a lagging broker) are retried for the wait of the fetch,
but at least `_PATIENCE_S`, and then raise `Unavailable`. A fetch without a limit has the same
patience with a partition without a leader, and `_SILENCE_S` with a broker that does not answer,
whose partitions other brokers take over before.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from pixy.aio.futures import reject, resolve
from pixy.aio.tasks import Tasks
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.errors import OFFSET_OUT_OF_RANGE, code_name, error_for_code, is_retriable, is_stale
from pixy.backend.kafka.legacy_messages import MAGIC_AT, LegacyMessage, pack_messages, read_messages
from pixy.backend.kafka.options import KafkaOptions
from pixy.backend.protocol import FetchResult
from pixy.errors import CorruptData, PixyError, ShuttingDown, Unavailable, UnknownPartition
from pixy.faults import OnFault, internal_error
from pixy.kafka_protocol.messages import FETCH, READ_COMMITTED
from pixy.records import (
    LENGTH_PREFIX_BYTES,
    MAGIC,
    TopicPartition,
    batch_bytes,
    check_batch,
    read_control_record,
    read_header,
)

_CONNECTIONS = 4
_ANSWER_S = 5.0
"""Time limit of a response beyond the time that the broker may hold the request."""
_REGROUP_S = 0.002
_PATIENCE_S = 3.0
_SILENCE_S = 15.0
_BACKOFF_S = 0.1
_REQUEST_BYTES = 16 << 20
_ABORT = 0
_MESSAGES_MAX = 1000
"""Limit of messages of formats 0 and 1 in one response: each takes microseconds to read."""


class OutOfRange(Exception):
    """The offset is out of range. Internal: callers of the backend get the range besides."""


class FetchedBatches(NamedTuple):
    """The batches of one partition in a response."""

    batches: list[memoryview]
    next_offset: int


class _Waiter:
    """One call of `fetch`."""

    __slots__ = ("failing_since", "max_bytes", "offset", "partition", "result", "topic_id", "until")

    def __init__(
        self, partition: TopicPartition, topic_id: bytes, offset: int, max_bytes: int, until: float | None
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.offset = offset
        self.max_bytes = max_bytes
        # End of the wait, None: no limit.
        self.until = until
        # Time of the first transient error since the last response.
        self.failing_since: float | None = None
        self.result: asyncio.Future[FetchResult] = asyncio.get_running_loop().create_future()

    def have_patience(self, now: float, silence_s: float = _PATIENCE_S) -> bool:
        """Note a transient error; True to retry.

        Args:
            silence_s: patience of a fetch without a limit.
        """
        if self.failing_since is None:
            self.failing_since = now
        if self.until is None:
            return self.failing_since + silence_s > now
        return max(self.until, self.failing_since + _PATIENCE_S) > now


class _Entry:
    """One partition in a request, with the fetches that wait for it.

    Attributes:
        offset: the smallest one of the fetches; others only if they are idle.
    """

    __slots__ = ("is_idle", "max_bytes", "offset", "waiters")

    def __init__(self, waiters: list[_Waiter], *, is_idle: bool) -> None:
        self.offset = min(waiter.offset for waiter in waiters)
        self.max_bytes = min(waiter.max_bytes for waiter in waiters if waiter.offset == self.offset)
        self.waiters = waiters
        self.is_idle = is_idle


_Key = tuple[bytes, int]
"""Id of a topic, and number of a partition."""
_Entries = dict[_Key, _Entry]


class _Lane:
    """The fetches from one broker."""

    def __init__(self) -> None:
        # By partition and offset in order of arrival; None: the idle ones. Invariant: no partition
        # without fetches.
        self.waiting: dict[_Key, OrderedDict[int | None, list[_Waiter]]] = {}
        self.free = list(range(_CONNECTIONS))
        # The scheduled next request; it is delayed for other fetches to return.
        self.next_look: asyncio.Handle | None = None
        self.is_put_off = False
        self.tick = 0.0

    def add(self, waiter: _Waiter, *, is_idle: bool) -> None:
        """Queue a fetch."""
        key = waiter.topic_id, waiter.partition.partition
        offsets = self.waiting.setdefault(key, OrderedDict())
        offsets.setdefault(None if is_idle else waiter.offset, []).append(waiter)

    def take(self) -> _Entries:
        """Take the fetches that fit into one request: of each partition the first offset."""
        entries: _Entries = {}
        for key, offsets in list(self.waiting.items()):
            while offsets and key not in entries:
                offset, waiters = offsets.popitem(last=False)
                if waiters := [each for each in waiters if not each.result.done()]:
                    entries[key] = _Entry(waiters, is_idle=offset is None)
            if not offsets:
                del self.waiting[key]
        return entries


class KafkaFetcher:
    """Reads the partitions of one cluster.

    Args:
        client: connections and metadata.
        options: time limits.
        on_fault: called with an exception that is a bug.
    """

    def __init__(self, client: KafkaClient, options: KafkaOptions, on_fault: OnFault) -> None:
        self._client = client
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[int, _Lane] = {}
        self._waiters: set[_Waiter] = set()
        self._tasks = Tasks(on_fault)
        self._stopped = False
        client.listeners.append(self._topics_changed)

    async def fetch(
        self, partition: TopicPartition, offset: int, max_bytes: int, max_wait: float | None
    ) -> FetchResult:
        """As `Backend.fetch`, but raises `OutOfRange` for an offset out of range."""
        if self._stopped:
            raise ShuttingDown
        known = self._client.metadata.topics.get(partition.topic)
        if known is None or not 0 <= partition.partition < len(known.partitions):
            count = 0 if known is None else len(known.partitions)
            raise UnknownPartition(
                f"unknown partition {partition.partition} of topic {partition.topic}, which has {count}"
            )
        until = None if max_wait is None else self._loop.time() + max_wait
        waiter = _Waiter(partition, known.topic_id, offset, max(max_bytes, 1), until)
        self._waiters.add(waiter)
        self._queue(waiter)
        try:
            return await waiter.result
        finally:
            self._waiters.discard(waiter)

    async def stop(self) -> None:
        """End all waiting fetches with `ShuttingDown`."""
        self._stopped = True
        for waiter in self._waiters:
            reject(waiter.result, ShuttingDown())
        await self._tasks.cancel_all()

    # --- grouping ---------------------------------------------------------------------------------

    def _queue(self, waiter: _Waiter, delay_s: float = 0.0, is_idle: bool = False) -> None:
        """Queue a fetch in the lane of its partition's leader."""
        leader = self._client.metadata.leader(*waiter.partition)
        if leader < 0:
            self._later(waiter, self._client.no_leader(waiter.partition), _PATIENCE_S)
            return
        lane = self._lanes.get(leader)
        if lane is None:
            lane = self._lanes[leader] = _Lane()
        lane.add(waiter, is_idle=is_idle)
        if lane.next_look is not None and (delay_s or not lane.is_put_off):
            return
        if lane.next_look is not None:
            lane.next_look.cancel()
        lane.is_put_off = delay_s > 0
        if delay_s:
            lane.next_look = self._loop.call_later(delay_s, self._send_waiting, leader, lane)
        else:
            lane.next_look = self._loop.call_soon(self._send_waiting, leader, lane)

    def _send_waiting(self, leader: int, lane: _Lane) -> None:
        lane.next_look = None
        while lane.waiting and lane.free and not self._stopped:
            entries = lane.take()
            if not entries:
                return
            connection = lane.free.pop(0)
            self._tasks.spawn(self._send(leader, lane, connection, entries), f"fetch from broker {leader}")

    def _hold_s(self, lane: _Lane, entries: _Entries) -> float:
        """Seconds that the broker may hold a request: to the tick, or the end of the first wait."""
        if any(key in lane.waiting and not entry.is_idle for key, entry in entries.items()):
            return 0.0
        now = self._loop.time()
        if lane.tick <= now:
            lane.tick = now + self._options.fetch_max_wait_s
        waiters = (waiter for entry in entries.values() for waiter in entry.waiters)
        ends = [waiter.until for waiter in waiters if waiter.until is not None]
        return max(0.0, min([lane.tick, *ends]) - now)

    # --- a request --------------------------------------------------------------------------------

    async def _send(self, leader: int, lane: _Lane, connection: int, entries: _Entries) -> None:
        waiters = [waiter for entry in entries.values() for waiter in entry.waiters]
        try:
            await self._exchange(leader, connection, lane, entries)
        except Exception as bug:
            self._tasks.on_fault(bug)
            for waiter in waiters:
                reject(waiter.result, internal_error(bug))
        finally:
            lane.free.append(connection)
            if lane.waiting and lane.next_look is None:
                self._send_waiting(leader, lane)

    async def _exchange(self, leader: int, connection: int, lane: _Lane, entries: _Entries) -> None:
        """Send one request and handle its response."""
        hold_s = self._hold_s(lane, entries)
        limit_s = hold_s + _ANSWER_S
        try:
            request = _request(entries, hold_s)
            answer = await self._client.send(leader, request, f"fetch {connection}", limit_s)
        except ShuttingDown:
            return
        except PixyError as error:
            self._client.request_refresh(entry.waiters[0].partition.topic for entry in entries.values())
            for entry in entries.values():
                for waiter in entry.waiters:
                    self._later(waiter, str(error))
        else:
            self._distribute(answer, entries)

    def _distribute(self, answer: Any, entries: _Entries) -> None:
        idle: list[_Waiter] = []
        delivered = False
        for topic_id, partitions, _ in answer.topics:
            for partition in partitions:
                entry = entries.pop((topic_id, partition[0]), None)
                if entry is None:
                    continue
                if partition[1]:
                    for waiter in entry.waiters:
                        self._refused(waiter, entry, partition[1])
                elif waiting := self._deliver(entry, partition):
                    idle += waiting
                else:
                    delivered = True
        # Behind the fetches with data: their callers fetch again, and all go together.
        for waiter in idle:
            self._queue(waiter, 0.0 if delivered else _REGROUP_S, is_idle=True)
        for entry in entries.values():
            reason = code_name(answer.error_code) if answer.error_code else "the answer lacks the partition"
            for waiter in entry.waiters:
                self._later(waiter, reason)

    def _deliver(self, entry: _Entry, partition: Any) -> list[_Waiter]:
        """Resolve the fetches of one partition; returns those that keep waiting."""
        _, _, high_watermark, stable_offset, log_begin, aborted, _, records, _ = partition
        try:
            batches, next_offset = read_batches(records or b"", entry.offset, entry.max_bytes, aborted or ())
        except CorruptData as error:
            for waiter in entry.waiters:
                topic, number = waiter.partition
                if waiter.offset > entry.offset:
                    self._queue(waiter)
                else:
                    reject(waiter.result, CorruptData(f"{topic}-{number} cannot be read: {error}"))
            return []
        end = stable_offset if stable_offset >= 0 else high_watermark
        now = self._loop.time()
        waiting = []
        for waiter in entry.waiters:
            if waiter.offset > entry.offset:
                if not max(end, next_offset) <= waiter.offset <= high_watermark:
                    self._queue(waiter)  # there is data at its offset, or it is out of range
                    continue
                result = FetchResult([], waiter.offset, log_begin, end, is_confirmed=False)
            elif end > entry.offset == next_offset:
                # There is more data than the response had room for.
                if self._have_patience(waiter, "the broker gives nothing of it"):
                    waiting.append(waiter)
                continue
            else:
                result = FetchResult(batches, next_offset, log_begin, end, is_confirmed=False)
            waiter.failing_since = None
            if result.next_offset == waiter.offset and (waiter.until is None or waiter.until > now):
                waiting.append(waiter)
            else:
                resolve(waiter.result, result)
        return waiting

    def _refused(self, waiter: _Waiter, entry: _Entry, code: int) -> None:
        topic, number = waiter.partition
        if code == OFFSET_OUT_OF_RANGE and waiter.offset > entry.offset:
            self._queue(waiter)
        elif code == OFFSET_OUT_OF_RANGE:
            reject(waiter.result, OutOfRange())
        elif is_retriable(code) or is_stale(code):
            if is_stale(code):
                self._client.request_refresh([topic])
            self._later(waiter, code_name(code))
        else:
            reject(waiter.result, error_for_code(code, f"cannot read {topic}-{number}"))

    def _later(self, waiter: _Waiter, reason: str, silence_s: float = _SILENCE_S) -> None:
        """Retry after a pause, or fail if the patience is used up."""
        if self._have_patience(waiter, reason, silence_s) and not waiter.result.done():
            self._loop.call_later(_BACKOFF_S, self._again, waiter)

    def _have_patience(self, waiter: _Waiter, reason: str, silence_s: float = _PATIENCE_S) -> bool:
        """Note a transient error; False if the fetch has failed with it, True to retry."""
        patient = waiter.have_patience(self._loop.time(), silence_s)
        if not patient:
            topic, number = waiter.partition
            reject(waiter.result, Unavailable(f"{topic}-{number} cannot be read: {reason}"))
        return patient

    def _again(self, waiter: _Waiter) -> None:
        if not waiter.result.done():
            self._queue(waiter)

    def _topics_changed(self, names: set[str]) -> None:
        """Fail the fetches of deleted topics, which the broker would hold until the tick."""
        topics = self._client.metadata.topics
        for waiter in list(self._waiters):
            topic, number = waiter.partition
            if topic in names:
                known = topics.get(topic)
                if known is None or known.topic_id != waiter.topic_id or number >= len(known.partitions):
                    reject(waiter.result, UnknownPartition(f"topic {topic} was deleted"))


def read_batches(
    records: bytes, offset: int, max_bytes: int, aborted: Iterable[tuple[int, int, Any]] = ()
) -> FetchedBatches:
    """The batches of one partition in a response, without control batches and aborted ones.

    Args:
        records: batches back to back; the last one may be cut off. Messages of formats 0 and 1 are
            packed into batches.
        offset: the requested offset.
        max_bytes: limit of the result, except for the first batch.
        aborted: (producer id, first offset) of the aborted transactions among them (KIP-98).

    Raises:
        CorruptData: the first batch is damaged. A later damaged batch ends the result.
    """
    answer = _Answer(offset, aborted)
    at, view = 0, memoryview(records)
    while at + MAGIC_AT < len(records):
        size = batch_bytes(records, at)
        if size < LENGTH_PREFIX_BYTES or at + size > len(records) or (at and at + size > max_bytes):
            if size < LENGTH_PREFIX_BYTES and not at:
                raise CorruptData(f"the record batch behind offset {offset} says it has {size} bytes")
            break
        try:
            if records[at + MAGIC_AT] < MAGIC:
                answer.take_messages(view[at : at + size])
            else:
                answer.take_batch(view[at : at + size])
        except CorruptData:
            if at:
                break
            raise
        if len(answer.messages) >= _MESSAGES_MAX:
            break
        at += size
    return answer.finished()


class _Answer:
    """The state of reading one response.

    Args:
        offset: the requested offset.
        aborted: see `read_batches`.
    """

    def __init__(self, offset: int, aborted: Iterable[tuple[int, int, Any]]) -> None:
        self._asked = self._next_offset = offset
        self._aborted = deque(
            sorted((first_offset, producer_id) for producer_id, first_offset, *_ in aborted)
        )
        self._aborting: set[int] = set()
        self._batches: list[memoryview] = []
        # Messages of formats 0 and 1, not packed yet. Invariant: at most `_MESSAGES_MAX`, behind
        # all `_batches`.
        self.messages: list[LegacyMessage] = []

    def take_batch(self, batch: memoryview) -> None:
        check_batch(batch)
        header = read_header(batch)
        while self._aborted and self._aborted[0][0] < header.next_offset:
            self._aborting.add(self._aborted.popleft()[1])
        if header.is_control:
            if read_control_record(batch)[0] == _ABORT:
                self._aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in self._aborting):
            self._pack()
            # Not a view: a batch that is kept would keep the response, of which it is a part.
            self._batches.append(memoryview(bytes(batch)))
        self._next_offset = max(self._next_offset, header.next_offset)

    def take_messages(self, entry: memoryview) -> None:
        wanted = [each for each in read_messages(entry) if each.offset >= self._asked]
        self.messages += wanted[: _MESSAGES_MAX - len(self.messages)]
        if self.messages:
            self._next_offset = self.messages[-1].offset + 1

    def finished(self) -> FetchedBatches:
        self._pack()
        return FetchedBatches(self._batches, self._next_offset)

    def _pack(self) -> None:
        if self.messages:
            self._batches += pack_messages(self.messages)
            self.messages = []


def _request(entries: _Entries, hold_s: float) -> Any:
    topics: dict[bytes, list[Any]] = {}
    for (topic_id, number), entry in entries.items():
        topics.setdefault(topic_id, []).append((number, -1, entry.offset, -1, -1, entry.max_bytes, {}))
    return FETCH(
        -1,  # a consumer
        int(hold_s * 1000),
        1,
        _REQUEST_BYTES,
        READ_COMMITTED,
        0,  # no fetch session: each request is complete
        -1,
        [(topic_id, partitions, {}) for topic_id, partitions in topics.items()],
        [],
        "",
        {},
    )

"""Bulk access to the log of one cluster: whole record batches in and out.

Everything is validated before anything is written, the records in the batches too: on the event
loop if that takes half a millisecond, else in turns with other requests (`batch_checks`). Memory is
bounded: by one answer for each range that is read (`RangeReader`), and by `producer.buffer_bytes`
for writes, with as much again in checks, and once or twice as much in queues. Each client address
has a share of these. Small requests have a queue of their own for their checks, because those of
large ones may take seconds. Batches that are staged are checked here too.

Road not taken: the batches through the accumulators. They make batches of records; these are
batches.
"""

import asyncio
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

import structlog

from pixy.aio.address_quota import AddressSemaphore
from pixy.aio.futures import reject, resolve
from pixy.aio.steps import in_steps, run_in_steps
from pixy.backend import BATCH_MEMORY_BYTES, Backend, OffsetRange, TopicDescription, TopicPartition
from pixy.client_address import client_address, share_of
from pixy.clock import Clock
from pixy.config import ProxyConfig
from pixy.errors import (
    CorruptData,
    InvalidArgument,
    InvalidBatch,
    InvalidRecords,
    MessageTooLarge,
    PartitionNotFound,
    PixyError,
    ShuttingDown,
    StaleTopicVersion,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from pixy.faults import internal_error, report_to_loop
from pixy.proxy.batch_check_turns import BatchChecks, Checked, PartitionBatches
from pixy.proxy.fetch_ranges import FetchRanges
from pixy.proxy.produced_counts import ProducedCounts
from pixy.proxy.range_reader import TOPIC_ID_BYTES, Range, RangeReader
from pixy.proxy.record_times import RecordTimes
from pixy.proxy.silent_appends import AppendPart, SilentAppends
from pixy.proxy.topics import TopicCreator
from pixy.records import (
    BatchLimits,
    CheckEffort,
    LongCheckError,
    NewBatch,
    check_new_batches,
    check_topic_name,
    count_batches,
)

log = structlog.get_logger(__name__)

_FETCH_BYTES = 1 << 20
_FETCH_BYTES_MAX = 4 << 20
"""Larger answers are no faster, and gRPC clients refuse them by default."""
FETCH_WAIT_MAX_S = 300.0
"""A call that waits longer for records ends, so that those of clients that are gone do."""

_BATCHES_MAX = 1000
"""Record batches of a request, each of which costs as much as many records."""
_SMALL_BYTES = 64 * 1024
"""Batches of a request whose check is short, whatever they are."""
_SMALL_PART = 32
"""Part of `producer.buffer_bytes` for small requests that are checked."""
_HANDED_OVER_PER_STEP = 25
"""Batches; those of one partition stay together."""


class OffsetPosition(Enum):
    """Special positions in a partition."""

    EARLIEST = auto()
    LATEST = auto()


class OffsetQuery(NamedTuple):
    """A query for an offset.

    Attributes:
        partition: the partition.
        at: a special position, or a timestamp in milliseconds since the Unix epoch, for the first
            record at or after it.
    """

    partition: TopicPartition
    at: OffsetPosition | int


class TopicVersion(NamedTuple):
    """The topic by whose partitions records were partitioned: name, version, and id, b"" if
    unknown.
    """

    topic: str
    version: int
    topic_id: bytes = b""


class Appended(NamedTuple):
    """The result for one partition: the offset of the first record, or -1 and the error."""

    base_offset: int
    error: PixyError | None


AppendedDone = Callable[[Appended], None]


class Log:
    """Bulk access to one cluster.

    Args:
        backend: the cluster.
        config: its section of the configuration.
        topics: creates missing topics.
        clock: the time.
        client_share_percent: part of each limit that the clients of one address may have.

    Attributes:
        semaphore: bytes of the batches that are being written.
        fetches: ranges that are being read.
        produced: what was written.
        times: records by timestamp.
        known, fetch_nowait, fetch, wait_records, new_producer_id: `topic` and others of the
            backend.
    """

    def __init__(
        self,
        backend: Backend,
        config: ProxyConfig,
        topics: TopicCreator,
        clock: Clock,
        client_share_percent: int = 100,
    ) -> None:
        self._backend = backend
        self._config = config
        self._topics = topics
        self._clock = clock
        self._share_percent = client_share_percent
        self.semaphore = self.shared_bytes(config.producer.buffer_bytes)
        self._silent = SilentAppends(config.producer.buffer_bytes, self.semaphore.release)
        self.fetches = FetchRanges(client_share_percent)
        self._checks = BatchChecks()
        # Searches for a timestamp decode records.
        self._searches = AddressSemaphore(sys.maxsize, 1)
        self.times = RecordTimes(backend, self._searches)
        # Called for every partition of a request.
        self.known, self.fetch_nowait = backend.topic, backend.fetch_nowait
        self.fetch, self.wait_records = backend.fetch, backend.wait_records
        self.new_producer_id = backend.new_producer_id
        # Bytes of the requests that are checked.
        self._small_checks = self.shared_bytes(max(1, config.producer.buffer_bytes // _SMALL_PART))
        self._large_checks = self.shared_bytes(config.producer.buffer_bytes)
        self._draining = False
        self.produced = ProducedCounts()
        # Records in flight; the event is set while there are none.
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def shared_bytes(self, size: int) -> AddressSemaphore:
        """Bytes of which each client address has its share."""
        return AddressSemaphore(size, share_of(size, self._share_percent))

    # --- lifecycle --------------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """Accept no more batches."""
        self._draining = True

    async def drained(self) -> None:
        """Wait until all accepted batches are answered."""
        await self._idle.wait()

    def abandon(self) -> int:
        """Give up all unanswered records and return their number.

        They may or may not be written.
        """
        self._silent.stop()
        if self._in_flight:
            log.error("stopped with batches that are not known to be written", records=self._in_flight)
        return self._in_flight

    # --- topics and offsets -----------------------------------------------------------------------

    @property
    def partitioner(self) -> str:
        """The option `producer.partitioner`, by which `Produce` partitions messages with a key."""
        return self._config.producer.partitioner

    def now_ms(self) -> int:
        """The time that the cluster stamps records by, in milliseconds since the Unix epoch."""
        return self._clock.wall_ms()

    @property
    def message_bytes_max(self) -> int:
        """The option `producer.max_message_bytes`."""
        return self._config.producer.max_message_bytes

    async def describe_topics(
        self, names: Sequence[str], *, create_missing: bool, client: str = ""
    ) -> list[TopicDescription]:
        """Topics, sorted by name; all if no names are given. Topics that do not exist are left out.

        Args:
            create_missing: create missing topics first, as producing to them would.
            client: address of the client that asks, empty if unknown.

        Raises:
            InvalidTopic, TopicMissing, ShuttingDown, Unavailable.
        """
        if not names:
            return list(await self._backend.list_topics())
        wanted = sorted(set(names))
        async for name in in_steps(wanted):
            check_topic_name(name)
        if create_missing:
            async for name in in_steps(wanted):
                await self._create_if_missing(name, client)
        return list(await self._backend.list_topics(wanted))

    async def list_topics(self, names: Sequence[str]) -> Sequence[TopicDescription]:
        """Those of some topics that exist, sorted by name.

        Raises:
            Unavailable: the cluster cannot tell.
        """
        return await self._backend.list_topics(names)

    async def list_offsets(self, queries: Sequence[OffsetQuery], peer: str = "") -> list[int | None]:
        """The offset of each query: -1 if no record has such a timestamp, None if there is no such
        partition.

        Args:
            peer: the caller, see `client_address`; searches of one address take turns.

        Raises:
            InvalidTopic: no topic may have that name.
            CorruptData, Unavailable: as the backend raises them.
        """
        # By topic. A partition that nobody asks for may be one that has no leader.
        asked: dict[str, set[int]] = {}
        async for query in in_steps(queries):
            topic, number = query.partition
            check_topic_name(topic)
            if isinstance(query.at, OffsetPosition):
                asked.setdefault(topic, set()).add(number)
        ranges: dict[str, Mapping[int, OffsetRange]] = {}
        address = client_address(peer)
        return [await self._offset(query, address, asked, ranges) async for query in in_steps(queries)]

    async def _offset(
        self,
        query: OffsetQuery,
        address: str,
        asked: Mapping[str, Collection[int]],
        ranges: dict[str, Mapping[int, OffsetRange]],
    ) -> int | None:
        """One offset. `ranges` caches the ranges of the partitions that are asked for."""
        topic, number = query.partition
        try:
            if not isinstance(query.at, OffsetPosition):
                async with self._searches.holding(address, 1):
                    found = await self._backend.offset_for_timestamp(query.partition, query.at)
                return -1 if found is None else found
            if topic not in ranges:
                ranges[topic] = await self._backend.offset_ranges(topic, asked[topic])
        except (UnknownTopic, UnknownPartition):
            return None
        except CorruptData as error:
            raise type(error)(f"partition {number} of topic {topic}: {error}") from error
        served = ranges[topic].get(number)
        if served is None:
            return None
        return served.begin if query.at is OffsetPosition.EARLIEST else served.end

    async def _create_if_missing(self, name: str, client: str) -> None:
        if self._backend.topic(name) is not None:
            return
        if self._draining:
            raise ShuttingDown
        created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._topics.create(name, 0, partial(resolve, created, None), partial(reject, created), client=client)
        await created

    # --- reading ----------------------------------------------------------------------------------

    def fetch_bytes(self, max_bytes: int) -> int:
        """Bytes of batches in one answer, for the `max_bytes` of a client, where 0 means the
        default.

        Raises:
            InvalidArgument: it is negative.
        """
        if max_bytes < 0:
            raise InvalidArgument(f"max_bytes is {max_bytes}, expected 0 for {_FETCH_BYTES}, or above")
        return min(max_bytes or _FETCH_BYTES, _FETCH_BYTES_MAX)

    def held_bytes(self, max_bytes: int) -> int:
        """Bytes to acquire for an answer, which has one whole batch at least."""
        return max(max_bytes, self._config.producer.max_message_bytes)

    async def readers(
        self, ranges: Sequence[Range], *, max_bytes: int, max_wait: float
    ) -> Iterator[RangeReader]:
        """A reader for each range, made when the iterator yields it: its `max_wait` begins then.
        Once one has waited for all of it, the others do not wait.

        Args:
            max_bytes: the result of `fetch_bytes`.
            max_wait: seconds; `FETCH_WAIT_MAX_S` if it is longer.

        Raises:
            InvalidArgument: there are no ranges, or one is invalid; `max_wait` is negative.
        """
        if not ranges:
            raise InvalidArgument("no ranges, expected at least one")
        if max_wait < 0:
            raise InvalidArgument(f"max_wait_ms is {max_wait * 1000:.0f}, expected 0 or above")
        async for each in in_steps(ranges):
            each.check()
        return self._readers(ranges, max_bytes, min(max_wait, FETCH_WAIT_MAX_S))

    def _readers(self, ranges: Sequence[Range], max_bytes: int, wait_s: float) -> Iterator[RangeReader]:
        for each in ranges:
            reader = RangeReader(self._backend, self._clock, each, max_bytes=max_bytes, max_wait=wait_s)
            yield reader
            if reader.waited_out:
                wait_s = 0.0

    # --- writing ----------------------------------------------------------------------------------

    async def append(
        self, partitions: Sequence[PartitionBatches], versions: Sequence[TopicVersion], peer: str = ""
    ) -> list[Appended]:
        """Append batches.

        Each partition succeeds or fails alone; batches with an offset are durable.

        Args:
            partitions: each at most once.
            versions: required versions of topics. A topic that does not exist fails by its
                partitions.
            peer: the caller, see `client_address`.

        Raises:
            InvalidArgument: of the classes below it; nothing was written.
            StaleTopicVersion: a topic has another version or id; nothing was written.
            ShuttingDown, Unavailable: nothing was written.
        """
        return await (await self.begin_append(partitions, versions, peer)).answer

    async def begin_append(
        self,
        partitions: Sequence[PartitionBatches],
        versions: Sequence[TopicVersion],
        peer: str = "",
        *,
        producers: bool = False,
    ) -> "AppendInFlight":
        """As `append`, but returns when the first batches are handed over: those of one partition
        then precede all that come later.

        Args:
            producers: batches may have producer ids.
        """
        await self.check_partitions([each.partition for each in partitions])
        size, client = _bytes_of(partitions), client_address(peer)
        self.check_queued(client, size, self.semaphore)
        checked = self._without_silent(
            partitions, await self._checked(partitions, client, producers=producers)
        )
        size = sum(
            _memory_of(each, batches)
            for each, batches in zip(partitions, checked, strict=True)
            if isinstance(batches, list)
        )
        await self.semaphore.acquire(client, size)
        try:
            # More may have become silent meanwhile.
            checked = self._without_silent(partitions, checked)
            await self.update(versions)
            if self._draining:
                raise ShuttingDown
            # Nothing suspends between this check and the last append, so the versions still hold
            # then.
            self.check_versions(versions)
        except BaseException:
            self.semaphore.release(client, size)
            raise
        records = sum(batch.records for batches in checked if isinstance(batches, list) for batch in batches)
        self._in_flight += records
        self._idle.clear()
        request = AppendInFlight(len(partitions), client, partial(self._answered, size, records))
        # It goes on if the caller goes away meanwhile: all that was acquired is to be released.
        run_in_steps(self._hand_over_all(partitions, checked, versions, request))
        return request

    def maybe_append(self, of: PartitionBatches, client: str, done: AppendedDone) -> bool:
        """Append a batch of one partition, which may have a producer id, if that can begin at once:
        its check is short, and nobody waits for bytes. False if not; then nothing was done, and
        `begin_append` does it.

        Args:
            of: exactly one batch.
            client: address of the client.
            done: called with the result, perhaps before the return.

        Raises:
            InvalidBatch, MessageTooLarge, ShuttingDown, Unavailable: nothing was written, and
                `done` is not called.
        """
        if self._draining:
            raise ShuttingDown
        size = len(of.batches) + BATCH_MEMORY_BYTES
        if not self.semaphore.available(client, size):
            return False
        try:
            batches = check_new_batches(of.batches, self._limits(producers=True), CheckEffort())
        except LongCheckError:
            return False
        if (silent := self._why_silent(of, batches)) is not None:
            raise silent
        self.semaphore.acquire_nowait(client, size)
        records = sum(batch.records for batch in batches)
        self._in_flight += records
        self._idle.clear()
        request = AppendInFlight(1, client, partial(self._answered, size, records), done)
        part = AppendPart(of.partition, client, size)
        self._silent.begin(part)
        ended = partial(self._ended, request, 0, part, (records, len(of.batches)))
        self._hand_over(of, batches, _PartitionAppend(client, ended))
        return True

    def _limits(self, *, producers: bool) -> BatchLimits:
        producer = self._config.producer
        latest_ms = self.now_ms() + round(producer.timestamp_after_max * 1000)
        return BatchLimits(producer.max_message_bytes, latest_ms, producer.max_headers, producers)

    def _without_silent(
        self, partitions: Sequence[PartitionBatches], checked: Sequence[Checked | Unavailable]
    ) -> list[Checked | Unavailable]:
        """The checked batches, or reasons instead, where partitions that do not answer have too
        many bytes.
        """
        return [
            (isinstance(batches, list) and self._why_silent(each, batches)) or batches
            for each, batches in zip(partitions, checked, strict=True)
        ]

    def _why_silent(self, of: PartitionBatches, batches: Sequence[NewBatch]) -> Unavailable | None:
        return self._silent.why_refused(of.partition, _memory_of(of, batches))

    async def check_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        """Check that each partition has a valid topic name and is listed once.

        Raises:
            InvalidTopic, InvalidArgument.
        """
        seen: set[TopicPartition] = set()
        async for each in in_steps(partitions):
            check_topic_name(each.topic)
            if each in seen:
                raise InvalidArgument(
                    f"partition {each.partition} of topic {each.topic} is there more than once"
                )
            seen.add(each)

    async def check_batches(
        self, partitions: Sequence[PartitionBatches], client: str
    ) -> list[list[NewBatch]]:
        """Validate the batches of each partition and return their places.

        Args:
            client: address of the client.

        Raises:
            InvalidBatch, MessageTooLarge: a batch is invalid; the message says where.
            Unavailable: the cluster has not been reached yet.
        """
        found = []
        for batches in await self._checked(partitions, client, producers=False):
            if isinstance(batches, InvalidRecords):
                raise batches
            found.append(batches)
        return found

    def check_queued(self, client: str, size: int, writes: AddressSemaphore) -> None:
        """Check that a request may queue for its check, and behind it for its write.

        Others may queue as much as a client address has as its share besides.

        Args:
            client: address of the client.
            size: bytes of its batches.
            writes: bytes of the batches that are being written in the same way.

        Raises:
            Unavailable: too many bytes queue.
        """
        checks = self._checks_of(size)
        queued = checks.queued + writes.queued
        own = checks.queued_by(client) + writes.queued_by(client)
        limit = self._config.producer.buffer_bytes
        if own + size <= share_of(limit, self._share_percent):
            limit *= 2
        at_once = checks.available(client, size) and writes.available(client, size)
        if queued + size > limit and not at_once:
            raise Unavailable(
                f"{checks.acquired} bytes of batches are being checked, {writes.acquired} are being written and {queued} wait, "
                f"{own} of them of this client address; "
                "send fewer at a time, or increase producer.buffer_bytes"
            ).at_limit("producer.buffer_bytes")

    def _checks_of(self, size: int) -> AddressSemaphore:
        return self._small_checks if size <= _SMALL_BYTES else self._large_checks

    async def _checked(
        self, partitions: Sequence[PartitionBatches], client: str, *, producers: bool
    ) -> list[Checked]:
        if partitions:
            # Until the cluster is reached the clock may differ from the one that its nodes agree
            # on, and no batch is called invalid.
            self._backend.topic(partitions[0].partition.topic)
        _check_number(partitions)
        size = _bytes_of(partitions)
        room = self._checks_of(size).holding(client, size)
        return await self._checks.check(partitions, self._limits(producers=producers), client, room)

    async def update(self, versions: Sequence[TopicVersion]) -> None:
        """Ask the cluster for the topics that differ here from these versions: another process may
        have changed them.

        Raises:
            Unavailable: the cluster cannot tell.
        """
        for version in versions:
            topic = self._backend.topic(version.topic)
            if topic is None or _why_stale(topic, version):
                with suppress(UnknownTopic):
                    await self._backend.describe_topic(version.topic)

    def check_versions(self, versions: Sequence[TopicVersion]) -> None:
        """Check the versions and ids of topics that exist.

        Raises:
            InvalidArgument: an id has a wrong length.
            StaleTopicVersion: a topic has another version or id.
        """
        for version in versions:
            name, _, topic_id = version
            if topic_id and len(topic_id) != TOPIC_ID_BYTES:
                raise InvalidArgument(
                    f"topic_id of {name} has {len(topic_id)} bytes, expected none or {TOPIC_ID_BYTES}"
                )
            topic = self._backend.topic(name)
            reason = "" if topic is None else _why_stale(topic, version)
            if reason:
                raise StaleTopicVersion(reason)

    def _hand_over_all(
        self,
        partitions: Sequence[PartitionBatches],
        checked: Sequence[Checked | Unavailable],
        versions: Sequence[TopicVersion],
        request: "AppendInFlight",
    ) -> Iterator[None]:
        """Append the batches of all partitions in steps.

        The versions hold at each of them: if a topic changes in between, the rest of the
        partitions fails.
        """
        stale: PixyError | None = None
        handed_over = 0
        for place, (each, batches) in enumerate(zip(partitions, checked, strict=True)):
            if handed_over >= _HANDED_OVER_PER_STEP:
                yield
                handed_over = 0
                try:
                    self.check_versions(versions)
                except PixyError as error:
                    stale = error
            handed_over += len(batches) if isinstance(batches, list) else 1
            if not isinstance(batches, list):
                request.ended(place, Appended(-1, batches))
            elif stale is not None:
                request.ended(place, Appended(-1, stale))
            else:
                part = AppendPart(each.partition, request.client, _memory_of(each, batches))
                self._silent.begin(part)
                records = sum(batch.records for batch in batches)
                ended = partial(self._ended, request, place, part, (records, len(each.batches)))
                self._hand_over(each, batches, _PartitionAppend(request.client, ended))

    def _hand_over(
        self, of: PartitionBatches, batches: Sequence[NewBatch], append: "_PartitionAppend"
    ) -> None:
        """Append the batches of one partition, up to the first one that is refused at once; none if
        one is known to be too large.
        """
        limit = self._backend.batch_bytes_max(of.partition.topic)
        too_large = next((end - begin for begin, end, _ in batches if end - begin > (limit or end)), None)
        if too_large is not None:
            append(
                -1,
                MessageTooLarge(
                    f"a record batch has {too_large} bytes, topic {of.partition.topic} takes {limit} "
                    "(max_message_bytes of the topic)"
                ),
            )
            append.expect(1)
            return
        view = memoryview(of.batches)
        handed_over = 0
        for begin, end, records in batches:
            handed_over += 1
            try:
                # The backend owns the batch and writes into its header.
                self._backend.append(of.partition, bytearray(view[begin:end]), records, append)
            except PixyError as error:
                append(-1, error)
            except Exception as bug:
                report_to_loop(bug)
                append(-1, internal_error(bug))
            if append.error is not None:
                break
        append.expect(handed_over)

    def _ended(
        self,
        request: "AppendInFlight",
        place: int,
        part: AppendPart,
        written: tuple[int, int],
        result: Appended,
    ) -> None:
        """The batches of a partition are answered, which have so many records and bytes."""
        if result.error is None:
            self.produced.add(part.partition.topic, *written)
        self._silent.end(part, result.error)
        if part.given_back:
            request.given_back += part.size
        request.ended(place, result)

    def _answered(self, size: int, records: int, request: "AppendInFlight") -> None:
        self.semaphore.release(request.client, size - request.given_back)
        self._in_flight -= records
        if not self._in_flight:
            self._idle.set()


def _bytes_of(partitions: Sequence[PartitionBatches]) -> int:
    return sum(len(each.batches) for each in partitions)


def _memory_of(partition: PartitionBatches, batches: Sequence[NewBatch]) -> int:
    """Memory of the batches of a partition in flight."""
    return len(partition.batches) + BATCH_MEMORY_BYTES * len(batches)


def _check_number(partitions: Sequence[PartitionBatches]) -> None:
    """Check the number of batches of a request.

    Raises:
        InvalidBatch: there are too many.
    """
    left = _BATCHES_MAX
    for each in partitions:
        left -= count_batches(each.batches, left + 1)
        if left < 0:
            raise InvalidBatch(
                f"more than {_BATCHES_MAX} record batches in a request: put more records into each, or fewer batches into one request"
            )


def _why_stale(topic: TopicDescription, wanted: TopicVersion) -> str:
    """Difference of a topic to the one that a request was made for, empty for none."""
    name, version, topic_id = wanted
    if topic_id and topic.topic_id != topic_id:
        return (
            f"topic {name} has id {topic.topic_id.hex()}, the request was made for {topic_id.hex()}: the topic was deleted "
            "and made anew; describe it again"
        )
    if topic.version != version:
        return (
            f"topic {name} has version {topic.version}, the request was made for {version}; describe it again"
        )
    return ""


class AppendInFlight:
    """A request to append in flight, until all of it is answered, even if its caller is gone.

    Args:
        partitions: the number of its partitions.
        client: address of its client.
        answered: called when all are answered.
        done: called with the result of the only partition; None: `answer` gets those of all.

    Attributes:
        given_back: bytes that were given back before.
        answer: the results.
    """

    def __init__(
        self,
        partitions: int,
        client: str,
        answered: Callable[["AppendInFlight"], None],
        done: AppendedDone | None = None,
    ) -> None:
        self.client = client
        self.given_back = 0
        self._done = done
        if done is None:
            self.answer: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        # By the index of the partition in the request.
        self._results: dict[int, Appended] = {}
        self._partitions = partitions
        self._answered = answered
        self._maybe_end()

    def ended(self, place: int, result: Appended) -> None:
        """The partition at this index is answered."""
        self._results[place] = result
        self._maybe_end()

    def _maybe_end(self) -> None:
        if len(self._results) < self._partitions:
            return
        self._answered(self)
        if self._done is not None:
            self._done(self._results[0])
        else:
            resolve(self.answer, [result for _, result in sorted(self._results.items())])


class _PartitionAppend:
    """The batches of one partition in flight, as their `ClientDone`.

    Args:
        client: address of the client.
        ended: called with the result when all are answered.

    Attributes:
        error: the first error of a batch.
    """

    def __init__(self, client: str, ended: Callable[[Appended], None]) -> None:
        self.client = client
        self._ended = ended
        self._base_offset = -1
        self._answers = 0
        # Expected number of answers, None until it is known.
        self._expected: int | None = None
        self.error: PixyError | None = None

    def __call__(self, base_offset: int, error: PixyError | None, /) -> None:
        """See `AppendDone`."""
        if not self._answers:
            self._base_offset = base_offset
        if error is not None and self.error is None:
            self.error = PartitionNotFound(str(error)) if isinstance(error, UnknownPartition) else error
        self._answers += 1
        self._maybe_end()

    def expect(self, answers: int) -> None:
        """Set the number of batches that were appended."""
        self._expected = answers
        self._maybe_end()

    def _maybe_end(self) -> None:
        if self._answers == self._expected:
            self._ended(Appended(-1 if self.error is not None else self._base_offset, self.error))

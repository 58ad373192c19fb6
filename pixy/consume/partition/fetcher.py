"""Fetches batches for the offers of one partition.

Owns one task, and a second one while a batch is decompressed. It fetches from the backend while the
offers want more; otherwise it waits, for records inside the backend, for room in the buffer on an
event. Never polls, and never decides which request gets a record.

    error of the backend                reaction
    log begin offset above the group    continue at the log begin offset, drop offers below, log
                                        once. The next fetch shows it; until then records in
                                        memory may still be offered
    offset above the end                start over at the end, log once
    topic deleted                       retry silently; the assignment that ends this is on its way
    no memory for what was fetched      drop it, and fetch again when it is the partition's turn
    any other, also damaged data        log each error once, retry with growing delay. Requests that
        and bugs                        time out get the error, until a fetch succeeds; such a fetch
                                        does not wait for records

What cannot be decoded is not skipped: no record is passed over silently. Its partition waits, the
others of the group continue. The error names topic, partition, and the offset behind the batch, to
which the group's offset can be set. Each attempt is a retry of the record, so with a limit of
retries the offers pass it at last.
"""

import asyncio
from collections.abc import Callable, Iterator

import structlog

from pixy.aio.futures import SmallEvent
from pixy.aio.retries import Backoff
from pixy.backend import Batch, FetchResult, TopicPartition
from pixy.consume.memory import Demand, HeldRecords
from pixy.consume.partition.environment import ConsumeEnvironment
from pixy.consume.partition.fetched_memory import COUNTED_AT_ONCE, FetchedMemory, memory_of
from pixy.consume.partition.partition_offers import PartitionOffers
from pixy.errors import CorruptData, OffsetOutOfRange, PixyError, Unavailable, UnknownPartition
from pixy.records import read_header

_BACKOFF_MIN = 0.1
_BACKOFF_MAX = 5.0
_UNAVAILABLE_BACKOFF_MAX = 1.0
"""Shorter, because the backend has retried before it raises `Unavailable`."""

_BATCHES_AT_ONCE = 200
"""Batches that are fed at once: a fetch may have 15 000, each of one record."""

_log = structlog.get_logger()


class PartitionFetcher:
    """Fetches for one partition of one consumer group.

    Args:
        environment: the cluster, time and tasks.
        group: the consumer group, for log messages.
        partition: the partition.
        offers: the offers to feed.
        on_fed: called when the offers have gained or lost records.
        on_failing: called with the error when fetching fails, and with None when it succeeds again.
        demand: the demand for records of the partition.
    """

    __slots__ = (
        "_backoff",
        "_demand",
        "_environment",
        "_failing",
        "_fetched",
        "_fetching",
        "_group",
        "_held",
        "_idle",
        "_offers",
        "_on_failing",
        "_on_fed",
        "_partition",
        "_short_of_memory",
        "_task",
        "_unpacked_bytes",
        "_unpacking",
        "_wanted",
    )

    def __init__(
        self,
        environment: ConsumeEnvironment,
        group: str,
        partition: TopicPartition,
        offers: PartitionOffers,
        on_fed: Callable[[], None],
        on_failing: Callable[[PixyError | None], None],
        demand: Callable[[float], Demand],
    ) -> None:
        self._environment = environment
        self._group = group
        self._partition = partition
        self._offers = offers
        self._on_fed = on_fed
        self._on_failing = on_failing
        self._demand = demand
        self._wanted = SmallEvent()
        # Waiting on `_wanted`; offset of the fetch that waits inside the backend. Invariant: never
        # both.
        self._idle = False
        self._fetching: int | None = None
        # The last logged error, empty after a success.
        self._failing = ""
        self._backoff = Backoff(_BACKOFF_MIN, _BACKOFF_MAX)
        self._task: asyncio.Task[None] | None = None
        # Decompresses the packed batch of the offers.
        self._unpacking: asyncio.Task[None] | None = None
        # The decompressed records of the offers. Invariant: exactly while these are `holding`, but
        # within a call.
        self._held: HeldRecords | None = None
        # Bytes of the batch that was given back last, once it is decompressed; 0: none was.
        self._unpacked_bytes = 0
        # The partition waits for memory, and its host has heard of it.
        self._short_of_memory = False
        # Memory of what the offers have, and of what comes for them.
        self._fetched = FetchedMemory(
            environment.fetched,
            environment.pins,
            group,
            offers,
            demand,
            self._drop_fetched,
            self.memory_waits,
        )

    def start(self) -> None:
        """Fetch from the current offset of the offers; a fetch in progress is abandoned."""
        self.stop()
        self._task = self._environment.tasks.spawn(self._run(), self._named("fetch"))
        self.wake()

    def stop(self) -> None:
        """Stop fetching."""
        for task in (self._task, self._unpacking):
            if task is not None:
                task.cancel()
        self._has_memory()
        self._task = self._unpacking = None
        self._idle, self._fetching = False, None
        self._fetched.unpin()
        self._fetched.end()

    def wake(self) -> None:
        """The offers want more, or have a batch to decompress, or found damage, or passed it."""
        if self._offers.packed is not None and self._unpacking is None and self._task is not None:
            self._unpacking = self._environment.tasks.spawn(self._unpack(), self._named("unpack"))
        if self._idle:
            if self._offers.fault is not None or self._fetched.may_fetch:
                self._wanted.set()
        elif self._fetching is not None and (
            self._offers.fault is not None or self._fetching != self._offers.fetch_offset
        ):
            self.start()

    async def _run(self) -> None:
        while True:
            try:
                await self._supply()
            except Exception as bug:
                self._idle, self._fetching = False, None
                self._fetched.end()
                await self._fail(self._environment.tasks.expected(bug))

    async def _supply(self) -> None:
        offers = self._offers
        if offers.fault is not None:
            await self._fail(self._located(offers.fault))
            offers.fault = None
        elif offers.wants_more and self._fetched.may_fetch:
            await self._fetch()
        else:
            self._fetched.end()
            self._wanted.clear()
            self._idle = True
            await self._wanted.wait()
            self._idle = False

    async def _fetch(self) -> None:
        offers = self._offers
        has_turn = self._fetched.needs_turn
        if has_turn:
            await self._fetched.turn()
            self._has_memory()
        asked = offset, _ = offers.fetch_offset, offers.generation
        max_bytes = offers.fetch_bytes
        self._fetching = offset
        try:
            result = await self._environment.backend.fetch(
                self._partition,
                offset,
                max_bytes=max_bytes,
                max_wait=0.0 if self._failing or has_turn else None,
            )
        except PixyError as error:
            self._fetching = None
            self._fetched.end()
            if not isinstance(error, OffsetOutOfRange):
                await self._fail(error)
            elif asked == (offers.fetch_offset, offers.generation):
                await self._out_of_range(error)
            return
        self._fetching = None
        memory = self._fetched.admit(result.batches, max_bytes) if result.batches else 0
        if memory is None:
            return
        await self._take_over(result, memory)
        self._fetched.end()
        if result.next_offset <= offset:
            await self._environment.timers.sleep(_BACKOFF_MIN)

    async def _take_over(self, result: FetchResult, memory: int) -> None:
        """Feed the offers with the result of a fetch, unless they begin anew meanwhile."""
        offers = self._offers
        asked = offers.fetch_offset, offers.generation
        for part, more in _parts(result):
            await self._environment.feeding.begin()
            if asked != (offers.fetch_offset, offers.generation):
                return
            if not more and len(result.batches) > COUNTED_AT_ONCE:
                memory = min(memory, memory_of(result.batches))
            self._feed(part, memory, more)
            if offers.fault is not None:
                return
            asked = offers.fetch_offset, offers.generation

    def _feed(self, result: FetchResult, memory: int, more: bool) -> None:
        """Feed the offers, in a turn of all partitions."""
        offers = self._offers
        try:
            if result.log_begin_offset > offers.tracker.base:
                self._cut(result.log_begin_offset)
            offers.feed(result, memory, more=more)
            self._on_fed()
        finally:
            self._environment.feeding.end()
        if offers.fault is None and offers.packed is None:
            self._succeed()

    async def _unpack(self) -> None:
        offers = self._offers
        while (batch := offers.packed) is not None:
            await self._unpack_batch(batch)
            self._fetched.unpin()
            self.release_dropped()
        self._unpacking = None
        self._on_fed()

    async def _unpack_batch(self, batch: Batch) -> None:
        offers = self._offers
        size, self._unpacked_bytes = self._unpacked_bytes, 0
        unpacking = self._environment.unpacking
        self._fetched.pin(small=unpacking.is_small(batch, size))
        try:
            held = await unpacking.unpack(self, batch, offers.position, size)
        except (CorruptData, Unavailable) as error:
            offers.unpacked(batch, error)
        except Exception as bug:
            offers.unpacked(batch, CorruptData(str(self._environment.tasks.expected(bug))))
        else:
            self._held = held
            wanted = offers.packed is batch
            offers.unpacked(batch, held.records)
            if wanted and offers.fault is None:
                self._succeed()
        self._has_memory()

    # --- memory of decompressed records -----------------------------------------------------------

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    @property
    def position(self) -> int:
        """The next offset to offer."""
        return self._offers.position

    def is_pinned(self, now: float) -> bool:
        """Decompressed records can be given back at any time."""
        return False

    def demand(self, now: float) -> Demand:
        """Demand for records of the partition."""
        return self._demand(now)

    def give_back(self) -> None:
        """Others need the memory: decompress again when there is some."""
        assert self._held is not None
        self._unpacked_bytes = self._held.size
        self._held = None
        self._offers.give_back()
        self.wake()

    def unpacks(self, *, running: bool) -> None:
        """Keep the batch while it is being decompressed."""
        self._fetched.unpacks = running

    def is_large(self) -> None:
        """The batch is decompressed with large ones, although it seemed small."""
        self._fetched.pin(small=False)

    def _drop_fetched(self) -> None:
        """Others need the memory of what was fetched."""
        if self._unpacking is not None:
            self._unpacking.cancel()
            self._unpacking = None
            self._has_memory()
        self._offers.drop_fetched()
        self.release_dropped()
        self.wake()

    def release_dropped(self) -> None:
        """Release the memory of what the offers have used up or dropped."""
        if self._held is not None and self._offers.holding is None:
            held, self._held = self._held, None
            held.release()
        if self._fetched.counted != self._offers.fetched_bytes:
            self._fetched.settle()

    def memory_waits(self, error: Unavailable) -> None:
        """Answer requests that time out with the error, until there is memory."""
        if not self._failing:
            self._short_of_memory = True
            self._on_failing(error)

    def _has_memory(self) -> None:
        if self._short_of_memory:
            self._short_of_memory = False
            if not self._failing:
                self._on_failing(None)

    def _named(self, what: str) -> str:
        topic, partition = self._partition
        return f"{what} {topic}/{partition} for {self._group}"

    async def _out_of_range(self, error: OffsetOutOfRange) -> None:
        offers = self._offers
        offset = offers.fetch_offset
        if offset < error.begin:
            self._cut(error.begin)
        elif offset > error.end:
            offers.end_at(error.end)
            self._warn("offset is beyond the end, continuing at the end", offset=offset, end=error.end)
        else:
            await self._fail(error)
        self._on_fed()

    def _cut(self, begin: int) -> None:
        offset = self._offers.tracker.base
        dropped = self._offers.begin_at(begin)
        if offset < begin:
            event = "records are gone, continuing at the log begin offset"
            self._warn(event, offset=offset, begin=begin, dropped=dropped)

    async def _fail(self, error: PixyError) -> None:
        deleted = isinstance(error, UnknownPartition) and self._topic_is_gone()
        if self._failing != str(error) and not deleted:
            self._failing = str(error)
            self._on_failing(error)
            self._warn("cannot fetch, trying again", offset=self._offers.fetch_offset, error=self._failing)
        longest = _UNAVAILABLE_BACKOFF_MAX if isinstance(error, Unavailable) else None
        await self._environment.timers.sleep(self._backoff.grow(longest))

    def _located(self, fault: CorruptData | Unavailable) -> CorruptData | Unavailable:
        """The fault with topic and partition in its message."""
        topic, partition = self._partition
        return type(fault)(f"partition {partition} of topic {topic}: {fault}")

    def _topic_is_gone(self) -> bool:
        return self._environment.backend.topic(self._partition.topic) is None

    def _succeed(self) -> None:
        if self._failing:
            _log.info(
                "fetching again",
                group=self._group,
                topic=self._partition.topic,
                partition=self._partition.partition,
            )
            self._failing = ""
            self._on_failing(None)
        self._backoff.reset()

    def _warn(self, event: str, **fields: object) -> None:
        topic, partition = self._partition
        _log.warning(event, group=self._group, topic=topic, partition=partition, **fields)


def _parts(result: FetchResult) -> Iterator[tuple[FetchResult, bool]]:
    """A result in parts that take about a millisecond, each with True if more follow."""
    batches = result.batches
    if len(batches) <= _BATCHES_AT_ONCE:
        yield result, False
        return
    for at in range(0, len(batches), _BATCHES_AT_ONCE):
        some = batches[at : at + _BATCHES_AT_ONCE]
        if at + len(some) == len(batches):
            yield result._replace(batches=some), False
            return
        try:
            next_offset = read_header(some[-1]).next_offset
        except CorruptData:
            yield result._replace(batches=some), False  # feeding it ends at that batch
            return
        yield result._replace(batches=some, next_offset=next_offset), True

"""Reads a range of offsets of one partition, in whole stored batches that are never decoded.

The caller drives it: `wait` returns when there may be batches, `read` returns them. So the caller
decides when the next batches are read, and acquires memory for them first. Between two calls a
reader holds one batch at most.

The end of a range (pixy_log.proto: RangeState):

    `to_offset` is reached                                               END_OF_RANGE
    the end of the log is reached, no batch came for `max_wait`, and
        the range has no `to_offset`                                     END_OF_RANGE
        `to_offset` is beyond                                            END_OF_LOG
    the next offset is not in the log (any more)                         OFFSET_OUT_OF_RANGE
    no such partition, or the topic has another id than requested, or
    than at the beginning of the range                                   UNKNOWN_PARTITION

A replica that may be behind its leader confirms its end before it counts as the end of the log, so
a range has every record that was answered before it was asked for.

Offsets may have gaps; a fetch at a gap returns no batches and a next offset behind it.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from pixy.backend import Backend, Batch, FetchResult, TopicPartition
from pixy.clock import Clock
from pixy.errors import InvalidArgument, OffsetOutOfRange, UnknownPartition, UnknownTopic
from pixy.records import base_offset, check_topic_name

TOPIC_ID_BYTES = 16
_OPEN_END = -1


class RangeState(Enum):
    """The state of a range behind a read; all but MORE are final."""

    MORE = auto()
    END_OF_RANGE = auto()
    END_OF_LOG = auto()
    OFFSET_OUT_OF_RANGE = auto()
    UNKNOWN_PARTITION = auto()


class Range(NamedTuple):
    """Offsets of a partition.

    Attributes:
        partition: the partition.
        from_offset: first offset, >= 0.
        to_offset: end, exclusive; -1 for the end of the log.
        topic_id: required id of the topic, b"" for any.
    """

    partition: TopicPartition
    from_offset: int
    to_offset: int
    topic_id: bytes = b""

    def check(self) -> None:
        """Validate the range.

        Raises:
            InvalidTopic, InvalidArgument: a field is invalid.
        """
        (topic, number), begin, end, topic_id = self
        check_topic_name(topic)
        if begin < 0:
            raise InvalidArgument(f"from_offset of {topic}-{number} is {begin}, expected 0 or above")
        if end != _OPEN_END and end < begin:
            raise InvalidArgument(
                f"to_offset of {topic}-{number} is {end}, expected from_offset {begin} or above, or {_OPEN_END} for the end of "
                "the log"
            )
        if topic_id and len(topic_id) != TOPIC_ID_BYTES:
            raise InvalidArgument(
                f"topic_id of {topic}-{number} has {len(topic_id)} bytes, expected none or {TOPIC_ID_BYTES}"
            )


class Fetched(NamedTuple):
    """Consecutive batches of a range.

    Attributes:
        batches: may begin before the range and end behind it; may be empty.
        next_offset: the offset of the next read.
        log_begin_offset, log_end_offset: of the partition; 0 and 0 if there is none.
        state: the state of the range behind these batches.
    """

    batches: Sequence[Batch]
    next_offset: int
    log_begin_offset: int
    log_end_offset: int
    state: RangeState


class RangeReader:
    """Reads one range.

    Args:
        backend, clock: the cluster and the time.
        wanted: the range, validated.
        max_bytes: limit of the batches in one `Fetched`, which has one whole batch at least.
        max_wait: seconds to wait at the end of the log since the last batch.

    Attributes:
        waited_out: no batch came for `max_wait`, so the range has ended.
    """

    def __init__(
        self, backend: Backend, clock: Clock, wanted: Range, *, max_bytes: int, max_wait: float
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._partition = wanted.partition
        self._to_offset = wanted.to_offset
        # The required id; from the first read on, the id at that time.
        self._topic_id = wanted.topic_id
        self._max_bytes = max_bytes
        self._max_wait = max_wait
        self._offset = wanted.from_offset
        # The last fetch reached the end of the log; end of the wait for more.
        self._at_end = False
        self._wait_until = clock.monotonic() + max_wait
        self.waited_out = False
        # The result of a fetch in `wait`.
        self._ahead: Fetched | None = None

    async def wait(self) -> None:
        """Return when there is something to read, or no more to wait for.

        Raises:
            PixyError: as `Backend.fetch`, but for what `RangeState` says.
        """
        seconds = self._wait_until - self._clock.monotonic()
        if self._at_end and seconds > 0:
            # One whole batch comes in any case.
            self._ahead = await self._fetch(1, seconds)

    async def read(self) -> Fetched:
        """The next batches; the last call if the state is any but MORE.

        Raises:
            PixyError: as `wait`.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead
        if self._offset == self._to_offset:
            return await self._read_nothing()
        return await self._fetch(self._max_bytes, 0)

    async def _fetch(self, max_bytes: int, max_wait: float) -> Fetched:
        try:
            if not await self._is_known():
                return self._unknown()
            result = await self._backend.fetch(
                self._partition, self._offset, max_bytes=max_bytes, max_wait=max_wait
            )
        except UnknownPartition:
            return self._unknown()
        except OffsetOutOfRange as error:
            if not await self._is_known():
                return self._unknown()
            return Fetched((), self._offset, error.begin, error.end, RangeState.OFFSET_OUT_OF_RANGE)
        # The topic may have been recreated meanwhile.
        return self._found(result) if await self._is_known() else self._unknown()

    def _found(self, result: FetchResult) -> Fetched:
        batches, next_offset = self._within(result)
        now = self._clock.monotonic()
        came = next_offset > self._offset
        if came:
            self._offset = next_offset
            self._wait_until = now + self._max_wait
        # A fetch without batches is the end for now, whatever its high watermark.
        self._at_end = not came or next_offset >= result.high_watermark
        state = RangeState.MORE
        if 0 <= self._to_offset <= self._offset:
            state = RangeState.END_OF_RANGE
        elif self._at_end and result.is_confirmed and now >= self._wait_until:
            self.waited_out = True
            state = RangeState.END_OF_RANGE if self._to_offset == _OPEN_END else RangeState.END_OF_LOG
        return Fetched(batches, self._offset, result.log_begin_offset, result.high_watermark, state)

    def _within(self, result: FetchResult) -> tuple[Sequence[Batch], int]:
        """The batches that begin before the end of the range, and the offset behind them."""
        batches, next_offset = result.batches, result.next_offset
        if not 0 <= self._to_offset < next_offset:
            return batches, next_offset
        count = len(batches)
        while count and (base := base_offset(batches[count - 1])) >= self._to_offset:
            next_offset = base
            count -= 1
        return batches[:count], next_offset

    async def _read_nothing(self) -> Fetched:
        """The result for an empty range."""
        topic, number = self._partition
        try:
            known = await self._is_known()
            served = (await self._backend.offset_ranges(topic, [number])).get(number) if known else None
        except UnknownTopic:
            served = None
        if served is None:
            return self._unknown()
        return Fetched((), self._offset, served.begin, served.end, RangeState.END_OF_RANGE)

    async def _is_known(self) -> bool:
        """True if the topic exists and has the id of the range."""
        name = self._partition.topic
        topic = self._backend.topic(name)
        try:
            if topic is None or self._topic_id not in (b"", topic.topic_id):
                topic = await self._backend.describe_topic(name)
        except UnknownTopic:
            return False
        self._topic_id = self._topic_id or topic.topic_id
        return topic.topic_id == self._topic_id

    def _unknown(self) -> Fetched:
        return Fetched((), self._offset, 0, 0, RangeState.UNKNOWN_PARTITION)

"""Fetch: stored batches as they are, from any replica.

A request is answered when it has `min_bytes`, when a partition has an error, or after its
`max_wait_ms`: one wait for all of its partitions. Batches in memory are handed over by reference.
The first partition that has some gives one whole batch at least (KIP-74), further ones as much as
fits. Records are read when it is the request's turn to be answered, so a connection holds one
answer in memory, however many requests it has sent.

There are no fetch sessions (KIP-227): the answer has session 0, and clients then name all
partitions in each request.
"""

from typing import NamedTuple

from pixy.aio.steps import in_steps
from pixy.api.kafka.codes import (
    FETCH_SESSION_ID_NOT_FOUND,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    record_code,
)
from pixy.api.kafka.topic_ids import TopicIds
from pixy.backend import FetchResult, TopicPartition
from pixy.clock import Clock
from pixy.errors import OffsetOutOfRange, PixyError, ResourceExhausted
from pixy.kafka_messages.generated.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pixy.proxy import Proxy
from pixy.wire import WireExchange

_ANSWER_BYTES_MAX = 4 << 20
"""Larger answers are no faster, and are memory."""
_WAIT_MAX_S = 300.0
_IDS_FROM = 13
_READ_COMMITTED = 1
_UNKNOWN = -1


class _Wanted(NamedTuple):
    """A partition of a request: where, from which offset, and how much of it."""

    partition: TopicPartition
    offset: int
    bytes_max: int
    answer: PartitionData


class _Read(NamedTuple):
    """One pass over all partitions: bytes that were found, an error among them, next offsets."""

    size: int
    has_error: bool
    next_offsets: dict[TopicPartition, int]


class FetchApi:
    """Handler of Fetch.

    Args:
        proxy: of the cluster.
        topic_ids: of the cluster.
        clock: the time.
    """

    def __init__(self, proxy: Proxy, topic_ids: TopicIds, clock: Clock) -> None:
        self._log = proxy.log
        self._topic_ids = topic_ids
        self._monotonic = clock.monotonic

    async def fetch(self, exchange: WireExchange, request: FetchRequest) -> FetchResponse:
        """Read partitions, after a wait if they have nothing new."""
        if request.session_id:
            return FetchResponse(error_code=FETCH_SESSION_ID_NOT_FOUND)
        answers: list[FetchableTopicResponse] = []
        wanted = await self._wanted(exchange, request, answers)
        response = FetchResponse(responses=answers)
        try:
            with self._log.fetches.holding(len(wanted), exchange.peer):
                await self._fill(exchange, request, wanted)
        except ResourceExhausted as error:
            for each in wanted:
                each.answer.error_code = record_code(error)
        return response

    async def _fill(self, exchange: WireExchange, request: FetchRequest, wanted: list[_Wanted]) -> None:
        """Read into the answers until there is enough, or the time is over."""
        until = self._monotonic() + min(max(request.max_wait_ms, 0) / 1000, _WAIT_MAX_S)
        bytes_max = min(max(request.max_bytes, 1), _ANSWER_BYTES_MAX)
        min_bytes = min(request.min_bytes, bytes_max)
        is_refused = len(wanted) < sum(len(topic.partitions) for topic in request.topics)
        while True:
            await exchange.wait_turn()
            read = await self._read(wanted, bytes_max)
            left_s = until - self._monotonic()
            if read.size >= min_bytes or read.has_error or is_refused or left_s <= 0 or not wanted:
                return
            await self._log.wait_records(read.next_offsets, left_s)

    async def _wanted(
        self, exchange: WireExchange, request: FetchRequest, found: list[FetchableTopicResponse]
    ) -> list[_Wanted]:
        """The partitions that can be read; the others have their codes in their answers."""
        wanted: list[_Wanted] = []
        async for topic in in_steps(request.topics):
            name, code = topic.topic, UNKNOWN_TOPIC_OR_PARTITION
            if exchange.version >= _IDS_FROM:
                name, code = await self._topic_ids.find(topic.topic_id), UNKNOWN_TOPIC_ID
            answers = [_answer(each, request.isolation_level) for each in topic.partitions]
            found.append(FetchableTopicResponse(topic.topic, topic.topic_id, answers))
            async for part, answer in in_steps(zip(topic.partitions, answers, strict=True)):
                if name:
                    at = TopicPartition(name, part.partition)
                    wanted.append(_Wanted(at, part.fetch_offset, part.partition_max_bytes, answer))
                else:
                    answer.error_code = code
        return wanted

    async def _read(self, wanted: list[_Wanted], bytes_max: int) -> _Read:
        """Read all partitions into their answers."""
        size, has_error = 0, False
        next_offsets: dict[TopicPartition, int] = {}
        async for each in in_steps(wanted):
            answer = each.answer
            most = min(max(each.bytes_max, 1), bytes_max - size)
            result = await self._result(each, most)
            if result is None:
                has_error = True
                continue
            answer.high_watermark = answer.last_stable_offset = result.high_watermark
            answer.log_start_offset = result.log_begin_offset
            found = sum(map(len, result.batches))
            if size and found > bytes_max - size:
                continue
            answer.records = list(result.batches)
            size += found
            next_offsets[each.partition] = result.next_offset
        return _Read(size, has_error, next_offsets)

    async def _result(self, wanted: _Wanted, most: int) -> FetchResult | None:
        """Batches of a partition, None for an error, which is in its answer."""
        partition, offset, _, answer = wanted
        found = self._log.fetch_nowait(partition, offset, max(most, 1))
        if found is not None:
            return found
        try:
            return await self._log.fetch(partition, offset, max_bytes=max(most, 1), max_wait=0)
        except OffsetOutOfRange as error:
            answer.high_watermark = answer.last_stable_offset = error.end
            answer.log_start_offset = error.begin
            answer.error_code = error.kafka_code
        except PixyError as error:
            answer.error_code = record_code(error)
        return None


def _answer(asked: FetchPartition, isolation_level: int) -> PartitionData:
    aborted: list[AbortedTransaction] | None = [] if isolation_level == _READ_COMMITTED else None
    return PartitionData(
        asked.partition, 0, _UNKNOWN, _UNKNOWN, _UNKNOWN, aborted_transactions=aborted, records=[]
    )

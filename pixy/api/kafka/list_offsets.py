"""ListOffsets: ends of partitions, and offsets by time.

timestamp       answer
-1              the end, which the last stable offset equals
-2, -4          the begin (-4: of what is on this machine, KIP-405)
-3              the record with the largest timestamp (KIP-734)
-5              none: nothing is in a remote storage
0 and above     the first record with at least this timestamp, -1 if there is none
"""

from collections.abc import Sequence

from pixy.aio.steps import in_steps
from pixy.api.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION, record_code
from pixy.backend import TopicPartition
from pixy.errors import PixyError
from pixy.kafka_messages.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pixy.proxy import OffsetPosition, OffsetQuery, Proxy
from pixy.wire import WireExchange

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL = -1, -2, -3, -4
_POSITIONS = {
    _LATEST: OffsetPosition.LATEST,
    _EARLIEST: OffsetPosition.EARLIEST,
    _EARLIEST_LOCAL: OffsetPosition.EARLIEST,
}
_NONE = -1


class ListOffsetsApi:
    """Handler of ListOffsets.

    Args:
        proxy: of the cluster.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._log = proxy.log

    async def list_offsets(self, exchange: WireExchange, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Find offsets."""
        answers = []
        async for topic in in_steps(request.topics):
            found = await self._topic(topic.name, topic.partitions, exchange.peer)
            answers.append(ListOffsetsTopicResponse(topic.name, found))
        return ListOffsetsResponse(topics=answers)

    async def _topic(
        self, name: str, asked: Sequence[ListOffsetsPartition], peer: str
    ) -> list[ListOffsetsPartitionResponse]:
        ends = [each for each in asked if each.timestamp in _POSITIONS]
        queries = [
            OffsetQuery(TopicPartition(name, each.partition_index), _POSITIONS[each.timestamp])
            for each in ends
        ]
        found: dict[int, ListOffsetsPartitionResponse] = {}
        try:
            offsets = await self._log.list_offsets(queries, peer)
        except PixyError as error:
            code = record_code(error)
            return [ListOffsetsPartitionResponse(each.partition_index, code) for each in asked]
        for each, offset in zip(ends, offsets, strict=True):
            found[id(each)] = _answer(each.partition_index, offset)
        return [found.get(id(each)) or await self._by_time(name, each, peer) for each in asked]

    async def _by_time(
        self, name: str, asked: ListOffsetsPartition, peer: str
    ) -> ListOffsetsPartitionResponse:
        partition, number = TopicPartition(name, asked.partition_index), asked.partition_index
        if asked.timestamp < _MAX_TIMESTAMP:
            return _answer(number, _NONE)
        try:
            if asked.timestamp == _MAX_TIMESTAMP:
                place = await self._log.times.newest(partition, peer)
            else:
                place = await self._log.times.since(partition, asked.timestamp, peer)
        except PixyError as error:
            return ListOffsetsPartitionResponse(number, record_code(error))
        return _answer(number, _NONE) if place is None else ListOffsetsPartitionResponse(number, 0, *place)


def _answer(number: int, offset: int | None) -> ListOffsetsPartitionResponse:
    if offset is None:
        return ListOffsetsPartitionResponse(number, UNKNOWN_TOPIC_OR_PARTITION)
    return ListOffsetsPartitionResponse(number, 0, _NONE, offset)

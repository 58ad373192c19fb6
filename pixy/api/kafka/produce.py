"""Produce: record batches of clients, each written as it is.

An answer means that all its batches are durable, so `acks` 1 and -1 are the same. With 0 there is
no answer; if such a batch is refused the connection ends, as with Kafka, or the client would never
know.
"""

from functools import partial

from pixy.aio.tasks import Tasks
from pixy.api.kafka.brokers import Brokers
from pixy.api.kafka.codes import (
    INVALID_REQUIRED_ACKS,
    MESSAGE_TOO_LARGE,
    NOT_LEADER_OR_FOLLOWER,
    UNSUPPORTED_COMPRESSION_TYPE,
    record_code,
    text_of,
)
from pixy.backend import TopicPartition
from pixy.client_address import client_address
from pixy.errors import Unavailable
from pixy.kafka_messages.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from pixy.proxy import Appended, AppendLane, PartitionBatches, Proxy
from pixy.wire import WireExchange

_LANE = "append lane"
_ALL_ACKS = (-1, 1)
_ZSTD_FROM = 7
_ATTRIBUTES_AT = 22
_CODEC_BITS, _ZSTD = 7, 4
_PARTITIONS_MAX = 5000
"""Each is some work in the step of the loop that begins a request."""
_AT_ONCE_MAX = 16
"""Batches of a request that are checked in one step of the loop."""


class ProduceApi:
    """Handler of Produce.

    Args:
        proxy: of the cluster.
        brokers: of the cluster.
        tasks: of the connections.
    """

    def __init__(self, proxy: Proxy, brokers: Brokers, tasks: Tasks) -> None:
        self._proxy = proxy
        self._brokers = brokers
        self._tasks = tasks

    def produce(self, exchange: WireExchange, request: ProduceRequest) -> None:
        """Append the batches of all partitions; the answer follows when they are durable."""
        pending = _PendingProduce(exchange, request)
        if pending.partitions > _PARTITIONS_MAX:
            pending.refuse_all(MESSAGE_TOO_LARGE)
            return
        if request.acks not in (0, *_ALL_ACKS):
            pending.refuse_all(INVALID_REQUIRED_ACKS)
            return
        lane = exchange.session.get(_LANE)
        if lane is None:
            peer = exchange.peer
            lane = AppendLane(self._proxy.log, peer, client_address(peer), self._tasks)
            exchange.session[_LANE] = lane
        at_once = _AT_ONCE_MAX
        for topic, answers in zip(request.topic_data, pending.response.responses, strict=True):
            for data, answer in zip(topic.partition_data, answers.partition_responses, strict=True):
                partition = TopicPartition(topic.name, data.index)
                code = self._why_refused(partition, data, exchange.version)
                if code:
                    pending.refused(answer, code)
                    continue
                batches = PartitionBatches(partition, data.records or b"")
                lane.append(batches, partial(pending.appended, answer), at_once=at_once > 0)
                at_once -= 1
        pending.begun()

    def _why_refused(self, partition: TopicPartition, data: PartitionProduceData, version: int) -> int:
        """The code of a batch that is not looked at, 0 if it is."""
        try:
            if not self._brokers.leads(partition):
                return NOT_LEADER_OR_FOLLOWER
        except Unavailable as error:
            return record_code(error)
        records = data.records
        if version < _ZSTD_FROM and records is not None and len(records) > _ATTRIBUTES_AT:
            # KIP-110
            return UNSUPPORTED_COMPRESSION_TYPE if records[_ATTRIBUTES_AT] & _CODEC_BITS == _ZSTD else 0
        return 0


class _PendingProduce:
    """A request whose batches are not all answered.

    Attributes:
        partitions: their number.
        response: completed bit by bit.
    """

    __slots__ = ("_exchange", "_is_answered", "_unanswered", "partitions", "response")

    def __init__(self, exchange: WireExchange, request: ProduceRequest) -> None:
        self._exchange = exchange
        self.partitions = sum(len(topic.partition_data) for topic in request.topic_data)
        # Partitions, and one more until all are begun.
        self._unanswered = 1 + self.partitions
        self._is_answered = request.acks != 0
        self.response = ProduceResponse(
            [
                TopicProduceResponse(
                    topic.name, [PartitionProduceResponse(data.index, 0, -1) for data in topic.partition_data]
                )
                for topic in request.topic_data
            ]
        )

    def begun(self) -> None:
        """All batches are with the log."""
        self._answered()

    def appended(self, answer: PartitionProduceResponse, result: Appended) -> None:
        """A batch is durable, or was refused."""
        if result.error is None:
            answer.base_offset = result.base_offset
        else:
            answer.error_code = record_code(result.error)
            answer.error_message = text_of(result.error)
        self._answered()

    def refused(self, answer: PartitionProduceResponse, code: int) -> None:
        """A batch was not taken."""
        answer.error_code = code
        self._answered()

    def refuse_all(self, code: int) -> None:
        """No batch is taken."""
        for topic in self.response.responses:
            for answer in topic.partition_responses:
                answer.error_code = code
        self._unanswered = 1
        self._answered()

    def _answered(self) -> None:
        self._unanswered -= 1
        if self._unanswered:
            return
        if self._is_answered:
            self._exchange.answer(self.response)
        elif code := self._first_code():
            self._exchange.refuse(f"a batch that nobody waits for was refused with code {code}")
        else:
            self._exchange.answer(None)

    def _first_code(self) -> int:
        answers = (answer for topic in self.response.responses for answer in topic.partition_responses)
        return next((answer.error_code for answer in answers if answer.error_code), 0)

"""Transactions of sinks: records and the epoch under which they are published, committed
atomically.

A sink has the transactional id `pixy-sink-<sink id>`, and a consumer group of the same name without
members. The committed offset of the group is the sink's state: the offset is the last epoch, the
metadata the query. It is committed for partition 0 of `__consumer_offsets`, which exists wherever a
group has committed anything and is never deleted; with a user's topic the epoch would be deleted
too. Kafka accepts an offset for any partition that exists.

    begin     InitProducerId: fences earlier publishers of the sink, aborts their open transaction,
              and completes a committed one. From then on `read` returns the outcome
    add       AddPartitionsToTxn, AddOffsetsToTxn
    ...       the batches (`produce`)
    commit    TxnOffsetCommit, EndTxn; then EndTxn again, which the coordinator refuses with
              CONCURRENT_TRANSACTIONS until every partition has its marker: so on return readers of
              committed data see the records
    abort     EndTxn

Each request may be sent twice: the coordinators check producer id and epoch. If they refuse a
request for these, another publisher has begun, or the transaction has exceeded
`transaction_timeout_s`.

All requests have version 0: responses without details suffice, and every release of Kafka supports
it.
"""

from collections.abc import Iterable
from typing import Any

from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.coordinators import Coordinators
from pixy.backend.kafka.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    OPERATION_NOT_ATTEMPTED,
    PRODUCER_FENCED,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
    error_for_code,
)
from pixy.backend.kafka.produce import TransactionalId
from pixy.backend.kafka.produce_queue import ProducerId
from pixy.errors import Unavailable
from pixy.kafka_protocol.group_messages import OFFSET_FETCH, TRANSACTION_COORDINATOR
from pixy.kafka_protocol.transaction_messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)
from pixy.records import TopicPartition
from pixy.staging import Sink

SINK_PREFIX = "pixy-sink-"
"""Prefix of the transactional ids of sinks, and of the groups that hold their epochs."""

_EPOCHS = TopicPartition("__consumer_offsets", 0)
_FIRST_PAUSE_S = 0.005
"""Short, because markers are written within milliseconds."""
_FENCED = frozenset({INVALID_PRODUCER_EPOCH, 48, 49, PRODUCER_FENCED})
"""48 INVALID_TXN_STATE, 49 INVALID_PRODUCER_ID_MAPPING"""
_NOTHING_COMMITTED = -1


class Unsettled(Unavailable):
    """A transaction of the sink is open or being completed."""


class SinkTransactions:
    """Transactions and epochs of one cluster's sinks.

    Args:
        client: the cluster's brokers.
        timeout_s: time limit of a transaction, after which the cluster aborts it.
    """

    def __init__(self, client: KafkaClient, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # New topics reach the brokers one after the other; the first lookup of a coordinator
        # creates that of the epochs.
        later = frozenset({CONCURRENT_TRANSACTIONS, UNKNOWN_TOPIC_OR_PARTITION})
        self._transactions = Coordinators(client, TRANSACTION_COORDINATOR, later, _FIRST_PAUSE_S)
        self._epochs = Coordinators(client, later=later, pause_s=_FIRST_PAUSE_S)
        settled = frozenset({UNSTABLE_OFFSET_COMMIT})
        self._settled = Coordinators(client, later=settled, pause_s=_FIRST_PAUSE_S)

    async def begin(self, sink_id: str) -> TransactionalId:
        """Become the only publisher of a sink.

        Raises:
            Unavailable: the coordinator cannot be reached, or an earlier transaction cannot be
                completed now.
        """
        name = _name(sink_id)
        what = f"begin a transaction of sink {sink_id}"
        request = INIT_PRODUCER_ID(name, round(self._timeout_s * 1000))
        answer = await self._transactions.ask(name, request, what)
        if answer.error_code:
            raise error_for_code(answer.error_code, what)
        return TransactionalId(name, ProducerId(answer.producer_id, answer.producer_epoch))

    async def read(self, sink_id: str, *, wait: bool) -> Sink | None:
        """The state of a sink, None if there is none.

        Args:
            wait: wait until an earlier transaction is completed, which is soon after `begin`.

        Raises:
            Unsettled: a transaction of the sink is open, without `wait`.
            Unavailable: the coordinator cannot be reached.
        """
        name = _name(sink_id)
        what = f"read the last epoch of sink {sink_id}"
        request = OFFSET_FETCH(name, [(_EPOCHS.topic, [_EPOCHS.partition], {})], True, {})
        if wait:
            answer = await self._settled.ask(name, request, what, _fetch_code)
        else:
            answer = await self._epochs.ask(name, request, what)
        code = _fetch_code(answer)
        if code == UNSTABLE_OFFSET_COMMIT:
            raise Unsettled(f"a publication of sink {sink_id} is in progress")
        if code not in (0, UNKNOWN_TOPIC_OR_PARTITION):
            raise error_for_code(code, what)
        ((_, offset, _, query_id, *_),) = answer.topics[0][1]
        return None if offset == _NOTHING_COMMITTED else Sink(query_id or "", offset, 0)

    async def add(self, transaction: TransactionalId, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions and the sink's epoch to a transaction."""
        name, producer = transaction
        by_topic: dict[str, list[int]] = {}
        for topic, number in partitions:
            by_topic.setdefault(topic, []).append(number)
        if by_topic:
            request = ADD_PARTITIONS_TO_TXN(name, *producer, list(by_topic.items()))
            await self._ask(self._transactions, name, request, "add partitions to the transaction", _any_code)
        request = ADD_OFFSETS_TO_TXN(name, *producer, name)
        await self._ask(self._transactions, name, request, "add the epoch to the transaction", _top_code)

    async def commit(self, transaction: TransactionalId, epoch: int, query_id: str) -> None:
        """Commit the transaction; on return readers see the records.

        Raises:
            Unavailable: the outcome is unknown; `begin` and `read` tell it.
        """
        name, producer = transaction
        topics = [(_EPOCHS.topic, [(_EPOCHS.partition, epoch, query_id)])]
        request = TXN_OFFSET_COMMIT(name, name, *producer, topics)
        await self._ask(self._epochs, name, request, "write the epoch", _any_code)
        request = END_TXN(name, *producer, True)
        for _ in ("committed", "visible"):
            await self._ask(self._transactions, name, request, "commit the transaction", _top_code)

    async def abort(self, transaction: TransactionalId) -> None:
        """Abort the transaction."""
        name, producer = transaction
        request = END_TXN(name, *producer, False)
        await self._ask(self._transactions, name, request, "abort the transaction", _top_code)

    async def _ask(
        self, coordinators: Coordinators, name: str, request: Any, what: str, code_of: Any
    ) -> None:
        what = f"{what} of {name}"
        code = code_of(await coordinators.ask(name, request, what, code_of))
        if code in _FENCED:
            raise Unavailable(
                f"cannot {what}: another publisher of the sink has begun, or it took longer than "
                f"kafka.transaction_timeout, {self._timeout_s:g} s (Kafka's error {code})"
            )
        if code:
            raise error_for_code(code, f"cannot {what}")


def _name(sink_id: str) -> str:
    return SINK_PREFIX + sink_id


def _top_code(answer: Any) -> int:
    code: int = answer.error_code
    return code


def _any_code(answer: Any) -> int:
    """The first error code other than "not attempted"."""
    codes = [code for _, partitions in answer.errors for _, code in partitions]
    return next((code for code in codes if code not in (0, OPERATION_NOT_ATTEMPTED)), 0)


def _fetch_code(answer: Any) -> int:
    """The error code of the group, or else of the partition."""
    code: int = answer.error_code or answer.topics[0][1][0][4]
    return code

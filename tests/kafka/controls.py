"""Direct operations on a Kafka cluster, bypassing the backend: transactions, retention, damage."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.protocol.admin import DeleteRecordsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from pixy.backend import TopicPartition
from pixy.backend.kafka.client import KafkaClient
from pixy.records import HEADER_BYTES, batch_bytes, read_header
from tests.fakes.waiting import until
from tests.kafka.backends import kafka_options
from tests.kafka.cluster import KafkaCluster

_PATIENCE_S = 60.0
_OF_TRANSACTIONS = 1
_READ_COMMITTED = 1
_numbers = iter(range(1_000_000))


@asynccontextmanager
async def transaction(cluster: KafkaCluster, *, commit: bool) -> AsyncIterator[AIOKafkaProducer]:
    """A producer in a transaction of its own, committed or aborted at the end."""
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.addresses, transactional_id=f"tests-{next(_numbers)}", linger_ms=0
    )
    await producer.start()
    try:
        await producer.begin_transaction()
        yield producer
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    finally:
        await producer.stop()


class KafkaControls:
    """Controls of the conformance tests for a cluster of one broker."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._node_id = cluster.brokers[0].node_id

    async def add_gap(self, _: Any, partition: TopicPartition, offsets: int) -> None:
        """An aborted transaction: its records, and one offset for its marker."""
        end = await self._end(partition)
        async with transaction(self._cluster, commit=False) as producer:
            for _number in range(offsets - 1):
                await producer.send_and_wait(partition.topic, b"aborted", partition=partition.partition)
        await self._wait_end(partition, end + offsets)

    async def add_control_batch(self, _: Any, partition: TopicPartition) -> None:
        """An empty transaction: only its marker has an offset."""
        end = await self._end(partition)
        name = f"tests-{next(_numbers)}"
        async with self._client() as client:
            ids = await self._begin(client, name)
            partitions = [(partition.topic, [partition.partition])]
            added = await client.send(self._node_id, AddPartitionsToTxnRequest(name, *ids, partitions))
            assert [error for _, errors in added.errors for _, error in errors] == [0]
            ended = await client.send(self._node_id, EndTxnRequest(name, *ids, True))
            assert not ended.error_code
        await self._wait_end(partition, end + 1)

    async def move_log_begin(self, _: Any, partition: TopicPartition, begin: int) -> None:
        """Kafka's DeleteRecords."""
        async with self._client() as client:
            topics = [(partition.topic, [(partition.partition, begin)])]
            answer = await client.send(self._node_id, DeleteRecordsRequest(topics, 10_000))
            assert [each[2] for topic in answer.topics for each in topic[1]] == [0]

    async def corrupt(self, _: Any, partition: TopicPartition, offset: int) -> None:
        """Flip the last byte of the batch with `offset` in the broker's file."""
        folder = self._cluster.brokers[0].folder / "data" / f"{partition.topic}-{partition.partition}"
        _flip(folder / f"{0:020}.log", offset)

    async def _begin(self, client: KafkaClient, name: str) -> tuple[int, int]:
        """Producer id and epoch, once the broker is the coordinator: the first transaction creates
        its topic.
        """
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                await client.send(self._node_id, FindCoordinatorRequest(name, _OF_TRANSACTIONS))
                answer = await client.send(self._node_id, InitProducerIdRequest(name, 60_000))
                if not answer.error_code:
                    return answer.producer_id, answer.producer_epoch
                await asyncio.sleep(0.05)  # the broker sends no notification

    async def _end(self, partition: TopicPartition) -> int:
        async with self._client() as client:
            topics = [(partition.topic, [(partition.partition, -1)])]
            answer = await client.send(self._node_id, OffsetRequest(-1, _READ_COMMITTED, topics))
            end: int = answer.topics[0][1][0][3]
            return end

    async def _wait_end(self, partition: TopicPartition, end: int) -> None:
        """Wait until a transaction's marker is in the partition: it is written after the answer."""

        async def is_there() -> bool:
            return await self._end(partition) == end

        await until(is_there)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[KafkaClient]:
        client = KafkaClient(kafka_options(self._cluster))
        await client.start()
        try:
            yield client
        finally:
            await client.stop()


def _flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        content = file.read()
        at = 0
        while at + HEADER_BYTES <= len(content):
            end = at + batch_bytes(content, at)
            if read_header(content, at).next_offset > offset:
                file.seek(end - 1)
                file.write(bytes([content[end - 1] ^ 0xFF]))
                return
            at = end
    raise AssertionError(f"{path} has no batch with offset {offset}")

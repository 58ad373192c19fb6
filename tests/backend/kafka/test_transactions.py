"""Transactions of sinks on a real Kafka: one publisher at a time, and an epoch committed together
with its records, or not at all.
"""

from collections.abc import AsyncIterator, Callable

import pytest
from aiokafka.protocol.transaction import InitProducerIdRequest

from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.transactions import SinkTransactions, Unsettled
from pixy.errors import FailedPrecondition, Unavailable
from pixy.records import TopicPartition
from pixy.staging import Sink
from tests.kafka.backends import kafka_options, open_kafka
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process

LAST = 2**63 - 1


@pytest.fixture
async def client(kafka: KafkaCluster) -> AsyncIterator[KafkaClient]:
    made = KafkaClient(kafka_options(kafka))
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def transactions(client: KafkaClient) -> SinkTransactions:
    return SinkTransactions(client, 60.0)


@pytest.fixture
def sink(kafka_name: Callable[[str], str]) -> str:
    return kafka_name("transactions")


async def test_a_committed_epoch_is_remembered_with_its_query(
    transactions: SinkTransactions, sink: str
) -> None:
    assert await transactions.read(sink, wait=False) is None
    for epoch, query in ((0, "query"), (LAST, "q" * 249), (3, "")):
        transaction = await transactions.begin(sink)
        await transactions.add(transaction, [])
        await transactions.commit(transaction, epoch, query)
        assert await transactions.read(sink, wait=False) == Sink(query, epoch, 0)


async def test_an_aborted_epoch_is_not(transactions: SinkTransactions, sink: str) -> None:
    transaction = await transactions.begin(sink)
    await transactions.add(transaction, [])
    await transactions.abort(transaction)
    assert await transactions.read(sink, wait=True) is None


async def test_the_next_publisher_fences_the_one_before_it(transactions: SinkTransactions, sink: str) -> None:
    first = await transactions.begin(sink)
    await transactions.add(first, [])
    second = await transactions.begin(sink)
    with pytest.raises(Unavailable, match=r"another publisher of the sink has begun"):
        await transactions.commit(first, 0, "query")
    assert await transactions.read(sink, wait=True) is None
    await transactions.add(second, [])
    await transactions.commit(second, 0, "query")
    assert await transactions.read(sink, wait=False) == Sink("query", 0, 0)


async def test_an_epoch_being_committed_is_reported_as_unsettled(
    transactions: SinkTransactions, sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = await transactions.begin(sink)
    await transactions.add(transaction, [])

    class Stop(Exception):
        """Raised to simulate the death of the publisher."""

    def die(*_: object) -> None:
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr("pixy.backend.kafka.transactions.END_TXN", die)
        with pytest.raises(Stop):
            await transactions.commit(transaction, 0, "query")
    with pytest.raises(Unsettled):
        await transactions.read(sink, wait=False)
    await transactions.begin(sink)
    assert await transactions.read(sink, wait=True) is None


async def test_a_timeout_not_allowed_by_the_brokers_is_named(client: KafkaClient, sink: str) -> None:
    with pytest.raises(FailedPrecondition, match=r"transaction\.max\.timeout\.ms"):
        await SinkTransactions(client, 100_000.0).begin(sink)


async def test_a_commit_returns_when_the_end_is_in_every_partition(
    kafka: KafkaCluster, client: KafkaClient, transactions: SinkTransactions, sink: str
) -> None:
    """A coordinator that still writes transaction markers would answer the next publisher with
    CONCURRENT_TRANSACTIONS.
    """
    topic = f"{sink}-topic"
    async with open_kafka(kafka) as backend:
        await backend.create_topic(topic, 20)
    node_id = kafka.brokers[0].node_id
    for epoch in range(5):
        transaction = await transactions.begin(sink)
        await transactions.add(transaction, [TopicPartition(topic, number) for number in range(20)])
        await transactions.commit(transaction, epoch, "query")
        answer = await client.send(node_id, InitProducerIdRequest(f"pixy-sink-{sink}", 60_000))
        assert answer.error_code == 0

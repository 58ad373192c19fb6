"""Connections: unreachable brokers are reported and skipped."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka.conn import create_conn

from pixy.backend.kafka import KafkaBackend
from pixy.backend.kafka.client import COMMITS, CONTROL, KafkaClient
from pixy.backend.kafka.errors import BrokerFault
from pixy.errors import ShuttingDown, Unavailable
from pixy.kafka_protocol import Api
from pixy.kafka_protocol.group_messages import LIST_GROUPS
from pixy.kafka_protocol.messages import METADATA
from tests.fakes.waiting import until
from tests.kafka.backends import kafka_options, open_kafka
from tests.kafka.cluster import KafkaCluster
from tests.kafka.relay import Relay

pytestmark = pytest.mark.process

PATIENCE_S = 60.0
BROKERS = METADATA([], False, False, {})


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a server that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    """An address without a listener."""
    with socket.socket() as once:
        once.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{once.getsockname()[1]}"


async def test_one_answering_seed_is_enough(kafka: KafkaCluster, silent: str, closed: str) -> None:
    options = kafka_options(kafka, seed_peers=(closed, silent, *kafka.addresses), dial_timeout_s=2.0)
    client = KafkaClient(options)
    try:
        await client.start()
        assert client.fault == ""
        assert [broker.port for broker in client.metadata.brokers.values()] == [kafka.broker(1).port]
    finally:
        await client.stop()


async def test_the_error_of_each_seed_is_reported(kafka: KafkaCluster, silent: str, closed: str) -> None:
    client = KafkaClient(kafka_options(kafka, seed_peers=(closed, silent), dial_timeout_s=0.3))
    try:
        await client.start()
        assert f"cannot connect to {closed}: " in client.fault
        assert f"{silent} has not answered within 0.3 s" in client.fault
        with pytest.raises(Unavailable, match="no Kafka broker can be asked: "):
            await client.send_any(BROKERS)
        with pytest.raises(BrokerFault, match="broker 7 is not part of the cluster") as caught:
            await client.send(7, BROKERS)
        assert not caught.value.sent
    finally:
        await client.stop()


async def test_a_broker_that_cannot_be_connected_to_in_time_was_not_asked(kafka: KafkaCluster) -> None:
    client = KafkaClient(kafka_options(kafka))
    await client.start()
    try:
        late = pytest.raises(BrokerFault, match=r"broker 1 has not answered within 0\.2 s")
        with kafka.paused(1), late as caught:
            await client.send(1, BROKERS, timeout_s=0.2)
    finally:
        await client.stop()
    assert not caught.value.sent  # the purpose had no connection yet, and none was opened
    with pytest.raises(ShuttingDown):
        await client.send(1, BROKERS)


async def test_a_late_answer_leaves_the_outcome_unknown(kafka: KafkaCluster) -> None:
    client = KafkaClient(kafka_options(kafka))
    await client.start()
    try:
        await client.send(1, BROKERS)
        with kafka.paused(1), pytest.raises(BrokerFault) as caught:
            await client.send(1, BROKERS, timeout_s=0.2)
        assert caught.value.sent
        # The late answer must not be matched to the next request.
        assert len((await client.send(1, BROKERS)).brokers) == 1
    finally:
        await client.stop()


async def test_each_purpose_has_one_connection_however_many_requests_are_concurrent(
    kafka: KafkaCluster,
) -> None:
    made = 0

    async def dial(host: str, port: int, **options: object) -> object:
        nonlocal made
        made += 1
        return await create_conn(host, port, **options)

    client = KafkaClient(kafka_options(kafka), dial)
    await client.start()
    try:
        before = made
        await asyncio.gather(*(client.send(1, BROKERS, "one") for _ in range(10)))
        await asyncio.gather(*(client.send(1, BROKERS, "two") for _ in range(10)))
        assert made == before + 2
    finally:
        await client.stop()


async def test_short_requests_wait_here_and_hold_up_neither_metadata_nor_commits(
    kafka: KafkaCluster,
) -> None:
    """A broker answers the requests of a connection one after the other."""
    held = 0

    async def dial(host: str, port: int, **options: Any) -> Any:
        connection = await create_conn(host, port, **options)
        send = connection.send

        def answer_some(request: Any) -> Any:
            nonlocal held
            if request.api is not LIST_GROUPS:
                return send(request)
            held += 1
            return asyncio.get_running_loop().create_future()

        connection.send = answer_some
        return connection

    client = KafkaClient(kafka_options(kafka), dial)
    await client.start()
    try:
        request = LIST_GROUPS([], [])
        asking = [asyncio.create_task(client.send(1, request)) for _ in range(16)]
        await until(lambda: held == 16)
        waiting = [asyncio.create_task(client.send(1, request, timeout_s=1)) for _ in range(24)]
        await client.refresh()
        assert (await client.send(1, BROKERS, COMMITS)).brokers
        faults = await asyncio.gather(*waiting, return_exceptions=True)
        assert [getattr(fault, "sent", None) for fault in faults] == [False] * 24
        assert held == 16
        assert not any(task.done() for task in asking)
        assert client.fault == ""
    finally:
        await client.stop()
    # Their connection is closed, and no answer comes.
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


async def test_a_broker_that_is_too_old_is_reported(kafka: KafkaCluster) -> None:
    client = KafkaClient(kafka_options(kafka))
    await client.start()
    try:
        future = Api("Metadata", METADATA.key, 99, METADATA.request, METADATA.response)
        with pytest.raises(Unavailable, match=r"knows versions 0 to \d+ of Metadata, version 99 is needed"):
            await client.send(1, future([], False, False, {}), CONTROL)
    finally:
        await client.stop()


async def test_changes_by_others_are_noticed_in_time(
    kafka: KafkaCluster, kafka_name: Callable[[str], str]
) -> None:
    name = kafka_name("grows")
    async with open_kafka(kafka) as other, open_kafka(kafka, metadata_max_age_s=0.05) as backend:
        await other.create_topic(name, 1)
        for partitions in (1, 3):
            await other.alter_topic(name, partitions=partitions)
            await counted(backend, name, partitions)
        await other.delete_topic(name)
        await counted(backend, name, 0)


async def counted(backend: KafkaBackend, topic: str, partitions: int) -> None:
    """Wait until `partitions` partitions are known."""
    await until(lambda: count(backend, topic) == partitions)


def count(backend: KafkaBackend, topic: str) -> int:
    """Number of known partitions."""
    known = backend.topic(topic)
    return 0 if known is None else len(known.partitions)


async def test_concurrent_requests_for_topics_share_a_request_and_are_independent(
    kafka: KafkaCluster, kafka_name: Callable[[str], str], relay: Relay
) -> None:
    names = [kafka_name(f"shared-{number}") for number in range(10)]
    client = KafkaClient(kafka_options(kafka, metadata_max_age_s=60.0), relay.dial)
    await client.start()
    try:
        async with open_kafka(kafka) as other:
            for name in names:
                await other.create_topic(name, 1)
        await client.refresh([])
        assert not set(names) & client.metadata.topics.keys()
        before = relay.requests
        refreshes = [asyncio.create_task(client.refresh([name])) for name in names]
        await asyncio.sleep(0)
        refreshes[0].cancel()
        refreshes[3].cancel()
        outcomes = await asyncio.gather(*refreshes, return_exceptions=True)
        assert [type(each) for each in outcomes if each is not None] == 2 * [asyncio.CancelledError]
        assert set(names[1:]) <= client.metadata.topics.keys()
        assert relay.requests - before <= 2
    finally:
        await client.stop()

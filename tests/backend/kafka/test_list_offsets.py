"""Offsets by position and timestamp, with several and with changing leaders."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress

import pytest

from pixy.backend import OffsetRange, TopicPartition
from pixy.backend.kafka import KafkaBackend
from pixy.errors import PixyError, Unavailable, UnknownTopic
from tests.conformance.support import append
from tests.kafka.backends import open_kafka
from tests.kafka.cluster import KafkaCluster

pytestmark = [pytest.mark.process, pytest.mark.no_debug]

PATIENCE_S = 60.0
PARTITIONS = 6


@pytest.fixture
async def backend(kafka_three: KafkaCluster) -> AsyncIterator[KafkaBackend]:
    async with open_kafka(kafka_three) as opened:
        yield opened


@pytest.fixture
async def topic(backend: KafkaBackend, kafka_name: Callable[[str], str]) -> str:
    name = kafka_name("offsets")
    created = await backend.create_topic(name, PARTITIONS)
    assert len({each.leader for each in created.partitions}) > 1, "they should have several leaders"
    for number in range(PARTITIONS):
        await append(backend, TopicPartition(name, number), *[b"v"] * number, b"last", timestamp_ms=1000)
    return name


async def test_partitions_of_several_leaders_are_returned_together(backend: KafkaBackend, topic: str) -> None:
    assert await backend.offset_ranges(topic) == {number: (0, number + 1) for number in range(PARTITIONS)}
    found = [await backend.offset_for_timestamp(TopicPartition(topic, n), 1003) for n in range(PARTITIONS)]
    assert found == [None, None, None, 3, 3, 3]


async def test_a_dead_leader_is_replaced_by_the_next_one(
    kafka_three: KafkaCluster, backend: KafkaBackend, topic: str
) -> None:
    kafka_three.broker(2).kill()
    # Longer than the timeout of one call, on a busy machine.
    ranges = await ranges_after(Unavailable, backend, topic)
    assert ranges == {number: (0, number + 1) for number in range(PARTITIONS)}


async def test_a_topic_deleted_by_others_is_reported(
    kafka_three: KafkaCluster, kafka_name: Callable[[str], str], backend: KafkaBackend
) -> None:
    name = kafka_name("deleted")
    async with open_kafka(kafka_three) as other:
        await other.create_topic(name, 1)
        # Each broker hears of it in its own time.
        assert await ranges_after(UnknownTopic, backend, name) == {0: (0, 0)}
        await other.delete_topic(name)
    with pytest.raises(UnknownTopic):
        await ask_until_refused(backend, name)


async def ranges_after(
    refusal: type[PixyError], backend: KafkaBackend, topic: str
) -> Mapping[int, OffsetRange]:
    """Ask until the answer is not this refusal."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(refusal):
                return await backend.offset_ranges(topic)


async def ask_until_refused(backend: KafkaBackend, topic: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await backend.offset_ranges(topic)

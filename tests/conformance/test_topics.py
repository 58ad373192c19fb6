"""Topics: valid names, creation, and metadata."""

import asyncio

import pytest

from pixy.backend import Backend, TopicPartition
from pixy.errors import InvalidTopic, TopicExists, UnknownTopic
from tests.conformance.support import append, error_of


async def test_a_created_topic_is_known_at_once_everywhere(backend: Backend) -> None:
    created = await backend.create_topic("orders", 3)
    assert backend.topic("orders") == created
    assert await backend.describe_topic("orders") == created
    assert await backend.list_topics() == [created]


async def test_a_new_topic_has_version_1_for_clients_of_kafka_pixy(backend: Backend) -> None:
    created = await backend.create_topic("orders", 3)
    assert created.metadata_version == (await backend.describe_topic("orders")).metadata_version == 1


async def test_partitions_are_ascending_without_holes(backend: Backend) -> None:
    created = await backend.create_topic("orders", 12)
    assert [each.partition for each in created.partitions] == list(range(12))


async def test_every_partition_of_a_new_topic_takes_records(backend: Backend) -> None:
    await backend.create_topic("orders", 3)
    assert [await append(backend, TopicPartition("orders", number), b"v") for number in range(3)] == [0, 0, 0]


async def test_a_partition_has_its_leader_among_its_replicas(backend: Backend) -> None:
    (partition,) = (await backend.create_topic("orders", 1)).partitions
    assert partition.leader in partition.replicas
    assert partition.leader in partition.isr
    assert set(partition.isr) <= set(partition.replicas)


async def test_topic_ids_are_sixteen_bytes_and_differ(backend: Backend) -> None:
    first, second = await backend.create_topic("first", 1), await backend.create_topic("second", 1)
    assert len(first.topic_id) == len(second.topic_id) == 16
    assert first.topic_id != second.topic_id


async def test_a_topic_keeps_its_configuration(backend: Backend) -> None:
    created = await backend.create_topic("orders", 1, {"retention_ms": "1000"})
    assert created.config["retention_ms"] == "1000"
    assert (await backend.describe_topic("orders")).config == created.config


async def test_topics_are_listed_by_name(backend: Backend) -> None:
    for name in ("b", "c", "a", "B"):
        await backend.create_topic(name, 1)
    assert [each.name for each in await backend.list_topics()] == ["B", "a", "b", "c"]


async def test_an_unknown_topic_is_reported_and_never_created(backend: Backend) -> None:
    assert backend.topic("orders") is None
    with pytest.raises(UnknownTopic):
        await backend.describe_topic("orders")
    with pytest.raises(UnknownTopic):
        await backend.offset_ranges("orders")
    await backend.committed_offsets("group", "orders")
    await backend.list_consumers("orders")
    assert backend.topic("orders") is None
    assert await backend.list_topics() == []


async def test_a_second_topic_of_the_same_name_is_rejected_and_the_first_stays(backend: Backend) -> None:
    created = await backend.create_topic("orders", 2)
    with pytest.raises(TopicExists):
        await backend.create_topic("orders", 5)
    assert await backend.describe_topic("orders") == created


async def test_of_concurrent_creations_exactly_one_succeeds(backend: Backend) -> None:
    outcomes = await asyncio.gather(
        *(backend.create_topic("orders", partitions) for partitions in range(1, 11)), return_exceptions=True
    )
    (created,) = [each for each in outcomes if not isinstance(each, BaseException)]
    assert all(isinstance(each, TopicExists) for each in outcomes if each is not created)
    assert await backend.describe_topic("orders") == created
    assert len(await backend.list_topics()) == 1


@pytest.mark.slow
async def test_every_name_that_kafka_allows_is_allowed(backend: Backend) -> None:
    for name in ("a", "a" * 249, "A.b_c-9", "...", "-", "_", ".a"):
        assert (await backend.create_topic(name, 1)).name == name
        assert await append(backend, TopicPartition(name, 0), b"v") == 0


@pytest.mark.slow
async def test_every_name_that_kafka_rejects_is_rejected(backend: Backend) -> None:
    names = ("", ".", "..", "a" * 250, "a b", "a/b", "a\\b", "a:b", "ä", "a\n", "\0", "../a", "a,b")
    for name in names:
        assert isinstance(await error_of(backend.create_topic(name, 1)), InvalidTopic), name
    assert await backend.list_topics() == []

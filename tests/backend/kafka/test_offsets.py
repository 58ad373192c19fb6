"""pixy/backend/kafka/offsets.py: commits with and without membership, and the coordinator's
answers.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from structlog.testing import capture_logs

from pixy.backend import OffsetCommit, TopicPartition
from pixy.errors import OwnedElsewhere, Unavailable, UnknownPartition
from tests.backend.kafka.member import Process, create_topic, open_process
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process

Name = Callable[[str], str]


@pytest.fixture
async def process(kafka: KafkaCluster) -> AsyncIterator[Process]:
    async with open_process(kafka) as opened:
        yield opened


@pytest.fixture
async def other(kafka: KafkaCluster) -> AsyncIterator[Process]:
    async with open_process(kafka) as opened:
        yield opened


@pytest.fixture
async def topic(process: Process, other: Process, kafka_name: Name) -> str:
    name = kafka_name("t")
    await create_topic(process, name, 2)
    await other.client.refresh()
    return name


@pytest.fixture
def group(kafka_name: Name) -> str:
    return kafka_name("g")


async def test_anybody_may_commit_in_a_group_without_members(
    process: Process, other: Process, topic: str, group: str
) -> None:
    await process.offsets.commit(group, {TopicPartition(topic, 0): OffsetCommit(5, "BB")})
    await other.offsets.commit(group, {TopicPartition(topic, 1): OffsetCommit(2)})
    assert await process.offsets.committed(group, topic) == {0: (5, "BB"), 1: (2, "")}


async def test_a_member_commits_its_partitions(process: Process, topic: str, group: str) -> None:
    await process.join(group, [topic])
    await process.offsets.commit(group, {TopicPartition(topic, 0): OffsetCommit(5)})
    assert await process.offsets.committed(group, topic) == {0: (5, "")}


async def test_a_commit_without_membership_names_the_owner_of_the_partition(
    process: Process, other: Process, topic: str, group: str
) -> None:
    await process.join(group, [topic], "pixy-1")
    with pytest.raises(OwnedElsewhere, match=f"offsets of {group} in {topic}/0 .* is consumed by pixy-1"):
        await other.offsets.commit(group, {TopicPartition(topic, 0): OffsetCommit(5)})
    assert await other.offsets.committed(group, topic) == {}


async def test_a_commit_of_another_topic_names_the_consumers(
    process: Process, other: Process, topic: str, group: str, kafka_name: Name
) -> None:
    another = kafka_name("another")
    await create_topic(other, another, 1)
    await process.join(group, [topic], "pixy-1")
    with pytest.raises(
        OwnedElsewhere, match=f"offsets of {group} cannot be set here: it is consumed by pixy-1"
    ):
        await other.offsets.commit(group, {TopicPartition(another, 0): OffsetCommit(5)})


async def test_a_member_commits_a_topic_without_subscribers(
    process: Process, topic: str, group: str, kafka_name: Name
) -> None:
    another = kafka_name("another")
    await create_topic(process, another, 1)
    await process.join(group, [topic])
    await process.offsets.commit(group, {TopicPartition(another, 0): OffsetCommit(5)})
    assert await process.offsets.committed(group, another) == {0: (5, "")}


async def test_a_member_does_not_commit_partitions_of_another_one(
    process: Process, other: Process, topic: str, group: str
) -> None:
    member, assignments = await process.join(group, [topic], "pixy-1")
    await other.join(group, [topic], "pixy-2")
    await assignments.wait_until(lambda owned: len(owned.get(topic, ())) == 1)
    (theirs,) = (number for number in range(2) if not member.owns(TopicPartition(topic, number)))
    both = {TopicPartition(topic, number): OffsetCommit(5) for number in range(2)}
    with pytest.raises(OwnedElsewhere, match=f"{topic}/{theirs} .* pixy-2"):
        await process.offsets.commit(group, both)
    assert await process.offsets.committed(group, topic) == {}


async def test_a_commit_of_an_older_generation_is_rejected(process: Process, topic: str, group: str) -> None:
    member, _ = await process.join(group, [topic])
    assert member.generation is not None
    current, member.generation = member.generation, member.generation._replace(number=0)
    with pytest.raises(Unavailable, match="the consumer group has changed; try again"):
        await process.offsets.commit(group, {TopicPartition(topic, 0): OffsetCommit(5)})
    member.generation = current
    assert await process.offsets.committed(group, topic) == {}


async def test_acks_too_large_for_the_broker_are_omitted_and_the_offset_is_committed(
    process: Process, topic: str, group: str
) -> None:
    partition = TopicPartition(topic, 0)
    with capture_logs() as logs:
        await process.offsets.commit(group, {partition: OffsetCommit(5, "BB" * 3000)})
    assert await process.offsets.committed(group, topic) == {0: (5, "")}
    assert [each["partitions"] for each in logs if "offset.metadata.max.bytes" in each["event"]] == [
        [f"{topic}/0"]
    ]


async def test_an_unknown_partition_is_rejected_and_nothing_is_stored(
    process: Process, topic: str, group: str
) -> None:
    commits = {TopicPartition(topic, 0): OffsetCommit(1), TopicPartition(topic, 2): OffsetCommit(1)}
    with pytest.raises(UnknownPartition):
        await process.offsets.commit(group, commits)
    assert await process.offsets.committed(group, topic) == {}


async def test_commits_and_the_deletion_of_their_topic_exclude_each_other(
    process: Process, topic: str, group: str
) -> None:
    partition = TopicPartition(topic, 0)
    async with process.offsets.deleting(topic):
        commit = asyncio.create_task(process.offsets.commit(group, {partition: OffsetCommit(1)}))
        await asyncio.sleep(0)
        process.client.metadata.deleted(topic)
    with pytest.raises(UnknownPartition):
        await commit

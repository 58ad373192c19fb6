"""pixy/backend/kafka/group_list.py: members of groups, of any client and either protocol."""

import subprocess
from collections.abc import AsyncIterator, Callable

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from tests.backend.kafka.member import Process, create_topic, open_process
from tests.fakes.waiting import until
from tests.integration.kafka_tools import kafka_java
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process

Name = Callable[[str], str]


@pytest.fixture
async def process(kafka: KafkaCluster) -> AsyncIterator[Process]:
    async with open_process(kafka) as opened:
        yield opened


def java_consumer(kafka: KafkaCluster, topic: str, group: str, protocol: str) -> "subprocess.Popen[bytes]":
    """Kafka's own consumer, as a member of a group."""
    tool = [
        *kafka_java(),
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        ",".join(kafka.addresses),
    ]
    tool += ["--topic", topic, "--group", group]
    for name, value in {"group.protocol": protocol, "client.id": f"java-{protocol}"}.items():
        tool += ["--command-property", f"{name}={value}"]
    return subprocess.Popen(
        tool, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_members_of_both_of_kafkas_protocols_are_listed(
    process: Process, kafka: KafkaCluster, kafka_name: Name, protocol: str
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 2)
    consumer = java_consumer(kafka, topic, group, protocol)
    try:

        async def listed() -> bool:
            return (await process.group_list.consumers(topic)).get(group) == {f"java-{protocol}": [0, 1]}

        await until(listed)
        assert await process.group_list.owner(group, TopicPartition(topic, 1)) == f"java-{protocol}"
    finally:
        consumer.kill()
        consumer.wait()


async def test_an_unknown_group_has_no_members(process: Process, kafka_name: Name) -> None:
    assert not await process.group_list.members(kafka_name("nobody"))


async def test_a_member_without_partitions_is_listed_too(
    process: Process, kafka: KafkaCluster, kafka_name: Name
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 1)
    async with open_process(kafka) as other:
        await process.join(group, [topic], "one")
        await other.join(group, [topic], "two")
        listed = (await process.group_list.consumers(topic))[group]
        assert sorted(listed) == ["one", "two"]
        assert sorted(map(list, listed.values())) == [[], [0]]


async def test_a_group_is_shared_with_a_consumer_of_the_newer_protocol(
    process: Process, kafka: KafkaCluster, kafka_name: Name
) -> None:
    """The broker converts a classic group to the newer protocol as soon as such a member joins, and
    back.
    """
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 2)
    member, assignments = await process.join(group, [topic], "pixy-1")
    consumer = java_consumer(kafka, topic, group, "consumer")
    try:
        await assignments.wait_until(lambda owned: len(owned.get(topic, ())) == 1)
        (ours,) = member.assigned[topic]
        await process.offsets.commit(group, {TopicPartition(topic, ours): OffsetCommit(0, "BB")})

        async def listed() -> bool:
            found = (await process.group_list.consumers(topic)).get(group, {})
            return found == {"pixy-1": [ours], "java-consumer": [1 - ours]}

        await until(listed)
    finally:
        consumer.kill()
        consumer.wait()

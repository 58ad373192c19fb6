"""Members of consumer groups on a real Kafka."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.protocol.admin import CreatePartitionsRequest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.errors import FailedPrecondition
from pixy.kafka_protocol.group_messages import LEAVE_GROUP
from tests.backend.kafka.member import Process, create_topic, open_process
from tests.conformance.support import PATIENCE
from tests.fakes.waiting import until
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process

Name = Callable[[str], str]


@asynccontextmanager
async def ordinary_consumer(
    kafka: KafkaCluster, topic: str, group: str, assignor: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    """A foreign consumer as a member of a group."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.addresses,
        group_id=group,
        client_id="ordinary",
        partition_assignment_strategy=[assignor],
        heartbeat_interval_ms=200,
        session_timeout_ms=6000,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


@pytest.fixture
async def process(kafka: KafkaCluster) -> AsyncIterator[Process]:
    async with open_process(kafka) as opened:
        yield opened


@pytest.fixture
async def other(kafka: KafkaCluster) -> AsyncIterator[Process]:
    async with open_process(kafka) as opened:
        yield opened


async def test_a_single_member_has_all_partitions_when_join_returns(
    process: Process, kafka_name: Name
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 4)
    member, assignments = await process.join(group, [topic])
    assert assignments.last == {topic: [0, 1, 2, 3]}
    assert member.generation is not None


async def test_two_processes_share_the_partitions_in_ranges(
    process: Process, other: Process, kafka_name: Name
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 5)
    _, first = await process.join(group, [topic])
    await other.client.refresh()
    _, second = await other.join(group, [topic])
    await first.wait_until(lambda owned: len(owned.get(topic, ())) < 5)
    assert first.last is not None
    assert second.last is not None
    assert sorted([first.last[topic], second.last[topic]]) == [[0, 1, 2], [3, 4]]


async def test_partitions_of_a_member_that_leaves_are_reassigned(
    process: Process, other: Process, kafka_name: Name
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 2)
    leaving, first = await process.join(group, [topic])
    _, second = await other.join(group, [topic])
    await second.wait_until(lambda owned: len(owned.get(topic, ())) == 1)
    await leaving.leave()
    heard = len(first.calls)
    await second.wait({topic: [0, 1]})
    assert len(first.calls) == heard


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor])
async def test_a_group_is_shared_with_a_foreign_consumer(
    process: Process, kafka: KafkaCluster, kafka_name: Name, assignor: Any
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 4)
    _, assignments = await process.join(group, [topic], "pixy-1")
    async with ordinary_consumer(kafka, topic, group, assignor) as consumer:
        await assignments.wait_until(lambda owned: len(owned.get(topic, ())) == 2)
        async with asyncio.timeout(PATIENCE):
            while len(consumer.assignment()) != 2:
                await consumer.getmany(timeout_ms=50)
        assert {each.partition for each in consumer.assignment()} | {*(assignments.last or {})[topic]} == {
            *range(4)
        }
        listed = await process.group_list.consumers(topic)
        assert sorted(listed[group]) == ["ordinary", "pixy-1"]
        assert sorted(number for numbers in listed[group].values() for number in numbers) == [0, 1, 2, 3]
        assert listed[group]["pixy-1"] == (assignments.last or {})[topic]
    await assignments.wait({topic: [0, 1, 2, 3]})


async def test_offers_are_settled_before_another_member_owns_the_partition(
    process: Process, other: Process, kafka_name: Name
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 2)
    acked = asyncio.Event()
    asked: list[float] = []

    async def settle(seconds: float, _: object) -> None:
        asked.append(seconds)
        await acked.wait()
        commits = {TopicPartition(topic, number): OffsetCommit(7 + number, "BB") for number in range(2)}
        await process.offsets.commit(group, commits)

    await process.join(group, [topic], "first", settle)
    joining = asyncio.create_task(other.join(group, [topic], "second"))
    await until(lambda: bool(asked))
    assert asked == [3.0]
    assert not joining.done()
    acked.set()
    _, second = await joining
    assert len((second.last or {})[topic]) == 1
    assert await other.offsets.committed(group, topic) == {0: (7, "BB"), 1: (8, "BB")}


async def test_a_rebalance_waits_no_longer_than_its_timeout(
    process: Process, kafka: KafkaCluster, kafka_name: Name
) -> None:
    """A member that does not rejoin in time is removed by the coordinator, notices, and joins
    again.
    """
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 2)
    cancelled = asyncio.Event()

    async def never(seconds: float, _: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with open_process(kafka, rebalance_timeout_s=0.5, session_timeout_s=1.0) as stuck:
        _, first = await stuck.join(group, [topic], "first", never)
        await process.join(group, [topic], "second")
        async with asyncio.timeout(PATIENCE):
            await cancelled.wait()
        await first.wait_until(lambda owned: len(owned.get(topic, ())) == 1)
        assert {} in [{name: numbers for name, numbers in call.items() if numbers} for call in first.calls]


async def test_the_only_member_does_not_wait_for_acks_to_get_another_topic(
    process: Process, kafka_name: Name
) -> None:
    one, two, group = kafka_name("one"), kafka_name("two"), kafka_name("g")
    await create_topic(process, one, 1)
    await create_topic(process, two, 1)
    asked: list[float] = []

    async def settle(seconds: float, _: object) -> None:
        asked.append(seconds)

    member, assignments = await process.join(group, [one], "me", settle)
    await member.subscribe([one, two])
    await assignments.wait({one: [0], two: [0]})
    assert asked == [0.0]


async def test_added_partitions_are_noticed(process: Process, kafka_name: Name) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 1)
    _, assignments = await process.join(group, [topic])
    await process.client.send_any(CreatePartitionsRequest([(topic, (3, None))], 10_000, False))
    await assignments.wait({topic: [0, 1, 2]})


async def test_a_missing_topic_is_assigned_when_created_and_delays_no_others(
    process: Process, kafka_name: Name
) -> None:
    topic, later, group = kafka_name("t"), kafka_name("later"), kafka_name("g")
    await create_topic(process, topic, 1)
    _, assignments = await process.join(group, [topic, later])
    assert assignments.last == {topic: [0]}
    await create_topic(process, later, 2)
    await assignments.wait({topic: [0], later: [0, 1]})


async def test_a_member_that_dies_is_replaced_when_its_session_ends(
    process: Process, kafka: KafkaCluster, kafka_name: Name
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 2)
    async with open_process(kafka) as dying:
        member, _ = await dying.join(group, [topic], "dying")
        _, assignments = await process.join(group, [topic])
        await assignments.wait_until(lambda owned: len(owned.get(topic, ())) == 1)
        await member._tasks.cancel_all()
        member._member_id = ""  # so that it does not leave the group
        await assignments.wait({topic: [0, 1]})


async def test_a_removed_member_loses_all_partitions_and_rejoins(
    process: Process, other: Process, kafka_name: Name
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 2)
    member, assignments = await process.join(group, [topic])
    assert member.generation is not None
    before = member.generation.member_id
    await other.coordinators.ask(group, LEAVE_GROUP(group, before), "put somebody out")
    await assignments.wait_until(lambda owned: owned == {})
    await assignments.wait({topic: [0, 1]})
    assert member.generation.member_id != before


async def test_groups_with_another_assignor_are_not_joined(
    process: Process, kafka: KafkaCluster, kafka_name: Name
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    await create_topic(process, topic, 1)
    async with ordinary_consumer(kafka, topic, group, StickyPartitionAssignor):
        with pytest.raises(FailedPrecondition, match=f"consumer group {group}"):
            await process.join(group, [topic])


async def test_a_stopped_coordinator_is_replaced_and_the_member_stays(
    kafka_three: KafkaCluster, kafka_name: Name
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    async with open_process(kafka_three, session_timeout_s=6.0) as process:
        await create_topic(process, topic, 2)
        member, assignments = await process.join(group, [topic])
        before = member.generation
        kafka_three.broker(await process.coordinators.find(group)).kill()
        await process.offsets.commit(group, {TopicPartition(topic, 0): OffsetCommit(3)})
        assert await process.offsets.committed(group, topic) == {0: (3, "")}
        heard = member._heard_at
        await until(lambda: member._heard_at > heard)
        assert member.generation == before
        assert assignments.last == {topic: [0, 1]}
        kafka_three.start_again()

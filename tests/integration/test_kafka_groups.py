"""Consumer groups on a real Kafka: problems reported by kafka-pixy's users, and several pixies and
other members in one group.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from itertools import cycle

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.structs import OffsetAndMetadata
from structlog.testing import capture_logs

from pixy.backend import OffsetCommit, TopicPartition
from pixy.errors import (
    AckElsewhere,
    InvalidOffset,
    NotConsumed,
    OwnedElsewhere,
    OwnerUndecided,
    TopicMissing,
    Unavailable,
    UnknownGroup,
)
from tests.fakes.waiting import until
from tests.kafka.cluster import KafkaCluster
from tests.kafka.controls import KafkaControls
from tests.kafka.pixies import PATIENCE, Pixy, open_neighbours, open_pixy

pytestmark = pytest.mark.process

Name = Callable[[str], str]


@pytest.fixture
async def a(kafka: KafkaCluster) -> AsyncIterator[Pixy]:
    async with open_pixy(kafka, "pixy-a") as opened:
        yield opened


@pytest.fixture
async def b(kafka: KafkaCluster) -> AsyncIterator[Pixy]:
    async with open_pixy(kafka, "pixy-b") as opened:
        yield opened


@pytest.fixture
def topic(kafka_name: Name) -> str:
    return kafka_name("orders")


@pytest.fixture
def group(kafka_name: Name) -> str:
    return kafka_name("readers")


async def create(pixy: Pixy, topic: str, partitions: int) -> None:
    await pixy.backend.create_topic(topic, partitions)


async def commit_as_somebody_else(
    kafka: KafkaCluster, group: str, topic: str, offset: int, metadata: str
) -> None:
    """A commit as by kafka-pixy: without membership, for one partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.addresses, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([KafkaPartition(topic, 0)])
        await consumer.commit({KafkaPartition(topic, 0): OffsetAndMetadata(offset, metadata)})
    finally:
        await consumer.stop()


# --- commits of kafka-pixy ------------------------------------------------------------------------


async def test_a_migration_from_kafka_pixy_loses_no_ack(
    kafka: KafkaCluster, a: Pixy, topic: str, group: str
) -> None:
    """Records committed by kafka-pixy, including acks above the offset, are not redelivered; all
    others are delivered.
    """
    await create(a, topic, 1)
    await a.produce(topic, *[b"%d" % at for at in range(320)])
    await commit_as_somebody_else(kafka, group, topic, 301, "BDCCBD")  # acked: 302-304, 307, 308, 310-312
    seen = []
    for _ in range(11):
        offer = await a.consume_some(group, topic)
        seen.append(offer.record.offset)
        await a.ack_offer(group, offer)
    assert seen == [301, 305, 306, 309, *range(313, 320)]
    assert await a.consume(group, topic) is None
    await a.wait_committed(group, topic, {0: (320, "")})


async def test_a_migration_back_to_kafka_pixy_finds_the_acks_in_its_encoding(
    kafka: KafkaCluster, a: Pixy, topic: str, group: str
) -> None:
    await create(a, topic, 1)
    await a.produce(topic, *[b"%d" % at for at in range(16)])
    for _ in range(16):
        await a.consume_some(group, topic)
    for offset in (0, 2, 3, 4, 7, 8, 10, 11, 12):
        await a.ack(group, topic, 0, offset)
    await a.wait_committed(group, topic, {0: (1, "BDCCBD")})


async def test_a_foreign_commit_does_not_stop_consuming(
    kafka: KafkaCluster, a: Pixy, topic: str, group: str
) -> None:
    await create(a, topic, 1)
    await a.produce(topic, b"0", b"1")
    await commit_as_somebody_else(kafka, group, topic, 1, "not @ list of acks")
    with capture_logs() as logs:
        offer = await a.consume_some(group, topic, auto_ack=True)
    assert offer.record.offset == 1
    assert [each["metadata"] for each in logs if "sparse acks cannot be read" in each["event"]] == [
        "not @ list of acks"
    ]


# --- rebalances -----------------------------------------------------------------------------------


async def test_partitions_added_while_consuming_are_consumed(a: Pixy, topic: str, group: str) -> None:
    await create(a, topic, 1)
    await a.produce(topic, b"before")
    assert (await a.consume_some(group, topic, auto_ack=True)).record.value == b"before"
    await a.backend.alter_topic(topic, partitions=3)
    written = await a.produce(topic, *[b"%d" % at for at in range(30)])
    assert {partition for partition, _ in written} == {0, 1, 2}
    seen = {(await a.consume_some(group, topic, auto_ack=True)).record.value for _ in range(30)}
    assert seen == {b"%d" % at for at in range(30)}


async def test_partitions_added_by_others_are_consumed_from_their_beginning(
    a: Pixy, b: Pixy, topic: str, group: str
) -> None:
    await create(b, topic, 1)
    await b.produce(topic, b"before")
    await a.consume_some(group, topic, auto_ack=True)
    await b.backend.alter_topic(topic, partitions=2)
    while 1 not in {partition for partition, _ in await b.produce(topic, b"after")}:
        pass
    async with asyncio.timeout(PATIENCE):
        while (await a.consume_some(group, topic, auto_ack=True)).partition != 1:
            pass


async def test_a_missing_topic_does_not_break_the_groups_others(
    kafka: KafkaCluster, topic: str, group: str, kafka_name: Name
) -> None:
    async with open_pixy(kafka, auto_create_topics=False) as a:
        await create(a, topic, 1)
        gone = kafka_name("gone")
        await create(a, gone, 1)
        await a.produce(topic, b"0", b"1")
        await a.produce(gone, b"x")
        await a.consume_some(group, topic, auto_ack=True)
        await a.consume_some(group, gone, auto_ack=True)
        await a.backend.delete_topic(gone)
        with pytest.raises(TopicMissing):
            await a.consume(group, gone)
        with pytest.raises(TopicMissing):
            await a.consume(group, kafka_name("never"))
        assert (await a.consume_some(group, topic, auto_ack=True)).record.value == b"1"
        await a.produce(topic, b"2")
        assert (await a.consume_some(group, topic, auto_ack=True)).record.value == b"2"


async def test_nothing_is_skipped_and_nothing_acked_is_redelivered_while_pixies_join_and_leave(
    kafka: KafkaCluster, a: Pixy, topic: str, group: str
) -> None:
    await create(a, topic, 4)
    total = 400
    await a.produce(topic, *[b"%d" % at for at in range(total)])
    acked: Counter[bytes] = Counter()
    done = asyncio.Event()

    async def work(pixy: Pixy, stop: asyncio.Event) -> None:
        while not stop.is_set() and not done.is_set():
            offer = await pixy.consume(group, topic)
            if offer is None:
                continue
            await asyncio.sleep(0.01)  # the work
            await pixy.ack_offer(group, offer)
            assert offer.record.value is not None
            acked[offer.record.value] += 1
            if len(acked) == total:
                done.set()

    async def visit(client_id: str) -> None:
        async with open_pixy(kafka, client_id) as visitor:
            stop = asyncio.Event()
            working = asyncio.create_task(work(visitor, stop))

            async def has_the_last() -> bool:
                return await _owner(visitor, group, TopicPartition(topic, 3)) == client_id

            await until(has_the_last)
            stop.set()
            await working

    async with asyncio.timeout(3 * PATIENCE):
        first = asyncio.create_task(work(a, asyncio.Event()))
        await visit("pixy-x")
        await visit("pixy-y")
        await done.wait()
        await first
    assert set(acked) == {b"%d" % at for at in range(total)}
    assert max(acked.values()) == 1


async def test_a_record_acked_before_the_rebalance_ends_is_not_offered_by_the_new_owner(
    a: Pixy, b: Pixy, topic: str, group: str
) -> None:
    await create(a, topic, 2)
    await a.produce(topic, *[b"%d" % at for at in range(20)])
    held = [await a.consume_some(group, topic) for _ in range(20)]
    joining = asyncio.create_task(b.consume(group, topic))
    await _wait_rebalance(a, group, topic)
    for offer in held:
        await a.ack_offer(group, offer)
    assert await joining is None
    assert await b.consume(group, topic) is None
    assert {commit.offset for commit in (await b.committed(group, topic)).values()} == {
        sum(offer.partition == number for offer in held) for number in range(2)
    }


async def test_an_unacked_record_does_not_block_the_group_forever(
    a: Pixy, b: Pixy, topic: str, group: str
) -> None:
    await create(a, topic, 2)
    await a.produce(topic, *[b"%d" % at for at in range(20)])
    held = await a.consume_some(group, topic)
    seen: set[bytes | None] = set()
    async with asyncio.timeout(2 * PATIENCE):
        while len(seen) < 19:
            for pixy in (a, b):
                offer = await pixy.consume(group, topic, auto_ack=True)
                if offer is not None and offer.record.value != held.record.value:
                    seen.add(offer.record.value)
    listed = await a.backend.list_consumers(topic)
    assert sorted(listed[group]) == ["pixy-a", "pixy-b"]


async def test_offers_of_a_pixy_are_released_when_its_subscription_ends(
    kafka: KafkaCluster, b: Pixy, topic: str, group: str
) -> None:
    async with open_pixy(kafka, "pixy-a", {"subscription_timeout": 1.5}) as a:
        await create(a, topic, 2)
        await a.produce(topic, *[b"%d" % at for at in range(10)])
        await a.consume_some(group, topic, auto_ack=True)
        seen = {(await b.consume_some(group, topic, auto_ack=True)).record.value for _ in range(9)}
        assert len(seen) == 9


async def test_a_pixy_that_dies_is_replaced(kafka: KafkaCluster, b: Pixy, topic: str, group: str) -> None:
    async with open_pixy(kafka, "pixy-a") as a:
        await create(a, topic, 2)
        await a.produce(topic, *[b"%d" % at for at in range(10)])
        held = await a.consume_some(group, topic)
        (member,) = a.backend._groups._members[group]
        await member._tasks.cancel_all()  # silent from here on, like a dead member
        seen = {(await b.consume_some(group, topic, auto_ack=True)).record.value for _ in range(10)}
        assert held.record.value in seen
        member._member_id = ""


async def test_acks_after_a_kill_wait_for_the_end_of_the_session(
    kafka: KafkaCluster, topic: str, group: str
) -> None:
    async with open_pixy(kafka, "pixy-a") as killed, open_pixy(kafka, "pixy-a") as restarted:
        await create(killed, topic, 1)
        await killed.produce(topic, b"0")
        offer = await killed.consume_some(group, topic)
        (member,) = killed.backend._groups._members[group]
        await member._tasks.cancel_all()
        await restarted.backend.describe_topic(topic)

        async def is_acked() -> bool:
            try:
                await restarted.ack_offer(group, offer)
            except OwnerUndecided:  # clients repeat it
                return False
            return True

        await until(is_acked)
        await restarted.wait_committed(group, topic, {0: (1, "")})
        member._member_id = ""


async def _wait_rebalance(pixy: Pixy, group: str, topic: str) -> None:
    """Wait until the group is rebalancing, as seen by a member."""

    async def paused() -> bool:
        return pixy.proxy._consumers._subscriptions[group, topic].holding

    await until(paused)


# --- offsets --------------------------------------------------------------------------------------


async def test_an_expired_offset_is_clamped_and_logged_once(
    kafka: KafkaCluster, a: Pixy, topic: str, group: str
) -> None:
    await create(a, topic, 1)
    await a.produce(topic, *[b"%d" % at for at in range(10)])
    await a.backend.commit_offsets(group, {TopicPartition(topic, 0): OffsetCommit(3)})
    await KafkaControls(kafka).move_log_begin(a.backend, TopicPartition(topic, 0), 7)
    with capture_logs() as logs:
        assert (await a.consume_some(group, topic, auto_ack=True)).record.offset == 7
        await a.wait_committed(group, topic, {0: (8, "")})
    said = [each for each in logs if each["event"] == "committed offset is below the log begin offset"]
    assert [(each["offset"], each["begin"]) for each in said] == [(3, 7)]


async def test_an_offset_beyond_a_truncated_log_is_clamped_and_logged_once(
    a: Pixy, topic: str, group: str
) -> None:
    await create(a, topic, 1)
    await a.produce(topic, b"0", b"1")
    await a.backend.commit_offsets(group, {TopicPartition(topic, 0): OffsetCommit(50, "BB")})
    with capture_logs() as logs:
        assert await a.consume(group, topic) is None
        await a.wait_committed(group, topic, {0: (2, "")})
    said = [each for each in logs if each["event"] == "committed offset is beyond the end"]
    assert [(each["offset"], each["end"]) for each in said] == [(50, 2)]
    await a.produce(topic, b"2")
    assert (await a.consume_some(group, topic)).record.value == b"2"


@pytest.mark.parametrize("offset", [-3])
async def test_an_invalid_offset_is_rejected_without_side_effects(
    a: Pixy, topic: str, group: str, offset: int
) -> None:
    await create(a, topic, 1)
    await a.produce(topic, b"0", b"1")
    await a.consume_some(group, topic, auto_ack=True)
    with pytest.raises(InvalidOffset):
        await a.proxy.set_offsets(group, topic, [(0, OffsetCommit(offset))])
    assert (await a.consume_some(group, topic, auto_ack=True)).record.value == b"1"


@pytest.mark.parametrize(("initial", "first"), [("oldest", b"0"), ("newest", b"after")])
async def test_a_groups_first_consume_begins_at_the_initial_offset(
    kafka: KafkaCluster, topic: str, group: str, initial: str, first: bytes
) -> None:
    async with open_pixy(kafka, options={"initial_offset": initial}) as a:
        await create(a, topic, 1)
        await a.produce(topic, b"0", b"1")
        if initial == "newest":
            assert await a.consume(group, topic) is None
            await a.wait_committed(group, topic, {0: (2, "")})
        await a.produce(topic, b"after")
        assert (await a.consume_some(group, topic)).record.value == first


async def test_consuming_continues_when_the_coordinator_moves(
    kafka_three: KafkaCluster, topic: str, group: str
) -> None:
    async with open_pixy(kafka_three, options={"session_timeout": 10.0}) as a:
        await create(a, topic, 2)
        await a.produce(topic, *[b"%d" % at for at in range(20)])
        seen = [(await a.consume_some(group, topic, auto_ack=True)).record.value for _ in range(10)]
        kafka_three.broker(await a.backend._coordinators.find(group)).kill()
        seen += [(await a.consume_some(group, topic, auto_ack=True)).record.value for _ in range(10)]
        assert len(set(seen)) == 20

        async def all_acked() -> bool:
            return sum(commit.offset for commit in (await a.committed(group, topic)).values()) == 20

        await until(all_acked)


# --- several pixies -------------------------------------------------------------------------------


async def _owner(pixy: Pixy, group: str, partition: TopicPartition) -> str | None:
    """Client id of the owner of a partition; None also during a rebalance."""
    try:
        owner = await pixy.backend.partition_owner(group, partition)
    except OwnerUndecided:
        return None
    return None if owner is None else owner.client_id


async def _share(a: Pixy, b: Pixy, topic: str, group: str) -> None:
    """Make `a` and `b` consume an empty topic of two partitions, with one partition each."""
    await create(a, topic, 2)
    await b.backend.describe_topic(topic)
    async with asyncio.timeout(PATIENCE):
        while len((await a.backend.list_consumers(topic)).get(group, {})) < 2:
            await asyncio.gather(a.consume(group, topic), b.consume(group, topic))
        owners: set[str | None] = {None}
        while None in owners:
            owners = {await _owner(a, group, TopicPartition(topic, n)) for n in range(2)}
    assert owners == {"pixy-a", "pixy-b"}


async def _partition_of(pixy: Pixy, group: str, topic: str) -> int:
    (partition,) = (await pixy.backend.list_consumers(topic))[group][pixy.client_id]
    return partition


async def test_an_ack_at_a_pixy_that_does_not_own_the_partition_names_the_owner(
    a: Pixy, b: Pixy, topic: str, group: str
) -> None:
    await _share(a, b, topic, group)
    await a.produce(topic, *[b"%d" % at for at in range(20)])
    partition = await _partition_of(b, group, topic)
    offer = await b.consume_some(group, topic)
    assert offer.partition == partition
    with pytest.raises(AckElsewhere, match="is consumed by pixy-b"):
        await a.ack(group, topic, partition, offer.record.offset)
    await b.ack_offer(group, offer)


async def test_an_ack_at_a_pixy_that_is_no_member_names_the_owner_and_disturbs_no_consumer(
    a: Pixy, b: Pixy, topic: str, group: str
) -> None:
    await create(a, topic, 2)
    await a.produce(topic, b"0")
    offer = await a.consume_some(group, topic)
    await b.backend.describe_topic(topic)
    with pytest.raises(AckElsewhere, match="is consumed by pixy-a"):
        await b.ack(group, topic, offer.partition, offer.record.offset)
    assert list((await a.backend.list_consumers(topic))[group]) == ["pixy-a"]


async def test_set_offsets_at_a_pixy_that_does_not_own_the_partition_names_the_owner(
    a: Pixy, b: Pixy, topic: str, group: str
) -> None:
    await _share(a, b, topic, group)
    await a.produce(topic, *[b"%d" % at for at in range(20)])
    partition = await _partition_of(b, group, topic)
    with pytest.raises(OwnedElsewhere, match="is consumed by pixy-b"):
        await a.proxy.set_offsets(group, topic, [(partition, OffsetCommit(1))])
    await b.proxy.set_offsets(group, topic, [(partition, OffsetCommit(1))])
    assert (await b.consume_some(group, topic)).record.offset == 1


async def test_set_offsets_at_a_pixy_that_is_no_member_names_the_consumers(
    a: Pixy, b: Pixy, topic: str, group: str
) -> None:
    await create(a, topic, 1)
    await a.produce(topic, b"0", b"1")
    await a.consume_some(group, topic)
    await b.backend.describe_topic(topic)
    with pytest.raises(OwnedElsewhere, match="is consumed by pixy-a"):
        await b.proxy.set_offsets(group, topic, [(0, OffsetCommit(1))])


async def test_set_offsets_of_a_group_without_members_is_a_simple_commit(
    a: Pixy, topic: str, group: str
) -> None:
    await create(a, topic, 2)
    await a.produce(topic, *[b"%d" % at for at in range(20)])
    await a.proxy.set_offsets(group, topic, [(0, OffsetCommit(2, "BB")), (1, OffsetCommit(-2))])
    assert await a.committed(group, topic) == {0: (2, "BB"), 1: (0, "")}
    assert not await a.backend.consumer_group_exists(group)


async def test_other_consumers_are_listed_too(
    kafka: KafkaCluster, a: Pixy, topic: str, group: str, kafka_name: Name
) -> None:
    await create(a, topic, 2)
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.addresses,
        group_id=group,
        client_id="ordinary",
        partition_assignment_strategy=[RangePartitionAssignor],
        heartbeat_interval_ms=200,
    )
    await consumer.start()
    try:
        assert await a.proxy.list_consumers(topic, group) == {group: {"ordinary": [0, 1]}}
        joining = asyncio.create_task(a.consume(group, topic))
        async with asyncio.timeout(PATIENCE):
            while sorted(map(len, (await a.proxy.list_consumers(topic, group))[group].values())) != [1, 1]:
                await consumer.getmany(timeout_ms=50)
        assert await joining is None
    finally:
        await consumer.stop()
    with pytest.raises(UnknownGroup):
        await a.proxy.list_consumers(topic, kafka_name("nobody"))
    other = kafka_name("other")
    await create(a, other, 1)
    with pytest.raises(NotConsumed):
        await a.proxy.list_consumers(other, group)


# --- brokers --------------------------------------------------------------------------------------


@pytest.mark.long
async def test_consumers_resume_after_an_outage_of_all_brokers_longer_than_a_session(
    kafka_three: KafkaCluster, topic: str, group: str
) -> None:
    """Records acked and committed before are not redelivered, others are, and acks during the
    outage report why they do not count.
    """
    async with open_pixy(kafka_three, options={"session_timeout": 2.0}) as a:
        await create(a, topic, 2)
        await a.produce(topic, *[b"%d" % at for at in range(20)])
        seen = [(await a.consume_some(group, topic, auto_ack=True)).record.value for _ in range(10)]

        async def all_acked() -> bool:
            return sum(commit.offset for commit in (await a.committed(group, topic)).values()) == 10

        await until(all_acked)
        held = await a.consume_some(group, topic)
        for broker in kafka_three.brokers:
            broker.kill()

        async def put_out() -> bool:
            return not a.proxy._consumers.outstanding

        await until(put_out)
        with pytest.raises(Unavailable):
            await a.ack_offer(group, held)
        kafka_three.start_again_nowait()
        await asyncio.to_thread(kafka_three.wait_ready)
        async with asyncio.timeout(2 * PATIENCE):
            while len(seen) < 20:
                offer = await a.consume(group, topic, auto_ack=True)
                if offer is not None:
                    seen.append(offer.record.value)
        assert sorted(seen, key=lambda value: int(value or b"-1")) == [b"%d" % at for at in range(20)]


# --- pixies that know each other ------------------------------------------------------------------


async def test_behind_a_balancer_every_message_comes_once_and_is_acked_anywhere(
    kafka: KafkaCluster, topic: str, group: str
) -> None:
    """Each call goes to the next pixy, and no message waits for its ack timeout."""
    async with open_neighbours(kafka, 3, {"ack_timeout": 600.0}) as pixies:
        await create(pixies[0], topic, 6)
        turns = cycle(pixies)
        for pixy in pixies:  # all three are members
            await pixy.consume(group, topic)
        values = [b"%d" % number for number in range(90)]
        for at in range(0, len(values), 10):
            await next(turns).produce(topic, *values[at : at + 10])
        found = []
        for _ in values:
            offer = await next(turns).consume_some(group, topic)
            found.append(offer.record.value)
            next(turns)  # so that acks meet all owners
            await next(turns).ack_offer(group, offer)
        assert Counter(found) == Counter(values)
        ends = await pixies[0].backend.offset_ranges(topic)
        await pixies[0].wait_committed(
            group, topic, {number: (each.end, "") for number, each in ends.items() if each.end}
        )


async def test_a_consumer_of_one_pixy_gets_what_others_own(
    kafka: KafkaCluster, topic: str, group: str
) -> None:
    async with open_neighbours(kafka, 3, {"ack_timeout": 600.0, "subscription_timeout": 600.0}) as pixies:
        await create(pixies[0], topic, 6)
        for pixy in pixies:
            await pixy.consume(group, topic)
        values = [b"%d" % number for number in range(60)]
        await pixies[0].produce(topic, *values)
        found = []
        for _ in values:
            offer = await pixies[1].consume_some(group, topic)
            await pixies[1].ack_offer(group, offer)
            found.append(offer.record.value)
        assert Counter(found) == Counter(values)


async def test_offsets_are_set_at_any_pixy(kafka: KafkaCluster, topic: str, group: str) -> None:
    async with open_neighbours(kafka, 3, {"subscription_timeout": 600.0}) as pixies:
        await create(pixies[0], topic, 3)
        await pixies[0].produce(topic, *(b"%d" % number for number in range(30)))
        for pixy in pixies[:2]:
            await pixy.consume_some(group, topic, auto_ack=True)
        ends = await pixies[0].backend.offset_ranges(topic)
        for pixy in pixies:  # the last one is no member
            for number, served in ends.items():
                await pixy.proxy.set_offsets(group, topic, [(number, OffsetCommit(served.end))])
            await pixies[0].wait_committed(
                group, topic, {number: (served.end, "") for number, served in ends.items()}
            )
            await pixy.proxy.set_offsets(group, topic, [(number, OffsetCommit(0)) for number in ends])
            assert {
                number: each.offset for number, each in (await pixy.committed(group, topic)).items()
            } == dict.fromkeys(ends, 0)


async def test_a_pixy_that_is_no_member_passes_acks_on(kafka: KafkaCluster, topic: str, group: str) -> None:
    async with open_neighbours(kafka, 2, {"ack_timeout": 600.0, "subscription_timeout": 600.0}) as (a, b):
        await create(a, topic, 1)
        await a.produce(topic, b"value")
        offer = await a.consume_some(group, topic)
        await b.ack_offer(group, offer)
        await a.wait_committed(group, topic, {0: (1, "")})

"""Topics that grow, are altered, deleted, and recreated under the same name."""

import asyncio

import pytest

from pixy.backend import Backend, OffsetCommit, TopicPartition
from pixy.errors import InvalidArgument, PixyError, UnknownPartition, UnknownTopic
from tests.conformance.implementations import Capability
from tests.conformance.support import (
    PATIENCE,
    Assignments,
    append,
    append_nowait,
    error_of,
    fetch_now,
    values,
)
from tests.fakes.waiting import until

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(autouse=True)
async def _topic(backend: Backend) -> None:
    await backend.create_topic("orders", 2)


async def shared(first: Assignments, second: Assignments, partitions: int) -> None:
    """Return when each of two members has half of the partitions."""

    def halves() -> bool:
        one, two = [(each.last or {}).get("orders", []) for each in (first, second)]
        return sorted(one + two) == list(range(partitions)) and len(one) == len(two)

    await until(halves)


# --- growth ---------------------------------------------------------------------------------------


async def test_a_topic_grows_at_once_everywhere_and_its_version_with_it(backend: Backend) -> None:
    before = await backend.describe_topic("orders")
    grown = await backend.alter_topic("orders", partitions=5)
    assert [each.partition for each in grown.partitions] == [0, 1, 2, 3, 4]
    assert grown.version > before.version
    assert (grown.topic_id, grown.config) == (before.topic_id, before.config)
    assert backend.topic("orders") == grown
    assert await backend.describe_topic("orders") == grown
    assert await backend.list_topics() == [grown]


@pytest.mark.slow
async def test_growth_keeps_partitions_and_records_and_new_ones_begin_at_zero(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1")
    await backend.alter_topic("orders", partitions=3)
    assert values(await fetch_now(backend, ORDERS, 0)) == [b"0", b"1"]
    assert await backend.offset_ranges("orders") == {0: (0, 2), 1: (0, 0), 2: (0, 0)}
    assert await append(backend, ORDERS, b"2") == 2
    assert await append(backend, TopicPartition("orders", 2), b"new") == 0
    assert values(await fetch_now(backend, TopicPartition("orders", 2), 0)) == [b"new"]


async def test_growth_does_not_affect_appends_and_fetches_in_flight(backend: Backend) -> None:
    fetching = asyncio.create_task(backend.fetch(ORDERS, 0, max_bytes=1000))
    await asyncio.sleep(0)
    growing = asyncio.create_task(backend.alter_topic("orders", partitions=3))
    appended = append_nowait(backend, ORDERS, b"0")
    async with asyncio.timeout(PATIENCE):
        await growing
        assert await appended == 0
        assert values(await fetching) == [b"0"]


async def test_growth_keeps_committed_offsets(backend: Backend) -> None:
    await backend.commit_offsets("group", {ORDERS: OffsetCommit(0, "BB")})
    await backend.alter_topic("orders", partitions=3)
    assert await backend.committed_offsets("group", "orders") == {0: (0, "BB")}
    await backend.commit_offsets("group", {TopicPartition("orders", 2): OffsetCommit(0)})
    assert await backend.committed_offsets("group", "orders") == {0: (0, "BB"), 2: (0, "")}


async def test_new_partitions_are_assigned(backend: Backend) -> None:
    assignments, others = Assignments(), Assignments()
    await backend.create_topic("bills", 1)
    await backend.join_consumer_group("group", "me", ["orders"], assignments)
    await backend.join_consumer_group("other", "me", ["bills"], others)
    await assignments.wait({"orders": [0, 1]})
    await others.wait({"bills": [0]})
    await backend.alter_topic("orders", partitions=4)
    await assignments.wait({"orders": [0, 1, 2, 3]})
    assert others.calls == [{"bills": [0]}]


@pytest.mark.needs(Capability.SECOND_MEMBER)
async def test_new_partitions_are_shared_by_the_members(backend: Backend) -> None:
    first, second = Assignments(), Assignments()
    await backend.join_consumer_group("group", "one", ["orders"], first)
    await backend.join_consumer_group("group", "two", ["orders"], second)
    await shared(first, second, 2)
    await backend.alter_topic("orders", partitions=4)
    await shared(first, second, 4)


@pytest.mark.slow
async def test_partitions_never_become_fewer_or_too_many_and_nothing_changes(backend: Backend) -> None:
    before = await backend.describe_topic("orders")
    config: dict[str, str | None] = {"retention_ms": "1"}
    for count in (1, 0, -1, 10_001, 2**40):
        error = await error_of(backend.alter_topic("orders", partitions=count, config=config))
        assert isinstance(error, InvalidArgument), count
        assert await backend.describe_topic("orders") == before


@pytest.mark.slow
async def test_a_new_topic_has_at_least_one_partition_and_not_too_many(backend: Backend) -> None:
    for count in (0, -1, 10_001, 2**40):
        error = await error_of(backend.create_topic("bills", count))
        assert isinstance(error, InvalidArgument), count
        assert backend.topic("bills") is None


async def test_a_change_without_effect_keeps_the_version(backend: Backend) -> None:
    before = await backend.alter_topic("orders", config={"retention_ms": "1000"})
    assert await backend.alter_topic("orders") == before
    assert await backend.alter_topic("orders", partitions=2, config={"retention_ms": "1000"}) == before
    assert await backend.alter_topic("orders", config={"segment_ms": None}) == before
    assert await backend.describe_topic("orders") == before


async def test_concurrent_growths_end_with_the_largest(backend: Backend) -> None:
    async with asyncio.timeout(PATIENCE):
        outcomes = await asyncio.gather(
            *(backend.alter_topic("orders", partitions=count) for count in (3, 6, 4, 5)),
            return_exceptions=True,
        )
    assert all(not isinstance(each, BaseException) or isinstance(each, InvalidArgument) for each in outcomes)
    assert len((await backend.describe_topic("orders")).partitions) == 6
    assert len(await backend.offset_ranges("orders")) == 6


# --- options --------------------------------------------------------------------------------------


async def test_options_are_set_and_unset_one_by_one(backend: Backend) -> None:
    first = await backend.alter_topic("orders", config={"retention_ms": "1000", "segment_bytes": "1048576"})
    assert first.config == {"retention_ms": "1000", "segment_bytes": "1048576"}
    second = await backend.alter_topic("orders", config={"retention_ms": "-1", "retention_bytes": "-1"})
    assert second.config == {"retention_ms": "-1", "retention_bytes": "-1", "segment_bytes": "1048576"}
    third = await backend.alter_topic("orders", config={"retention_ms": None, "segment_bytes": None})
    assert third.config == {"retention_bytes": "-1"}
    assert first.version < second.version < third.version
    assert backend.topic("orders") == third
    assert await backend.list_topics() == [third]


@pytest.mark.needs(Capability.EXPLICIT_DEFAULTS)
async def test_the_policy_of_compaction_is_an_option_of_a_topic(backend: Backend) -> None:
    for policy in ("compact", "compact,delete", "delete"):
        altered = await backend.alter_topic("orders", config={"cleanup_policy": policy})
        assert altered.config == {"cleanup_policy": policy}
    made = await backend.create_topic("bills", 1, {"cleanup_policy": "compact"})
    assert made.config == {"cleanup_policy": "compact"}


async def test_partitions_and_options_change_atomically(backend: Backend) -> None:
    before = await backend.describe_topic("orders")
    altered = await backend.alter_topic("orders", partitions=3, config={"retention_ms": "1000"})
    assert (len(altered.partitions), altered.config) == (3, {"retention_ms": "1000"})
    assert altered.version > before.version


BAD_OPTIONS = [
    {"compression": "zstd"},
    {"retention.ms": "1000"},
    {"retention_ms": ""},
    {"retention_ms": "1 day"},
    {"retention_ms": "1.5"},
    {"retention_ms": "-2"},
    {"segment_ms": "-1"},
    {"segment_bytes": "-1"},
    {"cleanup_policy": "compacted"},
]


@pytest.mark.slow
async def test_an_invalid_option_is_rejected_and_nothing_changes(backend: Backend) -> None:
    before = await backend.alter_topic("orders", config={"retention_bytes": "1000"})
    for bad in BAD_OPTIONS:
        config: dict[str, str | None] = {"retention_bytes": None, **bad}
        error = await error_of(backend.alter_topic("orders", partitions=3, config=config))
        assert isinstance(error, InvalidArgument), bad
        assert await backend.describe_topic("orders") == before


@pytest.mark.slow
async def test_no_topic_is_created_with_an_invalid_option(backend: Backend) -> None:
    for bad in BAD_OPTIONS:
        error = await error_of(backend.create_topic("bills", 1, bad))
        assert isinstance(error, InvalidArgument), bad
        assert backend.topic("bills") is None


async def test_an_unknown_topic_cannot_be_altered(backend: Backend) -> None:
    with pytest.raises(UnknownTopic):
        await backend.alter_topic("bills", partitions=3)
    assert backend.topic("bills") is None


# --- deletion -------------------------------------------------------------------------------------


async def test_a_deleted_topic_is_unknown_everywhere(backend: Backend) -> None:
    bills = await backend.create_topic("bills", 1)
    await append(backend, ORDERS, b"0")
    await backend.delete_topic("orders")
    assert backend.topic("orders") is None
    assert await backend.list_topics() == [bills]
    with pytest.raises(UnknownTopic):
        await backend.describe_topic("orders")
    with pytest.raises(UnknownTopic):
        await backend.offset_ranges("orders")
    with pytest.raises(UnknownTopic):
        await backend.alter_topic("orders", partitions=3)
    with pytest.raises(UnknownPartition):
        await fetch_now(backend, ORDERS, 0)
    with pytest.raises(UnknownPartition):
        await backend.offset_for_timestamp(ORDERS, 0)
    with pytest.raises(UnknownPartition):
        await append(backend, ORDERS, b"1")
    with pytest.raises(UnknownPartition):
        await backend.commit_offsets("group", {ORDERS: OffsetCommit(0)})


async def test_an_unknown_topic_cannot_be_deleted(backend: Backend) -> None:
    with pytest.raises(UnknownTopic):
        await backend.delete_topic("bills")
    await backend.delete_topic("orders")
    with pytest.raises(UnknownTopic):
        await backend.delete_topic("orders")


@pytest.mark.slow
async def test_of_concurrent_deletions_exactly_one_succeeds(backend: Backend) -> None:
    async with asyncio.timeout(PATIENCE):
        outcomes = await asyncio.gather(
            *(backend.delete_topic("orders") for _ in range(5)), return_exceptions=True
        )
    assert outcomes.count(None) == 1
    assert [type(each) for each in outcomes if each is not None] == 4 * [UnknownTopic]


async def test_other_topics_are_unchanged(backend: Backend) -> None:
    bills = TopicPartition("bills", 0)
    await backend.create_topic("bills", 1)
    await append(backend, bills, b"0")
    await backend.commit_offsets("group", {bills: OffsetCommit(1), ORDERS: OffsetCommit(0)})
    await backend.delete_topic("orders")
    assert values(await fetch_now(backend, bills, 0)) == [b"0"]
    assert await append(backend, bills, b"1") == 1
    assert await backend.committed_offsets("group", "bills") == {0: (1, "")}


async def test_a_fetch_that_waits_ends_when_its_topic_is_deleted(backend: Backend) -> None:
    await append(backend, ORDERS, b"0")
    waiting = [
        asyncio.create_task(backend.fetch(ORDERS, 1, max_bytes=1000, max_wait=max_wait))
        for max_wait in (None, 1000.0)
    ]
    await asyncio.sleep(0)
    await backend.delete_topic("orders")
    async with asyncio.timeout(PATIENCE):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in outcomes] == [UnknownPartition, UnknownPartition]


@pytest.mark.slow
async def test_appends_in_flight_are_all_answered(backend: Backend) -> None:
    appends = [append_nowait(backend, ORDERS, b"%d" % at) for at in range(20)]
    deletion = asyncio.create_task(backend.delete_topic("orders"))
    async with asyncio.timeout(PATIENCE):
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        await deletion
    written = [each for each in outcomes if isinstance(each, int)]
    assert written == list(range(len(written)))
    assert all(isinstance(each, UnknownPartition) for each in outcomes[len(written) :])


async def test_appends_are_answered_while_a_topic_is_deleted(backend: Backend) -> None:
    """With continuous appends, every append is answered, with an error at the latest after the
    deletion.
    """
    outcomes: list[PixyError | None] = []

    async def append_until_refused() -> None:
        try:
            while True:
                await append(backend, ORDERS, b"v")
                outcomes.append(None)
        except PixyError as error:
            outcomes.append(error)

    async with asyncio.timeout(PATIENCE):
        appending = [asyncio.create_task(append_until_refused()) for _ in range(4)]
        await append(backend, ORDERS, b"v")
        await backend.delete_topic("orders")
        await asyncio.gather(*appending)
    refused = [each for each in outcomes if each is not None]
    assert [type(each) for each in refused] == 4 * [UnknownPartition]


async def test_committed_offsets_are_deleted_with_the_topic(backend: Backend) -> None:
    for group in ("one", "two"):
        await backend.commit_offsets(group, {ORDERS: OffsetCommit(0, "BB")})
    await backend.delete_topic("orders")
    assert await backend.committed_offsets("one", "orders") == {}
    assert await backend.committed_offsets("two", "orders") == {}


async def test_members_lose_the_partitions_of_a_deleted_topic(backend: Backend) -> None:
    await backend.create_topic("bills", 1)
    assignments = Assignments()
    await backend.join_consumer_group("group", "me", ["orders", "bills"], assignments)
    await assignments.wait({"orders": [0, 1], "bills": [0]})
    await backend.delete_topic("orders")
    await assignments.wait({"bills": [0]})
    assert await backend.consumer_group_exists("group")
    consumers = await backend.list_consumers("orders")
    assert [partitions for group in consumers.values() for partitions in group.values() if partitions] == []


# --- recreation -----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_recreated_topic_is_empty_and_has_another_id(backend: Backend) -> None:
    before = await backend.alter_topic("orders", config={"retention_ms": "1000"})
    await append(backend, ORDERS, b"old", b"older")
    await backend.delete_topic("orders")
    again = await backend.create_topic("orders", 1)
    assert again.topic_id != before.topic_id
    assert (again.config, len(again.partitions)) == ({}, 1)
    assert backend.topic("orders") == again
    assert await backend.list_topics() == [again]
    assert await backend.offset_ranges("orders") == {0: (0, 0)}
    assert await append(backend, ORDERS, b"new") == 0
    assert values(await fetch_now(backend, ORDERS, 0)) == [b"new"]
    assert await backend.offset_for_timestamp(ORDERS, 0) == 0
    with pytest.raises(UnknownPartition):
        await fetch_now(backend, TopicPartition("orders", 1), 0)


@pytest.mark.slow
async def test_a_fetch_of_the_old_topic_never_sees_the_new_one(backend: Backend) -> None:
    waiting = asyncio.create_task(backend.fetch(ORDERS, 0, max_bytes=1000))
    await asyncio.sleep(0)
    await backend.delete_topic("orders")
    await backend.create_topic("orders", 2)
    await append(backend, ORDERS, b"new")
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(UnknownPartition):
            await waiting


async def test_a_recreated_topic_has_no_committed_offset_of_the_old_one(backend: Backend) -> None:
    await backend.commit_offsets("group", {ORDERS: OffsetCommit(0, "BB")})
    await backend.delete_topic("orders")
    await backend.create_topic("orders", 2)
    assert await backend.committed_offsets("group", "orders") == {}
    await backend.commit_offsets("group", {ORDERS: OffsetCommit(0)})
    assert await backend.committed_offsets("group", "orders") == {0: (0, "")}


@pytest.mark.slow
@pytest.mark.needs(Capability.ONE_PROCESS)
async def test_a_commit_in_flight_does_not_leak_into_a_new_topic(backend: Backend) -> None:
    """None of the commits started before the old topic is deleted survives it."""
    async with asyncio.timeout(PATIENCE):
        for turn in range(10):
            topic = f"topic-{turn}"
            partition = TopicPartition(topic, 0)
            await backend.create_topic(topic, 1)
            commits = [
                asyncio.create_task(backend.commit_offsets("group", {partition: OffsetCommit(0, "BB")}))
                for _ in range(3)
            ]
            for _ in range(turn):
                await asyncio.sleep(0)
            deletion = asyncio.create_task(backend.delete_topic(topic))
            commits.append(asyncio.create_task(backend.commit_offsets("group", {partition: OffsetCommit(0)})))
            await deletion
            await backend.create_topic(topic, 1)
            outcomes = await asyncio.gather(*commits, return_exceptions=True)
            assert {type(each) for each in outcomes} <= {type(None), UnknownPartition}
            assert await backend.committed_offsets("group", topic) == {}


async def test_members_get_the_partitions_of_a_recreated_topic(backend: Backend) -> None:
    assignments = Assignments()
    await backend.join_consumer_group("group", "me", ["orders"], assignments)
    await assignments.wait({"orders": [0, 1]})
    await backend.delete_topic("orders")
    await assignments.wait({})
    await backend.create_topic("orders", 3)
    await assignments.wait({"orders": [0, 1, 2]})


@pytest.mark.needs(Capability.SECOND_MEMBER)
async def test_every_member_loses_the_old_partitions_and_gets_its_share_of_the_new_ones(
    backend: Backend,
) -> None:
    first, second = Assignments(), Assignments()
    await backend.join_consumer_group("group", "one", ["orders"], first)
    await backend.join_consumer_group("group", "two", ["orders"], second)
    await shared(first, second, 2)
    await backend.delete_topic("orders")
    await backend.create_topic("orders", 4)
    await shared(first, second, 4)
    assert {} in [{topic: numbers for topic, numbers in call.items() if numbers} for call in first.calls]
    assert {} in [{topic: numbers for topic, numbers in call.items() if numbers} for call in second.calls]


async def test_list_and_describe_agree_after_every_change(backend: Backend) -> None:
    async def agree() -> None:
        listed = await backend.list_topics()
        assert [await backend.describe_topic(each.name) for each in listed] == listed
        assert [backend.topic(each.name) for each in listed] == listed
        assert len({each.topic_id for each in listed}) == len(listed)

    await backend.create_topic("bills", 1, {"segment_ms": "60000"})
    await agree()
    await backend.alter_topic("bills", partitions=3)
    await agree()
    await backend.alter_topic("bills", config={"segment_ms": None})
    await agree()
    await backend.delete_topic("bills")
    await agree()
    await backend.create_topic("bills", 2)
    await agree()


@pytest.mark.slow
async def test_a_name_can_be_reused_repeatedly(backend: Backend) -> None:
    ids = set()
    async with asyncio.timeout(PATIENCE):
        for turn in range(5):
            ids.add((await backend.describe_topic("orders")).topic_id)
            assert await append(backend, ORDERS, b"%d" % turn) == 0
            await backend.delete_topic("orders")
            await backend.create_topic("orders", 1)
    assert len(ids) == 5

"""Consumer groups of topics that grow, are deleted and recreated, and of logs truncated at the
front.
"""

import asyncio
from collections.abc import Collection, Sequence

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from pixy.backend import KnownRanges, OffsetCommit, TopicPartition
from pixy.consume import Offer
from pixy.errors import TopicMissing, Unavailable, UnknownTopic
from tests.consume.conftest import MakeWorld
from tests.consume.fakes import World
from tests.fakes.waiting import settle

T0 = TopicPartition("t", 0)


def deliver(offers: Sequence[Offer]) -> None:
    for offer in offers:
        offer.auto_ack = True
        offer.delivered()


def warnings(logs: list[EventDict]) -> list[str]:
    return [entry["event"] for entry in logs if entry["log_level"] in ("warning", "error")]


# --- growth ---------------------------------------------------------------------------------------


async def test_new_partitions_are_consumed_and_nothing_is_offered_twice(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b", b"c")
    deliver((await world.consume()).offers)
    assert (await world.consume()).values == [b"b"]
    world.backend.grow("t", 3)
    world.log(1).append(b"d")
    world.log(2).append(b"e")
    answers = await world.consume(4)
    assert sorted(answers.values, key=str) == [b"c", b"d", b"e"]
    assert world.consumers.outstanding == 4


@pytest.mark.parametrize("initial_offset", ["oldest", "newest"])
async def test_an_added_partition_is_consumed_from_its_beginning(
    make_world: MakeWorld, initial_offset: str
) -> None:
    world = make_world(initial_offset=initial_offset)
    answers = await world.consume(2)
    world.backend.grow("t", 2)
    world.log(1).append(b"first of all")
    world.log(0).append(b"a")
    await settle()
    assert sorted(answers.values, key=str) == [b"a", b"first of all"]


# --- deletion -------------------------------------------------------------------------------------


async def test_offers_of_a_deleted_topic_are_void_and_nothing_is_fetched_or_committed(
    make_world: MakeWorld,
) -> None:
    world = make_world(2)
    world.log().append(b"a", b"b", b"c")
    offers = (await world.consume(3)).offers
    deliver(offers[:1])
    with capture_logs() as logs:
        world.backend.delete("t")
        await settle()
        assert world.consumers.outstanding == 0
        world.backend.commit_calls.clear()
        fetches = len(world.backend.fetched)
        deliver(offers[1:2])
        offers[2].undelivered()
        await world.pass_time(10)
    assert (len(world.backend.fetched), world.backend.commit_calls) == (fetches, [])
    assert warnings(logs) == []
    assert len(world.consumers._environment.tasks) == 0


async def test_requests_waiting_for_a_deleted_topic_are_answered_at_once(make_world: MakeWorld) -> None:
    world = make_world()
    answers = await world.consume(3)
    world.backend.delete("t")
    await settle()
    assert [type(error) for error in answers.errors] == [TopicMissing] * 3
    assert world.missed == ["t"]


async def test_a_topic_deleted_without_waiting_requests_causes_no_error(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a")
    await world.consume()
    world.backend.delete("t")
    await settle()
    assert world.missed == []


async def test_requests_keep_waiting_if_the_topic_is_recreated(make_world: MakeWorld) -> None:
    world = make_world()
    world.created_again = 2
    answers = await world.consume(2)
    world.backend.delete("t")
    await settle()
    world.log(1).append(b"new")
    await settle()
    assert (answers.values, answers.errors) == ([b"new"], [])
    await world.pass_time(3)
    assert len(answers.errors) == 1


async def test_a_waiting_ack_is_answered_as_for_an_unknown_topic(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a")
    world.backend.groups.withheld.add(T0)
    outcome = await world.ack(0, 0)
    assert outcome == []
    world.backend.delete("t")
    await settle()
    assert [type(error) for error in outcome] == [UnknownTopic]


async def test_a_request_with_a_waiting_ack_becomes_one_for_a_missing_topic(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    gate = world.backend.gates["join"] = asyncio.Event()
    answers = await world.consume(ack=(0, 0))
    with capture_logs() as logs:
        world.backend.delete("t")
        gate.set()
        await world.pass_time(1)
    assert [type(error) for error in answers.errors] == [TopicMissing]
    assert warnings(logs) == []


@pytest.mark.parametrize("silently", [False, True])
async def test_commits_of_other_topics_continue_and_those_of_the_deleted_one_end(
    make_world: MakeWorld, silently: bool
) -> None:
    world = make_world()
    world.backend.create("u", 1)
    for topic in "tu":
        world.log(0, topic).append(b"x")
        deliver((await world.consume(topic=topic)).offers)
    world.backend.delete("u", silently=silently)
    world.backend.commit_calls.clear()
    await world.pass_time(10)
    assert world.backend.commit_calls == [{T0: OffsetCommit(1)}]


async def test_a_topic_deleted_during_a_commit_does_not_block_the_others(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.backend.create("u", 1)
    for topic in "tu":
        world.log(0, topic).append(b"x")
        deliver((await world.consume(topic=topic)).offers)
    world.backend.commit_calls.clear()
    world.backend.gates["commit"] = asyncio.Event()
    await world.pass_time(0.5)
    world.backend.delete("u")
    world.backend.gates.pop("commit").set()
    await world.pass_time(10)
    assert world.committed() == OffsetCommit(1)
    assert world.backend.commit_calls[1:] == [{T0: OffsetCommit(1)}]


async def test_a_topic_deleted_while_its_partitions_start_is_not_a_fault(make_world: MakeWorld) -> None:
    world = make_world()
    gate = world.backend.gates["offset_ranges"] = asyncio.Event()
    await world.consume()
    with capture_logs() as logs:
        world.backend.delete("t")
        gate.set()
        await world.pass_time(1)
        world.backend.create("t", 1)
        world.log().append(b"new")
        assert (await world.consume()).values == [b"new"]
    assert warnings(logs) == []


async def test_the_position_in_the_old_topic_is_not_used_in_the_new_one(
    make_world: MakeWorld,
) -> None:
    """The topic is replaced between reading its commits and starting its partitions."""
    world = make_world()
    world.log().append(*[b"old"] * 5)
    world.backend.groups.of("g").commits = {T0: OffsetCommit(2, "sparse acks that have to be rewritten")}
    gate = world.backend.gates["offset_ranges"] = asyncio.Event()
    answers = await world.consume(3)
    world.backend.delete("t", silently=True)
    world.backend.create("t", 1)
    world.log().append(b"0", b"1", b"2")
    gate.set()
    await settle()
    assert answers.values == [b"0", b"1", b"2"]
    assert world.backend.commit_calls == [{T0: OffsetCommit(0)}]
    deliver(answers.offers)
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(3)


# --- recreation -----------------------------------------------------------------------------------


async def replaced_after_acks(world: World, *, silently: bool = False) -> None:
    """Three of five records are acked but not committed when the topic is deleted and recreated."""
    answers = await world.consume(5)
    world.log().append(*[b"old"] * 5)
    await settle()
    deliver(answers.offers[:3])
    world.backend.delete("t", silently=silently)
    world.backend.create("t", 1)


@pytest.mark.parametrize("initial_offset", ["oldest", "newest"])
@pytest.mark.parametrize("silently", [False, True])
async def test_a_recreated_topic_is_consumed_from_its_beginning(
    make_world: MakeWorld, initial_offset: str, silently: bool
) -> None:
    world = make_world(initial_offset=initial_offset)
    await replaced_after_acks(world, silently=silently)
    world.log().append(b"0", b"1", b"2")
    assert (await world.consume(3)).values == [b"0", b"1", b"2"]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(0)


async def test_acks_of_the_old_topic_have_no_effect_on_the_new_one(make_world: MakeWorld) -> None:
    world = make_world()
    await replaced_after_acks(world)
    world.log().append(b"0", b"1")
    assert (await world.consume()).values == [b"0"]
    assert await world.ack(0, 1) == [None]
    assert await world.ack(0, 4) == [None]
    answers = await world.consume(ack=(0, 3))
    assert (answers.values, answers.errors) == ([b"1"], [])
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(0)
    assert await world.ack(0, 0) == [None]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(1)


async def test_uncommitted_acks_are_not_kept_for_the_new_topic(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"old"] * 5)
    deliver((await world.consume(3)).offers)
    world.backend.failures["commit"] = Unavailable("no disk")
    world.backend.groups.withheld.add(T0)
    world.backend.groups.assign("g", again=True)
    await world.pass_time(1)
    world.backend.delete("t")
    world.backend.create("t", 1)
    world.backend.failures.clear()
    world.backend.commit_calls.clear()
    world.backend.groups.withheld.clear()
    world.backend.groups.assign("g", again=True)
    world.log().append(b"new")
    await world.pass_time(10)
    assert (await world.consume()).values == [b"new"]
    assert world.backend.commit_calls == [{T0: OffsetCommit(0)}]


async def test_a_new_topic_does_not_wait_for_the_backoff_of_an_earlier_failure(make_world: MakeWorld) -> None:
    world = make_world()
    world.backend.failures["offset_ranges"] = Unavailable("no leader")
    await world.consume()
    for _ in range(20):
        await world.pass_time(0.5)
    world.backend.failures.clear()
    world.backend.delete("t")
    world.backend.create("t", 1)
    world.log().append(b"new")
    assert (await world.consume()).values == [b"new"]


async def test_a_missing_partition_does_not_block_the_others(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.log(0).append(b"a")
    world.backend.unready.add(TopicPartition("t", 1))
    assert (await world.consume()).values == [b"a"]
    world.log(1).append(b"b")
    waiting = await world.consume()
    await world.pass_time(3)
    assert [str(error) for error in waiting.errors] == ["t/1 is assigned but not there yet"]
    world.backend.unready.clear()
    waiting = await world.consume()
    for _ in range(10):
        await world.pass_time(0.2)
    assert waiting.values == [b"b"]


async def test_a_partition_without_a_leader_does_not_block_the_others(make_world: MakeWorld) -> None:
    world = make_world(3)
    world.backend.silent.add(TopicPartition("t", 1))
    world.log(0).append(b"a")
    world.log(1).append(b"b")
    world.log(2).append(b"c")
    got = [value for _ in range(2) for value in (await world.consume()).values]
    assert set(got) == {b"a", b"c"}
    waiting = await world.consume()
    await world.pass_time(3)
    assert [str(error) for error in waiting.errors] == ["partition 1 of topic t has no leader"]
    world.backend.silent.clear()
    waiting = await world.consume()
    for _ in range(10):
        await world.pass_time(0.2)
    assert waiting.values == [b"b"]


async def test_partitions_that_answer_are_consumed_while_others_elect_a_leader(make_world: MakeWorld) -> None:
    world, elected = make_world(2), asyncio.Event()
    known_ranges = world.backend.known_ranges
    electing = TopicPartition("t", 1)
    world.backend.silent.add(electing)

    async def wait(
        topic: str, partitions: Collection[int] | None = None, *, patience_s: float = 5.0
    ) -> KnownRanges:
        if patience_s >= 3.0:
            await elected.wait()
        return await known_ranges(topic, partitions, patience_s=patience_s)

    world.backend.known_ranges = wait  # type: ignore[method-assign]  # an election that lasts
    world.log(0).append(b"a")
    world.log(1).append(b"b")
    assert (await world.consume()).values == [b"a"]
    waiting = await world.consume()
    world.backend.silent.clear()
    elected.set()
    await settle()
    assert waiting.values == [b"b"]


async def test_a_topic_that_cannot_start_does_not_affect_the_others(make_world: MakeWorld) -> None:
    world = make_world()
    world.backend.create("u", 1)
    world.backend.unready.add(TopicPartition("u", 0))
    answers = [await world.consume(topic=topic) for topic in "tu"]
    await world.pass_time(3)
    assert [str(each.errors[0]) for each in answers] == [
        "long polling timeout",
        "u/0 is assigned but not there yet",
    ]


# --- retention ------------------------------------------------------------------------------------


def cuts(logs: list[EventDict]) -> list[tuple[int, int, int]]:
    return [
        (entry["offset"], entry["begin"], entry["dropped"])
        for entry in logs
        if entry["event"] == "records are gone, continuing at the log begin offset"
    ]


async def test_offers_below_the_new_begin_are_dropped_and_the_others_kept(make_world: MakeWorld) -> None:
    world = make_world(ack_timeout=60.0)
    world.log().append(*[b"a"] * 5)
    world.log().append(*[b"b"] * 5)
    offers = (await world.consume(10)).offers
    with capture_logs() as logs:
        world.log().move_begin(5)
        world.log().append(b"c")
        await world.pass_time(1)
    assert cuts(logs) == [(0, 5, 5)]
    assert world.committed() == OffsetCommit(5)
    assert world.consumers.outstanding == 5
    assert await world.ack(0, 4) == [None]
    deliver(offers[:4])
    offers[4].undelivered()
    assert (await world.consume()).offsets == [10]
    await world.pass_time(60)
    assert (await world.consume(6)).offsets == [5, 6, 7, 8, 9, 10]
    assert world.committed() == OffsetCommit(5)


async def test_every_truncation_is_logged_once(make_world: MakeWorld) -> None:
    world = make_world(subscription_timeout=1000.0)
    world.log().append(*[b"a"] * 5)
    await world.consume(5)
    with capture_logs() as logs:
        for begin in (2, 4):
            world.log().move_begin(begin)
            for _ in range(3):
                world.log().append(b"x")
                await world.pass_time(1)
        world.log().move_begin(world.log().end)
        for _ in range(3):
            world.log().append(b"y")
            await world.pass_time(1)
    assert [(offset, begin) for offset, begin, _ in cuts(logs)] == [(0, 2), (2, 4), (4, 11)]


async def test_a_truncation_while_the_fetcher_waits_for_space_is_followed_later(
    make_world: MakeWorld,
) -> None:
    world = make_world(fetch_max_bytes=2000, ack_timeout=60.0)
    for _ in range(40):
        world.log().append(*[b"x" * 50] * 10)
    held = await world.consume(2)
    fetched = world.backend.fetched[-1][1]
    world.log().move_begin(200)
    seen: list[int] = []
    with capture_logs() as logs:
        while len(seen) < 100:
            answers = await world.consume()
            seen += answers.offsets
            deliver(answers.offers)
        await world.pass_time(1)
    assert [(offset, begin) for offset, begin, _ in cuts(logs)] == [(0, 200)]
    from_memory = [offset for offset in seen if offset < 200]
    assert max(from_memory) < fetched + 40
    assert seen == [*range(2, max(from_memory) + 1), *range(200, 300 - len(from_memory))]
    assert world.committed() == OffsetCommit(max(seen) + 1)
    deliver(held.offers)
    await world.pass_time(60)
    assert (await world.consume()).offsets == [max(seen) + 1]


async def test_a_truncation_below_acked_records_is_ignored(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"a"] * 5)
    world.handed_out_before(5)
    gate = world.backend.gates["fetch"] = asyncio.Event()
    await world.consume()
    for offset in range(5):
        assert await world.ack(0, offset) == [None]
    world.log().append(b"next")
    with capture_logs() as logs:
        world.log().move_begin(5)
        gate.set()
        assert (await world.consume()).errors == []
        await world.pass_time(1)
    assert (cuts(logs), world.consumers.outstanding, world.committed()) == ([], 1, OffsetCommit(5))


async def test_a_start_below_the_log_begin_offset_is_logged_once_however_often_it_is_retried(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 9)
    world.log().append(b"kept")
    world.log().move_begin(9)
    world.backend.groups.of("g").commits = {T0: OffsetCommit(4)}
    world.backend.failures["commit"] = Unavailable("no disk")
    with capture_logs() as logs:
        await world.consume()
        for _ in range(3):
            await world.pass_time(1)
        assert len(world.backend.commit_calls) > 2
        world.backend.failures.clear()
        await world.pass_time(5)
    said = [entry for entry in logs if "below the log begin offset" in entry["event"]]
    assert [(entry["offset"], entry["begin"]) for entry in said] == [(4, 9)]
    assert world.committed() == OffsetCommit(9)
    assert cuts(logs) == []

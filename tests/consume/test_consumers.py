import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from pixy.backend import OffsetCommit, TopicPartition
from pixy.consume.group import NEWEST, OLDEST
from pixy.errors import (
    Internal,
    InvalidOffset,
    MetadataTooLarge,
    ServiceDisabled,
    ShuttingDown,
    TooManyRequests,
    UnknownPartition,
)
from pixy.faults import internal_error
from tests.consume.conftest import MakeWorld
from tests.consume.fakes import Answers, World
from tests.fakes.waiting import settle

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_groups_get_every_record_each(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b")
    assert (await world.consume(2, group="g")).values == [b"a", b"b"]
    assert (await world.consume(2, group="h")).values == [b"a", b"b"]
    assert world.consumers.counters().offered == 4


async def test_auto_ack_acks_on_delivery(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a")
    answers = await world.consume(auto_ack=True)
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(0)
    answers.offers[0].delivered()
    await world.pass_time(0.5)
    assert world.committed() == OffsetCommit(1)
    assert world.consumers.counters().acked == 1


async def test_a_disabled_consumer_reports_it(make_world: MakeWorld) -> None:
    world = make_world(disabled=True)
    assert [type(error) for error in (await world.consume()).errors] == [ServiceDisabled]
    assert [type(error) for error in await world.ack(0, 0)] == [ServiceDisabled]
    assert world.backend.groups.events == []


async def test_after_a_restart_only_uncommitted_records_are_redelivered(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 6)
    await world.consume(6)
    for offset in (0, 2, 4):
        await world.ack(0, offset)
    await world.consumers.drain(0)
    world.restarted()
    assert (await world.consume(3)).offsets == [1, 3, 5]


async def test_behaviour_does_not_depend_on_the_wall_clock(make_world: MakeWorld) -> None:
    world = make_world()

    def broken() -> int:
        raise AssertionError("the wall clock was asked")

    world.clock.wall_ms = world.clock.wall_ns = broken  # type: ignore[method-assign]  # the test is that nobody calls it
    world.log().append(b"a")
    await world.consume(2)
    await world.pass_time(400)
    assert (await world.consume()).values == [b"a"]


async def broken(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("method", ["join_consumer_group", "committed_offsets", "fetch"])
async def test_a_job_with_a_bug_is_retried_and_waiting_requests_get_the_error(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    world = make_world()
    world.log().append(b"x")
    with monkeypatch.context() as patched:
        patched.setattr(world.backend, method, broken)
        answers = await world.consume()
        await world.pass_time(3)
    assert [str(error) for error in answers.errors] == [str(internal_error(world.faults[0]))]
    await world.pass_time(5)
    assert (await world.consume()).offsets == [0]
    assert {type(fault) for fault in world.faults} == {ZeroDivisionError}
    world.faults.clear()


async def test_an_ack_that_meets_a_bug_is_answered_with_its_id(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    monkeypatch.setattr(world.backend, "partition_owner", broken)
    (error,) = await world.ack(0, 0)
    assert str(error) == str(internal_error(world.faults.pop()))


async def test_offsets_that_meet_a_bug_are_answered_with_its_id(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    with monkeypatch.context() as patched:
        patched.setattr(world.backend, "commit_offsets", broken)
        with pytest.raises(Internal) as caught:
            await world.consumers.set_offsets("g", "t", {0: OffsetCommit(0)})
    assert str(caught.value) == str(internal_error(world.faults.pop()))
    assert world.consumers._groups == {}


# --- offsets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "committed"), [(OLDEST, 4), (NEWEST, 9), (0, 0), (9, 9), (6, 6)])
async def test_offsets_are_set_by_number_or_by_word(
    make_world: MakeWorld, offset: int, committed: int
) -> None:
    world = make_world()
    log = world.log()
    log.begin = log.end = 4
    log.append(*[b"x"] * 5)
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(offset)})
    assert world.committed() == OffsetCommit(committed)


@pytest.mark.parametrize(
    ("partition", "commit", "error"),
    [
        (2, OffsetCommit(0), UnknownPartition),
        (-1, OffsetCommit(0), UnknownPartition),
        (1, OffsetCommit(-3), InvalidOffset),
    ],
)
async def test_one_bad_offset_rejects_them_all(
    make_world: MakeWorld, partition: int, commit: OffsetCommit, error: type[Exception]
) -> None:
    world = make_world(2)
    for number in range(2):
        world.log(number).append(*[b"x"] * 5)
    with pytest.raises(error):
        await world.consumers.set_offsets("g", "t", {0: OffsetCommit(3), partition: commit})
    assert world.backend.commit_calls == []


async def test_offsets_of_all_partitions_are_one_commit(make_world: MakeWorld) -> None:
    world = make_world(2)
    for number in range(2):
        world.log(number).append(*[b"x"] * 5)
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(2, "BC"), 1: OffsetCommit(5)})
    assert world.backend.commit_calls == [{T0: OffsetCommit(2, "BC"), T1: OffsetCommit(5)}]
    await world.consumers.set_offsets("g", "t", {})
    assert len(world.backend.commit_calls) == 1


@pytest.mark.parametrize(
    "commit",
    [
        OffsetCommit(6),
        OffsetCommit(1100, "A100"),
        OffsetCommit(2, "B@"),
        OffsetCommit(2, "no sparse acks: ä"),
        OffsetCommit(2, "BD"),  # up to 6
    ],
)
@pytest.mark.parametrize("consumed", [False, True])
async def test_values_accepted_by_kafka_pixy_are_committed_unchanged(
    make_world: MakeWorld, commit: OffsetCommit, consumed: bool
) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 5)
    if consumed:
        await world.consume(auto_ack=True)
    await world.consumers.set_offsets("g", "t", {0: commit})
    await world.pass_time(2)
    assert world.committed() == commit


async def test_more_metadata_than_a_call_may_have_is_refused_for_all_partitions(
    make_world: MakeWorld,
) -> None:
    world = make_world(257)
    await world.consumers.set_offsets(
        "g", "t", {number: OffsetCommit(0, "x" * 4096) for number in range(256)}
    )
    with pytest.raises(
        MetadataTooLarge, match="of 257 offsets has 1048577 bytes, 1048576 are allowed in a call"
    ):
        await world.consumers.set_offsets(
            "g", "t", {number: OffsetCommit(1, "x" * (4096 if number else 1)) for number in range(257)}
        )
    assert world.committed(1) == OffsetCommit(0, "x" * 4096)
    assert world.committed(256) is None


async def test_metadata_that_encodes_no_acks_acks_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 5)
    await world.consume(auto_ack=True)
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(2, "B@")})
    assert (await world.consume(5)).offsets == [2, 3, 4]


@pytest.mark.parametrize("consumed", [False, True])
async def test_a_group_set_beyond_the_end_continues_at_the_end(make_world: MakeWorld, consumed: bool) -> None:
    world = make_world()
    log = world.log()
    log.append(*[b"x"] * 5)
    if consumed:
        await world.consume(auto_ack=True)
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(100, "BB")})
    answers = await world.consume(3)
    assert answers.offsets == []
    log.append(b"y", b"z")
    await world.pass_time(1)
    assert answers.offsets == [5, 6]
    assert world.committed() == OffsetCommit(5)
    assert await world.ack(0, 5) == [None]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(6)


async def test_a_group_starts_at_an_offset_beyond_the_end_once_the_log_has_reached_it(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 5)
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(8)})
    world.log().append(*[b"y"] * 5)
    assert (await world.consume(3)).offsets == [8, 9]


# --- limits ---------------------------------------------------------------------------------------


async def test_groups_are_bounded_and_a_finished_group_frees_its_slot(make_world: MakeWorld) -> None:
    world = make_world(max_groups=2)
    world.log().append(b"a")
    for group in "gh":
        assert (await world.consume(group=group, auto_ack=True)).values == [b"a"]
    refused = await world.consume(group="i")
    assert [(type(error), str(error)) for error in refused.errors] == [
        (
            TooManyRequests,
            "Too many requests. Consider increasing `consumer.max_groups`: this process takes part in 2 consumer groups already",
        )
    ]
    assert [type(error) for error in await world.ack(0, 0, group="i")] == [TooManyRequests]
    with pytest.raises(TooManyRequests):
        await world.consumers.set_offsets("i", "t", {0: OffsetCommit(0)})
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(0)})
    await world.pass_time(30)
    assert (await world.consume(group="i")).values == [b"a"]


async def test_subscriptions_are_bounded_over_all_groups(make_world: MakeWorld) -> None:
    world = make_world(max_subscriptions=2)
    for topic in "uv":
        world.backend.create(topic, 1)
    world.log(topic="v").append(b"a")
    await world.consume(topic="t")
    await world.consume(topic="u")
    for group in "gh":
        refused = await world.consume(group=group, topic="v")
        assert "`consumer.max_subscriptions`" in str(refused.errors[0])
        assert [type(error) for error in await world.ack(0, 0, group=group, topic="v")] == [TooManyRequests]
    assert list(world.consumers._groups) == ["g"]


async def test_partitions_are_bounded_over_all_groups(make_world: MakeWorld) -> None:
    world = make_world(max_partitions=10, subscription_timeout=15)
    world.backend.create("wide", 11)
    world.backend.create("half", 5)
    await world.consume(topic="wide")  # alone it may be wider
    for topic in ("wide", "half"):
        refused = await world.consume(group="h", topic=topic)
        assert "`consumer.max_partitions`" in str(refused.errors[0])
    await world.pass_time(30)
    for group in "hi":
        assert not (await world.consume(group=group, topic="half")).errors
    assert [type(each) for each in (await world.consume(group="j", topic="half")).errors] == [TooManyRequests]


def grow(world: World) -> None:
    world.backend.grow("t", 6)


def make_again(world: World) -> None:
    world.backend.delete("t")
    world.backend.create("t", 6)


def values_of(answers: Iterable[Answers]) -> list[bytes]:
    return [offer.record.value or b"" for each in answers for offer in each.offers]


@pytest.mark.parametrize("change", [grow, make_again])
async def test_partitions_count_when_a_topic_gets_more_while_it_is_consumed(
    make_world: MakeWorld, change: Callable[[World], None]
) -> None:
    world = make_world(max_partitions=10, subscription_timeout=15, long_polling_timeout=1)
    answers = {group: [await world.consume(group=group, auto_ack=True)] for group in ("g", "h")}
    change(world)
    await settle()
    for partition in range(6):
        world.log(partition).append(b"%d" % partition)
    for group, some in answers.items():
        some.append(await world.consume(10, group=group, auto_ack=True))
    short, whole = sorted(answers, key=lambda group: len(values_of(answers[group])))
    assert [len(values_of(answers[group])) for group in (short, whole)] == [4, 6]
    await world.pass_time(2)
    assert "t has 6 partitions, and 10 of at most 10 are consumed here" in str(answers[short][-1].errors[-1])
    for each in answers[whole]:
        for offer in each.offers:
            offer.delivered()
    for _ in range(20):  # it ends, and leaves its place
        answers[short].append(await world.consume(group=short, auto_ack=True))
        await world.pass_time(2)
    assert sorted(values_of(answers[short])) == sorted(values_of(answers[whole]))
    refused = await world.consume(group=whole)
    assert "t has 6 partitions, and 6 of at most 10" in str(refused.errors[0])


async def test_a_group_that_resumes_is_remarked_on_in_one_line(make_world: MakeWorld) -> None:
    world = make_world()
    world.backend.create("wide", 250)
    offsets = {partition: OffsetCommit(9, "no acks") for partition in range(250)}
    await world.consumers.set_offsets("g", "wide", offsets)
    with capture_logs() as logs:
        await world.consume(topic="wide")
    lines = [(each["event"].split()[0], each["partitions"]) for each in logs if "partitions" in each]
    assert sorted(lines) == [("committed", 250), ("sparse", 250)]


class At(NamedTuple):
    """A client at an address."""

    peer: str


NEAR, NEXT, FAR = At("10.0.0.1:1"), At("10.0.0.1:2"), At("10.0.0.2:1")


async def test_clients_of_one_address_have_a_share_of_the_groups_and_others_the_rest(
    make_world: MakeWorld,
) -> None:
    world = make_world(max_groups=4, client_share_percent=50)
    world.log().append(b"a")
    for group, client in (("g", NEAR), ("h", NEXT)):
        assert (await world.consume(group=group, client=client, auto_ack=True)).values == [b"a"]
    refused = await world.consume(group="i", client=NEAR)
    assert [(str(error), error.limit) for error in refused.errors] == [
        (
            "Too many requests. Clients of this address consume 2 consumer groups at this node already, which is their "
            "share (`client_share_percent`) of `consumer.max_groups`",
            "client_share_percent of consumer.max_groups",
        )
    ]
    assert [type(error) for error in await world.ack(0, 0, group="i", client=NEXT)] == [TooManyRequests]
    # The groups that they have, and other addresses, go on.
    present = await world.consume(group="g", client=NEAR)
    assert not present.errors
    for waiter in present.waiting:
        waiter.cancel()
    for group in "ij":
        assert (await world.consume(group=group, client=FAR, auto_ack=True)).values == [b"a"]


async def test_clients_of_one_address_have_a_share_of_the_subscriptions(make_world: MakeWorld) -> None:
    world = make_world(max_subscriptions=4, client_share_percent=50)
    for topic in "uvw":
        world.backend.create(topic, 1)
    for topic in "tu":
        assert not (await world.consume(topic=topic, client=NEAR)).errors
    (error,) = (await world.consume(topic="v", client=NEXT)).errors
    assert error.limit == "client_share_percent of consumer.max_subscriptions"
    assert not (await world.consume(topic="v", client=FAR)).errors


async def test_clients_of_one_address_have_a_share_of_the_partitions(make_world: MakeWorld) -> None:
    world = make_world(max_partitions=20, client_share_percent=50, subscription_timeout=15)
    world.backend.create("wide", 9)
    assert not (await world.consume(group="g", topic="wide", client=NEAR)).errors
    for group, client in (("h", NEAR), ("i", NEXT)):
        (error,) = (await world.consume(group=group, topic="wide", client=client)).errors
        assert error.limit == "client_share_percent of consumer.max_partitions"
    # What they consume goes on, a topic that fits begins, and other addresses have their share.
    for group, topic, client in (("g", "wide", NEAR), ("h", "t", NEXT), ("i", "wide", FAR)):
        assert not (await world.consume(group=group, topic=topic, client=client)).errors
    await world.pass_time(30)
    assert not (await world.consume(group="h", topic="wide", client=NEAR)).errors


# --- draining -------------------------------------------------------------------------------------


async def test_draining_answers_all_requests_at_once(make_world: MakeWorld) -> None:
    world = make_world()
    waiting = await world.consume(3)
    world.consumers.stop_offering()
    assert [type(error) for error in waiting.errors] == [ShuttingDown] * 3
    world.log().append(b"a")
    later = await world.consume()
    assert [type(error) for error in later.errors] == [ShuttingDown]


async def test_draining_accepts_acks_while_offers_are_outstanding(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b", b"c")
    delivered = await world.consume()
    answers = await world.consume(2, auto_ack=True)
    draining = asyncio.create_task(world.consumers.drain(30))
    await settle()
    assert delivered.offsets == [0]
    assert await world.ack(0, 0) == [None]
    answers.offers[0].delivered()
    assert not draining.done()
    refused = await world.consume(ack=(0, 2))
    answers.offers[1].delivered()
    assert [type(error) for error in refused.errors] == [ShuttingDown]
    await draining
    assert world.committed() == OffsetCommit(3)
    assert world.backend.groups.events[-1] == ("leave", "g")
    assert [type(error) for error in await world.ack(0, 2)] == [ShuttingDown]
    with pytest.raises(ShuttingDown):
        await world.consumers.set_offsets("g", "t", {0: OffsetCommit(0)})


async def test_draining_is_bounded(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b")
    await world.consume(2)
    await world.ack(0, 1)
    draining = asyncio.create_task(world.consumers.drain(30))
    await world.pass_time(29)
    assert not draining.done()
    await world.pass_time(1)
    await draining
    assert world.committed() == OffsetCommit(0, "BB")


async def test_draining_does_not_wait_for_expired_offers(make_world: MakeWorld) -> None:
    world = make_world(ack_timeout=5.0)
    world.log().append(b"a")
    await world.consume()
    draining = asyncio.create_task(world.consumers.drain(30))
    await world.pass_time(5)
    await draining


async def test_draining_ends_while_a_group_is_joining(make_world: MakeWorld) -> None:
    world = make_world()
    world.backend.gates["join"] = asyncio.Event()
    world.log().append(b"a")
    waiting = await world.consume()
    outcome = await world.ack(0, 0)
    await world.consumers.drain(30)
    assert [type(error) for error in waiting.errors] == [ShuttingDown]
    assert [type(error) for error in outcome] == [ShuttingDown]


async def test_draining_answers_acks_that_are_being_checked(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a")
    await world.consume()
    world.backend.gates["offset_ranges"] = asyncio.Event()
    outcome = await world.ack(0, 5)
    answers = await world.consume(ack=(0, 5))
    setting = asyncio.create_task(world.consumers.set_offsets("g", "t", {0: OffsetCommit(0)}))
    await settle()
    await world.consumers.drain(0)
    assert [type(error) for error in outcome] == [ShuttingDown]
    assert [type(error) for error in answers.errors] == [ShuttingDown]
    world.backend.gates.clear()
    setting.cancel()
    await asyncio.wait([setting])


async def test_draining_twice_is_harmless(make_world: MakeWorld) -> None:
    world = make_world()
    await world.consume()
    await world.consumers.drain(1)
    await world.consumers.drain(1)
    assert [event[0] for event in world.backend.groups.events].count("leave") == 1


async def test_records_are_counted_by_group_and_topic_also_when_nobody_consumes_them_any_more(
    make_world: MakeWorld,
) -> None:
    world = make_world(ack_timeout=10.0, subscription_timeout=30.0)
    world.log().append(b"a", b"b", b"c")
    await world.consume(3)
    await world.ack(0, 0)
    assert await world.consumers.queues() == {("g", "t"): (2, 0)}
    await world.pass_time(11)
    await world.consume(2)
    counters = (await world.consumers.counters_by_topic())["g", "t"]
    assert (counters.offered, counters.redelivered, counters.acked, counters.expired) == (5, 2, 1, 2)
    for offset in (1, 2):
        await world.ack(0, offset)
    await world.pass_time(100)
    assert await world.consumers.queues() == {}
    counters = (await world.consumers.counters_by_topic())["g", "t"]
    assert (counters.offered, counters.acked) == (5, 3)


async def test_the_time_from_delivery_to_ack_is_measured(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b")
    await world.consume(2)
    await world.pass_time(2.0)
    await world.ack(0, 0)
    await world.pass_time(3.0)
    await world.ack(0, 1)
    latency = world.consumers.ack_latency
    assert (sum(latency.counts), round(latency.sum)) == (2, 7)


async def test_one_ack_in_sixteen_stands_for_all_of_a_busy_partition(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 100)
    await world.consume(100)
    await world.pass_time(1.0)
    for offset in range(100):
        await world.ack(0, offset)
    latency = world.consumers.ack_latency
    assert sum(latency.counts) == 15 + 1 + 5 * 16
    assert latency.sum == pytest.approx(sum(latency.counts), rel=0.1)

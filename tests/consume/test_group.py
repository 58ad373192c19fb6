import asyncio
from itertools import count, pairwise

import pytest
from structlog.testing import capture_logs

from pixy.backend import OffsetCommit, TopicPartition
from pixy.errors import HeldByOtherProtocol, ResourceExhausted, Unavailable
from tests.consume.conftest import MakeWorld
from tests.fakes.waiting import settle, until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


# --- start of a group -----------------------------------------------------------------------------


@pytest.mark.parametrize(("initial_offset", "offset"), [("oldest", 4), ("newest", 9)])
async def test_a_new_group_begins_at_the_initial_offset_and_commits_it(
    make_world: MakeWorld, initial_offset: str, offset: int
) -> None:
    world = make_world(2, initial_offset=initial_offset)
    log = world.log()
    log.end = log.begin = 4
    log.append(*[b"x"] * 5)
    await world.consume()
    assert world.backend.commit_calls == [{T0: OffsetCommit(offset), T1: OffsetCommit(0)}]


async def test_a_group_continues_where_it_was(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 10)
    world.backend.groups.of("g").commits = {T0: OffsetCommit(3, "BB")}
    assert (await world.consume(4)).offsets == [3, 5, 6, 7]
    assert world.backend.commit_calls == []


async def test_only_partitions_without_a_commit_get_one(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.log().append(b"x")
    world.backend.groups.of("g").commits = {T0: OffsetCommit(1)}
    await world.consume()
    assert world.backend.commit_calls == [{T1: OffsetCommit(0)}]


async def test_a_group_whose_beginning_is_too_much_for_the_cluster_hears_that_and_begins_later(
    make_world: MakeWorld,
) -> None:
    world = make_world(2, long_polling_timeout=1)
    world.log().append(b"a")
    limit = world.backend.failures["begin"] = ResourceExhausted("too many offsets")
    answers = await world.consume()
    await world.pass_time(1)
    assert [str(error) for error in answers.errors] == [str(limit)]
    assert (world.committed(0), world.committed(1)) == (None, None)
    del world.backend.failures["begin"]
    await world.pass_time(5)
    assert (await world.consume()).values == [b"a"]
    assert (world.committed(0), world.committed(1)) == (OffsetCommit(0), OffsetCommit(0))


async def test_a_group_that_kafka_clients_have_is_refused_at_once_and_taken_as_soon_as_they_leave(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log().append(b"a")
    held = world.backend.failures["join"] = HeldByOtherProtocol("Kafka clients are members")
    for asked in range(1, 8):
        assert [str(error) for error in (await world.consume()).errors] == [str(held)]
        assert world.backend.joins == asked
    del world.backend.failures["join"]
    assert (await world.consume()).values == [b"a"]


async def test_partitions_in_which_a_group_has_begun_start_also_beside_those_that_are_too_much(
    make_world: MakeWorld,
) -> None:
    world = make_world(2)
    await world.consume()
    await world.kill()
    world.backend.grow("t", 3)
    world.log(0).append(b"0")
    world.log(0).move_begin(1)  # its position has to be adjusted
    for partition in range(3):
        world.log(partition).append(b"%d" % partition)
    world.backend.failures["begin"] = ResourceExhausted("too many offsets")
    assert {*(await world.consume(3)).values} == {b"0", b"1"}


@pytest.mark.slow
async def test_a_group_starts_few_partitions_at_a_time(make_world: MakeWorld) -> None:
    world = make_world(450)
    await world.consume()
    await settle()
    sizes = [len(commits) for commits in world.backend.commit_calls]
    assert sizes == [100, 100, 100, 100, 50]
    assert world.committed(449) == OffsetCommit(0)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["no requests", "deleted"])
async def test_many_partitions_end_in_steps(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    world = make_world(400, subscription_timeout=10, long_polling_timeout=1)
    for group in ("g", "h"):
        await world.consume(group=group)
    tasks = world.consumers._environment.tasks
    await until(lambda: len(tasks) >= 800)
    ticks = count()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: next(ticks) * 0.0001)
    if end == "no requests":
        await world.pass_time(2)
        world.clock.advance(20)
    else:
        await world.backend.delete_topic("t")
    left = [len(tasks)]
    while left[-1] > 10:
        await asyncio.sleep(0)
        left.append(len(tasks))
        assert len(left) < 10_000
    assert max(before - after for before, after in pairwise(left)) <= 50


@pytest.mark.slow
async def test_a_group_that_comes_again_while_its_partitions_end_continues(make_world: MakeWorld) -> None:
    world = make_world(400, subscription_timeout=10, long_polling_timeout=1)
    world.log(399).append(b"a", b"b")
    first = await world.consume()
    await until(lambda: first.values)
    assert await world.ack(399, 0) == [None]
    world.clock.advance(20)
    # The end has begun.
    await until(lambda: not world.consumers._subscriptions)
    answers = await world.consume()
    await until(lambda: answers.values)
    assert answers.values == [b"b"]


@pytest.mark.parametrize(
    ("committed", "adjusted"),
    [
        (OffsetCommit(3), OffsetCommit(10)),
        (OffsetCommit(3, "IB"), OffsetCommit(12)),
        (OffsetCommit(99), OffsetCommit(15)),
        (OffsetCommit(12, "BZ"), OffsetCommit(12, "BC")),
        (OffsetCommit(12, "B@"), OffsetCommit(12)),
    ],
)
async def test_a_committed_offset_out_of_range_is_adjusted_at_once(
    make_world: MakeWorld, committed: OffsetCommit, adjusted: OffsetCommit
) -> None:
    world = make_world()
    log = world.log()
    log.begin = log.end = 10
    log.append(*[b"x"] * 5)
    if committed.metadata == "IB":
        log.begin = 11
    world.backend.groups.of("g").commits = {T0: committed}
    with capture_logs() as logs:
        await world.consume()
    assert world.committed() == adjusted
    assert len([entry for entry in logs if entry["log_level"] == "warning"]) == (committed.metadata != "BZ")


async def test_a_new_group_does_not_overwrite_offsets_set_meanwhile(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 10)
    gate = world.backend.gates["committed"] = asyncio.Event()
    answers = await world.consume()
    setting = asyncio.create_task(world.consumers.set_offsets("g", "t", {0: OffsetCommit(7)}))
    await settle()
    gate.set()
    await setting
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(7)
    answers.offers += (await world.consume()).offers
    assert answers.offsets[-1] == 7


async def test_an_unavailable_cluster_is_retried(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a")
    world.backend.failures["join"] = Unavailable("no coordinator")
    with capture_logs() as logs:
        answers = await world.consume()
        await world.pass_time(1)
    assert [entry["error"] for entry in logs] == ["no coordinator"]
    world.backend.failures.clear()
    await world.pass_time(1)
    assert answers.values == [b"a"]


async def test_requests_of_a_group_that_cannot_start_get_the_reason(make_world: MakeWorld) -> None:
    world = make_world()
    world.backend.failures["join"] = Unavailable("no coordinator")
    with capture_logs():
        answers = await world.consume()
        await world.pass_time(3)
        assert [str(error) for error in answers.errors] == ["no coordinator"]
        world.backend.failures.clear()
        await world.pass_time(5)
        answers = await world.consume()
        await world.pass_time(3)
    assert [str(error) for error in answers.errors] == ["long polling timeout"]


@pytest.mark.parametrize("step", ["join", "begin"])
async def test_requests_of_a_group_that_has_not_begun_are_not_told_that_there_are_no_records(
    make_world: MakeWorld, step: str
) -> None:
    world = make_world()
    world.log().append(b"a")
    world.backend.gates[step] = asyncio.Event()
    answers = await world.consume()
    await world.pass_time(3)
    (error,) = answers.errors
    assert isinstance(error, Unavailable)
    assert "consumer group g has not begun to consume t yet" in str(error)
    world.backend.gates[step].set()
    answers = await world.consume(2)
    assert answers.values == [b"a"]
    await world.pass_time(3)
    assert [str(error) for error in answers.errors] == ["long polling timeout"]


# --- assignment -----------------------------------------------------------------------------------


async def test_a_group_with_many_topics_subscribes_to_others_together(make_world: MakeWorld) -> None:
    world = make_world()
    topics = [f"u{number:03}" for number in range(100)]
    waiting = []
    for topic in topics:
        world.backend.create(topic, 1)
        world.log(0, topic).append(b"x")
        waiting.append(await world.consume(topic=topic, auto_ack=True))
    subscribed = [len(event) - 2 for event in world.backend.groups.events if event[0] != "commit"]
    assert subscribed == list(range(1, 50)), "no pause for few topics"
    for _ in range(4):
        await world.pass_time(0.1)
    assert [len(answers.offers) for answers in waiting] == [1] * 100
    subscribed = [len(event) - 2 for event in world.backend.groups.events if event[0] != "commit"]
    assert subscribed[49:] == [100]


async def test_a_second_topic_is_added_to_the_membership(make_world: MakeWorld) -> None:
    world = make_world(long_polling_timeout=1.0)
    world.backend.create("u", 1)
    await world.consume()
    await world.pass_time(10)
    world.backend.log(TopicPartition("u", 0)).append(b"u")
    assert (await world.consume(topic="u", auto_ack=True)).values == [b"u"]
    await world.pass_time(5)
    events = [event for event in world.backend.groups.events if event[0] != "commit"]
    assert events == [("join", "g", "t"), ("subscribe", "g", "t", "u"), ("subscribe", "g", "u")]


async def test_a_revoked_partition_commits_its_acks_and_offers_no_more(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.log(0).append(b"a", b"b")
    answers = await world.consume()
    answers.offers[0].auto_ack = True
    answers.offers[0].delivered()
    world.backend.groups.withheld.add(T0)
    await world.backend.rebalance("g")
    assert world.committed() == OffsetCommit(1)
    world.log(0).append(b"c")
    world.log(1).append(b"d")
    assert (await world.consume()).values == [b"d"]
    world.backend.groups.withheld.clear()
    world.backend.groups.assign("g", again=True)
    assert (await world.consume()).values == [b"b"]


async def test_an_offer_of_a_revoked_partition_is_void(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a")
    answers = await world.consume(auto_ack=True)
    world.backend.groups.withheld.add(T0)
    world.backend.groups.assign("g", again=True)
    answers.offers[0].delivered()
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(0)


async def test_added_partitions_are_consumed(make_world: MakeWorld) -> None:
    world = make_world()
    await world.consume()
    world.backend.grow("t", 2, silently=True)
    world.log(1).append(b"new")
    world.backend.groups.assign("g", again=True)
    assert (await world.consume()).errors == []
    assert world.consumers.outstanding == 1


# --- memory ---------------------------------------------------------------------------------------


async def test_a_consumer_that_never_acks_holds_bounded_memory(make_world: MakeWorld) -> None:
    world = make_world(ack_timeout=5.0, max_pending_messages=10, fetch_max_bytes=2000)
    for _ in range(100):
        world.log().append(*[b"x" * 50] * 10)
    for _ in range(20):
        assert (await world.consume(15)).offsets == list(range(10))
        await world.pass_time(5)
    live = world.consumers._subscriptions["g", "t"].live(0)
    assert live is not None
    live.offers.check_invariants()
    assert live.offers.pending == 10


# --- SetOffsets -----------------------------------------------------------------------------------


async def test_setting_offsets_voids_outstanding_offers(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 10)
    old = await world.consume(5, auto_ack=True)
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(3, "BB")})
    old.offers[3].delivered()
    old.offers[4].undelivered()
    assert await world.ack(0, 3) == [None]
    assert (await world.consume(3)).offsets == [3, 5, 6]
    assert await world.ack(0, 3) == [None]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(5)


async def test_set_offsets_win_over_an_older_commit_in_flight(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 10)
    answers = await world.consume(5, auto_ack=True)
    for offer in answers.offers:
        offer.delivered()
    gate = world.backend.gates["commit"] = asyncio.Event()
    await world.pass_time(0.5)
    setting = asyncio.create_task(world.consumers.set_offsets("g", "t", {0: OffsetCommit(2)}))
    await settle()
    gate.set()
    await setting
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(2)
    assert (await world.consume()).offsets == [2]


@pytest.mark.parametrize("held_up", ["commit", "committed"])
async def test_offsets_of_a_call_that_was_given_up_before_it_looked_are_not_set(
    make_world: MakeWorld, held_up: str
) -> None:
    """Another call may have set them meanwhile."""
    world = make_world()
    world.log().append(*[b"x"] * 10)
    answers = await world.consume(5, auto_ack=True)
    for offer in answers.offers:
        offer.delivered()
    gate = world.backend.gates[held_up] = asyncio.Event()
    await world.pass_time(0.5)
    setting = asyncio.create_task(world.consumers.set_offsets("g", "t", {0: OffsetCommit(2)}))
    await settle()
    setting.cancel()
    await settle()
    gate.set()
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(5)
    assert (await world.consume()).offsets == [5]


async def test_after_set_offsets_acks_do_not_count_for_a_group_that_never_consumed(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 10)
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(2)})
    assert world.consumers._groups == {}
    assert await world.ack(0, 2) == [None]
    assert await world.ack(0, 4) == [None]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(2)
    assert (await world.consume(3)).offsets == [2, 3, 4]


async def test_after_set_offsets_acks_count_again_when_the_subscription_has_ended(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 10)
    answers = await world.consume(3)
    for offset in answers.offsets:
        await world.ack(0, offset)
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(0)})
    await world.pass_time(30)
    assert world.consumers._groups == {}
    for offset in (0, 1, 7):
        assert await world.ack(0, offset) == [None]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(2)


async def test_offers_voided_by_set_offsets_are_acked_only_after_redelivery(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 4)
    await world.consume(2)
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(0)})
    await world.pass_time(30)
    assert world.consumers._groups == {}
    assert await world.ack(0, 1) == [None]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(0)
    assert (await world.consume(2)).offsets == [0, 1]
    assert await world.ack(0, 1) == [None]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(0, "BB")


async def test_offsets_that_cannot_be_committed_change_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 10)
    answers = await world.consume(2, auto_ack=True)
    world.backend.failures["commit"] = Unavailable("no leader")
    with pytest.raises(Unavailable):
        await world.consumers.set_offsets("g", "t", {0: OffsetCommit(7)})
    world.backend.failures.clear()
    answers.offers[0].delivered()
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(1)


async def test_a_cancelled_caller_does_not_split_the_change(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 10)
    await world.consume(5)
    gate = world.backend.gates["commit"] = asyncio.Event()
    setting = asyncio.create_task(world.consumers.set_offsets("g", "t", {0: OffsetCommit(7)}))
    await settle()
    setting.cancel()
    await asyncio.wait([setting])
    gate.set()
    await settle()
    assert world.committed() == OffsetCommit(7)
    assert (await world.consume()).offsets == [7]


async def test_set_offsets_win_over_the_last_commit_of_a_revoked_partition(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 10)
    answers = await world.consume(2, auto_ack=True)
    for offer in answers.offers:
        offer.delivered()
    world.backend.failures["commit"] = Unavailable("no leader")
    await world.pass_time(30)  # the subscription is over
    world.backend.failures.clear()
    await world.consumers.set_offsets("g", "t", {0: OffsetCommit(7)})
    await world.pass_time(5)
    assert world.committed() == OffsetCommit(7)

"""Rebalances: outstanding offers are settled before partitions move, and kept partitions continue
unchanged.
"""

import asyncio
from collections.abc import Callable

from structlog.testing import capture_logs

from pixy.backend import OffsetCommit, TopicPartition
from pixy.errors import AckElsewhere, OwnerUndecided, Unavailable
from tests.consume.fakes import World
from tests.fakes.waiting import settle

MakeWorld = Callable[..., World]

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def rebalance(world: World, seconds: float = 10.0) -> "asyncio.Task[None]":
    return asyncio.create_task(world.backend.rebalance("g", seconds))


async def test_nothing_is_offered_while_a_rebalance_waits_for_acks(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.log(0).append(b"a", b"b")
    await world.consume()
    change = rebalance(world)
    await settle()
    answers = await world.consume()
    world.log(1).append(b"c")
    await settle()
    assert answers.values == []
    assert not change.done()
    assert await world.ack(0, 0) == [None]
    await change
    assert world.committed() == OffsetCommit(1)
    await settle()
    assert answers.values in ([b"b"], [b"c"])


async def test_the_wait_for_acks_ends_at_its_timeout(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.log(0).append(b"a")
    world.log(1).append(b"b")
    await world.consume(2)
    change = rebalance(world, 10.0)
    assert await world.ack(1, 0) == [None]
    await world.pass_time(9)
    assert not change.done()
    await world.pass_time(1)
    await change
    assert (world.committed(0), world.committed(1)) == (OffsetCommit(0), OffsetCommit(1))


async def test_an_offer_of_a_kept_partition_is_valid_after_the_rebalance(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.log(0).append(b"a", b"b")
    (offer,) = (await world.consume(auto_ack=True)).offers
    world.backend.groups.withheld.add(T1)
    change = rebalance(world, 0)
    await change
    offer.delivered()
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(1)
    assert (await world.consume()).values == [b"b"]


async def test_an_ack_between_the_last_commit_and_the_assignment_waits_for_it(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.log(0).append(b"a")
    world.log(1).append(b"b")
    await world.consume(2)
    on_revocation = world.backend.groups.members["g"].on_revocation
    assert on_revocation is not None
    await on_revocation(0, None)
    stays, goes = await world.ack(0, 0), await world.ack(1, 0)
    assert (stays, goes) == ([], [])
    world.backend.groups.withheld.add(T1)
    world.backend.groups.owners[T1] = "somebody"
    world.backend.groups.assign("g", again=True)
    await settle()
    assert stays == [None]
    (refused,) = goes
    assert isinstance(refused, AckElsewhere)
    assert "t/1" in str(refused)
    assert "somebody" in str(refused)
    await world.pass_time(1)
    assert (world.committed(0), world.committed(1)) == (OffsetCommit(1), OffsetCommit(0))


async def test_an_ack_sent_with_a_request_waits_too(make_world: MakeWorld) -> None:
    world = make_world()
    world.log(0).append(b"a", b"b")
    await world.consume()
    on_revocation = world.backend.groups.members["g"].on_revocation
    assert on_revocation is not None
    await on_revocation(0, None)
    answers = await world.consume(ack=(0, 0), ack_if_offered=True)
    assert answers.values == []
    world.backend.groups.assign("g", again=True)
    await settle()
    assert answers.values == [b"b"]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(1)


async def test_a_commit_that_fails_before_the_rebalance_is_retried(make_world: MakeWorld) -> None:
    world = make_world()
    world.log(0).append(b"a")
    await world.consume()
    await world.ack(0, 0)
    world.backend.failures["commit"] = Unavailable("no coordinator")
    change = rebalance(world, 1.0)
    await world.pass_time(0.5)
    assert not change.done()
    world.backend.failures.clear()
    await world.pass_time(0.5)
    await change
    assert world.committed() == OffsetCommit(1)


async def test_nothing_is_committed_for_a_partition_lost_without_revocation(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log(0).append(b"a", b"b")
    await world.consume()
    await world.ack(0, 0)
    world.backend.commit_calls.clear()
    world.backend.groups.withheld.add(T0)
    with capture_logs() as logs:
        world.backend.groups.assign("g", again=True)
        await world.pass_time(5)
    assert world.backend.commit_calls == []
    assert [entry["event"] for entry in logs] == [
        "acks that were not committed are lost, their records will be handed out again"
    ]
    world.backend.groups.withheld.clear()
    world.backend.groups.assign("g", again=True)
    assert (await world.consume()).values == [b"a"]


async def test_a_commit_that_fails_after_its_partition_moved_is_not_retried(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log(0).append(b"a")
    await world.consume()
    await world.ack(0, 0)
    gate = world.backend.gates["commit"] = asyncio.Event()
    await world.pass_time(0.5)
    world.backend.groups.withheld.add(T0)
    world.backend.groups.assign("g", again=True)
    world.backend.failures["commit"] = Unavailable("another generation")
    gate.set()
    await settle()
    world.backend.failures.clear()
    world.backend.gates.clear()
    world.backend.groups.withheld.clear()
    world.backend.groups.assign("g", again=True)
    await world.pass_time(5)
    assert world.committed() == OffsetCommit(0)
    assert (await world.consume()).values == [b"a"]


async def test_an_ack_of_a_partition_that_may_be_assigned_waits(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.log(1).append(b"x")
    world.backend.groups.withheld.add(T1)
    world.backend.groups.owners[T1] = "pixy-b"
    await world.consume()
    on_revocation = world.backend.groups.members["g"].on_revocation
    assert on_revocation is not None
    await on_revocation(0, None)
    outcome = await world.ack(1, 0)
    assert outcome == []
    world.backend.groups.withheld.clear()
    world.backend.groups.assign("g", again=True)
    await settle()
    assert outcome == [None]


async def test_an_ack_of_a_partition_of_another_process_names_the_owner(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.log(1).append(b"x")
    world.backend.groups.withheld.add(T1)
    world.backend.groups.owners[T1] = "pixy-b"
    await world.consume()
    (outcome,) = await world.ack(1, 0)
    assert isinstance(outcome, AckElsewhere)
    assert str(outcome) == "ack not accepted: t/1 of g is consumed by pixy-b; ack it there"


async def test_the_owner_is_named_also_by_a_member_without_partitions(make_world: MakeWorld) -> None:
    world = make_world()
    world.log(0).append(b"x")
    world.backend.groups.withheld.add(T0)
    world.backend.groups.owners[T0] = "pixy-b"
    await world.consume()
    (outcome,) = await world.ack(0, 0)
    assert isinstance(outcome, AckElsewhere)
    assert "consumed by pixy-b" in str(outcome)


async def test_an_ack_without_a_local_member_waits_while_the_owner_is_undecided(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log(0).append(b"x")
    world.backend.failures["owner"] = OwnerUndecided("a rebalance")
    outcome = await world.ack(0, 0)
    await world.pass_time(1)
    assert outcome == []
    world.backend.failures.clear()
    world.backend.groups.owners[T0] = "pixy-b"
    await world.pass_time(1)
    assert [type(each) for each in outcome] == [AckElsewhere]
    assert world.backend.groups.members == {}


async def test_an_ack_without_a_local_member_is_rejected_if_the_owner_stays_undecided(
    make_world: MakeWorld,
) -> None:
    world = make_world(rebalance_timeout=3.0)
    world.log(0).append(b"x")
    world.backend.failures["owner"] = OwnerUndecided("a rebalance")
    outcome = await world.ack(0, 0)
    for _ in range(40):
        await world.pass_time(0.1)
    assert [type(each) for each in outcome] == [OwnerUndecided]
    assert world.backend.groups.members == {}


async def test_an_ack_counts_if_the_topic_is_consumed_here_before_its_owner_is_decided(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log(0).append(b"x")
    world.backend.failures["owner"] = OwnerUndecided("a rebalance")
    outcome = await world.ack(0, 0)
    await world.consume()
    await world.pass_time(1)
    assert outcome == [None]


async def test_a_start_that_loses_and_regains_its_partition_commits_nothing_read_before(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log(0).append(b"a", b"b", b"c")
    world.backend.groups.of("g").commits = {
        T0: OffsetCommit(9)
    }  # beyond the end: a start commits its position
    gate = world.backend.gates["offset_ranges"] = asyncio.Event()
    answers = await world.consume()
    world.backend.groups.withheld.add(T0)
    world.backend.groups.assign("g", again=True)
    world.backend.groups.of("g").commits = {T0: OffsetCommit(1)}  # by the owner in between
    world.backend.groups.withheld.clear()
    world.backend.groups.assign("g", again=True)
    gate.set()
    await settle()
    assert world.backend.commit_calls == []
    assert answers.offsets == [1]


async def test_a_start_that_a_rebalance_overtakes_commits_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    world.log(0).append(b"a")
    gate = world.backend.gates["offset_ranges"] = asyncio.Event()
    answers = await world.consume()
    on_revocation = world.backend.groups.members["g"].on_revocation
    assert on_revocation is not None
    revoking = asyncio.ensure_future(on_revocation(0, None))
    await settle()
    gate.set()
    await revoking
    await settle()
    assert (world.backend.commit_calls, answers.offsets) == ([], [])
    world.backend.groups.assign("g", again=True)
    await settle()
    assert answers.offsets == [0]


async def test_an_ack_of_a_partition_of_another_process_does_not_join_the_group(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log(0).append(b"x")
    world.backend.groups.owners[T0] = "pixy-b"
    (outcome,) = await world.ack(0, 0)
    assert isinstance(outcome, AckElsewhere)
    assert world.backend.groups.members == {}


async def test_an_ack_of_an_unassigned_partition_joins_and_counts(make_world: MakeWorld) -> None:
    world = make_world()
    world.log(0).append(b"x")
    world.handed_out_before(1)
    assert await world.ack(0, 0) == [None]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(1)


async def test_a_subscription_does_not_end_in_the_middle_of_a_rebalance(make_world: MakeWorld) -> None:
    world = make_world(ack_timeout=60.0)
    world.log(0).append(b"a")
    await world.consume()
    change = rebalance(world, 30.0)
    await world.pass_time(29)
    assert not change.done()
    assert await world.ack(0, 0) == [None]
    await change
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(1)
    assert world.backend.groups.members == {}  # and then ends


async def test_the_last_ack_is_noticed_although_the_subscription_was_checked_meanwhile(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log(0).append(b"a")
    await world.consume()
    await world.pass_time(10)
    await world.consume()
    change = rebalance(world, 30.0)
    await world.pass_time(6)
    assert await world.ack(0, 0) == [None]
    assert change.done()
    await change


async def test_a_drain_during_a_rebalance_ends_with_the_acks(make_world: MakeWorld) -> None:
    world = make_world()
    world.log(0).append(b"a")
    await world.consume()
    change = rebalance(world, 30.0)
    await settle()
    drain = asyncio.create_task(world.consumers.drain(20.0))
    await settle()
    assert not drain.done()
    assert await world.ack(0, 0) == [None]
    await asyncio.wait_for(drain, 5)
    assert world.committed() == OffsetCommit(1)
    change.cancel()
    await asyncio.gather(change, return_exceptions=True)

"""Partitions that go to another node: only they pause, are settled and committed before they go."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.consume import ConsumeRequest
from pixy.errors import OwnedElsewhere, Unavailable
from tests.consume.conftest import MakeNodes, MakeWorld
from tests.consume.fakes import World
from tests.fakes.waiting import settle

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def consume_one_of_each(world: World) -> None:
    """Consume the first record of two partitions; each has another one."""
    for partition in (0, 1):
        world.log(partition).append(b"a")
    answers = await world.consume(2)
    assert sorted(offer.partition for offer in answers.offers) == [0, 1]
    for partition in (0, 1):
        world.log(partition).append(b"b")
    await settle()


async def test_only_partitions_that_go_pause(make_world: MakeWorld) -> None:
    world = make_world(2)
    await consume_one_of_each(world)
    on_revocation = world.backend.groups.members["g"].on_revocation
    assert on_revocation is not None
    change = asyncio.ensure_future(on_revocation(10.0, {"t": [1]}))
    await settle()
    answers = await world.consume(2)
    assert [(offer.partition, offer.record.offset) for offer in answers.offers] == [(0, 1)]
    assert await world.ack(0, 0) == [None]
    assert not change.done()
    assert await world.ack(1, 0) == [None]
    await change
    assert world.committed(1) == OffsetCommit(1)
    assert answers.values == [b"b"]


async def test_acks_of_partitions_that_stay_never_wait(make_world: MakeWorld) -> None:
    world = make_world(2)
    for partition in (0, 1):
        world.log(partition).append(b"a")
    await world.consume(2)
    on_revocation = world.backend.groups.members["g"].on_revocation
    assert on_revocation is not None
    await on_revocation(0, {"t": [1]})
    assert await world.ack(0, 0) == [None]
    assert await world.ack(1, 0) == []


async def test_a_partition_that_stays_after_all_continues_with_its_offers(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.log(1).append(b"a", b"b")
    (offer,) = (await world.consume(slow=True)).offers
    on_revocation = world.backend.groups.members["g"].on_revocation
    assert on_revocation is not None
    await on_revocation(0, {"t": [1]})
    answers = await world.consume()
    assert answers.offers == []
    world.backend.groups.assign("g", again=True)
    await settle()
    assert answers.values == [b"b"]
    offer.delivered()
    assert await world.ack(1, 0) == [None]
    await world.pass_time(0.5)
    assert world.committed(1) == OffsetCommit(1)


async def test_an_assignment_in_the_middle_of_a_revocation_ends_it_not(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.log(1).append(b"a", b"b")
    await world.consume()
    on_revocation = world.backend.groups.members["g"].on_revocation
    assert on_revocation is not None
    change = asyncio.ensure_future(on_revocation(10.0, {"t": [1]}))
    await settle()
    world.backend.groups.assign("g", again=True)
    answers = await world.consume()
    assert (answers.offers, change.done()) == ([], False)
    assert await world.ack(1, 0) == [None]
    await change


async def test_a_partition_that_goes_while_it_starts_offers_nothing(make_world: MakeWorld) -> None:
    world = make_world(2)
    for partition in (0, 1):
        world.log(partition).append(b"a")
    gate = world.backend.gates["offset_ranges"] = asyncio.Event()
    answers = await world.consume(2)
    on_revocation = world.backend.groups.members["g"].on_revocation
    assert on_revocation is not None
    change = asyncio.ensure_future(on_revocation(10.0, {"t": [1]}))
    await settle()
    gate.set()
    await change
    await settle()
    assert [offer.partition for offer in answers.offers] == [0]
    world.backend.groups.assign("g", again=True)
    await settle()
    assert [offer.partition for offer in answers.offers] == [0, 1]


async def test_two_revocations_at_a_time_do_not_wait_for_each_other(make_world: MakeWorld) -> None:
    world = make_world(2)
    for partition in (0, 1):
        world.log(partition).append(b"a")
    await world.consume(2)
    on_revocation = world.backend.groups.members["g"].on_revocation
    assert on_revocation is not None
    changes = [asyncio.ensure_future(on_revocation(10.0, {"t": [number]})) for number in (0, 1)]
    await settle()
    assert await world.ack(1, 0) == [None]
    await settle()
    assert [change.done() for change in changes] == [False, True]
    await world.pass_time(10)
    assert changes[0].done()


async def test_partitions_move_to_a_node_that_joins_and_the_others_never_pause(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 2)
    await consume_one_of_each(nodes[1])
    nodes.links.cut(1, 2)
    there = await nodes[2].consume()
    assert nodes.owned(1) == [0, 1]
    answers = await nodes[1].consume()
    assert [offer.partition for offer in answers.offers] == [0]
    assert await nodes[1].ack(1, 0) == [None]
    await settle()
    assert (nodes.owned(1), nodes.owned(2)) == ([0], [1])
    assert nodes[2].committed(1) == OffsetCommit(1)
    assert [(offer.partition, offer.record.offset) for offer in there.offers] == [(1, 1)]


async def test_a_partition_without_outstanding_offers_moves_at_once(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 2)
    await nodes.join(1)
    before = nodes.clock.monotonic()
    nodes[2].consumers.consume(ConsumeRequest("g", "t"), lambda offer, error: None)
    await settle()
    assert (nodes.owned(1), nodes.owned(2)) == ([0], [1])
    assert nodes.clock.monotonic() == before


@pytest.mark.slow
async def test_a_record_that_is_never_acked_holds_up_its_partition_for_a_bounded_time(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(2, 2)
    nodes.log(1).append(b"a")
    await nodes[1].consume()
    there = await nodes[2].consume()
    await nodes.pass_time(9.9)
    assert nodes.owned(1) == [0, 1]
    await nodes.pass_time(0.2)
    assert nodes.owned(2) == [1]
    there = await nodes[2].consume()
    assert there.values == [b"a"]


async def test_a_commit_that_a_moved_partition_refuses_is_made_for_the_others(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(3)
    for partition in range(3):
        world.log(partition).append(b"a")
    answers = await world.consume(3, auto_ack=True)
    for offer in answers.offers:
        offer.delivered()
    commit = world.backend.groups.commit

    def refuse(name: str, offsets: Mapping[TopicPartition, OffsetCommit], *rest: Any) -> None:
        if T1 in offsets:
            raise OwnedElsewhere("t/1 of g is owned by node 2")
        commit(name, offsets, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(world.backend.groups, "commit", refuse)
        await world.pass_time(0.5)
    assert [world.committed(partition) for partition in range(3)] == [
        OffsetCommit(1),
        OffsetCommit(0),
        OffsetCommit(1),
    ]
    await world.pass_time(0.5)
    assert world.committed(1) == OffsetCommit(1)


async def test_the_commit_before_a_move_is_tried_again(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 2)
    nodes.log(1).append(b"a")
    await nodes[1].consume()
    await nodes[1].ack(1, 0)
    nodes[1].backend.failures["commit"] = Unavailable("no leader")
    nodes[2].consumers.consume(ConsumeRequest("g", "t"), lambda offer, error: None)
    await nodes.pass_time(1)
    assert nodes.owned(2) == []
    nodes[1].backend.failures.clear()
    await nodes.pass_time(0.2)
    assert nodes.owned(2) == [1]
    assert nodes[2].committed(1) == OffsetCommit(1)

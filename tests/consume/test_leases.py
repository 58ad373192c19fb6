"""A member hands out records only while it knows that it is a member."""

import asyncio

import pytest

from pixy.backend import Lease, OffsetCommit
from pixy.errors import LongPollTimeout, Unavailable
from tests.consume.conftest import MakeNodes, MakeWorld
from tests.consume.fakes import World
from tests.fakes.waiting import settle


def lease_of(world: World) -> Lease:
    return world.backend.groups.members["g"].lease


@pytest.mark.slow
async def test_without_a_lease_nothing_is_handed_out(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b", b"c")
    assert (await world.consume()).values == [b"a"]
    lease_of(world).until = world.clock.monotonic() + 2.0
    await world.pass_time(1.9)
    assert (await world.consume()).values == [b"b"]
    await world.pass_time(0.1)
    answers = await world.consume()
    assert answers.values == []
    lease_of(world).until = world.clock.monotonic() + 2.0
    await world.pass_time(0.1)
    assert answers.values == [b"c"]


async def test_records_that_come_without_a_lease_wait_for_it(make_world: MakeWorld) -> None:
    world = make_world()
    answers = await world.consume()
    lease_of(world).until = world.clock.monotonic()
    world.log().append(b"a")
    await world.pass_time(1)
    assert answers.values == []
    lease_of(world).until = world.clock.monotonic() + 2.0
    await world.pass_time(0.1)
    assert answers.values == [b"a"]


async def test_records_that_come_back_without_a_lease_wait_for_it(make_world: MakeWorld) -> None:
    world = make_world(max_pending_messages=1, ack_timeout=1.0)
    world.log().append(b"a", b"b")
    slow = await world.consume(slow=True)
    answers = await world.consume()
    lease_of(world).until = world.clock.monotonic()
    slow.offers[0].undelivered()
    await settle()
    assert answers.values == []
    lease_of(world).until = world.clock.monotonic() + 0.5
    await world.pass_time(0.1)
    assert answers.values == [b"a"]
    again = await world.consume()
    await world.pass_time(1)
    assert again.values == []
    lease_of(world).until = world.clock.monotonic() + 0.5
    await world.pass_time(0.1)
    assert again.values == [b"a"]


async def test_requests_time_out_without_a_lease(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b")
    await world.consume()
    lease_of(world).until = world.clock.monotonic()
    answers = await world.consume()
    await world.pass_time(3)
    assert [type(error) for error in answers.errors] == [LongPollTimeout]


async def test_acks_wait_for_a_lease(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b", b"c")
    await world.consume(2)
    lease_of(world).until = world.clock.monotonic()
    acked = await world.ack(0, 0)
    answers = await world.consume(ack=(0, 1))
    await world.pass_time(1)
    assert (acked, answers.values) == ([], [])
    lease_of(world).until = world.clock.monotonic() + 9
    await world.pass_time(0.2)
    assert (acked, answers.values) == ([None], [b"c"])
    await world.pass_time(0.5)
    assert world.committed() == OffsetCommit(2)


async def test_an_ack_that_gets_no_lease_is_refused(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a")
    await world.consume()
    lease_of(world).until = world.clock.monotonic()
    acked = await world.ack(0, 0)
    await world.pass_time(10.1)
    assert [type(error) for error in acked] == [Unavailable]


async def test_an_ack_of_what_may_be_offered_waits_for_a_lease(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b")
    await world.consume()
    lease_of(world).until = world.clock.monotonic()
    answers = await world.consume(ack=(0, 0), ack_if_offered=True)
    await world.pass_time(1)
    lease_of(world).until = world.clock.monotonic() + 9
    await world.pass_time(0.2)
    assert answers.values == [b"b"]
    await world.pass_time(0.5)
    assert world.committed() == OffsetCommit(1)


async def test_an_ack_at_a_member_that_was_put_out_goes_to_the_owner(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 2)
    await nodes.join(1, 2)
    assert nodes.owned(2) == [1]
    nodes.log(1).append(b"a", b"b")
    assert (await nodes[2].consume()).values == [b"a"]
    await nodes.pass_time(1)  # it is committed that the record was handed out
    member = nodes.groups.member("g", 2)
    assert member is not None
    member.lease.until = nodes.clock.monotonic()
    for number in (1, 2):
        acked = await nodes[number].ack(1, 0)
        assert acked == []
    nodes.groups.expel(2)
    await nodes.pass_time(1)
    assert acked == [None]
    assert (await nodes[1].consume(auto_ack=True)).offsets == [1]


async def test_the_lease_is_that_of_the_present_membership(make_world: MakeWorld) -> None:
    world = make_world(subscription_timeout=5.0, long_polling_timeout=1.0)
    world.log().append(b"a", b"b")
    (offer,) = (await world.consume(auto_ack=True)).offers
    offer.delivered()
    lease_of(world).until = world.clock.monotonic()
    await world.pass_time(5)
    assert world.backend.groups.members == {}
    assert (await world.consume()).values == [b"b"]


async def test_a_topic_consumed_later_has_the_lease_of_its_group(make_world: MakeWorld) -> None:
    world = make_world()
    world.backend.create("u", 1)
    world.log(0, "u").append(b"u")
    await world.consume()
    lease_of(world).until = world.clock.monotonic()
    answers = await world.consume(topic="u")
    assert answers.values == []
    lease_of(world).until = world.clock.monotonic() + 1.0
    await world.pass_time(0.1)
    assert answers.values == [b"u"]


async def test_nothing_is_lent_without_a_lease(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 1)
    await nodes.join(1)
    member = nodes.groups.member("g", 1)
    assert member is not None
    member.lease.until = nodes.clock.monotonic()
    nodes.log().append(b"a")
    answers = await nodes[2].consume()
    await nodes.pass_time(1)
    assert answers.values == []
    member.lease.until = nodes.clock.monotonic() + 9
    await nodes.pass_time(0.2)
    assert answers.values == [b"a"]


async def test_a_node_that_was_removed_while_it_was_paused_hands_out_nothing_and_commits_nothing(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(2, 2)
    await nodes.join(1, 2)
    assert nodes.owned(2) == [1]
    nodes.log(1).append(b"a", b"b", b"c")
    assert (await nodes[2].consume()).values == [b"a"]
    await nodes[2].ack(1, 0)
    member = nodes.groups.member("g", 2)
    assert member is not None
    member.lease.until = nodes.clock.monotonic() + 2.5
    nodes.kill(2)
    gate = nodes[2].backend.gates["commit"] = asyncio.Event()
    await nodes.pass_time(3)  # it is paused: no lease is renewed, and its commit stays in its queue
    asked = await nodes[2].consume()
    nodes.groups.expel(2)
    for offset in (0, 1, 2):
        assert (await nodes[1].consume(auto_ack=True)).offsets == [offset]
    assert asked.values == []
    gate.set()
    await nodes.pass_time(2)
    assert asked.values == []
    assert nodes[1].committed(1) == nodes[2].committed(1)

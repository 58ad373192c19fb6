"""An answered ack is committed, or waits for its commit, whatever ends beside it: its subscription,
that of another topic, the ownership of its partition, the process.
"""

import asyncio

import pytest

from pixy.backend import OffsetCommit
from pixy.errors import Unavailable
from tests.consume.conftest import MakeNodes, MakeWorld
from tests.consume.fakes import Nodes, World
from tests.fakes.waiting import settle

UNAVAILABLE = Unavailable("no leader")
OPTIONS = {"subscription_timeout": 1.0, "long_polling_timeout": 100.0}


async def idle_with_one_record_of_each(nodes: Nodes, *topics: str) -> World:
    """Have a client hold a record of each topic, and ask for nothing more. Another node is ready to
    take the partitions, in which there are further records.
    """
    first, second = nodes[1], nodes[2]
    for topic in topics:
        first.log(0, topic).append(b"a")
        assert (await first.consume(topic=topic)).values == [b"a"]
    await nodes.pass_time(0.5)  # what was handed out is committed
    for topic in topics:
        await second.consume(topic=topic)
    await nodes.pass_time(2)
    return first


@pytest.mark.parametrize("last", ["t", "u", "v"])
async def test_last_acks_of_several_topics_of_a_group_are_committed(make_nodes: MakeNodes, last: str) -> None:
    nodes = make_nodes(2, 1, **OPTIONS)
    for topic in "uv":
        nodes[1].backend.create(topic, 1)
    world = await idle_with_one_record_of_each(nodes, *"tuv")
    gate = world.backend.gates["commit"] = asyncio.Event()
    for topic in sorted("tuv", key=lambda topic: topic == last):
        assert await world.ack(0, 0, topic=topic) == [None]
        await nodes.pass_time(0.01)
    gate.set()
    await nodes.pass_time(0.1)
    for topic in "tuv":
        assert world.committed(topic=topic) == OffsetCommit(1)


@pytest.mark.slow
async def test_a_subscription_that_ends_during_a_commit_that_fails_is_left_after_the_next_one(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(2, 1, **OPTIONS)
    world = await idle_with_one_record_of_each(nodes, "t")
    world.log().append(b"b")
    (offer,) = (await world.consume(slow=True)).offers
    await nodes.pass_time(2)
    gate = world.backend.gates["commit"] = asyncio.Event()
    assert await world.ack(0, 0) == [None]
    await nodes.pass_time(0.5)
    offer.undelivered()  # nothing is outstanding: the subscription ends
    await nodes.pass_time(0.1)
    world.backend.failures["commit"] = UNAVAILABLE
    gate.set()
    await nodes.pass_time(0.5)
    assert nodes.owner(0) == 1
    world.backend.failures.clear()
    await nodes.pass_time(2)
    assert (nodes.owner(0), world.committed()) == (2, OffsetCommit(1))


async def test_a_topic_that_is_consumed_again_begins_behind_a_commit_that_has_failed(
    make_world: MakeWorld,
) -> None:
    world = make_world(subscription_timeout=1.0)
    world.log().append(b"a", b"b")
    await world.consume()
    await world.pass_time(0.5)
    (offer,) = (await world.consume(slow=True)).offers
    await world.pass_time(2)
    gate = world.backend.gates["commit"] = asyncio.Event()
    assert await world.ack(0, 0) == [None]
    await world.pass_time(0.5)
    offer.undelivered()
    await settle()
    answers = await world.consume()
    world.backend.failures["commit"] = UNAVAILABLE
    gate.set()
    await settle()
    world.backend.failures.clear()
    await world.pass_time(1)
    assert answers.values == [b"b"]
    assert world.committed() == OffsetCommit(1)


async def test_a_partition_goes_to_another_node_when_its_acks_are_committed_and_not_before(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log().append(b"a")
    await world.consume()
    assert await world.ack(0, 0) == [None]
    world.backend.failures["commit"] = UNAVAILABLE
    on_revocation = world.backend.groups.members["g"].on_revocation
    assert on_revocation is not None
    change = asyncio.ensure_future(on_revocation(1.0, {"t": [0]}))
    for _ in range(200):
        await world.pass_time(0.1)
    assert not change.done()
    world.backend.failures.clear()
    await world.pass_time(0.1)
    await change
    assert world.committed() == OffsetCommit(1)


@pytest.mark.slow
async def test_a_stop_tries_again_to_commit_the_last_acks(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a")
    await world.consume()
    assert await world.ack(0, 0) == [None]
    world.backend.failures["commit"] = UNAVAILABLE
    stop = asyncio.ensure_future(world.consumers.drain(0))
    await settle()
    world.backend.failures.clear()
    await stop
    assert world.committed() == OffsetCommit(1)

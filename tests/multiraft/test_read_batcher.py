"""Linearizable reads that are waited for, and shared."""

import asyncio

import pytest

from pixy.errors import ShuttingDown, Unavailable, UnknownPartition
from pixy.multiraft.read_batcher import ReadBatcher
from pixy.raft import MessageType
from tests.cluster.drivers import DriverNetwork, DriverNode
from tests.fakes.waiting import settle

READ_INDEX = MessageType.READ_INDEX


def reads_of(node: DriverNode) -> ReadBatcher:
    return ReadBatcher(node.driver, lambda group: f"group {group.raft_group}")


def wait(node: DriverNode, reads: ReadBatcher, timeout: float = 60.0) -> asyncio.Task[None]:
    return asyncio.create_task(reads.wait([node.group], timeout))


async def test_a_group_of_this_node_alone_needs_no_read(node: DriverNode) -> None:
    await reads_of(node).wait([node.group], 60.0)
    assert node.group.node is None, "it was not even opened"


async def test_a_follower_has_applied_what_the_leader_had_committed(network: DriverNetwork) -> None:
    leader, follower = await network.elect(1), network[2]
    network.lost = lambda message: message.to == 2
    leader.propose(b"command")
    await network.run()
    assert follower.application.applied == []
    waiting = wait(follower, reads_of(follower))
    await network.run()
    assert not waiting.done()
    network.lost = lambda _: False
    await network.tick(20)
    await waiting
    assert follower.application.applied == [b"command"]


async def test_callers_that_come_during_a_read_share_the_next_one(network: DriverNetwork) -> None:
    await network.elect(1)
    follower = network[2]
    reads = reads_of(follower)
    first = wait(follower, reads)
    await settle()
    assert len(network.sent(READ_INDEX, 2)) == 1
    others = [wait(follower, reads) for _ in range(10)]
    await settle()
    assert len(network.sent(READ_INDEX, 2)) == 1
    while not first.done():
        network.deliver()
        await asyncio.sleep(0)
    assert not any(each.done() for each in others), "they came after its index"
    await network.run()
    await asyncio.gather(*others)
    assert reads._shared == {}


async def test_a_caller_that_goes_takes_nobody_else_with_it(network: DriverNetwork) -> None:
    await network.elect(1)
    reads = reads_of(network[2])
    waiting = [wait(network[2], reads) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    await network.run()
    await waiting[2]


async def test_without_a_leader_the_time_runs_out(network: DriverNetwork) -> None:
    follower = network[2]
    other, _ = follower.other_group()
    reads = reads_of(follower)
    with pytest.raises(Unavailable, match=r"no leader of group 1000 has answered within 0\.01 s"):
        await reads.wait([follower.group], 0.01)
    with pytest.raises(Unavailable, match="no leader of group 1000 and 1 other has answered"):
        await reads.wait([follower.group, other], 0.01)
    await network.elect(1)
    waiting = wait(follower, reads)
    await network.run()
    await waiting


async def test_a_node_that_has_not_applied_what_the_leader_confirmed_is_behind(
    network: DriverNetwork,
) -> None:
    leader, follower = await network.elect(1), network[2]
    reads = reads_of(follower)
    assert not reads.is_behind(follower.group)
    network.lost = lambda message: message.to == 2 and message.type is not MessageType.READ_INDEX_RESP
    leader.propose(b"command")
    await network.run()
    waiting = wait(follower, reads)
    await network.run()
    assert reads.is_behind(follower.group)
    with pytest.raises(
        Unavailable, match="this node has not applied yet what group 1000 has: its disk is slow"
    ):
        await wait(follower, reads, 0.01)
    network.lost = lambda _: False
    await network.tick(20)
    await waiting
    assert not reads.is_behind(follower.group)


async def test_the_removal_of_a_group_ends_its_reads(network: DriverNetwork) -> None:
    follower = network[2]
    waiting = wait(follower, reads_of(follower))
    await asyncio.sleep(0)
    follower.driver.remove(follower.group, UnknownPartition("deleted"))
    await waiting


async def test_a_stop_ends_all_reads(network: DriverNetwork) -> None:
    reads = reads_of(network[2])
    waiting = [wait(network[2], reads) for _ in range(2)]
    await asyncio.sleep(0)
    reads.stop()
    for each in (*waiting, wait(network[2], reads)):
        with pytest.raises(ShuttingDown):
            await each
    await network.elect(1)

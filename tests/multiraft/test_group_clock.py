"""The clock of raft groups with peers: ticks, deadlines, and leaders whose disk is slow."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pixy.errors import DeadlineExceeded, Unavailable
from pixy.multiraft.dedup_table import WINDOW
from pixy.raft import ConfChange, ConfChangeType, Message, MessageType, StateType
from tests.cluster.drivers import DriverNetwork, DriverNode, NodeSetup

ELECTION_TICKS = 10


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[DriverNetwork]:
    """Nodes to which every disk with a write under way is slow."""
    made = DriverNetwork(tmp_path, 1, 2, 3, setup=NodeSetup(tick_s=0.0))
    yield made
    made.close()


def appends_to(node_id: int) -> Callable[[Message], bool]:
    """Picks the appends to a node."""
    return lambda message: message.type is MessageType.APP and message.to == node_id


def leaders(network: DriverNetwork) -> list[int]:
    return [node_id for node_id, node in network.nodes.items() if node.group.leads]


# --- ticks ----------------------------------------------------------------------------------------


async def test_ticks_elect_a_leader_of_a_group_with_peers(network: DriverNetwork) -> None:
    for node in network.nodes.values():
        node.driver.open(node.group)
    for _ in range(2 * ELECTION_TICKS):
        await network.tick()
    assert len(leaders(network)) == 1


async def test_a_group_that_is_not_in_use_is_not_ticked(network: DriverNetwork) -> None:
    await network.tick(2 * ELECTION_TICKS)
    assert [node.group.node for node in network.nodes.values()] == [None] * 3


async def test_a_group_without_peers_is_not_ticked(node: DriverNode) -> None:
    await node.lead()
    assert node.group.node is not None
    node.driver.tick()
    assert node.group.node.raft.election_elapsed == 0


async def test_a_leader_without_its_followers_takes_no_proposals(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network.lost = lambda _: True
    await network.tick(2 * ELECTION_TICKS)
    assert leaders(network) == []
    assert leader.group.node is not None
    assert leader.group.node.raft.state is not StateType.LEADER


# --- deadlines ------------------------------------------------------------------------------------


async def test_a_proposal_is_answered_at_its_deadline(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network.lost = lambda _: True
    leader.propose(b"late", deadline=0.0)
    leader.propose(b"patient")
    await network.tick()
    assert {name: type(result) for name, result in leader.results.items()} == {b"late": DeadlineExceeded}


async def test_a_proposal_that_no_leader_has_seen_is_not_written(network: DriverNetwork) -> None:
    network[1].propose(b"late", deadline=0.0)
    network[1].propose(b"patient")
    await network.tick()
    assert {name: type(result) for name, result in network[1].results.items()} == {b"late": Unavailable}


async def test_a_proposal_to_a_group_without_peers_has_its_deadline(node: DriverNode) -> None:
    await node.lead()
    node.holds_writes = True
    node.propose(b"late", deadline=0.0)
    node.driver.tick()
    assert isinstance(node.results[b"late"], DeadlineExceeded)


async def test_what_waits_behind_a_deadline_is_sent_in_the_same_tick(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    leader.holds_writes = True
    network.lost = lambda _: True
    for number in range(WINDOW):
        leader.propose(b"late %d" % number, deadline=0.0)
    leader.propose(b"next")
    await network.run()
    leader.driver.tick()
    await asyncio.sleep(0)
    sent = network.sent(MessageType.APP, 1)
    assert [[entry.data for entry in append.entries] for append in sent] == [[b"next"]] * 2


# --- slow disks -----------------------------------------------------------------------------------


async def write_slowly(leader: DriverNode) -> None:
    leader.holds_writes = True
    leader.propose(b"slow")


@pytest.mark.parametrize("phase", [0, 1, 9])
async def test_a_leader_whose_disk_is_slow_hands_over(impatient: DriverNetwork, phase: int) -> None:
    for node in impatient.nodes.values():
        for _ in range(phase):
            node.driver.tick()
    leader = await impatient.elect(1)
    await write_slowly(leader)
    await impatient.tick(ELECTION_TICKS)
    assert leaders(impatient) in ([2], [3])


async def test_a_leader_hands_over_once_in_an_election_timeout(impatient: DriverNetwork) -> None:
    leader = await impatient.elect(1)
    await write_slowly(leader)
    await impatient.tick(ELECTION_TICKS - 1)
    assert leaders(impatient) == [1]


async def test_a_leader_without_a_write_under_way_goes_on(impatient: DriverNetwork) -> None:
    await impatient.elect(1)
    await impatient.tick(2 * ELECTION_TICKS)
    assert leaders(impatient) == [1]


async def test_a_write_that_takes_less_than_an_election_timeout_is_not_slow(network: DriverNetwork) -> None:
    await write_slowly(await network.elect(1))
    await network.tick(ELECTION_TICKS)
    assert leaders(network) == [1]


async def test_a_slow_disk_does_not_matter_to_a_group_without_peers(tmp_path: Path) -> None:
    node = DriverNode(tmp_path, setup=NodeSetup(tick_s=0.0)).bind()
    await node.lead()
    await write_slowly(node)
    for _ in range(ELECTION_TICKS):
        node.driver.tick()
    assert node.group.leads
    assert node.faults == []
    node.close()


async def test_the_follower_that_is_closest_behind_takes_over(impatient: DriverNetwork) -> None:
    for behind, closest in ((2, 3), (3, 2)):
        leader = await impatient.elect(1)
        impatient.lost = appends_to(behind)
        await write_slowly(leader)
        await impatient.tick(ELECTION_TICKS)
        assert leaders(impatient) == [closest]
        leader.holds_writes = False
        impatient.lost = lambda _: False
        await impatient.tick()


async def test_a_follower_that_is_not_heard_from_does_not_take_over(impatient: DriverNetwork) -> None:
    leader = await impatient.elect(1)
    await write_slowly(leader)
    await impatient.run()
    impatient.cut.add(3)
    # In the first election timeout it counts as active.
    await impatient.tick(2 * ELECTION_TICKS)
    # The new leader needs the vote of the old one.
    leader.holds_writes = False
    await impatient.run()
    assert leaders(impatient) == [2]


async def test_a_learner_does_not_take_over(impatient: DriverNetwork) -> None:
    leader = await impatient.elect(1)
    assert leader.group.node is not None
    leader.group.node.propose_conf_change(ConfChange(ConfChangeType.ADD_LEARNER_NODE, 3))
    leader.driver.drive(leader.group)
    await impatient.run()
    await write_slowly(leader)
    await impatient.tick(ELECTION_TICKS)
    leader.holds_writes = False
    await impatient.run()
    assert leaders(impatient) == [2]

"""Elections at once where a leader is gone: who campaigns, when, and how often."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pixy.cluster.peering.failover import Failover
from pixy.raft import ConfChangeSingle, ConfChangeType, ConfChangeV2, MessageType, StateType
from tests.cluster.drivers import DriverNetwork, DriverNode
from tests.fakes.waiting import until


class SmallestDelays:
    """Source of no randomness at all."""

    def randrange(self, stop: int) -> int:
        return 0


class Connections:
    """Nodes of a network with their failovers, and the connections between them.

    Attributes:
        down: ids of nodes that nobody reaches.
    """

    def __init__(self, network: DriverNetwork) -> None:
        self.network = network
        self.down: set[int] = set()
        self.failovers = {
            node_id: Failover(node.driver, lambda each: each not in self.down, SmallestDelays())
            for node_id, node in network.nodes.items()
        }

    def kill(self, node_id: int) -> None:
        """Cut a node off, and tell nobody yet."""
        self.down.add(node_id)
        self.network.cut.add(node_id)

    def tell(self, lost: int, *node_ids: int) -> None:
        """Have nodes notice that another one is gone."""
        for node_id in node_ids:
            self.failovers[node_id].lost(lost)

    async def run_until_led(self, node_id: int) -> None:
        """Deliver messages until a node leads; its election timeout takes part in nothing."""

        async def deliver() -> None:
            while True:
                await self.network.run()
                await asyncio.sleep(0.005)

        delivering = asyncio.create_task(deliver())
        await until(lambda: self.network[node_id].group.leads)
        delivering.cancel()


@pytest.fixture
async def connections(network: DriverNetwork) -> AsyncIterator[Connections]:
    made = Connections(network)
    yield made
    for failover in made.failovers.values():
        failover.stop()


def leaders(network: DriverNetwork) -> list[int]:
    return [
        node_id for node_id, node in network.nodes.items() if node.group.leads and node_id not in network.cut
    ]


def state_of(node: DriverNode) -> StateType:
    assert node.group.node is not None
    return node.group.node.raft.state


async def test_the_first_voter_that_is_left_is_elected_at_once(
    network: DriverNetwork, connections: Connections
) -> None:
    await network.elect(1)
    connections.kill(1)
    connections.tell(1, 3, 2)
    await network.run()
    assert leaders(network) == [2], "without a tick, and without a wait"


async def test_a_candidate_that_others_noticed_too_late_tries_again(
    network: DriverNetwork, connections: Connections
) -> None:
    await network.elect(1)
    connections.kill(1)
    connections.tell(1, 2)
    await network.run()
    assert leaders(network) == [], "node 3 still follows"
    connections.tell(1, 3)
    await connections.run_until_led(2)


@pytest.mark.slow
async def test_the_next_voter_campaigns_when_the_first_one_cannot_be_elected(
    network: DriverNetwork, connections: Connections
) -> None:
    leader = await network.elect(1)
    network.lost = lambda m: m.to == 2 and m.type is MessageType.APP
    leader.propose(b"command")
    await network.run()
    network.lost = lambda _: False
    connections.kill(1)
    connections.tell(1, 2, 3)
    await network.run()
    assert leaders(network) == [], "node 2 lacks an entry"
    await connections.run_until_led(3)
    assert network[3].application.applied == [b"command"]


async def test_groups_that_another_node_leads_stay_as_they_are(
    network: DriverNetwork, connections: Connections
) -> None:
    await network.elect(1)
    connections.down.add(3)
    connections.tell(3, 1, 2)
    await network.run()
    assert leaders(network) == [1]
    assert [network[node_id].group.leader for node_id in (1, 2)] == [1, 1]


async def test_a_node_that_came_back_meanwhile_is_not_deposed(
    network: DriverNetwork, connections: Connections
) -> None:
    await network.elect(1)
    connections.tell(1, 2, 3)
    assert [network[node_id].group.leader for node_id in (2, 3)] == [1, 1]
    await network.run()
    assert leaders(network) == [1]


@pytest.mark.slow
async def test_many_groups_are_worked_through_in_steps(tmp_path: Path) -> None:
    network = DriverNetwork(tmp_path, 1, 2)
    connections = Connections(network)
    try:
        groups = [
            [node.other_group(number)[0] for node in network.nodes.values()] for number in range(2000, 2120)
        ]
        for first, _ in groups:
            network[1].driver.campaign(first)
        await network.run()
        assert all(first.leads for first, _ in groups)
        connections.kill(1)
        connections.tell(1, 2)
        forgotten = []
        for _ in range(4):
            forgotten.append(sum(second.leader != 1 for _, second in groups))
            await asyncio.sleep(0)
        assert forgotten == [50, 100, 120, 120]
    finally:
        connections.failovers[2].stop()
        network.close()


async def test_a_node_without_a_vote_forgets_the_leader_and_leaves_the_election_to_others(
    network: DriverNetwork, connections: Connections
) -> None:
    leader = await network.elect(1)
    demotion = ConfChangeV2((ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, 2),))
    assert leader.driver.change_configuration(leader.group, demotion)
    await network.run()
    connections.kill(1)
    connections.tell(1, 2, 3)
    await network.run()
    assert [network[node_id].group.leader for node_id in (2, 3)] == [0, 0]
    assert (state_of(network[2]), state_of(network[3])) == (StateType.FOLLOWER, StateType.PRE_CANDIDATE)


async def test_a_candidate_is_left_alone_while_its_votes_are_written(
    network: DriverNetwork, connections: Connections
) -> None:
    await network.elect(1)
    network[3].holds_writes = True
    connections.kill(1)
    connections.tell(1, 3, 2)
    await network.run()
    assert (leaders(network), state_of(network[2])) == ([], StateType.CANDIDATE)
    again, groups = connections.failovers[2]._again, [network[2].group]
    for attempt in (0, 1):
        again(groups, attempt)
        assert state_of(network[2]) is StateType.CANDIDATE
    again(groups, 2)
    assert state_of(network[2]) is StateType.PRE_CANDIDATE, "or a split vote would last"
    network[3].holds_writes = False
    await network.run()
    assert leaders(network) == [2]


async def test_the_preferred_leader_of_a_new_group_campaigns_until_others_know_it(
    network: DriverNetwork, connections: Connections
) -> None:
    network.cut.update((2, 3))
    connections.failovers[1].elect(network[1].group)
    await network.run()
    assert leaders(network) == []
    network.cut.clear()
    await connections.run_until_led(1)


async def test_a_node_that_stops_begins_no_election(network: DriverNetwork, connections: Connections) -> None:
    await network.elect(1)
    connections.kill(1)
    connections.failovers[2].stop()
    connections.tell(1, 2)
    await network.run()
    assert network[2].group.leader == 1

"""Even leadership: which node is preferred, and when a leader hands over to it."""

from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch

import pytest

from pixy.cluster.log.replica import PartitionReplica
from pixy.cluster.peering import leader_balancer
from pixy.cluster.peering.leader_balancer import LeaderBalancer, preferred_leader
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, MessageType
from tests.cluster.drivers import DriverNetwork
from tests.cluster.nodes import Cluster

LONG_AGO = -1000.0


class Bench:
    """Node 1, which leads, and its placement; node 2 is preferred.

    Attributes:
        up_since: by node.
        wrong_clocks: nodes whose clock is off.
        damaged_groups: raft groups whose replicas at node 1 are damaged.
    """

    def __init__(self, network: DriverNetwork) -> None:
        self.network = network
        self.up_since: dict[int, float] = {2: LONG_AGO, 3: LONG_AGO}
        self.wrong_clocks: set[int] = set()
        self.damaged_groups: set[int] = set()
        self.placement = LeaderBalancer(
            network[1].driver, self.up_since.get, self.has_wrong_clock, self.damaged_groups
        )

    def has_wrong_clock(self, node_id: int) -> bool:
        return node_id in self.wrong_clocks

    def later(self, seconds: float) -> None:
        """Age what was handed over, and the connections."""
        self.up_since = {node_id: since - seconds for node_id, since in self.up_since.items()}
        self.placement._up_since = self.up_since.get
        self.placement._handed_over = {
            group: transfer._replace(at=transfer.at - seconds)
            for group, transfer in self.placement._handed_over.items()
        }

    async def look(self) -> list[int]:
        """Look, a second after the last time; returns the nodes that lead."""
        self.placement._next_look = LONG_AGO
        self.placement.tick()
        await self.network.run()
        return [node_id for node_id, node in self.network.nodes.items() if node.group.leads]


@pytest.fixture
async def bench(network: DriverNetwork) -> AsyncIterator[Bench]:
    with patch.object(leader_balancer, "preferred_leader", lambda _: 2):
        yield Bench(network)


# --- who is preferred -----------------------------------------------------------------------------


async def test_the_first_replica_is_preferred_in_a_partition_and_metadata_stays_where_it_is(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await cluster.append(b"value")
        groups = cluster.node._log.driver.groups
        replica = groups[1000].application
        assert isinstance(replica, PartitionReplica)
        replica.replicas = (3, 1, 2)
        assert preferred_leader(groups[1000]) == 3
        assert preferred_leader(groups[1]) is None
        for group in groups.values():
            group.storage.conf_state = ConfState((2, 5, 7), (1,))
        state_groups = [preferred_leader(groups[number]) for number in range(2, 10)]
        assert state_groups == [7, 2, 5, 7, 2, 5, 7, 2]


def test_any_node_may_lead_a_group_that_nobody_knows() -> None:
    assert preferred_leader(RaftGroup(1000, RaftStorage(ConfState((1, 2, 3))), 1)) is None


# --- transfers ------------------------------------------------------------------------------------


async def test_the_leadership_goes_to_the_preferred_node(network: DriverNetwork, bench: Bench) -> None:
    await network.elect(1)
    assert await bench.look() == [2]


async def test_looks_are_a_second_apart(network: DriverNetwork, bench: Bench) -> None:
    leader = await network.elect(1)
    bench.up_since.clear()
    assert await bench.look() == [1]
    bench.up_since[2] = LONG_AGO
    bench.placement.tick()
    await network.run()
    assert leader.group.leads


async def test_a_node_that_came_just_now_or_is_down_gets_nothing(
    network: DriverNetwork, bench: Bench
) -> None:
    await network.elect(1)
    bench.up_since[2] = bench.placement._loop.time() - 2
    assert await bench.look() == [1]
    del bench.up_since[2]
    assert await bench.look() == [1]


async def test_a_node_without_a_vote_or_signs_of_life_gets_nothing(
    network: DriverNetwork, bench: Bench
) -> None:
    leader = await network.elect(1)
    assert leader.group.node is not None
    leader.group.node.raft.tracker.progress[2].recently_active = False
    assert await bench.look() == [1]
    leader.group.node.raft.tracker.progress[2].recently_active = True
    demotion = ConfChangeV2((ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, 2),))
    assert leader.driver.change_configuration(leader.group, demotion)
    await network.run()
    assert await bench.look() == [1]
    assert not bench.placement._handed_over, "nobody was asked"


async def test_a_node_that_lacks_committed_entries_gets_nothing(network: DriverNetwork, bench: Bench) -> None:
    leader = await network.elect(1)
    network.lost = lambda m: m.to == 2 and m.type is MessageType.APP
    leader.propose(b"command")
    await network.run()
    network.lost = lambda _: False
    assert await bench.look() == [1]
    await network.tick(5)
    assert await bench.look() == [2]


async def test_entries_under_way_do_not_matter(network: DriverNetwork, bench: Bench) -> None:
    leader = await network.elect(1)
    leader.propose(b"command")
    assert await bench.look() == [2]
    assert leader.results == {b"command": None}


async def test_a_leadership_that_comes_back_stays_for_a_while(network: DriverNetwork, bench: Bench) -> None:
    await network.elect(1)
    assert await bench.look() == [2]
    await network.elect(1)
    assert await bench.look() == [1], "node 2 may not be able to"
    bench.later(30)
    assert await bench.look() == [1], "it has given it back"
    bench.up_since[2] = bench.placement._loop.time() - 10
    assert await bench.look() == [2], "it was away meanwhile"
    await network.elect(1)
    bench.later(600)
    assert await bench.look() == [2]


@pytest.mark.parametrize(("preferred", "heir"), [(2, 2), (1, 2), (None, 2)])
async def test_a_node_with_a_damaged_replica_gives_up_its_leadership(
    network: DriverNetwork, preferred: int | None, heir: int
) -> None:
    with patch.object(leader_balancer, "preferred_leader", lambda _: preferred):
        bench = Bench(network)
        await network.elect(1)
        bench.damaged_groups.add(network[1].group.raft_group)
        assert await bench.look() == [heir]
        bench.later(30)
        assert await bench.look() == [heir], "a follower has nothing to give"


async def test_a_damaged_replica_gives_up_what_it_never_could_apply(network: DriverNetwork) -> None:
    """A start has found the damage: its group has no application, and takes no proposals."""
    with patch.object(leader_balancer, "preferred_leader", lambda _: 1):
        bench, leader = Bench(network), await network.elect(1)
        leader.group.application = None
        leader.group.look_at_role()
        bench.damaged_groups.add(leader.group.raft_group)
        assert await bench.look() == [2]


# --- wrong clocks ---------------------------------------------------------------------------------


async def test_a_node_whose_clock_is_off_is_given_nothing(network: DriverNetwork, bench: Bench) -> None:
    await network.elect(1)
    bench.wrong_clocks = {2}
    assert await bench.look() == [1]
    bench.wrong_clocks.clear()
    assert await bench.look() == [2]


@pytest.mark.parametrize(
    ("preferred", "wrong", "heir"), [(2, {1}, 2), (1, {1}, 2), (None, {1}, 2), (2, {1, 2}, 3)]
)
async def test_a_node_whose_clock_is_off_gives_up_what_it_leads(
    network: DriverNetwork, preferred: int | None, wrong: set[int], heir: int
) -> None:
    with patch.object(leader_balancer, "preferred_leader", lambda _: preferred):
        bench = Bench(network)
        await network.elect(1)
        bench.wrong_clocks = wrong
        assert await bench.look() == [heir]


async def test_a_leadership_stays_if_all_clocks_are_off(network: DriverNetwork, bench: Bench) -> None:
    await network.elect(1)
    bench.wrong_clocks = {1, 2, 3}
    assert await bench.look() == [1]


@pytest.mark.slow
async def test_a_look_begins_a_bounded_number_of_transfers(network: DriverNetwork, bench: Bench) -> None:
    nodes = network.nodes.values()
    groups = [[node.other_group(number)[0] for node in nodes] for number in range(2000, 2105)]
    for first, *_ in groups:
        network[1].driver.campaign(first)
    await network.run()
    led = []
    for _ in range(4):
        await bench.look()
        led.append(sum(first.leads for first, *_ in groups))
    assert led == [55, 5, 0, 0]


async def test_a_group_without_peers_is_led_by_its_only_member(tmp_path: Path) -> None:
    network = DriverNetwork(tmp_path, 1)
    try:
        with patch.object(leader_balancer, "preferred_leader", lambda _: 2):
            await network.elect(1)
            assert await Bench(network).look() == [1]
    finally:
        network.close()

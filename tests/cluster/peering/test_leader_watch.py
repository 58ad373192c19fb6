"""Changes of leaders, as a node notices and tells them."""

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest

from pixy.backend import TopicPartition
from pixy.cluster import NodeObserver
from pixy.cluster.log.replica import PartitionReplica
from pixy.cluster.peering.leader_watch import LEADERLESS_S, LeaderWatch
from pixy.multiraft.raft_group import RaftGroup
from tests.cluster.node_clusters import NodeCluster, run_cluster

pytestmark = pytest.mark.slow


class Told(NodeObserver):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.leaders: list[set[str]] = []
        self.readiness = 0

    def leaders_changed(self, topics: Collection[str]) -> None:
        self.leaders.append(set(topics))

    def readiness_changed(self) -> None:
        self.readiness += 1


def partition(cluster: NodeCluster, topic: str, number: int = 0) -> PartitionReplica:
    replica = cluster[1].node.partition(TopicPartition(topic, number))
    assert replica is not None
    return replica


def group(replica: PartitionReplica) -> RaftGroup:
    assert replica.group is not None
    return replica.group


def test_changes_of_a_moment_are_told_together(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("a", 3)
        await cluster[1].backend.create_topic("b", 1)
        await asyncio.sleep(1)
        told = Told()
        watch = LeaderWatch(lambda: told)
        for number in range(3):
            watch.leader_changed(group(partition(cluster, "a", number)))
        watch.leader_changed(group(partition(cluster, "b")))
        watch.leader_changed(cluster[1].node.state_groups.metadata_replica.group)
        assert told.leaders == []
        await asyncio.sleep(0.1)
        assert told.leaders == [{"a", "b"}]
        watch.leader_changed(group(partition(cluster, "b")))
        await asyncio.sleep(0.1)
        assert told.leaders == [{"a", "b"}, {"b"}]

    run_cluster(scenario, tmp_path)


def test_fetches_are_woken_when_their_partition_has_had_no_leader_for_long(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("a", 2)
        await asyncio.sleep(1)
        led, leaderless = partition(cluster, "a", 0), partition(cluster, "a", 1)
        cluster.split(1)
        await asyncio.sleep(3)
        watch = LeaderWatch(Told)
        metadata = cluster[1].node.state_groups.metadata_replica.group
        watch.note(leaderless)
        await asyncio.sleep(LEADERLESS_S - 0.1)
        watch.note(led)
        watch.look(metadata, list)
        assert not watch.is_leaderless(leaderless)
        await asyncio.sleep(0.2)
        waiters = [asyncio.get_running_loop().create_future() for _ in range(2)]
        led.waiters, leaderless.waiters = {waiters[0]: None}, {waiters[1]: None}
        watch.look(metadata, list)
        assert [each.done() for each in waiters] == [False, True]
        assert (watch.is_leaderless(led), watch.is_leaderless(leaderless)) == (False, True)
        cluster.network.heal()
        await asyncio.sleep(5)
        watch.note(leaderless)
        assert not watch.is_leaderless(leaderless)

    run_cluster(scenario, tmp_path)


def test_readiness_is_told_when_it_changes(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        told = Told()
        watch = LeaderWatch(lambda: told)
        metadata = cluster[1].node.state_groups.metadata_replica.group
        watch.look(metadata, list)
        cluster.split(1)
        await asyncio.sleep(5)
        for _ in range(5):
            watch.look(metadata, lambda: [2, 3])
            await asyncio.sleep(1)
        assert (told.readiness, watch.reason) == (1, "no majority: nodes 2 and 3 cannot be reached")
        cluster.network.heal()
        await asyncio.sleep(5)
        watch.look(metadata, list)
        assert (told.readiness, watch.reason) == (2, "")

    run_cluster(scenario, tmp_path)

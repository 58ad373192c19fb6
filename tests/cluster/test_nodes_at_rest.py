"""Whole nodes whose partitions are at rest: what that costs, and how they go on."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pixy.multiraft.driver import Driver
from pixy.multiraft.outbox import Outbox
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP
from pixy.raft import RaftNode
from tests.cluster.node_clusters import ClusterNode, NodeCluster, leaders, run_cluster

PARTITIONS = 6
REST_S = 8.0
"""More than partitions take to come to rest."""
ELECTED_S = 3.0
"""Two election timeouts, and the time that a silent leader's followers are patient before."""


def driver_of(node: ClusterNode) -> Driver:
    assert node.node._log is not None
    return node.node._log.driver


def resting(*nodes: ClusterNode) -> list[int]:
    return [len(driver_of(node).rest) for node in nodes]


async def at_rest(cluster: NodeCluster, *, settled: bool = True) -> None:
    await cluster[1].backend.create_topic("topic", PARTITIONS)
    await asyncio.sleep(REST_S)
    assert resting(*cluster.nodes.values()) == [PARTITIONS] * 3
    if settled:
        assert all(len(each) == 1 and 0 not in each for each in leaders([*cluster.nodes.values()]))


async def check_appends(*nodes: ClusterNode) -> None:
    """Each partition takes a record at each node, and each node serves it."""
    for node in nodes:
        answers = [node.append_nowait(b"%d" % node.number, partition=each) for each in range(PARTITIONS)]
        await asyncio.gather(*answers)
    for each in range(PARTITIONS):
        expected = [b"%d" % node.number for node in nodes]
        for node in nodes:
            assert await node.values(partition=each) == expected


@pytest.mark.slow
def test_partitions_at_rest_cost_neither_messages_nor_ticks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counter[str]()
    tick, post = RaftNode.tick, Outbox.post

    def spy_on_tick(self: RaftNode) -> bool:
        counts["ticks"] += 1
        return tick(self)

    def spy_on_post(self: Outbox, raft_group: int, messages: Any) -> None:
        counts["messages"] += len(messages) * (raft_group >= FIRST_PARTITION_GROUP)
        post(self, raft_group, messages)

    async def scenario(cluster: NodeCluster) -> None:
        await at_rest(cluster)
        state_groups = {len(driver_of(node).groups) - PARTITIONS for node in cluster.nodes.values()}
        monkeypatch.setattr(RaftNode, "tick", spy_on_tick)
        monkeypatch.setattr(Outbox, "post", spy_on_post)
        await asyncio.sleep(10.0)
        assert counts["messages"] == 0
        assert counts["ticks"] <= 3 * 101 * max(state_groups)
        assert resting(*cluster.nodes.values()) == [PARTITIONS] * 3

    run_cluster(scenario, tmp_path)


@pytest.mark.long
def test_a_first_append_to_each_partition_at_rest_is_written(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        for _ in range(2):
            await cluster[1].backend.create_topic("topic", PARTITIONS)
            await asyncio.sleep(REST_S)
            assert resting(*cluster.nodes.values()) == [PARTITIONS] * 3
            began = asyncio.get_running_loop().time()
            await check_appends(*cluster.nodes.values())
            assert asyncio.get_running_loop().time() - began < 1.0
            await asyncio.sleep(REST_S)
            assert resting(*cluster.nodes.values()) == [PARTITIONS] * 3
            await cluster[1].backend.delete_topic("topic")

    run_cluster(scenario, tmp_path)


async def kill(cluster: NodeCluster) -> None:
    await cluster[1].kill()


async def cut_off(cluster: NodeCluster) -> None:
    cluster.split(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "within_s"), [(kill, 1.0), pytest.param(cut_off, ELECTED_S, marks=pytest.mark.long)]
)
def test_partitions_at_rest_get_other_leaders(
    tmp_path: Path, fails: Callable[[NodeCluster], Any], within_s: float
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await at_rest(cluster)
        gone, others = cluster[1].id, [cluster[2], cluster[3]]
        await fails(cluster)
        await asyncio.sleep(within_s)
        assert all(len(each) == 1 and not each & {0, gone} for each in leaders(others)), leaders(others)
        await check_appends(*others)
        cluster.network.heal()
        if fails is kill:
            await cluster[1].start()
        await asyncio.sleep(3 * REST_S)
        assert resting(*cluster.nodes.values()) == [PARTITIONS] * 3, "and they rest again"
        assert await cluster[1].values(partition=5) == [b"2", b"3"]

    run_cluster(scenario, tmp_path)


@pytest.mark.long
def test_a_follower_that_starts_again_gets_what_it_lacks(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await at_rest(cluster)
        await cluster[3].kill()
        await check_appends(cluster[1], cluster[2])
        await cluster[3].start()
        await asyncio.sleep(3 * REST_S)
        assert resting(*cluster.nodes.values()) == [PARTITIONS] * 3
        assert await cluster[3].values(partition=2) == [b"1", b"2"]

    run_cluster(scenario, tmp_path)


@pytest.mark.long
def test_partitions_go_on_while_two_nodes_do_not_reach_each_other(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await at_rest(cluster)
        cluster.network.split([cluster[1].host], [cluster[2].host])
        await asyncio.sleep(REST_S)
        assert all(len(each) == 1 and 0 not in each for each in leaders([*cluster.nodes.values()]))
        await check_appends(*cluster.nodes.values())
        cluster.network.heal()
        await asyncio.sleep(2 * REST_S)
        assert resting(*cluster.nodes.values()) == [PARTITIONS] * 3

    run_cluster(scenario, tmp_path)

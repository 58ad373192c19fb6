"""Moves that a client asks any node for, in clusters with virtual time."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from pixy.cluster import CancelPlan, ClusterStatus, DrainPlan, MovePlan, MoveRequest, RebalancePlan
from pixy.cluster.state import MOVES_LEVEL, Topic
from pixy.cluster.status import MoveStatus
from pixy.errors import FailedPrecondition
from pixy.records import TopicPartition
from tests.cluster.moving import set_level, until_moved
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)


def topic(node: ClusterNode) -> Topic:
    return node.node.metadata.topics["topic"]


async def four(cluster: NodeCluster, partitions: int = 1) -> None:
    """Three nodes with a topic, and a fourth one that has nothing of it."""
    await cluster[1].backend.create_topic("topic", partitions)
    node = await cluster.add()
    await until(lambda: all(node.id in each.node.metadata.started for each in cluster.nodes.values()))


async def begin(node: ClusterNode, request: MoveRequest) -> list[str]:
    """Plan at a node, and begin what it says; returns what was refused."""
    moves = (await node.backend.plan_moves(request)).moves
    assert moves
    return [*await node.backend.begin_moves(moves[0].reason, [each.message() for each in moves])]


@pytest.mark.parametrize("asked", [1, 2, 3, 4])
def test_any_node_moves_a_replica(tmp_path: Path, asked: int) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await four(cluster)
        for number in range(50):
            await cluster[1].append(b"%d" % number)
        replicas, spare = topic(cluster[asked]).replicas[0], cluster[4].id
        assert await begin(cluster[asked], MovePlan(TOPIC, replicas[0], spare)) == []
        await until_moved(list(cluster.nodes.values()), (spare, *replicas[1:]))
        assert await cluster[4].values() == [b"%d" % number for number in range(50)]

    run_cluster(scenario, tmp_path)


def test_a_plan_is_refused_once_the_partition_has_moved(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await four(cluster)
        first, second, third = topic(cluster[1]).replicas[0]
        old = (await cluster[1].backend.plan_moves(MovePlan(TOPIC, third, cluster[4].id))).moves
        await begin(cluster[2], MovePlan(TOPIC, third, cluster[4].id))
        await until_moved(list(cluster.nodes.values()), (first, second, cluster[4].id))
        (refused,) = await cluster[1].backend.begin_moves(old[0].reason, [each.message() for each in old])
        assert "meanwhile" in refused
        assert topic(cluster[1]).moves == {}

    run_cluster(scenario, tmp_path)


def test_a_move_to_a_node_that_is_down_waits_and_can_be_taken_back(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await four(cluster)
        await cluster[1].append(b"before")
        replicas = topic(cluster[1]).replicas[0]
        moves = (await cluster[1].backend.plan_moves(MovePlan(TOPIC, replicas[2], cluster[4].id))).moves
        await cluster[4].kill()
        await cluster[1].backend.begin_moves(moves[0].reason, [each.message() for each in moves])

        async def status() -> ClusterStatus:
            return await cluster[2].backend.cluster_status()

        await until(lambda: all(topic(cluster[number]).moves for number in (2, 3)))
        assert [(each.name, each.target) for each in (await status()).moves] == [
            ("topic-0", (*replicas[:2], cluster[4].id))
        ]
        assert await begin(cluster[3], CancelPlan()) == []
        await until(lambda: not any(topic(cluster[number]).moves for number in (1, 2, 3)))
        assert topic(cluster[1]).replicas[0] == replicas
        await cluster[1].append(b"after")
        assert (await status()).moves == ()

    run_cluster(scenario, tmp_path)


def test_a_drained_node_gives_its_replicas_away_and_gets_some_again(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await four(cluster, 3)
        goes, others = cluster[2].id, {cluster[number].id for number in (1, 3, 4)}
        assert len((await cluster[3].backend.plan_moves(DrainPlan(goes))).moves) == 3
        await cluster[3].backend.drain_node(goes, draining=True)
        await until(lambda: all({*each} == others for each in topic(cluster[1]).replicas))
        status = await cluster[1].backend.cluster_status()
        drained = status.node(goes)
        assert drained is not None
        assert (drained.draining, drained.replicas, drained.kept) == (True, 0, 0)
        assert (await cluster[1].backend.plan_moves(RebalancePlan())).moves == []
        await cluster[1].backend.drain_node(goes, draining=False)
        await begin(cluster[1], RebalancePlan())
        await until(lambda: not topic(cluster[1]).moves)
        assert any(goes in each for each in topic(cluster[1]).replicas)

    run_cluster(scenario, tmp_path)


def test_a_drained_node_keeps_what_no_other_node_can_take(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 2)
        await cluster[1].backend.drain_node(2, draining=True)
        await until(lambda: cluster[3].node.metadata.nodes[2].draining)
        (kept,) = [each.kept for each in (await cluster[3].backend.cluster_status()).nodes if each.draining]
        assert kept == 2
        plan = await cluster[1].backend.plan_moves(DrainPlan(2))
        assert (plan.moves, len(plan.left_out)) == ([], 1)

    run_cluster(scenario, tmp_path)


def test_nothing_is_planned_or_drained_while_a_node_would_not_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_level(monkeypatch, MOVES_LEVEL - 1)

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        needs = f"that needs feature level {MOVES_LEVEL}, which a cluster has once every node"
        with pytest.raises(FailedPrecondition, match=needs):
            await cluster[1].backend.plan_moves(RebalancePlan())
        with pytest.raises(FailedPrecondition, match=needs):
            await cluster[2].backend.drain_node(1, draining=True)
        assert not (await cluster[1].backend.cluster_status()).can_move

    run_cluster(scenario, tmp_path)


def test_more_replicas_come_when_the_replication_is_altered(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1, {"replication": "1"})
        await cluster[1].append(b"x")
        await cluster[2].backend.alter_topic("topic", config={"replication": "3"})
        await until(lambda: len(topic(cluster[1]).replicas[0]) == 3)
        await cluster[3].backend.alter_topic("topic", config={"replication": "1"})
        await until(lambda: len(topic(cluster[1]).replicas[0]) == 1)

    run_cluster(scenario, tmp_path)


def test_the_status_says_how_far_a_copy_is(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await four(cluster)
        for _ in range(20):
            await cluster[1].append(Random(1).randbytes(200_000))
        replicas, spare = topic(cluster[1]).replicas[0], cluster[4]
        for number in (1, 2, 3):
            cluster.network.way(cluster[number].host, spare.host).delays_s = (0.2, 0.2)

        async def move(accept: Callable[[MoveStatus], bool]) -> MoveStatus:
            while True:
                moves = (await cluster[2].backend.cluster_status()).moves
                if moves and accept(moves[0]):
                    return moves[0]
                await asyncio.sleep(0.05)

        await begin(cluster[1], MovePlan(TOPIC, replicas[2], spare.id))
        (copy,) = (await move(lambda of: bool(of.copies and of.copies[0].copied_bytes))).copies
        assert (copy.node_id, copy.waits) == (spare.id, "")
        assert 0 < copy.copied_bytes < copy.total_bytes
        assert copy.total_bytes > 4_000_000
        assert copy.bytes_per_second > 0
        await until_moved([cluster[1], spare], (*replicas[:2], spare.id))

    run_cluster(scenario, tmp_path)

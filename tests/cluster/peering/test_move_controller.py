"""Moves that a cluster makes by itself, as metadata has them."""

import asyncio
from pathlib import Path

import pytest

from pixy.cluster.peering.move_controller import PATIENCE_S
from pixy.cluster.state import MOVES_LEVEL, Move
from pixy.proto.state_pb2 import MoveReason
from tests.cluster.moving import set_level
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

RAISE, REPLACE = MoveReason.MOVE_REASON_RAISE, MoveReason.MOVE_REASON_REPLACE


def moves(node: ClusterNode) -> dict[int, Move]:
    return dict(node.node.metadata.topics["topic"].moves)


async def passes(cluster: NodeCluster, seconds: float) -> None:
    """Wait for some time of the cluster."""
    await asyncio.sleep(seconds)


async def joined(cluster: NodeCluster) -> ClusterNode:
    """A node that has joined, and has started for all."""
    node = await cluster.add()
    await until(lambda: all(node.id in each.node.metadata.started for each in cluster.nodes.values()))
    return node


def test_a_node_that_joins_gets_replicas_when_it_has_been_there_for_a_while(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 2)
        await passes(cluster, PATIENCE_S)
        await joined(cluster)
        await passes(cluster, PATIENCE_S - 10)
        assert moves(cluster[1]) == {}
        await until(lambda: moves(cluster[1]))
        assert {(move.reason, *sorted(move.target)) for move in moves(cluster[1]).values()} == {(RAISE, 1, 2)}

    run_cluster(scenario, tmp_path, 1)


def test_nothing_moves_by_itself_until_the_last_node_of_an_upgrade_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_level(monkeypatch, MOVES_LEVEL - 1)

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 2)
        other = await joined(cluster)
        set_level(monkeypatch, MOVES_LEVEL)
        await cluster[1].stop()
        await cluster[1].start()
        await passes(cluster, 3 * PATIENCE_S)
        assert moves(cluster[1]) == {}
        await other.stop()
        await other.start()
        await until(
            lambda: all({*each} == {1, 2} for each in cluster[1].node.metadata.topics["topic"].replicas)
        )

    run_cluster(scenario, tmp_path, 1)


def test_a_node_that_is_away_for_long_is_replaced(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        cluster.replace_after_s = 240.0
        await cluster.start()
        await cluster[1].backend.create_topic("topic", 1)
        spare = await joined(cluster)
        gone = cluster.by_id(3)
        await gone.kill()
        await passes(cluster, 200)
        assert moves(cluster[1]) == {}
        await until(lambda: moves(cluster[1]))
        assert moves(cluster[1])[0].reason == REPLACE
        assert {*moves(cluster[1])[0].target} == {1, 2, spare.id}

    run_cluster(scenario, tmp_path, starts=False)

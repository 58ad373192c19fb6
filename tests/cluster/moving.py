"""Moves of partitions in clusters of tests."""

from collections.abc import Sequence

import pytest

from pixy.cluster.peering import cluster_search, node_peers
from pixy.cluster.state import partition_move
from pixy.proto.state_pb2 import MoveReason
from tests.cluster.node_clusters import ClusterNode
from tests.fakes.waiting import until


def set_level(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    """Have nodes that start from here on say that they have a feature level."""
    for module in (cluster_search, node_peers):
        monkeypatch.setattr(module, "FEATURE_LEVEL", level)


async def move_as_seen(
    node: ClusterNode, target: Sequence[int], topic: str = "topic", partition: int = 0
) -> Sequence[str]:
    """As `begin_move`; returns the reason if the partition is not as this node sees it."""
    move = partition_move(node.node.metadata.topics[topic], partition, target)
    return await node.node.commands.begin_moves(MoveReason.MOVE_REASON_MOVE, [move])


async def begin_move(
    node: ClusterNode, target: Sequence[int], topic: str = "topic", partition: int = 0
) -> None:
    """Have a partition move, as a node sees it."""
    assert not await move_as_seen(node, target, topic, partition)


async def until_moved(
    nodes: Sequence[ClusterNode], replicas: Sequence[int], topic: str = "topic", partition: int = 0
) -> None:
    """Wait until all of these nodes know that a move has ended at these replicas."""

    def have_ended() -> bool:
        topics = [node.node.metadata.topics[topic] for node in nodes]
        return all(not each.moves and each.replicas[partition] == tuple(replicas) for each in topics)

    await until(have_ended)

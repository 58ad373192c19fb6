"""Memory of consumer groups at rest, at each of three nodes."""

import asyncio
import gc
import tracemalloc
from pathlib import Path

import pytest

from pixy.config import ConsumerConfig
from pixy.consume import Consumers, Offer, Timers
from pixy.errors import PixyError
from tests.cluster.node_clusters import NodeCluster, run_cluster

pytestmark = pytest.mark.long

GROUPS = 60
BYTES_MAX = 20_000
"""Of a group and node."""


def consumers_of(cluster: NodeCluster, polls_s: float) -> list[Consumers]:
    """Consumers at all nodes, whose requests wait for so long."""
    options = ConsumerConfig(long_polling_timeout=polls_s, subscription_timeout=3600.0)

    def missing(topic: str, _: object) -> None:
        raise AssertionError(f"{topic} is missing")

    return [
        Consumers(
            node.backend,
            options,
            f"client-{node.number}",
            Timers(node.clock),
            on_missing=missing,
            on_fault=node.faults.append,
        )
        for node in cluster.nodes.values()
    ]


def ignore(_: Offer | None, __: PixyError | None) -> None:
    """An answer without a record."""


async def subscribe(everywhere: list[Consumers], groups: list[str]) -> None:
    """Ask for a record at each node, and wait until nothing moves."""
    for group in groups:
        for consumers in everywhere:
            consumers.consume(group, "topic", ignore)
    await asyncio.sleep(30)
    gc.collect()


@pytest.mark.parametrize("polls_s", [3.0], ids=["lately"])
def test_a_group_at_rest_takes_little_memory_at_each_node(polls_s: float, tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        everywhere = consumers_of(cluster, polls_s)
        await subscribe(everywhere, ["first"])
        tracemalloc.start()
        await subscribe(everywhere, [f"group-{number}" for number in range(GROUPS)])
        used = tracemalloc.get_traced_memory()[0] / GROUPS / len(everywhere)
        tracemalloc.stop()
        assert [each.counts()["subscriptions"] for each in everywhere] == [1 + GROUPS] * 3
        assert used <= BYTES_MAX
        await asyncio.gather(*(each.drain(1) for each in everywhere))

    run_cluster(scenario, tmp_path)

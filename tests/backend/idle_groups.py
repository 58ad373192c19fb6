"""Memory of consumer groups at rest, at each of three nodes in one process."""

import asyncio
import gc
import tracemalloc
from pathlib import Path

from pixy.config import ConsumerConfig
from pixy.consume import ConsumeRequest, Consumers, Offer, Timers
from pixy.errors import PixyError
from tests.cluster.node_clusters import NodeCluster, run_cluster


def bytes_of_idle_group(directory: Path, polls_s: float, groups: int, partitions: int = 1) -> float:
    """Python's memory of a consumer group of a topic, for each of three nodes at which a consumer
    has asked for a record and waited for so long.

    Entries of the log do not count: those in memory have a bound of their own.
    """
    found = []

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", partitions)
        for node in cluster.nodes.values():
            node.node._log.driver._cache._limit = 0
        everywhere = _consumers(cluster, polls_s)
        await _subscribe(everywhere, ["first"])
        tracemalloc.start()
        await _subscribe(everywhere, [f"group-{number}" for number in range(groups)])
        found.append(tracemalloc.get_traced_memory()[0] / groups / len(everywhere))
        tracemalloc.stop()
        assert [each.counts()["subscriptions"] for each in everywhere] == [1 + groups] * 3
        await asyncio.gather(*(each.drain(1) for each in everywhere))

    run_cluster(scenario, directory)
    return found[0]


def _consumers(cluster: NodeCluster, polls_s: float) -> list[Consumers]:
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


def _ignore(_: Offer | None, __: PixyError | None) -> None:
    """An answer without a record."""


async def _subscribe(everywhere: list[Consumers], groups: list[str]) -> None:
    """Ask for a record at each node, and wait until nothing moves."""
    for group in groups:
        for consumers in everywhere:
            consumers.consume(ConsumeRequest(group, "topic"), _ignore)
    await asyncio.sleep(30)
    gc.collect()

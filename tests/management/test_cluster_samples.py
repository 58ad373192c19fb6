"""Samples of a cluster: the same at every node, and gathered in small pieces."""

import asyncio
import gc
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from pixy.backend import Backend, OffsetCommit, TopicPartition
from pixy.clock import Clock, SystemClock
from pixy.cluster import Node
from pixy.config import ManagementConfig, ProxyConfig
from pixy.errors import Unavailable
from pixy.management.cluster_samples import ClusterParts, ClusterSamples
from pixy.metrics import Exposition, Format, Registry
from pixy.proxy import Proxy
from tests.cluster.node_clusters import NodeCluster, run_cluster
from tests.fakes.backend import FakeBackend
from tests.fakes.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

Values = Mapping[tuple[str, ...], float]

SAME_EVERYWHERE = (
    "pixy_group_lag_records",
    "kafka_consumergroup_lag",
    "kafka_consumergroup_current_offset",
    "kafka_topic_partition_current_offset",
    "kafka_topic_partition_oldest_offset",
    "kafka_topic_partition_leader",
    "kafka_topic_partition_replicas",
    "kafka_topic_partitions",
    "kafka_brokers",
    "pixy_node_up",
    "pixy_node_info",
    "pixy_raft_groups",
    "pixy_raft_groups_led",
    "pixy_raft_groups_without_leader",
    "pixy_raft_term",
    "pixy_raft_learners",
    "pixy_node_starts",
    "pixy_node_draining",
    "pixy_node_replicas",
    "pixy_node_kept_replicas",
    "pixy_moves_copied_bytes",
    "pixy_moves_size_bytes",
    "pixy_replicas_damaged",
    "pixy_under_replicated_topics",
    "pixy_cut_links",
)


def fail(error: BaseException) -> None:
    raise AssertionError from error


def samples_of(
    backend: Backend, clock: Clock, node: Node | None = None, options: ManagementConfig | None = None
) -> ClusterSamples:
    proxy = Proxy("c", ProxyConfig(), backend, client_id="me", clock=clock, rng=Random(1), on_fault=fail)
    parts = ClusterParts("c", proxy, backend, node, lambda: True, lambda: True)
    return ClusterSamples(parts, options or ManagementConfig(), PATIENCE_S)


async def scraped(samples: ClusterSamples) -> dict[str, Values]:
    registry = Registry()
    await samples.add(registry)
    return {
        family.name: {
            sample.labels: sample.value for sample in found if isinstance(sample.value, float | int)
        }
        for family, found in registry
    }


def test_the_state_of_the_cluster_and_all_lags_are_the_same_at_every_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 5)
        for partition in range(5):
            for _ in range(partition + 1):
                await cluster[1].append(b"x", partition=partition)
        positions = {TopicPartition("topic", partition): OffsetCommit(1) for partition in range(5)}
        await cluster[2].backend.commit_offsets("nobody", positions)
        found = []
        for node in cluster.nodes.values():
            # Until it has heard of all that: it is behind by some milliseconds.
            expected = {("c", "nobody", "topic"): 0 + 1 + 2 + 3 + 4}
            async with asyncio.timeout(60):
                while True:
                    each = await scraped(samples_of(node.backend, node.clock, node.node))
                    led = sum(each["pixy_raft_groups_led"].values())
                    if each["pixy_group_lag_records"] == expected and led == each["pixy_raft_groups"]["c",]:
                        break
                    await asyncio.sleep(0.1)
            found.append({name: each[name] for name in SAME_EVERYWHERE})
        assert len(found) == 4
        for each in found[1:]:
            assert each == found[0]
        ends = found[0]["kafka_topic_partition_current_offset"]
        assert ends == {("c", "topic", str(partition)): partition + 1 for partition in range(5)}
        # Each partition has three of the four nodes: no node has all of them.
        assert set(found[0]["kafka_topic_partition_replicas"].values()) == {3}

    run_cluster(scenario, tmp_path, 4)


async def test_a_part_that_cannot_be_had_is_left_out_and_counted() -> None:
    backend = FakeBackend(topics={"t": 1})
    await backend.start()
    samples = samples_of(backend, SystemClock())
    assert ("c", "t", "0") in (await scraped(samples))["kafka_topic_partition_current_offset"]
    backend.failures["visit_positions"] = Unavailable("nobody leads")
    again = samples_of(backend, SystemClock())
    found = await scraped(again)
    assert "kafka_topic_partition_current_offset" not in found
    assert found["pixy_scrape_failures_total"] == {("c",): 1}
    assert found["pixy_ready"] == {("c",): 1}


async def test_the_cluster_is_asked_once_for_scrapes_at_the_same_time() -> None:
    backend = FakeBackend(topics={"t": 1})
    await backend.start()
    samples = samples_of(backend, SystemClock())
    first, second = await asyncio.gather(scraped(samples), scraped(samples))
    assert first == second
    backend.create("u", 1)
    assert (await scraped(samples))["kafka_topic_partitions"] == {("c", "t"): 1}


async def test_ten_thousand_partitions_and_a_thousand_groups_never_hold_the_loop_for_long() -> None:
    """It is two milliseconds; the bound is generous, and in processor time, for a busy machine."""
    backend = FakeBackend(topics={f"t{at}": 100 for at in range(100)})
    await backend.start()
    for at in range(1000):
        topic = f"t{at % 100}"
        positions = {TopicPartition(topic, partition): OffsetCommit(0) for partition in range(10)}
        await backend.commit_offsets(f"g{at}", positions, set=True)
    samples = samples_of(backend, SystemClock())
    holds: list[float] = []

    async def watch() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            holds.append(time.thread_time() - before)

    # Not the time of a collection of all that the tests before have left.
    gc.collect()
    gc.freeze()
    try:
        watching = asyncio.create_task(watch())
        registry = Registry()
        await samples.add(registry)
        lines = 0
        for piece in Exposition(registry, Format.OPENMETRICS).pieces():
            lines += piece.count(b"\n")
            await asyncio.sleep(0)
        watching.cancel()
    finally:
        gc.unfreeze()
    assert lines > 80_000
    assert max(holds) < 0.04

"""Samples of a cluster: the same at every node, and gathered in small pieces."""

import asyncio
import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pixy.backend import Backend, OffsetCommit, TopicPartition
from pixy.clock import Clock, SystemClock
from pixy.cluster import Node
from pixy.config import ManagementConfig, ProducerConfig, ProxyConfig
from pixy.daemon import _GC_THRESHOLDS
from pixy.errors import Internal, Unavailable
from pixy.management.cluster_samples import ClusterParts, ClusterSamples
from pixy.metrics import Exposition, Format, Registry, Sample
from pixy.proxy import Proxy
from tests.cluster.node_clusters import NodeCluster, run_cluster
from tests.fakes.backend import FakeBackend
from tests.fakes.node import open_embedded
from tests.fakes.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow

UNDIVIDED = 4
"""A slow machine may hold the loop for this many times what it takes for `undivided_s` then."""
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


def proxy_of(backend: Backend, clock: Clock, config: ProxyConfig | None = None) -> Proxy:
    config = config or ProxyConfig()
    return Proxy("c", config, backend, client_id="me", clock=clock, rng=Random(1), on_fault=fail)


def samples_of(
    backend: Backend,
    clock: Clock,
    node: Node | None = None,
    options: ManagementConfig | None = None,
    proxy: Proxy | None = None,
) -> ClusterSamples:
    proxy = proxy or proxy_of(backend, clock)
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


async def test_records_that_are_not_durable_are_buffered_and_those_that_cannot_be_written_are_lost() -> None:
    backend = FakeBackend(topics={"t": 1})
    await backend.start()
    config = replace(ProxyConfig(), producer=ProducerConfig(channel_buffer_size=2))
    proxy = proxy_of(backend, SystemClock(), config)
    await proxy.start()
    samples = samples_of(backend, SystemClock(), proxy=proxy)
    names = ("buffered_records", "buffered_bytes", "waiting_producers", "lost_records_total")
    answers: list[int] = []

    async def numbers() -> list[float]:
        found = await scraped(samples)
        return [found[f"pixy_{name}"]["c",] for name in names]

    def answered(waiters: Sequence[object], *_: object) -> None:
        answers.extend([0] * len(waiters))

    backend.hold_appends()
    for _ in range(5):
        proxy.produce("t", b"k", b"value", (), answered)
    assert await numbers() == [2, 2 * len(b"kvalue"), 3, 0]
    backend.release_appends()
    await until(lambda: len(answers) == 5)
    assert await numbers() == [0, 0, 0, 0]
    backend.fail_appends(Internal("the disk is gone"))
    proxy.produce("t", b"k", b"value", (), answered, sync=False)

    async def is_lost() -> bool:
        return await numbers() == [0, 0, 0, 1]

    await until(is_lost)
    await proxy.stop()


async def test_series_by_partition_are_limited() -> None:
    backend = FakeBackend(topics={"t": 3, "u": 3})
    await backend.start()
    for group in ("g", "h"):
        positions = {TopicPartition("t", partition): OffsetCommit(0) for partition in range(3)}
        await backend.commit_offsets(group, positions, set=True)
    options = replace(ManagementConfig(), max_partitions=4)
    found = await scraped(samples_of(backend, SystemClock(), options=options))
    assert len(found["kafka_topic_partition_current_offset"]) == 4
    assert len(found["kafka_topic_partition_leader"]) == 4
    # Those of the second group do not fit.
    assert len(found["kafka_consumergroup_lag"]) == 3
    assert len(found["kafka_consumergroup_current_offset"]) == 3
    # Sums have no partition in their labels.
    assert set(found["pixy_group_lag_records"]) == {("c", "g", "t"), ("c", "h", "t")}
    assert sum(found["kafka_topic_partitions"].values()) == 6


def undivided_s() -> float:
    """Processor time of work that does not divide: the samples of a few hundred partitions."""
    began = time.thread_time()
    samples = [Sample(("cluster", "group", "topic", str(at)), at) for at in range(1000)]
    took = time.thread_time() - began
    assert len(samples) == 1000
    return took


async def longest_hold_s(samples: ClusterSamples) -> float:
    """Most processor time of one iteration of the loop while a scrape is made, and written."""
    holds: list[float] = []

    async def watch() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            holds.append(time.thread_time() - before)

    watching = asyncio.create_task(watch())
    registry = Registry()
    await samples.add(registry)
    lines = 0
    for piece in Exposition(registry, Format.OPENMETRICS).pieces():
        lines += piece.count(b"\n")
        await asyncio.sleep(0)
    watching.cancel()
    assert lines > 80_000
    return max(holds)


async def test_ten_thousand_partitions_and_a_thousand_groups_never_hold_the_loop_for_long(
    tmp_path: Path,
) -> None:
    """It is two milliseconds, on a machine without other work, with the garbage collection of a
    daemon. A busy one makes any iteration long, but not some of them each time.
    """
    thresholds = gc.get_threshold()
    async with open_embedded(tmp_path) as backend:
        for at in range(100):
            await backend.create_topic(f"t{at}", 100)
        commits = (
            backend.commit_offsets(
                f"g{at}",
                {TopicPartition(f"t{at % 100}", partition): OffsetCommit(0) for partition in range(10)},
                set=True,
            )
            for at in range(1000)
        )
        await asyncio.gather(*commits)
        try:
            gc.set_threshold(*_GC_THRESHOLDS)
            tries = []
            for _ in range(4):
                # Not the time of a collection of all that was made before.
                gc.collect()
                gc.freeze()
                before_s = undivided_s()
                longest_s = await longest_hold_s(samples_of(backend, SystemClock(), backend._node))
                tries.append(longest_s / max(0.002, UNDIVIDED * max(before_s, undivided_s())))
                if tries[-1] <= 1:
                    break
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
    assert min(tries) <= 1, tries

"""Samples of one cluster: what this process counts, and what the cluster tells.

What has to be asked for, by calls or by a walk over thousands of partitions, is gathered before the
text is made, in steps, at most once in two seconds for all scrapes. A part that cannot be had in
time is left out and counted; the others are there.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import structlog

from pixy.aio.steps import in_steps
from pixy.backend import Backend, OffsetRange, TopicDescription
from pixy.cluster import ClusterStatus, Node, problems
from pixy.config import ManagementConfig
from pixy.errors import PixyError
from pixy.management.peer_samples import add_transfers
from pixy.management.status_samples import status_samples
from pixy.metrics import OTHER, Registry, Sample, TopCounts, largest
from pixy.proxy import Proxy

log = structlog.get_logger(__name__)

_FRESH_S = 2.0
_PARTITIONS_AT_ONCE = 200
_FIRST = 1e18
"""Weight of a name that has series for its counters: it has all others, too."""

K = TypeVar("K", bound=Hashable)
Samples = dict[str, list[Sample]]
Pair = tuple[str, str]
"""A consumer group and a topic."""


class ClusterParts(NamedTuple):
    """A cluster of the daemon.

    Attributes:
        node: of an embedded cluster, else None.
        has_recovered: tells whether it can be asked.
        is_ready: tells whether it is ready.
    """

    name: str
    proxy: Proxy
    backend: Backend
    node: Node | None
    has_recovered: Callable[[], bool]
    is_ready: Callable[[], bool]


class ClusterSamples:
    """Samples of one cluster.

    Args:
        parts: the cluster.
        options: how many series there may be.
        timeout_s: longest wait for the answers to a part; Prometheus waits ten seconds for all.
    """

    def __init__(self, parts: ClusterParts, options: ManagementConfig, timeout_s: float = 5.0) -> None:
        self._cluster, self._proxy, self._backend, self._node, self._has_recovered, self._is_ready = parts
        self._options = options
        self._timeout_s = timeout_s
        self._produced = TopCounts[str](options.max_topics, 2)
        self._consumed = TopCounts[Pair](options.max_groups, 5)
        self._gathered: Samples = {}
        self._gathered_at = float("-inf")
        self._failures = 0
        self._turn = asyncio.Lock()

    async def add(self, registry: Registry) -> None:
        """Add all samples; of a cluster that recovers, that it is not ready."""
        registry.number("pixy_ready", lambda: int(self._is_ready()), self._cluster)
        if not self._has_recovered():
            return
        loop = asyncio.get_running_loop()
        async with self._turn:
            if loop.time() - self._gathered_at >= _FRESH_S:
                before, self._gathered = self._gathered, await self._gather()
                self._gathered_at = loop.time()
                while before:
                    # One by one: each has thousands of objects.
                    before.popitem()
                    await asyncio.sleep(0)
        for name, samples in self._gathered.items():
            registry.add(name, lambda samples=samples: samples)  # type: ignore[misc]
        self._add_counts(registry)

    def _add_counts(self, registry: Registry) -> None:
        """Add the numbers that take no time to read."""
        cluster, proxy, counts = self._cluster, self._proxy, self._proxy.counts()
        for name, number in {
            "pixy_buffered_records": counts["buffered_messages"],
            "pixy_buffered_bytes": counts["buffered_bytes"],
            "pixy_waiting_producers": counts["waiting_messages"],
            "pixy_lost_records_total": proxy.lost,
            "pixy_scrape_failures_total": self._failures,
        }.items():
            registry.add(name, lambda number=number: (Sample((cluster,), number),))  # type: ignore[misc]
        registry.histogram("pixy_batch_bytes", proxy.sent_bytes, cluster)
        registry.histogram("pixy_ack_latency_seconds", proxy.consumers.ack_latency, cluster)
        log_counters = None if self._node is None else self._node.log_counters
        if log_counters is not None:
            registry.histogram("pixy_journal_sync_seconds", log_counters.sync_s, cluster)
            registry.histogram("pixy_raft_commit_seconds", log_counters.commit_s, cluster)
            for name, number in {
                "pixy_unwritten_bytes": log_counters.unwritten_bytes,
                "pixy_unapplied_bytes": log_counters.unapplied_bytes,
                "pixy_raft_leader_changes_total": log_counters.leader_changes,
            }.items():
                registry.add(name, lambda number=number: (Sample((cluster,), number),))  # type: ignore[misc]

        if self._node is not None:
            for what, transferred in self._node.transfers.items():
                add_transfers(registry, cluster, what, transferred)

    # --- gathering --------------------------------------------------------------------------------

    async def _gather(self) -> Samples:
        found: Samples = {}
        await self._part(self._count, found)
        await self._part(self._look_at_log, found)
        if self._node is not None:
            await self._part(self._look_at_nodes, found)
        else:
            found["pixy_problems"] = [Sample((self._cluster,), len(self._backend.troubles))]
        return found

    async def _part(self, gather: Callable[[Samples], Awaitable[None]], found: Samples) -> None:
        part: Samples = {}
        try:
            async with asyncio.timeout(self._timeout_s):
                await gather(part)
        except (PixyError, TimeoutError) as error:
            self._failures += 1
            log.debug("a part of the metrics cannot be had", cluster=self._cluster, error=str(error))
        found |= part

    async def _count(self, found: Samples) -> None:
        """Counts of this process by topic and group."""
        cluster = self._cluster
        produced = await self._proxy.produced()
        async for _ in in_steps(self._produced.look(produced)):
            pass
        topics = [*self._produced.series.items(), (OTHER, self._produced.other)]
        for at, name in enumerate(("pixy_produced_records_total", "pixy_produced_bytes_total")):
            found[name] = [
                Sample((cluster, topic), counts[at]) async for topic, counts in in_steps(topics) if counts[0]
            ]
        consumers = self._proxy.consumers
        consumed = {
            pair: (each.offered, each.redelivered, each.acked, each.expired - each.dropped, each.dropped)
            for pair, each in (await consumers.counters_by_topic()).items()
        }
        async for _ in in_steps(self._consumed.look(consumed)):
            pass
        pairs = [*self._consumed.series.items(), ((OTHER, OTHER), self._consumed.other)]
        offered = found["pixy_offered_records_total"] = []
        redelivered = found["pixy_redelivered_records_total"] = []
        acks = found["pixy_acks_total"] = []
        async for (group, topic), counts in in_steps(pairs):
            if not any(counts):
                continue
            labels = (cluster, group, topic)
            offered.append(Sample(labels, counts[0]))
            redelivered.append(Sample(labels, counts[1]))
            for outcome, count in zip(("ack", "expired", "dead"), counts[2:], strict=True):
                acks.append(Sample((*labels, outcome), count))
        queues = await consumers.queues()
        for at, name in enumerate(("pixy_unacked_records", "pixy_waiting_consumers")):
            numbers = {pair: queue[at] for pair, queue in queues.items()}
            found[name] = await self._by_pair(numbers)

    async def _by_pair(self, numbers: Mapping[Pair, int]) -> list[Sample]:
        """Samples of the pairs that have series, and of all others together."""
        chosen = set(await self._chosen_pairs(numbers))
        others = 0
        samples = []
        async for pair, number in in_steps(numbers.items()):
            if pair in chosen:
                samples.append(Sample((self._cluster, *pair), number))
            else:
                others += number
        if len(chosen) < len(numbers):
            samples.append(Sample((self._cluster, OTHER, OTHER), others))
        return samples

    async def _chosen_pairs(self, numbers: Mapping[Pair, int]) -> list[Pair]:
        """Pairs with series: those that have counters of their own, then those with most."""
        own = self._consumed.series
        weights = ((number + (pair in own) * _FIRST, pair) for pair, number in numbers.items())
        return await _largest(weights, self._options.max_groups)

    async def _look_at_log(self, found: Samples) -> None:
        """Ends of partitions, and positions of consumer groups in them, with consumers or not."""
        topics = {each.name: each for each in await self._backend.list_topics()}
        ranges = await self._ranges(topics.values())
        lags, positions = await self._positions(ranges)
        found["pixy_group_lag_records"] = await self._by_pair(lags)
        own = self._produced.series
        weights = (
            (
                sum(each.end - each.begin for each in ranges.get(name, {}).values()) + (name in own) * _FIRST,
                name,
            )
            for name in topics
        )
        chosen = await _largest(weights, self._options.max_topics)
        if self._node is not None:
            found["pixy_log_bytes"] = await self._log_bytes(self._node, set(chosen))
        await self._add_partitions(found, [topics[name] for name in chosen], ranges)
        await self._add_positions(found, positions, ranges, set(chosen))

    async def _log_bytes(self, node: Node, topics: set[str]) -> list[Sample]:
        """Sizes of this node's logs, by topic, and of all other topics together."""
        sizes: Counter[str] = Counter()
        async for replica in in_steps(node.partitions):
            topic = replica.partition.topic
            sizes[topic if topic in topics else OTHER] += replica.log.segments_bytes
        return [Sample((self._cluster, topic), size) async for topic, size in in_steps(sizes.items())]

    async def _ranges(self, topics: Iterable[TopicDescription]) -> dict[str, Mapping[int, OffsetRange]]:
        """Begin and end of partitions, by topic; topics that do not answer are left out."""
        found: dict[str, Mapping[int, OffsetRange]] = {}
        for some in _together(topics):
            asked = (self._backend.log_ranges(name) for name in some)
            for name, ranges in zip(some, await asyncio.gather(*asked, return_exceptions=True), strict=True):
                if isinstance(ranges, PixyError):
                    self._failures += 1
                elif isinstance(ranges, BaseException):
                    raise ranges
                else:
                    found[name] = ranges
        return found

    async def _positions(
        self, ranges: Mapping[str, Mapping[int, OffsetRange]]
    ) -> tuple[dict[Pair, int], dict[Pair, Mapping[int, int]]]:
        """Lags, and committed offsets by partition of as many pairs as may have series."""
        lags: dict[Pair, int] = {}
        positions: dict[Pair, Mapping[int, int]] = {}
        left = self._options.max_partitions

        def visit(group: str, topic: str, offsets: Mapping[int, int]) -> None:
            nonlocal left
            known = ranges.get(topic)
            if known is None:
                return
            lags[group, topic] = sum(
                _lag(known[partition], offset) for partition, offset in offsets.items() if partition in known
            )
            if left >= len(offsets):
                left -= len(offsets)
                positions[group, topic] = offsets

        await self._backend.visit_positions(visit)
        return lags, positions

    async def _add_partitions(
        self,
        found: Samples,
        topics: Sequence[TopicDescription],
        ranges: Mapping[str, Mapping[int, OffsetRange]],
    ) -> None:
        begins, ends, leaders, replicas, in_sync, under = (
            found.setdefault(f"kafka_topic_partition_{name}", [])
            for name in (
                "oldest_offset",
                "current_offset",
                "leader",
                "replicas",
                "in_sync_replica",
                "under_replicated_partition",
            )
        )
        found["kafka_topic_partitions"] = [
            Sample((self._cluster, topic.name), len(topic.partitions)) for topic in topics
        ]
        partitions = ((topic.name, each) for topic in topics for each in topic.partitions)
        async for topic, each in in_steps(islice(partitions, self._options.max_partitions)):
            labels = (self._cluster, topic, str(each.partition))
            served = ranges.get(topic, {}).get(each.partition)
            if served is not None:
                begins.append(Sample(labels, served.begin))
                ends.append(Sample(labels, served.end))
            leaders.append(Sample(labels, each.leader))
            replicas.append(Sample(labels, len(each.replicas)))
            in_sync.append(Sample(labels, len(each.isr)))
            under.append(Sample(labels, int(len(each.isr) < len(each.replicas))))

    async def _add_positions(
        self,
        found: Samples,
        positions: Mapping[Pair, Mapping[int, int]],
        ranges: Mapping[str, Mapping[int, OffsetRange]],
        topics: set[str],
    ) -> None:
        shown = {
            (group, topic) for _, group, topic in (each.labels for each in found["pixy_group_lag_records"])
        }
        offsets = found["kafka_consumergroup_current_offset"] = []
        lags = found["kafka_consumergroup_lag"] = []
        parts = (
            (pair, partition, offset)
            for pair, of in positions.items()
            if pair in shown and pair[1] in topics
            for partition, offset in of.items()
        )
        async for (group, topic), partition, offset in in_steps(parts):
            served = ranges[topic].get(partition)
            if served is not None:
                labels = (self._cluster, group, topic, str(partition))
                offsets.append(Sample(labels, offset))
                lags.append(Sample(labels, _lag(served, offset)))

    async def _look_at_nodes(self, found: Samples) -> None:
        status: ClusterStatus = await self._backend.cluster_status()
        sentences = await asyncio.to_thread(problems, status)
        found["pixy_problems"] = [Sample((self._cluster,), len(sentences))]
        await status_samples(self._cluster, status, found)


def _together(topics: Iterable[TopicDescription]) -> Iterator[list[str]]:
    """Names of topics that are asked about at the same time, by the number of their partitions."""
    some: list[str] = []
    partitions = 0
    for topic in topics:
        some.append(topic.name)
        partitions += len(topic.partitions)
        if partitions >= _PARTITIONS_AT_ONCE:
            yield some
            some, partitions = [], 0
    yield some


def _lag(served: OffsetRange, offset: int) -> int:
    """Records from an offset on that are not removed."""
    return max(0, served.end - max(offset, served.begin))


async def _largest(weights: Iterable[tuple[float, K]], limit: int) -> list[K]:
    chosen: list[K] = []
    async for _ in in_steps(largest(weights, limit, chosen)):
        pass
    return chosen

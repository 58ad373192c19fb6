"""A proxy at a node that has not heard yet what another node has made of a topic."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pixy.backend import TopicPartition
from pixy.config import ConsumerConfig, ProxyConfig
from pixy.consume import ConsumeRequest, Offer
from pixy.errors import InvalidAck, PixyError, StaleTopicVersion, Unavailable, UnknownTopic
from pixy.proxy import (
    OffsetPosition,
    OffsetQuery,
    PartitionBatches,
    Proxy,
    Range,
    RangeState,
    TopicVersion,
)
from pixy.records import NewRecord, build_batch
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

BATCH = bytes(build_batch([NewRecord(b"k", b"v", (), 1)]))

Scenario = Callable[[Proxy, Proxy], Awaitable[None]]


def proxy_of(node: ClusterNode) -> Proxy:
    config = replace(ProxyConfig(), consumer=replace(ConsumerConfig(), long_polling_timeout=5.0))
    return Proxy(
        "default",
        config,
        node.backend,
        client_id=f"node-{node.number}",
        clock=node.clock,
        rng=Random(node.number),
        on_fault=node.faults.append,
    )


def run(directory: Path, scenario: Scenario) -> None:
    """Run a scenario with the proxy of the node where topics are changed, and that of a node which
    hears of each change half a second later. Both know topic "t" with one partition.
    """

    async def with_proxies(cluster: NodeCluster) -> None:
        controller = cluster.by_id(cluster[1].node.state_groups.metadata_replica.group.leader)
        behind = next(node for node in cluster.nodes.values() if node is not controller)
        proxies = proxy_of(controller), proxy_of(behind)
        await proxies[0].create_topic("t", 1, {})
        await asyncio.sleep(5)
        cluster.network.way(controller.host, behind.host).delays_s = (0.5, 0.5)
        await scenario(*proxies)
        for proxy in proxies:
            proxy.begin_drain()
            await proxy.drain(10.0)

    run_cluster(with_proxies, directory)


def partitions_at(proxy: Proxy) -> int:
    """Partitions of the topic as far as a node knows."""
    topic = proxy._backend.topic("t")
    return 0 if topic is None else len(topic.partitions)


@asynccontextmanager
async def altered(proxy: Proxy, count: int) -> AsyncIterator[None]:
    """The topic has more partitions at a node; others have not opened them, which the answer waits
    for.
    """
    altering = asyncio.create_task(proxy.alter_topic("t", count, {}))
    await until(lambda: partitions_at(proxy) == count)
    yield
    await altering


async def version_of(proxy: Proxy) -> TopicVersion:
    topic = await proxy.describe_topic("t")
    return TopicVersion("t", topic.version, topic.topic_id)


async def append(proxy: Proxy, version: TopicVersion, partition: int = 0) -> int:
    (appended,) = await proxy.log.append([PartitionBatches(TopicPartition("t", partition), BATCH)], [version])
    if appended.error is not None:
        raise appended.error
    return appended.base_offset


async def recreate(proxy: Proxy) -> None:
    await proxy.delete_topic("t", force=False)
    await proxy.create_topic("t", 1, {})


def test_an_append_for_a_version_that_is_new_here_is_accepted(tmp_path: Path) -> None:
    async def scenario(current: Proxy, behind: Proxy) -> None:
        old = await version_of(behind)
        async with altered(current, 2):
            assert partitions_at(behind) == 1
            version = await version_of(current)
            assert await append(behind, version, 1) == 0
        with pytest.raises(StaleTopicVersion, match="has version 2, the request was made for 1"):
            await append(behind, old)
        await recreate(current)
        assert await append(behind, await version_of(current)) == 0
        with pytest.raises(StaleTopicVersion, match="the topic was deleted"):
            await append(behind, version)

    run(tmp_path, scenario)


def test_an_append_to_a_topic_that_is_new_here_is_checked_too(tmp_path: Path) -> None:
    async def scenario(current: Proxy, behind: Proxy) -> None:
        old = await version_of(behind)
        await current.delete_topic("t", force=False)
        await asyncio.sleep(1)
        await current.create_topic("t", 1, {})
        with pytest.raises(StaleTopicVersion, match="the topic was deleted"):
            await append(behind, old)

    run(tmp_path, scenario)


async def ack(proxy: Proxy, partition: int) -> None:
    answer: asyncio.Future[PixyError | None] = asyncio.get_running_loop().create_future()
    proxy.ack("g", "t", partition, 0, answer.set_result)
    error = await answer
    if error is not None:
        raise error


async def consume(proxy: Proxy, partition: int) -> None:
    """Consume after an ack."""
    answer: asyncio.Future[PixyError | None] = asyncio.get_running_loop().create_future()

    def done(offer: Offer | None, error: PixyError | None) -> None:
        answer.set_result(error)
        if offer is not None:
            offer.delivered()

    proxy.consume(ConsumeRequest("g", "t", ack=(partition, 0)), done)
    error = await answer
    if error is not None:
        raise error


@pytest.mark.parametrize("acks", [ack, consume])
def test_an_ack_of_a_partition_that_is_new_here_counts(
    tmp_path: Path, acks: Callable[[Proxy, int], Awaitable[None]]
) -> None:
    async def scenario(current: Proxy, behind: Proxy) -> None:
        async with altered(current, 4):
            # Not described: other nodes would be asked which replicas are in sync.
            topic = current._backend.topic("t")
            assert topic is not None
            here = topic.partitions[0].leader
            added = next(each.partition for each in topic.partitions[1:] if each.replicas[0] == here)
            version = TopicVersion("t", topic.version, topic.topic_id)
            for offset in (0, 1):
                assert await append(current, version, added) == offset
            assert partitions_at(behind) == 1
            await acks(behind, added)
            with pytest.raises(InvalidAck, match="t has 0 to 3"):
                await acks(behind, 4)

    run(tmp_path, scenario)


def test_a_topic_that_is_gone_here_soon_is_unknown(tmp_path: Path) -> None:
    async def scenario(current: Proxy, behind: Proxy) -> None:
        await current.delete_topic("t", force=False)
        with pytest.raises(UnknownTopic):
            await behind.describe_topic("t")
        with pytest.raises(UnknownTopic):
            await behind.get_offsets("g", "t")

    run(tmp_path, scenario)


def test_partitions_that_are_new_here_are_described_and_have_offsets(tmp_path: Path) -> None:
    async def scenario(current: Proxy, behind: Proxy) -> None:
        for count in (2, 3, 4):
            async with altered(current, count):
                query = OffsetQuery(TopicPartition("t", count - 1), OffsetPosition.LATEST)
                assert partitions_at(behind) == count - 1
                if count == 2:
                    assert len((await behind.describe_topic("t")).partitions) == count
                elif count == 3:
                    assert await behind.log.list_offsets([query]) == [0]
                else:
                    assert len(await behind.get_offsets("g", "t")) == count

    run(tmp_path, scenario)


def test_a_range_of_a_topic_that_was_made_anew_is_read(tmp_path: Path) -> None:
    async def scenario(current: Proxy, behind: Proxy) -> None:
        old = await version_of(current)
        await recreate(current)
        version = await version_of(current)
        await append(current, version)
        for topic_id, state in (
            (version.topic_id, RangeState.END_OF_RANGE),
            (old.topic_id, RangeState.UNKNOWN_PARTITION),
        ):
            wanted = Range(TopicPartition("t", 0), 0, 1, topic_id)
            (reader,) = await behind.log.readers([wanted], max_bytes=1 << 20, max_wait=0)
            await reader.wait()
            assert (await reader.read()).state is state

    run(tmp_path, scenario)


async def produce(proxy: Proxy, key: bytes) -> int:
    """Produce a message; returns its partition."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(_: object, partition: int, __: int, error: PixyError | None) -> None:
        if error is None:
            answer.set_result(partition)
        else:
            answer.set_exception(error)

    proxy.produce("t", key, b"v", (), done)
    return await answer


@pytest.mark.parametrize("is_created", [True, False])
def test_a_message_for_a_partition_of_a_topic_that_is_replaced_is_to_be_sent_again(
    tmp_path: Path, is_created: bool
) -> None:
    """Its topic was deleted elsewhere, and perhaps created again with fewer partitions."""

    async def scenario(current: Proxy, behind: Proxy) -> None:
        keys = [b"%d" % number for number in range(20)]
        async with altered(current, 4):
            pass
        await asyncio.sleep(1)
        assert {await produce(behind, key) for key in keys} == {0, 1, 2, 3}
        await current.delete_topic("t", force=False)
        if is_created:
            await current.create_topic("t", 1, {})
        await asyncio.sleep(0)
        answers = await asyncio.gather(*(produce(behind, key) for key in keys), return_exceptions=True)
        errors = [each for each in answers if isinstance(each, BaseException)]
        assert errors
        assert {type(each) for each in errors} == {Unavailable}
        await asyncio.sleep(1)
        assert {await produce(behind, key) for key in keys} <= {0, 1, 2, 3}

    run(tmp_path, scenario)

"""Nodes of a cluster with different limits of messages: what one of them accepts, every one has."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pixy.backend import OffsetCommit, TopicPartition
from pixy.cluster.status.status_problems import problems
from pixy.errors import MessageTooLarge
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

MIB = 1 << 20
LARGE = bytes(17 * MIB)
"""More than a frame has by default."""


async def restart(node: ClusterNode, max_message_bytes: int) -> None:
    await node.stop()
    node.max_message_bytes = max_message_bytes
    await node.start()


def end(node: ClusterNode) -> int:
    """End of the partition in the replica of a node."""
    replica = node.node.partitions.get(TopicPartition("topic", 0))
    return 0 if replica is None else replica.log.end_offset


async def until_all_have(cluster: NodeCluster, offset: int) -> None:
    async with asyncio.timeout(20):
        await until(lambda: all(end(node) == offset for node in cluster.nodes.values()))


@pytest.mark.parametrize("raised", [[1], [2], [3], [1, 2]])
def test_a_batch_of_a_node_with_a_larger_limit_reaches_all(tmp_path: Path, raised: Sequence[int]) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        for number in raised:
            await restart(cluster[number], 32 * MIB)
        with capture_logs() as logs:
            async with asyncio.timeout(20):
                assert await cluster[raised[-1]].append(LARGE) == 0
            await until_all_have(cluster, 1)
        # Nobody has ended a connection because of it.
        assert [entry for entry in logs if "at most" in str(entry)] == []

    run_cluster(scenario, tmp_path)


def test_a_large_batch_reaches_a_node_that_was_away_when_all_have_a_lower_limit_again(
    tmp_path: Path,
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        for number in (1, 2, 3):
            await restart(cluster[number], 32 * MIB)
        await cluster[3].stop()
        assert await cluster[1].append(LARGE) == 0
        for number in (1, 2):
            cluster[number].max_message_bytes = 1_000_000
            await cluster[number].stop()
        cluster[3].max_message_bytes = 1_000_000
        await cluster.start()
        await until_all_have(cluster, 1)

    run_cluster(scenario, tmp_path)


def test_the_status_names_the_nodes_that_differ(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        for number in (1, 2, 3):
            await restart(cluster[number], 1_000_000)
        assert not problems(await cluster[1].node.status())
        await restart(cluster[2], 32 * MIB)
        different = cluster[2].id
        others = " and ".join(str(number) for number in (1, 2, 3) if number != different)

        async def differ() -> bool:
            return bool(problems(await cluster[1].node.status()))

        await until(differ)  # node 1 need not lead metadata
        (problem,) = problems(await cluster[1].node.status())
        assert problem.startswith(
            f"the nodes have different producer.max_message_bytes: 1000000 at nodes {others}, 33554432 at node {different}."
        )

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("count", [1, 3])
def test_a_command_that_is_too_large_is_an_error_of_its_call_at_every_node(
    tmp_path: Path, count: int
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        partitions = 9
        await cluster[1].backend.create_topic("topic", partitions)
        for node in cluster.nodes.values():
            await until(lambda node=node: node.backend.topic("topic") is not None)  # type: ignore[misc]
            offsets = {
                TopicPartition("topic", partition): OffsetCommit(0, "m" * 1_000_000)
                for partition in range(partitions)
            }
            with pytest.raises(MessageTooLarge, match=r"a command of \d+ bytes, at most 8388608 are allowed"):
                await node.backend.commit_offsets("group", offsets, set=True)
            one = TopicPartition("topic", 0)
            async with asyncio.timeout(5):
                await node.backend.commit_offsets("group", {one: OffsetCommit(node.number, "")}, set=True)
            assert (await node.backend.committed_offsets("group", "topic"))[0].offset == node.number

    run_cluster(scenario, tmp_path, count)


def test_an_entry_that_no_connection_carries_is_refused(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        for node in cluster.nodes.values():
            with pytest.raises(MessageTooLarge, match="an entry of"):
                await node.append(LARGE)
            assert await node.append(b"small") == node.number - 1

    run_cluster(scenario, tmp_path)

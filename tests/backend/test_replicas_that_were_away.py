"""Replicas of partitions that come back after the journals of the others have lost entries: with
all records they go on, whatever else they lack. Those without them are in `test_copied_replicas`;
here they wait, as nobody gives copies.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster import ClusterStatus, problems
from pixy.cluster.log.replica import PartitionReplica
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import CorruptData
from pixy.multiraft.raft_group import RaftGroup
from pixy.records import TopicPartition
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.conformance.staged import stage_values
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

FILE_BYTES = 4096
OPTIONS: dict[str, Any] = {
    "journal": JournalConfig(file_bytes=FILE_BYTES, retain_bytes=0),
    "storage": StorageConfig(reserve_bytes=0, checkpoint_entries=5),
}
QUIET = TopicPartition("topic", 0)


def replica_on(node: ClusterNode) -> PartitionReplica:
    replica = node.node.partitions.get(QUIET)
    assert replica is not None
    return replica


def group_on(node: ClusterNode) -> RaftGroup:
    group = replica_on(node).group
    assert group is not None
    return group


def leader_of(*nodes: ClusterNode) -> ClusterNode:
    return next(node for node in nodes if group_on(node).leads)


async def quiet_and_busy(cluster: NodeCluster) -> tuple[list[ClusterNode], ClusterNode]:
    """A partition with records that all nodes have, and a topic that fills the journals; returns
    nodes that stay, the first one of which leads the partition, and one that is away.
    """
    await cluster[1].backend.create_topic("topic", 1)
    await cluster[1].backend.create_topic("busy", 1)
    for number in range(3):
        await cluster[1].append(b"%d" % number)
    nodes = list(cluster.nodes.values())
    await until(lambda: all(replica_on(node).log.end_offset == 3 for node in nodes))
    await until(lambda: any(group_on(node).leads for node in nodes))
    leader = leader_of(*nodes)
    others = [node for node in nodes if node is not leader]
    await others[1].kill()
    return [leader, others[0]], others[1]


async def elect(nodes: list[ClusterNode]) -> None:
    """Another leader among two nodes: an entry without records."""
    leader = leader_of(*nodes)
    (other,) = [node for node in nodes if node is not leader]
    leader.node._log.driver.transfer(group_on(leader), other.id)
    await until(lambda: group_on(other).leads and not group_on(other).has_tail)


async def fill(nodes: list[ClusterNode], *, until_lost: int) -> None:
    """Fill the journals of nodes until the entries of the partition up to an index are lost."""
    while min(group_on(node).storage.start.index for node in nodes) < until_lost:
        await nodes[0].append(b"." * 2000, topic="busy")
        await asyncio.sleep(0.1)  # positions are written and files removed once a second


def told_damaged(status: ClusterStatus) -> set[int]:
    """The nodes that are told to have damaged replicas, also as a problem."""
    assert any("damaged partition topic-0" in problem for problem in problems(status))
    return {replica.node_id for group in status.groups for replica in group.damaged}


async def only_elections(nodes: list[ClusterNode]) -> list[bytes]:
    return []


async def records_behind_them(nodes: list[ClusterNode]) -> list[bytes]:
    await nodes[0].append(b"more")
    return [b"more"]


@pytest.mark.parametrize("later", [only_elections, records_behind_them])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_replica_with_all_records_takes_over_the_position_of_its_leader(
    tmp_path: Path, later: Callable[[list[ClusterNode]], Awaitable[list[bytes]]], restarts: bool
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await quiet_and_busy(cluster)
        await elect(nodes)
        await elect(nodes)
        await fill(nodes, until_lost=group_on(nodes[0]).applied_index)
        expected = [b"0", b"1", b"2", *await later(nodes)]
        await away.start()
        await until(lambda: group_on(away).applied_index == group_on(leader_of(*nodes)).applied_index)
        if restarts:
            await away.kill()
            await away.start()
        assert not replica_on(away).needs_copy
        # Its vote and its log count: the two of them go on without the third one.
        await nodes[1].kill()
        await away.append(b"last")
        assert await away.values() == [*expected, b"last"]
        await nodes[1].start()
        assert await nodes[1].values() == [*expected, b"last"]

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_a_replica_has_the_pieces_that_lost_entries_name_before_it_takes_over_a_position(
    tmp_path: Path,
) -> None:
    """It confirms these entries by that."""

    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await quiet_and_busy(cluster)
        await stage_values(nodes[0].backend, "sink", "stage", {QUIET: [b"staged"]})
        await fill(nodes, until_lost=group_on(nodes[0]).applied_index)
        await away.start()
        leader = group_on(leader_of(*nodes))
        await until(lambda: group_on(away).applied_index == leader.applied_index)
        pieces = away.node._storage.pieces
        assert list(pieces.stages.values()) == [*nodes[0].node._storage.pieces.stages.values()]
        assert (await away.backend.publish("sink", 1, "query", ["stage"])).published
        assert await away.values() == [b"0", b"1", b"2", b"staged"]

    run_cluster(scenario, tmp_path, **OPTIONS)


@pytest.mark.usefixtures("no_copies")
def test_a_replica_without_a_record_waits_for_a_copy_while_nobody_gives_one(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await quiet_and_busy(cluster)
        await nodes[0].append(b"missed")
        await elect(nodes)
        await fill(nodes, until_lost=group_on(nodes[0]).applied_index)
        await away.start()
        await until(lambda: replica_on(away).needs_copy)
        assert replica_on(away).log.end_offset == 3
        expected = {each.id for each in nodes}
        for node in cluster.nodes.values():
            described = [
                await node.backend.describe_topic("topic"),
                *await node.backend.list_topics(["topic"]),
            ]
            assert [set(each.partitions[0].isr) for each in described] == [expected] * 2

    run_cluster(scenario, tmp_path, **OPTIONS)


@pytest.mark.usefixtures("no_copies")
def test_a_replica_that_waits_for_a_copy_is_out_of_sync_at_nodes_without_one(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await quiet_and_busy(cluster)
        await nodes[0].append(b"missed")
        await elect(nodes)
        await fill(nodes, until_lost=group_on(nodes[0]).applied_index)
        await away.start()
        await until(lambda: replica_on(away).needs_copy)
        fourth = await cluster.add()
        described = await fourth.backend.describe_topic("topic")
        assert fourth.id not in described.partitions[0].replicas
        assert set(described.partitions[0].isr) == {each.id for each in nodes}

    run_cluster(scenario, tmp_path, **OPTIONS)


@pytest.mark.usefixtures("no_copies")
def test_a_damaged_replica_is_in_sync_at_no_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        nodes = list(cluster.nodes.values())
        for damaged in nodes:
            damaged.node.partitions.set_fault(replica_on(damaged), CorruptData("a damaged segment"))
            expected = {each.id for each in nodes if replica_on(each).fault is None}
            for node in nodes:
                (partition,) = (await node.backend.describe_topic("topic")).partitions
                assert set(partition.isr) == expected
                assert damaged.id in told_damaged(await node.backend.cluster_status())

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_a_disk_that_does_not_finish_a_write_is_a_problem_at_every_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        cluster[1].stalling.stall()
        writing = asyncio.create_task(cluster[2].append(b"value"))
        await asyncio.sleep(3.0)
        for node in cluster.nodes.values():
            assert any(
                "its disk has not finished a write for" in problem
                for problem in problems(await node.backend.cluster_status())
            )
        cluster[1].stalling.resume()
        await writing
        await until(lambda: not cluster[1].node.disk_stalls)

        async def has_no_problems() -> bool:
            return problems(await cluster[2].backend.cluster_status()) == ()

        # Those that do not lead are behind for a moment.
        await until(has_no_problems)

    run_cluster(scenario, tmp_path)


def test_an_empty_partition_lacks_no_record(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("busy", 1)
        away = cluster[3]
        await away.kill()
        await cluster[1].backend.create_topic("topic", 1)
        nodes = [cluster[1], cluster[2]]
        await until(lambda: all(node.node.partitions.get(QUIET) is not None for node in nodes))
        await until(lambda: any(group_on(node).leads for node in nodes))
        await elect(nodes)
        await fill(nodes, until_lost=group_on(nodes[0]).applied_index)
        await away.start()
        await until(lambda: group_on(away).applied_index == group_on(leader_of(*nodes)).applied_index)
        assert await away.append(b"value") == 0

    run_cluster(scenario, tmp_path, **OPTIONS)

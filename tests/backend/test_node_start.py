"""The start of nodes that wait for others: answers to requests meanwhile, and how it ends."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.errors import CorruptData, DataDirectoryError, DeadlineExceeded, ShuttingDown, Unavailable
from tests.cluster.node_clusters import ClusterNode, NodeCluster, host_of, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)


def requests(node: ClusterNode) -> dict[str, Callable[[], Awaitable[object]]]:
    """Requests of every kind."""
    backend = node.backend

    async def topic() -> object:
        return backend.topic("topic")

    return {
        "topic": topic,
        "describe": lambda: backend.describe_topic("topic"),
        "list": backend.list_topics,
        "create": lambda: backend.create_topic("other", 1),
        "alter": lambda: backend.alter_topic("topic", partitions=2),
        "delete": lambda: backend.delete_topic("topic"),
        "fetch": node.fetch,
        "ranges": lambda: backend.offset_ranges("topic"),
        "timestamp": lambda: backend.offset_for_timestamp(TOPIC, 0),
        "join": lambda: backend.join_consumer_group("group", "client", ["topic"], lambda _: None),
        "commit": lambda: backend.commit_offsets("group", {TOPIC: OffsetCommit(0, "")}),
        "committed": lambda: backend.committed_offsets("group", "topic"),
        "groups": backend.list_groups,
        "consumers": lambda: backend.list_consumers("topic"),
        "owner": lambda: backend.partition_owner("group", TOPIC),
        "exists": lambda: backend.consumer_group_exists("group"),
        "stage": lambda: backend.stage("sink", "stage", 0, []),
        "publish": lambda: backend.publish("sink", 1, "query", []),
        "discard": lambda: backend.discard("sink", ["stage"]),
    }


async def refused(node: ClusterNode, reason: str) -> None:
    """Every request is refused with a reason."""
    for name, request in requests(node).items():
        with pytest.raises(Unavailable, match=reason):
            raise AssertionError(f"{name} was answered with {await request()}")


def test_a_node_that_waits_for_the_others_of_its_list_refuses_with_the_reason(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        alone = cluster[1]
        await alone.begin()
        await asyncio.sleep(10)
        assert "of the join list do not answer" in alone.backend.fault
        await refused(alone, "of the join list do not answer")
        await asyncio.gather(cluster[2].start(), cluster[3].start(), alone.backend.wait_ready())
        assert alone.backend.fault == ""
        await alone.backend.create_topic("topic", 1)
        await alone.append(b"value")

    run_cluster(scenario, tmp_path, starts=False)


def test_a_node_that_catches_up_refuses_with_the_reason(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"value")
        await cluster.stop()
        alone = cluster[2]
        await alone.begin()
        await asyncio.sleep(5)
        await refused(alone, "the node is catching up with its cluster")
        await cluster[3].start()
        await alone.backend.wait_ready()
        assert await alone.values() == [b"value"]

    run_cluster(scenario, tmp_path)


def test_a_node_that_waits_can_be_stopped(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        alone = cluster[1]
        await alone.begin()
        await asyncio.sleep(1)
        await alone.stop()
        with pytest.raises(ShuttingDown):
            await alone.backend.create_topic("topic", 1)
        await asyncio.gather(*(node.start() for node in cluster.nodes.values()))

    run_cluster(scenario, tmp_path, starts=False)


def test_an_error_of_the_nodes_own_part_fails_the_start(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].stop()
        (tmp_path / "1" / "identity").write_bytes(b"damaged")
        with pytest.raises(CorruptData):
            await cluster[1].begin()
        assert cluster[1].faults == []

    run_cluster(scenario, tmp_path)


def test_an_error_behind_the_wait_is_a_fault_of_the_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"value")
        await cluster.stop()
        alone = cluster[2]
        foreign = tmp_path / "2" / "topics" / "foreign-0"
        foreign.mkdir(parents=True)
        (foreign / f"{0:020}.log").write_bytes(b"foreign")
        await alone.begin()
        assert alone.faults == []
        # It needs the other one, which may fail before this one has started.
        await cluster[3].begin()
        await until(lambda: alone.faults)
        assert isinstance(alone.faults.pop(), DataDirectoryError)
        await refused(alone, "the node is catching up")

    run_cluster(scenario, tmp_path)


def test_a_node_alone_is_ready_when_its_start_returns(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].begin()
        assert cluster[1].backend.fault == ""
        await cluster[1].backend.create_topic("topic", 1)

    run_cluster(scenario, tmp_path, 1, starts=False)


def test_the_loss_of_the_majority_and_its_end_are_told(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        faults: list[str] = []
        alone = cluster[3]
        alone.backend.watch(lambda: faults.append(alone.backend.fault))
        loop = asyncio.get_running_loop()
        cluster.split(3)
        began = loop.time()
        others = sorted([cluster[1].id, cluster[2].id])
        await until(lambda: faults)
        assert faults == [f"no majority: nodes {others[0]} and {others[1]} cannot be reached"]
        assert 3 < loop.time() - began < 7
        cluster.network.heal()
        await until(lambda: len(faults) == 2)
        assert faults[1] == ""
        assert cluster[1].backend.fault == ""

    run_cluster(scenario, tmp_path)


def test_a_stop_ends_everything_that_waits(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        stranger = await cluster.add()
        cluster.split(2)
        await asyncio.sleep(2)
        waiting = [
            asyncio.create_task(cluster[1].fetch(0, max_wait=None)),
            asyncio.create_task(stranger.fetch(0, max_wait=None)),
            asyncio.create_task(cluster[2].backend.offset_ranges("topic")),
        ]
        writes = [cluster[2].append_nowait(b"value")]
        await asyncio.sleep(1)
        await asyncio.gather(*(cluster[number].stop() for number in (1, 2, 4)))
        for each in waiting:
            with pytest.raises(ShuttingDown):
                await each
        for answer in writes:
            with pytest.raises((DeadlineExceeded, Unavailable)):
                await answer

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("moved", [(3,), (2, 3), (1, 2, 3)])
def test_nodes_with_new_addresses_find_each_other(tmp_path: Path, moved: tuple[int, ...]) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"value")
        await cluster.stop()
        for number in moved:
            cluster[number].host = host_of(number + 10)
        for number in (1, 2, 3):
            await cluster[number].begin()
            await asyncio.sleep(10)
        for node in cluster.nodes.values():
            await node.backend.wait_ready()
            assert await node.values() == [b"value"]
        statuses = (await cluster[1].backend.cluster_status()).nodes
        addresses = sorted((node.id, f"{node.host}:19094") for node in cluster.nodes.values())
        assert [(each.node_id, each.address) for each in statuses] == addresses

    run_cluster(scenario, tmp_path)

"""Replicas that lack a piece of a stage when its publication is applied."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pixy.backend import TopicPartition
from pixy.cluster import PartitionReplica, problems
from pixy.config import JournalConfig
from pixy.errors import CorruptData
from pixy.inspect import ReadOnlyDisk, check_node
from pixy.proto.state_pb2 import PublishParts
from pixy.storage import StagedPart
from tests.cluster.node_clusters import ClusterNode, NodeCluster, leaders, run_cluster
from tests.conformance.staged import publish_values
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC, OTHER = TopicPartition("topic", 0), TopicPartition("other", 0)


def lose_pieces(node: ClusterNode) -> None:
    """Remove the pieces of a publication when a partition is to take them."""
    partitions, pieces = node.node.partitions, node.node._storage.pieces
    find_parts = partitions._find_parts

    def lose_and_find(replica: PartitionReplica, command: PublishParts) -> list[StagedPart]:
        pieces.remove({part.stage_number for part in command.parts})
        return find_parts(replica, command)

    partitions._find_parts = lose_and_find


def fault_of(node: ClusterNode) -> CorruptData | None:
    replica = node.node.partition(TOPIC)
    return None if replica is None else replica.fault


async def leader_of(cluster: NodeCluster) -> ClusterNode:
    def led() -> set[int]:
        return leaders(list(cluster.nodes.values()))[0] - {0}

    await until(lambda: len(led()) == 1)
    return next(node for node in cluster.nodes.values() if led() == {node.id})


@pytest.mark.parametrize("leads", [False, True])
def test_a_replica_without_a_piece_of_a_publication_fetches_its_files_from_another_one(
    tmp_path: Path, leads: bool
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"first")
        leader = await leader_of(cluster)
        victim = next(node for node in cluster.nodes.values() if (node is leader) == leads)
        lose_pieces(victim)
        with capture_logs() as logs:
            assert (await publish_values(cluster[1].backend, 1, {TOPIC: [b"staged"]})).published
            await until(lambda: any("was copied" in line["event"] for line in logs))
        await until(lambda: fault_of(victim) is None)
        await cluster[1].append(b"behind")
        for node in cluster.nodes.values():
            assert await node.values() == [b"first", b"staged", b"behind"]

    run_cluster(scenario, tmp_path)


@pytest.mark.usefixtures("no_copies")
@pytest.mark.parametrize("leads", [False, True])
def test_without_copies_a_replica_without_a_piece_of_a_publication_is_unready_and_the_rest_goes_on(
    tmp_path: Path, leads: bool
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        for topic in ("topic", "other"):
            await cluster[1].backend.create_topic(topic, 1)
            await cluster[1].append(b"first", topic=topic)
        leader = await leader_of(cluster)
        victim = next(node for node in cluster.nodes.values() if (node is leader) == leads)
        lose_pieces(victim)
        with capture_logs() as logs:
            assert (await publish_values(cluster[1].backend, 1, {TOPIC: [b"staged"]})).published
            await until(lambda: fault_of(victim) is not None)
            await until(lambda: leaders(list(cluster.nodes.values()))[0] - {0, victim.id} != set())
            await cluster[1].append(b"behind")
        reason = str(fault_of(victim))
        assert ".pieces, piece 0 is missing" in reason
        assert [line["reason"] for line in logs if "damaged" in line["event"]] == [reason]
        told = [problem for problem in problems(await victim.backend.cluster_status()) if reason in problem]
        assert len(told) == 1
        for _ in range(2):
            for node in cluster.nodes.values():
                assert await node.values() == [b"first", b"staged", b"behind"]
                assert await node.values(topic="other") == [b"first"]
                assert (str(fault_of(node)) == reason) == (node is victim)
            await victim.kill()
            found = check_node(ReadOnlyDisk(), tmp_path / str(victim.number)).findings
            assert any(each.where == "topic-0" and "that are missing" in each.found for each in found)
            await victim.start()

    run_cluster(scenario, tmp_path)


def test_a_replica_with_a_damaged_segment_does_not_fill_the_room_of_its_node(tmp_path: Path) -> None:
    """Its entries are applied without effect, and not kept in memory."""

    async def scenario(cluster: NodeCluster) -> None:
        for topic in ("topic", "other"):
            await cluster[1].backend.create_topic(topic, 1)
            await cluster[1].append(b"first", topic=topic)
        leader = await leader_of(cluster)
        victim = next(node for node in cluster.nodes.values() if node is not leader)
        await victim.stop()
        (segment,) = (tmp_path / str(victim.number) / "topics" / "topic-0").glob("*.log")
        segment.write_bytes(segment.read_bytes()[:10])
        await victim.start()
        assert fault_of(victim) is not None
        for _ in range(5):
            await leader.append(bytes(300_000))
        driver = victim.node._log.driver
        await until(lambda: not driver.unapplied_bytes)

    run_cluster(scenario, tmp_path, journal=JournalConfig(max_unapplied_bytes=1 << 20))

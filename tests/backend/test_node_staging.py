"""Staged writes in a cluster of several nodes."""

from pathlib import Path

import pytest

from pixy.backend import TopicPartition
from pixy.errors import FailedPrecondition, Unavailable, UnknownPartition
from tests.cluster.node_clusters import NodeCluster, run_cluster
from tests.conformance.staged import piece_of, publish_values, stage_values
from tests.fakes.waiting import until

TOPIC = TopicPartition("topic", 0)


def test_staging_into_a_replicated_topic_is_refused_at_every_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        for node in cluster.nodes.values():
            with pytest.raises(
                FailedPrecondition, match=r"its replicas are on nodes \d, \d, \d, and a stage"
            ):
                await node.backend.stage("sink", "stage", 0, piece_of({TOPIC: [b"a"]}))
            with pytest.raises(UnknownPartition):
                await node.backend.stage("sink", "stage", 0, piece_of({TopicPartition("other", 0): [b"a"]}))

    run_cluster(scenario, tmp_path)


def test_stages_go_to_the_node_with_the_only_replica_and_are_published_there(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        first = cluster[1]
        await first.backend.create_topic("topic", 1)
        await stage_values(first.backend, "sink", "early", {TOPIC: [b"early"]})
        second = await cluster.add()
        assert (await first.backend.publish("sink", 1, "query", ["early"])).published
        assert (await publish_values(first.backend, 2, {TOPIC: [b"late"]})).published
        assert (await first.backend.publish("sink", 3, "query", [])).published
        with pytest.raises(FailedPrecondition, match="its replicas are on node 1, and a stage"):
            await second.backend.stage("sink", "stage", 0, piece_of({TOPIC: [b"a"]}))
        for node in (first, second):
            assert await node.values() == [b"early", b"late"]
        assert len(second.node.publisher._roll_forward) == 0, "only the node with the stages"
        await second.stop()
        await second.start()
        await until(lambda: not second.node.state_groups.sinks.publications)
        assert len(first.node.publisher._roll_forward) == 0
        assert await second.values() == [b"early", b"late"]

    run_cluster(scenario, tmp_path, 1)


def test_a_topic_with_one_replica_takes_stages_where_that_is(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3, {"replication": "1"})
        for node in cluster.nodes.values():
            description = await node.backend.describe_topic("topic")
            here = [each.partition for each in description.partitions if each.replicas == (node.id,)]
            await publish_values(
                node.backend, 1, {TopicPartition("topic", each): [b"a"] for each in here}, f"sink-{node.id}"
            )
        for node in cluster.nodes.values():
            assert [await node.values(partition=number) for number in range(3)] == [[b"a"]] * 3

    run_cluster(scenario, tmp_path)


def test_the_deletion_of_a_topic_looks_for_stages_on_other_nodes(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        first = cluster[1]
        await first.backend.create_topic("topic", 1)
        second, _ = await cluster.add(), await cluster.add()
        await stage_values(first.backend, "sink", "stage", {TOPIC: [b"a"]})
        with pytest.raises(
            FailedPrecondition, match=r"records of topic topic are staged .* by 1 sinks: sink"
        ):
            await second.backend.delete_topic("topic")
        metadata = second.node.state_groups.metadata_replica.group
        await until(lambda: len(metadata.storage.conf_state.voters) == 3)
        cluster.split(1)
        await until(lambda: metadata.leader in (2, 3))
        with pytest.raises(Unavailable, match="node 1 may have staged records of topic topic"):
            await second.backend.delete_topic("topic")
        cluster.network.heal()
        await until(lambda: second.node.unreachable() == [])
        await second.backend.delete_topic("topic", force=True)
        await until(lambda: first.backend.topic("topic") is None)

    run_cluster(scenario, tmp_path, 1)

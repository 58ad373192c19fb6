"""Publications on their way from the commit to the end: their order in a partition, another leader
on the way, partitions that are away, and deleted topics.
"""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from pixy.backend import Published, TopicPartition
from pixy.cluster.peering.partition_proposals import PartitionProposals
from pixy.cluster.state.publications import Publication, StagePieces
from pixy.errors import FailedPrecondition, PixyError
from pixy.proto.state_pb2 import PartitionCommand, PiecePart, PieceRecord, PublicationPart, PublishParts
from pixy.storage import EntryType
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.conformance.staged import publish_values, stage_values
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

Publishing = list["asyncio.Task[Published]"]


def sinks_leader(cluster: NodeCluster, *but: ClusterNode) -> ClusterNode | None:
    """The node that rolls publications forward."""
    for node in cluster.nodes.values():
        if node not in but and node.node.state_groups.sinks_replica.group.leads:
            return node
    return None


async def away_and_others(cluster: NodeCluster) -> tuple[ClusterNode, list[ClusterNode]]:
    """A node with the only replica of the topic `away`, killed after stages for it were sealed; and
    the others, the leader of `sinks` first. The stages have records for `topic`, too.
    """
    await until(lambda: sinks_leader(cluster))
    leader = sinks_leader(cluster)
    assert leader is not None
    followers = [node for node in cluster.nodes.values() if node is not leader]
    await leader.backend.create_topic("topic", 1)
    await leader.backend.create_topic("away", 3, {"replication": "1"})
    number = next(
        each
        for each in range(3)
        if (replica := leader.node.partition(TopicPartition("away", each))) is not None
        and replica.replicas == (followers[0].id,)
    )
    gone = TopicPartition("away", number)
    for sink in ("a", "b"):
        values = {gone: [b"%d" % number + sink.encode()], TopicPartition("topic", 0): [sink.encode()]}
        await stage_values(leader.backend, sink, "stage", values)
    await followers[0].kill()
    return followers[0], [leader, followers[1]]


async def begin_publications(node: ClusterNode) -> Publishing:
    """Publish the stages, one behind the other; neither can end."""
    sinks = node.node.state_groups.sinks
    tasks: Publishing = []
    for sink in ("a", "b"):
        tasks.append(asyncio.create_task(node.backend.publish(sink, 1, "query", ["stage"])))
        await until(lambda: len(sinks.publications) == len(tasks))
    await asyncio.sleep(3)
    assert not any(task.done() for task in tasks)
    return tasks


async def values_of_away(node: ClusterNode) -> list[bytes]:
    return [value for number in range(3) for value in await node.values(topic="away", partition=number)]


def is_finished(node: ClusterNode) -> bool:
    return not node.node.state_groups.sinks.publications


def test_a_partition_that_is_away_holds_its_publications_back_and_no_others(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        away, (leader, other) = await away_and_others(cluster)
        tasks = await begin_publications(other)
        assert await other.values() == [b"a", b"b"], "the partition that is there has both"
        assert (await publish_values(other.backend, 1, {TopicPartition("topic", 0): [b"c"]}, "c")).published
        assert await leader.values() == [b"a", b"b", b"c"]
        assert sorted(leader.node.state_groups.sinks.publications) == [1, 2]
        await away.start()
        assert await asyncio.gather(*tasks) == [Published(True, 1)] * 2
        for node in cluster.nodes.values():
            assert [value[1:] for value in await values_of_away(node)] == [b"a", b"b"]
            assert await node.values() == [b"a", b"b", b"c"]

    run_cluster(scenario, tmp_path)


def test_the_next_leader_goes_on_with_what_the_last_one_has_begun(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        away, (leader, other) = await away_and_others(cluster)
        tasks = await begin_publications(other)
        await leader.kill()
        assert not any(task.done() for task in tasks)
        await away.start()
        await asyncio.gather(*tasks)
        assert sinks_leader(cluster, leader) is not None
        await leader.start()
        await until(lambda: all(map(is_finished, cluster.nodes.values())))
        for node in cluster.nodes.values():
            assert [value[1:] for value in await values_of_away(node)] == [b"a", b"b"]
            assert await node.values() == [b"a", b"b"]

    run_cluster(scenario, tmp_path)


def test_a_cluster_that_was_killed_goes_on_by_itself(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        _, nodes = await away_and_others(cluster)
        tasks = await begin_publications(nodes[1])
        for node in nodes:
            await node.kill()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await cluster.start()
        await until(lambda: all(map(is_finished, cluster.nodes.values())))
        for node in cluster.nodes.values():
            assert [value[1:] for value in await values_of_away(node)] == [b"a", b"b"]
            assert await node.values() == [b"a", b"b"]

    run_cluster(scenario, tmp_path)


def test_parts_of_a_deleted_topic_hold_nothing_back(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        _, (leader, other) = await away_and_others(cluster)
        tasks = await begin_publications(other)
        await other.backend.delete_topic("away", force=True)
        assert await asyncio.gather(*tasks) == [Published(True, 1)] * 2
        assert await leader.values() == [b"a", b"b"]

    run_cluster(scenario, tmp_path)


def test_a_publication_is_refused_at_any_node_before_its_predecessor_is_there(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        where = TopicPartition("topic", 0)
        command = PublishParts(publication=7, sink_id="sink", predecessor=5)
        payload = PartitionCommand(publish_parts=command).SerializeToString()
        for node in cluster.nodes.values():
            replica = node.node.partition(where)
            assert replica is not None
            proposals = PartitionProposals(node.node._log.driver, node.node.partitions, node.node.remote)
            leads = replica.group is not None and replica.group.leads
            with pytest.raises(FailedPrecondition if leads else PixyError) as refusal:
                await proposals.propose(replica, EntryType.COMMAND, payload, 10)
            assert not leads or "publication 7 comes before its predecessor 5" in str(refusal.value)
            assert replica.publication == 0
        assert (await publish_values(cluster[1].backend, 1, {where: [b"a"]})).published
        for node in cluster.nodes.values():
            assert await node.values() == [b"a"]

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("records", [-1, 2**63 - 1])
def test_a_publication_with_impossible_numbers_holds_up_no_other_one(tmp_path: Path, records: int) -> None:
    """Of a release that did not judge pieces."""

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        where = TopicPartition("topic", 0)
        topic = cluster[1].node.metadata.topics["topic"]
        one = PiecePart(topic="topic", topic_id=topic.topic_id, partition=0, bytes=63, records=records)
        piece = PieceRecord(number=0, parts=[one])
        total = PublicationPart(topic="topic", topic_id=topic.topic_id, bytes=63, records=1)
        stage = StagePieces(900, "stage", [piece.SerializeToString()])
        for node in cluster.nodes.values():
            state = node.node.state_groups.sinks
            publication = Publication(1, "sink", ["stage"], [total], [stage])
            state.publications[1] = publication
            state._add_unfinished(publication)
            state.next_publication = 2
        assert (await publish_values(cluster[1].backend, 1, {where: [b"a"]})).published
        for node in cluster.nodes.values():
            assert await node.values() == [b"a"]
            await until(partial(is_finished, node))

    run_cluster(scenario, tmp_path)

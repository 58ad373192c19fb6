"""Deletions that are answered: what replicas on other nodes do afterwards."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster.peering import AppliedElsewhere, ReplicaQuorums
from pixy.cluster.state import APPLIED_LEVEL, Topic
from pixy.cluster.state.topic import Move
from pixy.errors import DeadlineExceeded, OffsetOutOfRange, PixyError, Unavailable, UnknownTopic
from pixy.proto.node_calls_pb2 import AppliedRequest
from pixy.proto.state_pb2 import MoveReason
from tests.cluster.moving import set_level
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

PARTITIONS = 3
LATE_S = 0.3
SOON_S = 1.0
"""More than a deletion takes that waits for nobody who does not answer."""


async def made(cluster: NodeCluster, **config: str) -> tuple[ClusterNode, list[ClusterNode]]:
    """A topic with a record in each partition; the leader of metadata, and the other nodes."""
    await cluster[1].backend.create_topic("topic", PARTITIONS, config)
    for number in range(PARTITIONS):
        await cluster[1].append(b"before", partition=number)
    leader = cluster.by_id(cluster[1].node.state_groups.metadata_replica.group.leader)
    return leader, [each for each in cluster.nodes.values() if each is not leader]


async def appended(nodes: list[ClusterNode]) -> list[Any]:
    """Answers to a record for each partition at each of these nodes."""
    return await asyncio.gather(
        *(each.append(b"after", partition=number) for each in nodes for number in range(PARTITIONS)),
        return_exceptions=True,
    )


def test_no_node_acknowledges_what_comes_after_the_answer(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, others = await made(cluster)
        for other in others:
            cluster.network.way(leader.host, other.host).delays_s = (LATE_S, LATE_S)
        await leader.backend.delete_topic("topic")
        for answer in await appended(others):
            assert isinstance(answer, PixyError), f"acknowledged at offset {answer}"

    run_cluster(scenario, tmp_path)


def test_a_deletion_that_only_its_node_knows_to_be_committed_is_not_answered(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, others = await made(cluster)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for other in others:
            cluster.network.way(leader.host, other.host).delays_s = (LATE_S, LATE_S)
        deleting = asyncio.create_task(leader.backend.delete_topic("topic"))
        await until(lambda: "topic" not in leader.node.metadata.topics)
        cluster.split(leader.number)
        with pytest.raises(DeadlineExceeded, match=r"topic topic is deleted, but nodes \d, \d may acknow"):
            await deleting
        assert loop.time() - began < 20.0

    run_cluster(scenario, tmp_path)


def test_a_deletion_that_a_node_has_not_heard_of_is_found_out_by_it(tmp_path: Path) -> None:
    """The message that was to tell it is lost."""

    async def scenario(cluster: NodeCluster) -> None:
        leader, others = await made(cluster)
        driver = leader.node._log.driver
        driver.tell_commit = lambda group: None  # type: ignore[method-assign]
        await leader.backend.delete_topic("topic")
        assert any("topic" not in each.node.metadata.topics for each in others)

    run_cluster(scenario, tmp_path)


def test_a_minority_that_is_away_is_not_waited_for(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, others = await made(cluster)
        await cluster[1].backend.create_topic("two", PARTITIONS, {"replication": "2"})
        cluster.split(others[0].number)
        began = asyncio.get_running_loop().time()
        for topic in ("topic", "two"):
            await leader.backend.delete_topic(topic)
        assert asyncio.get_running_loop().time() - began < SOON_S

    run_cluster(scenario, tmp_path)


def test_a_majority_of_the_replicas_that_is_away_keeps_a_topic_but_for_force(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 10)
        # The state groups that a deletion asks have their voters on the others.
        away = [cluster.by_id(4), cluster.by_id(5)]
        assert any({4, 5} <= {*each} for each in cluster[1].node.metadata.topics["topic"].replicas)
        near = cluster.by_id(1)
        backend, metadata = near.backend, near.node.state_groups.metadata_replica.group
        cluster.split(*[each.number for each in away])
        # Others say for a moment that they reach them.
        await until(lambda: not any(near.node._is_reachable(each.id) for each in away))
        await until(lambda: metadata.leader not in {0, 4, 5})
        with pytest.raises(Unavailable, match=r"nodes 4, 5 cannot be reached, and may go on to acknowledge"):
            await backend.delete_topic("topic")
        assert "topic" in {each.name for each in await backend.list_topics()}
        began = asyncio.get_running_loop().time()
        await backend.delete_topic("topic", force=True)
        assert asyncio.get_running_loop().time() - began < SOON_S
        cluster.network.heal()
        await until(lambda: all("topic" not in each.node.metadata.topics for each in away))

    run_cluster(scenario, tmp_path, count=5)


def test_the_only_replica_goes_on_where_it_cannot_be_reached(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, others = await made(cluster, replication="1")
        topic = leader.node.metadata.topics["topic"]
        cut = next(each for each in others if (each.id,) in topic.replicas)
        number = topic.replicas.index((cut.id,))
        cluster.split(cut.number)
        await until(lambda: not leader.node._is_reachable(cut.id))
        with pytest.raises(Unavailable, match="force deletes the topic"):
            await leader.backend.delete_topic("topic")
        began = asyncio.get_running_loop().time()
        await leader.backend.delete_topic("topic", force=True)
        assert asyncio.get_running_loop().time() - began < SOON_S
        assert await cut.append(b"after", partition=number) == 1
        cluster.network.heal()
        await until(lambda: "topic" not in cut.node.metadata.topics)

    run_cluster(scenario, tmp_path)


def test_removed_records_are_not_served_at_any_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await made(cluster)
        for number in range(PARTITIONS):
            at = cluster[1 + number]
            assert await at.backend.delete_records("topic", {number: 1}) == {number: 1}
            for node in cluster.nodes.values():
                with pytest.raises(OffsetOutOfRange):
                    await node.fetch(0, partition=number)

    run_cluster(scenario, tmp_path)


def test_records_are_removed_without_a_node_that_is_away(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, others = await made(cluster)
        cluster.split(others[0].number)
        await until(lambda: not leader.node._is_reachable(others[0].id))
        began = asyncio.get_running_loop().time()
        await leader.backend.delete_records("topic", {0: 1})
        assert asyncio.get_running_loop().time() - began < SOON_S

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("level", [APPLIED_LEVEL, APPLIED_LEVEL - 1])
def test_a_node_of_an_older_release_is_not_asked(
    tmp_path: Path, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_level(monkeypatch, level)
    asked: list[bytes] = []
    answer = AppliedElsewhere.answer

    async def noted(self: AppliedElsewhere, payload: bytes) -> bytes:
        asked.append(payload)
        return await answer(self, payload)

    monkeypatch.setattr(AppliedElsewhere, "answer", noted)

    async def scenario(cluster: NodeCluster) -> None:
        leader, _ = await made(cluster)
        await leader.backend.delete_topic("topic")
        with pytest.raises(UnknownTopic):
            await leader.backend.describe_topic("topic")
        assert bool(asked) is (level == APPLIED_LEVEL)

    run_cluster(scenario, tmp_path)


def test_a_raft_group_that_is_not_there_has_nothing_to_wait_for(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        request = AppliedRequest(raft_group=1 << 40, index=7).SerializeToString()
        assert await cluster[1].node._has_applied(2, request) == b""

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize(
    ("replicas", "silent", "is_majority"),
    [
        ([(1,)], {1}, True),
        ([(1,)], {2, 3}, False),
        ([(1, 2)], {2}, False),
        ([(1, 2)], {1, 2}, True),
        ([(1, 2, 3)], {3}, False),
        ([(1, 2, 3)], {2, 3}, True),
        ([(1, 2, 3), (3, 4, 5)], {2, 5}, False),
        ([(1, 2, 3), (3, 4, 5)], {3, 5}, True),
        ([(1, 2, 3, 4)], {3, 4}, False),
    ],
)
def test_a_majority_of_the_replicas_of_any_partition_counts(
    replicas: list[tuple[int, ...]], silent: set[int], *, is_majority: bool
) -> None:
    quorums = ReplicaQuorums(_topic(replicas))
    assert quorums.nodes == {each for nodes in replicas for each in nodes}
    assert quorums.is_majority(silent) is is_majority


@pytest.mark.parametrize(
    ("target", "silent", "is_majority"),
    [
        ((4, 2, 3), {1}, False),
        ((4, 2, 3), {1, 4}, True),
        ((1,), {1}, True),
        ((4, 5, 6), {1, 4}, True),
        ((4, 5, 6), {4}, False),
    ],
)
def test_while_a_partition_moves_all_voters_that_it_may_have_count(
    target: tuple[int, ...], silent: set[int], *, is_majority: bool
) -> None:
    move = Move(1, MoveReason.MOVE_REASON_MOVE, target)
    quorums = ReplicaQuorums(_topic([(1, 2, 3)], {0: move}))
    assert quorums.nodes == {1, 2, 3, *target}
    assert quorums.is_majority(silent) is is_majority


def _topic(replicas: list[tuple[int, ...]], moves: dict[int, Move] | None = None) -> Topic:
    groups = tuple(range(100, 100 + len(replicas)))
    return Topic("topic", bytes(16), 1, {}, groups, tuple(replicas), moves=moves or {})

"""Partitions that move to nodes that have nothing of them, in clusters with virtual time."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pixy.cluster import Node, TransferCounts, problems
from pixy.cluster.log import PartitionReplica, StateReplica
from pixy.cluster.replicas import Partitions
from pixy.errors import FailedPrecondition, InvalidArgument, PixyError
from pixy.multiraft import RaftGroup
from pixy.records import TopicPartition
from tests.cluster.moving import begin_move, move_as_seen, until_moved
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.conformance.staged import stage_values
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)
VALUES = [b"%d" % number for number in range(200)]


async def joined(cluster: NodeCluster) -> ClusterNode:
    """A node that has joined, and has started for all."""
    node = await cluster.add()
    await until(lambda: all(node.id in each.node.metadata.started for each in cluster.nodes.values()))
    return node


def is_blank(node: ClusterNode) -> bool:
    """True if the replica of a node knows no members."""
    replica = node.node.partition(TOPIC)
    group = None if replica is None else replica.group
    return group is not None and not group.storage.conf_state.members


def counts(node: ClusterNode) -> TransferCounts:
    """Copies that a node has sent and fetched."""
    return node.node.transfers["copies"]


def test_a_lone_node_with_data_becomes_three_under_load(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        for value in VALUES:
            await cluster[1].append(value)
        appended = [*VALUES]
        writing = True

        async def write() -> None:
            number = 0
            while writing:
                await cluster[1].append(b"late %d" % number)
                appended.append(b"late %d" % number)
                number += 1
                await asyncio.sleep(0.05)

        writer = asyncio.create_task(write())
        await joined(cluster)
        await joined(cluster)
        await until(lambda: [len(each) for each in cluster[1].node.metadata.topics["topic"].replicas] == [3])
        writing = False
        await writer
        for node in cluster.nodes.values():
            assert await node.values() == appended
        await cluster[1].kill()
        assert await cluster[2].append(b"last") == len(appended)
        assert await cluster[3].values() == [*appended, b"last"]

    run_cluster(scenario, tmp_path, 1)


def test_the_only_replica_moves_to_another_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1, {"replication": "1"})
        await cluster[1].append(*VALUES)
        other = await joined(cluster)
        await begin_move(cluster[1], (other.id,))
        await until_moved([*cluster.nodes.values()], (other.id,))
        assert await other.values() == VALUES
        assert await cluster[1].append(b"more") == len(VALUES)
        assert await cluster[1].values() == [*VALUES, b"more"]

    run_cluster(scenario, tmp_path, 1)


def test_the_status_says_which_node_a_partition_needs_that_moves(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        first = cluster[1]
        await first.backend.create_topic("topic", 1, {"replication": "1"})
        ((source,),) = first.node.metadata.topics["topic"].replicas
        target, asked = (each for each in cluster.nodes.values() if each.id != source)
        await until(lambda: "topic" in asked.node.metadata.topics)
        await begin_move(asked, (target.id,))
        await until(lambda: is_blank(target))
        await cluster.by_id(source).kill()
        assert is_blank(target)
        needed = f"no leader for raft group topic-0: of voter {source} none is up"

        async def is_told() -> bool:
            return needed in problems(await asked.node.status())

        await until(is_told)
        assert needed in problems(await target.node.status())

    run_cluster(scenario, tmp_path)


def test_a_replica_is_replaced_by_one_on_another_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(*VALUES)
        other = await joined(cluster)
        await begin_move(cluster[1], (1, 2, other.id))
        await until_moved([*cluster.nodes.values()], (1, 2, other.id))
        assert await other.values() == VALUES
        await until(lambda: sum(counts(each).sent for each in cluster.nodes.values()) == 1)
        fetched = counts(other)
        assert (fetched.fetched, fetched.failed, fetched.sent) == (1, 0, 0)
        sent_bytes = sum(counts(each).sent_bytes for each in cluster.nodes.values())
        assert sent_bytes == fetched.fetched_bytes > sum(map(len, VALUES))

    run_cluster(scenario, tmp_path)


def test_a_node_that_was_down_since_a_topic_was_made_knows_its_members(tmp_path: Path) -> None:
    """Also if another node is preferred as leader by now: no member was ever changed."""

    async def scenario(cluster: NodeCluster) -> None:
        late = cluster.by_id(3)
        await late.kill()
        del cluster.nodes[late.number]
        await cluster[1].backend.create_topic("topic", 1)
        await begin_move(cluster[1], (2, 1, 3))
        await until_moved([*cluster.nodes.values()], (2, 1, 3))
        await cluster[1].append(*VALUES)
        cluster.nodes[late.number] = late
        await late.start()
        assert await late.values() == VALUES
        replica = late.node.partition(TOPIC)
        assert replica is not None
        await until(lambda: replica.log.end_offset == len(VALUES))

    run_cluster(scenario, tmp_path)


def test_stages_of_a_lone_node_are_published_before_their_partition_gets_other_replicas(
    tmp_path: Path,
) -> None:
    """Nobody else has them: other replicas would apply the publication without its records."""

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await stage_values(cluster[1].backend, "sink", "stage", {TOPIC: [b"staged"]})
        other = await joined(cluster)
        await until(lambda: cluster[1].node.metadata.topics["topic"].moves)
        await asyncio.sleep(10)
        replica = cluster[1].node.partition(TOPIC)
        assert replica is not None
        assert replica.group is not None
        assert replica.group.storage.conf_state.members == {1}
        with pytest.raises(FailedPrecondition, match="or is to get some: begin another stage"):
            await stage_values(cluster[1].backend, "sink", "stage", {TOPIC: [b"more"]})
        assert (await cluster[1].backend.publish("sink", 1, "query", ["stage"])).published
        await until(lambda: cluster[1].node.metadata.topics["topic"].placement(0))
        await cluster[1].append(b"after")
        assert await other.values() == [b"staged", b"after"]
        await other.stop()
        await other.start()
        assert await other.values() == [b"staged", b"after"]

    run_cluster(scenario, tmp_path, 1)


def test_a_partition_that_is_about_to_move_is_as_it_was_after_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing leads it before the journal is read: its vote and its log would be forgotten."""
    restore = Partitions.restore

    async def restore_late(self: Partitions, *args: Any) -> list[RaftGroup]:
        await asyncio.sleep(5)
        assert [replica for replica in self if replica.group is not None] == []
        return await restore(self, *args)

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(*VALUES)
        await stage_values(cluster[1].backend, "sink", "stage", {TOPIC: [b"staged"]})
        await joined(cluster)
        await until(lambda: cluster[1].node.metadata.topics["topic"].moves)
        monkeypatch.setattr(Partitions, "restore", restore_late)
        for _ in range(2):
            await cluster[1].kill()
            await cluster[1].start()
            assert await cluster[1].values() == VALUES
        assert (await cluster[1].backend.publish("sink", 1, "query", ["stage"])).published
        await until(lambda: cluster[1].node.metadata.topics["topic"].placement(0))
        assert await cluster[2].values() == [*VALUES, b"staged"]

    run_cluster(scenario, tmp_path, 1)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_that_was_acknowledged_is_lost_while_partitions_move_and_nodes_end(
    tmp_path: Path, seed: int
) -> None:
    """Moves begin, are sent elsewhere and taken back at any time, and nodes are killed within."""
    random = Random(seed)
    written: list[bytes] = []
    stopped: list[bool] = []

    async def write(cluster: NodeCluster) -> None:
        number = 0
        while not stopped:
            value = b"%d" % number
            number += 1
            replicas = next(iter(running(cluster))).node.metadata.topics["topic"].replicas[0]
            asked = [node for node in running(cluster) if node.id in replicas]
            if asked:
                with suppress(PixyError):
                    await random.choice(asked).append(value)
                    written.append(value)
            await asyncio.sleep(random.uniform(0.01, 0.2))

    async def disturb(cluster: NodeCluster) -> None:
        if random.random() < 0.7 or len(down) >= 1:
            node = random.choice(running(cluster))
            target = random.sample([1, 2, 3, 4], random.choice([1, 2, 3, 3, 3]))
            with suppress(PixyError):
                await move_as_seen(node, target)
        else:
            node = random.choice(running(cluster))
            down.add(node.number)
            await node.kill()
        await asyncio.sleep(random.choice([0.0, 0.05, 0.5, 3.0]))
        for number in [*down]:
            if random.random() < 0.5:
                await cluster[number].start()
                down.discard(number)

    down: set[int] = set()

    def running(cluster: NodeCluster) -> list[ClusterNode]:
        return [node for node in cluster.nodes.values() if node.number not in down]

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        writer = asyncio.create_task(write(cluster))
        for _ in range(40):
            await disturb(cluster)
        for number in [*down]:
            await cluster[number].start()
            down.discard(number)
        stopped.append(True)
        await writer
        topic = cluster[1].node.metadata.topics
        await until(lambda: not topic["topic"].moves)
        replicas = topic["topic"].replicas[0]
        for node_id in replicas:
            values = await cluster.by_id(node_id).values()
            kept = {*values}
            assert len(kept) == len(values)
            assert [value for value in written if value not in kept] == []
            assert [value for value in values if value in {*written}] == written

    run_cluster(scenario, tmp_path, 4, seed=seed)


def test_a_topic_gets_as_many_replicas_as_its_option_says(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1, {"replication": "1"})
        await cluster[1].append(*VALUES)

        def numbers() -> set[int]:
            return {len(each) for each in cluster[1].node.metadata.topics["topic"].replicas}

        for wanted in (3, 2):
            await cluster[1].backend.alter_topic("topic", config={"replication": str(wanted)})
            await until(lambda wanted=wanted: numbers() == {wanted})  # type: ignore[misc]  # bound
        for node_id in cluster[1].node.metadata.topics["topic"].replicas[0]:
            assert await cluster.by_id(node_id).values() == VALUES
        with pytest.raises(InvalidArgument, match="replication is 4, and the cluster has 3 nodes"):
            await cluster[1].backend.alter_topic("topic", config={"replication": "4"})

    run_cluster(scenario, tmp_path)


def test_a_replica_that_departs_leaves_questions_to_the_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found here, and has gone before it has answered."""
    confirm, asked = Node.confirm, asyncio.Event()

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1, {"replication": "2"})
        await cluster[1].append(*VALUES)
        replicas = cluster[1].node.metadata.topics["topic"].replicas[0]
        [other] = {1, 2, 3} - {*replicas}
        node = cluster.by_id(replicas[0])
        replica = node.node.partition(TOPIC)
        assert replica is not None

        async def confirm_late(
            self: Node, replicas: Iterable[PartitionReplica | StateReplica], timeout: float
        ) -> None:
            found = [*replicas]
            await confirm(self, found, timeout)
            if replica in found:
                asked.set()
                await until(lambda: replica.is_absent)

        monkeypatch.setattr(Node, "confirm", confirm_late)
        backend = node.backend
        answers = asyncio.gather(
            backend.offset_ranges("topic"),
            backend.offset_for_timestamp(TOPIC, 0),
            backend.delete_records("topic", {0: 10}),
        )
        await asked.wait()
        await begin_move(cluster[1], [other])
        ranges, found, begins = await answers
        assert ranges[0].end == len(VALUES)
        assert found in (0, 10)
        assert begins == {0: 10}

    run_cluster(scenario, tmp_path)

"""Replicas whose partitions move to other nodes: they depart, and may come back."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from pixy.cluster import Node
from pixy.cluster.log import PartitionReplica
from pixy.cluster.replicas import Partitions
from pixy.errors import Unavailable
from pixy.multiraft.driver import Driver
from pixy.records import TopicPartition
from tests.cluster.moving import begin_move, until_moved
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.conformance.staged import stage_values
from tests.fakes.waiting import settle, until

TOPIC = "topic"


def driver_of(node: ClusterNode) -> Driver:
    return node.node._log.driver


def replica_of(node: ClusterNode) -> PartitionReplica:
    replica = node.node.partition(TopicPartition(TOPIC, 0))
    assert replica is not None
    return replica


def raft_group(cluster: NodeCluster) -> int:
    return cluster[3].node.metadata.topics[TOPIC].raft_groups[0]


async def move(cluster: NodeCluster, target: int) -> None:
    """Have the partition move to a node, and wait until it has."""
    await begin_move(cluster[3], [target])
    await until_moved([cluster[3]], [target])


async def has_departed(cluster: NodeCluster, node_id: int) -> None:
    node = cluster.by_id(node_id)
    await until(lambda: raft_group(cluster) in driver_of(node).departed and not replica_of(node).is_departing)


def directories(cluster: NodeCluster, node: ClusterNode) -> list[str]:
    return sorted(node.disk.names(cluster.directory / str(node.number) / "topics"))


async def on_one_node(cluster: NodeCluster) -> tuple[int, int, int]:
    """A topic with one replica and records; returns its node, and the others."""
    await cluster[1].backend.create_topic(TOPIC, 1, {"replication": "1"})
    for number in range(5):
        await cluster[2].append(b"%d" % number)
    [first] = cluster[1].node.metadata.topics[TOPIC].replicas[0]
    second, third = (node.id for node in cluster.nodes.values() if node.id != first)
    await cluster.by_id(first).node._log.writer.flush()
    return first, second, third


BEFORE = [b"0", b"1", b"2", b"3", b"4"]


async def check(cluster: NodeCluster, *values: bytes) -> None:
    for node in cluster.nodes.values():
        assert await node.values() == [*BEFORE, *values]


@pytest.mark.slow
def test_a_partition_moves_away_and_back(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        first, second, _ = await on_one_node(cluster)
        node = cluster.by_id(first)
        assert directories(cluster, node) == ["topic-0"]
        await begin_move(cluster[3], [second])
        await cluster[3].append(b"moved")
        await until_moved([cluster[3]], [second])
        await has_departed(cluster, first)
        assert directories(cluster, node) == []
        await check(cluster, b"moved")
        assert driver_of(node).departed._groups[raft_group(cluster)].state.term > 0
        await move(cluster, first)
        await cluster[3].append(b"back")
        await has_departed(cluster, second)
        assert directories(cluster, node) == ["topic-0"]
        await check(cluster, b"moved", b"back")
        await node.kill()
        await node.start()
        await cluster[3].append(b"again")
        await check(cluster, b"moved", b"back", b"again")

    run_cluster(scenario, tmp_path)


@pytest.mark.slow
def test_what_the_former_node_appends_is_written_once_wherever_the_partition_is(tmp_path: Path) -> None:
    """Its sequences would begin anew, and the rows of the group have results for the first ones."""

    async def scenario(cluster: NodeCluster) -> None:
        first, second, third = await on_one_node(cluster)
        node, expected = cluster.by_id(first), [*BEFORE]
        answers: list[tuple[bytes, asyncio.Future[int]]] = []
        stops = asyncio.Event()

        async def append_all_the_time() -> None:
            while not stops.is_set():
                value = b"value %d" % len(answers)
                answers.append((value, node.append_nowait(value)))
                await asyncio.sleep(0.02)

        appending = asyncio.create_task(append_all_the_time())
        for target in (second, third, first, second):
            before = node.node.metadata.topics[TOPIC].replicas[0][0]
            await move(cluster, target)
            await has_departed(cluster, before)
            await asyncio.sleep(0.5)
        stops.set()
        await appending
        written = {await answer: value for value, answer in answers}
        assert len(written) == len(answers), "each has an offset of its own"
        expected += [written[offset] for offset in sorted(written)]
        assert await cluster[1].values() == expected

    run_cluster(scenario, tmp_path)


@pytest.mark.slow
def test_a_newcomer_whose_move_is_taken_back_departs(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        first, second, _ = await on_one_node(cluster)
        newcomer = cluster.by_id(second)
        await begin_move(cluster[3], [first, second])
        await until(lambda: replica_of(newcomer).log.end_offset == 5)
        await begin_move(cluster[3], [first])
        await until_moved([cluster[3]], [first])
        await has_departed(cluster, second)
        assert directories(cluster, newcomer) == []
        await check(cluster)
        await move(cluster, second)
        await cluster[3].append(b"moved")
        await check(cluster, b"moved")

    run_cluster(scenario, tmp_path)


@pytest.mark.slow
def test_what_was_staged_before_a_move_is_published_behind_it(tmp_path: Path) -> None:
    """Its pieces are on the former nodes alone."""

    async def scenario(cluster: NodeCluster) -> None:
        _, second, third = await on_one_node(cluster)
        where = TopicPartition(TOPIC, 0)
        await stage_values(cluster[3].backend, "sink", "stage", {where: [b"staged"]}, {where: [b"more"]})
        for target in (second, third):
            before = cluster[3].node.metadata.topics[TOPIC].replicas[0][0]
            await move(cluster, target)
            await has_departed(cluster, before)
        assert (await cluster[3].backend.publish("sink", 1, "query", ["stage"])).published
        await check(cluster, b"staged", b"more")

    run_cluster(scenario, tmp_path)


@pytest.mark.slow
def test_what_was_staged_before_a_move_needs_no_former_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        first, second, third = await on_one_node(cluster)
        where = TopicPartition(TOPIC, 0)
        await stage_values(cluster[3].backend, "sink", "stage", {where: [b"staged"]}, {where: [b"more"]})
        await move(cluster, second)
        await has_departed(cluster, first)
        await cluster.by_id(first).kill()
        other = cluster.by_id(third)
        assert (await other.backend.publish("sink", 1, "query", ["stage"])).published
        assert await other.values() == [*BEFORE, b"staged", b"more"]

    run_cluster(scenario, tmp_path)


class Gate:
    """Holds the reads of metadata of departures, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opens = asyncio.Event()
        self.waiting = 0
        confirm = Node.confirm_metadata

        async def held(node: Node, timeout: float) -> None:
            replica = node.partition(TopicPartition(TOPIC, 0))
            if replica is not None and replica.is_departing:
                self.waiting += 1
                await self.opens.wait()
            await confirm(node, timeout)

        monkeypatch.setattr(Node, "confirm_metadata", held)


@pytest.mark.slow
def test_a_replica_that_is_called_back_has_confirmed_nothing_meanwhile_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)

    async def scenario(cluster: NodeCluster) -> None:
        first, second, _ = await on_one_node(cluster)
        node, g = cluster.by_id(first), raft_group(cluster)
        await move(cluster, second)
        await until(lambda: gate.waiting)
        back = asyncio.create_task(move(cluster, first))
        await until(lambda: replica_of(node).move is not None)
        await asyncio.sleep(5.0)
        leader = driver_of(cluster.by_id(second)).groups[g].node
        assert leader is not None
        assert leader.raft.tracker.progress[first].match == 0, "it may yet forget what it confirms"
        gate.opens.set()
        await back
        await has_departed(cluster, second)
        assert g not in driver_of(node).departed
        await cluster[3].append(b"back")
        await check(cluster, b"back")

    run_cluster(scenario, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("moves_back", [False, True])
def test_a_departure_that_a_kill_ends_before_it_is_sure_goes_on_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves_back: bool
) -> None:
    gate = Gate(monkeypatch)

    async def scenario(cluster: NodeCluster) -> None:
        first, second, _ = await on_one_node(cluster)
        node = cluster.by_id(first)
        await move(cluster, second)
        await until(lambda: gate.waiting)
        await node.kill()
        gate.opens.set()
        if moves_back:
            back = asyncio.create_task(move(cluster, first))
            await node.start()
            await back
            await has_departed(cluster, second)
        else:
            await node.start()
            await has_departed(cluster, first)
            assert directories(cluster, node) == []
        await cluster[3].append(b"next")
        await check(cluster, b"next")

    run_cluster(scenario, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("moves_back", [False, True])
def test_files_that_a_kill_leaves_behind_the_record_are_removed_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves_back: bool
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        first, second, _ = await on_one_node(cluster)
        node, g = cluster.by_id(first), raft_group(cluster)
        reached = asyncio.Event()
        clear = Partitions.clear

        def never(*_: object) -> None:
            reached.set()

        monkeypatch.setattr(Partitions, "clear", never)
        await move(cluster, second)
        await reached.wait()
        term = driver_of(node).departed._groups[g].state.term
        await node.kill()
        monkeypatch.setattr(Partitions, "clear", clear)
        assert directories(cluster, node) == ["topic-0"]
        back: Awaitable[None] | None = None
        if moves_back:
            back = asyncio.create_task(move(cluster, first))
            await asyncio.sleep(1.0)
        await node.start()
        if back is None:
            await until(lambda: directories(cluster, node) == [])
            assert driver_of(node).departed._groups[g].state.term == term
            back = move(cluster, first)
        await back
        await has_departed(cluster, second)
        await cluster[3].append(b"next")
        await check(cluster, b"next")

    run_cluster(scenario, tmp_path)


def test_a_replica_that_has_gone_answers_nobody_with_an_empty_log(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        first, second, _ = await on_one_node(cluster)
        node = cluster.by_id(first)
        replica = replica_of(node)
        waiting = asyncio.create_task(node.backend._local.fetch(replica, 5, max_bytes=1000, max_wait=60.0))
        await move(cluster, second)
        await has_departed(cluster, first)
        ended = await waiting
        assert (list(ended.batches), ended.next_offset, ended.high_watermark) == ([], 5, 5)
        with pytest.raises(Unavailable):
            await node.backend._local.offset_ranges([replica])
        with pytest.raises(Unavailable):
            await node.backend._local.fetch(replica, 5, max_bytes=1000, max_wait=0)
        assert (await node.fetch(0)).high_watermark == 5, "from the other node"

    run_cluster(scenario, tmp_path)


@pytest.mark.slow
def test_whoever_waits_for_records_goes_on_elsewhere_before_metadata_is_sure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)

    async def scenario(cluster: NodeCluster) -> None:
        first, second, _ = await on_one_node(cluster)
        node = cluster.by_id(first)
        waiting = asyncio.create_task(node.fetch(5, max_wait=None))
        await settle()
        await move(cluster, second)
        await until(lambda: gate.waiting)
        await settle()
        assert waiting.done()
        ended = await waiting
        await cluster[3].append(b"moved")
        assert (list(ended.batches), ended.next_offset) == ([], 5)
        assert (await node.fetch(5)).next_offset == 6, "from the other node"
        gate.opens.set()

    run_cluster(scenario, tmp_path)

"""Idempotent producers of the embedded log: what they send again is there once, in clusters with
virtual time; over restarts, changes of the leader, copies and moves.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pixy.backend.embedded import producer_ids
from pixy.cluster.node_commands import NodeCommands
from pixy.cluster.replicas import retention
from pixy.config import StorageConfig
from pixy.errors import (
    DuplicateSequence,
    FailedPrecondition,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    PixyError,
    TooManyProducers,
    Unavailable,
)
from pixy.records import TopicPartition, producers
from tests.backend.test_copied_replicas import copied
from tests.backend.test_replicas_that_were_away import (
    OPTIONS,
    elect,
    fill,
    group_on,
    leader_of,
    quiet_and_busy,
)
from tests.cluster.moving import begin_move, set_level, until_moved
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.batches import batch_of_producer
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)


def send(
    node: ClusterNode, sequence: int, *values: bytes, producer_id: int = 0, epoch: int = 0
) -> asyncio.Future[int]:
    """Send a batch of a producer; the result is its offset."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(offset: int, error: PixyError | None) -> None:
        if error is None:
            answer.set_result(offset)
        else:
            answer.set_exception(error)

    now_ms = node.node.time.wall_ms()
    batch = batch_of_producer(producer_id, epoch, sequence, *values, timestamp_ms=now_ms)
    node.backend.append(TOPIC, batch, len(values), done)
    return answer


async def refused(answer: asyncio.Future[int]) -> type[BaseException]:
    """The class of an error."""
    with pytest.raises(PixyError) as error:
        await answer
    return error.type


def knows(node: ClusterNode, producers: int) -> bool:
    """True if the replica of a node knows so many producers."""
    replica = node.node.partition(TOPIC)
    return replica is not None and len(replica.producers or ()) == producers


async def leader(*nodes: ClusterNode) -> ClusterNode:
    """The node that leads, once there is one."""
    await until(lambda: any(group_on(node).leads for node in nodes))
    return leader_of(*nodes)


# --- a node alone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["stop", "kill"])
def test_a_batch_that_is_sent_again_is_written_once_also_after_a_start(tmp_path: Path, ends: str) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        node = cluster[1]
        await node.backend.create_topic("topic", 1)
        for sequence in range(0, 14, 2):
            assert await send(node, sequence, b"%d" % sequence, b"x") == sequence
        assert await send(node, 12, b"12", b"x") == 12
        for _ in range(2):
            await (node.stop() if ends == "stop" else node.kill())
            await node.start()
            assert [await send(node, each, b"again", b"x") for each in (4, 6, 8, 10, 12)] == [4, 6, 8, 10, 12]
            assert await refused(send(node, 2, b"again", b"x")) is DuplicateSequence
            assert await refused(send(node, 15, b"gap")) is OutOfOrderSequence
        assert await send(node, 14, b"14", epoch=0) == 14
        assert await send(node, 0, b"first", epoch=1) == 15
        assert await refused(send(node, 15, b"late")) is InvalidProducerEpoch
        values = await node.values()
        assert values == [*[each for at in range(0, 14, 2) for each in (b"%d" % at, b"x")], b"14", b"first"]

    run_cluster(scenario, tmp_path, 1)


def test_what_is_in_flight_is_answered_together_with_its_original(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        node = cluster[1]
        await node.backend.create_topic("topic", 1)
        answers = [send(node, sequence, b"%d" % sequence) for sequence in (0, 1, 0, 2, 1, 1, 2)]
        assert await asyncio.gather(*answers) == [0, 1, 0, 2, 1, 1, 2]
        assert await node.values() == [b"0", b"1", b"2"]

    run_cluster(scenario, tmp_path, 1)


def test_batches_of_many_producers_share_entries_and_each_has_its_answer(tmp_path: Path) -> None:
    """One that is not new sends the others of its entry on alone."""

    async def scenario(cluster: NodeCluster) -> None:
        node = cluster[1]
        await node.backend.create_topic("topic", 1)
        answers = [
            send(node, 5 if number == 30 else 0, b"%d" % number, producer_id=number) for number in range(40)
        ]
        again = [send(node, 0, b"%d" % number, producer_id=number) for number in range(20)]
        plain = [node.append_nowait(b"plain %d" % number) for number in range(3)]
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert isinstance(results.pop(30), OutOfOrderSequence)
        assert await asyncio.gather(*again) == results[:20]
        offsets = [*results, *await asyncio.gather(*plain)]
        assert sorted(map(int, offsets)) == list(range(42))  # type: ignore[arg-type]  # none is an error
        values = await node.values()
        expected = [b"%d" % number for number in range(40) if number != 30]
        expected += [b"plain %d" % number for number in range(3)]
        assert [values[offset] for offset in offsets] == expected  # type: ignore[index]  # see above

    run_cluster(scenario, tmp_path, 1)


def test_a_producer_goes_on_when_its_records_are_deleted(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        node = cluster[1]
        await node.backend.create_topic("topic", 1)
        await send(node, 0, b"0")
        await send(node, 1, b"1")
        await node.backend.delete_records("topic", {0: -1})
        assert await send(node, 1, b"1") == 1
        await node.stop()
        await node.start()
        assert await send(node, 1, b"1") == 1
        assert await send(node, 2, b"2") == 2

    run_cluster(scenario, tmp_path, 1)


def test_a_new_topic_of_the_same_name_knows_nobody(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        node = cluster[1]
        for _ in range(2):
            await node.backend.create_topic("topic", 1)
            assert await refused(send(node, 1, b"1")) is OutOfOrderSequence
            assert await send(node, 0, b"0") == 0
            await node.backend.delete_topic("topic")

    run_cluster(scenario, tmp_path, 1)


def test_lost_files_of_producers_are_made_anew(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        node = cluster[1]
        await node.backend.create_topic("topic", 1)
        for sequence in range(3):
            await send(node, sequence, b"%d" % sequence)
        await node.stop()
        (tmp_path / "1" / "topics" / "topic-0" / "producers").unlink()
        await node.start()
        assert [await send(node, sequence, b"again") for sequence in range(4)] == [0, 1, 2, 3]

    run_cluster(scenario, tmp_path, 1)


# --- ids ------------------------------------------------------------------------------------------


def test_no_producer_id_is_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "BLOCK_IDS", 3)

    async def scenario(cluster: NodeCluster) -> None:
        given: list[int] = []
        for life in range(3):
            asked = [node.backend.new_producer_id() for node in cluster.nodes.values() for _ in range(5)]
            given += await asyncio.gather(*asked)
            metadata = [
                node for node in cluster.nodes.values() if node.node.state_groups.metadata_replica.group.leads
            ]
            for node in cluster.nodes.values() if life else metadata:
                await node.kill()
            await asyncio.gather(*(node.start() for node in (cluster.nodes.values() if life else metadata)))
        assert len({*given}) == len(given) == 45
        assert min(given) == 0

    run_cluster(scenario, tmp_path)


def test_an_id_that_cannot_be_had_is_an_error_for_all_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = NodeCommands.allocate_producer_ids

    async def scenario(cluster: NodeCluster) -> None:
        async def fail(*_: object) -> int:
            raise Unavailable("no leader")

        monkeypatch.setattr(NodeCommands, "allocate_producer_ids", fail)
        backend = cluster[1].backend
        failed = await asyncio.gather(*(backend.new_producer_id() for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in failed] == [Unavailable] * 3
        monkeypatch.setattr(NodeCommands, "allocate_producer_ids", allocate)
        assert [await backend.new_producer_id() for _ in range(2)] == [0, 1]

    run_cluster(scenario, tmp_path, 1)


def test_while_a_node_has_an_older_release_there_are_no_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_level(monkeypatch, 10)

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        with pytest.raises(FailedPrecondition, match="needs feature level 11"):
            await cluster[1].backend.new_producer_id()
        assert await refused(send(cluster[1], 0, b"x")) is FailedPrecondition
        monkeypatch.undo()
        for node in cluster.nodes.values():
            await node.stop()
            await node.start()
        await until(
            lambda: all(node.node.state_groups.feature_level >= 11 for node in cluster.nodes.values())
        )
        assert await cluster[1].backend.new_producer_id() == 0
        assert await send(cluster[1], 0, b"x") == 0

    run_cluster(scenario, tmp_path, 2)


# --- several nodes --------------------------------------------------------------------------------


def test_a_batch_that_is_sent_to_every_node_is_written_once(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes = [*cluster.nodes.values()]
        await cluster[1].backend.create_topic("topic", 1)
        for sequence in range(20):
            answers = [send(node, sequence, b"%d" % sequence) for node in nodes]
            assert await asyncio.gather(*answers) == [sequence] * 3
        assert await refused(send(cluster[2], 21, b"gap")) is OutOfOrderSequence
        assert await cluster[3].values() == [b"%d" % sequence for sequence in range(20)]

    run_cluster(scenario, tmp_path)


def test_batches_of_one_producer_at_a_node_that_does_not_lead_keep_their_order(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes = [*cluster.nodes.values()]
        await cluster[1].backend.create_topic("topic", 1)
        leading = await leader(*nodes)
        follower = next(node for node in nodes if node is not leading)
        answers = [send(follower, sequence, b"%d" % sequence) for sequence in range(60)]
        assert await asyncio.gather(*answers) == list(range(60))

    run_cluster(scenario, tmp_path)


def test_a_node_without_a_replica_gets_the_answer_of_each_batch(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        (replicas,) = cluster[1].node.metadata.topics["topic"].replicas
        other = next(node for node in cluster.nodes.values() if node.id not in replicas)
        await send(other, 0, b"first")
        answers = [
            send(other, 9 if number == 20 else 0, b"%d" % number, producer_id=number) for number in range(40)
        ]
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert isinstance(results.pop(20), OutOfOrderSequence)
        assert results[0] == 0, "it was written before"
        assert sorted(map(int, results)) == list(range(39))  # type: ignore[arg-type]  # none is an error
        again = [send(other, 0, b"%d" % number, producer_id=number) for number in range(40) if number != 20]
        assert await asyncio.gather(*again) == results
        assert len(await other.values()) == 39

    run_cluster(scenario, tmp_path, 4)


def test_the_next_leader_knows_what_was_answered_and_what_was_not(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes = [*cluster.nodes.values()]
        await cluster[1].backend.create_topic("topic", 1)
        leading = await leader(*nodes)
        for sequence in range(3):
            await send(leading, sequence, b"%d" % sequence)
        others = [node for node in nodes if node is not leading]
        cluster.split(leading.number)
        lost = send(leading, 3, b"3")  # appended by a leader that nobody follows
        following = await leader(*others)
        assert [await send(following, sequence, b"again") for sequence in (2, 1, 0)] == [2, 1, 0]
        assert await send(following, 3, b"three") == 3
        assert await send(following, 4, b"4") == 4
        cluster.network.heal()
        # It is proposed to the next leader under its identity, and answered as a repetition.
        assert await lost == 3
        assert await leading.values() == [b"0", b"1", b"2", b"three", b"4"]

    run_cluster(scenario, tmp_path)


def test_a_shared_entry_of_a_lost_leader_comes_back_where_one_of_its_batches_was_sent_again(
    tmp_path: Path,
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes = [*cluster.nodes.values()]
        await cluster[1].backend.create_topic("topic", 1)
        leading = await leader(*nodes)
        await send(leading, 0, b"0", producer_id=100)
        others = [node for node in nodes if node is not leading]
        cluster.split(leading.number)
        lost = [send(leading, 0, b"%d" % number, producer_id=number) for number in range(30)]
        following = await leader(*others)
        assert await send(following, 0, b"again", producer_id=20) == 1
        cluster.network.heal()
        answers = await asyncio.gather(*lost)
        assert answers[20] == 1
        assert sorted(answers) == list(range(1, 31))
        values = await following.values()
        assert [values[answers[number]] for number in (0, 19, 20, 21)] == [b"0", b"19", b"again", b"21"]

    run_cluster(scenario, tmp_path)


async def only_knows_the_last_producer(cluster: NodeCluster) -> tuple[Sequence[ClusterNode], ClusterNode]:
    """Nodes with records of producers that are removed, and one that was away."""
    nodes, away = await quiet_and_busy(cluster)
    for sequence in range(3):
        await send(nodes[0], sequence, b"%d" % sequence)
    await send(nodes[0], 0, b"other", producer_id=1)
    await nodes[0].backend.delete_records("topic", {0: 6})
    await elect(nodes)
    await fill(nodes, until_lost=group_on(nodes[0]).applied_index)
    return nodes, away


@pytest.mark.parametrize("restarts", [False, True])
def test_a_copy_knows_also_producers_whose_records_are_gone(tmp_path: Path, restarts: bool) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await only_knows_the_last_producer(cluster)
        await away.start()
        await copied(away, [*nodes])
        assert knows(away, 2)
        if restarts:
            await away.kill()
            await away.start()
        await nodes[1].kill()
        leading = await leader(nodes[0], away)
        if leading is not away:
            leading.node._log.driver.transfer(group_on(leading), away.id)
            await until(lambda: group_on(away).leads)
        assert [await send(away, sequence, b"again") for sequence in range(3)] == [3, 4, 5]
        assert await send(away, 0, b"again", producer_id=1) == 6
        assert await send(away, 3, b"3") == 7

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_a_partition_that_moves_takes_its_producers_with_it(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        for sequence in range(3):
            await send(cluster[1], sequence, b"%d" % sequence)
        other = await cluster.add()
        await until(lambda: all(other.id in each.node.metadata.started for each in cluster.nodes.values()))
        await begin_move(cluster[1], (other.id,))
        await until_moved([*cluster.nodes.values()], (other.id,))
        for node in cluster.nodes.values():
            assert [await send(node, sequence, b"again") for sequence in range(3)] == [0, 1, 2]
        await other.kill()
        await other.start()
        assert await send(cluster[1], 2, b"again") == 2
        assert await send(cluster[1], 3, b"3") == 3
        # And back, to a node that has known them before.
        await begin_move(other, (1,))
        await until_moved([*cluster.nodes.values()], (1,))
        assert await send(other, 3, b"again") == 3
        assert await send(other, 4, b"4") == 4

    run_cluster(scenario, tmp_path, 1)


def test_a_producer_that_writes_nothing_is_forgotten_by_all_at_the_word_of_the_leader(tmp_path: Path) -> None:
    storage = replace(StorageConfig(reserve_bytes=0), producers_retention=20.0, retention_check=1.0)
    options: dict[str, Any] = {"storage": storage}

    async def scenario(cluster: NodeCluster) -> None:
        nodes = [*cluster.nodes.values()]
        await cluster[1].backend.create_topic("topic", 1)
        await asyncio.sleep(5)
        await send(cluster[1], 0, b"quiet", producer_id=1)
        began = asyncio.get_running_loop().time()
        sequence = 0
        while not all(knows(node, 1) for node in nodes):
            await send(cluster[1], sequence, b"busy", producer_id=2)
            sequence += 1
            await asyncio.sleep(0.5)
        assert 20 <= asyncio.get_running_loop().time() - began < 30
        assert await refused(send(cluster[1], 7, b"new", producer_id=3)) is OutOfOrderSequence
        assert await send(cluster[1], 7, b"back", producer_id=1) == sequence + 1

    run_cluster(scenario, tmp_path, **options)


def test_a_crowded_partition_forgets_those_that_are_quiet_and_takes_new_ones_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 4)
    monkeypatch.setattr(retention, "CROWDED", 3)
    monkeypatch.setattr(retention, "QUIET_MS", 10_000)
    options: dict[str, Any] = {"storage": StorageConfig(reserve_bytes=0, retention_check=1.0)}

    async def scenario(cluster: NodeCluster) -> None:
        node = cluster[1]
        await node.backend.create_topic("topic", 1)
        await asyncio.sleep(5)
        for producer_id in range(4):
            await send(node, 0, b"x", producer_id=producer_id)
        assert await refused(send(node, 0, b"x", producer_id=4)) is TooManyProducers
        for sequence in range(1, 20):
            assert await send(node, sequence, b"x") == sequence + 3
            await asyncio.sleep(1)
        assert knows(node, 1)
        assert await send(node, 0, b"x", producer_id=4) == 23

    run_cluster(scenario, tmp_path, 1, **options)

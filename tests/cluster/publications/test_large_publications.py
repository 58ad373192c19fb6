"""Publications of many parts: what is done for each of them leaves the event loop to others."""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pixy.aio.tasks import Tasks
from pixy.cluster.publications import replicated_staging
from pixy.cluster.publications.replicated_roll_forward import _Leadership
from pixy.cluster.state import Publication, part_commands, publications, stage_table
from pixy.cluster.state.publications import SinksState, StagePieces
from pixy.cluster.state.stage_table import ReplicatedStage
from pixy.errors import FailedPrecondition
from pixy.proto.state_pb2 import PiecePart, PieceRecord, PublicationPart, PublishStages
from pixy.records import TopicPartition
from pixy.staging import StageName
from tests.cluster.node_clusters import NodeCluster, run_cluster
from tests.cluster.nodes import Cluster
from tests.cluster.staging import finished, publish, stage
from tests.cluster.staging import piece_of as piece_of_values
from tests.conformance.staged import publish_values
from tests.fakes.waiting import until

TOPIC_ID = b"a" * 16
PARTITIONS, STAGES = 4000, 3


async def turns_of(work: Coroutine[Any, Any, Any]) -> int:
    """Iterations of the event loop that others have beside some work."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    task.result()
    return turns


def piece_of(number: int, parts: int) -> PieceRecord:
    extents = [
        PiecePart(topic="topic", topic_id=TOPIC_ID, partition=partition, bytes=10, records=1)
        for partition in range(parts)
    ]
    return PieceRecord(number=number, parts=extents)


def publication_of(pieces: list[bytes]) -> Publication:
    parts = [PublicationPart(topic="topic", topic_id=TOPIC_ID, partition=each) for each in range(PARTITIONS)]
    stages = tuple(StagePieces(number, f"{number}", pieces) for number in range(1, STAGES + 1))
    return Publication(7, "sink", ("1", "2", "3"), tuple(parts), stages)


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, PARTITIONS])
async def test_the_commands_of_a_publication_are_made_in_steps(pieces: int) -> None:
    """Of few pieces with many parts, and of many pieces with one."""
    parts = PARTITIONS // pieces
    made = [piece_of(number, parts).SerializeToString() for number in range(pieces)]
    publication = publication_of(made)
    assert await turns_of(part_commands(publication)) >= PARTITIONS * (STAGES + 1) // 500
    commands = await part_commands(publication)
    first = commands[TOPIC_ID, 0]
    assert [part.stage_id for part in first.parts] == ["1", "2", "3"]
    assert [(part.bytes, len(part.pieces)) for part in first.parts] == [(10 * pieces, pieces)] * STAGES
    assert len(commands[TOPIC_ID, PARTITIONS - 1].parts) == (STAGES if pieces == 1 else 0)


class Begun(_Leadership):
    """A leadership that notes what it begins."""

    def __init__(self, tasks: Tasks) -> None:
        super().__init__(None, tasks)  # type: ignore[arg-type]  # not asked
        self.begun: list[Any] = []

    async def _roll(self, key: Any, queue: Any) -> None:
        self.begun.append(key)


async def test_the_partitions_of_a_publication_are_begun_in_steps() -> None:
    faults: list[BaseException] = []
    tasks = Tasks(faults.append)
    leadership = Begun(tasks)
    publication = publication_of([])
    turns = await turns_of(leadership._roll_all(publication, await part_commands(publication)))
    assert turns >= PARTITIONS // 500
    await tasks.wait_all()
    assert len(leadership.begun) == PARTITIONS
    assert faults == []


async def test_the_topics_of_a_publication_are_found_in_steps() -> None:
    stages = []
    for number in range(1, 2001):
        stages.append(ReplicatedStage(number, StageName("sink", f"{number}")))
        stages[-1].add(piece_of(0, 3))
    assert await turns_of(replicated_staging._sizes(stages)) >= 4
    assert await replicated_staging._sizes(stages) == {("topic", TOPIC_ID): (6000, 60000)}


@pytest.mark.slow
def test_all_nodes_merge_the_stages_of_a_publication_before_they_apply_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[SinksState] = []
    prepare = SinksState.prepare

    def prepare_and_note(state: SinksState, payload: bytes | bytearray) -> Iterator[None] | None:
        steps = prepare(state, payload)
        if steps is not None:
            prepared.append(state)
        return steps

    monkeypatch.setattr(SinksState, "prepare", prepare_and_note)
    for module in (stage_table, publications):
        monkeypatch.setattr(module, "TOTALS_PER_STEP", 1)
    monkeypatch.setattr(publications, "merged_parts", lambda _: pytest.fail("merged in one step"))
    values = {TopicPartition("topic", number): [b"%d" % number] for number in range(3)}

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3)
        for epoch in (1, 2):
            assert (await publish_values(cluster[1].backend, epoch, values)).published
        nodes = cluster.nodes.values()
        for node in nodes:
            for number in range(3):
                assert await node.values(partition=number) == [b"%d" % number] * 2
        await until(lambda: not any(node.node.state_groups.sinks.publications for node in nodes))
        states = [node.node.state_groups.sinks for node in nodes]
        assert sorted(map(id, prepared)) == sorted(map(id, states * 2))
        await until(lambda: not any(state._by_partition for state in states))

    run_cluster(scenario, tmp_path)


@pytest.mark.slow
async def test_a_node_alone_merges_the_stages_of_a_publication_in_steps(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        stages = [f"{number}" for number in range(300)]
        for name in stages:
            await stage(
                cluster, name, piece_of_values(cluster, b"1"), piece_of_values(cluster, b"2", partition=1)
            )
        publisher = cluster.node.publisher
        sealed = [publisher._stages.sealed(StageName("sink", name), "") for name in stages]
        assert await turns_of(publisher._add_parts(PublishStages(), sealed)) >= 2
        # Another one of the sink waits, a discard leaves the stages, a deletion refuses them.
        first = asyncio.ensure_future(publish(cluster, 1, *stages))
        second = asyncio.ensure_future(publish(cluster, 2, "0"))
        await asyncio.sleep(0)
        assert (list(publisher._committing), sealed[0].holders) == (["sink"], 1)
        await publisher.discard("sink", stages)
        assert (await first).published
        with pytest.raises(FailedPrecondition, match="stage 0 of sink sink"):
            await second
        assert publisher._committing == {}
        await finished(cluster)
        assert cluster.values() == [b"1"] * 300


@pytest.mark.slow
async def test_a_publication_of_a_topic_that_is_deleted_while_it_is_merged_is_refused(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        stages = [f"{number}" for number in range(600)]
        for name in stages:
            await stage(cluster, name, piece_of_values(cluster, b"1"))
        publisher = cluster.node.publisher
        topic = cluster.node.metadata.topics["topic"]
        publishing = asyncio.ensure_future(publish(cluster, 1, *stages))
        await asyncio.sleep(0)
        assert "sink" in publisher._committing
        with (
            publisher.deleting(topic, force=True),
            pytest.raises(FailedPrecondition, match="was deleted since"),
        ):
            await publishing
        assert publisher._committing == {}
        assert {stage.holders for stage in publisher._stages.of_sink("sink")} == {0}
        assert (await publish(cluster, 1, *stages)).published

"""Stages on a node: limits, full and broken disks, and repeated requests."""

import asyncio
import errno
from pathlib import Path

import pytest

from pixy.errors import FailedPrecondition, PixyError, ResourceExhausted, StorageFault, Unavailable
from pixy.staging import StageCall, StageName, StageSeal, stages
from tests.cluster.nodes import Cluster, copy_of
from tests.cluster.staging import finished, piece_of, publish, seal_of, stage, staged
from tests.fakes.disk import full
from tests.fakes.waiting import until
from tests.fakes.worker import InlineWorker, StepWorker


async def test_staged_bytes_pieces_and_stages_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        piece = piece_of(cluster, b"1" * 100)
        size = len(piece[0].batches)
        cluster.node.publisher._stages._bytes_max = 3 * size - 1
        await stage(cluster, "a", piece)
        await stage(cluster, "b", piece)
        with pytest.raises(ResourceExhausted, match=r"staging\.max_bytes"):
            await stage(cluster, "c", piece)
        await cluster.node.publisher.discard("sink", ["a"])
        await stage(cluster, "c", piece)
        monkeypatch.setattr(stages, "STAGES_MAX", 2)
        with pytest.raises(ResourceExhausted, match=r"2 stages"):
            await stage(cluster, "d", piece)
        monkeypatch.setattr(stages, "STAGE_BYTES_MAX", 2 * size - 1)
        await cluster.node.publisher.discard("sink", ["b"])
        await cluster.node.publisher.stage(StageCall(StageName("sink", "e"), 0, piece))
        with pytest.raises(ResourceExhausted, match=r"begin another one"):
            await cluster.node.publisher.stage(StageCall(StageName("sink", "e"), 1, piece))


@pytest.mark.slow
async def test_extents_of_stages_are_bounded_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 3)
        taken, ask = cluster.node.publisher._stages, cluster.node.publisher.stage
        whole = [each for partition in range(3) for each in piece_of(cluster, b"1", partition=partition)]
        await ask(StageCall(StageName("sink", "a"), 0, whole))
        await ask(StageCall(StageName("sink", "a"), 0, whole))
        await ask(StageCall(StageName("sink", "a"), 1, whole[:1]))
        assert taken.extents == 4 + 2
        full(cluster.disk, "write", ".batches")
        with pytest.raises(Unavailable):
            await ask(StageCall(StageName("sink", "a"), 2, whole[:2]))
        cluster.disk.heal()
        assert taken.extents == 4 + 2
        monkeypatch.setattr(stages, "EXTENTS_MAX", 9)
        for name in ("a", "b"):
            with pytest.raises(ResourceExhausted, match=r"6 pieces and parts of pieces, and 9 are allowed"):
                await ask(StageCall(StageName("sink", name), 2, whole))
        # Once sealed, its extents are two pieces and three partitions.
        await ask(StageCall(StageName("sink", "a"), 0, [], StageSeal(*seal_of(whole, whole[:1]))))
        assert taken.extents == 2 + 3
        await ask(StageCall(StageName("sink", "b"), 0, whole))
        assert taken.extents == 9
        killed = copy_of(cluster.directory, "killed")
        await cluster.node.publisher.discard("sink", ["b"])
        await publish(cluster, 0, "a")
        await finished(cluster)
        assert taken.extents == 0
    async with Cluster(killed).running() as again:
        # The unsealed stage is gone.
        assert again.node.publisher._stages.extents == 5
        await again.node.publisher.discard("sink", ["a"])
        assert again.node.publisher._stages.extents == 0


async def test_a_full_disk_refuses_pieces_and_the_stage_continues_once_there_is_room(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        first, second = piece_of(cluster, b"1"), piece_of(cluster, b"2")
        name = StageName("sink", "a")
        size = await cluster.node.publisher.stage(StageCall(name, 0, first))
        full(cluster.disk, "write", ".batches")
        with pytest.raises(Unavailable, match=r"full"):
            await cluster.node.publisher.stage(StageCall(name, 1, second))
        cluster.disk.heal()
        assert await cluster.node.publisher.stage(StageCall(name, 1, second)) == 2 * size
        await stage(cluster, "a", first, second)
        await publish(cluster, 0, "a")
        assert cluster.values() == [b"1", b"2"]


async def test_a_stage_whose_sync_fails_is_dropped_and_the_node_continues(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        cluster.disk.fail("sync", ".batches", 5)
        with pytest.raises(PixyError, match=r"not written"):
            await stage(cluster, "a", piece_of(cluster, b"1"))
        cluster.disk.heal()
        await cluster.settle()
        assert staged(cluster) == []
        with pytest.raises(FailedPrecondition):
            await publish(cluster, 0, "a")
        await stage(cluster, "b", piece_of(cluster, b"1"))
        await publish(cluster, 0, "b")
        assert cluster.values() == [b"1"]


async def test_concurrent_pieces_and_seals_are_accepted_once(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        name, piece = StageName("sink", "a"), piece_of(cluster, b"1")
        seal = StageSeal(*seal_of(piece))
        ask = cluster.node.publisher.stage
        sizes = await asyncio.gather(*(ask(StageCall(name, 0, piece, seal)) for _ in range(5)))
        assert sizes == [len(piece[0].batches)] * 5
        assert len(cluster.disk.did("write", ".batches")) == 1
        assert len(cluster.disk.did("rename", "stage")) == 1
        await publish(cluster, 0, "a")
        assert cluster.values() == [b"1"]


async def test_the_piece_of_a_cancelled_caller_is_written(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        piece = piece_of(cluster, b"1")
        staging = asyncio.create_task(
            cluster.node.publisher.stage(
                StageCall(StageName("sink", "a"), 0, piece, StageSeal(*seal_of(piece)))
            )
        )
        await asyncio.sleep(0)
        staging.cancel()
        await stage(cluster, "a", piece)
        await publish(cluster, 0, "a")
        assert cluster.values() == [b"1"]


async def test_queued_bytes_are_bounded_even_if_their_callers_went_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        piece = piece_of(cluster, b"1" * 100)
        monkeypatch.setattr(stages, "QUEUED_BYTES_MAX", 2 * len(piece[0].batches))
        asked = [
            asyncio.create_task(
                cluster.node.publisher.stage(StageCall(StageName("sink", "a"), number, piece))
            )
            for number in range(3)
        ]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(each, Unavailable) for each in results] == [False, False, True]
        await cluster.node.publisher.stage(StageCall(StageName("sink", "a"), 2, piece))


async def test_a_stage_discarded_while_a_piece_is_written_frees_its_space(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        piece = piece_of(cluster, b"1")
        staging = asyncio.create_task(
            cluster.node.publisher.stage(StageCall(StageName("sink", "a"), 0, piece))
        )
        await asyncio.sleep(0)
        await cluster.node.publisher.discard("sink", ["a"])
        await staging
        assert cluster.node.publisher._stages.bytes == 0
        assert staged(cluster) == []
        with pytest.raises(FailedPrecondition):
            await cluster.node.publisher.stage(
                StageCall(StageName("sink", "a"), 0, [], StageSeal(*seal_of(piece)))
            )


async def test_a_seal_waits_for_pieces_that_arrive_meanwhile_and_is_refused_if_one_fails(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        ask, name = cluster.node.publisher.stage, StageName("sink", "a")
        first, second = piece_of(cluster, b"1"), piece_of(cluster, b"2")
        seal = StageSeal(*seal_of(first, second))
        cluster.node.publisher._stages._jobs._worker = worker = StepWorker()
        asked = [
            asyncio.create_task(each)
            for each in (
                ask(StageCall(name, 0, first)),
                ask(StageCall(name, 0, [], seal)),
                ask(StageCall(name, 1, second)),
            )
        ]
        await asyncio.sleep(0)
        worker.step()
        await until(asked[0].done)
        await asyncio.sleep(0)
        full(cluster.disk, "write", ".batches")
        while worker:
            worker.step()
        cluster.disk.heal()
        taken, sealed, refused = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(taken, int)
        assert isinstance(sealed, FailedPrecondition)
        assert "piece 1 is missing" in str(sealed)
        assert isinstance(refused, Unavailable)
        cluster.node.publisher._stages._jobs._worker = InlineWorker()
        await ask(StageCall(name, 1, second, seal))
        await publish(cluster, 0, "a")
        assert cluster.values() == [b"1", b"2"]


async def test_a_stage_whose_directory_may_not_be_durable_stops_the_node(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        # The disk reports that it has made the directory, but could not sync its name.
        cluster.disk.fail("make_directory", "", errno.EIO)
        with pytest.raises(StorageFault, match=r"not written"):
            await stage(cluster, "a", piece_of(cluster, b"1"))
        assert [type(fault) for fault in cluster.faults] == [StorageFault]
        cluster.faults.clear()

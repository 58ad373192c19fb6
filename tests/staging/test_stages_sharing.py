"""Stages of many clients share one worker: nobody waits until all files of another are written,
pieces that nobody waits for are not written, and a stop does not write what is queued.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pixy.aio.futures import resolve
from pixy.errors import FailedPrecondition, ShuttingDown, Unavailable
from pixy.records import crc32c
from pixy.staging import PieceBatches, Stage, StageCall, StageClient, StageName, Stages, StageSeal, seal_crc
from pixy.staging import stages as stages_module
from pixy.storage import ThreadWorker, Worker
from tests.fakes.disk import RecordingDisk
from tests.fakes.waiting import settle
from tests.fakes.worker import InlineWorker, StepWorker
from tests.staging.stages import piece_of
from tests.storage.logs import CLUSTER_ID

A, B = StageClient("10.0.0.1", 1 << 30), StageClient("10.0.0.2", 1 << 30)
WIDE = [piece_of(b"1", partition=number) for number in range(50)]
"""A piece that takes four steps, and as many for the seal."""


class Bench:
    """Stages whose worker runs a step when the test says so."""

    def __init__(self, directory: Path, worker: Worker) -> None:
        self.disk = RecordingDisk()
        self.faults: list[BaseException] = []
        self.stages = Stages(self.disk, directory, worker, 1 << 30, self.faults.append)
        self.tasks: list[asyncio.Task[int]] = []

    def ask(
        self, name: str, pieces: Sequence[PieceBatches], client: StageClient = A, *, seals: bool = True
    ) -> "asyncio.Task[int]":
        """Stage one piece, and seal the stage."""
        seal = seal_of(pieces) if seals else None
        task = asyncio.create_task(
            self.stages.stage(StageCall(StageName(*name.split("/")), 0, pieces, seal, client))
        )
        self.tasks.append(task)
        return task

    def stage(self, name: str) -> Stage | None:
        return self.stages.get(StageName(*name.split("/")))

    @property
    def files(self) -> int:
        """Files that were written."""
        return len({call.name for call in self.disk.did("write", ".batches")})


def seal_of(pieces: Sequence[PieceBatches]) -> StageSeal:
    crc = 0
    for each in pieces:
        crc = crc32c(each.batches, crc)
    return StageSeal(1, seal_crc([crc]))


@asynccontextmanager
async def made(directory: Path) -> AsyncIterator[tuple[Bench, StepWorker]]:
    bench, worker = Bench(directory, InlineWorker()), StepWorker()
    await bench.stages.recover(CLUSTER_ID)
    bench.stages._jobs._worker = worker
    yield bench, worker
    for task in bench.tasks:
        task.cancel()
    await asyncio.gather(*bench.tasks, return_exceptions=True)
    assert bench.faults == []


async def steps_until(task: "asyncio.Future[Any]", worker: StepWorker) -> int:
    """Run the worker until a call is answered."""
    steps = 0
    while not task.done():
        await settle(3)
        if not task.done():
            worker.step()
            steps += 1
    return steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("others", "own", "client", "at_most"),
    [
        pytest.param("sink/stage{}", "own/stage", A, 4, id="another sink of the same address"),
        pytest.param("sink{}/stage", "own/stage", B, 4, id="another address with many sinks"),
        pytest.param("sink/stage{}", "sink/own", B, 4, id="another address, the same sink"),
    ],
)
async def test_a_small_stage_does_not_wait_for_the_files_of_others(
    tmp_path: Path, others: str, own: str, client: StageClient, at_most: int
) -> None:
    async with made(tmp_path / "staging") as (bench, worker):
        for number in range(20):  # a thousand files
            bench.ask(others.format(number), WIDE, A)
        await settle()
        worker.step()
        # Its piece and its seal, each behind the step in progress or one of the other's.
        assert await steps_until(bench.ask(own, [piece_of(b"2")], client), worker) <= at_most
        assert bench.files <= 3 * 16 + 1
        discarding: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stage = bench.stage(own)
        assert stage is not None
        bench.stages.remove([stage], partial(resolve, discarding, None))
        for _ in range(8):
            worker.step()
            await settle(3)
        assert discarding.done()


@pytest.mark.slow
async def test_stages_of_many_files_are_written_and_sealed_in_steps(tmp_path: Path) -> None:
    async with made(tmp_path / "staging") as (bench, worker):
        asked = [bench.ask(f"sink{number % 3}/{number}", WIDE, (A, B)[number % 2]) for number in range(6)]
        steps = 0
        for task in asked:
            steps += await steps_until(task, worker)
            size = task.result()
            assert size == sum(len(each.batches) for each in WIDE)
        assert steps == 6 * 2 * 4  # 50 files, 16 in each
        for number in range(6):
            stage = bench.stage(f"sink{number % 3}/{number}")
            assert stage is not None
            assert stage.record is not None
            assert len(stage.record.parts) == 50
        again = Bench(tmp_path / "staging", InlineWorker())
        await again.stages.recover(CLUSTER_ID)
        assert len(again.stages.of_sink("sink0")) == 2
        assert again.stages.bytes == bench.stages.bytes


async def test_a_piece_whose_callers_have_gone_is_not_written_and_a_retry_is(tmp_path: Path) -> None:
    async with made(tmp_path / "staging") as (bench, worker):
        begun = bench.ask("sink/begun", WIDE)
        left = [bench.ask(f"sink/{number}", WIDE) for number in range(20)]
        kept = [bench.ask("sink/kept", [piece_of(b"2")]) for _ in range(2)]
        await settle()
        for task in (begun, *left, kept[0]):
            task.cancel()
        await settle()
        # What has begun goes on, and what another caller waits for; the others have left nothing.
        assert [stage.name.stage_id for stage in bench.stages.of_sink("sink")] == ["begun", "kept"]
        assert bench.stages.extents == 51 + 2
        await steps_until(kept[1], worker)
        assert bench.files == 50
        assert await steps_until(bench.ask("sink/begun", WIDE), worker)
        await steps_until(bench.ask("sink/0", WIDE), worker)
        assert bench.tasks[-1].result()
        sizes = [stage.size for stage in bench.stages.of_sink("sink")]
        assert bench.stages.bytes == bench.stages.bytes_of[A.address] == sum(sizes)
        assert bench.stages._queued_bytes == 0


async def test_a_seal_whose_caller_has_gone_is_not_written_and_a_retry_is(tmp_path: Path) -> None:
    async with made(tmp_path / "staging") as (bench, worker):
        await steps_until(bench.ask("sink/a", WIDE, seals=False), worker)
        bench.ask("sink/before", WIDE)
        seal = seal_of(WIDE)
        sealing = asyncio.create_task(bench.stages.stage(StageCall(StageName("sink", "a"), 0, [], seal, A)))
        await settle()
        stage = bench.stage("sink/a")
        assert stage is not None
        assert stage.sealing is not None
        sealing.cancel()
        await settle()
        assert stage.seal is None
        assert bench.disk.did("sync", ".batches") == []
        bench.tasks.append(asyncio.create_task(bench.stages.stage(StageCall(stage.name, 0, [], seal, A))))
        await steps_until(bench.tasks[-1], worker)
        assert bench.tasks[-1].result() == stage.size
        assert stage.record is not None


async def test_pieces_of_a_discarded_stage_are_not_written(tmp_path: Path) -> None:
    async with made(tmp_path / "staging") as (bench, worker):
        asked = [bench.ask(f"sink/{number}", WIDE) for number in range(4)]
        await settle()
        discarded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bench.stages.remove(bench.stages.of_sink("sink")[1:], partial(resolve, discarded, None))
        await settle()
        for task in asked[1:]:
            with pytest.raises(FailedPrecondition, match=r"of sink sink was discarded"):
                task.result()
        await steps_until(asked[0], worker)
        while not discarded.done():
            worker.step()
            await settle(3)
        assert bench.files == 50
        assert bench.stages.bytes == asked[0].result()
        assert bench.stages.extents == 1 + 50


async def test_a_stop_answers_whoever_waits_and_ends_removals_only(tmp_path: Path) -> None:
    directory = tmp_path / "staging"
    bench = Bench(directory, ThreadWorker("test-staging"))
    await bench.stages.recover(CLUSTER_ID)
    for name in ("sink/old", "sink/kept"):
        await bench.ask(name, WIDE)
    for sink in range(10):
        for number in range(3):
            bench.ask(f"sink{sink}/{number}", WIDE)
    await settle(1)
    stage = bench.stage("sink/old")
    assert stage is not None
    bench.stages.remove([stage], lambda: None)
    bench.stages.stop()
    results = await asyncio.gather(*bench.tasks[2:], return_exceptions=True)
    assert [type(each) for each in results] == [ShuttingDown] * 30
    with pytest.raises(ShuttingDown):
        await bench.ask("sink/later", WIDE)
    # One step of the thousand and a half.
    assert bench.files <= 50 + 16
    assert bench.faults == []
    again = Bench(directory, InlineWorker())
    await again.stages.recover(CLUSTER_ID)
    assert [stage.name.stage_id for stage in again.stages.of_sink("sink")] == ["kept"]
    assert again.stages.sinks() == ["sink"]


@pytest.mark.slow
async def test_a_start_waits_for_no_removal_and_clients_take_turns_with_it(tmp_path: Path) -> None:
    """Stages that a killed process has not sealed are removed behind the start; a stop in between
    leaves the rest to the next one.
    """
    directory = tmp_path / "staging"
    async with made(directory) as (bench, worker):
        for number in range(20):  # a thousand files
            await steps_until(bench.ask(f"sink/{number}", WIDE, seals=False), worker)
        assert bench.disk.did("unlink") == []
    for client_asks, stops in ((True, True), (False, False)):
        worker = StepWorker()
        again = Bench(directory, worker)
        recovering = asyncio.ensure_future(again.stages.recover(CLUSTER_ID))
        await steps_until(recovering, worker)
        await recovering
        assert again.disk.did("unlink") == []
        if client_asks:
            assert await steps_until(again.ask("sink/new", [piece_of(b"1")]), worker) <= 4
            assert 0 < len(again.disk.did("unlink", ".batches")) <= 150
        if stops:
            again.stages.stop()
            assert len(again.disk.did("unlink", ".batches")) <= 200
        while worker:
            worker.step()
            await settle(3)
        assert again.faults == []
    assert [stage.name.stage_id for stage in again.stages.of_sink("sink")] == ["new"]
    assert len(again.disk.names(directory)) == 1


@pytest.mark.parametrize("what", ["unlink", "remove_directory"])
async def test_a_disk_that_is_too_full_to_remove_what_an_earlier_process_has_left_stops_nothing(
    tmp_path: Path, what: str
) -> None:
    """As where a removal needs room; the next start removes it."""
    directory = tmp_path / "staging"
    async with made(directory) as (bench, worker):
        await steps_until(bench.ask("sink/old", WIDE, seals=False), worker)
    for is_full, left in ((True, 2), (False, 1)):
        again = Bench(directory, InlineWorker())
        if is_full:
            again.disk.fail(what, "", errno.ENOSPC)
        with capture_logs() as logs:
            await again.stages.recover(CLUSTER_ID)
            await again.ask("sink/new", [piece_of(b"1")])
            await settle(30)
        assert ("cannot remove a directory" in str(logs)) is is_full
        assert len(again.disk.names(directory)) == left
        assert again.faults == []
        again.stages.stop()


async def test_stages_of_several_clients_are_removed_together(tmp_path: Path) -> None:
    async with made(tmp_path / "staging") as (bench, worker):
        for number, client in enumerate((A, B, A)):
            await steps_until(bench.ask(f"sink/{number}", WIDE, client), worker)
        ends: list[int] = []
        bench.stages.remove(bench.stages.of_sink("sink"), lambda: ends.append(bench.stages.bytes))
        bench.stages.remove([], lambda: ends.append(-1))
        await settle()
        assert ends == [-1]
        while worker:
            worker.step()
            await settle(3)
        assert ends == [-1, 0]
        assert bench.disk.names(tmp_path / "staging") == []
        assert +bench.stages.bytes_of == {}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["create", "write", "rename"])
async def test_a_disk_that_is_full_while_a_removal_takes_its_turns_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Pieces that come meanwhile are refused; the removal gets on, and then there is room."""
    monkeypatch.setattr(stages_module, "_REMOVE_AGAIN_S", 0.0)
    async with made(tmp_path / "staging") as (bench, worker):
        for name in ("sink/old", "sink/older"):
            await steps_until(bench.ask(name, WIDE), worker)
        removing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        old = [stage for name in ("sink/old", "sink/older") if (stage := bench.stage(name))]
        bench.stages.remove(old, partial(resolve, removing, None))
        worker.step()  # the removal has begun
        bench.disk.fail(what, "-deleted" if what == "rename" else ".batches", errno.ENOSPC)
        refused = bench.ask("sink/new", WIDE, B)
        if what != "rename":
            await steps_until(refused, worker)
            with pytest.raises(Unavailable, match="the disk is full"):
                await refused
        for _ in range(10):
            await settle(3)
            if worker:
                worker.step()
        assert bench.stage("sink/old") is None, "it is not there for anybody, whatever the disk does"
        bench.disk.heal()
        await steps_until(removing, worker)
        assert bench.stages.bytes_of[A.address] == 0
        assert not any(name.endswith("-deleted") for name in bench.disk.names(tmp_path / "staging"))
        again = bench.ask("sink/new", WIDE, B)
        await steps_until(again, worker)
        assert await again == bench.stages.bytes

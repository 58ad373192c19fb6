"""Jobs of simulated threads: others run between their calls on the disk, in an order that follows
from the seed.
"""

import asyncio
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tests.sim.disk import Ended, SimulatedDisk
from tests.sim.disks import DIRECTORY, make
from tests.sim.loop import VirtualLoop
from tests.sim.worker import SimulatedWorker


def write(disk: SimulatedDisk, name: str, happened: list[str]) -> str:
    file = disk.open(DIRECTORY / name, create=True)
    for number in range(10):
        happened.append(f"{name}{number}")
        file.write_at([b"x"], number)
    file.close()
    return name


async def run(disk: SimulatedDisk, seed: int, *, stops_at: float | None = None) -> list[str]:
    """Events of two workers and the loop, with two jobs each, in order."""
    rng, happened = Random(seed), list[str]()
    workers = [SimulatedWorker(disk, rng, interleaves=True) for _ in range(2)]

    def done(result: Any, error: BaseException | None) -> None:
        happened.append(f"{result} done {error}")

    for worker, name in zip(workers * 2, "abcd", strict=True):
        worker.submit(lambda name=name: write(disk, name, happened), done)  # type: ignore[misc]
    for _ in range(200):
        if stops_at is not None and asyncio.get_running_loop().time() >= stops_at:
            break
        happened.append("loop")
        await asyncio.sleep(0.0005)
    for worker in workers:
        worker.stop()
    await asyncio.sleep(0)
    return happened


def outcome(seed: int, *, stops_at: float | None = None) -> list[str]:
    with asyncio.Runner(loop_factory=VirtualLoop, debug=False) as runner:
        return runner.run(run(make(), seed, stops_at=stops_at))


@pytest.mark.slow
def test_jobs_of_two_workers_and_the_loop_interleave() -> None:
    """A call of a job is followed by one of another worker, or by an iteration of the loop."""
    follows = {
        (one[:1], two[:1]) for seed in range(20) for one, two in pairwise(outcome(seed)) if one[1:] != "9"
    }
    assert follows >= {("a", "b"), ("b", "a"), ("a", "l"), ("d", "l"), ("c", "d"), ("d", "c")}


@pytest.mark.slow
def test_each_worker_runs_all_its_jobs_in_order() -> None:
    for seed in range(20):
        happened = outcome(seed)
        for worker in ("ac", "bd"):
            first = [each for each in happened if each[0] in worker and len(each) == 2]
            assert first == [f"{name}{number}" for name in worker for number in range(10)]
        assert {each for each in happened if each.endswith("None")} == {
            f"{name} done None" for name in "abcd"
        }


def test_one_seed_is_one_order() -> None:
    assert outcome(7) == outcome(7)
    assert outcome(7) != outcome(8)


@pytest.mark.slow
def test_a_stop_runs_all_submitted_jobs() -> None:
    for seed in range(20):
        assert sum(each.endswith("None") for each in outcome(seed, stops_at=0.002)) == 4


def test_a_job_paused_at_a_call_ends_with_the_process() -> None:
    def ends(seed: int) -> tuple[list[str], BaseException | None]:
        """Position at which a job of an ending process stops, and its exception."""
        disk, happened, seen = make(), list[str](), list[BaseException]()

        def work() -> None:
            try:
                write(disk, "a", happened)
            except BaseException as error:
                seen.append(error)
                raise

        async def live() -> None:
            SimulatedWorker(disk, Random(seed), interleaves=True).submit(
                work, lambda *_: happened.append("told")
            )
            await asyncio.sleep(0.002)
            disk.end()
            await asyncio.sleep(10)

        with asyncio.Runner(loop_factory=VirtualLoop, debug=False) as runner:
            runner.run(live())
        return happened, seen[0] if seen else None

    found = [ends(seed) for seed in range(20)]
    assert any(isinstance(error, Ended) for _, error in found)
    assert all("told" not in happened or len(happened) == 11 for happened, _ in found)
    assert any(0 < len(happened) < 10 for happened, _ in found)


def test_a_worker_of_a_process_that_has_ended_stops_when_the_next_one_runs() -> None:
    async def live(seed: int) -> None:
        disk = make()
        worker = SimulatedWorker(disk, Random(seed), interleaves=True)
        worker.submit(lambda: write(disk, "a", []), lambda *_: None)
        await asyncio.sleep(0.002)
        disk.end()
        disk.restart()
        worker.stop()

    for seed in range(20):
        with asyncio.Runner(loop_factory=VirtualLoop, debug=False) as runner:
            runner.run(live(seed))

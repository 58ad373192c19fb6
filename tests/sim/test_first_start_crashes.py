"""A first start killed at any operation, a second one that answers a request, and then a power
failure.

The files that the second start finds are visible but perhaps not durable. Random lives meet this
too seldom: every operation of a first start is tried here.
"""

from collections.abc import Iterator
from itertools import count
from random import Random

import pytest

from pixy.backend import EmbeddedBackend
from pixy.cluster import Node, NodeOptions
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import PixyError
from tests.fakes.clock import FakeClock
from tests.sim.disk import SimulatedDisk
from tests.sim.model import Model
from tests.sim.worker import SimulatedWorker
from tests.sim.world import DIRECTORY, World, run_process

NAMES = "cluster/log/recovery.py:_sync_directories sync_directory"
POWER_FAILURES = 3
MORE_POWER_FAILURES = 10


class TwoStarts:
    """The processes of one attempt."""

    def __init__(self, seed: int, ignored: list[str]) -> None:
        disk = SimulatedDisk(Random(seed))
        disk.ignored = frozenset(ignored)
        clock = FakeClock(monotonic=0.0)
        self.world = World(Random(seed), disk, clock, Model(clock))
        self.was_killed = False
        self.answered = False
        self.there = False

    def run(self, killed_at: int) -> bool:
        """True if an answered topic exists in the end."""
        disk = self.world.disk
        disk.restart()
        disk.die_at = killed_at
        run_process(self.world, self._start)
        self.was_killed = disk.ended
        disk.end()
        disk.restart()
        run_process(self.world, self._create)
        disk.lose_power()
        disk.restart()
        try:
            run_process(self.world, self._look)
        except PixyError:
            return False
        return self.there or not self.answered

    def _backend(self) -> EmbeddedBackend:
        rng = self.world.rng
        options = NodeOptions(
            DIRECTORY,
            JournalConfig(file_bytes=3000),
            StorageConfig(reserve_bytes=0),
            rng.randbytes,
            lambda *_, **__: SimulatedWorker(self.world.disk, None),
        )
        return EmbeddedBackend(Node(self.world.disk, self.world.clock, options, lambda _: None))

    async def _start(self) -> None:
        await self._backend().start()

    async def _create(self) -> None:
        backend = self._backend()
        await backend.start()
        await backend.create_topic("topic", 1)
        self.answered = True
        self.world.disk.end()

    async def _look(self) -> None:
        backend = self._backend()
        await backend.start()
        self.there = backend.topic("topic") is not None
        await backend.stop()


def losses(ignored: list[str], power_failures: int = POWER_FAILURES) -> Iterator[tuple[int, int]]:
    """Operations and seeds at which an answered topic is lost."""
    for operation in count(1):
        for seed in range(power_failures):
            starts = TwoStarts(seed, ignored)
            if not starts.run(operation):
                yield operation, seed
            if not starts.was_killed:
                return


@pytest.mark.slow
@pytest.mark.parametrize(
    "power_failures", [POWER_FAILURES, pytest.param(MORE_POWER_FAILURES, marks=pytest.mark.long)]
)
def test_no_answer_of_a_second_start_is_lost(power_failures: int) -> None:
    assert list(losses([], power_failures)) == []


@pytest.mark.slow
@pytest.mark.parametrize("site", [NAMES])
def test_without_the_sync_of_found_files_answers_are_lost(site: str) -> None:
    assert any(losses([site]))

"""A disk is full from any operation on while records, a topic and a stage are removed: all of them
go, the node continues, and the next start on the full disk succeeds, wherever the process ended.

The journal has room: without any, what was asked for waits.
"""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from pixy.backend import EmbeddedBackend, TopicPartition
from pixy.cluster import Node, NodeOptions
from pixy.config import JournalConfig, StorageConfig
from tests.conformance.staged import piece_of, seal_of
from tests.fakes.clock import FakeClock
from tests.sim.disk import SimulatedDisk
from tests.sim.model import Model
from tests.sim.worker import SimulatedWorker
from tests.sim.world import DIRECTORY, World, run_process

STRIDE = 3
CUT, OLD = TopicPartition("cut", 0), TopicPartition("old", 0)
PIECE = piece_of({OLD: [b"staged"], CUT: [b"staged"]})
Live = Callable[[EmbeddedBackend], Coroutine[Any, Any, None]]


class Try:
    """One attempt: the disk is full from operation `full_at` of the removal on, and the process
    ends at operation `die_at`; 0 for never.
    """

    def __init__(self, full_at: int, die_at: int) -> None:
        self._full_at, self._die_at = full_at, die_at
        self._disk = SimulatedDisk(Random(full_at + die_at))
        clock = FakeClock(monotonic=0.0)
        self._world = World(Random(full_at), self._disk, clock, Model(clock))
        self.operations = 0

    def run(self) -> None:
        """Raise AssertionError if the node ends, or something is left or lost."""
        self._disk.restart()
        run_process(self._world, lambda: self._process(self._remove))
        is_done = not self._disk.ended
        if self._die_at:
            self._disk.lose_power()
        self._disk.restart()
        self._disk.full = True
        run_process(self._world, lambda: self._process(self._check_all if is_done else self._check_start))
        self._disk.end()
        self._disk.restart()
        run_process(self._world, lambda: self._process(self._check_all if is_done else self._check_start))

    async def _process(self, live: Live) -> None:
        options = NodeOptions(
            DIRECTORY,
            JournalConfig(file_bytes=200_000),
            StorageConfig(retention=0.0, reserve_bytes=0, segment_bytes=1000, checkpoint_entries=3),
            self._world.rng.randbytes,
            lambda *_, **__: SimulatedWorker(self._disk, None),
        )
        faults: list[BaseException] = []
        backend = EmbeddedBackend(Node(self._disk, self._world.clock, options, faults.append))
        await backend.start()
        await live(backend)
        await asyncio.sleep(20)
        assert not faults, faults

    async def _remove(self, backend: EmbeddedBackend) -> None:
        for partition in (CUT, OLD):
            await backend.create_topic(partition.topic, 1)
            for number in range(6):
                await _append(backend, partition, b"%d" % number + bytes(700))
        await backend.stage("s", "a", 0, PIECE)
        await backend.stage("s", "a", 0, [], seal_of(PIECE))
        await asyncio.sleep(20)
        begin = self._disk.operations
        self._disk.die_at = self._die_at and begin + self._die_at

        def fill(_: object) -> None:
            if self._disk.operations - begin >= self._full_at:
                self._disk.full = True  # others take what is freed

        self._disk.before = fill
        try:
            await backend.delete_records("cut", {0: 4})
            await backend.delete_topic("old", force=True)
            await backend.discard("s", ["a"])
            await asyncio.sleep(20)
            self.operations = self._disk.operations - begin
        finally:
            self._disk.before = lambda _: None
        self._check_files()

    def _check_files(self) -> None:
        """Everything that was to go has gone."""
        assert self._disk.names(DIRECTORY / "topics") == ["cut-0"]
        logs = [Path(name).stem for name in self._disk.names(DIRECTORY / "topics" / "cut-0")]
        assert min(int(stem) for stem in logs if stem.isdigit()) == 4
        assert self._disk.names(DIRECTORY / "staging") == []

    async def _check_start(self, backend: EmbeddedBackend) -> None:
        assert backend.topic("cut") is not None

    async def _check_all(self, backend: EmbeddedBackend) -> None:
        await self._check_start(backend)
        assert backend.topic("old") is None
        await asyncio.sleep(20)
        self._check_files()


async def _append(backend: EmbeddedBackend, partition: TopicPartition, value: bytes) -> None:
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(_: int, error: BaseException | None) -> None:
        assert error is None
        if not written.done():
            written.set_result(None)

    (batches,) = piece_of({partition: [value]})
    backend.append(partition, bytearray(batches.batches), 1, done)
    await written


@pytest.mark.slow
@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.long), STRIDE])
def test_what_frees_space_goes_on_whenever_the_disk_gets_full(stride: int) -> None:
    with capture_logs():
        for full_at in islice(count(), 0, None, stride):
            each = Try(full_at, 0)
            each.run()
            if each.operations < full_at:
                break
    assert full_at > 20


@pytest.mark.slow
@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.long), STRIDE])
def test_a_start_on_the_full_disk_succeeds_wherever_the_process_has_ended(stride: int) -> None:
    with capture_logs():
        for die_at in islice(count(1), 0, None, stride):
            each = Try(0, die_at)
            each.run()
            if each.operations:
                break
    assert die_at > 20

"""A stage is written, sealed and published, and the process ends at every operation on the way,
killed or by a power failure.

The next process finds all of it or nothing, and continues from there; it may answer a request and
lose power too, or end at any operation while it rolls forward the first one's commit. Random lives
meet these moments too seldom: here every operation is tried.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, product
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from pixy.backend import EmbeddedBackend, StagedBatches, TopicPartition
from pixy.cluster import Node, NodeOptions
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import FailedPrecondition
from pixy.staging import StageName
from pixy.storage.partition import log_segments
from tests.conformance.staged import piece_of, seal_of
from tests.fakes.clock import FakeClock
from tests.sim.disk import SimulatedDisk
from tests.sim.model import Model
from tests.sim.reading import read_everything
from tests.sim.worker import SimulatedWorker
from tests.sim.world import DIRECTORY, World, run_process

PARTITIONS = [TopicPartition("t", number) for number in range(2)]
BEFORE, BEHIND = b"before", b"behind"
STAGED = [[b"a0", b"a1" + bytes(9000)], [b"b0", b"b1"]]
OPERATIONS = 110
"""More operations than from the first piece to the end of the process."""

COMMITTED = (31, 47, 63, 75)
"""Operations after the commit point at which the first process ends: with nothing or some rolled
forward, or with stages being removed.
"""
COMMITTED_STRIDE = 3
"""Tries of an operation are two: the short test has one of three."""

PHASES = ("before", "middle", "after")
POWER_FAILURES = 2
STRIDE = 8
"""Tries of an operation are nine: each one has one or two of them, which change."""

SITES = {
    "staging/stage_files.py:StageFiles._make_directory make_directory": (0, 28, "before", True),
    "staging/stage_files.py:StageFiles.seal sync": (0, 26, "after", False),
    "staging/stage_files.py:StageFiles.seal sync_directory": (10, 26, "after", True),
    "staging/stage_files.py:recover_stages sync_directory": (0, 26, "after", False),
    "staging/stage_files.py:remove_stages sync_directory": (4, 30, "after", True),
}
"""Site -> a seed, operation, phase and power failure with which data is lost without the site. Only
hints.
"""


@contextmanager
def large_parts_are_linked() -> Iterator[None]:
    with patch.object(log_segments, "LINK_BYTES_MIN", 3000):
        yield


def pieces() -> list[list[StagedBatches]]:
    """Two pieces, each with a batch of both partitions."""
    return [
        piece_of({partition: [STAGED[at][number]] for at, partition in enumerate(PARTITIONS)})
        for number in range(2)
    ]


@dataclass
class Try:
    """One attempt.

    Attributes:
        at: the operation at which the first process ends, counted from the first piece.
        again: action of the second process: it publishes, or it gets the answer that the stage is
            sealed and loses power.
        at_again: the operation at which a second process ends, counted from its start; a third one
            then does the same. 0: none.
        sealed, published: what was answered.
    """

    seed: int
    at: int
    phase: str
    loses_power: bool
    again: str
    ignored: list[str]
    at_again: int = 0
    sealed: bool = False
    published: bool = False
    reached: bool = False
    world: World = field(init=False)

    def run(self) -> None:
        """Raise AssertionError if anything is lost, partial or duplicated."""
        disk = SimulatedDisk(Random(self.seed))
        disk.ignored = frozenset(self.ignored)
        clock = FakeClock(monotonic=0.0)
        self.world = World(Random(self.seed), disk, clock, Model(clock))
        self._process(self._write)
        self.reached = disk.ended
        self._end(loses_power=self.loses_power)
        if self.at_again:
            self._process(self._go_on, self.at_again)
            self.reached = disk.ended
            self._end(loses_power=self.loses_power)
        self._process(self._go_on)
        self._end(loses_power=True)
        self._process(self._check)
        self._end(loses_power=True)

    def _process(self, live: Callable[[EmbeddedBackend], Coroutine[Any, Any, None]], die_at: int = 0) -> None:
        self.world.disk.restart()
        self.world.disk.die_at, self.world.disk.die_phase = die_at, self.phase

        async def run() -> None:
            rng = self.world.rng
            options = NodeOptions(
                DIRECTORY,
                JournalConfig(file_bytes=30_000),
                StorageConfig(reserve_bytes=0),
                rng.randbytes,
                lambda *_, **__: SimulatedWorker(self.world.disk, None),
            )
            faults: list[BaseException] = []
            self.node = Node(self.world.disk, self.world.clock, options, faults.append)
            backend = EmbeddedBackend(self.node)
            await backend.start()
            await live(backend)
            assert not faults, faults

        run_process(self.world, run)

    def _end(self, *, loses_power: bool) -> None:
        self.world.disk.end()
        if loses_power:
            self.world.disk.lose_power()

    # --- processes --------------------------------------------------------------------------------

    async def _write(self, backend: EmbeddedBackend) -> None:
        await backend.create_topic("t", 2)
        for partition in PARTITIONS:
            await _append(backend, partition, BEFORE)
        disk = self.world.disk
        disk.die_at, disk.die_phase = disk.operations + self.at, self.phase
        # Out of order, so that a file is rewritten.
        for number, piece in reversed(list(enumerate(pieces()))):
            await backend.stage("s", "a", number, piece)
        await backend.stage("s", "a", 0, [], seal_of(*pieces()))
        self.sealed = True
        assert (await backend.publish("s", 3, "q", ["a"])).published
        self.published = True
        for partition in PARTITIONS:
            await _append(backend, partition, BEHIND)
        await asyncio.sleep(20)
        assert self._is_finished()
        await backend.stop()

    async def _go_on(self, backend: EmbeddedBackend) -> None:
        stages = self.node.publisher._stages.of_sink("s")
        assert all(stage.fault is None for stage in stages), "a stage is damaged"
        await asyncio.sleep(1)
        if self._is_committed():
            answer = await backend.publish("s", 3, "q", ["a"])
            assert (answer.published, answer.last_epoch) == (False, 3)
            self.published = True
            await self._read(backend)
            await asyncio.sleep(20)
            assert self._is_finished()
            return
        assert not self.published, "a publication is lost"
        await self._read(backend)
        if self.sealed or stages:
            assert [stage.name for stage in stages] == [StageName("s", "a")], "a sealed stage is lost"
            await backend.stage("s", "a", 0, [], seal_of(*pieces()))
            self.sealed = True
            if self.again == "publish":
                assert (await backend.publish("s", 3, "q", ["a"])).published
                self.published = True

    async def _check(self, backend: EmbeddedBackend) -> None:
        await asyncio.sleep(20)
        if self.published:
            assert self._is_committed(), "a publication is lost"
            assert self._is_finished()
            with pytest.raises(FailedPrecondition):
                await backend.publish("s", 4, "q", ["a"])
        elif self.sealed:
            assert (await backend.publish("s", 3, "q", ["a"])).published, "a sealed stage is lost"
            self.published = True
        await self._read(backend)
        await backend.stop()

    def _is_committed(self) -> bool:
        return "s" in self.node.publisher._state.sinks

    def _is_finished(self) -> bool:
        publisher = self.node.publisher
        return not publisher._state.publications and not self.world.disk.names(DIRECTORY / "staging")

    async def _read(self, backend: EmbeddedBackend) -> None:
        """Check that published records exist once, and others do not."""
        found = await read_everything(self.node, backend)
        for id, (_, records) in found.partitions.items():
            values = [record.value for record in records]
            expected = [BEFORE, *(STAGED[id.partition] if self.published else ())]
            assert values in (expected, [*expected, BEHIND]), f"{id.partition} has {values}"


async def _append(backend: EmbeddedBackend, partition: TopicPartition, value: bytes) -> None:
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(_: int, error: BaseException | None) -> None:
        assert error is None
        if not written.done():
            written.set_result(None)

    (batches,) = piece_of({partition: [value]})
    backend.append(partition, bytearray(batches.batches), 1, done)
    await written


def tries(ignored: list[str], seeds: range) -> Iterator[Try]:
    for at in range(1, OPERATIONS):
        for number, phase in enumerate(PHASES):
            again = ("publish", "seal")[(at + number) % 2]
            yield Try(at, at, phase, False, again, ignored)
            for seed in seeds:
                yield Try(seed, at, phase, True, ("publish", "seal")[(at + seed) % 2], ignored)


@pytest.mark.slow
@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.long), STRIDE])
def test_a_publication_is_complete_and_once_wherever_the_process_ends(stride: int) -> None:
    reached = 0
    with large_parts_are_linked(), capture_logs():
        for each in islice(tries([], range(POWER_FAILURES)), None, None, stride):
            try:
                each.run()
            except Exception as error:
                raise AssertionError(f"{each}: {error!r}") from error
            reached = max(reached, each.at * each.reached)
            if each.at > reached + 1:
                break  # the process has ended by itself
    assert 60 < reached < OPERATIONS - 2, f"{reached} operations were tried"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "stride"),
    [
        *[(at, COMMITTED_STRIDE) for at in COMMITTED[::2]],
        *[pytest.param(at, 1, marks=pytest.mark.long) for at in COMMITTED],
    ],
)
def test_a_publication_is_rolled_forward_wherever_the_next_process_ends_too(at: int, stride: int) -> None:
    reached = 0
    moments = product(range(1, OPERATIONS), (("after", False), ("middle", True)))
    with large_parts_are_linked(), capture_logs():
        for at_again, (phase, loses_power) in islice(moments, None, None, stride):
            each = Try(at_again, at, phase, loses_power, "publish", [], at_again)
            try:
                each.run()
            except Exception as error:
                raise AssertionError(f"{each}: {error!r}") from error
            assert each.published
            reached = max(reached, at_again * each.reached)
            if at_again > reached + 1:
                break
    assert 2 < reached < OPERATIONS - 2, f"{reached} operations were tried"


@pytest.mark.slow
@pytest.mark.parametrize("site", SITES)
def test_without_any_of_its_syncs_it_is_not(site: str) -> None:
    with large_parts_are_linked(), capture_logs():
        for each in (Try(*SITES[site], "publish", [site]), *tries([site], range(40))):
            try:
                each.run()
            except Exception:
                return
    pytest.fail(f"no crash shows that {site} is missing")

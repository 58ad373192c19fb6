"""A journal file is removed while a partition that is not ready needs its entries, and the process
ends at any operation from the removal on.

Data that only this file has must be elsewhere by then: entries of the damaged partition, applied
positions and hard states of others. Random lives meet this too seldom: the damage, seven journal
files, and an end at one of very few operations.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from pixy.backend import EmbeddedBackend
from pixy.cluster import Node, NodeOptions
from pixy.cluster.log.applied_positions import AppliedPositionWriter
from pixy.cluster.log.journal_retention import JournalRetention
from pixy.cluster.log.relocation import Relocation
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import PixyError
from pixy.proto.state_pb2 import AppliedPosition
from pixy.records import NewRecord, TopicPartition, build_batch
from pixy.storage import JournalFile, JournalRecord
from tests.fakes.clock import FakeClock
from tests.sim.disk import Operation, SimulatedDisk
from tests.sim.model import Model
from tests.sim.reading import read_batches
from tests.sim.worker import SimulatedWorker
from tests.sim.world import DIRECTORY, World, run_process

DAMAGED, RESTING, BUSY = (TopicPartition(name, 0) for name in ("damaged", "resting", "busy"))
SEGMENT = DIRECTORY / "topics" / "damaged-0" / f"{0:020d}.log"
RECORDS = 6
REMOVALS = 4
OPERATIONS = 6
"""Operations tried from a removal on: enough for the flush after it, and the answer."""


class Try:
    """One attempt: the process ends at an operation, counted from one of the removals of a journal
    file.
    """

    def __init__(self, removal: int, at: int, *, loses_power: bool) -> None:
        self._disk = SimulatedDisk(Random(removal))
        clock = FakeClock(monotonic=0.0)
        self._world = World(Random(1), self._disk, clock, Model(clock))
        self._removal = removal
        self._at = at
        self._loses_power = loses_power
        self._kept = False

    def keeps_everything(self) -> bool:
        """True if all records of all partitions exist once the damaged file is restored."""
        disk = self._disk
        self._process(self._fill)
        disk.end()
        disk.restart()
        whole = disk.open(SEGMENT).read_at(disk.files()[SEGMENT], 0)
        disk.open(SEGMENT).truncate(len(whole) - 10)
        disk.open(SEGMENT).sync()
        self._process(self._grow)
        disk.end()
        if self._loses_power:
            disk.lose_power()
        disk.restart()
        disk.open(SEGMENT).write_at([whole], 0)
        try:
            self._process(self._look)
        except PixyError:
            return False
        return self._kept

    def _process(self, live: Callable[[EmbeddedBackend], Coroutine[Any, Any, None]]) -> None:
        self._disk.restart()
        removed = 0

        def note(operation: Operation) -> None:
            nonlocal removed
            removed += (operation.what, operation.path.suffix) == ("unlink", ".journal")
            if removed == self._removal and not self._disk.die_at and live == self._grow:
                self._disk.die_at = self._disk.operations + 1 + self._at

        self._disk.before = note

        async def run() -> None:
            options = NodeOptions(
                DIRECTORY,
                JournalConfig(file_bytes=3000),
                StorageConfig(reserve_bytes=0, checkpoint_entries=3),
                self._world.rng.randbytes,
                lambda *_, **__: SimulatedWorker(self._disk, None),
            )
            backend = EmbeddedBackend(Node(self._disk, self._world.clock, options, _raise))
            await backend.start()
            await live(backend)

        run_process(self._world, run)
        self._disk.before = lambda _: None

    # --- processes --------------------------------------------------------------------------------

    async def _fill(self, backend: EmbeddedBackend) -> None:
        for partition in (DAMAGED, RESTING, BUSY):
            await backend.create_topic(partition.topic, 1)
        for number in range(RECORDS // 2):
            for partition in (DAMAGED, RESTING):
                await _append(backend, partition, number, 100)
        await asyncio.sleep(10)  # synced, with an applied position
        for number in range(RECORDS // 2, RECORDS):
            await _append(backend, DAMAGED, number, 100)

    async def _grow(self, backend: EmbeddedBackend) -> None:
        for number in range(40):
            await _append(backend, BUSY, number, 1500)
            await asyncio.sleep(6)
        await backend.stop()

    async def _look(self, backend: EmbeddedBackend) -> None:
        await _check(backend, DAMAGED, RECORDS)
        await _check(backend, RESTING, RECORDS // 2)
        self._kept = True


def _raise(fault: BaseException) -> None:
    raise fault


async def _append(backend: EmbeddedBackend, partition: TopicPartition, number: int, size: int) -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    batch = build_batch([NewRecord(None, b"%d" % number + bytes(size), (), 1)])
    backend.append(partition, batch, 1, lambda offset, error: answer.set_result(offset))
    assert await answer == number


async def _check(backend: EmbeddedBackend, partition: TopicPartition, count: int) -> None:
    records: list[Any] = []
    while len(records) < count:
        result = await backend.fetch(partition, len(records), max_bytes=10_000, max_wait=0)
        found = read_batches(result.batches, len(records))
        assert found, f"{partition} has {len(records)} records"
        records += found
    assert [bytes(each.value or b"").rstrip(b"\0") for each in records] == [b"%d" % at for at in range(count)]


def losses() -> Iterator[tuple[int, int]]:
    """Removals and operations from there on at which data is lost."""
    with capture_logs():
        for removal in range(1, REMOVALS + 1):
            for at in range(OPERATIONS):
                for loses_power in (False, True):
                    try:
                        kept = Try(removal, at, loses_power=loses_power).keeps_everything()
                    except AssertionError:
                        kept = False
                    if not kept:
                        yield removal, at


@pytest.mark.slow
def test_nothing_is_lost_wherever_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    relocated: list[JournalRecord] = []
    append = Relocation._append

    def note(
        relocation: Relocation, then: Callable[[bool], None], entries: Any, error: BaseException | None
    ) -> None:
        relocated.extend(entries or ())
        append(relocation, then, entries, error)

    monkeypatch.setattr(Relocation, "_append", note)
    assert list(losses()) == []
    assert relocated


@pytest.mark.slow
def test_without_relocation_before_a_removal_data_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    append, unlink = Relocation._append, JournalRetention._unlink
    late: list[tuple[Relocation, list[JournalRecord]]] = []

    def relocate_later(
        relocation: Relocation,
        then: Callable[[bool], None],
        entries: list[JournalRecord] | None,
        error: BaseException | None,
    ) -> None:
        late.append((relocation, entries or []))
        append(relocation, then, [], error)

    def unlink_and_relocate(retention: JournalRetention, oldest: JournalFile) -> None:
        unlink(retention, oldest)
        for relocation, entries in late:
            append(relocation, lambda _: None, entries, None)
        late.clear()

    monkeypatch.setattr(Relocation, "_append", relocate_later)
    monkeypatch.setattr(JournalRetention, "_unlink", unlink_and_relocate)
    assert any(losses())


@pytest.mark.slow
def test_without_copies_of_its_records_before_a_removal_data_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Being about to be rewritten is not enough."""
    write = AppliedPositionWriter.write

    def write_and_unlink_at_once(
        writer: AppliedPositionWriter,
        positions: list[AppliedPosition],
        then: Callable[[], None] | None = None,
    ) -> None:
        write(writer, positions)
        if then is not None:
            then()

    monkeypatch.setattr(AppliedPositionWriter, "write", write_and_unlink_at_once)
    assert any(losses())

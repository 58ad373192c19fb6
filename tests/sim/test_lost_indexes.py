"""Indexes lost completely or partly in a power failure: the next start rebuilds them, and then
reads and starts are as fast as before, measured by the bytes read.
"""

import asyncio
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from pixy.backend import EmbeddedBackend
from pixy.cluster import Node, NodeOptions
from pixy.config import JournalConfig, StorageConfig
from pixy.records import NewRecord, TopicPartition, build_batch
from tests.fakes.clock import FakeClock
from tests.sim.disk import SimulatedDisk
from tests.sim.model import Model
from tests.sim.nodes import PAGE_BYTES
from tests.sim.worker import SimulatedWorker
from tests.sim.world import DIRECTORY, World, run_process

PARTITION = TopicPartition("topic", 0)
TOPIC = DIRECTORY / "topics" / "topic-0"
BATCH_BYTES = 8000
BATCHES = 1200
SEGMENT_BYTES = 4 << 20
BLOCK_BYTES = 65_536
"""Bytes read from a segment to find a batch."""

READ_BYTES_MAX = 4 * BLOCK_BYTES
"""Bytes of a fetch of one batch from a segment with intact indexes. Without them it reads up to
`SEGMENT_BYTES`.
"""


class Machine:
    """A machine and its processes."""

    def __init__(self, seed: int, disk: SimulatedDisk | None = None) -> None:
        clock = FakeClock(monotonic=0.0)
        self.disk = disk or SimulatedDisk(Random(seed))
        self.world = World(Random(seed), self.disk, clock, Model(clock))
        self.indexes = self._indexes()
        # Bytes read by the last start, and the maximum of a fetch.
        self.start_bytes = self.fetch_bytes = 0

    def write(self) -> None:
        """Run a process that fills three segments."""
        run_process(self.world, self._write)
        self.indexes = self._indexes()

    def use(self) -> None:
        """Run a process that starts, idles a while, fetches from everywhere and is killed."""
        run_process(self.world, self._use)
        assert self._indexes() == self.indexes
        self.disk.end()
        self.disk.restart()

    def _indexes(self) -> dict[Path, bytes]:
        """Content of the non-empty indexes."""
        paths = [path for path in self.disk.files() if path.suffix in (".index", ".timeindex")]
        return {path: bytes(self.disk.inode(path).data) for path in paths if self.disk.files()[path]}

    async def _start(self) -> EmbeddedBackend:
        options = NodeOptions(
            DIRECTORY,
            JournalConfig(),
            StorageConfig(reserve_bytes=0, segment_bytes=SEGMENT_BYTES, tail_cache_bytes=0),
            self.world.rng.randbytes,
            lambda *_, **__: SimulatedWorker(self.disk, None),
        )
        backend = EmbeddedBackend(Node(self.disk, self.world.clock, options, _fault))
        before = self.disk.bytes_read
        await backend.start()
        self.start_bytes = self.disk.bytes_read - before
        return backend

    async def _write(self) -> None:
        backend = await self._start()
        await backend.create_topic("topic", 1)
        for number in range(BATCHES):
            record = NewRecord(None, bytes(BATCH_BYTES), (), self.world.clock.wall_ms() + number)
            backend.append(PARTITION, build_batch([record]), 1, lambda _offset, _error: None)
            if not number % 20:
                await asyncio.sleep(0.5)
        await asyncio.sleep(20)

    async def _use(self) -> None:
        backend = await self._start()
        await asyncio.sleep(60)
        rng = self.world.rng
        for _ in range(60):
            offset, before = rng.randrange(BATCHES), self.disk.bytes_read
            result = await backend.fetch(PARTITION, offset, max_bytes=1)
            assert result.next_offset == offset + 1
            self.fetch_bytes = max(self.fetch_bytes, self.disk.bytes_read - before)


def _fault(error: BaseException) -> None:
    raise AssertionError("a node breaks") from error


def tear(disk: SimulatedDisk, path: Path) -> None:
    """Zero a page in the middle of an index, as if it had never reached the disk."""
    data = disk.inode(path).data
    middle = len(data) // 2 // 512 * 512
    data[middle : middle + min(PAGE_BYTES, 512)] = bytes(512)


@pytest.fixture(scope="module")
def written() -> SimulatedDisk:
    """The disk of a process that was killed."""
    machine = Machine(1)
    machine.write()
    machine.disk.end()
    machine.disk.restart()
    return machine.disk


def check_fast(machine: Machine) -> None:
    """Check that from the second start on all reads use the indexes."""
    machine.use()
    assert machine.fetch_bytes <= READ_BYTES_MAX
    machine.fetch_bytes = 0
    machine.use()
    segments = sum(path.suffix == ".log" for path in machine.disk.files())
    journal = sum(size for path, size in machine.disk.files().items() if path.suffix == ".journal")
    assert segments == 3
    assert machine.start_bytes - journal <= segments * READ_BYTES_MAX
    assert machine.fetch_bytes <= READ_BYTES_MAX


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_after_a_power_failure_reads_and_starts_are_fast_again(seed: int) -> None:
    machine = Machine(seed)
    machine.write()
    machine.disk.lose_power()
    machine.disk.restart()
    check_fast(machine)


@pytest.mark.slow
@pytest.mark.parametrize("suffixes", [(".index",), (".timeindex",), (".index", ".timeindex")])
@pytest.mark.parametrize("how", ["gone", "empty", "torn"])
def test_lost_parts_of_indexes_are_rebuilt_and_logged(
    written: SimulatedDisk, how: str, suffixes: tuple[str, ...]
) -> None:
    machine = Machine(1, written.copy())
    for path in [path for path in machine.disk.files() if path.suffix in suffixes]:
        match how:
            case "gone":
                machine.disk.unlink(path)
            case "empty":
                machine.disk.open(path).truncate(0)
            case "torn":
                tear(machine.disk, path)
    machine.disk.restart()
    with capture_logs() as logs:
        machine.use()
    said = [each["segment"] for each in logs if each["event"].startswith("rebuilt the ")]
    assert sorted(said) == sorted(str(path) for path in machine.disk.files() if path.suffix == ".log")
    check_fast(machine)

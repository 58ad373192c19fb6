"""Cold reads, on virtual time: limited in rate while the journal is written, at once otherwise."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pixy.cluster.log.cold_reads import ColdReads
from pixy.errors import CorruptData
from tests.cluster.nodes import Cluster
from tests.fakes.disk import RecordingDisk
from tests.fakes.waiting import until
from tests.fakes.worker import InlineWorker
from tests.sim.disk import SimulatedDisk
from tests.sim.loop import VirtualLoop

RATE = 1_000_000
CREDIT = 10_000
"""Bytes of 10 ms at the configured rate."""


class Bench:
    """Reads from a device that returns as many bytes as the test says."""

    def __init__(self, rate: int = RATE) -> None:
        self.disk = SimulatedDisk(Random(1))
        self.writing = True
        self.reads = ColdReads(self.disk, InlineWorker(), rate, lambda: self.writing)

    async def read(self, size: int) -> float:
        """Read this many bytes from the device; returns how long it took."""

        def read() -> str:
            self.disk.bytes_read += size
            return "records"

        loop = asyncio.get_running_loop()
        started = loop.time()
        assert await self.reads.run(read) == "records"
        return loop.time() - started


def on_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())


def test_reads_from_the_device_have_the_configured_rate() -> None:
    async def test() -> None:
        bench = Bench()
        took = sum([await bench.read(100_000) for _ in range(10)])
        assert took == pytest.approx((1_000_000 - CREDIT) / RATE)

    on_virtual_time(test)


def test_all_readers_share_the_rate_and_none_starves() -> None:
    async def test() -> None:
        bench = Bench()
        took = await asyncio.gather(*(bench.read(100_000) for _ in range(5)))
        assert took == [pytest.approx((number * 100_000 - CREDIT) / RATE) for number in range(1, 6)]

    on_virtual_time(test)


def test_reads_from_memory_never_wait_even_behind_delayed_ones() -> None:
    async def test() -> None:
        bench = Bench()
        cold = asyncio.create_task(bench.read(1_000_000))
        await asyncio.sleep(0.1)
        assert await bench.read(0) == 0
        assert not cold.done()
        await cold

    on_virtual_time(test)


def test_occasional_small_reads_do_not_wait() -> None:
    async def test() -> None:
        bench = Bench()
        for _ in range(5):
            assert await bench.read(CREDIT) == 0
            await asyncio.sleep(CREDIT / RATE)

    on_virtual_time(test)


def test_unused_time_earns_no_credit() -> None:
    async def test() -> None:
        bench = Bench()
        await asyncio.sleep(3600)
        assert await bench.read(100_000) == pytest.approx((100_000 - CREDIT) / RATE)

    on_virtual_time(test)


def test_no_read_waits_while_nothing_is_written() -> None:
    async def test() -> None:
        bench = Bench()
        bench.writing = False
        assert await bench.read(1 << 30) == 0
        bench.writing = True
        assert await bench.read(CREDIT) == 0, "what was read without bound is not paid for later"

    on_virtual_time(test)


def test_without_a_limit_no_read_waits() -> None:
    async def test() -> None:
        assert await Bench(rate=0).read(1 << 30) == 0

    on_virtual_time(test)


def test_an_exception_of_a_read_is_raised() -> None:
    async def test() -> None:
        def damaged() -> None:
            raise CorruptData("byte 7")

        with pytest.raises(CorruptData, match="byte 7"):
            await Bench().reads.run(damaged)

    on_virtual_time(test)


class _SlowDevice(RecordingDisk):
    """A disk whose device counter advances by one second's bytes whenever it is queried."""

    given = 0

    def device_bytes_read(self) -> int:
        self.given += RATE
        return self.given


async def test_a_node_limits_reads_only_while_its_journal_is_written(tmp_path: Path) -> None:
    storage = {"cold_read_bytes_per_second": RATE}
    async with Cluster(tmp_path, storage=storage, disk=_SlowDevice()).running() as cluster:
        await cluster.create_topic()
        await cluster.append(b"value")
        read = asyncio.create_task(cluster.node.read(lambda: "records"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not read.done(), "a second of reading was done at once, while the journal was written"
        read.cancel()
        cluster.node._log.journal.flushed_at -= 1.0
        unpaced = asyncio.create_task(cluster.node.read(lambda: "records"))
        await until(unpaced.done)
        assert unpaced.result() == "records"

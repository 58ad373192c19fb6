"""Read loads: from the page cache, and from the disk beside small writes."""

import asyncio
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.storage.monitor import watched
from bench.storage.node import TOPIC, create_topic, directory_of, open_backend, open_proxy
from bench.storage.raw import drop_page_cache, files_below, read_and_checksum
from pixy.backend import EmbeddedBackend
from pixy.config import ProxyConfig, StorageConfig
from pixy.errors import PixyError
from pixy.proxy import Proxy
from pixy.records import TopicPartition

_FETCH_BYTES = 1 << 20
_PRODUCE_INTERVAL_S = 0.002
_TIMER_S = 0.001
_PACED_RATE = 100e6
_HOT_TOPIC = "hot"
_MESSAGE = bytes(100)
_NO_TAIL = replace(ProxyConfig(), storage=StorageConfig(tail_cache_bytes=0))

Found = dict[str, Any]


async def fetch(folder: str, rounds: int) -> Found:
    """Reads a whole partition in fetches of 1 MiB out of the page cache, alternating with raw
    reads.
    """
    rates: list[float] = []
    bare: list[float] = []
    paths = _segments(Path(folder))
    read_and_checksum(paths)
    async with open_backend(Path(folder), _NO_TAIL) as backend:
        (partition,) = await create_topic(backend, 1)
        for _ in range(rounds):
            started = time.perf_counter()
            size = 0
            async for fetched in _fetches(backend, partition):
                size += fetched
            rates.append(size / (time.perf_counter() - started))
            bare.append(read_and_checksum(paths))
    return {
        "rate": statistics.median(rates),
        "bare": statistics.median(bare),
        "size": size,
        "ratio": statistics.median(a / b for a, b in zip(rates, bare, strict=True)),
    }


async def _fetches(backend: EmbeddedBackend, partition: TopicPartition) -> AsyncIterator[int]:
    """Bytes of successive fetches from the begin to the end of the partition."""
    offset = 0
    end = (await backend.offset_ranges(partition.topic))[partition.partition].end
    while offset < end:
        result = await backend.fetch(partition, offset, max_bytes=_FETCH_BYTES)
        yield sum(map(len, result.batches))
        offset = result.next_offset


def _segments(folder: Path) -> list[Path]:
    return [p for p in files_below(directory_of(folder) / "topics" / f"{TOPIC}-0") if p.suffix == ".log"]


# --- cold reads beside small produces -------------------------------------------------------------


@dataclass(slots=True)
class _Phase:
    """Effect of one kind of load on small produces, over all rounds. Seconds and bytes."""

    latencies: list[float] = field(default_factory=list)
    loop: list[Found] = field(default_factory=list)
    read_bytes: int = 0
    disk_bytes: int = 0
    seconds: float = 0.0

    def found(self) -> Found:
        ordered = sorted(self.latencies)
        return {
            "p50": statistics.median(ordered),
            "p99": ordered[len(ordered) * 99 // 100],
            "max": ordered[-1],
            "loop": max(self.loop, key=lambda loop: float(loop["max"])),
            "read_rate": self.read_bytes / self.seconds,
            "disk_rate": self.disk_bytes / self.seconds,
        }


async def cold(folder: str, rounds: int, seconds: float) -> Found:
    """A small produce every 2 ms: alone, beside cold fetches, and beside cold fetches at a
    consumer's pace.

    Also beside another process that reads as much as the fetches did, which gives the share of the
    disk and the machine.
    """
    quiet, beside, other, paced = (_Phase() for _ in range(4))
    paths = _segments(Path(folder))
    async with open_proxy(Path(folder), _NO_TAIL) as (proxy, backend):
        (partition,) = await create_topic(backend, 1)
        await create_topic(backend, 1, _HOT_TOPIC)
        await _produce_paced(proxy, 0.2)
        for _ in range(rounds):
            await _phase(quiet, proxy, seconds)
            for phase, rate in ((beside, math.inf), (paced, _PACED_RATE)):
                fetches = _ColdFetches(backend, partition, paths, rate)
                task = asyncio.create_task(fetches.run(), name="cold fetches")
                await _phase(phase, proxy, seconds)
                phase.read_bytes += fetches.read_bytes
                fetches.stop()
                await task
            process = _start_reader(folder, beside.read_bytes / beside.seconds, seconds)
            await _phase(other, proxy, seconds)
            printed, _ = process.communicate()
            other.read_bytes += json.loads(printed)["read_bytes"]
    phases = {"quiet": quiet, "cold": beside, "other": other, "paced": paced}
    return {name: phase.found() for name, phase in phases.items()}


async def _phase(phase: "_Phase", proxy: Proxy, seconds: float) -> None:
    found: Found = {}
    before, started = _bytes_from_disk(), time.perf_counter()
    with watched(found, watch=True):
        phase.latencies += await _produce_paced(proxy, seconds)
    phase.seconds += time.perf_counter() - started
    phase.disk_bytes += _bytes_from_disk() - before
    phase.loop.append(found["loop"])


def _bytes_from_disk() -> int:
    """Bytes that this process has read from disks so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


async def _produce_paced(proxy: Proxy, seconds: float) -> list[float]:
    """Produces a message every 2 ms, whether or not the previous one is answered; returns their
    latencies.

    Latency counts from the due time of a message, less the 1 ms that a timer may be late anyway.
    """
    latencies: list[float] = []
    finished = asyncio.Event()
    count = int(seconds / _PRODUCE_INTERVAL_S)

    def done(waiters: Sequence[float], partition: int, offset: int, error: PixyError | None) -> None:
        if error is not None:
            raise SystemExit(f"a produce failed: {error!r}")
        latencies.extend(time.perf_counter() - since for since in waiters)
        if len(latencies) == count:
            finished.set()

    start = time.perf_counter()
    for number in range(count):
        due = start + number * _PRODUCE_INTERVAL_S
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        since = min(time.perf_counter(), due + _TIMER_S)

        proxy.produce(_HOT_TOPIC, None, _MESSAGE, (), done, since)
    await finished.wait()
    return latencies


class _ColdFetches:
    """Fetches a partition repeatedly from the disk until stopped."""

    def __init__(
        self, backend: EmbeddedBackend, partition: TopicPartition, paths: list[Path], rate: float
    ) -> None:
        self._backend = backend
        self._partition = partition
        self._paths = paths
        self._rate = rate
        self._stopped = asyncio.Event()
        self.read_bytes = 0

    def stop(self) -> None:
        """Stop after the current fetch."""
        self._stopped.set()

    async def run(self) -> None:
        """Read until `stop`, at most `rate` bytes per second."""
        started = time.perf_counter()
        while not self._stopped.is_set():
            await asyncio.to_thread(drop_page_cache, self._paths)
            async for fetched in _fetches(self._backend, self._partition):
                self.read_bytes += fetched
                if self._stopped.is_set():
                    break
                due = started + self.read_bytes / self._rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))


def _start_reader(folder: str, rate: float, seconds: float) -> "subprocess.Popen[str]":
    """Start another process that reads the same segments at the same rate; returns once it is
    reading.
    """
    arguments = json.dumps({"folder": folder, "rate": rate, "seconds": seconds})
    command = [sys.executable, "-m", "bench.storage.loads", "read-cold", arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "reading\n":
        raise RuntimeError("the other process does not read")
    return process


async def read_cold(folder: str, rate: float, seconds: float) -> Found:
    """Reads the segments from the disk in blocks at `rate` bytes per second, without processing
    them.
    """
    paths = _segments(Path(folder))
    print("reading", flush=True)
    size = 0
    started = time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        drop_page_cache(paths)
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while (block := file.read(_FETCH_BYTES)) and passed < seconds:
                    size += len(block)
                    passed = time.perf_counter() - started
                    if passed < size / rate:
                        await asyncio.sleep(size / rate - passed)
    return {"read_bytes": size}


READS: dict[str, Callable[..., Coroutine[Any, Any, Found]]] = {
    "fetch": fetch,
    "cold": cold,
    "read-cold": read_cold,
}

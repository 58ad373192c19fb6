"""Embedded clusters in this process, as the daemon builds them, and loops that append to them by
callbacks.
"""

import asyncio
import os
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random

from pixy.backend import EmbeddedBackend
from pixy.clock import SystemClock
from pixy.cluster import Node, NodeOptions
from pixy.config import ProxyConfig
from pixy.daemon import settle_interpreter
from pixy.errors import PixyError
from pixy.proxy import Proxy
from pixy.records import NewRecord, TopicPartition, build_batch, crc32c
from pixy.storage import RealDisk, ThreadWorker

TOPIC = "bench"
_DRAIN_SECONDS_MAX = 60.0
_RING_BYTES = 256 << 20
_RING_FROM_BYTES = 64 << 10
_CRC = struct.Struct(">I")
_CRC_AT, _CRC_FROM = 17, 21
_TIMESTAMPS = struct.Struct(">qq")
_TIMESTAMPS_AT = 27


@dataclass(frozen=True, slots=True)
class Appends:
    """Append load: batches of `records` records to `partitions` partitions round-robin, `in_flight`
    batches at a time.
    """

    partitions: int
    records: int
    record_bytes: int
    in_flight: int


def fault(error: BaseException) -> None:
    """Fault handler of a bench: exits."""
    raise SystemExit(f"the cluster broke: {error!r}")


def directory_of(folder: Path) -> Path:
    """The node's directory in the data directory `folder`."""
    return folder / "default"


def new_backend(folder: Path, config: ProxyConfig) -> EmbeddedBackend:
    """A cluster that is not started, with its data below `folder`."""
    clock = SystemClock()
    options = NodeOptions(
        directory=directory_of(folder),
        journal=config.journal,
        storage=config.storage,
        random_bytes=os.urandom,
        worker=ThreadWorker,
    )
    return EmbeddedBackend(Node(RealDisk(), clock, options, fault))


@asynccontextmanager
async def open_backend(folder: Path, config: ProxyConfig | None = None) -> AsyncIterator[EmbeddedBackend]:
    """A running cluster, stopped with everything durable at the end."""
    backend = new_backend(folder, config or ProxyConfig())
    await backend.start()
    settle_interpreter()
    try:
        yield backend
    finally:
        await backend.stop()


@asynccontextmanager
async def open_proxy(
    folder: Path, config: ProxyConfig | None = None
) -> AsyncIterator[tuple[Proxy, EmbeddedBackend]]:
    """A proxy, and the cluster below it."""
    config = config or ProxyConfig()
    backend = new_backend(folder, config)
    proxy = Proxy(
        "default", config, backend, client_id="bench", clock=SystemClock(), rng=Random(1), on_fault=fault
    )
    await proxy.start()
    settle_interpreter()
    try:
        yield proxy, backend
    finally:
        await proxy.drain(_DRAIN_SECONDS_MAX)
        await proxy.stop()


async def create_topic(backend: EmbeddedBackend, partitions: int, name: str = TOPIC) -> list[TopicPartition]:
    """The topic's partitions; creates it if missing."""
    if backend.topic(name) is None:
        await backend.create_topic(name, partitions)
    return [TopicPartition(name, number) for number in range(partitions)]


class Batches:
    """Record batches with incompressible values, which a cluster may modify and keep.

    Large ones are built in advance, so that a load does not measure memory allocation and copying,
    and are reused after 256 MiB: by then the cluster has released them, because
    `journal.max_unapplied_bytes` and the tail cache are far below.

    Attributes:
        size: size of a batch in bytes.
        next: returns a batch; all have the same timestamps.
    """

    def __init__(self, kind: Appends) -> None:
        now = SystemClock().wall_ms()
        values = (os.urandom(kind.record_bytes) for _ in range(kind.records))
        batch = build_batch([NewRecord(None, value, (), now) for value in values])
        self.size = len(batch)
        self.next: Callable[[], bytearray] = partial(bytearray, batch)
        if self.size >= _RING_FROM_BYTES:
            self.next = cycle([bytearray(batch) for _ in range(_RING_BYTES // self.size)]).__next__

    def stamped(self) -> bytearray:
        """A batch with the current time, for loads that need time indexes. Costs a checksum."""
        batch = self.next()
        now = SystemClock().wall_ms()
        _TIMESTAMPS.pack_into(batch, _TIMESTAMPS_AT, now, now)
        _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_FROM:]))
        return batch


async def append(
    backend: EmbeddedBackend,
    partitions: Sequence[TopicPartition],
    next_batch: Callable[[], bytearray],
    kind: Appends,
    going_on: Callable[[int], bool],
) -> int:
    """Append batches to the partitions round-robin, `kind.in_flight` at a time, while
    `going_on(answered)`.

    Returns:
        the number of batches answered.
    """
    answered = outstanding = 0
    finished = asyncio.Event()
    turns = cycle(partitions)

    def send() -> None:
        backend.append(next(turns), next_batch(), kind.records, done)

    def done(_offset: int, error: PixyError | None) -> None:
        nonlocal answered, outstanding
        if error is not None:
            fault(error)
        answered += 1
        if going_on(answered):
            send()
        else:
            outstanding -= 1
            if not outstanding:
                finished.set()

    for _ in range(kind.in_flight):
        outstanding += 1
        send()
    await finished.wait()
    return answered


def until(seconds: float, count: int) -> Callable[[int], bool]:
    """A predicate that holds for `seconds`, up to `count` answers."""
    end = time.perf_counter() + seconds
    return lambda answered: answered < count and time.perf_counter() < end

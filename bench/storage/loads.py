"""Loads, each in a process of its own, unaffected by memory, threads or garbage of others.

    python -m bench.storage.loads NAME JSON

JSON has the arguments by name. Prints one JSON object. Every load is bounded by a count and a
duration.
"""

import asyncio
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.calls.local import produce as produce_until
from bench.storage.monitor import watched
from bench.storage.node import (
    TOPIC,
    Appends,
    Batches,
    append,
    create_topic,
    directory_of,
    fault,
    new_backend,
    open_backend,
    open_proxy,
    until,
)
from bench.storage.raw import DurableWrites
from pixy.config import JournalConfig, ProducerConfig, ProxyConfig, StorageConfig
from pixy.daemon import prepare_interpreter
from pixy.records import OffsetCommit, TopicPartition
from pixy.storage import Journal, JournalOptions, RealDisk, RecordKind, ThreadWorker
from pixy.storage.disk.disk import Buffer, File
from pixy.storage.disk.worker import Done
from pixy.storage.journal.journal_format import FLUSH_FRAME_BYTES, RECORD_HEAD_BYTES

_IN_FLIGHT = 512
_ANY = sys.maxsize
_FLUSH_WARM_UP = 50
_OFFSETS_PER_COMMAND = 1000

Found = dict[str, Any]


# --- the journal alone ----------------------------------------------------------------------------


class _TimedWorker:
    """A worker that records the duration of each job, on its thread or without."""

    def __init__(self, inner: ThreadWorker) -> None:
        self._inner = inner
        self.seconds: list[float] = []

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        def timed() -> Any:
            started = time.perf_counter()
            try:
                return work()
            finally:
                self.seconds.append(time.perf_counter() - started)

        self._inner.submit(timed, done)

    def begin_write(self, file: File, buffers: Sequence[Buffer], position: int, done: Done) -> bool:
        started = time.perf_counter()

        def timed(result: Any, error: BaseException | None) -> None:
            self.seconds.append(time.perf_counter() - started)
            done(result, error)

        return self._inner.begin_write(file, buffers, position, timed)

    def stop(self) -> None:
        self._inner.stop()


async def flush(folder: str, count: int, record_bytes: int, seconds_max: float) -> Found:
    """Single records through a journal, alternating with a raw durable write of as many bytes."""
    directory = Path(folder)
    payload = os.urandom(record_bytes)
    same = os.urandom(FLUSH_FRAME_BYTES + RECORD_HEAD_BYTES + record_bytes)
    worker = _TimedWorker(ThreadWorker("pixy-journal"))
    journal = _journal(directory, worker)
    loop = asyncio.get_running_loop()
    trips: list[float] = []
    bare: list[float] = []
    end = time.perf_counter() + seconds_max
    with DurableWrites(directory.parent, count * len(same)) as writes:
        for index in range(1, count + 1):
            answer: asyncio.Future[float] = loop.create_future()

            def done(answer: "asyncio.Future[float]" = answer) -> None:
                answer.set_result(time.perf_counter())

            started = time.perf_counter()
            journal.append([(RecordKind.ENTRY, 1, 1000, index, 1, 0, None, payload)], done)
            trips.append(await answer - started)
            bare.append(writes.write(same))
            if time.perf_counter() > end:
                break
    await journal.stop()
    kept = slice(_FLUSH_WARM_UP, None)
    return {
        "flushes": len(trips[kept]),
        "trip": spread(trips[kept]),
        "thread": spread(worker.seconds[kept]),
        "bare": spread(bare[kept]),
        "ratio": statistics.median(trips[kept]) / statistics.median(bare[kept]),
    }


def _journal(directory: Path, worker: _TimedWorker) -> Journal:
    """An empty journal as in a node; a token is a function to call."""
    return Journal(
        RealDisk(),
        worker,
        JournalOptions(directory, (bytes(16), 1), JournalConfig().file_bytes),
        on_durable=lambda tokens: tokens[0](),
        on_fault=fault,
    )


def spread(seconds: list[float]) -> Found:
    """Median, 99th percentile and maximum."""
    ordered = sorted(seconds)
    return {
        "p50": statistics.median(ordered),
        "p99": ordered[len(ordered) * 99 // 100],
        "max": ordered[-1],
    }


# --- appends --------------------------------------------------------------------------------------


async def append_batches(
    folder: str,
    appends: dict[str, int],
    count: int,
    seconds_max: float,
    warm_up: int = 0,
    watch: bool = False,
    tail_cache_bytes: int = StorageConfig().tail_cache_bytes,
) -> Found:
    """Appends batches to the cluster below the proxy. `closing` is the time to write and sync the
    backlog.
    """
    kind = Appends(**appends)
    config = replace(ProxyConfig(), storage=StorageConfig(tail_cache_bytes=tail_cache_bytes))
    batches = Batches(kind)
    found: Found = {"batch_bytes": batches.size}
    async with open_backend(Path(folder), config) as backend:
        topic = await create_topic(backend, kind.partitions)
        if warm_up:
            await append(backend, topic, batches.next, kind, lambda answered: answered < warm_up)
        with watched(found, watch=watch):
            started, cpu = time.perf_counter(), time.process_time()
            done = await append(
                backend, topic, batches.next, kind, until(seconds_max, count - kind.in_flight)
            )
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    closed = time.perf_counter() - started
    return found | {"batches": done, "seconds": seconds, "cpu_seconds": cpu, "closing": closed - seconds}


async def produce(
    folder: str,
    partitions: int,
    seconds: float,
    partitioner: str = "roundrobin",
    watch: bool = False,
    in_flight: int = _IN_FLIGHT,
) -> Found:
    """Produces messages of 100 bytes without a key through a proxy."""
    config = ProxyConfig(producer=ProducerConfig(partitioner=partitioner))
    found: Found = {}
    async with open_proxy(Path(folder), config) as (proxy, backend):
        await create_topic(backend, partitions)
        warm_up = 2 * max(in_flight, partitions)
        await produce_until(proxy, TOPIC, lambda answered: answered < warm_up, in_flight)
        with watched(found, watch=watch):
            started, cpu = time.perf_counter(), time.process_time()
            answered = await produce_until(proxy, TOPIC, until(seconds, _ANY), in_flight)
            found["rate"] = answered / (time.perf_counter() - started)
            found["cpu_rate"] = answered / (time.process_time() - cpu)
    return found


async def fill_until_killed(folder: str, appends: dict[str, int], size: int, seconds_max: float) -> Found:
    """Appends batches, prints "filled" after `size` bytes, and continues until it is killed, or for
    `seconds_max`.
    """
    kind = Appends(**appends)
    batches = Batches(kind)
    wanted = size // batches.size
    async with open_backend(Path(folder)) as backend:
        topic = await create_topic(backend, kind.partitions)
        in_time = until(seconds_max, _ANY)

        def going_on(answered: int) -> bool:
            if answered == wanted:
                print(json.dumps({"filled": wanted * batches.size, "batch_bytes": batches.size}), flush=True)
            return in_time(answered)

        await append(backend, topic, batches.stamped, kind, going_on)
    return {}


# --- start ----------------------------------------------------------------------------------------


async def start(folder: str) -> Found:
    """Time until a node is ready, and its resident memory then. The process exits as if killed."""
    empty = _rss_bytes()
    backend = new_backend(Path(folder), ProxyConfig())
    started = time.perf_counter()
    await backend.start()
    found = {
        "seconds": time.perf_counter() - started,
        "rss": _rss_bytes(),
        "rss_before": empty,
        "rss_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(found), flush=True)
    os._exit(0)


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- many partitions ------------------------------------------------------------------------------


async def busy_beside_idle(
    folder: str, partitions: int, offsets: int, seconds: float, producing: bool
) -> Found:
    """A node with a topic of many partitions, and continuous checkpoints of `offsets` committed
    offsets.

    Consumer groups commit single offsets one after the other; with `producing`, 512 messages are in
    flight to another topic, too.
    """
    config = ProxyConfig(storage=StorageConfig(checkpoint_entries=50))
    found: Found = {}
    async with open_proxy(Path(folder), config) as (proxy, backend):
        topic = await create_topic(backend, partitions)
        await create_topic(backend, 4, "busy")
        groups = max(1, offsets // partitions)
        for number in range(groups):
            for first in range(0, min(partitions, offsets), _OFFSETS_PER_COMMAND):
                commits = dict.fromkeys(topic[first : first + _OFFSETS_PER_COMMAND], OffsetCommit(0, ""))
                await backend.commit_offsets(f"group-{number}", commits)
        before = _checkpoints(Path(folder))
        with watched(found, watch=True):
            going_on = until(seconds, _ANY)
            load = asyncio.gather(
                _commit_singly(backend.commit_offsets, topic[0], going_on),
                produce_until(proxy, "busy", going_on) if producing else _nothing(),
            )
            found["commits"], found["produced"] = await load
        found["offsets"] = groups * min(partitions, offsets)
        new = _checkpoints(Path(folder)) - before
        found["checkpoint_bytes"] = max((path.stat().st_size for path in new), default=0)
    if not new:
        raise RuntimeError("no checkpoint was written meanwhile")
    return found


async def _commit_singly(
    commit: Callable[[str, dict[TopicPartition, OffsetCommit]], Coroutine[Any, Any, None]],
    partition: TopicPartition,
    going_on: Callable[[int], bool],
) -> int:
    count = 0
    while going_on(count):
        await commit("group-0", {partition: OffsetCommit(0, "")})
        count += 1
    return count


async def _nothing() -> int:
    return 0


def _checkpoints(folder: Path) -> set[Path]:
    return set((directory_of(folder) / "state").glob("groups-*/*.checkpoint"))


async def idle_loop(seconds: float) -> Found:
    """An idle loop with the monitor's timer only; then blocked for 20 ms, which the monitor must
    detect.
    """
    found: Found = {}
    with watched(found, watch=True):
        await asyncio.sleep(seconds)
    blocked: Found = {}
    with watched(blocked, watch=True):
        await asyncio.sleep(0.05)
        time.sleep(0.02)  # noqa: ASYNC251 - the stall to be seen
        await asyncio.sleep(0.05)
    if blocked["loop"]["max"] < 0.018 or "idle_loop" not in str(blocked["loop"]["stalls"]):
        raise RuntimeError(f"the monitor did not see the loop blocked: {blocked}")
    return found


# --- the process ----------------------------------------------------------------------------------


def main(name: str, arguments: str) -> None:
    """Run one load and print its result."""
    from bench.storage.reads import READS
    from bench.storage.topics import TOPICS

    prepare_interpreter()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    work = (LOADS | READS | TOPICS)[name](**json.loads(arguments))
    try:
        from uvloop import run as run_loop
    except ImportError:
        run_loop = asyncio.run
    print(json.dumps(run_loop(work)))


LOADS: dict[str, Callable[..., Coroutine[Any, Any, Found]]] = {
    "flush": flush,
    "append": append_batches,
    "produce": produce,
    "fill": fill_until_killed,
    "start": start,
    "busy": busy_beside_idle,
    "idle-loop": idle_loop,
}

if __name__ == "__main__":
    main(*sys.argv[1:])

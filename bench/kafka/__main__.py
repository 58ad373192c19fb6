"""`python -m bench.kafka`: produce, fetch and consume on a real Kafka, beside aiokafka's own
producer, in one run.

--seconds S   duration of each round of each figure (default 1)
--rounds N    number of rounds; medians are reported (default 3)
--only W      local (without gRPC) or daemon (over gRPC); default: both
--profile N   instead: the top lines of a profile of produce with N in flight

One broker on the same cores, 100-byte messages, acks of all replicas, idempotent on both sides.
`pixy` is everything below the gRPC server: proxy, accumulators, backend. `aiokafka` is one task per
message in flight, each of which calls `send_and_wait` in a loop. The two alternate, so that other
load on the machine affects both alike.
"""

import argparse
import asyncio
import cProfile
import pstats
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import uvloop
from aiokafka import AIOKafkaProducer

from bench.kafka.daemon import measure_daemon
from bench.kit.figures import Figure, as_table, machine
from pixy.backend import TopicPartition
from pixy.backend.kafka import KafkaBackend, KafkaOptions, StagingPlace
from pixy.clock import SystemClock
from pixy.config import ProxyConfig, StagingConfig
from pixy.daemon import prepare_interpreter, settle_interpreter
from pixy.errors import PixyError
from pixy.proxy import Proxy
from pixy.records import read_records
from pixy.storage import RealDisk, ThreadWorker
from tests.kafka.cluster import KafkaCluster

IN_FLIGHT = (1, 32, 128, 512)
_MESSAGE = bytes(100)
_TOPIC = "bench"
_PARTITIONS = 4
_WARM_UP_S = 2.0


def _fault(error: BaseException) -> None:
    raise SystemExit(f"the cluster broke: {error!r}")


@asynccontextmanager
async def _open_proxy(addresses: list[str]) -> AsyncIterator[tuple[Proxy, KafkaBackend]]:
    options = KafkaOptions(seed_peers=tuple(addresses), client_id="bench")
    place = StagingPlace(RealDisk(), Path("never-made"), ThreadWorker, SystemClock(), StagingConfig())
    backend = KafkaBackend(options, place)
    config = ProxyConfig(default_partitions=_PARTITIONS)
    proxy = Proxy(
        "default", config, backend, client_id="bench", clock=SystemClock(), rng=Random(1), on_fault=_fault
    )
    await proxy.start()
    try:
        yield proxy, backend
    finally:
        await proxy.drain(10.0)
        await proxy.stop()


async def _pixy(proxy: Proxy, in_flight: int, seconds: float) -> int:
    """Keep `in_flight` produces in flight; returns the number answered."""
    end = time.perf_counter() + seconds
    answered = running = 0
    finished = asyncio.Event()

    def done(waiters: Sequence[object], partition: int, offset: int, error: PixyError | None) -> None:
        nonlocal answered, running
        if error is not None:
            _fault(error)
        for _ in waiters:
            answered += 1
            if time.perf_counter() < end:
                proxy.produce(_TOPIC, None, _MESSAGE, (), done)
            else:
                running -= 1
        if not running:
            finished.set()

    for _ in range(in_flight):
        running += 1
        proxy.produce(_TOPIC, None, _MESSAGE, (), done)
    await finished.wait()
    return answered


async def _aiokafka(producer: AIOKafkaProducer, in_flight: int, seconds: float) -> int:
    end = time.perf_counter() + seconds

    async def send() -> int:
        answered = 0
        while time.perf_counter() < end:
            await producer.send_and_wait(_TOPIC, _MESSAGE)
            answered += 1
        return answered

    return sum(await asyncio.gather(*(send() for _ in range(in_flight))))


async def _fetch(backend: KafkaBackend, seconds: float, decode: bool) -> int:
    """Read the topic from its beginning, all partitions at once, repeatedly."""
    end = time.perf_counter() + seconds
    counts = [0] * _PARTITIONS

    async def read(number: int) -> None:
        offset = 0
        while time.perf_counter() < end:
            result = await backend.fetch(
                TopicPartition(_TOPIC, number), offset, max_bytes=1 << 20, max_wait=0
            )
            if decode:
                counts[number] += sum(1 for batch in result.batches for _ in read_records(batch))
            else:
                counts[number] += result.next_offset - offset
            offset = result.next_offset if result.next_offset < result.high_watermark else 0

    await asyncio.gather(*(read(number) for number in range(_PARTITIONS)))
    return sum(counts)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _rate(work: Awaitable[int]) -> tuple[float, float]:
    """Messages per second, and microseconds of this process's processor time for each."""
    started, cpu = time.perf_counter(), _cpu_s()
    count = await work
    return count / (time.perf_counter() - started), (_cpu_s() - cpu) / max(count, 1) * 1e6


async def _measure(addresses: list[str], seconds: float, rounds: int) -> list[Figure]:
    figures: list[Figure] = []
    producer = AIOKafkaProducer(bootstrap_servers=addresses, enable_idempotence=True, linger_ms=0)
    async with _open_proxy(addresses) as (proxy, backend):
        await backend.create_topic(_TOPIC, _PARTITIONS)
        await producer.start()
        settle_interpreter()
        try:
            await _pixy(proxy, 128, _WARM_UP_S)
            await _aiokafka(producer, 128, _WARM_UP_S)
            for in_flight in IN_FLIGHT:
                ours, theirs = [], []
                for _ in range(rounds):
                    ours.append(await _rate(_pixy(proxy, in_flight, seconds)))
                    theirs.append(await _rate(_aiokafka(producer, in_flight, seconds)))
                figures += _compare(in_flight, ours, theirs)
            for decode in (False, True):
                fetched = [await _rate(_fetch(backend, seconds, decode)) for _ in range(rounds)]
                name = "fetch and decode" if decode else "fetch"
                figures.append(Figure(name, statistics.median(rate for rate, _ in fetched), "msg/s"))
                figures.append(Figure(f"{name}, CPU", statistics.median(cpu for _, cpu in fetched), "us/msg"))
        finally:
            await producer.stop()
    return figures


def _compare(
    in_flight: int, ours: list[tuple[float, float]], theirs: list[tuple[float, float]]
) -> list[Figure]:
    rate, reference = (statistics.median(each for each, _ in of) for of in (ours, theirs))
    ratio = statistics.median(our / their for (our, _), (their, _) in zip(ours, theirs, strict=True))
    cpu, cpu_reference = (statistics.median(each for _, each in of) for of in (ours, theirs))
    wanted = in_flight > 1
    name = f"produce, {in_flight} in flight"
    return [
        Figure(
            name, rate, "msg/s", reference, ratio, "> 1.00" if wanted else "", ratio > 1 if wanted else None
        ),
        Figure(f"{name}, CPU", cpu, "us/msg", cpu_reference, cpu / cpu_reference),
        *([Figure(f"{name}, mean", 1000 / rate, "ms", 1000 / reference)] if in_flight == 1 else []),
    ]


async def _profile(addresses: list[str], in_flight: int) -> None:
    async with _open_proxy(addresses) as (proxy, backend):
        await backend.create_topic(_TOPIC, _PARTITIONS)
        await _pixy(proxy, in_flight, _WARM_UP_S)
        profile = cProfile.Profile()
        profile.enable()
        await _pixy(proxy, in_flight, 3.0)
        profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def _with_broker(work: Callable[[list[str]], None]) -> None:
    prepare_interpreter()
    with tempfile.TemporaryDirectory(prefix="pixy-bench-kafka-") as folder:
        cluster = KafkaCluster(Path(folder), java=("-Xmx512m",))
        try:
            cluster.start()
            work(cluster.addresses)
        finally:
            cluster.kill()


def main() -> int:
    """Measure, and print one table."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m bench.kafka", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each round")
    parser.add_argument("--rounds", type=int, default=3, help="medians are reported")
    parser.add_argument("--profile", type=int, metavar="N", help="profile produce with N in flight instead")
    parser.add_argument("--only", choices=("local", "daemon"), help="measure only this")
    arguments = parser.parse_args()

    def work(addresses: list[str]) -> None:
        if arguments.profile:
            uvloop.run(_profile(addresses, arguments.profile))
            return
        figures: list[Figure] = []
        if arguments.only != "daemon":
            figures += uvloop.run(_measure(addresses, arguments.seconds, arguments.rounds))
        if arguments.only != "local":
            figures += measure_daemon(addresses, arguments.seconds, arguments.rounds)
        here = machine()
        print(f"{here['cores']} cores, load {here['load']}, Python {here['python']}; 100-byte messages")
        print(as_table(figures).replace("no-op", "aiokafka", 1))

    _with_broker(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A proxy on an embedded cluster in this process, built as the daemon builds it, and loops that
drive it by callbacks.

    python -m bench.calls.local speed SECONDS
        produce, consume with auto ack, consume with an ack on the next request
    python -m bench.calls.local fill FOLDER COUNT
        COUNT messages of 100 bytes in the topic `filled` of the data in FOLDER
    python -m bench.calls.local growth COUNT COUNT
        resident memory after each of the two numbers of messages

Prints one JSON object. Disk, syncs and threads are real; there is no network, and no task or future
per message.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import structlog

from pixy.backend import EmbeddedBackend
from pixy.clock import SystemClock
from pixy.cluster import Node, NodeOptions
from pixy.config import ProxyConfig
from pixy.consume import ConsumeRequest, Offer
from pixy.daemon import prepare_interpreter, settle_interpreter
from pixy.errors import PixyError
from pixy.proxy import Proxy
from pixy.storage import RealDisk, ThreadWorker

FILLED_TOPIC = "filled"
_IN_FLIGHT = 512
_MESSAGE = bytes(100)
_DRAIN_SECONDS_MAX = 10.0


def _fault(error: BaseException) -> None:
    raise SystemExit(f"the cluster broke: {error!r}")


@asynccontextmanager
async def open_proxy(folder: Path) -> AsyncIterator[Proxy]:
    """A proxy with its data in the place of the daemon's cluster `default` below `folder`."""
    config = ProxyConfig()
    clock = SystemClock()
    options = NodeOptions(
        directory=folder / "default",
        journal=config.journal,
        storage=config.storage,
        random_bytes=os.urandom,
        worker=ThreadWorker,
    )
    backend = EmbeddedBackend(Node(RealDisk(), clock, options, _fault))
    proxy = Proxy("default", config, backend, client_id="bench", clock=clock, rng=Random(1), on_fault=_fault)
    await proxy.start()
    settle_interpreter()
    try:
        yield proxy
    finally:
        await proxy.drain(_DRAIN_SECONDS_MAX)
        await proxy.stop()


async def produce(
    proxy: Proxy, topic: str, going_on: Callable[[int], bool], in_flight_max: int = _IN_FLIGHT
) -> int:
    """Keep `in_flight` produces in flight while `going_on(answered)`; returns the number answered
    OK.
    """
    answered = in_flight = 0
    finished = asyncio.Event()

    def done(waiters: Sequence[object], partition: int, offset: int, error: PixyError | None) -> None:
        nonlocal answered, in_flight
        if error is not None:
            _fault(error)
        for _ in waiters:
            answered += 1
            if going_on(answered):
                proxy.produce(topic, None, _MESSAGE, (), done)
            else:
                in_flight -= 1
        if not in_flight:
            finished.set()

    for _ in range(in_flight_max):
        in_flight += 1
        proxy.produce(topic, None, _MESSAGE, (), done)
    await finished.wait()
    return answered


async def consume(
    proxy: Proxy, topic: str, group: str, going_on: Callable[[int], bool], *, auto_ack: bool
) -> int:
    """Keep up to 512 consume requests in flight; each acks an earlier message unless auto ack is
    on.
    """
    taken = waiting = 0
    unacked: deque[tuple[int, int]] = deque()

    def done(offer: Offer | None, error: PixyError | None) -> None:
        nonlocal taken, waiting
        waiting -= 1
        if offer is None:
            if error is not None and error.grpc_status != 5:
                _fault(error)
            return
        taken += 1
        offer.delivered()
        if not auto_ack:
            unacked.append((offer.partition, offer.record.offset))

    while going_on(taken):
        for _ in range(_IN_FLIGHT - waiting):
            waiting += 1
            ack = unacked.popleft() if unacked else None
            proxy.consume(ConsumeRequest(group, topic, auto_ack, ack), done)
        await asyncio.sleep(0)
    while waiting:
        proxy.begin_drain()
        await asyncio.sleep(0)
    return taken


def _until(seconds: float) -> Callable[[int], bool]:
    end = time.perf_counter() + seconds
    return lambda _: time.perf_counter() < end


async def _rate(work: Awaitable[int]) -> float:
    started = time.perf_counter()
    return await work / (time.perf_counter() - started)


async def speed(seconds: str) -> dict[str, float]:
    """Messages per second. Each kind of consuming starts with a new proxy and a filled topic."""
    each = float(seconds)
    rates: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as name:
        async with open_proxy(Path(name)) as proxy:
            await produce(proxy, FILLED_TOPIC, lambda answered: answered < 2 * _IN_FLIGHT)  # warm-up
            rates["produce"] = await _rate(produce(proxy, FILLED_TOPIC, _until(each)))
        for kind, auto_ack in (("consume auto ack", True), ("consume explicit ack", False)):
            async with open_proxy(Path(name)) as proxy:
                (*_, end) = [offsets.end for offsets in await proxy.get_offsets(kind, FILLED_TOPIC)]
                # of 4 partitions, so that the topic never runs dry
                until, last = _until(each), 3 * end

                def going_on(taken: int, until: Callable[[int], bool] = until, last: int = last) -> bool:
                    return taken < last and until(taken)

                rates[kind] = await _rate(consume(proxy, FILLED_TOPIC, kind, going_on, auto_ack=auto_ack))
    return rates


async def fill(folder: str, count: str) -> dict[str, float]:
    """Fill the topic for another process to consume."""
    async with open_proxy(Path(folder)) as proxy:
        done = await _fill_up(proxy, int(count))
    return {"messages": done}


async def _fill_up(proxy: Proxy, count: int) -> int:
    return await produce(proxy, FILLED_TOPIC, lambda answered: answered + _IN_FLIGHT <= count)


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def growth(first: str, second: str) -> dict[str, float]:
    """Resident bytes at two sizes of a topic."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as name:
        async with open_proxy(Path(name)) as proxy:
            await _fill_up(proxy, int(first))
            found["first"] = _rss_bytes()
            await _fill_up(proxy, int(second) - int(first))
            found["second"] = _rss_bytes()
    return found


def main(what: str, *arguments: str) -> None:
    """Run one measurement and print its result."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    prepare_interpreter()
    work = (
        speed(*arguments) if what == "speed" else fill(*arguments) if what == "fill" else growth(*arguments)
    )
    try:
        from uvloop import run as run_loop
    except ImportError:
        run_loop = asyncio.run
    print(json.dumps(run_loop(work)))


if __name__ == "__main__":
    main(*sys.argv[1:])

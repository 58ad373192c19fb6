"""Cost of the counters of `/metrics`: `python -m bench.calls.metrics_cost SECONDS`.

A daemon's gRPC server in this process takes Produce, 128 in flight: for a while as it is, for its
processor time per message, then with each counter counting its calls. Those times the processor
time of a call are the cost. Prints one JSON object with both, in microseconds per message.

The road not taken: counters that do nothing in alternating intervals. Beside other work the ratios
of neighbouring intervals differ by several percent, and the cost is less than one.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import structlog

from bench.calls.local import open_proxy
from bench.calls.offsets import GROUP
from bench.kit.load import LEVELS, put_load, write_body
from pixy.api.grpc import GrpcServer, server_options
from pixy.clock import SystemClock
from pixy.config import Config
from pixy.daemon import prepare_interpreter
from pixy.metrics import TIME_BOUNDS, Histogram
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proxy import Proxy
from pixy.proxy.produced_counts import ProducedCounts
from pixy.serving import Server

_TOPIC = "counted"
_CALLS = 300_000
_REPEATS = 5
_COUNTERS: dict[str, tuple[Any, Callable[[], object]]] = {
    "observe": (Histogram, partial(Histogram(TIME_BOUNDS).observe, 0.003, 8)),
    "add": (ProducedCounts, partial(ProducedCounts().add, _TOPIC, 8, 900)),
}
"""Methods of the way of a message that count, with a call of each."""


def _fault(error: BaseException) -> None:
    raise error


@contextmanager
def _counting() -> Iterator[Counter[str]]:
    """Context in which the calls of the counters are counted."""
    calls: Counter[str] = Counter()
    with ExitStack() as patches:
        for name, (owner, _) in _COUNTERS.items():
            original = getattr(owner, name)

            def counted(*args: Any, name: str = name, original: Callable[..., None] = original) -> None:
                calls[name] += 1
                original(*args)

            patches.enter_context(patch.object(owner, name, counted))
        yield calls


def _cost_us(call: Callable[[], object]) -> float:
    """Processor time of a call: the least of a few measurements."""
    times = []
    for _ in range(_REPEATS):
        began = time.process_time()
        for _ in range(_CALLS):
            call()
        times.append(time.process_time() - began)
    return 1e6 * min(times) / _CALLS


async def measure(seconds: float) -> dict[str, float]:
    """See the module."""
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as name:
        async with open_proxy(Path(name) / "data") as proxy:
            server = Server(server_options(Config().grpc, 100), SystemClock(), _fault)
            grpc = GrpcServer(Config(grpc_addr="127.0.0.1:0"), {"default": proxy, "": proxy}, server)
            address = (await grpc.start())["grpc"]
            request = pb.ProdRq(topic=_TOPIC, key_undefined=True, message=bytes(100))
            body = write_body(Path(name) / "produce", request.SerializeToString())

            async def load(during: float) -> None:
                await asyncio.to_thread(put_load, address, "Produce", body, LEVELS[2], during)

            await load(0.2)
            written, used = await _written(proxy), time.process_time()
            await load(seconds)
            used = time.process_time() - used
            message_us = 1e6 * used / (await _written(proxy) - written)
            written = await _written(proxy)
            with _counting() as calls:
                await load(seconds)
            written = await _written(proxy) - written
            await server.stop(0)
    counters_us = sum(calls[name] / written * _cost_us(call) for name, (_, call) in _COUNTERS.items())
    return {"message_us": message_us, "counters_us": counters_us}


async def _written(proxy: Proxy) -> int:
    return sum(each.end for each in await proxy.get_offsets(GROUP, _TOPIC))


def main(seconds: str) -> None:
    """Measure and print the result."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    prepare_interpreter()
    try:
        from uvloop import run as run_loop
    except ImportError:
        run_loop = asyncio.run
    print(json.dumps(run_loop(measure(float(seconds)))))


if __name__ == "__main__":
    main(*sys.argv[1:])

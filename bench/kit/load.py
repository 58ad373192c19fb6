"""Load on a gRPC server: h2load if installed, else a client in Python, which is slower and noted in
the table.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.kit.processes import load_core, pinned

__all__ = ["LEVELS", "Level", "Load", "at_once", "client_name", "put_load", "write_body"]

_SECONDS_EXTRA = 30.0
_WARM_UP_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Level:
    """Requests in flight: number of connections, and of streams on each."""

    connections: int
    streams: int

    @property
    def in_flight(self) -> int:
        return self.connections * self.streams


LEVELS = (Level(1, 1), Level(4, 8), Level(8, 16), Level(16, 32))


@dataclass(frozen=True, slots=True)
class Load:
    """Result of a load. `done` excludes the warm-up."""

    done: int
    per_second: float
    mean_ms: float


def at_once(loads: Sequence[Callable[[], Load]]) -> Load:
    """Loads that run at the same time, as one."""
    with ThreadPoolExecutor(len(loads)) as threads:
        found = [each.result() for each in [threads.submit(load) for load in loads]]
    done = sum(one.done for one in found)
    mean_ms = sum(one.mean_ms * one.done for one in found) / max(done, 1)
    return Load(done, sum(one.per_second for one in found), mean_ms)


def client_name() -> str:
    """Name of the load client."""
    return (
        "h2load"
        if shutil.which("h2load")
        else "grpc.aio client (h2load is missing: apt-get install nghttp2-client)"
    )


def write_body(file: Path, message: bytes) -> Path:
    """Write a file with one gRPC message in wire format."""
    file.write_bytes(b"\0" + len(message).to_bytes(4) + message)
    return file


def put_load(
    address: str, method: str, body: Path, level: Level, seconds: float, *, secure: bool = False
) -> Load:
    """Call `KafkaPixy/<method>` with the message in `body` for `seconds`, after a short warm-up.
    TLS needs h2load.
    """
    if shutil.which("h2load"):
        return _h2load(
            f"{'https' if secure else 'http'}://{address}/KafkaPixy/{method}", body, level, seconds
        )
    if secure:
        raise RuntimeError("h2load is missing: apt-get install nghttp2-client")
    arguments = [address, method, str(body), str(level.connections), str(level.streams), str(seconds)]
    return Load(**json.loads(_run([sys.executable, "-m", "bench.kit.client", *arguments], seconds)))


def _run(command: list[str], seconds: float) -> str:
    timeout = seconds + _SECONDS_EXTRA
    return subprocess.run(
        pinned(load_core(), command), check=True, capture_output=True, text=True, timeout=timeout
    ).stdout


def _h2load(url: str, body: Path, level: Level, seconds: float) -> Load:
    h2load = shutil.which("h2load")
    assert h2load is not None
    flags = [f"-c{level.connections}", f"-m{level.streams}", f"-D{round(seconds * 1000)}ms"]
    flags += [f"--warm-up-time={round(_WARM_UP_SECONDS * 1000)}ms", "-t1", "-d", str(body)]
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    printed = _run([h2load, *flags, *headers, url], seconds)
    return parse_h2load(printed, seconds)


def parse_h2load(printed: str, seconds: float) -> Load:
    """Parse h2load's summary."""
    counts = re.search(r"^requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored", printed, re.MULTILINE)
    times = re.search(r"^time for request: +\S+ +\S+ +(\S+)", printed, re.MULTILINE)
    if counts is None or times is None or not int(counts[1]):
        raise RuntimeError(f"h2load did not get through:\n{printed}")
    if int(counts[2]) or int(counts[3]):
        raise RuntimeError(f"h2load has seen failures:\n{printed}")
    done = int(counts[1])
    return Load(done, done / seconds, _milliseconds(times[1]))


def _milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([0-9.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]  # h2load's form
    return float(number) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit]

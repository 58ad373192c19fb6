"""Load on a gRPC server: h2load if installed, else a client in Python, which is slower and noted in
the table.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.kit.processes import load_core, pinned

_SECONDS_EXTRA = 30.0
_WARM_UP_SECONDS = 0.3
_CALLS_SECONDS_MAX = 300.0
_GRPC_HEADERS = {"content-type": "application/grpc", "te": "trailers"}


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
    command = [sys.executable, "-m", "bench.kit.client", *arguments]
    return Load(**json.loads(_run(command, seconds + _SECONDS_EXTRA)))


def put_timed(address: str, method: str, body: Path, level: Level, seconds: float) -> list[float]:
    """Call `KafkaPixy/<method>` as `put_load` does. Returns the milliseconds of each call, sorted.
    Needs h2load.
    """
    with tempfile.NamedTemporaryFile(prefix="pixy-bench-", suffix=".tsv") as times:
        flags = [*_level_flags(level), f"-D{round(seconds * 1000)}ms", f"--log-file={times.name}"]
        url = f"http://{address}/KafkaPixy/{method}"
        parse_h2load(_h2load_output(url, flags, body, _GRPC_HEADERS, seconds + _SECONDS_EXTRA), seconds)
        lines = Path(times.name).read_text().splitlines()
    return sorted(int(line.rsplit("\t", 1)[1]) / 1000 for line in lines)


def put_calls(
    url: str,
    level: Level,
    calls: int,
    body: Path | None = None,
    headers: Mapping[str, str] = _GRPC_HEADERS,
    *,
    http1: bool = False,
) -> Load:
    """Send as many requests, with the content of a file; all of them must succeed. Needs h2load."""
    flags = [*_level_flags(level), f"-n{calls}", *(["--h1"] if http1 else [])]
    load = parse_h2load(_h2load_output(url, flags, body, headers, _CALLS_SECONDS_MAX))
    if load.done < calls:
        raise RuntimeError(f"{load.done} of {calls} requests succeeded")
    return load


def _run(command: list[str], timeout: float) -> str:
    return subprocess.run(
        pinned(load_core(), command), check=True, capture_output=True, text=True, timeout=timeout
    ).stdout


def _level_flags(level: Level) -> list[str]:
    return [f"-c{level.connections}", f"-m{level.streams}", "-t1"]


def _h2load(url: str, body: Path, level: Level, seconds: float) -> Load:
    flags = [*_level_flags(level), f"-D{round(seconds * 1000)}ms"]
    flags.append(f"--warm-up-time={round(_WARM_UP_SECONDS * 1000)}ms")
    return parse_h2load(_h2load_output(url, flags, body, _GRPC_HEADERS, seconds + _SECONDS_EXTRA), seconds)


def _h2load_output(
    url: str, flags: list[str], body: Path | None, headers: Mapping[str, str], timeout: float
) -> str:
    h2load = shutil.which("h2load")
    if h2load is None:
        raise RuntimeError("h2load is missing: apt-get install nghttp2-client")
    content = [] if body is None else ["-d", str(body)]
    fields = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    return _run([h2load, *flags, *content, *fields, url], timeout)


def parse_h2load(printed: str, seconds: float = 0.0) -> Load:
    """Parse h2load's summary.

    Args:
        seconds: duration without the warm-up; 0: as h2load tells it.
    """
    counts = re.search(r"^requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored", printed, re.MULTILINE)
    times = re.search(r"^time for request: +\S+ +\S+ +(\S+)", printed, re.MULTILINE)
    if counts is None or times is None or not int(counts[1]):
        raise RuntimeError(f"h2load did not get through:\n{printed}")
    if int(counts[2]) or int(counts[3]):
        raise RuntimeError(f"h2load has seen failures:\n{printed}")
    done = int(counts[1])
    took = re.search(r"^finished in ([^,]+),", printed, re.MULTILINE)
    if not seconds and took is not None:
        seconds = _milliseconds(took[1]) / 1000
    return Load(done, done / seconds, _milliseconds(times[1]))


def _milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([0-9.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]  # h2load's form
    return float(number) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit]

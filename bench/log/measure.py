"""Append and Fetch of a daemon, beside the disk.

A daemon, and grpcio's client in a process of its own. Records have keys of 8 bytes and values of
100 random bytes; topics have 8 partitions, batches about 250 KB; requests have 1 MB, 8 are in
flight. Each round appends to a new daemon, between two raw measurements of the disk, and fetches
the appended records, by then in the page cache, in responses of up to 2 MiB.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.kit.figures import Figure
from bench.kit.processes import Server, daemon
from bench.storage.raw import sequential_write

_ROUNDS = 3
_MB = 1e6
_BYTES = 600_000_000
_QUICK_BYTES = 120_000_000
_LOAD_SECONDS_MAX = 120.0
_RAW_SECONDS_MAX = 20.0
_RAW_WRITE_BYTES = 16 << 20
_FETCH_MB_MIN = 300
_APPEND_RATIO_MIN = 0.35
_APPEND = {"partitions": 8, "batch_bytes": 250_000, "request_bytes": 1_000_000, "in_flight": 8}
_FETCH = {"partitions": 8, "max_bytes": 2 << 20}


def measure_log(parent: Path, quick: bool = False) -> list[Figure]:
    """Measure with daemons whose data is in a new directory in `parent`; prints each round."""
    size, rounds = (_QUICK_BYTES, 1) if quick else (_BYTES, _ROUNDS)
    found: list[_Round] = []
    with tempfile.TemporaryDirectory(prefix="pixy-bench-", dir=parent) as name:
        for number in range(rounds):
            folder = Path(name) / str(number)
            folder.mkdir()
            found.append(_Round(folder, size))
            print(f"round {number}: {found[-1]}, load {os.getloadavg()[0]:.1f}", flush=True)
    return _figures(found)


class _Round:
    """One round; rates in bytes per second, processor time in seconds per GB."""

    def __init__(self, folder: Path, size: int) -> None:
        raw = [_raw(folder, size)]
        with daemon(folder) as server:
            self.append, self.append_cpu = _load(server, "append", **_APPEND, total_bytes=size)
            self.fetch, self.fetch_cpu = _load(server, "fetch", **_FETCH, decode=True)
            self.fetch_bytes, _ = _load(server, "fetch", **_FETCH, decode=False)
        raw.append(_raw(folder, size))
        self.raw = statistics.mean(raw)

    def __str__(self) -> str:
        return (
            f"append {self.append / _MB:.0f}, raw {self.raw / _MB:.0f}, fetch {self.fetch / _MB:.0f}, not parsed "
            f"{self.fetch_bytes / _MB:.0f} MB/s"
        )


def _figures(found: list[_Round]) -> list[Figure]:
    def median(name: str) -> float:
        middle: float = statistics.median(getattr(each, name) for each in found)
        return middle

    ratio = statistics.median(each.append / each.raw for each in found)
    return [
        Figure(
            "Append, answered when durable",
            median("append") / _MB,
            "MB/s",
            reference=median("raw") / _MB,
            ratio=ratio,
            target=f"ratio >= {_APPEND_RATIO_MIN}",
            met=ratio >= _APPEND_RATIO_MIN,
        ),
        Figure(
            "Fetch from the page cache",
            median("fetch") / _MB,
            "MB/s",
            target=f">= {_FETCH_MB_MIN} MB/s",
            met=median("fetch") >= _FETCH_MB_MIN * _MB,
        ),
        Figure("the same by a client that does not parse batches", median("fetch_bytes") / _MB, "MB/s"),
        Figure("processor time of the daemon, Append", median("append_cpu"), "s/GB"),
        Figure("the same, Fetch", median("fetch_cpu"), "s/GB"),
    ]


def _load(server: Server, what: str, **arguments: object) -> tuple[float, float]:
    """Bytes per second of a load, and the daemon's processor time in seconds per GB."""
    before = server.cpu_seconds()
    command = [sys.executable, "-m", "bench.log.loads", what, server.address, json.dumps(arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=_LOAD_SECONDS_MAX)
    found = json.loads(done.stdout)
    return found["bytes"] / found["seconds"], (server.cpu_seconds() - before) / (found["bytes"] / 1e9)


def _raw(folder: Path, size: int) -> float:
    """Raw speed of the disk for large synced writes: the reference of `bench.storage` too."""
    return sequential_write(folder, size, _RAW_WRITE_BYTES, seconds_max=_RAW_SECONDS_MAX)

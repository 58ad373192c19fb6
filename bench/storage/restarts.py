"""Start-up cost: with many idle partitions, and after a crash. And `pixy storage check` on the
result.
"""

import json
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from bench.kit.figures import Figure
from bench.storage.node import Appends, directory_of
from bench.storage.raw import drop_page_cache, files_below, read_and_checksum
from bench.storage.run import (
    APPEND_SECONDS_MAX,
    LOAD_SECONDS_MAX,
    Bench,
    Found,
    Results,
    at_least,
    at_most,
    run_load,
)

_MIB = 1 << 20
_MIDDLE = Appends(partitions=100, records=145, record_bytes=100, in_flight=64)
"""Batches of 16 KiB."""
_SINGLE = Appends(partitions=100, records=1, record_bytes=100, in_flight=512)


# --- idle partitions ------------------------------------------------------------------------------


def idle(bench: Bench) -> Results:
    """Start of a node with many partitions of one record each, and its memory then."""
    count = bench.scale.idle_partitions
    found: dict[int, list[Found]] = {1: [], count: []}
    for number, starts in found.items():
        with bench.folder() as folder:
            make_idle(folder, number)
            starts += [run_load("start", folder=str(folder)) for _ in range(bench.scale.rounds)]
    seconds = statistics.median(each["seconds"] for each in found[count])
    rss = {number: statistics.median(each["rss"] for each in starts) for number, starts in found.items()}
    each_kb = (rss[count] - rss[1]) / (count - 1) / 1000
    return Results(
        [
            at_most(f"ready with {count:,} partitions", seconds, "s", 1.5),
            at_most(f"memory for each of {count:,} idle partitions", each_kb, "KB", 8.0),
        ],
        [
            f"resident {rss[1] / 1e6:.0f} MB with 1 partition, {rss[count] / 1e6:.0f} MB with {count:,}; "
            f"at most {max(each['rss_max'] for each in found[count]) / 1e6:.0f} MB during the start"
        ],
    )


def make_idle(folder: Path, partitions: int) -> None:
    """Create a stopped node with a topic with one record in each partition."""
    kind = Appends(partitions=partitions, records=1, record_bytes=100, in_flight=1)
    arguments: Found = {"appends": asdict(kind), "seconds_max": APPEND_SECONDS_MAX}
    found = run_load("append", folder=str(folder), count=partitions + 1, **arguments)
    if found["batches"] < partitions:
        raise RuntimeError(f"only {found['batches']} of {partitions} partitions have a record")


# --- after a crash --------------------------------------------------------------------------------


def ready(bench: Bench) -> Results:
    """Start of a node that was killed while it wrote to 100 partitions."""
    results = Results()
    for name in ("16 KiB", "one record"):
        folder, made = _crashed(bench, name)
        results.notes += made.notes
        times = [run_load("start", folder=str(folder))["seconds"] for _ in range(bench.scale.rounds)]
        drop_page_cache(files_below(folder))
        from_disk = run_load("start", folder=str(folder))["seconds"]
        size = sum(path.stat().st_size for path in files_below(folder))
        label = f"ready after kill -9, {size / 1e9:.1f} GB, batches of {name}"
        results.figures += [
            at_most(label, statistics.median(times), "s", 2.0),
            Figure("the same, nothing in the page cache", from_disk, "s"),
        ]
    return results


def check(bench: Bench) -> Results:
    """`pixy storage check` of the killed writers' directories out of the page cache; the reference
    reads and checksums the same bytes.
    """
    results = Results()
    for name in ("16 KiB", "one record"):
        folder, _ = _crashed(bench, name)
        command = [sys.executable, "-m", "pixy", "storage", "check", str(folder), "--json"]
        rates, bare = [], []
        for _ in range(bench.scale.rounds):
            bare.append(read_and_checksum(files_below(directory_of(folder))))
            done = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, timeout=LOAD_SECONDS_MAX
            )
            found = json.loads(done.stdout)
            rates.append(found["bytes"] / found["seconds"])
        ratio = statistics.median(a / b for a, b in zip(rates, bare, strict=True))
        rate, reference = statistics.median(rates) / 1e6, statistics.median(bare) / 1e6
        label = f"storage check, batches of {name}"
        if name == "16 KiB":
            results.figures.append(at_least(label, rate, "MB/s", 500, reference=reference, ratio=ratio))
        else:
            results.figures.append(Figure(label, rate, "MB/s", reference=reference, ratio=ratio))
        results.notes.append(f"{label}: {found['bytes'] / 1e9:.2f} GB, {found['records']:,} records")
    return results


def _crashed(bench: Bench, name: str) -> tuple[Path, Results]:
    """Directory and results of a writer that was killed while it wrote."""
    if name in bench.crashed:
        return bench.crashed[name]
    kind, size = (
        (_MIDDLE, bench.scale.crash_bytes) if name == "16 KiB" else (_SINGLE, bench.scale.crash_single_bytes)
    )
    results = Results()
    free = shutil.disk_usage(bench.directory).free
    if size + (1 << 30) > free * 0.8:
        size = int(free * 0.8) - (1 << 30)
        if size < 100 * _MIB:
            raise SystemExit(f"{bench.directory} has no room: {free / 1e9:.1f} GB are free")
        results.notes.append(f"scaled down to {size / 1e9:.1f} GB: {free / 1e9:.1f} GB are free")
    folder = bench.directory / f"crashed-{len(bench.crashed)}"
    folder.mkdir()
    arguments = {"folder": str(folder), "appends": asdict(kind), "size": size}
    command = [sys.executable, "-m", "bench.storage.loads", "fill"]
    command.append(json.dumps(arguments | {"seconds_max": LOAD_SECONDS_MAX}))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    filled = process.stdout.readline()
    process.kill()
    process.communicate()
    if "filled" not in filled:
        raise RuntimeError(f"the writer ended before it was killed: {filled!r}")
    bench.crashed[name] = folder, results
    return bench.crashed[name]

"""Measurements of the storage: one function per figure, beside the machine's own limits in the same
run.

Each function starts its loads as processes, alternating with their references, takes medians over
the rounds, and removes its files. The directory left by a killed writer is created once and shared.
"""

import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bench.kit.figures import Figure
from bench.kit.processes import server_core
from bench.storage.node import Appends
from bench.storage.raw import sequential_write
from bench.storage.restarts import check, idle, make_idle, ready
from bench.storage.run import (
    APPEND_SECONDS_MAX,
    Bench,
    Found,
    Results,
    at_least,
    at_most,
    run_load,
    stall_notes,
)

_RAW_SECONDS_MAX = 30.0
_MIB = 1 << 20
_ANY = sys.maxsize
_LARGE = Appends(partitions=4, records=1000, record_bytes=1000, in_flight=8)
"""Batches of 1 MB."""


# --- one flush ------------------------------------------------------------------------------------


def flush(bench: Bench) -> Results:
    """Single records of 200 bytes, alternating with a raw write and sync of as many bytes."""
    found = []
    for _ in range(bench.scale.rounds):
        with bench.folder() as folder:
            (folder / "journal").mkdir()
            arguments: Found = {"folder": str(folder / "journal"), "record_bytes": 200, "seconds_max": 60.0}
            found.append(run_load("flush", count=bench.scale.flushes, **arguments))
    trip, thread, bare = (
        [1000 * statistics.median(each[what][which] for each in found) for which in ("p50", "p99")]
        for what in ("trip", "thread", "bare")
    )
    ratio = statistics.median(each["ratio"] for each in found)
    hop = statistics.median(1 - each["thread"]["p50"] / each["trip"]["p50"] for each in found)
    return Results(
        [
            Figure(
                "flush of one small record, median",
                trip[0],
                "ms",
                reference=bare[0],
                ratio=ratio,
                target="ratio <= 1.5",
                met=ratio <= 1.5,
            ),
            Figure("the same, p99", trip[1], "ms", reference=bare[1]),
            Figure("of which on the journal's thread, median", thread[0], "ms"),
            Figure("thread hops, share of the median", 100 * hop, "%"),
        ]
    )


# --- sustained appends ----------------------------------------------------------------------------


def sustained(bench: Bench) -> Results:
    """Batches of 1 MB through a node, with all segments written and synced at the end, between two
    raw measurements.
    """
    size = bench.scale.sustained_bytes
    rates: list[float] = []
    raws = [_raw(bench, size)]
    ratios: dict[str, list[float]] = {name: [] for name in raws[0]}
    for _ in range(bench.scale.rounds):
        with bench.folder() as folder:
            arguments: Found = {"folder": str(folder), "appends": asdict(_LARGE)}
            arguments["seconds_max"] = APPEND_SECONDS_MAX
            found = run_load("append", count=size // 1_000_000, **arguments)
        rates.append(_bytes_per_second(found))
        raws.append(_raw(bench, size))
        for name, values in ratios.items():
            values.append(rates[-1] / statistics.mean((raws[-2][name], raws[-1][name])))
    results = Results()
    for name, values in ratios.items():
        ratio = statistics.median(values)
        figure = Figure(
            f"sustained appends of 1 MB; raw: {name}",
            statistics.median(rates) / 1e6,
            "MB/s",
            reference=statistics.median(raw[name] for raw in raws) / 1e6,
            ratio=ratio,
            target="" if name == _ONE_SYNC else "ratio >= 0.4",
            met=None if name == _ONE_SYNC else ratio >= 0.4,
        )
        results.figures.append(figure)
    results.notes.append("MB/s by round: " + ", ".join(f"{rate / 1e6:.0f}" for rate in rates))
    return results


_ONE_SYNC = "16 MiB, one sync at the end"


def _raw(bench: Bench, size: int) -> dict[str, float]:
    def write(write_bytes: int, sync_each: bool = True) -> float:
        return sequential_write(
            bench.directory, size, write_bytes, seconds_max=_RAW_SECONDS_MAX, sync_each=sync_each
        )

    return {
        "1 MiB, each synced": write(_MIB),
        "16 MiB, each synced": write(16 * _MIB),
        _ONE_SYNC: write(16 * _MIB, sync_each=False),
    }


def _bytes_per_second(found: Found) -> float:
    rate: float = found["batches"] * found["batch_bytes"] / (found["seconds"] + found["closing"])
    return rate


# --- produce without a network --------------------------------------------------------------------


def produce(bench: Bench) -> Results:
    """A proxy with 512 messages of 100 bytes in flight, on one core, with the daemon's defaults."""
    found: list[Found] = []
    for _ in range(bench.scale.rounds):
        with bench.folder() as folder:
            arguments = {"folder": str(folder), "partitions": 4, "seconds": bench.scale.produce_seconds}
            found.append(run_load("produce", core=server_core(), partitioner="hash", **arguments))
    rate, cpu_rate = (statistics.median(each[which] for each in found) for which in ("rate", "cpu_rate"))
    return Results(
        [
            at_least("produce, no network, 512 in flight, one core", rate, "/s", 140_000),
            Figure("the same per second of processor time", cpu_rate, "/s"),
        ]
    )


def partitions(bench: Bench) -> Results:
    """Cost per record in a thousand partitions round-robin, compared with one.

    The target applies to the same batches below the proxy. Through the proxy the batches differ:
    the messages in flight are one batch of one partition, or as many batches as messages. That
    ratio is reported too.
    """
    results = Results()
    seconds = bench.scale.produce_seconds
    for in_flight in (512, 8192):

        def proxy(folder: Path, count: int, in_flight: int = in_flight) -> tuple[float, float]:
            arguments: Found = {"folder": str(folder), "seconds": seconds, "in_flight": in_flight}
            found = run_load("produce", core=server_core(), partitions=count, **arguments)
            return 1e6 / found["rate"], 1e6 / found["cpu_rate"]

        results.figures += _thousand(bench, f"produce, {in_flight} in flight", proxy, judged=False)
    for records in (1, 100):

        def backend(folder: Path, count: int, records: int = records) -> tuple[float, float]:
            kind = Appends(partitions=count, records=records, record_bytes=100, in_flight=512)
            arguments: Found = {"folder": str(folder), "appends": asdict(kind), "seconds_max": seconds}
            found = run_load(
                "append", core=server_core(), count=_ANY, warm_up=2 * max(512, count), **arguments
            )
            us = 1e6 / (found["batches"] * records)
            return us * found["seconds"], us * found["cpu_seconds"]

        results.figures += _thousand(
            bench, f"append, 512 in flight, records in a batch: {records}", backend, judged=True
        )
    return results


_FILLED = 6
"""Batches of 100 records written to each partition before: 66 KB, more than the first index entry
needs.
"""


def _thousand(
    bench: Bench, what: str, cost_us: Callable[[Path, int], tuple[float, float]], *, judged: bool
) -> list[Figure]:
    """Cost of a record in 1000 partitions relative to one: elapsed time, and processor time of all
    threads.

    A partition's first writes create a directory and files, which is not measured and done before.
    """
    costs: dict[int, list[tuple[float, float]]] = {1: [], 1000: []}
    for _ in range(bench.scale.rounds):
        for count, found in costs.items():
            with bench.folder() as folder:
                kind = asdict(Appends(partitions=count, records=100, record_bytes=100, in_flight=16))
                filled: Found = {"appends": kind, "count": _FILLED * count + 16}
                run_load("append", folder=str(folder), seconds_max=APPEND_SECONDS_MAX, **filled)
                found.append(cost_us(folder, count))
    figures = []
    for at, by in enumerate(("", ", processor time")):
        one, many = ([each[at] for each in costs[count]] for count in (1, 1000))
        ratio = statistics.median(b / a for a, b in zip(one, many, strict=True))
        by_clock = judged and not by
        figures.append(
            Figure(
                f"{what}; 1000 partitions against 1{by}",
                statistics.median(many),
                "us",
                reference=statistics.median(one),
                ratio=ratio,
                target="ratio <= 1.5" if by_clock else "",
                met=ratio <= 1.5 if by_clock else None,
            )
        )
    return figures


# --- fetch ----------------------------------------------------------------------------------------


def fetch(bench: Bench) -> Results:
    """A whole partition out of the page cache; the reference is reading and checksumming the same
    files.
    """
    results = Results()
    for name, records, record_bytes in (("16 KiB", 145, 100), ("1 MB", 1000, 1000)):
        with bench.folder() as folder:
            _fill(folder, Appends(1, records, record_bytes, in_flight=16), bench.scale.fetched_bytes)
            found = run_load("fetch", folder=str(folder), rounds=max(3, bench.scale.rounds))
        figure = at_least(
            f"fetch from the page cache, batches of {name}",
            found["rate"] / 1e9,
            "GB/s",
            1.5,
            reference=found["bare"] / 1e9,
            ratio=found["ratio"],
        )
        results.figures.append(figure)
    return results


def _fill(folder: Path, kind: Appends, size: int) -> None:
    arguments: Found = {"appends": asdict(kind), "seconds_max": APPEND_SECONDS_MAX}
    count = size // (kind.records * kind.record_bytes)
    run_load("append", folder=str(folder), count=count, tail_cache_bytes=0, **arguments)


def cold(bench: Bench) -> Results:
    """A small produce every 2 ms, alone and beside fetches from the disk."""
    with bench.folder() as folder:
        _fill(folder, Appends(1, 145, 100, in_flight=16), bench.scale.fetched_bytes)
        found = run_load(
            "cold", folder=str(folder), rounds=bench.scale.rounds, seconds=bench.scale.cold_seconds
        )
    results = Results()
    quiet = found["quiet"]
    for name, label in _NEIGHBOURS.items():
        for which in ("p50", "p99"):
            ratio = found[name][which] / quiet[which]
            judged = (name, which) == ("cold", "p99")
            figure = Figure(
                f"produce every 2 ms {label}, {which} against quiet",
                1000 * found[name][which],
                "ms",
                reference=1000 * quiet[which],
                ratio=ratio,
                target="ratio <= 2" if judged else "",
                met=ratio <= 2 if judged else None,
            )
            results.figures.append(figure)
        late = [1000 * each["loop"]["max"] for each in (found[name], quiet)]
        results.figures.append(
            Figure("longest stall of the loop meanwhile", late[0], "ms", reference=late[1])
        )
        read, disk = found[name]["read_rate"] / 1e6, found[name]["disk_rate"] / 1e6
        results.notes.append(
            f"{label}: {read:.0f} MB/s are read, {disk:.0f} MB/s by this process from the disk"
        )
        results.notes += stall_notes(label, found[name]["loop"])
    return results


_NEIGHBOURS = {
    "cold": "beside cold fetches",
    "other": "while another process reads as much",
    "paced": "beside cold fetches at 100 MB/s",
}


# --- the loop's longest stall ---------------------------------------------------------------------


def stalls(bench: Bench) -> Results:
    """The loads of 2, 3 and 4 again, and many idle partitions with checkpoints, each with a monitor
    in its event loop.
    """
    scale = bench.scale
    results = Results()
    core = server_core()
    idle_loop = run_load("idle-loop", core=core, seconds=scale.stall_seconds / 2)["loop"]
    large = {"appends": asdict(_LARGE), "count": scale.sustained_bytes // 1_000_000}
    loads: dict[str, Found] = {
        "produce, one core": {"name": "produce", "core": core, "partitions": 4, "partitioner": "hash"},
        "produce to 1000 partitions, one core": {"name": "produce", "core": core, "partitions": 1000},
        "sustained appends of 1 MB": {"name": "append", "seconds_max": scale.stall_seconds, **large},
    }
    for label, arguments in loads.items():
        if arguments["name"] == "produce":
            arguments["seconds"] = scale.stall_seconds
        with bench.folder() as folder:
            found = run_load(**arguments, folder=str(folder), watch=True)
        _add_stall(results, label, found["loop"], idle_loop)
    with bench.folder() as folder:
        make_idle(folder, scale.idle_partitions)
        for producing in (False, True):
            label = f"{scale.idle_partitions:,} idle partitions, checkpoints" + (", produce" * producing)
            arguments = {"partitions": scale.idle_partitions, "offsets": scale.committed_offsets}
            arguments |= {"seconds": scale.stall_seconds, "producing": producing}
            found = run_load("busy", folder=str(folder), **arguments)
            _add_stall(results, label, found["loop"], idle_loop)
            results.notes.append(
                f"{label}: {found['offsets']:,} offsets in {found['checkpoint_bytes'] / 1e6:.1f} MB; "
                f"{found['commits']:,} commits, {found['produced']:,} messages meanwhile"
            )
    return results


# --- creation and deletion of topics --------------------------------------------------------------


def topics(bench: Bench) -> Results:
    """A message every 2 ms while a topic with many partitions is deleted, and while topics get many
    partitions.
    """
    scale, results, core = bench.scale, Results(), server_core()
    partitions = scale.idle_partitions
    arguments: Found = {"seconds": scale.stall_seconds}
    deletions = []
    for _ in range(scale.rounds):
        with bench.folder() as folder:
            make_idle(folder, partitions)
            deletions.append(run_load("delete", folder=str(folder), partitions=partitions, **arguments))
    ratios = [each["deleting"]["p99"] / each["quiet"]["p99"] for each in deletions]
    found = deletions[ratios.index(statistics.median_low(ratios))]
    ratio, label = statistics.median_low(ratios), f"a topic of {partitions:,} partitions is deleted"
    results.figures.append(
        Figure(
            f"produce every 2 ms while {label}, p99 against quiet",
            1000 * found["deleting"]["p99"],
            "ms",
            reference=1000 * found["quiet"]["p99"],
            ratio=ratio,
            target="ratio <= 2",
            met=ratio <= 2,
        )
    )
    results.notes.append(
        f"{label}: answered in {1000 * found['answered']:.1f} ms, gone after {found['removed']:.1f} s"
    )
    idle_loop = run_load("idle-loop", core=core, seconds=scale.stall_seconds / 2)["loop"]
    _add_stall(results, label, found["loop"], idle_loop)
    with bench.folder() as folder:
        grown = run_load("grow", folder=str(folder), partitions=partitions, **arguments)
    for what, label in (
        ("alter", "a topic grows by"),
        ("create", "a topic is made with"),
        ("delete", "deleted are"),
    ):
        _add_stall(results, f"{label} {partitions:,} partitions", grown[what]["loop"], idle_loop)
    return results


def _add_stall(results: Results, label: str, loop: Found, idle_loop: Found) -> None:
    most, p999 = 1000 * loop["max"], 1000 * loop["p999"]
    results.figures += [
        at_most(f"longest stall: {label}", most, "ms", 10.0, reference=1000 * idle_loop["max"]),
        at_most(
            "the loop's longest turn by its own processor time",
            1000 * loop["max_cpu"],
            "ms",
            10.0,
            reference=1000 * idle_loop["max_cpu"],
        ),
        Figure(f"p99.9 of the same {loop['turns']:,} turns", p999, "ms", reference=1000 * idle_loop["p999"]),
    ]
    results.notes += stall_notes(label, loop)


MEASURES: dict[str, Callable[[Bench], Results]] = {
    "flush": flush,
    "sustained": sustained,
    "produce": produce,
    "partitions": partitions,
    "idle": idle,
    "fetch": fetch,
    "cold": cold,
    "ready": ready,
    "check": check,
    "stalls": stalls,
    "topics": topics,
}

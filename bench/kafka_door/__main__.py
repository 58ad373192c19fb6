"""`python -m bench.kafka_door`: Kafka's clients at pixy, which syncs every batch before its answer,
and in the same run at Apache Kafka, which syncs nothing; 100-byte messages.

--only NAME       measure only this; repeatable
    kcat          kcat -P and kcat -C
    java          ProducerPerformance with its defaults and with batches of 128 KB,
                  ConsumerPerformance
    lz4, zstd     the same with compressed batches
    latency       one message at a time, from the producer to the consumer
    cluster       kcat and java at three nodes, beside three brokers
    beside        the slowest of a hundred calls of gRPC's Produce, 32 in flight, alone and beside
                  kcat -P
    memory        of a node with 1000 connections that wait in a Fetch
--messages N      of each load (default 2 000 000), lone ones 2000
--partitions N    of topics at one node (default 1); 6 at three
--rounds N        loads of each kind and side (default 3), after one that does not count

The sides alternate, and what one has written is on the disk before the other begins. A ratio is the
median of those of the rounds. Processor time is that of the servers, without their clients.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.kafka_door import loads, lone
from bench.kafka_door.sides import Side, Sides, open_sides
from bench.kit.figures import Figure, as_table, machine
from bench.kit.load import Level, put_timed, write_body
from pixy.proto import kafkapixy_pb2 as pb

_NODES, _CLUSTER_PARTITIONS = 3, 6
_LONE_MESSAGES = 2000
_CONNECTIONS = 1000
_MEMORY_MB_WANTED = 300
_LEVEL = Level(4, 8)
_CALL_SECONDS = 3.0
_TIMES_ALONE_WANTED = 5.0
_LATENCY_WANTED = 1.5
_FILLED = "filled"


@dataclass(frozen=True, slots=True)
class DoorScale:
    """Amount of work.

    Attributes:
        file: lines, one for each message.
        codec: of the batches.
    """

    messages: int
    partitions: int
    rounds: int
    file: Path
    codec: str = "none"

    @property
    def suffix(self) -> str:
        """End of the names of figures."""
        return "" if self.codec == "none" else f", {self.codec}"


class Wanted(NamedTuple):
    """Ratios to Kafka that are wanted."""

    kcat_write: float
    kcat_read: float
    java_write: float
    java_write_large: float
    java_read: float


_WANTED = Wanted(1.5, 1.3, 0.9, 1.2, 1.0)
_WANTED_COMPRESSED = Wanted(*(0.8 * each for each in _WANTED))
_WANTED_OF_THREE = Wanted(1.0, 1.0, 1.0, 1.0, 1.0)

TopicLoad = Callable[[str, Side], float]
"""Writes or reads a topic of a side, and tells how many messages a second."""
Row = tuple[str, TopicLoad, float]
"""A name, the load, and the ratio that is wanted."""


# --- rounds ---------------------------------------------------------------------------------------


def _rounds(sides: Sides, rounds: int, load: Callable[[Side], float]) -> list[list[tuple[float, float]]]:
    """Results of a load, and seconds of processor time of the servers: by side and round."""
    found: list[list[tuple[float, float]]] = [[] for _ in sides]
    for at in range(rounds + 1):
        for number in sorted(range(len(sides)), reverse=bool(at % 2)):
            used = sides[number].cpu_seconds()
            told = load(sides[number])
            if at:
                found[number].append((told, sides[number].cpu_seconds() - used))
    return found


def _figures(sides: Sides, scale: DoorScale, writes: Sequence[Row], reads: Sequence[Row]) -> list[Figure]:
    """Figures of writes, each to a new topic, and of reads of one topic, which kcat fills."""
    figures: list[Figure] = []
    for name, write, wanted in writes:
        found = _rounds(sides, scale.rounds, partial(_into_new_topic, scale, write))
        figures += _rate_figures(scale, name, found, wanted)
    with ExitStack() as stack:
        for side in sides:
            stack.enter_context(_topic(side, _FILLED, scale.partitions))
            loads.kcat_produce(side, _FILLED, scale.file, scale.messages, scale.codec)
        for name, read, wanted in reads:
            found = _rounds(sides, scale.rounds, partial(read, _FILLED))
            figures += _rate_figures(scale, name, found, wanted)
    return figures


def _into_new_topic(scale: DoorScale, write: TopicLoad, side: Side) -> float:
    with _topic(side, "written", scale.partitions):
        return write("written", side)


@contextmanager
def _topic(side: Side, name: str, partitions: int) -> Iterator[None]:
    side.create(name, partitions)
    try:
        yield
    finally:
        side.delete(name)


def _rate_figures(
    scale: DoorScale, name: str, found: list[list[tuple[float, float]]], wanted: float
) -> list[Figure]:
    (rate, cpu), (other_rate, other_cpu) = map(_medians, found)
    ratio = _ratio(found)
    name = f"{name}{scale.suffix}"
    us = 1e6 / scale.messages
    target = f">= {wanted:.2f}"
    return [
        Figure(name, rate, "msg/s", other_rate, ratio, target, ratio >= wanted),
        Figure(f"{name}, CPU", cpu * us, "us/msg", other_cpu * us, cpu / other_cpu),
    ]


def _ratio(found: list[list[tuple[float, float]]]) -> float:
    ours, theirs = found
    return statistics.median(mine / other for (mine, _), (other, _) in zip(ours, theirs, strict=True))


def _medians(found: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(each for each, _ in found), statistics.median(cpu for _, cpu in found)


# --- measurements ---------------------------------------------------------------------------------


def _kcat_rows(scale: DoorScale, wanted: Wanted) -> tuple[list[Row], list[Row]]:
    def write(topic: str, side: Side) -> float:
        return loads.kcat_produce(side, topic, scale.file, scale.messages, scale.codec)

    def read(topic: str, side: Side) -> float:
        return loads.kcat_consume(side, topic, scale.messages)

    return [("kcat -P", write, wanted.kcat_write)], [("kcat -C", read, wanted.kcat_read)]


def _java_rows(scale: DoorScale, wanted: Wanted) -> tuple[list[Row], list[Row]]:
    def write(options: Sequence[str], topic: str, side: Side) -> float:
        return loads.java_produce(side, topic, scale.messages, options)

    def read(topic: str, side: Side) -> float:
        return loads.java_consume(side, topic, scale.messages)

    codec = f"compression.type={scale.codec}"
    large = partial(write, (codec, "batch.size=131072"))
    writes: list[Row] = [("ProducerPerformance, 128 KB", large, wanted.java_write_large)]
    if scale.codec == "none":
        writes.append(("ProducerPerformance", partial(write, ()), wanted.java_write))
    return writes, [("ConsumerPerformance", read, wanted.java_read)]


def _all_rows(scale: DoorScale, wanted: Wanted) -> tuple[list[Row], list[Row]]:
    (writes, reads), (more_writes, more_reads) = _kcat_rows(scale, wanted), _java_rows(scale, wanted)
    return [*writes, *more_writes], [*reads, *more_reads]


def kcat(sides: Sides, scale: DoorScale) -> list[Figure]:
    """Kcat at one node."""
    return _figures(sides, scale, *_kcat_rows(scale, _WANTED))


def java(sides: Sides, scale: DoorScale) -> list[Figure]:
    """Kafka's performance tools at one node."""
    return _figures(sides, scale, *_java_rows(scale, _WANTED))


def lz4(sides: Sides, scale: DoorScale) -> list[Figure]:
    """Batches that lz4 has compressed."""
    return _compressed(sides, replace(scale, codec="lz4"))


def zstd(sides: Sides, scale: DoorScale) -> list[Figure]:
    """Batches that zstd has compressed."""
    return _compressed(sides, replace(scale, codec="zstd"))


def _compressed(sides: Sides, scale: DoorScale) -> list[Figure]:
    return _figures(sides, scale, *_all_rows(scale, _WANTED_COMPRESSED))


def cluster(sides: Sides, scale: DoorScale) -> list[Figure]:
    """Three nodes beside three brokers."""
    return _figures(sides, scale, *_all_rows(scale, _WANTED_OF_THREE))


def latency(sides: Sides, scale: DoorScale) -> list[Figure]:
    """Lone messages."""

    def load(measure: Callable[[Side, str, int], float], side: Side) -> float:
        with _topic(side, "lone", 1):
            return measure(side, "lone", _LONE_MESSAGES)

    figures = []
    for name, measure in (
        ("EndToEndLatency, mean", loads.java_latency_ms),
        ("librdkafka, median", lone.latency_ms),
    ):
        found = _rounds(sides, scale.rounds, partial(load, measure))
        (mine, _), (other, _) = map(_medians, found)
        ratio = _ratio(found)
        figures.append(Figure(name, mine, "ms", other, ratio, "<= 1.50", ratio <= _LATENCY_WANTED))
    return figures


def beside(sides: Sides, scale: DoorScale) -> list[Figure]:
    """Calls of gRPC, alone and beside kcat."""
    pixy = sides[0]
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as folder, _topic(pixy, "calls", 4):
        request = pb.ProdRq(topic="calls", key_undefined=True, message=bytes(loads.MESSAGE_BYTES))
        body = write_body(Path(folder) / "produce", request.SerializeToString())

        def p99_ms() -> float:
            times = put_timed(pixy.grpc, "Produce", body, _LEVEL, _CALL_SECONDS)
            return times[len(times) * 99 // 100]

        alone, loaded = [], []
        for _ in range(scale.rounds):
            alone.append(p99_ms())
            with (
                _topic(pixy, "flat-out", scale.partitions),
                loads.kcat_flat_out(pixy, "flat-out", scale.file),
            ):
                loaded.append(p99_ms())
    ratio = statistics.median(one / other for one, other in zip(loaded, alone, strict=True))
    name = "gRPC Produce at 32 in flight, p99"
    target = f"<= {_TIMES_ALONE_WANTED:.2f}"
    return [
        Figure(f"{name} alone", statistics.median(alone), "ms"),
        Figure(
            f"{name} beside kcat -P",
            statistics.median(loaded),
            "ms",
            ratio=ratio,
            target=target,
            met=ratio <= _TIMES_ALONE_WANTED,
        ),
    ]


def memory(sides: Sides, scale: DoorScale) -> list[Figure]:
    """Many connections."""
    used = []
    for side in sides:
        with _topic(side, "memory", 1):
            used.append(lone.waiting_rss_bytes(side, "memory", _CONNECTIONS) / 1e6)
    mine, theirs = used
    met = mine <= _MEMORY_MB_WANTED
    target = f"<= {_MEMORY_MB_WANTED} MB"
    return [Figure(f"memory with {_CONNECTIONS} connections", mine, "MB", theirs, target=target, met=met)]


MEASURES = {
    "memory": memory,
    "kcat": kcat,
    "java": java,
    "lz4": lz4,
    "zstd": zstd,
    "latency": latency,
    "beside": beside,
    "cluster": cluster,
}
"""Memory comes first: it is that of these connections, and of nothing before."""


def _measure(names: Sequence[str], nodes: int, scale: DoorScale) -> list[Figure]:
    figures: list[Figure] = []
    if names:
        with (
            tempfile.TemporaryDirectory(prefix="pixy-bench-") as folder,
            open_sides(Path(folder), nodes) as sides,
        ):
            for name in names:
                print(f"measuring {name} ...", file=sys.stderr, flush=True)
                found = MEASURES[name](sides, scale)
                print(f"\n{name}, load {machine()['load']}\n{as_table(found, reference='Kafka')}", flush=True)
                figures += found
    return figures


def as_rows(figures: Sequence[Figure]) -> str:
    """The table of docs/performance.md: figures with a target."""
    rows = ["| | pixy | Kafka | ratio | wanted |", "|---|---|---|---|---|"]
    for each in figures:
        if each.target:
            other = "" if each.reference is None else _short(each.reference, each.unit)
            ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
            rows.append(
                f"| {each.name} | {_short(each.value, each.unit)} | {other} | {ratio} | {each.target} |"
            )
    return "\n".join(rows)


def _short(value: float, unit: str) -> str:
    if unit == "msg/s":
        return f"{value / 1e6:.2f} M/s"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.2f} {unit}"


def main() -> int:
    """Run the selected measurements."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m bench.kafka_door", description="Kafka's clients at pixy, beside Apache Kafka."
    )
    parser.add_argument("--only", action="append", choices=MEASURES, help="measure only this; repeatable")
    parser.add_argument("--messages", type=int, default=2_000_000, help="of each load")
    parser.add_argument("--partitions", type=int, default=1, help="of topics at one node")
    parser.add_argument("--rounds", type=int, default=3, help="loads of each kind and side")
    arguments = parser.parse_args()
    names = [name for name in MEASURES if not arguments.only or name in arguments.only]
    with tempfile.NamedTemporaryFile(prefix="pixy-bench-", suffix=".txt") as file:
        messages = loads.write_messages(Path(file.name), arguments.messages)
        scale = DoorScale(arguments.messages, arguments.partitions, arguments.rounds, messages)
        figures = _measure([name for name in names if name != "cluster"], 1, scale)
        of_cluster = replace(scale, partitions=_CLUSTER_PARTITIONS)
        at_three = _measure([name for name in names if name == "cluster"], _NODES, of_cluster)
    here = machine()
    print(
        f"\n{here['cores']} cores, Python {here['python']}, kernel {here['kernel']}; {arguments.messages} messages of "
        f"{loads.MESSAGE_BYTES} bytes, {arguments.partitions} partitions; medians of {arguments.rounds} rounds"
    )
    for title, of in (("one node", figures), ("three nodes", at_three)):
        if of:
            print(f"\n{title}\n\n{as_rows(of)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench.spark`: Spark with pixy, and the log without Spark, in one run.

--kafka       beside Spark's own Kafka connector 4.0 and a real broker; needs Java and Maven, and
              the first time fetches 500 MB from PyPI and Maven Central into `.cache`
--over-kafka  also with the daemon in front of a real broker; the first time it fetches Kafka from
              Maven Central
--rows N      rows read and written in each measurement (default 2000000)
--rounds N    number of rounds; medians are reported (default 3)
--only W      spark, or log (Fetch and Append without Spark, as `python -m bench.log`);
              default: both

Values have 100 bytes, keys 8, topics 8 partitions; `local[2]`, with the daemon on the same cores.
Each round measures everything once in sequence, so that other load on the machine affects all
alike; the order rotates, and outstanding disk writes are flushed before the next measurement. An
unreported first round warms up. A ratio is the median of the rounds' ratios. Besides rows per
second, the processor time of all participants is reported (Spark, its Python workers, daemon,
broker), which depends less on other load.

All connectors get the same rows and settings from the same code (`bench.spark.session`). Writes of
Kafka's connector are at-least-once and not synced; pixy's are exactly-once and synced. In front of
Kafka they are exactly-once too: stages are synced, and published as one transaction, which the
broker does not sync.

The Python source yields prebuilt Arrow batches of the same rows: the upper limit of any source in
Python. A micro-batch of one row per partition is compared with one of a Python source that yields a
row from memory.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.kit.figures import Figure, as_table, machine
from bench.kit.processes import daemon
from bench.log.measure import measure_log
from bench.spark.process import Measured, SparkProcess, spark_process
from bench.storage.run import default_parent

_PARTITIONS = 8
_MEMORY = "memory-source"
_PIXY = "pixy"
_OVER_KAFKA = "pixy over Kafka"
_KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class _Target:
    """Name and targets of a measurement: millions of rows per second, and a ratio to Kafka's
    connector.
    """

    title: str
    rate_min: float
    ratio_min: float | None = None


_TARGETS = {
    "batch_read": _Target("batch read", 1.2, 1.5),
    "batch_write": _Target("batch write", 0.6, 1.0),
    "stream": _Target("stream to noop", 0.7),
}
_MICRO_BATCH_RATIO_MAX = 1.2


@dataclass(slots=True)
class _Found:
    """Measured values per round, by measurement and connector. Rows per second, or milliseconds."""

    rows: int
    runs: dict[tuple[str, str], list[Measured]] = field(default_factory=dict)

    def add(self, name: str, whose: str, measured: Measured) -> None:
        self.runs.setdefault((name, whose), []).append(measured)

    def median(self, name: str, whose: str) -> float | None:
        """The median; None if not measured."""
        runs = self.runs.get((name, whose))
        return statistics.median(each.value for each in runs) if runs else None

    def ratio(self, name: str, whose: str, to: str) -> float | None:
        """The median of the rounds' ratios; None if either was not measured."""
        pairs = zip(self.runs.get((name, whose), []), self.runs.get((name, to), []), strict=False)
        ratios = [one.value / other.value for one, other in pairs]
        return statistics.median(ratios) if ratios else None

    def cpu_ns(self, name: str, whose: str) -> float | None:
        """Processor time per row, of all cores."""
        runs = self.runs.get((name, whose))
        return statistics.median(each.cpu_s for each in runs) / self.rows * 1e9 if runs else None

    def last(self) -> str:
        """The last round as text."""
        told = []
        for (name, whose), runs in self.runs.items():
            value = runs[-1].value
            told.append(
                f"{name} {whose} {value:.0f} ms"
                if name == "micro_batch_ms"
                else f"{name} {whose} {value / 1e6:.2f} M/s"
            )
        return ", ".join(told)


@contextmanager
def _pixy(folder: Path, rows: int, *, over_kafka: bool = False) -> Iterator[SparkProcess]:
    """A session, and a daemon with the embedded log or in front of a broker."""
    folder = folder / ("over-kafka" if over_kafka else "pixy")
    folder.mkdir()
    cluster: dict[str, object] = {"default_partitions": _PARTITIONS}
    with ExitStack() as stack:
        pids = []
        if over_kafka:
            from bench.spark.kafka import kafka_broker

            broker_address, pid = stack.enter_context(kafka_broker(folder, [], _PARTITIONS))
            cluster["kafka"] = {"seed_peers": [broker_address]}
            pids.append(pid)
        server = stack.enter_context(daemon(folder, {"proxies": {"default": cluster}}))
        arguments = {"connector": "pixy", "address": server.address, "rows": rows, "folder": str(folder)}
        yield stack.enter_context(spark_process(sys.executable, arguments, [*pids, server.pid], folder))


@contextmanager
def _kafka(folder: Path, rows: int, writes: int) -> Iterator[SparkProcess]:
    # Only this option needs the broker of the tests.
    from bench.spark.kafka import kafka_broker, kafka_connector

    connector = kafka_connector()
    folder = folder / "kafka"
    folder.mkdir()
    topics = ["filled", *(f"written-{number}" for number in range(1, writes + 1))]
    with kafka_broker(folder, topics, _PARTITIONS) as (address, pid):
        arguments: dict[str, object] = {
            "connector": "kafka",
            "address": address,
            "rows": rows,
            "folder": str(folder),
            "jars": ",".join(map(str, connector.jars)),
        }
        with spark_process(str(connector.python), arguments, [pid], folder) as session:
            yield session


def _round(sessions: Sequence[tuple[str, SparkProcess]], found: _Found) -> None:
    for name in _TARGETS:
        for whose, session in sessions:
            found.add(name, whose, session.measure(name))
    for whose, session in sessions:
        found.add("micro_batch_ms", whose, session.measure("micro_batch_ms"))
        if whose == _PIXY:
            found.add("micro_batch_ms", _MEMORY, session.measure("micro_batch_ms", _MEMORY))
            found.add("batch_read", _MEMORY, session.measure("memory_read"))


def _measure_spark(rows: int, rounds: int, folder: Path, *, over_kafka: bool, kafka: bool) -> list[Figure]:
    found = _Found(rows)
    with ExitStack() as stack:
        sessions = [(_PIXY, stack.enter_context(_pixy(folder, rows)))]
        if over_kafka:
            sessions.append((_OVER_KAFKA, stack.enter_context(_pixy(folder, rows, over_kafka=True))))
        if kafka:
            sessions.append((_KAFKA, stack.enter_context(_kafka(folder, rows, 1 + rounds))))
        _rounds(sessions, rounds, found)
    return _figures(found)


def _rounds(sessions: list[tuple[str, SparkProcess]], rounds: int, found: _Found) -> None:
    _round(sessions, _Found(found.rows))
    for number in range(rounds):
        _round(sessions if number % 2 == 0 else sessions[::-1], found)
        print(f"round {number}: {found.last()}, load {os.getloadavg()[0]:.1f}", flush=True)


def _figures(found: _Found) -> list[Figure]:
    figures = []
    for name, target in _TARGETS.items():
        figures += _beside_kafka(found, name, target.title, _PIXY, target)
        figures += _beside_kafka(found, name, f"{target.title}, in front of Kafka", _OVER_KAFKA)
        memory = found.median(name, _MEMORY)
        if memory is not None:
            figures.append(
                Figure(f"{target.title}, out of memory by a Python source", memory / 1e6, "M rows/s")
            )
    micro, of_memory = (found.median("micro_batch_ms", whose) for whose in (_PIXY, _MEMORY))
    ratio = found.ratio("micro_batch_ms", _PIXY, _MEMORY)
    assert micro is not None
    assert ratio is not None
    wanted = f"ratio <= {_MICRO_BATCH_RATIO_MAX}"
    title = "trivial micro-batch; the other is a Python source"
    figures.append(Figure(title, micro, "ms", of_memory, ratio, wanted, ratio <= _MICRO_BATCH_RATIO_MAX))
    for whose, title in ((_PIXY, "trivial micro-batch"), (_OVER_KAFKA, "the same, in front of Kafka")):
        own, kafka = found.median("micro_batch_ms", whose), found.median("micro_batch_ms", _KAFKA)
        if own is not None and not (kafka is None and whose == _PIXY):
            of_kafka = found.ratio("micro_batch_ms", whose, _KAFKA)
            figures.append(Figure(title, own, "ms", kafka, of_kafka))
    return figures


def _beside_kafka(
    found: _Found, name: str, title: str, whose: str, target: _Target | None = None
) -> list[Figure]:
    """Rows per second and processor time beside Kafka's connector; empty if not measured."""
    rate, cpu = found.median(name, whose), found.cpu_ns(name, whose)
    if rate is None or cpu is None:
        return []
    reference, cpu_reference = found.median(name, _KAFKA), found.cpu_ns(name, _KAFKA)
    ratio = found.ratio(name, whose, _KAFKA)
    beside = None if reference is None else reference / 1e6
    cpu_ratio = None if cpu_reference is None else cpu / cpu_reference
    wanted, met = ("", None) if target is None else _verdict(target, rate, ratio)
    return [
        Figure(title, rate / 1e6, "M rows/s", beside, ratio, wanted, met),
        Figure(f"{title}, processor time", cpu, "ns/row", cpu_reference, cpu_ratio),
    ]


def _verdict(target: _Target, rate: float, ratio: float | None) -> tuple[str, bool]:
    wanted, met = f">= {target.rate_min} M", rate >= target.rate_min * 1e6
    if target.ratio_min is not None and ratio is not None:
        wanted, met = f"{wanted}, ratio >= {target.ratio_min}", met and ratio >= target.ratio_min
    return wanted, met


def _told(name: str, here: Mapping[str, object]) -> str:
    return f"{name}: " + " ".join(f"{key} {value}" for key, value in here.items())


def main() -> int:
    """Measure, and print a table."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description="Spark with pixy.")
    parser.add_argument(
        "--kafka", action="store_true", help="beside Spark's Kafka connector; fetches 500 MB once"
    )
    parser.add_argument("--over-kafka", action="store_true", help="also in front of a real broker")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="medians are reported")
    parser.add_argument("--only", choices=("spark", "log"), help="measure only this")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    print(_told("machine", machine()), flush=True)
    with tempfile.TemporaryDirectory(prefix="pixy-bench-", dir=default_parent()) as name:
        if arguments.only != "log":
            over_kafka, kafka = arguments.over_kafka, arguments.kafka
            figures += _measure_spark(
                arguments.rows, arguments.rounds, Path(name), over_kafka=over_kafka, kafka=kafka
            )
            print(as_table(figures, reference="Kafka" if arguments.kafka else "other"), flush=True)
        if arguments.only != "spark":
            print("\n" + as_table(measure_log(Path(name)), reference="raw disk"))
    if not arguments.kafka and arguments.only != "log":
        print("\nwithout Spark's Kafka connector; --kafka measures it too")
    return 0


if __name__ == "__main__":
    sys.exit(main())

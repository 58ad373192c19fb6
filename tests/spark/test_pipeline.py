"""The example pipeline is killed while it works and restarted: it writes the windows of the
readings exactly once.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from pixy.spark import use_java
from tests.integration.daemon import Daemon
from tests.spark.conftest import ROOT
from tests.spark.jvm import jvm_options
from tests.spark.log import Log, Written

pytestmark = [pytest.mark.process, pytest.mark.long]

SECONDS_MAX = 900.0
LOOK_EVERY_S = 0.005
PARTITIONS = 2
FIRST_SECOND = 1_767_225_600  # 2026-01-01
ROUND_SECONDS = 60
LATE_SECONDS = 20
"""Overlap of a round's readings with the previous round; the pipeline waits for 30 s."""
READINGS_A_ROUND = 2000


class Reading(NamedTuple):
    """Input of the pipeline; `at` is in seconds from the first reading."""

    at: int
    sensor: str
    reading: int


@dataclass(frozen=True, order=True, slots=True)
class Window:
    """Output of the pipeline."""

    start: str
    sensor: str
    count: int
    sum: int


CLOCK = Reading(3600, "clock", 0)
"""A reading that closes all windows before it."""


def text_of(at: int) -> str:
    return f"{datetime.fromtimestamp(FIRST_SECOND + at, UTC):%Y-%m-%dT%H:%M:%S}.000Z"


def readings_of(number: int) -> list[Reading]:
    """A round of readings, unordered."""
    chance = random.Random(number)
    first = number * ROUND_SECONDS - (LATE_SECONDS if number else 0)
    last = (number + 1) * ROUND_SECONDS - 1
    return [
        Reading(chance.randint(first, last), f"s{chance.randrange(4)}", chance.randrange(100))
        for _ in range(READINGS_A_ROUND)
    ]


def append(log: Log, readings: list[Reading]) -> None:
    for partition in range(PARTITIONS):
        rows = [
            json.dumps({"at": text_of(each.at), "sensor": each.sensor, "reading": each.reading}).encode()
            for each in readings[partition::PARTITIONS]
        ]
        if rows:
            log.append("readings", partition, [Written(row) for row in rows])


def windows_of(readings: list[Reading]) -> list[Window]:
    """The windows that the pipeline must write."""
    counts: Counter[tuple[int, str]] = Counter()
    sums: Counter[tuple[int, str]] = Counter()
    for each in readings:
        place = (each.at - each.at % 10, each.sensor)
        counts[place] += 1
        sums[place] += each.reading
    return sorted(
        Window(text_of(at), sensor, count, sums[at, sensor]) for (at, sensor), count in counts.items()
    )


def windows_in(log: Log) -> list[Window]:
    """The windows in the output topic."""
    found = []
    for record in log.read("sums"):
        window = json.loads(record.value or b"")
        assert record.key == window["sensor"].encode()
        found.append(Window(window["from"], window["sensor"], window["count"], window["sum"]))
    return sorted(found)


class Checkpoint(NamedTuple):
    """The directory of a query's checkpoint."""

    folder: Path

    def begun(self) -> set[str]:
        """Batches begun and not completed."""
        begun, done = ((self.folder / kind).glob("[0-9]*") for kind in ("offsets", "commits"))
        return {each.name for each in begun} - {each.name for each in done}

    def forget_commit(self, batch: str) -> None:
        """Remove Spark's commit of a batch, if it exists."""
        for file in (batch, f".{batch}.crc"):
            (self.folder / "commits" / file).unlink(missing_ok=True)


@contextmanager
def pipeline(log: Log, checkpoint: Checkpoint) -> Iterator["subprocess.Popen[bytes]"]:
    """The example, run as its first lines say, and killed with SIGKILL together with the JVM."""
    use_java()
    settings = {
        "spark.driver.extraJavaOptions": jvm_options(),
        "spark.driver.memory": "1g",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    command = [f"{os.environ['SPARK_HOME']}/bin/spark-submit", "--master", "local[2]"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += [
        str(ROOT / "examples" / "spark_pipeline.py"),
        log.options["pixy.address"],
        str(checkpoint.folder),
    ]
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    with (checkpoint.folder.parent / "job.log").open("ab") as output:
        job = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield job
        finally:
            with suppress(ProcessLookupError):  # it exited by itself
                os.killpg(job.pid, signal.SIGKILL)  # the JVM and the script; Python workers end with the JVM
            job.wait()


def run_until(log: Log, checkpoint: Checkpoint, is_reached: Callable[[], bool]) -> None:
    """Run the pipeline and kill it as soon as the condition holds."""
    until = time.monotonic() + SECONDS_MAX
    with pipeline(log, checkpoint) as job:
        while not is_reached():
            printed = checkpoint.folder.parent / "job.log"
            assert job.poll() is None, printed.read_text()[-5000:]
            assert time.monotonic() < until, printed.read_text()[-5000:]
            time.sleep(LOOK_EVERY_S)  # neither the job nor the checkpoint tells anybody


def test_a_killed_pipeline_loses_no_window_and_writes_none_twice(
    daemon: Daemon, log: Log, tmp_path: Path
) -> None:
    for topic in ("readings", "sums"):
        log.create_named(topic, PARTITIONS)
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    rounds = [readings_of(number) for number in range(2)]
    expected = windows_of([each for readings in rounds for each in readings])

    append(log, rounds[0])
    run_until(log, checkpoint, lambda: log.count("sums") > 0)
    assert 0 < len(windows_in(log)) < len(expected)
    # It died after the publication of batch 1 and before Spark recorded it; if Spark was faster,
    # the record is undone.
    checkpoint.forget_commit("1")

    append(log, [*rounds[1], CLOCK])
    run_until(log, checkpoint, lambda: log.count("sums") >= len(expected) and not checkpoint.begun())
    assert windows_in(log) == expected

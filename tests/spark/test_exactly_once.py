"""100 000 rows are copied while every process is killed several times: each row arrives, and none
twice.

The JVM, the daemon, and the broker of a real Kafka behind it are killed in the midst of a
publication. The broker comes back with the same data. With Kafka, an ordinary read-committed
consumer counts the rows.
"""

import asyncio
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.integration.daemon import Daemon
from tests.kafka.cluster import KafkaCluster
from tests.kafka.consumer import consumed
from tests.spark.conftest import ROOT, over_both
from tests.spark.copy_job import start_copy
from tests.spark.log import Log, Written

pytestmark = [pytest.mark.process, pytest.mark.long, over_both]

ROWS = 100_000
PARTITIONS = 4
SECONDS_MAX = 900.0
LOOK_EVERY_S = 0.005
JVM_DIES = ["write:1", "before:3", "after:5"]
DAEMON_DIES_IN = [2, 4, 7]
"""Batches that have begun when the daemon is killed."""
BROKER_DIES_IN = [1, 6, 8]
"""Batches that have begun when the broker is killed, in the next publication; the last time
together with the daemon.
"""


class Kill(NamedTuple):
    """A process to kill and restart as soon as `is_due`."""

    is_due: Callable[[], bool]
    kill: Callable[[], None]


@pytest.fixture
def cluster(kafka_addresses: list[str], request: pytest.FixtureRequest) -> KafkaCluster | None:
    """The brokers behind the daemon; None: it has the embedded log."""
    return request.getfixturevalue("kafka") if kafka_addresses else None


def planned_kills(daemon: Daemon, cluster: KafkaCluster | None, checkpoint: Path) -> deque[Kill]:
    """All kills but those of the JVM, which kills itself."""
    publishing = daemon.data / "kafka" / "publishing"

    def has_begun(batch: int) -> bool:
        return (checkpoint / "offsets" / str(batch)).exists()

    def is_being_published(batch: int) -> bool:
        return has_begun(batch) and publishing.exists() and any(publishing.iterdir())

    def restart_broker() -> None:
        assert cluster is not None
        cluster.kill()
        cluster.start_again()

    def restart_both() -> None:
        daemon.kill()
        restart_broker()
        daemon.start()

    kills = {batch: Kill(partial(has_begun, batch), daemon.restart) for batch in DAEMON_DIES_IN}
    for batch in BROKER_DIES_IN if cluster is not None else ():
        what = restart_both if batch == BROKER_DIES_IN[-1] else restart_broker
        kills[batch] = Kill(partial(is_being_published, batch), what)
    return deque(kill for _, kill in sorted(kills.items()))


def kill_until(has_ended: Callable[[], bool], kills: deque[Kill]) -> None:
    """Carry out due kills until a job has ended."""
    give_up_at = time.monotonic() + SECONDS_MAX
    while not has_ended():
        assert time.monotonic() < give_up_at, f"the job did not end in {SECONDS_MAX:.0f} s"
        if kills and kills[0].is_due():
            kills.popleft().kill()
        time.sleep(LOOK_EVERY_S)  # neither the job nor the checkpoint sends a notification


def run_until_it_dies(arguments: list[str], folder: Path, point: str, kills: deque[Kill]) -> None:
    """Copy the topic in a JVM that dies at the given point."""
    with (folder / "job.log").open("ab") as output:
        job = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.copy_job", *arguments, point],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
        try:
            kill_until(lambda: job.poll() is not None, kills)
            printed = folder / "job.log"
            assert (folder / f"died-{point}").exists(), (
                f"it did not die at {point}: {printed.read_text()[-5000:]}"
            )
        finally:
            job.kill()
            job.wait()


def append_rows(log: Log, topic: str, numbers: range) -> None:
    """Append rows with these numbers, the first a multiple of 2500, in batches of as many."""
    for first in numbers[::2500]:
        rows = [Written(b"%d" % number, b"%d" % (number % 1000)) for number in range(first, first + 2500)]
        log.append(topic, first // 2500 % PARTITIONS, rows)


def copy_to_the_end(spark: SparkSession, arguments: list[str], kills: deque[Kill]) -> None:
    """Copy up to the end of the topic, and carry out the kills that become due."""
    query = start_copy(spark, *arguments)
    try:
        kill_until(lambda: not query.isActive, kills)
    finally:
        query.stop()
    assert query.exception() is None, query.exception()


def test_every_row_arrives_exactly_once(
    spark: SparkSession, daemon: Daemon, log: Log, cluster: KafkaCluster | None, tmp_path: Path
) -> None:
    source, target = log.create(PARTITIONS), log.create(PARTITIONS, config={"retention_ms": "-1"})
    append_rows(log, source, range(ROWS))
    kills = planned_kills(daemon, cluster, tmp_path / "checkpoint")
    started = time.monotonic()
    arguments = [log.options["pixy.address"], source, target, str(tmp_path)]
    for point in JVM_DIES:
        run_until_it_dies(arguments, tmp_path, point, kills)
    copy_to_the_end(spark, arguments, kills)
    assert not kills, f"{len(kills)} deaths were not due"
    log.reconnect()
    values = log.values(target) if cluster is None else asyncio.run(consumed(cluster, target, PARTITIONS))
    found = Counter(values)
    assert sum(found.values()) == ROWS, (
        f"{sum(found.values())} rows, {len(found)} distinct, after {time.monotonic() - started:.0f} s"
    )
    assert set(found) == {b"%d" % number for number in range(ROWS)}

"""Speculative execution, which Spark has on a cluster only: rows of a task that runs twice are
written once.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from tests.spark.conftest import set_environment, start_session, stop_session
from tests.spark.log import Log

pytestmark = [pytest.mark.process, pytest.mark.long]

SPECULATION = {
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
}
TASKS = 4
ROWS = 20_000


@contextmanager
def cluster(hosts: Sequence[str], folder: Path) -> Iterator[str]:
    """A master and a worker per host (addresses of this machine) in the JVM of this process; yields
    the master's URL.

    Spark's own `local-cluster` has one host, and Spark does not run a task twice on one host.
    """
    set_environment()
    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    settings, none = jvm.org.apache.spark.SparkConf(), jvm.scala.Option.apply(None)
    deploy = jvm.org.apache.spark.deploy
    started = [deploy.master.Master.startRpcEnvAndEndpoint(hosts[0], 0, 0, settings)._1()]
    url = f"spark://{started[0].address().hostPort()}"
    masters = SparkContext._gateway.new_array(jvm.java.lang.String, 1)  # type: ignore[union-attr]
    masters[0] = url
    for number, host in enumerate(hosts):
        number_of_worker = jvm.scala.Option.apply(number)
        started.append(
            deploy.worker.Worker.startRpcEnvAndEndpoint(
                host, 0, 0, 1, 1024, masters, str(folder), number_of_worker, settings, none
            )
        )
    try:
        yield url
    finally:
        for each in reversed(started):
            each.shutdown()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on a cluster of two hosts."""
    stop_session()
    with cluster(("127.0.0.1", "127.0.0.2"), tmp_path_factory.mktemp("work")) as url:
        yield start_session(url, **SPECULATION)
        stop_session()


def test_rows_of_a_speculative_task_are_published_once(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    topic = log.create(4)
    marks = tmp_path / "attempts"
    marks.mkdir()
    last = ROWS - 1

    def hang_late_in_the_first_attempt(text: str) -> str:
        context = TaskContext.get()
        assert context is not None
        if int(text) == last:
            (marks / str(context.attemptNumber())).touch()
            if context.attemptNumber() == 0:
                time.sleep(600)  # until Spark kills it
        return text

    hang = F.udf(hang_late_in_the_first_attempt, StringType(), useArrow=False)
    rows = spark.range(0, ROWS, 1, TASKS).select(
        hang(F.lpad(F.col("id").cast("string"), 1000, "0")).alias("value")
    )
    rows.write.format("pixy").options(**log.options, topic=topic).mode("append").save()
    assert sorted(each.name for each in marks.iterdir()) == ["0", "1"]
    assert sorted(int(value or b"") for value in log.values(topic)) == list(range(ROWS))

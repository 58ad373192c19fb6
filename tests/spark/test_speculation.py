"""Speculative execution, which Spark has on a cluster only: rows of a task that runs twice are there once."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from tests.spark.conftest import start_session, stop_session
from tests.spark.log import Log

pytestmark = [pytest.mark.process, pytest.mark.long]

TASKS = 4
ROWS = 20_000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A cluster of two executors, each in a JVM of its own."""
    stop_session()
    yield start_session(
        "local-cluster[2,1,512]",
        **{
            "spark.executor.memory": "512m",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.minTaskRuntime": "100ms",
        },
    )
    stop_session()


def test_rows_of_a_task_that_was_run_twice_at_a_time_are_there_once(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
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

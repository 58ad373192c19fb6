"""Task retries: only the rows of the successful attempt are published."""

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


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session with three attempts per task."""
    stop_session()
    yield start_session("local[2,3]")
    stop_session()


def test_rows_of_failed_attempts_are_not_published(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    topic = log.create(4)
    marks = tmp_path / "attempts"
    marks.mkdir()

    def fail_late_in_first_attempts(text: str) -> str:
        context = TaskContext.get()
        assert context is not None
        if text.endswith(("4999", "9999")) and context.attemptNumber() < 2:
            (marks / f"{context.partitionId()}-{context.attemptNumber()}").touch()
            raise RuntimeError("on purpose")
        return text

    fail = F.udf(fail_late_in_first_attempts, StringType(), useArrow=False)
    rows = spark.range(0, 10_000, 1, 2).select(
        fail(F.lpad(F.col("id").cast("string"), 1000, "0")).alias("value")
    )
    rows.write.format("pixy").options(**log.options, topic=topic).mode("append").save()
    assert sorted(each.name for each in marks.iterdir()) == ["0-0", "0-1", "1-0", "1-1"]
    assert sorted(int(value or b"") for value in log.values(topic)) == list(range(10_000))

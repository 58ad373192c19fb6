"""Spark's own Kafka connector at a real daemon: batches and streams, both ways."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.daemon import Daemon
from tests.integration.kafka_tools import fetched_jars
from tests.spark.conftest import KEEP_ALL

pytestmark = [pytest.mark.process, pytest.mark.long]

ROWS = 5000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """With a server of Kafka's protocol."""
    with Daemon(tmp_path_factory.mktemp("daemon"), {"kafka_addr": "127.0.0.1:0", **KEEP_ALL}) as running:
        yield running


@pytest.fixture(scope="module")
def connector(spark: SparkSession) -> SparkSession:
    """A session that has the connector."""
    for jar in fetched_jars("spark-kafka", "spark.xml").glob("*.jar"):
        spark.sql(f"ADD JAR '{jar}'")
    return spark


@pytest.fixture
def options(daemon: Daemon) -> dict[str, str]:
    return {"kafka.bootstrap.servers": daemon.addresses["kafka"], "startingOffsets": "earliest"}


def rows(spark: SparkSession, numbers: range) -> DataFrame:
    number = F.col("id").cast("string")
    return spark.range(numbers.start, numbers.stop, numPartitions=2).select(
        number.alias("key"),
        F.concat(F.lit("value "), number).alias("value"),
        F.array(F.struct(F.lit("name").alias("key"), F.lit(b"header").alias("value"))).alias("headers"),
    )


def numbers(frame: DataFrame) -> list[int]:
    """The keys of rows, each of which must have its value and its header."""
    found = frame.select("key", "value", "headers").collect()
    for each in found:
        assert (bytes(each.value), [(h.key, bytes(h.value)) for h in each.headers]) == (
            b"value " + each.key,
            [("name", b"header")],
        )
    return sorted(int(each.key) for each in found)


def test_batches(connector: SparkSession, options: dict[str, str]) -> None:
    sent = range(ROWS)
    rows(connector, sent).write.format("kafka").options(**options, topic="batches").save()
    reader = connector.read.format("kafka").options(**options, subscribe="batches", includeHeaders="true")
    assert numbers(reader.load()) == [*sent]
    few = json.dumps({"batches": {"0": 10, "1": 0, "2": 0, "3": 0}})
    assert reader.option("endingOffsets", few).load().count() == 10
    assert reader.option("startingTimestamp", "1").load().count() == 10
    assert (
        connector.read.format("kafka").options(**options, subscribePattern="batch.*").load().count() == ROWS
    )


def test_a_stream_goes_on_where_it_has_ended(
    connector: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    def run() -> None:
        """Copy what is there from one topic to the other."""
        source = connector.readStream.format("kafka").options(
            **options, subscribe="in", includeHeaders="true", maxOffsetsPerTrigger="2000"
        )
        sink = source.load().select("key", "value", "headers").writeStream.format("kafka")
        sink = sink.options(**options, topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()

    for sent in (range(ROWS), range(ROWS, ROWS + 100)):
        rows(connector, sent).write.format("kafka").options(**options, topic="in").save()
        run()
    found = connector.read.format("kafka").options(**options, subscribe="out", includeHeaders="true").load()
    assert numbers(found) == [*range(ROWS + 100)]

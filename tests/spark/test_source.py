"""Batch reads with a real Spark and a real daemon."""

import datetime
import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pixy.spark import PixyDataSource
from pixy.spark.options import Use, read_options
from pixy.spark.schema import read_schema
from pixy.spark.source import BatchReader
from tests.integration.daemon import Daemon
from tests.spark.log import Log, Written

pytestmark = [pytest.mark.process, pytest.mark.slow]


def load(spark: SparkSession, log: Log, **options: str) -> DataFrame:
    return spark.read.format("pixy").options(**{**log.options, **options}).load()


def values(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def test_rows_have_the_columns_of_the_kafka_connector(spark: SparkSession, log: Log) -> None:
    topic = log.create(2)
    log.append(
        topic,
        1,
        [
            Written(b"v", b"k", [("h", b"x"), ("n", None)], 1_700_000_000_123),
            Written(None, b"gone"),
            Written(b""),
        ],
    )
    frame = load(spark, log, subscribe=topic, includeHeaders="true")
    assert frame.schema == read_schema(include_headers=True)
    first, tombstone, empty = frame.orderBy("offset").collect()
    assert (first.key, first.value, first.topic, first.partition, first.offset, first.timestampType) == (
        b"k",
        b"v",
        topic,
        1,
        0,
        0,
    )
    assert first.timestamp == datetime.datetime(2023, 11, 14, 22, 13, 20, 123000)
    assert [(each.key, each.value) for each in first.headers] == [("h", b"x"), ("n", None)]
    assert (tombstone.key, tombstone.value, tombstone.headers) == (b"gone", None, None)
    assert (empty.key, empty.value) == (None, b"")


def test_a_worker_process_is_set_up_once_for_many_tasks(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"v"] * 8)
    session = spark.newSession()
    session.dataSource.register(source_that_tells(tmp_path / "frozen"))
    options = {**log.options, "subscribe": topic, "minPartitions": "8"}
    assert session.read.format("pixy").options(**options).load().count() == 8
    frozen = [int(each) for each in (tmp_path / "frozen").read_text().split()]
    assert len(frozen) == 8
    assert max(frozen) > 10_000


def source_that_tells(file: Path) -> type[PixyDataSource]:
    """`pixy` with a reader that records the number of objects its process has frozen."""

    class TellingReader(BatchReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield from super().read(partition)
            with file.open("a") as told:
                told.write(f"{gc.get_freeze_count()}\n")

    class TellingSource(PixyDataSource):
        def reader(self, schema: StructType) -> BatchReader:
            return TellingReader(read_options(self.options, Use.BATCH_READ))

    return TellingSource


def test_headers_are_a_column_only_when_requested(spark: SparkSession, log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [Written(b"v", headers=[("h", b"x")])])
    frame = load(spark, log, subscribe=topic)
    assert "headers" not in frame.columns
    assert frame.count() == 1


def test_an_empty_topic_has_no_rows(spark: SparkSession, log: Log) -> None:
    assert load(spark, log, subscribe=log.create(3)).collect() == []


def test_topics_are_subscribed_matched_or_assigned(spark: SparkSession, log: Log) -> None:
    one, two, other = log.create(2, "match"), log.create(1, "match"), log.create(1, "nomatch")
    for topic in (one, two, other):
        log.append(topic, 0, [topic.encode()])
    log.append(one, 1, [b"second"])
    assert values(load(spark, log, subscribe=f"{one},{two}")) == sorted([one, two, "second"])
    assert values(load(spark, log, subscribePattern="match-.*")) == sorted([one, two, "second"])
    assert values(load(spark, log, assign=json.dumps({one: [1], two: [0]}))) == sorted([two, "second"])


def test_offsets_set_start_and_end(spark: SparkSession, log: Log) -> None:
    topic = log.create(2)
    for partition in (0, 1):
        log.append(topic, partition, [b"%d-%d" % (partition, number) for number in range(10)])
    start, end = json.dumps({topic: {"0": 3, "1": -2}}), json.dumps({topic: {"0": 5, "1": -1}})
    frame = load(spark, log, subscribe=topic, startingOffsets=start, endingOffsets=end)
    assert values(frame) == ["0-3", "0-4", *(f"1-{number}" for number in range(10))]


def test_timestamps_set_start_and_end(spark: SparkSession, log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [Written(b"%d" % number, timestamp_ms=1000 + number) for number in range(10)])
    assert values(load(spark, log, subscribe=topic, startingTimestamp="1004", endingTimestamp="1007")) == [
        "4",
        "5",
        "6",
    ]
    by_partition = json.dumps({topic: {"0": 1008}})
    assert values(
        load(spark, log, subscribe=topic, startingOffsetsByTimestamp=by_partition, endingTimestamp="9999")
    ) == ["8", "9"]
    with pytest.raises(AnalysisException, match="has no record at or after 5000 ms"):
        load(spark, log, subscribe=topic, startingTimestamp="5000").count()
    assert (
        load(
            spark, log, subscribe=topic, startingTimestamp="5000", startingOffsetsByTimestampStrategy="latest"
        ).count()
        == 0
    )


def test_offsets_must_name_the_partitions_that_are_read(spark: SparkSession, log: Log) -> None:
    topic = log.create(2)
    with pytest.raises(
        AnalysisException,
        match=rf"option startingOffsets names {topic}-0: it must name .*{topic}-0, {topic}-1",
    ):
        load(spark, log, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 0}})).count()


def test_large_ranges_are_split_and_small_ones_share_a_task(spark: SparkSession, log: Log) -> None:
    topic = log.create(4)
    for partition in range(4):
        log.append(topic, partition, [b"%d" % number for number in range(100)])
    assert load(spark, log, subscribe=topic).rdd.getNumPartitions() == 1
    assert load(spark, log, subscribe=topic, minPartitions="8").rdd.getNumPartitions() == 8
    cut = load(spark, log, subscribe=topic, minPartitions="4", maxRecordsPerPartition="30")
    assert cut.rdd.getNumPartitions() == 16
    assert cut.groupBy("partition").agg(F.count("*"), F.countDistinct("offset")).orderBy(
        "partition"
    ).collect() == [(partition, 100, 100) for partition in range(4)]


def test_a_frame_keeps_its_ranges_and_a_second_load_sees_what_is_new(spark: SparkSession, log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"a"])
    frame = load(spark, log, subscribe=topic)
    assert frame.count() == 1
    log.append(topic, 0, [b"b"])
    assert frame.count() == 1
    assert load(spark, log, subscribe=topic).count() == 2


def test_filters_and_unions_of_one_frame_are_correct(spark: SparkSession, log: Log) -> None:
    topic = log.create(3)
    for partition in range(3):
        log.append(topic, partition, [b"x"] * 10)
    frame = load(spark, log, subscribe=topic)
    assert frame.where("partition = 1").count() == 10
    assert frame.count() == 30
    union = frame.where("partition = 1").union(frame.where("partition = 2"))
    assert {(row.partition, row["count"]) for row in union.groupBy("partition").count().collect()} == {
        (1, 10),
        (2, 10),
    }


def test_a_limit_reads_only_its_rows(spark: SparkSession, log: Log) -> None:
    topic = log.create(1)
    for _ in range(20):
        log.append(topic, 0, [b"v" * 1000] * 500)
    assert len(load(spark, log, subscribe=topic).limit(5).collect()) == 5
    assert load(spark, log, subscribe=topic).count() == 10_000


def test_a_sql_view_reads_a_topic(spark: SparkSession, log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"a", b"b"])
    address = log.options["pixy.address"]
    spark.sql(f"CREATE TEMPORARY VIEW v USING pixy OPTIONS (subscribe '{topic}', 'pixy.address' '{address}')")
    assert spark.sql("SELECT count(*) AS n FROM v").collect()[0].n == 2


def test_another_schema_is_rejected(spark: SparkSession, log: Log) -> None:
    with pytest.raises(AnalysisException, match="rows of pixy have the schema"):
        spark.read.format("pixy").options(**log.options, subscribe=log.create(1)).schema(
            "value string"
        ).load().collect()


def test_an_unknown_option_fails_when_spark_plans(spark: SparkSession, log: Log) -> None:
    with pytest.raises(
        AnalysisException,
        match="unknown option startingofset in a batch read: did you mean startingOffsets",
    ):
        load(spark, log, subscribe="t", startingOfset="earliest").count()


def test_a_missing_topic_is_named(spark: SparkSession, log: Log) -> None:
    with pytest.raises(AnalysisException, match="topic 'nowhere' does not exist"):
        load(spark, log, subscribe="nowhere").count()


def test_offsets_beyond_the_log_are_data_loss(spark: SparkSession, log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"a", b"b"])
    start = json.dumps({topic: {"0": 1}})
    end = json.dumps({topic: {"0": 9}})
    with pytest.raises(
        AnalysisException, match=f"option endingOffsets says offset 9 for {topic}-0, which has 0 to 2"
    ):
        load(spark, log, subscribe=topic, startingOffsets=start, endingOffsets=end).count()
    lax = load(spark, log, subscribe=topic, startingOffsets=start, endingOffsets=end, failOnDataLoss="false")
    assert values(lax) == ["b"]


def test_a_topic_deleted_between_planning_and_reading_is_data_loss(spark: SparkSession, log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"a", b"b"])
    strict = load(spark, log, subscribe=topic)
    lax = load(spark, log, subscribe=topic, failOnDataLoss="false")
    assert (strict.count(), lax.count()) == (2, 2)  # ranges are planned
    log.delete(topic)
    log.create_named(topic, 1)
    log.append(topic, 0, [b"other", b"other"])
    with pytest.raises(PythonException, match="was deleted or recreated"):
        strict.count()
    assert lax.count() == 0


def test_an_unreachable_server_gives_one_error_with_address_and_cause(
    spark: SparkSession, daemon: Daemon
) -> None:
    dead = {"pixy.address": "127.0.0.1:1", "pixy.timeoutMs": "300", "subscribe": "t"}
    with pytest.raises(
        AnalysisException,
        match=r"pixy did not answer within 0.3 s \(pixy.timeoutMs\): 127.0.0.1:1: .*refused",
    ):
        spark.read.format("pixy").options(**dead).load().count()


def test_the_source_is_found_unregistered_and_can_be_registered(spark: SparkSession, log: Log) -> None:
    from pixy.spark import PixyDataSource

    topic = log.create(1)
    log.append(topic, 0, [b"a"])
    assert load(spark.newSession(), log, subscribe=topic).count() == 1
    other = spark.newSession()
    other.dataSource.register(PixyDataSource)
    assert load(other, log, subscribe=topic).count() == 1

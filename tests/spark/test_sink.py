"""Batch and streaming writes with a real Spark and a real daemon: all rows once, or none."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pixy.errors import FailedPrecondition, InvalidArgument
from pixy.proto import pixy_log_pb2 as pb
from pixy.spark import PixyDataSource, sink
from pixy.spark.client import LogClient
from pixy.spark.options import Use, WriteOptions, write_options
from pixy.spark.schema import WriteColumns
from pixy.spark.sink import BatchWriter, Staged, StreamWriter
from pixy.spark.writing import StageWriter
from tests.integration.daemon import Daemon
from tests.spark.log import Log, Written

pytestmark = [pytest.mark.process, pytest.mark.slow]

VALUE_ONLY = WriteColumns(value=0, key=None, headers=None, topic=None, partition=None)
NOBODY_ANSWERS = r"{}: pixy did not answer within {:g} s \(pixy\.{}\): {}: .*refused"


def save(frame: DataFrame, log: Log, **options: str) -> None:
    frame.write.format("pixy").options(**{**log.options, **options}).mode("append").save()


def run(spark: SparkSession, log: Log, source: str, checkpoint: Path, **options: str) -> StreamingQuery:
    """Copy a topic until its end."""
    frame = (
        spark.readStream.format("pixy")
        .options(**log.options, subscribe=source, startingOffsets="earliest")
        .load()
    )
    writer = frame.select("key", "value").writeStream.format("pixy").options(**{**log.options, **options})
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(60)
    return query


def test_a_frame_is_written_with_keys_headers_and_tombstones(spark: SparkSession, log: Log) -> None:
    topic = log.create(4)
    frame = spark.sql(
        "SELECT 'k' AS key, 'v' AS value, array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers "
        "UNION ALL SELECT 'k', NULL, NULL UNION ALL SELECT NULL, '', array()"
    )
    save(frame, log, topic=topic)
    stored = log.read(topic)
    assert Counter(each[2:] for each in stored) == Counter(
        [(b"k", b"v", (("h", b"x"),)), (b"k", None, ()), (None, b"", ())]
    )
    assert len({each.partition for each in stored if each.key == b"k"}) == 1


def test_the_option_topic_takes_precedence_over_the_column(spark: SparkSession, log: Log) -> None:
    """Otherwise a job that writes rows as it reads them would feed itself forever."""
    source, target = log.create(1), log.create(1)
    log.append(source, 0, [b"a"])
    rows = spark.read.format("pixy").options(**log.options, subscribe=source).load()
    save(rows, log, topic=target)
    assert (log.values(source), log.values(target)) == ([b"a"], [b"a"])
    save(rows.withColumn("topic", F.lit(target)), log)
    assert log.values(target) == [b"a", b"a"]


def test_large_frames_arrive_completely(spark: SparkSession, log: Log) -> None:
    topic = log.create(8)
    save(
        spark.range(50_000).selectExpr("CAST(id % 97 AS STRING) AS key", "lpad(id, 100, '0') AS value"),
        log,
        topic=topic,
    )
    assert sorted(int(value or b"") for value in log.values(topic)) == list(range(50_000))


def test_a_frame_without_rows_writes_nothing(spark: SparkSession, log: Log) -> None:
    topic = log.create(1)
    save(spark.sql("SELECT 'a' AS value WHERE 1 = 0"), log, topic=topic)
    assert log.read(topic) == []


def test_a_failing_task_leaves_nothing_behind(spark: SparkSession, log: Log) -> None:
    topic = log.create(1)
    frame = spark.range(100).selectExpr("IF(id = 99, raise_error('on purpose'), CAST(id AS STRING)) AS value")
    with pytest.raises(Exception, match="on purpose"):
        save(frame, log, topic=topic)
    assert log.read(topic) == []


def test_a_row_without_a_topic_fails_the_job(spark: SparkSession, log: Log) -> None:
    with pytest.raises(PythonException, match="a row has null in the column topic"):
        save(spark.sql("SELECT 'a' AS value, CAST(NULL AS STRING) AS topic"), log)


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("SELECT 1 AS value", {"topic": "t"}, "the column value has type int, expected string or binary"),
        ("SELECT 'a' AS text", {"topic": "t"}, "the column value of type string or binary is missing"),
        ("SELECT 'a' AS value", {}, "no topic is given"),
        (
            "SELECT 'a' AS value",
            {"topic": "t", "subscribe": "t"},
            "option subscribe='t' is not allowed in a batch write",
        ),
    ],
)
def test_unsupported_columns_fail_when_spark_plans(
    spark: SparkSession, log: Log, query: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        save(spark.sql(query), log, **options)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        # Spark itself rejects these two, and does not know that pixy never overwrites.
        (
            "errorifexists",
            r'"ErrorIfExists" mode\. Please use either the "Append" or "Overwrite" mode instead',
        ),
        ("ignore", r'"Ignore" mode\. Please use either the "Append" or "Overwrite" mode instead'),
        ("overwrite", r"never overwrites: a batch write needs \.mode\(.append.\)"),
    ],
    ids=["errorifexists", "ignore", "overwrite"],
)
def test_save_modes_other_than_append_are_rejected(
    spark: SparkSession, log: Log, mode: str, message: str
) -> None:
    writer = spark.sql("SELECT 'a' AS value").write.format("pixy").options(**log.options, topic="t")
    with pytest.raises(AnalysisException, match=message):
        writer.mode(mode).save()


def test_sparks_default_save_mode_is_rejected(spark: SparkSession, log: Log) -> None:
    writer = spark.sql("SELECT 'a' AS value").write.format("pixy").options(**log.options, topic="t")
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        writer.save()


def test_an_unreachable_server_fails_a_task_with_one_error_with_address_and_cause(
    spark: SparkSession,
) -> None:
    dead = {"pixy.address": "127.0.0.1:1", "pixy.timeoutMs": "300", "topic": "t"}
    with pytest.raises(
        PythonException, match=NOBODY_ANSWERS.format("DescribeTopics", 0.3, "timeoutMs", "127.0.0.1:1")
    ) as raised:
        spark.sql("SELECT 'a' AS value").write.format("pixy").options(**dead).mode("append").save()
    assert str(raised.value).count("pixy did not answer") == 1


def test_a_server_that_dies_before_the_commit_fails_it_with_one_error_with_address_and_cause(
    spark: SparkSession, daemon: Daemon, log: Log
) -> None:
    topic = log.create(1)
    session = spark.newSession()
    session.dataSource.register(source_that_kills(daemon.process.pid))
    rows = session.sql("SELECT 'a' AS value").write.format("pixy")
    options = {"pixy.address": daemon.address, "pixy.publishTimeoutMs": "1000", "topic": topic}
    message = NOBODY_ANSWERS.format("Publish", 1, "publishTimeoutMs", daemon.address)
    with pytest.raises(PySparkException, match=message) as raised:
        rows.options(**options).mode("append").save()
    daemon.restart()
    log.reconnect()
    assert str(raised.value).count("pixy did not answer") == 1
    assert log.read(topic) == []


def source_that_kills(pid: int) -> type[PixyDataSource]:
    """`pixy` with a batch writer that kills a process once all rows are staged."""

    class KillingWriter(BatchWriter):
        def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
            os.kill(pid, signal.SIGKILL)
            super().commit(messages)

    class KillingSource(PixyDataSource):
        def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
            return KillingWriter(write_options(self.options, Use.BATCH_WRITE), VALUE_ONLY)

    return KillingSource


def test_a_stream_is_copied_and_resumed(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    source, target = log.create(2), log.create(3)
    log.append(source, 0, [Written(b"a", b"k"), Written(None, b"k")])
    run(spark, log, source, tmp_path / "c", topic=target)
    log.append(source, 1, [b"b"])
    run(spark, log, source, tmp_path / "c", topic=target)
    assert Counter((each.key, each.value) for each in log.read(target)) == Counter(
        [(b"k", b"a"), (b"k", None), (None, b"b")]
    )


def test_a_batch_that_is_committed_again_is_published_once(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """As Spark does after it died between the publication and its record."""
    source, target = log.create(1), log.create(1)
    log.append(source, 0, [b"a"])
    run(spark, log, source, tmp_path / "c", topic=target)
    log.append(source, 0, [b"b"])
    run(spark, log, source, tmp_path / "c", topic=target)
    for file in ("1", ".1.crc"):
        (tmp_path / "c" / "commits" / file).unlink(missing_ok=True)
    log.append(source, 0, [b"c"])
    run(spark, log, source, tmp_path / "c", topic=target)
    assert log.values(target) == [b"a", b"b", b"c"]


def test_a_batch_whose_write_failed_is_written_completely_after_a_restart(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    source, target = log.create(2), log.create(1)
    log.append(source, 0, [b"%d" % number for number in range(100)])
    log.append(source, 1, [b"bad"])

    def copy(value: str) -> None:
        rows = (
            spark.readStream.format("pixy")
            .options(**log.options, subscribe=source, startingOffsets="earliest", minPartitions="2")
            .load()
            .selectExpr(f"{value} AS value")
        )
        writer = rows.writeStream.format("pixy").options(**log.options, topic=target)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        query.awaitTermination()

    with pytest.raises(StreamingQueryException, match="on purpose"):
        copy("IF(CAST(value AS STRING) = 'bad', raise_error('on purpose'), CAST(value AS STRING))")
    assert log.read(target) == []
    copy("CAST(value AS STRING)")
    assert Counter(log.values(target)) == Counter([b"%d" % number for number in range(100)] + [b"bad"])


def test_a_new_checkpoint_on_an_old_sink_is_rejected_unless_it_names_the_old_query(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    source, target = log.create(1), log.create(1)
    log.append(source, 0, [b"a"])
    first = run(spark, log, source, tmp_path / "first", topic=target, sinkId="copies")
    with pytest.raises(StreamingQueryException, match=f"With the option sinkReset={first.id} this query"):
        run(spark, log, source, tmp_path / "second", topic=target, sinkId="copies")
    assert log.values(target) == [b"a"]
    options = {"topic": target, "sinkId": "copies", "sinkReset": str(first.id)}
    run(spark, log, source, tmp_path / "second", **options)
    assert log.values(target) == [b"a", b"a"]
    for file in ("0", ".0.crc"):
        (tmp_path / "second" / "commits" / file).unlink(missing_ok=True)
    run(spark, log, source, tmp_path / "second", **options)
    assert log.values(target) == [b"a", b"a"], "what names the old query may stay among the options"
    log.append(source, 0, [b"b"])
    with pytest.raises(StreamingQueryException, match="FAILED_PRECONDITION"):
        run(spark, log, source, tmp_path / "first", **options)
    assert log.values(target) == [b"a", b"a"], "the old query stays out, with the same options too"


def test_a_write_in_foreach_batch_is_published_once_however_often_its_batch_is_run(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    source, target, other = log.create(1), log.create(2), log.create(1)
    calls: list[int] = []

    def write(frame: DataFrame, batch: int) -> None:
        calls.append(batch)
        values = frame.select("value")
        save(values, log, topic=target, sinkId="each-batch")
        save(values, log, topic=target, sinkId="each-batch")  # as after a failure caught by the function
        save(values, log, topic=other, sinkId="others")

    def copy(checkpoint: str) -> None:
        rows = spark.readStream.format("pixy").options(**log.options, subscribe=source)
        writer = rows.option("startingOffsets", "earliest").load().writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True)
        query.start().awaitTermination(60)

    log.append(source, 0, [b"a"])
    copy("c")
    for file in ("0", ".0.crc"):
        (tmp_path / "c" / "commits" / file).unlink(missing_ok=True)
    log.append(source, 0, [b"b"])
    copy("c")
    assert calls == [0, 0, 1]
    assert sorted(log.values(target), key=str) == [b"a", b"b"]
    assert log.values(other) == [b"a", b"b"]
    with pytest.raises(StreamingQueryException, match="sink each-batch belongs to query"):
        copy("another checkpoint")


def test_a_batch_write_with_a_sink_must_name_its_batch(spark: SparkSession, log: Log) -> None:
    topic = log.create(1)
    rows = spark.sql("SELECT 'a' AS value")
    with pytest.raises(PythonException, match="set queryId and batchId"):
        save(rows, log, topic=topic, sinkId="nightly")
    for batch in ("20260101", "20260101", "20260102"):
        save(rows, log, topic=topic, sinkId="nightly", queryId="job", batchId=batch)
    assert log.values(topic) == [b"a", b"a"]


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("complete", r"never overwrites: a stream needs \.outputMode\(.append.\)"),
        ("update", "pixy does not support Update mode"),  # Spark's own text: it rejects this itself
    ],
    ids=["complete", "update"],
)
def test_output_modes_other_than_append_are_rejected(
    spark: SparkSession, log: Log, tmp_path: Path, mode: str, message: str
) -> None:
    source = log.create(1)
    frame = spark.readStream.format("pixy").options(**log.options, subscribe=source).load()
    counts = frame.groupBy("value").count().selectExpr("value")
    writer = (
        counts.writeStream.format("pixy")
        .options(**log.options, topic="t")
        .option("checkpointLocation", str(tmp_path / "c"))
    )
    with pytest.raises(StreamingQueryException, match=message):
        writer.outputMode(mode).start().awaitTermination(60)


def test_progress_names_offsets(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    source, target = log.create(1), log.create(1)
    log.append(source, 0, [b"a"] * 3)
    query = run(spark, log, source, tmp_path / "c", topic=target)
    source_progress = query.recentProgress[0]["sources"][0]
    assert source_progress["numInputRows"] == 3
    found = source_progress["latestOffset"]
    assert (found if isinstance(found, dict) else json.loads(found)) == {source: {"0": 3}}


# --- the driver's commit and abort, without Spark -------------------------------------------------


def writer_options(log: Log, topic: str, use: Use) -> WriteOptions:
    return write_options({**log.options, "topic": topic}, use)


def stages_of(log: Log, topic: str, sink_id: str, *values: str) -> list[str]:
    """Stage values as a task does."""
    options = writer_options(log, topic, Use.STREAM_WRITE)
    rows = pa.RecordBatch.from_pydict({"value": list(values)})
    return StageWriter(LogClient(options.connection), sink_id, options, VALUE_ONLY).write([rows])


def is_there(log: Log, topic: str, sink_id: str, stage_ids: list[str]) -> bool:
    """True if a stage can be published; publishes it."""
    client = LogClient(writer_options(log, topic, Use.STREAM_WRITE).connection)
    try:
        client.publish(
            pb.PublishRequest(sink_id=sink_id, epoch=time.time_ns(), query_id="q", stage_ids=stage_ids)
        )
    except FailedPrecondition:
        return False
    return True


def test_a_batch_that_was_published_before_leaves_no_stage_behind(log: Log) -> None:
    topic = log.create(1)
    writer = StreamWriter(writer_options(log, topic, Use.STREAM_WRITE), VALUE_ONLY)
    first = stages_of(log, topic, "replayed", "a")
    writer.commit([Staged(first, "replayed", "q")], 0)
    again = stages_of(log, topic, "replayed", "a")
    writer.commit([Staged(again, "replayed", "q"), Staged([], "replayed", "q")], 0)
    writer.commit([Staged(first, "replayed", "q")], 0)
    assert log.values(topic) == [b"a"]
    assert not is_there(log, topic, "replayed", again)


def test_an_aborted_batch_leaves_no_stage_behind(log: Log) -> None:
    topic = log.create(1)
    stage_ids = stages_of(log, topic, "aborted", "a")
    StreamWriter(writer_options(log, topic, Use.STREAM_WRITE), VALUE_ONLY).abort(
        [None, Staged(stage_ids, "aborted", "q")], 0
    )
    assert not is_there(log, topic, "aborted", stage_ids)


def test_an_abort_after_a_successful_commit_undoes_nothing(log: Log) -> None:
    """Spark aborts when a commit raises, which may be because its answer was lost."""
    topic = log.create(1)
    stream = StreamWriter(writer_options(log, topic, Use.STREAM_WRITE), VALUE_ONLY)
    messages = [Staged(stages_of(log, topic, "stream", "a"), "stream", "q")]
    stream.commit(messages, 0)
    stream.abort(messages, 0)
    batch = BatchWriter(writer_options(log, topic, Use.BATCH_WRITE), VALUE_ONLY)
    batch_messages = [Staged(stages_of(log, topic, batch._sink_id, "b"), batch._sink_id)]
    batch.commit(batch_messages)
    batch.abort(batch_messages)
    assert log.values(topic) == [b"a", b"b"]


def test_more_stages_than_are_published_together_fail_the_commit(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "ELEMENTS_PER_CALL", 2)
    topic = log.create(1)
    messages = [Staged(stages_of(log, topic, "many", value), "many", "q") for value in ("a", "b", "c")]
    writer = StreamWriter(writer_options(log, topic, Use.STREAM_WRITE), VALUE_ONLY)
    with pytest.raises(InvalidArgument, match=r"3 stages, .* are more than the 2 .*coalesce"):
        writer.commit(messages, 0)
    assert log.values(topic) == []
    writer.commit(messages[:2], 0)
    assert log.values(topic) == [b"a", b"b"]

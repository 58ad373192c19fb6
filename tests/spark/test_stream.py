"""Streaming reads with a real Spark and a real daemon: no record is skipped or read twice, in any
sequence of Spark's calls.
"""

import json
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.streaming.query import StreamingQuery

from pixy.errors import InvalidArgument, OffsetOutOfRange
from pixy.spark.options import Use, read_options
from pixy.spark.source import RangesPartition
from pixy.spark.stream import StreamReader
from tests.fakes.clock import FakeClock
from tests.integration.daemon import Daemon
from tests.spark.log import Log

pytestmark = [pytest.mark.process]

SECONDS_MAX = 300.0


def through_json(offset: Any) -> Any:
    """Offsets as Spark stores them."""
    return json.loads(json.dumps(offset))


def reader_of(log: Log, clock: FakeClock | None = None, /, **options: str) -> StreamReader:
    monotonic, sleep = (clock.monotonic, clock.advance) if clock else (time.monotonic, time.sleep)
    return StreamReader(read_options({**log.options, **options}, Use.STREAM_READ), monotonic, sleep)


def offsets_of(offset: Any) -> Any:
    """The offsets without the topic ids."""
    return {topic: partitions for topic, partitions in offset.items() if topic != "$ids"}


def values_of(reader: StreamReader, start: Any, end: Any) -> list[bytes]:
    """Values read by the tasks of a batch."""
    tasks = reader.partitions(through_json(start), through_json(end))
    copies = pickle.loads(pickle.dumps((reader, tasks)))
    found = []
    for task in copies[1]:
        for rows in copies[0].read(task):
            found += rows.column("value").to_pylist()
    return found


# --- the reader alone -----------------------------------------------------------------------------


def test_records_written_between_calls_for_the_initial_offset_are_read(log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"old"] * 10)
    reader = reader_of(log, clock := FakeClock(), subscribe=topic)
    first = through_json(reader.initialOffset())
    log.append(topic, 0, [b"new"] * 5)
    assert through_json(reader.initialOffset()) == first
    clock.advance(1)
    end = reader.latestOffset(first, ReadAllAvailable())
    assert values_of(reader, first, end) == [b"new"] * 5


def test_batch_0_is_replayed_from_its_start(log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"old"])
    reader = reader_of(log, subscribe=topic)
    initial = reader.initialOffset()
    log.append(topic, 0, [b"a", b"b"])
    end = through_json(reader.latestOffset(through_json(initial), ReadAllAvailable()))
    log.append(topic, 0, [b"c"])
    after_the_crash = reader_of(log, subscribe=topic)
    later = after_the_crash.initialOffset()
    assert values_of(after_the_crash, later, end) == [b"a", b"b"]
    following = after_the_crash.latestOffset(end, ReadAllAvailable())
    assert values_of(after_the_crash, end, following) == [b"c"]


def test_an_empty_batch_0_pins_the_start(log: Log) -> None:
    topic = log.create(1)
    reader = reader_of(log, subscribe=topic)
    end = through_json(reader.latestOffset(through_json(reader.initialOffset()), ReadAllAvailable()))
    log.append(topic, 0, [b"a"])
    later = reader_of(log, subscribe=topic)
    assert values_of(later, later.initialOffset(), end) == []
    assert values_of(later, end, later.latestOffset(end, ReadAllAvailable())) == [b"a"]


def test_without_new_records_the_offset_is_the_same_text(log: Log) -> None:
    topic = log.create(12)
    other = log.create(2)
    reader = reader_of(log, clock := FakeClock(), subscribe=f"{topic},{other}", startingOffsets="earliest")
    start = reader.latestOffset(through_json(reader.initialOffset()), ReadAllAvailable())
    text = json.dumps(start)
    for _ in range(3):
        clock.advance(10)
        assert json.dumps(reader.latestOffset(json.loads(text), ReadAllAvailable())) == text
    log.append(topic, 3, [b"a"])
    clock.advance(10)
    moved = reader.latestOffset(json.loads(text), ReadAllAvailable())
    assert json.dumps(moved) != text
    assert json.dumps(
        reader_of(log, subscribe=f"{other},{topic}").latestOffset(moved, ReadAllAvailable())
    ) == json.dumps(moved)


def test_an_idle_query_asks_the_daemon_a_few_times_a_second(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create(1)
    reader = reader_of(log, clock := FakeClock(), subscribe=topic)
    start = reader.latestOffset(through_json(reader.initialOffset()), ReadAllAvailable())
    asked: list[str] = []
    from pixy.spark.client import LogClient

    original = LogClient._call

    def count(self: LogClient, name: str, call: Callable[..., Any]) -> Any:
        asked.append(name)
        return original(self, name, call)

    monkeypatch.setattr(LogClient, "_call", count)
    until = clock.monotonic() + 1
    while clock.monotonic() < until:
        reader.latestOffset(start, ReadAllAvailable())
        reader.reportLatestOffset()
        clock.advance(0.01)  # Spark's polling interval
    assert 5 <= asked.count("ListOffsets") <= 25
    assert asked.count("DescribeTopics") <= 1


def test_records_written_before_a_request_are_in_its_answer(log: Log) -> None:
    topic = log.create(1)
    reader = reader_of(log, FakeClock(), subscribe=topic)
    end = through_json(reader.latestOffset(through_json(reader.initialOffset()), ReadAllAvailable()))
    for number in range(1, 4):
        assert reader.latestOffset(end, ReadAllAvailable()) is end
        log.append(topic, 0, [b"a"])
        end = through_json(reader.latestOffset(end, ReadAllAvailable()))
        assert offsets_of(end) == {topic: {"0": number}}


def test_a_limit_bounds_a_batch(log: Log) -> None:
    topic = log.create(2)
    log.append(topic, 0, [b"a"] * 90)
    log.append(topic, 1, [b"b"] * 10)
    reader = reader_of(log, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    start = through_json(reader.initialOffset())
    sizes = []
    for _ in range(12):
        end = through_json(reader.latestOffset(start, limit))
        sizes.append(len(values_of(reader, start, end)))
        start = end
    assert sizes == [10] * 10 + [0, 0]


def test_a_batch_waits_for_enough_records(log: Log) -> None:
    topic = log.create(1)
    reader = reader_of(
        log, clock := FakeClock(), subscribe=topic, minOffsetsPerTrigger="10", maxTriggerDelay="60s"
    )
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    start = through_json(reader.latestOffset(through_json(reader.initialOffset()), limit))
    log.append(topic, 0, [b"a"] * 9)
    clock.advance(59)
    assert reader.latestOffset(start, limit) is start
    clock.advance(1)
    end = reader.latestOffset(start, limit)
    assert values_of(reader, start, end) == [b"a"] * 9


def test_new_partitions_are_read_from_their_beginning(log: Log) -> None:
    topic = log.create(1)
    reader = reader_of(log, clock := FakeClock(), subscribe=topic)
    start = through_json(reader.latestOffset(through_json(reader.initialOffset()), ReadAllAvailable()))
    log.grow(topic, 3)
    log.append(topic, 2, [b"a", b"b"])
    clock.advance(10)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert offsets_of(end) == {topic: {"0": 0, "1": 0, "2": 2}}
    assert values_of(reader, start, end) == [b"a", b"b"]


def test_available_now_ends_where_the_log_ended(log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"a"] * 5)
    reader = reader_of(
        log, clock := FakeClock(), subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="100"
    )
    reader.prepareForTriggerAvailableNow()
    log.append(topic, 0, [b"late"])
    log.grow(topic, 2)
    log.append(topic, 1, [b"later"])
    clock.advance(10)
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert values_of(reader, start, end) == [b"a"] * 5
    clock.advance(10)
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) is end


def test_a_deleted_topic_is_data_loss_and_never_forgotten(log: Log) -> None:
    topic, other = log.create(1, "gone"), log.create(1, "gone")
    log.append(topic, 0, [b"a"] * 3)
    options = {"subscribePattern": f"{topic}|{other}", "startingOffsets": "earliest"}
    strict, lax = (
        reader_of(log, **options),
        reader_of(log, clock := FakeClock(), **options, failOnDataLoss="false"),
    )
    start = through_json(lax.latestOffset(through_json(lax.initialOffset()), ReadAllAvailable()))
    log.delete(topic)
    with pytest.raises(
        OffsetOutOfRange, match=rf"{topic}-0 was read up to offset 3 and is gone: .*failOnDataLoss=false"
    ):
        strict.latestOffset(start, ReadAllAvailable())
    clock.advance(10)
    assert lax.latestOffset(start, ReadAllAvailable()) is start
    log.create_named(topic, 1)
    log.append(topic, 0, [b"b"])
    with pytest.raises(OffsetOutOfRange, match=rf"topic {topic} was deleted and created again"):
        reader_of(log, **options).latestOffset(start, ReadAllAvailable())
    clock.advance(10)
    end = lax.latestOffset(start, ReadAllAvailable())
    assert values_of(lax, start, end) == [b"b"]


def test_a_topic_that_is_no_longer_subscribed_is_called_so(log: Log) -> None:
    topic, other = log.create(1), log.create(1)
    log.append(topic, 0, [b"a"] * 3)
    both = reader_of(log, subscribe=f"{topic},{other}", startingOffsets="earliest")
    start = through_json(both.latestOffset(through_json(both.initialOffset()), ReadAllAvailable()))
    with pytest.raises(
        InvalidArgument, match=rf"{topic}-0 was read up to offset 3 and is no longer subscribed: "
    ):
        reader_of(log, subscribe=other).latestOffset(start, ReadAllAvailable())
    lax = reader_of(log, subscribe=other, failOnDataLoss="false")
    assert lax.latestOffset(start, ReadAllAvailable()) is start


def remake(log: Log, topic: str, partitions: int, *values: bytes) -> None:
    log.delete(topic)
    log.create_named(topic, partitions)
    log.append(topic, 0, values)


def test_a_recreated_topic_is_detected_even_beyond_the_old_offset(log: Log) -> None:
    topic = log.create(2)
    log.append(topic, 0, [b"a"] * 3)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    strict, lax = (
        reader_of(log, clock := FakeClock(), **options),
        reader_of(log, clock, **options, failOnDataLoss="false"),
    )
    start = through_json(strict.latestOffset(through_json(strict.initialOffset()), ReadAllAvailable()))
    assert strict.latestOffset(start, ReadAllAvailable()) is start
    remake(log, topic, 1, *[b"b"] * 10)
    clock.advance(10)
    with pytest.raises(
        OffsetOutOfRange,
        match=rf"topic {topic} was deleted and created again: it was read as topic [0-9a-f]{{32}} ",
    ):
        strict.latestOffset(start, ReadAllAvailable())
    end = through_json(lax.latestOffset(start, ReadAllAvailable()))
    assert offsets_of(end) == {topic: {"0": 10}}
    assert values_of(lax, start, end) == [b"b"] * 10
    assert lax.latestOffset(end, ReadAllAvailable()) is end
    limited = lax.latestOffset(start, ReadMaxRows(4))
    assert values_of(lax, start, limited) == [b"b"] * 4
    # Planned with the new topic, and read when that is deleted as well.
    remake(log, topic, 1, *[b"c"] * 20)
    with pytest.raises(OffsetOutOfRange, match=rf"records of {topic}-0 are lost: .* recreated"):
        values_of(strict, start, end)


def test_batch_0_of_a_recreated_topic_is_read_from_its_beginning(log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"a"] * 3)
    reader = reader_of(log, clock := FakeClock(), subscribe=topic, failOnDataLoss="false")
    initial = through_json(reader.initialOffset())
    remake(log, topic, 1, *[b"b"] * 10)
    clock.advance(10)
    end = through_json(reader.latestOffset(initial, ReadAllAvailable()))
    assert values_of(reader, initial, end) == [b"b"] * 10
    assert values_of(reader_of(log, subscribe=topic), initial, end) == [b"b"] * 10


def test_a_checkpoint_without_ids_gets_them_with_new_records(log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"a"] * 3)
    reader = reader_of(log, FakeClock(), subscribe=topic)
    start = {topic: {"0": 3}}
    assert reader.latestOffset(start, ReadAllAvailable()) is start
    log.append(topic, 0, [b"b"])
    end = through_json(reader.latestOffset(start, ReadAllAvailable()))
    assert list(end) == ["$ids", topic]
    assert values_of(reader, start, end) == [b"b"]


def test_a_checkpoint_without_ids_detects_a_log_that_ends_before_it(log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"b"])
    with pytest.raises(OffsetOutOfRange, match=rf"{topic}-0 was read up to offset 3 and ends at 1"):
        reader_of(log, subscribe=topic).latestOffset({topic: {"0": 3}}, ReadAllAvailable())


def test_available_now_reads_a_recreated_shorter_topic(log: Log) -> None:
    topic = log.create(1, "anew")
    start = {topic: {"0": 3}}
    log.append(topic, 0, [b"b"])
    options = {"subscribePattern": topic, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    reader = reader_of(log, **options)
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert (offsets_of(end), values_of(reader, start, end)) == ({topic: {"0": 1}}, [b"b"])
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) is end


def test_records_deleted_by_retention_are_data_loss(log: Log) -> None:
    topic = log.create(1, config={"retention_bytes": "1", "segment_bytes": "1048576"})
    for _ in range(4):
        log.append(topic, 0, [b"v" * 1000] * 700)
    reader = reader_of(log, assign=json.dumps({topic: [0]}), startingOffsets="earliest")
    end = {topic: {"0": 2800}}
    earliest = log.wait_for_retention(topic)
    with pytest.raises(
        OffsetOutOfRange,
        match=f"records of {topic}-0 are lost: offsets 0 to 2800 .* the log has {earliest} to 2800",
    ):
        values_of(reader, {topic: {"0": 0}}, end)
    lax = reader_of(log, assign=json.dumps({topic: [0]}), failOnDataLoss="false")
    with pytest.warns(UserWarning, match=f"records of {topic}-0 are lost"):
        assert len(values_of(lax, {topic: {"0": 0}}, end)) == 2800 - earliest


def test_a_stream_starts_only_on_existing_topics(log: Log) -> None:
    with pytest.raises(InvalidArgument, match="topic 'nowhere' does not exist"):
        reader_of(log, subscribe="nowhere").initialOffset()


def test_readers_and_tasks_can_be_pickled_after_use(log: Log) -> None:
    topic = log.create(1)
    reader = reader_of(log, subscribe=topic)
    reader.initialOffset()
    copy = pickle.loads(pickle.dumps(reader))
    assert list(copy.read(RangesPartition(()))) == []


# --- with Spark -----------------------------------------------------------------------------------


def load(spark: SparkSession, log: Log, **options: str) -> DataFrame:
    return spark.readStream.format("pixy").options(**{**log.options, **options}).load()


def collect_into(found: list[tuple[int, str]]) -> Callable[[DataFrame, int], None]:
    return lambda frame, batch: found.extend(
        (batch, bytes(row.value).decode()) for row in frame.select("value").collect()
    )


def values(found: list[tuple[int, str]]) -> list[str]:
    return [value for _, value in found]


def wait_until(condition: Callable[[], bool], query: StreamingQuery) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < until, f"it took more than {SECONDS_MAX} s: {query.lastProgress}"
        threading.Event().wait(0.05)


@pytest.mark.slow
def test_a_query_reads_new_records_and_resumes_where_it_stopped(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    topic = log.create(2)
    found: list[tuple[int, str]] = []

    def start() -> StreamingQuery:
        frame = load(spark, log, subscribe=topic, startingOffsets="earliest")
        return (
            frame.writeStream.foreachBatch(collect_into(found))
            .option("checkpointLocation", str(tmp_path / "c"))
            .start()
        )

    log.append(topic, 0, [b"0", b"1"])
    query = start()
    wait_until(lambda: len(set(values(found))) == 2, query)
    log.append(topic, 1, [b"2"])
    wait_until(lambda: len(set(values(found))) == 3, query)
    progress = query.lastProgress
    query.stop()
    assert progress is not None
    log.append(topic, 1, [b"3"])
    query = start()
    wait_until(lambda: len(set(values(found))) == 4, query)
    log.grow(topic, 3)
    log.append(topic, 2, [b"4"])
    wait_until(lambda: len(set(values(found))) == 5, query)
    query.stop()
    # foreachBatch is at least once: the batch that was stopped after it runs again.
    assert sorted(set(values(found))) == ["0", "1", "2", "3", "4"]
    committed = json.loads((tmp_path / "c" / "offsets" / "0").read_text().splitlines()[-1])
    ids = {topic: log.topic_id(topic).hex()}
    began = {"$ids": ids, topic: {"0": 0, "1": 0}}
    assert committed == {"$start": began, "$ids": ids, topic: {"0": 2, "1": 0}}


@pytest.mark.slow
def test_process_all_available_waits_for_all_records(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    topic = log.create(1)
    found: list[tuple[int, str]] = []
    writer = load(spark, log, subscribe=topic).writeStream.foreachBatch(collect_into(found))
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    query.processAllAvailable()
    for number in range(3):
        log.append(topic, 0, [b"%d" % number])
        query.processAllAvailable()
        assert values(found) == [str(each) for each in range(number + 1)]
    query.stop()


@pytest.mark.slow
def test_available_now_reads_limited_batches_until_the_end(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    topic = log.create(2)
    for partition in (0, 1):
        log.append(topic, partition, [b"%d-%d" % (partition, number) for number in range(50)])
    found: list[tuple[int, str]] = []
    frame = load(spark, log, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    writer = frame.writeStream.foreachBatch(collect_into(found)).option(
        "checkpointLocation", str(tmp_path / "c")
    )
    writer.trigger(availableNow=True).start().awaitTermination(60)
    assert [sum(1 for batch, _ in found if batch == each) for each in range(3)] == [40, 40, 20]
    assert len(set(found)) == 100
    writer.trigger(availableNow=True).start().awaitTermination(60)
    assert len(found) == 100


@pytest.mark.slow
def test_a_union_of_a_stream_with_itself_has_every_row_twice(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"a", b"b"])
    frame = load(spark, log, subscribe=topic, startingOffsets="earliest")
    found: list[tuple[int, str]] = []
    writer = frame.union(frame).writeStream.foreachBatch(collect_into(found))
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(
        availableNow=True
    ).start().awaitTermination(60)
    assert sorted(value for _, value in found) == ["a", "a", "b", "b"]


@pytest.mark.slow
def test_a_query_survives_a_restart_of_the_daemon(
    spark: SparkSession, daemon: Daemon, log: Log, tmp_path: Path
) -> None:
    topic = log.create(1)
    found: list[tuple[int, str]] = []
    frame = load(spark, log, subscribe=topic, startingOffsets="earliest")
    query = (
        frame.writeStream.foreachBatch(collect_into(found))
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    log.append(topic, 0, [b"a"])
    wait_until(lambda: len(set(found)) == 1, query)
    daemon.restart()
    log.reconnect()
    log.append(topic, 0, [b"b"])
    wait_until(lambda: {"a", "b"} == set(values(found)), query)
    query.stop()


@pytest.mark.slow
def test_a_stream_that_cannot_start_names_the_reason(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    frame = (
        spark.readStream.format("pixy")
        .options(**{"pixy.address": "127.0.0.1:1", "pixy.timeoutMs": "300"}, subscribe="t")
        .load()
    )
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(
        StreamingQueryException, match=r"pixy did not answer within 0.3 s \(pixy.timeoutMs\): 127.0.0.1:1"
    ):
        query.awaitTermination(60)

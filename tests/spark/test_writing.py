"""Stages written as by a task, with a real daemon and without Spark."""

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pixy.api.grpc.maxima import REPEATED_MAX
from pixy.errors import FailedPrecondition, InvalidArgument
from pixy.proto import pixy_log_pb2 as pb
from pixy.records import NewRecord, build_batch, crc32c
from pixy.spark import writing
from pixy.spark.client import LogClient
from pixy.spark.connection import ConnectionOptions
from pixy.spark.options import Use, write_options
from pixy.spark.schema import WriteColumns, arrow_schema
from pixy.spark.writing import PIECE_BYTES, StageWriter
from tests.integration.daemon import Daemon
from tests.spark.conftest import over_both
from tests.spark.log import Log

pytestmark = [pytest.mark.process, over_both]

SECONDS_MAX = 300.0
COLUMNS = WriteColumns(value=0, key=1, headers=2, topic=3, partition=4)
HEADERS = arrow_schema(include_headers=True).field("headers").type


def batch(rows: list[dict[str, object]]) -> pa.RecordBatch:
    kinds = {
        "value": pa.binary(),
        "key": pa.string(),
        "headers": HEADERS,
        "topic": pa.string(),
        "partition": pa.int32(),
    }
    return pa.RecordBatch.from_pydict(
        {name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()}
    )


def client_of(log: Log) -> LogClient:
    return LogClient(ConnectionOptions((log.options["pixy.address"],), timeout_seconds=20))


def writer_of(log: Log, topic: str | None, columns: WriteColumns = COLUMNS, **options: str) -> StageWriter:
    given = {**log.options, **options, **({"topic": topic} if topic else {})}
    return StageWriter(client_of(log), "sink", write_options(given, Use.BATCH_WRITE), columns)


def publish(log: Log, writer: StageWriter) -> None:
    request = pb.PublishRequest(sink_id="sink", epoch=time.time_ns(), stage_ids=writer.stage_ids)
    assert client_of(log).publish(request).published


def first_answer(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Event set as soon as the daemon has accepted a piece."""
    answered = threading.Event()
    stage = LogClient.stage

    def note(self: LogClient, request: pb.StageRequest) -> pb.StageResponse:
        answer = stage(self, request)
        answered.set()
        return answer

    monkeypatch.setattr(LogClient, "stage", note)
    return answered


def test_rows_are_visible_only_after_the_stage_is_published(log: Log) -> None:
    topic = log.create(4)
    writer = writer_of(log, topic)
    rows: list[dict[str, object]] = [
        {"value": b"%d" % number, "key": f"k{number % 5}"} for number in range(100)
    ]
    assert writer.write(iter([batch(rows[:60]), batch(rows[60:])]))
    assert log.read(topic) == []
    publish(log, writer)
    stored = log.read(topic)
    assert Counter(each.value for each in stored) == Counter(row["value"] for row in rows)
    for key in {each.key for each in stored}:
        of_key = [each for each in stored if each.key == key]
        assert len({each.partition for each in of_key}) == 1, "a key has one partition"
        assert [each.value for each in of_key] == [
            row["value"] for row in rows if str(row["key"]).encode() == key
        ]


def test_without_rows_there_is_no_stage(log: Log) -> None:
    assert not writer_of(log, "anything").write(iter([]))
    assert not writer_of(log, "anything").write(iter([batch([])]))


def test_many_pieces_keep_the_order_of_a_key(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log.create(3)
    writer = writer_of(log, topic)
    pieces: list[int] = []
    original = LogClient.stage

    def stage(self: LogClient, request: pb.StageRequest) -> pb.StageResponse:
        assert request.ByteSize() <= PIECE_BYTES + 64 * 1024
        pieces.append(request.piece)
        return original(self, request)

    monkeypatch.setattr(LogClient, "stage", stage)
    batches = [
        batch(
            [{"value": b"%06d" % number + b"x" * 20_000, "key": "k"} for number in range(first, first + 100)]
        )
        for first in (0, 100, 200)
    ]
    writer.write(iter(batches))
    publish(log, writer)
    assert sorted(pieces) == list(range(len(pieces)))
    assert len(pieces) >= 3
    assert [int(value[:6]) for value in log.values(topic) if value] == list(range(300))


def test_rows_for_more_partitions_than_a_request_may_have_go_to_several_pieces(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert REPEATED_MAX["Log"]["Stage"]["partitions"] >= 2 * writing.PIECE_PARTITIONS
    assert REPEATED_MAX["Log"]["Stage"]["versions"] >= 2 * writing.PIECE_PARTITIONS
    monkeypatch.setattr(writing, "PIECE_PARTITIONS", 4)
    topic = log.create(20)
    writer = writer_of(log, topic)
    widths: list[int] = []
    original = LogClient.stage

    def stage(self: LogClient, request: pb.StageRequest) -> pb.StageResponse:
        widths.append(len(request.partitions))
        return original(self, request)

    monkeypatch.setattr(LogClient, "stage", stage)
    rows: list[dict[str, object]] = [
        {"value": b"%d" % number, "key": None if number % 7 == 0 else f"k{number % 50}"}
        for number in range(500)
    ]
    writer.write(iter([batch(rows)]))
    publish(log, writer)
    assert max(widths) <= 5
    stored = log.read(topic)
    assert Counter(each.value for each in stored) == Counter(row["value"] for row in rows)
    for key in {row["key"] for row in rows if row["key"] is not None}:
        of_key = [each.value for each in stored if each.key == str(key).encode()]
        assert of_key == [row["value"] for row in rows if row["key"] == key]


@pytest.mark.parametrize("limit", [("STAGE_BYTES", 30_000), ("STAGE_PIECES", 4)])
def test_rows_beyond_the_limit_of_a_stage_go_to_several(
    log: Log, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]
) -> None:
    topic = log.create(1)
    monkeypatch.setattr(writing, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(writing, *limit)
    writer = writer_of(log, topic)
    rows: list[dict[str, object]] = [{"value": b"%03d" % number + b"x" * 1000} for number in range(200)]
    assert 3 <= len(writer.write(iter([batch(rows)]))) <= 8
    assert log.read(topic) == []
    publish(log, writer)
    assert log.values(topic) == [row["value"] for row in rows]


def test_a_row_can_name_topic_partition_and_headers(log: Log) -> None:
    one, two = log.create(2), log.create(3)
    writer = writer_of(log, None)
    rows: list[dict[str, object]] = [
        {
            "value": b"a",
            "topic": one,
            "partition": 1,
            "headers": [{"key": "h", "value": b"x"}, {"key": "n", "value": None}],
        },
        {"value": None, "topic": two, "partition": 2, "key": "tombstone"},
        {"value": b"b", "topic": one, "partition": 0},
    ]
    writer.write(iter([batch(rows)]))
    publish(log, writer)
    assert [each[0:1] + each[2:] for each in log.read(one)] == [
        (0, None, b"b", ()),
        (1, None, b"a", (("h", b"x"), ("n", None))),
    ]
    assert [each[0:1] + each[2:] for each in log.read(two)] == [(2, b"tombstone", None, ())]


def test_rows_without_a_key_rotate_by_piece(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log.create(4)
    monkeypatch.setattr(writing, "PIECE_BYTES", 10_000)
    writer = writer_of(log, topic, WriteColumns(0, None, None, None, None))
    writer.write(iter([batch([{"value": b"x" * 1000}] * 80)]))
    publish(log, writer)
    sizes = Counter(each.partition for each in log.read(topic))
    assert set(sizes) == {0, 1, 2, 3}
    assert max(sizes.values()) - min(sizes.values()) <= 18


def test_pieces_are_partitioned_anew_when_a_topic_grows(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log.create(1)
    writer = writer_of(log, topic)
    answered = first_answer(monkeypatch)

    def batches() -> Iterator[pa.RecordBatch]:
        rows: list[dict[str, object]] = [{"value": b"x" * 1000, "key": f"{number}"} for number in range(6000)]
        yield batch(rows)
        assert answered.wait(SECONDS_MAX)
        log.grow(topic, 8)
        yield batch(rows)

    writer.write(batches())
    publish(log, writer)
    stored = log.read(topic)
    assert len(stored) == 12_000
    assert {each.partition for each in stored} == set(range(8))
    assert Counter(each.partition for each in stored)[0] >= 2000, (
        "the first piece went to the one partition that there was"
    )


def test_a_daemon_with_stale_topic_metadata_is_asked_again(
    daemon: Daemon, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted daemon in front of Kafka does not know the options of topics, and so gives them
    another version.
    """
    topic = log.create(2)
    log.set_option(topic, "retention_ms", "-1")
    writer = writer_of(log, topic)
    original = LogClient.stage
    versions: list[pb.TopicVersion] = []

    def stage(self: LogClient, request: pb.StageRequest) -> pb.StageResponse:
        if not versions:
            daemon.restart()
        versions.extend(request.versions)
        return original(self, request)

    monkeypatch.setattr(LogClient, "stage", stage)
    writer.write(iter([batch([{"value": b"a", "key": "k"}])]))
    log.reconnect()
    publish(log, writer)
    assert log.values(topic) == [b"a"]


def test_topics_are_created_as_by_produce(log: Log) -> None:
    writer = writer_of(log, "made-by-the-writer")
    writer.write(iter([batch([{"value": b"a"}])]))
    publish(log, writer)
    assert log.values("made-by-the-writer") == [b"a"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"value": b"a"}, "a row has null in the column topic"),
        ({"value": b"a", "topic": "a b"}, "the column topic: invalid topic name 'a b'"),
        (
            {"value": b"a", "topic": "known", "partition": 9},
            "a row says partition 9 of topic 'known': allowed are 0 to ",
        ),
        ({"value": b"a", "topic": "known", "partition": -1}, "a row says partition -1 of topic 'known'"),
    ],
)
def test_a_row_that_cannot_be_written_fails_the_task(log: Log, row: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        writer_of(log, None).write(iter([batch([row])]))


def test_a_stage_that_fails_is_dropped(log: Log) -> None:
    topic = log.create(1)
    writer = writer_of(log, topic)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch([{"value": b"x" * 100_000}] * 60)
        raise RuntimeError("the query failed")

    with pytest.raises(RuntimeError, match="the query failed"):
        writer.write(batches())
    # The stage's name is free again: another piece with the same number is accepted.
    another = bytes(build_batch([NewRecord(None, b"alone", (), 0)]))
    checksum = crc32c(crc32c(another).to_bytes(4, "big"))
    request = pb.StageRequest(
        sink_id="sink",
        stage_id=writer.stage_ids[-1],
        partitions=[pb.PartitionBatches(topic=topic, partition=0, batches=another)],
        seal=pb.Seal(pieces=1, crc=checksum),
    )
    client_of(log).stage(request)
    publish(log, writer)
    assert log.values(topic) == [b"alone"]


def test_a_task_whose_pieces_were_lost_with_the_daemon_fails_and_can_be_retried(
    daemon: Daemon, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create(1)
    rows: list[dict[str, object]] = [{"value": b"x" * 1000}] * 6000
    writer = writer_of(log, topic)
    answered = first_answer(monkeypatch)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(rows)
        assert answered.wait(SECONDS_MAX)
        daemon.restart()
        log.reconnect()
        yield batch(rows)

    with pytest.raises(FailedPrecondition, match="is missing: it never arrived, or this node has restarted"):
        writer.write(batches())
    assert log.read(topic) == []
    writer.write(iter([batch(rows)]))
    publish(log, writer)
    assert len(log.read(topic)) == 6000


def test_batches_can_be_compressed_and_limited_in_size(log: Log) -> None:
    topic = log.create(1)
    writer = writer_of(log, topic, COLUMNS, **{"kafka.compression.type": "zstd", "maxBatchBytes": "5000"})
    writer.write(iter([batch([{"value": b"x" * 1000}] * 20)]))
    publish(log, writer)
    assert log.values(topic) == [b"x" * 1000] * 20
    answer = next(iter(log.stub.Fetch(pb.FetchRequest(ranges=[pb.FetchRange(topic=topic, to_offset=20)]))))
    assert len(answer.batches) < 2000

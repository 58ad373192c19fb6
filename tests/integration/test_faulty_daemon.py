"""The daemon with faults has each of them while it is told so."""

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from tests.fakes.waiting import until_blocking
from tests.integration.daemon import Daemon, proxy_config
from tests.integration.faulty_daemon import FAULTY, Faults

pytestmark = pytest.mark.process

SECONDS = 60.0
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
HOUR_S = 3600
MESSAGE = pb.ProdRq(topic="t", key_value=b"k", message=b"m")
CONFIG = proxy_config(default_partitions=1)
LAST = f"{4:020d}.log"
"""Segment of the last of five messages."""


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    faults = Faults(tmp_path)
    yield faults
    faults.heal()


@pytest.fixture
def daemon(tmp_path: Path, faults: Faults) -> Iterator[Daemon]:
    with Daemon(tmp_path, CONFIG, program=FAULTY) as daemon:
        daemon.stub().Produce(MESSAGE, timeout=SECONDS)
        yield daemon


def find_offset(daemon: Daemon, topic: str = "t", **at: object) -> int:
    """Answer of ListOffsets for one partition."""
    query = log_pb.OffsetQuery(topic=topic, **at)  # type: ignore[arg-type]  # one of its fields
    request = log_pb.ListOffsetsRequest(queries=[query])
    return LogStub(daemon.channel()).ListOffsets(request, timeout=SECONDS).answers[0].offset


def test_a_stalled_disk_answers_once_it_goes_on(daemon: Daemon, faults: Faults) -> None:
    stub = daemon.stub()
    faults.stall()
    stalled = [stub.Produce.future(MESSAGE, timeout=SECONDS) for _ in range(3)]
    # Answered without the disk, although it was sent later.
    assert find_offset(daemon, latest=True) == 1
    assert not any(call.done() for call in stalled)
    faults.resume()
    assert sorted(call.result().offset for call in stalled) == [1, 2, 3]


def test_a_disk_with_errors_ends_the_daemon(daemon: Daemon, faults: Faults) -> None:
    faults.fail()
    with pytest.raises(grpc.RpcError):
        daemon.stub().Produce(MESSAGE, timeout=SECONDS)
    daemon.close_channels()
    assert daemon.wait() != 0
    assert "Input/output error" in daemon.log()
    faults.heal()
    daemon.start()
    daemon.stub().Produce(MESSAGE, timeout=SECONDS)


def test_a_full_disk_takes_messages_again_once_it_has_space(daemon: Daemon, faults: Faults) -> None:
    stub = daemon.stub()
    faults.fill()
    large = pb.ProdRq(topic="t", key_value=b"k", message=bytes(900_000))
    until_blocking(lambda: not is_written(stub, large), daemon.log)
    faults.heal()
    until_blocking(lambda: is_written(stub, MESSAGE), daemon.log)


def test_what_frees_space_works_on_a_full_disk_and_so_does_a_start(daemon: Daemon, faults: Faults) -> None:
    topics, stub = TopicsStub(daemon.channel()), daemon.stub()
    config = {"segment_bytes": "65536"}
    for name in ("old", "cut"):
        topics.CreateTopic(
            topics_pb.CreateTopicRequest(topic=name, partitions=1, config=config), timeout=SECONDS
        )
        for _ in range(5):
            stub.Produce(pb.ProdRq(topic=name, key_value=b"k", message=bytes(60_000)), timeout=SECONDS)
    files = daemon.folder / "data" / "default" / "topics"
    # Written, not only created: what waits for space keeps the begin from being durable.
    until_blocking(lambda: sum(path.stat().st_size for path in files.rglob(LAST)) > 120_000, daemon.log)
    faults.fill()
    below = topics_pb.RecordsToDelete(partition=0, before_offset=4)
    topics.DeleteRecords(topics_pb.DeleteRecordsRequest(topic="cut", partitions=[below]), timeout=SECONDS)
    topics.DeleteTopic(topics_pb.DeleteTopicRequest(topic="old"), timeout=SECONDS)
    until_blocking(lambda: [path.name for path in (files / "cut-0").glob("*.log*")] == [LAST], daemon.log)
    until_blocking(lambda: sorted(path.name for path in files.iterdir()) == ["cut-0", "t-0"], daemon.log)
    daemon.close_channels()
    daemon.kill()
    daemon.start()
    assert (find_offset(daemon, "cut", earliest=True), find_offset(daemon, "cut", latest=True)) == (4, 5)


def test_topics_can_be_deleted_when_the_journal_has_no_room_either(tmp_path: Path, faults: Faults) -> None:
    """Another process has taken the reserve as well, also at the next start."""
    config = proxy_config(default_partitions=1, journal={"file_bytes": 1 << 20})
    with Daemon(tmp_path, config, program=FAULTY) as daemon:
        stub, files = daemon.stub(), daemon.folder / "data" / "default" / "topics"
        for name in ("t", "old", "older"):
            stub.Produce(pb.ProdRq(topic=name, key_value=b"k", message=bytes(50_000)), timeout=SECONDS)
        for _ in range(8):
            stub.Produce(pb.ProdRq(topic="t", key_value=b"k", message=bytes(100_000)), timeout=SECONDS)
        until_blocking(lambda: len(list(files.rglob("*.log"))) == 3, daemon.log)
        faults.fill()
        offset = pb.PartitionOffset(partition=0, offset=1, metadata="m" * 4000)
        calls: list[grpc.Call] = []

        def is_refused() -> bool:
            request = pb.SetOffsetsRq(topic="t", group=f"g-{len(calls)}", offsets=[offset])
            calls.append(stub.SetOffsets.future(request, timeout=SECONDS))
            return any(not call.is_active() and call.code() is UNAVAILABLE for call in calls)

        until_blocking(is_refused, daemon.log)
        topics = TopicsStub(daemon.channel())
        for deleted, left in (("old", ["older-0", "t-0"]), ("older", ["t-0"])):
            topics.DeleteTopic(topics_pb.DeleteTopicRequest(topic=deleted), timeout=SECONDS)
            until_blocking(
                lambda left=left: sorted(path.name for path in files.iterdir()) == left,  # type: ignore[misc]
                daemon.log,
            )
        faults.heal()
        until_blocking(lambda: is_written(stub, MESSAGE), daemon.log)
        end = find_offset(daemon, latest=True)
        daemon.close_channels()
        daemon.kill()
        daemon.start()
        assert find_offset(daemon, latest=True) == end


def is_written(stub: KafkaPixyStub, message: pb.ProdRq) -> bool:
    """Produce it; False if the daemon answers UNAVAILABLE."""
    call = stub.Produce.future(message, timeout=SECONDS)
    assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    return call.code() is grpc.StatusCode.OK


def test_a_clock_that_is_ahead_stamps_records(daemon: Daemon, faults: Faults) -> None:
    in_half_an_hour_ms = int(1000 * (time.time() + HOUR_S / 2))
    assert find_offset(daemon, timestamp_ms=in_half_an_hour_ms) == -1
    faults.set_clock_ahead(HOUR_S)

    def is_stamped() -> bool:
        """The node looks at its clock a few times a second."""
        daemon.stub().Produce(MESSAGE, timeout=SECONDS)
        return find_offset(daemon, timestamp_ms=in_half_an_hour_ms) >= 1

    until_blocking(is_stamped)

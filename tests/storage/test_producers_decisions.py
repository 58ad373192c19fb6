"""Producers of a partition at a start: the rows of the table in `docs/storage.md`."""

from pathlib import Path

import pytest

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import AppliedPosition
from pixy.records import ANY_FORGOTTEN, ProducerBatch, ProducerTable, producer_batch
from pixy.storage import PRODUCERS_FILE, PRODUCERS_PART, RealDisk
from pixy.storage.disk.disk import Disk
from pixy.storage.partition.log_segments import AgedSegments
from pixy.storage.partition.partition_log import PartitionLog
from tests.fakes.batches import batch_of, batch_of_producer
from tests.fakes.disk import RecordingDisk
from tests.storage.logs import append, applied_position, partition_log


class Replica:
    """A log with a table of producers, as a replica has both."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = partition_log(RealDisk(), directory, segment_bytes=400)
        self.table = ProducerTable()

    @property
    def path(self) -> Path:
        return self.directory / PRODUCERS_FILE

    def append(self, sequence: int | None, producer_id: int = 7) -> None:
        """Append a batch of one record, of no producer without a sequence."""
        batch = bytearray(batch_of(b"x"))
        if sequence is not None:
            batch = batch_of_producer(producer_id, 0, sequence, b"x")
        append(self.log, batch)
        if sequence is not None:
            self.table.apply(producer_batch(batch), 1000)

    def keep(self) -> None:
        self.log.keep_producers(self.table.kept(self.log.end_offset))

    def write(self, *, producers: bool = True) -> AppliedPosition:
        unwritten = self.log.unwritten()
        self.log.write(unwritten.batches, AgedSegments())
        self.log.write_producers()
        self.log.wrote(unwritten)
        position = applied_position(self.log)
        position.producers = producers
        return position

    def start(
        self, position: AppliedPosition, disk: Disk | None = None
    ) -> tuple[PartitionLog, ProducerTable | None]:
        self.log.close()
        log = partition_log(disk or RealDisk(), self.directory, segment_bytes=400)
        log.open(position, exists=True)
        return log, log.read_producers(position)


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    """Nine batches in several segments, two of producer 8 and four of producer 7; kept as of the
    fifth.
    """
    replica = Replica(tmp_path / "topic-0")
    for sequence in (0, None, 1, None):
        replica.append(sequence)
    replica.append(0, 8)
    replica.keep()
    replica.write()
    for sequence in (2, None, 3):
        replica.append(sequence)
    replica.append(1, 8)
    return replica


def answers(table: ProducerTable | None, producer_id: int, *sequences: int) -> list[object]:
    """Answers to batches with these sequences; None for one that is new."""
    assert table is not None
    return [table.judge([ProducerBatch(99, 0, producer_id, 0, each)]) for each in sequences]


def check_found_anew(replica: Replica, position: AppliedPosition, disk: Disk | None = None) -> None:
    log, table = replica.start(position, disk)
    assert answers(table, 7, 0, 1, 2, 3) == [0, 2, 5, 7]
    assert answers(table, 8, 0, 1) == [4, 8]
    assert table is not None
    assert table.forgotten == ANY_FORGOTTEN
    assert log.is_keeping_due(1 << 20)


def test_absent(replica: Replica) -> None:
    position = replica.write(producers=False)
    replica.path.unlink()
    assert replica.start(position)[1] is None


def test_left(replica: Replica) -> None:
    position = replica.write(producers=False)
    replica.path.write_bytes(b"garbage")
    log, table = replica.start(position)
    assert table is None
    assert log.is_keeping_due(1 << 20)


def test_behind_the_position(replica: Replica) -> None:
    position = replica.write()
    assert len(list(replica.directory.glob("*.log"))) > 1
    log, table = replica.start(position)
    assert answers(table, 7, 0, 1, 2, 3) == [0, 2, 5, 7]
    assert answers(table, 8, 0, 1) == [4, 8]
    assert not log.is_keeping_due(1 << 20)
    assert log.is_keeping_due(200), "the headers were those of so many bytes"


def test_ahead_of_the_position(replica: Replica) -> None:
    position = replica.write()
    replica.append(4)
    replica.keep()
    replica.write()
    log, table = replica.start(position)
    assert log.end_offset == 9
    assert answers(table, 7, 2, 4) == [5, 9]
    assert table is not None
    table.apply(ProducerBatch(9, 0, 7, 0, 4), 1000)
    assert answers(table, 7, 4, 5) == [9, None]


def test_missing(replica: Replica) -> None:
    position = replica.write()
    replica.path.unlink()
    check_found_anew(replica, position)


def test_short(replica: Replica) -> None:
    position, content = replica.write(), replica.path.read_bytes()
    for size in range(len(content)):
        replica.path.write_bytes(content[:size])
        check_found_anew(replica, position)


def test_torn(replica: Replica) -> None:
    position, content = replica.write(), replica.path.read_bytes()
    for size in range(len(content.rstrip(b"\0"))):
        replica.path.write_bytes(content[:size] + bytes(len(content) - size))
        check_found_anew(replica, position)


def test_bad_checksum(replica: Replica) -> None:
    position, content = replica.write(), replica.path.read_bytes()
    for at in range(len(content)):
        if at not in range(8, 12):  # of the version
            wrong = content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]
            replica.path.write_bytes(wrong)
            check_found_anew(replica, position)


def test_zero_tail(replica: Replica) -> None:
    position = replica.write()
    replica.path.write_bytes(replica.path.read_bytes() + bytes(40))
    check_found_anew(replica, position)


def test_unreadable(replica: Replica) -> None:
    position, disk = replica.write(), RecordingDisk()
    disk.unreadable.add(replica.path)
    check_found_anew(replica, position, disk)


def test_half_a_rename(replica: Replica) -> None:
    position = replica.write()
    (replica.directory / PRODUCERS_PART).write_bytes(b"half" * 1000)
    replica.log, table = replica.start(position)
    assert answers(table, 7, 3) == [7]
    assert table is not None
    replica.table = table
    replica.append(4)
    replica.keep()
    position = replica.write()
    assert answers(replica.start(position)[1], 7, 3, 4) == [7, 9]
    assert not (replica.directory / PRODUCERS_PART).exists()


def test_newer_version(replica: Replica) -> None:
    position, content = replica.write(), replica.path.read_bytes()
    replica.path.write_bytes(content[:8] + b"\x02\0\0\0" + content[12:])
    with pytest.raises(DataDirectoryError, match="a newer one wrote it"):
        replica.start(position)


def test_damaged_segments(replica: Replica) -> None:
    position = replica.write()
    log, _ = replica.start(position)
    path = max(replica.directory.glob("*.log"))
    content = path.read_bytes()
    path.write_bytes(content[:16] + b"\xff" + content[17:])
    with pytest.raises(CorruptData, match=path.name):
        log.read_producers(position)

"""Partition logs for tests."""

import struct
from pathlib import Path

from pixy.errors import CorruptData
from pixy.proto.state_pb2 import AppliedPosition, PartitionIdentity
from pixy.records import crc32c, patch_batch
from pixy.storage import (
    Disk,
    KnownPartitions,
    LogOptions,
    PartitionLog,
    TopicLogs,
    sort_partition_directories,
)
from pixy.storage.disk.removal import remove_directories
from pixy.storage.disk.upkeep import Steps
from pixy.storage.partition.log_segments import AgedSegments
from pixy.storage.partition.partition_directory import deleted_directory, retire_partition_directory
from tests.storage.batches import batch

CLUSTER_ID = b"c" * 16
LONG_MS = 10**15


def identity(raft_group: int = 1000, partition: int = 0) -> PartitionIdentity:
    return PartitionIdentity(
        cluster_id=CLUSTER_ID, topic_id=b"t" * 16, partition=partition, raft_group=raft_group
    )


def partition_log(
    disk: Disk,
    directory: Path,
    segment_bytes: int = 1 << 20,
    segment_ms: int = LONG_MS,
    raft_group: int = 1000,
) -> PartitionLog:
    return PartitionLog(
        disk, directory, identity(raft_group), TopicLogs(LogOptions(segment_bytes, segment_ms))
    )


def applied_position(log: PartitionLog, raft_group: int = 1000) -> AppliedPosition:
    """Sync everything written; returns the position. Entry n has the batch of offset n - 1."""
    position = log.sync()
    return AppliedPosition(
        raft_group=raft_group,
        index=log.written_offset,
        term=1,
        log_begin_offset=position.log_begin_offset,
        end_offset=log.written_offset,
        segment_base_offset=position.segment_base_offset,
        segment_bytes=position.segment_bytes,
    )


def unstamped(new: bytearray) -> bytearray:
    """The batch without timestamps, as a Kafka client may send it."""
    struct.pack_into(">qq", new, 27, -1, -1)
    struct.pack_into(">I", new, 17, crc32c(new[21:]))
    return new


def append(log: PartitionLog, new: bytearray, leader_epoch: int = 1) -> int:
    """Append a batch at the log's end; returns its offset."""
    patch_batch(new, log.end_offset, leader_epoch)
    return log.append(new)


def fill(log: PartitionLog, count: int, size: int = 10) -> None:
    """Append and write `count` batches of one record with ascending timestamps."""
    for _ in range(count):
        append(log, batch(1, size, 1000 + log.end_offset))
    unwritten = log.unwritten()
    log.write(unwritten.batches, AgedSegments())
    log.wrote(unwritten)


def exhaust(steps: Steps) -> None:
    """Run all steps."""
    for _ in steps:
        pass


def sort_directories(disk: Disk, topics: Path, known: KnownPartitions) -> dict[str, CorruptData | None]:
    """Sort the directories of partitions at startup, and remove the retired ones."""
    found, retired = sort_partition_directories(disk, topics, known)
    if retired:
        exhaust(remove_directories(disk, topics, retired))
    return found


def remove_directory(disk: Disk, path: Path, identity: PartitionIdentity) -> None:
    """Remove the directory of a deleted partition."""
    retired = retire_partition_directory(
        disk, path, identity, deleted_directory(path.parent, identity.raft_group)
    )
    if retired is not None:
        exhaust(remove_directories(disk, path.parent, [retired]))


def remove_log(disk: Disk, log: PartitionLog) -> None:
    """Remove the log of a deleted topic, on its one thread."""
    log.topic.deleted = True
    retired = log.retire(deleted_directory(log._files.directory.parent, log.identity.raft_group))
    if retired is not None:
        exhaust(remove_directories(disk, retired.parent, [retired]))

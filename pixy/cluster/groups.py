"""The state machine of raft groups `groups-n`: the offsets that consumer groups have committed.

Pure and deterministic. A consumer group belongs to one state group for good, chosen by a hash of its name.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pixy.errors import PixyError
from pixy.proto.state_pb2 import CommitOffsets, CommittedOffset, GroupsCommand, OffsetRecord
from pixy.records import OffsetCommit, TopicPartition, crc32c

__all__ = ["FIRST_GROUPS_GROUP", "GroupsState", "groups_index"]

FIRST_GROUPS_GROUP = 2
"""The raft group of `groups-0`; the others follow."""


def groups_index(consumer_group: str, groups_count: int) -> int:
    """Which of the state groups a consumer group belongs to."""
    checksum: int = crc32c(consumer_group.encode())
    return checksum % groups_count


class _Stored(NamedTuple):
    commit: OffsetCommit
    timestamp_ms: int


class GroupsState:
    """Committed offsets by consumer group and partition."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[TopicPartition, _Stored]] = {}

    def apply(self, payload: bytes) -> PixyError | None:
        """Apply one command; what comes back is its result for whoever proposed it."""
        command = GroupsCommand.FromString(payload)
        match command.WhichOneof("command"):
            case "commit_offsets":
                self._commit(command.commit_offsets)
                return None
            case other:
                raise AssertionError(f"groups command {other} is not known")

    def committed(self, consumer_group: str, topic: str) -> Mapping[int, OffsetCommit]:
        """What a consumer group has committed in a topic, by partition."""
        return {
            partition.partition: stored.commit
            for partition, stored in self._offsets.get(consumer_group, {}).items()
            if partition.topic == topic
        }

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        """Everything as checkpoint records; may be consumed on another thread while commands are applied."""
        return _records([(group, offsets.copy()) for group, offsets in self._offsets.items()])

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace everything by a checkpoint's records."""
        self._offsets = {}
        for _, value in records:
            record = OffsetRecord.FromString(value)
            self._store(record.group, record.offset, record.timestamp_ms)

    def _commit(self, command: CommitOffsets) -> None:
        for offset in command.offsets:
            self._store(command.group, offset, command.timestamp_ms)

    def _store(self, consumer_group: str, offset: CommittedOffset, timestamp_ms: int) -> None:
        of_group = self._offsets.setdefault(consumer_group, {})
        partition = TopicPartition(offset.topic, offset.partition)
        of_group[partition] = _Stored(OffsetCommit(offset.offset, offset.metadata), timestamp_ms)


def _records(groups: list[tuple[str, dict[TopicPartition, _Stored]]]) -> Iterable[tuple[bytes, bytes]]:
    for group, offsets in groups:
        for (topic, partition), (commit, timestamp_ms) in offsets.items():
            offset = CommittedOffset(
                topic=topic, partition=partition, offset=commit.offset, metadata=commit.metadata
            )
            record = OffsetRecord(group=group, offset=offset, timestamp_ms=timestamp_ms)
            yield f"{group}\0{topic}\0{partition}".encode(), record.SerializeToString()

"""The state machine of raft groups `groups-n`: the offsets that consumer groups have committed.

Pure and deterministic. A consumer group belongs to one state group for good, chosen by a hash of its name. What is committed in a
topic is kept by the topic's id: a later topic of the same name begins without any of it.

A commit replaces what is known of its group and changes nothing in place, so a snapshot is one copy of a dictionary, however much
there is; the rest of it can be read on another thread.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from pixy.errors import PixyError
from pixy.proto.state_pb2 import (
    CommitOffsets,
    CommittedOffset,
    ExpireGroups,
    ForgetTopics,
    GroupRecord,
    GroupsCommand,
    OffsetRecord,
    TouchGroups,
)
from pixy.records import OffsetCommit, crc32c

__all__ = ["FIRST_GROUPS_GROUP", "GroupsState", "groups_index"]

FIRST_GROUPS_GROUP = 2
"""The raft group of `groups-0`; the others follow."""

_GROUP_KEY = b"group\0"
_OFFSET_KEY = b"offset\0"


def groups_index(consumer_group: str, groups_count: int) -> int:
    """Which of the state groups a consumer group belongs to."""
    checksum: int = crc32c(consumer_group.encode())
    return checksum % groups_count


class _PartitionId(NamedTuple):
    topic_id: bytes
    partition: int


class _Stored(NamedTuple):
    topic: str
    commit: OffsetCommit
    timestamp_ms: int


class _Group(NamedTuple):
    """One consumer group: when it was last active, and what it has committed."""

    active_ms: int
    offsets: Mapping[_PartitionId, _Stored]


class GroupsState:
    """Committed offsets by consumer group and partition."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def apply(self, payload: bytes) -> PixyError | None:
        """Apply one command; what comes back is its result for whoever proposed it."""
        command = GroupsCommand.FromString(payload)
        match command.WhichOneof("command"):
            case "commit_offsets":
                self._commit(command.commit_offsets)
            case "forget_topics":
                self._forget_topics(command.forget_topics)
            case "touch_groups":
                self._touch(command.touch_groups)
            case "expire_groups":
                self._expire(command.expire_groups)
            case other:
                raise AssertionError(f"groups command {other} is not known")
        return None

    def committed(self, consumer_group: str, topic_id: bytes) -> Mapping[int, OffsetCommit]:
        """What a consumer group has committed in a topic, by partition."""
        group = self._groups.get(consumer_group)
        if group is None:
            return {}
        return {
            partition: stored.commit
            for (topic, partition), stored in group.offsets.items()
            if topic == topic_id
        }

    def topic_ids(self) -> Set[bytes]:
        """The topics in which anything is committed."""
        return {partition.topic_id for group in self._groups.values() for partition in group.offsets}

    def inactive_since(self, before_ms: int) -> Sequence[str]:
        """Consumer groups that were last active before a time."""
        return [name for name, group in self._groups.items() if group.active_ms < before_ms]

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        """Everything as checkpoint records; may be consumed on another thread while commands are applied."""
        return _records(self._groups.copy())

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace everything by a checkpoint's records."""
        active: dict[str, int] = {}
        offsets: dict[str, dict[_PartitionId, _Stored]] = {}
        for key, value in records:
            if key.startswith(_GROUP_KEY):
                group = GroupRecord.FromString(value)
                active[group.group] = group.active_ms
            else:
                record = OffsetRecord.FromString(value)
                _store(offsets.setdefault(record.group, {}), record.offset, record.timestamp_ms)
        self._groups = {name: _Group(ms, offsets.get(name, {})) for name, ms in active.items()}

    def _commit(self, command: CommitOffsets) -> None:
        before = self._groups.get(command.group)
        offsets = {} if before is None else dict(before.offsets)
        for offset in command.offsets:
            _store(offsets, offset, command.timestamp_ms)
        active_ms = command.timestamp_ms if before is None else max(before.active_ms, command.timestamp_ms)
        self._groups[command.group] = _Group(active_ms, offsets)

    def _forget_topics(self, command: ForgetTopics) -> None:
        gone = set(command.topic_ids)
        for name, group in list(self._groups.items()):
            kept = {key: stored for key, stored in group.offsets.items() if key.topic_id not in gone}
            if not kept:
                del self._groups[name]
            elif len(kept) < len(group.offsets):
                self._groups[name] = group._replace(offsets=kept)

    def _touch(self, command: TouchGroups) -> None:
        for name in command.groups:
            group = self._groups.get(name)
            if group is not None and group.active_ms < command.timestamp_ms:
                self._groups[name] = group._replace(active_ms=command.timestamp_ms)

    def _expire(self, command: ExpireGroups) -> None:
        for name in command.groups:
            group = self._groups.get(name)
            # A commit may have come between the decision and this.
            if group is not None and group.active_ms < command.before_ms:
                del self._groups[name]


def _store(offsets: dict[_PartitionId, _Stored], offset: CommittedOffset, timestamp_ms: int) -> None:
    commit = OffsetCommit(offset.offset, offset.metadata)
    offsets[_PartitionId(offset.topic_id, offset.partition)] = _Stored(offset.topic, commit, timestamp_ms)


def _records(groups: Mapping[str, _Group]) -> Iterable[tuple[bytes, bytes]]:
    for name, group in groups.items():
        yield (
            _GROUP_KEY + name.encode(),
            GroupRecord(group=name, active_ms=group.active_ms).SerializeToString(),
        )
        for (topic_id, partition), (topic, commit, timestamp_ms) in group.offsets.items():
            offset = CommittedOffset(
                topic=topic,
                topic_id=topic_id,
                partition=partition,
                offset=commit.offset,
                metadata=commit.metadata,
            )
            record = OffsetRecord(group=name, offset=offset, timestamp_ms=timestamp_ms)
            key = b"\0".join((_OFFSET_KEY[:-1], name.encode(), topic_id.hex().encode(), b"%d" % partition))
            yield key, record.SerializeToString()

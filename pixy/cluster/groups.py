"""The state machine of raft groups `groups-n`: committed offsets and claims of consumer groups.

Pure and deterministic. A consumer group belongs permanently to one state group, chosen by a hash of
its name. Offsets committed in a topic are kept by the topic's id: a later topic of the same name
starts without them.

A commit replaces the value of its group and changes nothing in place, so a snapshot is one copy of
a dictionary, whatever its size; the rest of it can be read on another thread.

One process of the cluster consumes in a consumer group: the one that has claimed it. A claim is the
fence of commits: those of another process are refused, whenever they come. It passes on by a
command that names the claim it takes over, so two nodes that give up a dead owner at the same time
do not both succeed it. A claim is part of its group, and expires with it.

    a claim by                                       is
    -----------------------------------------------  ---------------------------------------------
    anyone, of a group without a claim               granted
    the process that has it                          granted again
    a later process of the node that has it          granted: the earlier one has ended
    another node that takes over the present claim   granted
    anyone else                                      refused with `OwnedElsewhere`

Topics are forgotten at once, and the offsets committed in them are removed later, some groups at a
time: every query answers as if they were already removed. The time of the removal changes nothing
that another replica could observe.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from pixy.cluster.newer_command import newer_command
from pixy.cluster.scan_order import ScanOrder
from pixy.errors import OwnedElsewhere, PixyError
from pixy.proto.state_pb2 import (
    ClaimGroup,
    CommitOffsets,
    CommittedOffset,
    ExpireGroups,
    ForgetTopics,
    GroupClaim,
    GroupRecord,
    GroupsCommand,
    OffsetRecord,
    ReleaseGroup,
    TouchGroups,
)
from pixy.records import OffsetCommit, crc32c

__all__ = ["FIRST_GROUPS_GROUP", "Claim", "Forgotten", "GroupsState", "groups_index"]

FIRST_GROUPS_GROUP = 2
"""The raft group of `groups-0`; the others follow."""

_GROUP_KEY = b"group\0"
_OFFSET_KEY = b"offset\0"


def groups_index(consumer_group: str, groups_count: int) -> int:
    """Index of the state group that a consumer group belongs to."""
    checksum: int = crc32c(consumer_group.encode())
    return checksum % groups_count


class _PartitionId(NamedTuple):
    topic_id: bytes
    partition: int


class _Stored(NamedTuple):
    topic: str
    commit: OffsetCommit
    timestamp_ms: int


class Claim(NamedTuple):
    """A process that consumes in a consumer group for the whole cluster."""

    node_id: int
    incarnation: int


class _Group(NamedTuple):
    """One consumer group: time of its last activity, its committed offsets, and its claim."""

    active_ms: int
    offsets: Mapping[_PartitionId, _Stored]
    claim: Claim | None = None


class Forgotten(NamedTuple):
    """Result of forgetting topics: `sweep` of `state` is due."""

    state: "GroupsState"


_SWEPT_PER_STEP = 200


class GroupsState:
    """Committed offsets by consumer group and partition."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        # Invariant: it has the keys of `_groups`.
        self._order = ScanOrder()
        # Groups with offsets in a topic, by topic id: sets in insertion order.
        self._by_topic: dict[bytes, dict[str, None]] = {}
        # The same for forgotten topics, as far as their offsets are not swept yet.
        self._stale: dict[bytes, dict[str, None]] = {}

    def apply(self, payload: bytes) -> Forgotten | PixyError | None:
        """Apply one command; returns its result for the proposer.

        Raises:
            DataDirectoryError: a newer release wrote it.
        """
        command = GroupsCommand.FromString(payload)
        match command.WhichOneof("command"):
            case "commit_offsets":
                return self._commit(command.commit_offsets)
            case "forget_topics":
                return self._forget_topics(command.forget_topics)
            case "touch_groups":
                self._touch(command.touch_groups)
            case "expire_groups":
                self._expire(command.expire_groups)
            case "claim_group":
                return self._claim(command.claim_group)
            case "release_group":
                self._release(command.release_group)
            case _:
                raise newer_command("state group groups-n")
        return None

    def committed(self, consumer_group: str, topic_id: bytes) -> Mapping[int, OffsetCommit]:
        """Offsets that a consumer group has committed in a topic, by partition."""
        group = self._groups.get(consumer_group)
        if group is None or consumer_group not in self._by_topic.get(topic_id, ()):
            return {}
        return {
            partition: stored.commit
            for (topic, partition), stored in group.offsets.items()
            if topic == topic_id
        }

    def claimed_by(self, consumer_group: str) -> Claim | None:
        """The process that has claimed a consumer group, None if there is none."""
        group = self._groups.get(consumer_group)
        return None if group is None else group.claim

    def topic_ids(self) -> Set[bytes]:
        """Ids of the topics with committed offsets."""
        return self._by_topic.keys()

    def scan(self, size: int) -> Iterator[Sequence[str]]:
        """Names of all consumer groups, at most `size` per step; groups may come and go between
        the steps.
        """
        for names in self._order.pieces(size):
            for name in names if self._stale else ():
                self._settle(name)
            yield [name for name in names if name in self._groups]

    def is_inactive_since(self, consumer_group: str, before_ms: int) -> bool:
        """True when the group exists and was last active before `before_ms`."""
        self._settle(consumer_group)
        group = self._groups.get(consumer_group)
        return group is not None and group.active_ms < before_ms

    def sweep(self) -> Iterator[None]:
        """Remove the offsets committed in forgotten topics, some groups per step."""
        swept = 0
        while self._stale:
            topic_id, names = next(iter(self._stale.items()))
            name, _ = names.popitem()
            if not names:
                del self._stale[topic_id]
            self._drop(name, [topic_id])
            swept += 1
            if not swept % _SWEPT_PER_STEP:
                yield

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        """The whole state as checkpoint records.

        May be consumed on another thread while commands are applied.
        """
        stale = {topic_id: groups.copy() for topic_id, groups in self._stale.items()}
        return _records(self._groups.copy(), stale)

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the whole state by a checkpoint's records."""
        active: dict[str, tuple[int, Claim | None]] = {}
        offsets: dict[str, dict[_PartitionId, _Stored]] = {}
        for key, value in records:
            if key.startswith(_GROUP_KEY):
                group = GroupRecord.FromString(value)
                active[group.group] = group.active_ms, _claim_of(group)
            else:
                record = OffsetRecord.FromString(value)
                _store(offsets.setdefault(record.group, {}), record.offset, record.timestamp_ms)
        self._groups = {
            name: _Group(ms, offsets.get(name, {}), claim) for name, (ms, claim) in active.items()
        }
        self._order = ScanOrder(self._groups)
        self._by_topic, self._stale = {}, {}
        for name, restored in self._groups.items():
            for partition in restored.offsets:
                self._by_topic.setdefault(partition.topic_id, {})[name] = None

    def _commit(self, command: CommitOffsets) -> PixyError | None:
        self._settle(command.group)
        before = self._groups.get(command.group)
        claim = None if before is None else before.claim
        if command.node_id and claim not in (None, (command.node_id, command.incarnation)):
            return _elsewhere(command.group, claim)
        offsets = {} if before is None else dict(before.offsets)
        for offset in command.offsets:
            _store(offsets, offset, command.timestamp_ms)
            self._by_topic.setdefault(offset.topic_id, {})[command.group] = None
        active_ms = command.timestamp_ms if before is None else max(before.active_ms, command.timestamp_ms)
        self._groups[command.group] = _Group(active_ms, offsets, claim)
        if before is None:
            self._order.add(command.group)
        return None

    def _claim(self, command: ClaimGroup) -> PixyError | None:
        self._settle(command.group)
        before = self._groups.get(command.group) or _Group(0, {})
        claim = Claim(command.node_id, command.incarnation)
        present = before.claim
        if present is not None and not _succeeds(claim, present, command):
            return _elsewhere(command.group, present)
        if command.group not in self._groups:
            self._order.add(command.group)
        active_ms = max(before.active_ms, command.timestamp_ms)
        self._groups[command.group] = _Group(active_ms, before.offsets, claim)
        return None

    def _release(self, command: ReleaseGroup) -> None:
        self._settle(command.group)
        group = self._groups.get(command.group)
        if group is None or group.claim != (command.node_id, command.incarnation):
            return
        if group.offsets:
            self._groups[command.group] = group._replace(claim=None)
        else:
            self._remove(command.group)

    def _forget_topics(self, command: ForgetTopics) -> Forgotten:
        for topic_id in command.topic_ids:
            groups = self._by_topic.pop(topic_id, None)
            if groups:
                # Not the first time only if a commit followed the topic's deletion.
                self._stale[topic_id] = self._stale.get(topic_id, {}) | groups
        return Forgotten(self)

    def _settle(self, name: str) -> None:
        """Remove the offsets of a group in forgotten topics."""
        gone = [topic_id for topic_id, groups in self._stale.items() if name in groups]
        if gone:
            for topic_id in gone:
                del self._stale[topic_id][name]
                if not self._stale[topic_id]:
                    del self._stale[topic_id]
            self._drop(name, gone)

    def _drop(self, name: str, gone: Sequence[bytes]) -> None:
        """Remove the offsets of a group in some topics, and the group if it has no others."""
        group = self._groups[name]
        kept = {key: stored for key, stored in group.offsets.items() if key.topic_id not in gone}
        if kept or group.claim is not None:
            self._groups[name] = group._replace(offsets=kept)
        else:
            self._remove(name)

    def _remove(self, name: str) -> None:
        del self._groups[name]
        self._order.remove(name)

    def _touch(self, command: TouchGroups) -> None:
        for name in command.groups:
            self._settle(name)
            group = self._groups.get(name)
            if group is not None and group.active_ms < command.timestamp_ms:
                self._groups[name] = group._replace(active_ms=command.timestamp_ms)

    def _expire(self, command: ExpireGroups) -> None:
        for name in command.groups:
            self._settle(name)
            group = self._groups.get(name)
            # A commit may have been applied since the decision to expire the group.
            if group is not None and group.active_ms < command.before_ms:
                self._remove(name)
                for topic_id in {partition.topic_id for partition in group.offsets}:
                    del self._by_topic[topic_id][name]
                    if not self._by_topic[topic_id]:
                        del self._by_topic[topic_id]


def _claim_of(record: GroupRecord) -> Claim | None:
    return Claim(record.claim.node_id, record.claim.incarnation) if record.HasField("claim") else None


def _succeeds(claim: Claim, present: Claim, command: ClaimGroup) -> bool:
    """True if a claim may replace the present one."""
    if claim.node_id == present.node_id:
        return claim.incarnation >= present.incarnation
    return present == (command.takes_from.node_id, command.takes_from.incarnation)


def _elsewhere(name: str, claim: Claim) -> OwnedElsewhere:
    return OwnedElsewhere(f"consumer group {name} is consumed in on node {claim.node_id}")


def _store(offsets: dict[_PartitionId, _Stored], offset: CommittedOffset, timestamp_ms: int) -> None:
    commit = OffsetCommit(offset.offset, offset.metadata)
    offsets[_PartitionId(offset.topic_id, offset.partition)] = _Stored(offset.topic, commit, timestamp_ms)


def _records(
    groups: Mapping[str, _Group], stale: Mapping[bytes, Mapping[str, None]]
) -> Iterable[tuple[bytes, bytes]]:
    for name, group in groups.items():
        gone = {topic_id for topic_id, names in stale.items() if name in names}
        if gone and group.claim is None and all(partition.topic_id in gone for partition in group.offsets):
            continue
        claim = None if group.claim is None else GroupClaim(**group.claim._asdict())
        yield (
            _GROUP_KEY + name.encode(),
            GroupRecord(group=name, active_ms=group.active_ms, claim=claim).SerializeToString(),
        )
        for (topic_id, partition), (topic, commit, timestamp_ms) in group.offsets.items():
            if topic_id in gone:
                continue
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

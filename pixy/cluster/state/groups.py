"""The state machine of raft groups `groups-n`: consumer groups, with their committed offsets and
members.

Pure and deterministic. A consumer group belongs permanently to one state group, chosen by a hash of
its name. Offsets committed in a topic are kept by the topic's id: a later topic of the same name
starts without them.

A commit replaces the value of its group and changes nothing in place, so a snapshot is one copy of
a dictionary, whatever its size; the rest of it can be read on another thread. Of a group's offsets
it replaces those in its topics, and leaves those in others as they are.

Members and owners of partitions are in `group_members`. Instead of these a group may have members
of Kafka's classic protocol: their coordinator decides everything, and what it stores is a value
here (`classic_records`), taken in the term of its leadership alone. They fence commits:

    offsets committed by       are taken
    -------------------------  ---------------------------------------------------------------------
    a client that sets them    unless others have been set, or they were removed, since it was asked
                               for: `OffsetsSet`. Their partitions have another epoch from then on.
                               Not while classic members have the group, who would not hear of it
    a member                   if it owns the partitions, under the epochs that the commit is based
                               on; else `OwnedElsewhere` or `OffsetsSet`
    a classic member           if it is one in the present generation; else `OwnedElsewhere`
    a lone Kafka client, or    while the group has no members; else `OwnedElsewhere`
    nobody

What a coordinator commits for a Kafka client is taken in the term of its leadership alone: a client
that had no answer asks the next coordinator, and goes on.

Topics are forgotten at once, and what groups have of them is removed later, some groups at a time:
every query answers as if it were already removed. The time of the removal changes nothing that
another replica could observe.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from math import inf
from struct import Struct
from sys import intern
from typing import NamedTuple

from pixy.classic_groups import StoredClassicGroup
from pixy.cluster.state.classic_records import classic_bytes, classic_group_of, classic_record
from pixy.cluster.state.commands import decoded
from pixy.cluster.state.group_members import (
    NO_MEMBERS,
    GroupMember,
    MemberId,
    Membership,
    Process,
    member_id_of,
    membership_of,
    membership_record,
    partitions_of,
    target_of,
)
from pixy.cluster.state.name_index import NameIndex
from pixy.cluster.state.newer_command import newer_command
from pixy.cluster.state.scan_order import ScanOrder
from pixy.errors import (
    FailedPrecondition,
    HeldByOtherProtocol,
    OffsetsSet,
    OwnedElsewhere,
    PixyError,
    ResourceExhausted,
    UnknownGroup,
    VoidEntry,
)
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import (
    CommitOffsets,
    CommittedOffset,
    CutOffsets,
    DeleteOffsets,
    ExpelProcess,
    ExpireGroups,
    ForgetTopics,
    GroupRecord,
    GroupsCommand,
    JoinGroup,
    LeaveGroup,
    OffsetRecord,
    ReleasePartitions,
    SetClassicGroup,
    SetTargets,
    TouchGroups,
)
from pixy.records import ForeignCommit, OffsetCommit, crc32c

FIRST_GROUPS_GROUP = 2
"""The raft group of `groups-0`; the others follow."""

_GROUP_KEY = b"group\0"
_OFFSET_KEY = b"offset\0"


def groups_index(consumer_group: str, groups_count: int) -> int:
    """Index of the state group that a consumer group belongs to."""
    checksum: int = crc32c(consumer_group.encode())
    return checksum % groups_count


class _Stored(NamedTuple):
    topic: str
    offset: int
    # UTF-8: with a single wide character, a text takes four bytes for each.
    metadata: bytes
    timestamp_ms: int
    handed_out: int | None
    # As in `CommittedOffset`, 0 if it was not set.
    set_ms: int = 0
    foreign: bool = False


class _Group(NamedTuple):
    """One consumer group: time of its last activity, its committed offsets by topic id and
    partition, its members, and the classic group that it is or was.

    Invariant: no topic is without offsets; it has members of one kind at most.
    """

    active_ms: int
    offsets: Mapping[bytes, Mapping[int, _Stored]]
    membership: Membership = NO_MEMBERS
    classic: StoredClassicGroup | None = None

    @property
    def classic_members(self) -> int:
        """Number of members of the classic protocol."""
        return 0 if self.classic is None else len(self.classic.members)


class Forgotten(NamedTuple):
    """Result of forgetting topics: `sweep` of `state` is due."""

    state: "GroupsState"


class GroupsChanged(NamedTuple):
    """Result of a command: members, owners or epochs of these consumer groups have changed.

    `epoch`: of partitions whose offsets were set, 0 for any other change.
    """

    groups: Sequence[str]
    epoch: int = 0


_SWEPT_PER_STEP = 1000
"""Offsets that a step of the sweep looks at: half a millisecond."""
_SWEPT_GROUP = 5
"""Offsets that a group costs besides those in forgotten topics, and its topics."""
_CLIENTS_NAMED = 5
"""Consumers that the refusal of a deletion names."""
_OFFSET_BYTES = 256
"""Memory of a committed offset, about, without its metadata."""


class GroupsState:
    """Consumer groups: committed offsets by partition, and members.

    Attributes:
        offset_bytes: memory of all committed offsets, about, with their metadata, and of classic
            members.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.offset_bytes = 0
        self._groups: dict[str, _Group] = {}
        # Invariant: it has the keys of `_groups`.
        self._order = ScanOrder()
        # Groups with offsets in a topic, and with owners of its partitions, by topic id.
        self._by_topic: NameIndex[bytes] = NameIndex()
        self._owned: NameIndex[bytes] = NameIndex()
        # Groups with something of a forgotten topic that is not swept yet, by topic id.
        self._stale: NameIndex[bytes] = NameIndex()
        # Groups with classic members.
        self._classic: set[str] = set()
        # Groups by the processes of their members, and by the topics that these subscribe to.
        self._by_process: NameIndex[Process] = NameIndex()
        self._by_subscription: NameIndex[str] = NameIndex()

    def apply(self, payload: bytes, term: int = 0) -> Forgotten | GroupsChanged | PixyError | None:
        """Apply one command; returns its result for the proposer.

        Args:
            term: of the command's entry.

        Raises:
            DataDirectoryError: a newer release wrote it.
        """
        command = decoded(GroupsCommand, payload)
        if isinstance(command, VoidEntry):
            return command
        match command.WhichOneof("command"):
            case "commit_offsets":
                return self._commit(command.commit_offsets, term)
            case "forget_topics":
                return self._forget_topics(command.forget_topics)
            case "touch_groups":
                self._touch(command.touch_groups)
            case "expire_groups":
                self._expire(command.expire_groups)
            case "delete_offsets":
                return self._delete(command.delete_offsets)
            case "cut_offsets":
                self._cut(command.cut_offsets)
            case _:
                return self._apply_to_members(command, term)
        return None

    def _apply_to_members(self, command: GroupsCommand, term: int) -> GroupsChanged | PixyError | None:
        match command.WhichOneof("command"):
            case "set_classic_group":
                return self._set_classic(command.set_classic_group, term)
            case "join_group":
                return self._join(command.join_group)
            case "leave_group":
                return self._leave(command.leave_group)
            case "expel_process":
                return self._expel(command.expel_process, term)
            case "set_targets":
                return self._set_targets(command.set_targets)
            case "release_partitions":
                return self._release(command.release_partitions)
            case _:
                raise newer_command("state group groups-n")

    def committed(self, consumer_group: str, topic_id: bytes) -> Mapping[int, OffsetCommit]:
        """Offsets that a consumer group has committed in a topic, by partition."""
        stored = self._stored(consumer_group, topic_id)
        return {
            partition: (ForeignCommit if each.foreign else OffsetCommit)(each.offset, each.metadata.decode())
            for partition, each in stored.items()
        }

    def handed_out(self, consumer_group: str, topic_id: bytes) -> Mapping[int, int]:
        """First offsets that were never handed out to a consumer group, by partition, where it has
        committed offsets and they are known.
        """
        stored = self._stored(consumer_group, topic_id)
        return {
            partition: each.handed_out for partition, each in stored.items() if each.handed_out is not None
        }

    def positions(self, consumer_group: str) -> Mapping[bytes, tuple[str, Mapping[int, int]]]:
        """Topics in which a consumer group has committed offsets, by topic id: name, and offset by
        partition.
        """
        self._settle(consumer_group)
        return {
            topic_id: (
                next(iter(stored.values())).topic,
                {partition: each.offset for partition, each in stored.items()},
            )
            for topic_id, stored in self._groups.get(consumer_group, _NO_GROUP).offsets.items()
        }

    def set_ms(self, consumer_group: str, topic_id: bytes, partition: int) -> int:
        """Time when a client set an offset, in milliseconds; 0 if it was committed otherwise, -1
        without one.
        """
        return _set_ms(self._stored(consumer_group, topic_id).get(partition))

    def checksum(self, consumer_group: str, topic_id: bytes) -> int:
        """Checksum of the committed offsets in a topic, or with an empty id in all, 0 without any.
        Each commit changes it, whatever the clock of its node shows.
        """
        group = self._groups.get(consumer_group, _NO_GROUP)
        if not topic_id:
            return _checksum(group.offsets)
        return _checksum({topic_id: self._stored(consumer_group, topic_id)})

    def _stored(self, consumer_group: str, topic_id: bytes) -> Mapping[int, _Stored]:
        group = self._groups.get(consumer_group)
        if group is None or consumer_group not in self._by_topic.names(topic_id):
            return {}
        return group.offsets[topic_id]

    def exceeded_bytes(self, consumer_group: str, grown: int, limit: int) -> ResourceExhausted | None:
        """The limit, if offsets of a consumer group that take `grown` bytes more would exceed it; 0
        for none.
        """
        if not 0 < limit < self.offset_bytes + grown or grown <= 0:
            return None
        # As in `_exceeded`.
        for _ in self.sweep():
            if self.offset_bytes + grown <= limit:
                return None
        if self.offset_bytes + grown <= limit:
            return None
        return ResourceExhausted(
            f"committed offsets in the same part of the cluster as those of {consumer_group} take {self.offset_bytes} "
            f"bytes, these would add {grown}, and limits.max_offsets_bytes allows {limit} there"
        ).at_limit("limits.max_offsets_bytes")

    def growth(self, command: CommitOffsets) -> int:
        """Bytes that offsets would take more than those that they replace."""
        group = self._groups.get(command.group, _NO_GROUP)
        grown = 0
        for each in command.offsets:
            before = group.offsets.get(each.topic_id, {}).get(each.partition)
            replaced = 0 if before is None else _OFFSET_BYTES + len(before.metadata)
            grown += _OFFSET_BYTES + len(each.metadata.encode()) - replaced
        return grown

    def membership(self, consumer_group: str) -> Membership:
        """Members of a consumer group, and the owners of its partitions."""
        self._settle(consumer_group)
        group = self._groups.get(consumer_group)
        return NO_MEMBERS if group is None else group.membership

    def has_members(self, consumer_group: str) -> bool:
        """True if a consumer group has members, of whatever kind."""
        group = self._groups.get(consumer_group)
        return group is not None and bool(group.membership.members or group.classic_members)

    def classic(self, consumer_group: str) -> StoredClassicGroup | None:
        """A classic group as its coordinator has stored it, None if the group never was one."""
        return self._groups.get(consumer_group, _NO_GROUP).classic

    def has_offsets(self, consumer_group: str) -> bool:
        """True if a consumer group has committed offsets."""
        self._settle(consumer_group)
        group = self._groups.get(consumer_group)
        return group is not None and bool(group.offsets)

    def why_held(self, consumer_group: str) -> HeldByOtherProtocol | None:
        """The reason why pixy's own consumers cannot join a group, None if they can."""
        group = self._groups.get(consumer_group, _NO_GROUP)
        return _held_by_classic(consumer_group, group) if group.classic_members else None

    def classic_groups(self) -> Collection[str]:
        """Consumer groups with members of the classic protocol."""
        return self._classic

    def processes(self) -> Collection[Process]:
        """Processes that have members."""
        return self._by_process.keys()

    def groups_of(self, process: Process) -> Collection[str]:
        """Consumer groups in which a process has members."""
        return self._by_process.names(process)

    def subscribers(self, topic: str) -> Collection[str]:
        """Consumer groups with members that subscribe to a topic, by its name."""
        return self._by_subscription.names(topic)

    def topic_ids(self) -> Set[bytes]:
        """Ids of the topics with committed offsets, or owners of partitions."""
        return self._by_topic.keys() | self._owned.keys()

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
        """Remove what groups have of forgotten topics, some offsets per step, and one group at
        least.
        """
        swept = 0
        while self._stale:
            topic_id = next(iter(self._stale))
            name = self._stale.pop_name(topic_id)
            offsets = self._groups[name].offsets
            swept += _SWEPT_GROUP + len(offsets) + len(offsets.get(topic_id, ()))
            self._drop(name, [topic_id])
            if swept >= _SWEPT_PER_STEP:
                swept = 0
                yield

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        """The whole state as checkpoint records.

        May be consumed on another thread while commands are applied.
        """
        return _records(self._groups.copy(), self._stale.copy())

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the whole state by a checkpoint's records."""
        groups: dict[str, GroupRecord] = {}
        offsets: dict[str, dict[bytes, dict[int, _Stored]]] = {}
        offset_bytes = 0
        for key, value in records:
            if key.startswith(_GROUP_KEY):
                group = parsed(GroupRecord, value)
                groups[group.group] = group
            else:
                record = parsed(OffsetRecord, value)
                stored = offsets.setdefault(record.group, {}).setdefault(record.offset.topic_id, {})
                offset_bytes += _store(stored, record.offset, record.timestamp_ms)
        self._clear()
        self.offset_bytes = offset_bytes
        for name, group in groups.items():
            membership = membership_of(group.membership) if group.HasField("membership") else NO_MEMBERS
            classic = classic_group_of(group.classic) if group.HasField("classic") else None
            self.offset_bytes += classic_bytes(classic)
            self._put(name, _Group(group.active_ms, offsets.get(name, {}), membership, classic))
            for topic_id in offsets.get(name, ()):
                self._by_topic.add(topic_id, name)

    def let_go(self) -> Iterator[None]:
        """Give up the memory of a state that nobody uses any more, a group per step."""
        while self._groups:
            self._groups.popitem()
            yield

    # --- offsets ----------------------------------------------------------------------------------

    def _commit(self, command: CommitOffsets, term: int) -> GroupsChanged | PixyError | None:
        name = command.group
        self._settle(name)
        before = self._groups.get(name, _NO_GROUP)
        membership = before.membership
        refusal = _refusal_to_set(command, before) if command.set else _refusal(command, before, term)
        if refusal is not None:
            return refusal
        if before is _NO_GROUP and (exceeded := self._exceeded(command.max_groups)) is not None:
            return exceeded
        changed: dict[bytes, dict[int, _Stored]] = {}
        grown = 0
        for offset in command.offsets:
            of_topic = changed.get(offset.topic_id)
            if of_topic is None:
                of_topic = changed[offset.topic_id] = dict(before.offsets.get(offset.topic_id, {}))
            grown += _store(of_topic, offset, command.timestamp_ms, set=command.set)
        if (exceeded := self.exceeded_bytes(name, grown, command.max_offset_bytes)) is not None:
            return exceeded
        self.offset_bytes += grown
        for topic_id in changed:
            self._by_topic.add(topic_id, name)
        if command.set and membership.topics:
            membership = membership.with_offsets_set(_partitions(command.offsets))
        offsets = {**before.offsets, **changed}
        active_ms = max(before.active_ms, command.timestamp_ms)
        self._put(name, _Group(active_ms, offsets, membership, before.classic))
        return None if membership is before.membership else GroupsChanged([name], membership.epoch)

    def _forget_topics(self, command: ForgetTopics) -> Forgotten:
        for topic_id in command.topic_ids:
            # Not the first time only if a commit or a target followed the topic's deletion.
            for name in [*self._by_topic.pop(topic_id), *self._owned.pop(topic_id)]:
                self._stale.add(topic_id, name)
        return Forgotten(self)

    def _settle(self, name: str) -> None:
        """Remove what a group has of forgotten topics."""
        if self._stale:
            gone = [topic_id for topic_id in self._stale if name in self._stale.names(topic_id)]
            if gone:
                for topic_id in gone:
                    self._stale.discard(topic_id, name)
                self._drop(name, gone)

    def _drop(self, name: str, gone: Sequence[bytes]) -> None:
        """Remove what a group has of some topics, and the group if nothing is left."""
        group = self._groups[name]
        kept = dict(group.offsets)
        for topic_id in gone:
            self.offset_bytes -= _bytes_of(kept.pop(topic_id, {}))
        self._put(name, group._replace(offsets=kept, membership=group.membership.forgotten(gone)))

    # --- members ----------------------------------------------------------------------------------

    def _exceeded(self, limit: int) -> ResourceExhausted | None:
        """The limit, if a new group would exceed it; 0 for none."""
        if not 0 < limit <= len(self._groups):
            return None
        # When the sweep of deleted topics gets on is not the same on all replicas; what is left
        # once enough is removed does not change the answer.
        for _ in self.sweep():
            if len(self._groups) < limit:
                return None
        if len(self._groups) < limit:
            return None
        return ResourceExhausted(
            f"there are {len(self._groups)} consumer groups in the same part of the cluster as this one, and "
            f"limits.max_groups allows {limit} there"
        ).at_limit("limits.max_groups")

    def _join(self, command: JoinGroup) -> GroupsChanged | PixyError:
        self._settle(command.group)
        before = self._groups.get(command.group, _NO_GROUP)
        if before is _NO_GROUP and (exceeded := self._exceeded(command.max_groups)) is not None:
            return exceeded
        if before.classic_members:
            return _held_by_classic(command.group, before)
        message = command.member
        # Many groups have these strings.
        topics = tuple([intern(topic) for topic in sorted(set(message.topics))])
        member = GroupMember(intern(message.client_id), topics)
        membership = before.membership.joined(member_id_of(message.id), member)
        self._put(
            command.group,
            before._replace(active_ms=max(before.active_ms, command.timestamp_ms), membership=membership),
        )
        return GroupsChanged([command.group])

    def _leave(self, command: LeaveGroup) -> GroupsChanged:
        return self._change(
            command.group, self.membership(command.group).without([member_id_of(command.member)])
        )

    def _expel(self, command: ExpelProcess, term: int) -> GroupsChanged | PixyError:
        process = Process(command.node_id, command.incarnation)
        if command.term not in (0, term):
            return FailedPrecondition(
                f"members of {process} were to be expelled in term {command.term}, not {term}"
            )
        for name in command.groups:
            membership = self.membership(name)
            gone = [
                member_id
                for member_id in membership.members
                if member_id.process == process and member_id.number <= (command.newest_member or inf)
            ]
            self._change(name, membership.without(gone))
        return GroupsChanged(list(command.groups))

    def _set_targets(self, command: SetTargets) -> GroupsChanged:
        changed = []
        for message in command.targets:
            membership = self.membership(message.group)
            members = {member_id_of(each) for each in message.members}
            if membership.generation == message.generation and members <= membership.members.keys():
                target = target_of(message, membership.members.keys())
                self._change(message.group, membership.with_target(target))
                changed.append(message.group)
        return GroupsChanged(changed)

    def _release(self, command: ReleasePartitions) -> GroupsChanged:
        membership = self.membership(command.group)
        after = membership.released(member_id_of(command.member), partitions_of(command))
        return self._change(command.group, after)

    def _change(self, name: str, membership: Membership) -> GroupsChanged:
        """Replace the members of a group, if there is one."""
        group = self._groups.get(name)
        if group is not None:
            # Without members it begins anew: their ids never come back.
            self._put(name, group._replace(membership=membership if membership.members else NO_MEMBERS))
        return GroupsChanged([name])

    # --- classic members --------------------------------------------------------------------------

    def _set_classic(self, command: SetClassicGroup, term: int) -> PixyError | None:
        name = command.group
        if not name or command.term not in (0, term):
            return FailedPrecondition(f"group {name} was to be stored in term {command.term}, not {term}")
        self._settle(name)
        before = self._groups.get(name, _NO_GROUP)
        if before.membership.members:
            return HeldByOtherProtocol(f"pixy's own consumers are members of consumer group {name}")
        if before is _NO_GROUP and (exceeded := self._exceeded(command.max_groups)) is not None:
            return exceeded
        classic = classic_group_of(command.record)
        grown = classic_bytes(classic) - classic_bytes(before.classic)
        if (exceeded := self.exceeded_bytes(name, grown, command.max_offset_bytes)) is not None:
            return exceeded
        self.offset_bytes += grown
        active_ms = max(before.active_ms, command.timestamp_ms)
        self._put(name, before._replace(active_ms=active_ms, classic=classic))
        return None

    def _end_classic(self, name: str) -> None:
        """Forget that a group was a classic one."""
        group = self._groups[name]
        self.offset_bytes -= classic_bytes(group.classic)
        self._groups[name] = group._replace(classic=None)

    # --- groups -----------------------------------------------------------------------------------

    def _put(self, name: str, group: _Group) -> None:
        """Replace a group; one without offsets and members goes, unless it is a classic one, which
        counts on until it expires.
        """
        before = self._groups.get(name, _NO_GROUP)
        if group.classic_members:
            self._classic.add(name)
        else:
            self._classic.discard(name)
        if group.membership is not before.membership:
            self._index(name, before.membership, group.membership)
        if group.offsets or group.membership.members or group.classic is not None:
            self._groups[name] = group
            if before is _NO_GROUP:
                self._order.add(name)
        elif before is not _NO_GROUP:
            del self._groups[name]
            self._order.remove(name)

    def _index(self, name: str, before: Membership, after: Membership) -> None:
        """The members of a group have changed, or the owners of its partitions."""
        self._owned.replace(name, before.topics, after.topics)
        if after.members is not before.members:
            self._by_process.replace(name, _processes(before), _processes(after))
            self._by_subscription.replace(name, _subscriptions(before), _subscriptions(after))

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
            # There may have been a commit or a member since the decision to expire the group.
            if group is not None and group.active_ms < command.before_ms and not self.has_members(name):
                self._end_classic(name)
                self._remove_offsets(name, group.offsets)

    def beyond(self, topic_id: bytes, partition: int, end_offset: int) -> list[str]:
        """Consumer groups with offsets, or records that were handed out, behind the end of a
        partition.
        """
        names = sorted(self._by_topic.names(topic_id))
        return [name for name in names if _is_beyond(self._stored(name, topic_id).get(partition), end_offset)]

    def _cut(self, command: CutOffsets) -> None:
        for each in command.ends:
            for name in self.beyond(each.topic_id, each.partition, each.end_offset):
                group = self._groups[name]
                stored = dict(group.offsets[each.topic_id])
                before = stored[each.partition]
                stored[each.partition] = before._replace(
                    offset=min(before.offset, each.end_offset),
                    metadata=b"",
                    foreign=False,
                    handed_out=None if before.handed_out is None else min(before.handed_out, each.end_offset),
                )
                self.offset_bytes -= len(before.metadata)
                self._put(name, group._replace(offsets={**group.offsets, each.topic_id: stored}))

    def _delete(self, command: DeleteOffsets) -> PixyError | None:
        name, topic = command.group, command.topic
        where = f" in {topic}" if topic else ""
        self._settle(name)
        group = self._groups.get(name, _NO_GROUP)
        members = group.membership.members.values()
        clients = {each.client_id for each in members if not topic or topic in each.topics}
        if group.classic is not None and not command.partitions:
            # Only their coordinator knows what they subscribe to; it has removed some partitions.
            clients |= {each.client_id for each in group.classic.members}
        if clients:
            return FailedPrecondition(
                f"consumer group {name} has consumers{where}: {', '.join(sorted(clients)[:_CLIENTS_NAMED])}"
            )
        gone = {id: each for id, each in group.offsets.items() if not topic or id == command.topic_id}
        if topic and command.partitions:
            numbers = {*command.partitions}
            gone = {id: _only(stored, numbers) for id, stored in gone.items()}
        if not any(gone.values()) and (topic or group.classic is None):
            return UnknownGroup(f"consumer group {name} has no offsets{where}")
        if command.HasField("seen") and _checksum(gone) != command.seen:
            return FailedPrecondition(
                f"consumer group {name} has other offsets{where} than when their removal was asked for, and keeps them"
            )
        if not topic:
            self._end_classic(name)
        self._remove_offsets(name, gone)
        return None

    def _remove_offsets(self, name: str, gone: Mapping[bytes, Mapping[int, _Stored]]) -> None:
        """Remove a group's offsets in some topics."""
        group = self._groups[name]
        kept = dict(group.offsets)
        for topic_id, offsets in gone.items():
            self.offset_bytes -= _bytes_of(offsets)
            left = {number: each for number, each in kept.pop(topic_id).items() if number not in offsets}
            if left:
                kept[topic_id] = left
            else:
                self._by_topic.discard(topic_id, name)
        self._put(name, group._replace(offsets=kept))


_NO_GROUP = _Group(0, {})
_SEEN = Struct("<Iqq")


def _checksum(offsets: Mapping[bytes, Mapping[int, _Stored]]) -> int:
    """Sum of a checksum of each offset, whatever their order is."""
    return sum(
        crc32c(topic_id + _SEEN.pack(partition, each.offset, each.timestamp_ms) + each.metadata)
        for topic_id, stored in offsets.items()
        for partition, each in stored.items()
    )


def _processes(membership: Membership) -> Collection[Process]:
    return dict.fromkeys(member_id.process for member_id in membership.members)


def _subscriptions(membership: Membership) -> Collection[str]:
    return dict.fromkeys(topic for member in membership.members.values() for topic in member.topics)


def _partitions(offsets: Iterable[CommittedOffset]) -> dict[bytes, list[int]]:
    """Partitions by topic id."""
    found: dict[bytes, list[int]] = {}
    for offset in offsets:
        found.setdefault(offset.topic_id, []).append(offset.partition)
    return found


def _refusal(command: CommitOffsets, before: _Group, term: int) -> PixyError | None:
    """The reason to refuse a commit, None if it is taken."""
    membership, by = before.membership, command.classic
    if by.term not in (0, term):
        return OwnedElsewhere(f"a commit of {command.group} was for term {by.term}, not {term}")
    if by.member_id:
        return _classic_refusal(command, before.classic)
    if not command.node_id:
        if membership.members or before.classic_members:
            return OwnedElsewhere(f"consumer group {command.group} has members: only they commit its offsets")
        return None
    return _member_refusal(command, membership)


def _member_refusal(command: CommitOffsets, membership: Membership) -> PixyError | None:
    """The reason to refuse a commit of members."""
    for offset in command.offsets:
        member = MemberId(command.node_id, command.incarnation, offset.member)
        if not membership.is_based_on(offset.topic_id, offset.partition, member, offset.epoch):
            owner = membership.owner(offset.topic_id, offset.partition)
            what = f"offset of {command.group} in {offset.topic}/{offset.partition}"
            if owner == member:
                return OffsetsSet(f"{what} was set meanwhile")
            if owner is None:
                return OwnedElsewhere(f"{what}: the partition is not owned by this member")
            return OwnedElsewhere(f"{what}: the partition is owned by node {owner.node_id}")
    return None


def _classic_refusal(command: CommitOffsets, classic: StoredClassicGroup | None) -> OwnedElsewhere | None:
    """The reason to refuse a commit of a classic member."""
    by, name = command.classic, command.group
    if classic is None or all(each.member_id != by.member_id for each in classic.members):
        return OwnedElsewhere(f"consumer group {name} has no member {by.member_id}")
    if by.generation != classic.generation:
        return OwnedElsewhere(
            f"consumer group {name} is in generation {classic.generation}, not {by.generation}"
        )
    return None


def _held_by_classic(name: str, group: _Group) -> HeldByOtherProtocol:
    assert group.classic is not None
    clients = sorted({each.client_id for each in group.classic.members})
    return HeldByOtherProtocol(
        f"Kafka clients are members of consumer group {name}: {', '.join(clients[:_CLIENTS_NAMED])}"
    )


def _refusal_to_set(command: CommitOffsets, before: _Group) -> PixyError | None:
    """The reason not to set offsets: they were seen, and have been set or removed since; or classic
    members would go on where they are.
    """
    if before.classic_members:
        return _held_by_classic(command.group, before)
    for offset in command.offsets:
        stored = before.offsets.get(offset.topic_id, {}).get(offset.partition)
        was_set, seen = _set_ms(stored), offset.set_ms
        # A group that has begun since goes on with what is set.
        if offset.HasField("set_ms") and not (seen <= was_set <= max(seen, 0) or _is(stored, offset)):
            how = "removed" if stored is None else "set"
            return OffsetsSet(
                f"offset of {command.group} in {offset.topic}/{offset.partition} was {how} by another call meanwhile; "
                "none of this one is set"
            )
    return None


def _is_beyond(stored: _Stored | None, end_offset: int) -> bool:
    if stored is None:
        return False
    # Acks that a client has set, or an earlier release, may lie anywhere.
    is_unknown = bool(stored.metadata) and not stored.handed_out and not stored.foreign
    return is_unknown or max(stored.offset, stored.handed_out or 0) > end_offset


def _set_ms(stored: _Stored | None) -> int:
    return -1 if stored is None else stored.set_ms


def _is(stored: _Stored | None, offset: CommittedOffset) -> bool:
    """True if an offset is what is stored already, as by the call that this one repeats."""
    value = (offset.offset, offset.metadata.encode())
    return stored is not None and (stored.offset, stored.metadata) == value


def _store(
    offsets: dict[int, _Stored], offset: CommittedOffset, timestamp_ms: int, *, set: bool = False
) -> int:
    """Replace an offset of its topic. What was handed out before it stays known.

    Returns:
        The bytes that it takes more than before.
    """
    before = offsets.get(offset.partition)
    known = offset.handed_out if offset.HasField("handed_out") else None
    if before is None and set:
        known = 0  # a group starts with a commit, so nothing was handed out without one
    elif before is not None and before.handed_out is not None:
        known = max(known or 0, before.handed_out)
    set_ms = offset.set_ms if before is None else before.set_ms
    if set and offset.HasField("set_ms"):
        set_ms = max(timestamp_ms, set_ms + 1)
    metadata = offset.metadata.encode()
    offsets[offset.partition] = _Stored(
        intern(offset.topic), offset.offset, metadata, timestamp_ms, known, set_ms, offset.foreign
    )
    return len(metadata) + _OFFSET_BYTES if before is None else len(metadata) - len(before.metadata)


def _only(offsets: Mapping[int, _Stored], numbers: Set[int]) -> dict[int, _Stored]:
    """Offsets of some partitions."""
    return {number: each for number, each in offsets.items() if number in numbers}


def _bytes_of(offsets: Mapping[int, _Stored]) -> int:
    return sum(_OFFSET_BYTES + len(stored.metadata) for stored in offsets.values())


def _records(groups: Mapping[str, _Group], stale: NameIndex[bytes]) -> Iterable[tuple[bytes, bytes]]:
    for name, group in groups.items():
        gone = {topic_id for topic_id in stale if name in stale.names(topic_id)}
        membership = membership_record(group.membership, gone)
        if gone and membership is None and group.classic is None and gone.issuperset(group.offsets):
            continue
        record = GroupRecord(group=name, active_ms=group.active_ms, membership=membership)
        if group.classic is not None:
            record.classic.CopyFrom(classic_record(group.classic))
        yield _GROUP_KEY + name.encode(), record.SerializeToString()
        for topic_id, offsets in group.offsets.items():
            if topic_id not in gone:
                yield from _offset_records(name, topic_id, offsets)


def _offset_records(
    name: str, topic_id: bytes, offsets: Mapping[int, _Stored]
) -> Iterator[tuple[bytes, bytes]]:
    for partition, stored in offsets.items():
        committed = CommittedOffset(
            topic=stored.topic,
            topic_id=topic_id,
            partition=partition,
            offset=stored.offset,
            metadata=stored.metadata.decode(),
            handed_out=stored.handed_out,
            set_ms=stored.set_ms or None,
            foreign=stored.foreign,
        )
        record = OffsetRecord(group=name, offset=committed, timestamp_ms=stored.timestamp_ms)
        key = b"\0".join((_OFFSET_KEY[:-1], name.encode(), topic_id.hex().encode(), b"%d" % partition))
        yield key, record.SerializeToString()

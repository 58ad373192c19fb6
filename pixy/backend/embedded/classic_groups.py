"""Groups of Kafka clients on this node: `pixy.cluster` coordinates their members, this module keeps
their offsets, which are those of pixy's own consumer groups, and tells what groups there are.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from pixy.backend.classic import GroupCommit, GroupDescription, GroupListing
from pixy.backend.embedded.partition_router import CONFIRM_S
from pixy.classic_groups import (
    ClassicGroup,
    GroupCode,
    GroupJoin,
    GroupPhase,
    GroupSync,
    Joined,
    LeavingMember,
    StoredClassicGroup,
    StoredClassicMember,
    Synced,
)
from pixy.cluster import GroupsState, MemberId, Membership, Node, NotServed
from pixy.errors import (
    FailedPrecondition,
    MessageTooLarge,
    OwnedElsewhere,
    PixyError,
    ResourceExhausted,
    UnknownGroup,
)
from pixy.kafka_protocol.consumer import decode_subscription, encode_assignment, encode_subscription
from pixy.proto.state_pb2 import GroupsCommand
from pixy.raft import NONE
from pixy.records import OffsetCommit, TopicPartition

CONSUMER = "consumer"
"""The protocol type of consumers, whose bytes name topics and partitions."""
_OWN_PROTOCOL = "pixy"
_METADATA_BYTES_MAX = 4096
_GROUPS_PER_ITERATION = 200

Codes = dict[TopicPartition, GroupCode]


class NodeClassicGroups:
    """`ClassicGroups` of one node.

    Args:
        node: this node.
        check_running: raises `PixyError` unless the backend answers.
    """

    def __init__(self, node: Node, check_running: Callable[[], None]) -> None:
        self._node = node
        self._check_running = check_running

    # --- members ----------------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """As `ClassicGroups`."""
        if not self._why_unserved():
            self._node.classic_groups.begin_drain()

    def coordinator_of(self, group: str) -> int | None:
        """As `ClassicGroups`."""
        if self._why_unserved():
            return None
        replica = self._node.state_groups.group_of(group)
        if replica.group.decides:
            return self._node.node_id
        return None if replica.group.leader == NONE else replica.group.leader

    async def join(self, group: str, join: GroupJoin) -> Joined:
        """As `ClassicGroups`."""
        code = self._why_unserved()
        return Joined(code, join.member_id) if code else await self._node.classic_groups.join(group, join)

    async def sync(self, group: str, sync: GroupSync) -> Synced:
        """As `ClassicGroups`."""
        code = self._why_unserved()
        return Synced(code) if code else await self._node.classic_groups.sync(group, sync)

    async def heartbeat(
        self, group: str, member_id: str, instance_id: str | None, generation: int
    ) -> GroupCode:
        """As `ClassicGroups`."""
        code = self._why_unserved()
        if code:
            return code
        return await self._node.classic_groups.heartbeat(group, member_id, instance_id, generation)

    async def leave(
        self, group: str, leaving: Sequence[LeavingMember]
    ) -> tuple[GroupCode, Sequence[GroupCode]]:
        """As `ClassicGroups`."""
        code = self._why_unserved()
        if code:
            return code, [code] * len(leaving)
        return await self._node.classic_groups.leave(group, leaving)

    # --- offsets ----------------------------------------------------------------------------------

    async def commit(self, group: str, commit: GroupCommit) -> Mapping[TopicPartition, GroupCode]:
        """As `ClassicGroups`."""
        try:
            await self._confirm_unknown(commit.offsets)
            of = await self._group(group)
        except NotServed as refusal:
            return dict.fromkeys(commit.offsets, refusal.code)
        is_own = bool(self._state(group).membership(group).members)
        code = GroupCode.UNKNOWN_MEMBER_ID if is_own else GroupCode.NONE
        code = code or of.why_no_commit(
            commit.member_id,
            commit.instance_id,
            commit.generation,
            self._node.classic_groups.now_ms(),
            named=commit.names_unknown,
        )
        if code:
            return dict.fromkeys(commit.offsets, code)
        codes = {
            partition: self._why_not_taken(partition, *each) for partition, each in commit.offsets.items()
        }
        taken = [partition for partition, each in codes.items() if not each]
        if taken:
            codes |= dict.fromkeys(taken, await self._store(group, commit, taken))
        return codes

    def _why_not_taken(self, partition: TopicPartition, offset: int, metadata: str) -> GroupCode:
        if not self._has(partition):
            return GroupCode.UNKNOWN_TOPIC_OR_PARTITION
        if offset < 0:
            return GroupCode.OFFSET_OUT_OF_RANGE
        if len(metadata.encode()) > _METADATA_BYTES_MAX:
            return GroupCode.OFFSET_METADATA_TOO_LARGE
        return GroupCode.NONE

    async def _store(self, group: str, commit: GroupCommit, taken: Sequence[TopicPartition]) -> GroupCode:
        envelope = GroupsCommand()
        command = envelope.commit_offsets
        command.group, command.timestamp_ms = group, self._node.now_ms()
        command.classic.term = self._node.classic_groups.term_of(group)
        if commit.generation >= 0:
            command.classic.member_id, command.classic.generation = commit.member_id, commit.generation
        for partition in taken:
            offset, metadata = commit.offsets[partition]
            command.offsets.add(
                topic=partition.topic,
                topic_id=self._node.metadata.topics[partition.topic].topic_id,
                partition=partition.partition,
                offset=offset,
                metadata=metadata,
                foreign=True,
                # What other clients had is below it, and pixy has handed out nothing above.
                handed_out=offset,
            )
        commands = self._node.commands
        commands.limits.limit_group(command)
        try:
            commands.limits.limit_offsets(command, self._state(group))
            await commands.change_group(group, envelope.SerializeToString())
        except OwnedElsewhere:
            # It was taken for one that may commit: others coordinate by now, or have come.
            return GroupCode.NOT_COORDINATOR
        except ResourceExhausted:
            return GroupCode.THROTTLING_QUOTA_EXCEEDED
        except MessageTooLarge:
            return GroupCode.UNKNOWN_SERVER_ERROR
        except PixyError:
            return GroupCode.COORDINATOR_NOT_AVAILABLE
        return GroupCode.NONE

    async def committed(
        self, group: str, partitions: Mapping[str, Collection[int]] | None
    ) -> tuple[GroupCode, Mapping[TopicPartition, OffsetCommit]]:
        """As `ClassicGroups`."""
        try:
            await self._group(group)
            # Also what was committed by another leader that this one does not know of.
            await self._confirm(group)
        except NotServed as refusal:
            return refusal.code, {}
        state = self._state(group)
        found: dict[TopicPartition, OffsetCommit] = {}
        topics = self._node.metadata.topics
        names = [name for name, _ in state.positions(group).values()] if partitions is None else partitions
        for name in names:
            topic = topics.get(name)
            stored = {} if topic is None else state.committed(group, topic.topic_id)
            wanted = stored if partitions is None else partitions[name]
            found |= {TopicPartition(name, each): stored[each] for each in wanted if each in stored}
        return GroupCode.NONE, found

    async def delete_offsets(
        self, group: str, partitions: Mapping[str, Collection[int]]
    ) -> tuple[GroupCode, Mapping[TopicPartition, GroupCode]]:
        """As `ClassicGroups`."""
        try:
            await self._confirm(group)
            of = await self._group(group)
        except NotServed as refusal:
            return refusal.code, {}
        state, codes = self._state(group), Codes()
        own = state.membership(group)
        if of.phase is GroupPhase.EMPTY and state.classic(group) is None and not _is_there(state, group):
            return GroupCode.GROUP_ID_NOT_FOUND, {}
        if of.is_held and of.protocol_type != CONSUMER:
            return GroupCode.NON_EMPTY_GROUP, {}
        subscribed = _subscribed(of, own)
        for topic, numbers in partitions.items():
            each = [TopicPartition(topic, number) for number in numbers]
            code = (
                GroupCode.GROUP_SUBSCRIBED_TO_TOPIC
                if topic in subscribed
                else await self._delete_of_topic(group, topic, numbers)
            )
            codes |= {key: code if self._has(key) else GroupCode.UNKNOWN_TOPIC_OR_PARTITION for key in each}
        return GroupCode.NONE, codes

    async def _delete_of_topic(self, group: str, topic: str, numbers: Collection[int]) -> GroupCode:
        known = self._node.metadata.topics.get(topic)
        there = [number for number in numbers if self._has(TopicPartition(topic, number))]
        if known is None or not there:
            return GroupCode.NONE
        try:
            await self._node.commands.delete_partition_offsets(group, topic, known.topic_id, there)
        except UnknownGroup:
            return GroupCode.NONE  # as Kafka, it has none
        except FailedPrecondition:
            return GroupCode.GROUP_SUBSCRIBED_TO_TOPIC
        except PixyError:
            return GroupCode.COORDINATOR_NOT_AVAILABLE
        return GroupCode.NONE

    # --- groups -----------------------------------------------------------------------------------

    async def list_groups(self) -> Sequence[GroupListing]:
        """As `ClassicGroups`."""
        found: list[GroupListing] = []
        if self._why_unserved():
            return found
        for replica in self._node.state_groups.groups:
            if not replica.group.decides or not isinstance(replica.machine, GroupsState):
                continue
            state, held = replica.machine, dict.fromkeys(self._node.classic_groups.names_of(replica))
            for names in state.scan(_GROUPS_PER_ITERATION):
                for name in names:
                    held.pop(name, None)
                    found.append(self._listed(name, state))
                await asyncio.sleep(0)
            found += [self._listed(name, state) for name in held]
        return found

    def _listed(self, name: str, state: GroupsState) -> GroupListing:
        if state.membership(name).members:
            return GroupListing(name, CONSUMER, GroupPhase.STABLE.value, is_classic=False)
        of = self._node.classic_groups.known(name)
        stored = state.classic(name)
        if of is not None:
            return GroupListing(name, of.protocol_type, of.phase.value, is_classic=True)
        protocol_type = "" if stored is None else stored.protocol_type
        return GroupListing(name, protocol_type, GroupPhase.EMPTY.value, is_classic=True)

    async def describe(self, group: str) -> GroupDescription:
        """As `ClassicGroups`."""
        try:
            of = await self._group(group)
        except NotServed as refusal:
            return GroupDescription(group, refusal.code)
        state = self._state(group)
        own = state.membership(group)
        if own.members:
            members = [self._own_member(own, member_id) for member_id in own.members]
            return GroupDescription(
                group, GroupCode.NONE, GroupPhase.STABLE.value, CONSUMER, _OWN_PROTOCOL, members
            )
        if of.phase is GroupPhase.EMPTY and not of.is_held and not _is_there(state, group):
            return GroupDescription(group, phase=GroupPhase.DEAD.value, is_known=False)
        stored = of.stored()
        if of.phase is not GroupPhase.STABLE:
            # What they are is not decided.
            stored = stored._replace(
                protocol="", members=[each._replace(metadata=b"", assignment=b"") for each in stored.members]
            )
        return _described(group, of.phase, stored)

    def _own_member(self, of: Membership, member_id: MemberId) -> StoredClassicMember:
        """A member of pixy's own, in the terms of Kafka's consumers."""
        member, topics = of.members[member_id], self._node.metadata.topics
        owned: dict[str, list[int]] = {}
        for name in member.topics:
            topic = topics.get(name)
            owners = (
                () if topic is None or topic.topic_id not in of.topics else of.topics[topic.topic_id].owners
            )
            numbers = [number for number, owner in enumerate(owners) if owner == member_id]
            if numbers:
                owned[name] = numbers
        node = self._node.metadata.nodes.get(member_id.node_id)
        return StoredClassicMember(
            member_id=f"{member.client_id}-{member_id.node_id}-{member_id.incarnation}-{member_id.number}",
            instance_id=None,
            client_id=member.client_id,
            client_host=node.grpc_address if node is not None else "",
            session_timeout_ms=0,
            rebalance_timeout_ms=0,
            metadata=encode_subscription(member.topics),
            assignment=encode_assignment(owned),
        )

    async def delete(self, group: str) -> GroupCode:
        """As `ClassicGroups`."""
        try:
            await self._confirm(group)
            of = await self._group(group)
        except NotServed as refusal:
            return refusal.code
        state = self._state(group)
        # That the last member has left may be on its way, in front of this.
        if of.is_held or state.membership(group).members:
            return GroupCode.NON_EMPTY_GROUP
        if not _is_there(state, group):
            return GroupCode.GROUP_ID_NOT_FOUND
        try:
            await self._node.commands.delete_offsets(group, "", b"", state.checksum(group, b""))
        except PixyError as error:
            return _why_not_deleted(error)
        self._node.classic_groups.deleted(group)
        return GroupCode.NONE

    # --- parts ------------------------------------------------------------------------------------

    def _why_unserved(self) -> GroupCode:
        try:
            self._check_running()
        except PixyError:
            return GroupCode.COORDINATOR_NOT_AVAILABLE
        return GroupCode.NONE

    async def _group(self, group: str) -> ClassicGroup:
        """The group, if this node coordinates it; else `NotServed`."""
        code = self._why_unserved()
        if code:
            raise NotServed(code)
        return await self._node.classic_groups.group(group)

    async def _confirm(self, group: str) -> None:
        """Wait until the offsets of a group, and metadata, are current here."""
        code = self._why_unserved()
        if code:
            raise NotServed(code)
        if self._node.is_alone:
            return
        groups = self._node.state_groups
        try:
            await self._node.confirm([groups.group_of(group), groups.metadata_replica], CONFIRM_S)
        except PixyError:
            raise NotServed(GroupCode.NOT_COORDINATOR) from None

    async def _confirm_unknown(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until metadata is current here, if it lacks one of these partitions."""
        if self._why_unserved() or self._node.is_alone or all(map(self._has, partitions)):
            return
        try:
            await self._node.confirm_metadata(CONFIRM_S)
        except PixyError:
            raise NotServed(GroupCode.COORDINATOR_NOT_AVAILABLE) from None

    def _has(self, partition: TopicPartition) -> bool:
        topic = self._node.metadata.topics.get(partition.topic)
        return topic is not None and 0 <= partition.partition < len(topic.raft_groups)

    def _state(self, group: str) -> GroupsState:
        return self._node.state_groups.offsets_of(group)


def _is_there(state: GroupsState, group: str) -> bool:
    return state.has_offsets(group) or state.has_members(group) or state.classic(group) is not None


def _why_not_deleted(error: PixyError) -> GroupCode:
    if isinstance(error, UnknownGroup):
        return GroupCode.GROUP_ID_NOT_FOUND
    is_held = isinstance(error, FailedPrecondition)
    return GroupCode.NON_EMPTY_GROUP if is_held else GroupCode.COORDINATOR_NOT_AVAILABLE


def _subscribed(of: ClassicGroup, own: Membership) -> set[str]:
    """Topics that members subscribe to."""
    topics = {topic for member in own.members.values() for topic in member.topics}
    for member in of.members:
        for protocol in member.protocols:
            topics |= decode_subscription(protocol.metadata)
    return topics


def _described(group: str, phase: GroupPhase, stored: StoredClassicGroup) -> GroupDescription:
    return GroupDescription(
        group, GroupCode.NONE, phase.value, stored.protocol_type, stored.protocol, stored.members
    )

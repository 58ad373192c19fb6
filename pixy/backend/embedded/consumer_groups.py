"""Consumer groups as this node knows them: commits, committed offsets, members and owners.

Every node has a replica of every state group, so all of it is answered from applied state: after a
linearizable read where the answer must include what was answered before, at any node.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from pixy.aio.steps import in_steps
from pixy.backend.embedded.local_members import LocalMembers
from pixy.backend.embedded.partition_router import CONFIRM_S
from pixy.backend.protocol import Owner, VisitPosition
from pixy.classic_groups import StoredClassicGroup
from pixy.cluster import (
    GroupsChanged,
    GroupsState,
    MemberId,
    Membership,
    Node,
    StateReplica,
    TopicOwners,
    why_ended,
)
from pixy.errors import OwnedElsewhere, OwnerUndecided
from pixy.kafka_protocol.consumer import decode_assignment, decode_subscription
from pixy.proto.state_pb2 import CommitOffsets, GroupsCommand
from pixy.records import OffsetCommit, TopicPartition

_GROUPS_PER_ITERATION = 200
_FEW = 16
"""Owners of a topic that are gone through in less time than it takes to find them remembered, and
whose number costs a group nothing.
"""
_NO_OTHERS: Mapping[str, tuple[TopicOwners, list[int]]] = {}


class ConsumerGroups:
    """Consumer groups of one node.

    Args:
        node: this node.
        members: those in this process.
    """

    def __init__(self, node: Node, members: LocalMembers) -> None:
        self._node = node
        self._members = members
        # Answers of `other_owners` for more than a few partitions, with the owners that they are
        # of, by group and topic. Invariant: of groups with members here.
        self._others: dict[str, dict[str, tuple[TopicOwners, list[int]]]] = {}
        members.group_left = self._forget_others

    # --- offsets ----------------------------------------------------------------------------------

    async def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        *,
        set: bool,
        begins: bool,
        handed_out: Mapping[TopicPartition, int],
    ) -> None:
        """As `Backend.commit_offsets`."""
        envelope = self._commit_command(group, offsets, handed_out)
        command = envelope.commit_offsets
        self._node.commands.limits.limit_group(command)
        if set or begins:
            self._node.commands.limits.limit_offsets(command, self._state(group))
        if set:
            command.set = True
            self._node.commands.name_seen(command)
            # Megabytes of metadata are filled in and proposed in two steps.
            await asyncio.sleep(0)
            await self._set(envelope)
            return
        if self._members.of(group):
            self._fence(command)
        try:
            await self._commit(envelope)
        except OwnedElsewhere as error:
            raise self._with_address(command, error) from None

    def _commit_command(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        handed_out: Mapping[TopicPartition, int],
    ) -> GroupsCommand:
        topics = self._node.metadata.topics
        envelope = GroupsCommand()
        # Filled in place: a constructor would copy it.
        command = envelope.commit_offsets
        command.group, command.timestamp_ms = group, self._node.now_ms()
        for key, (offset, metadata) in offsets.items():
            command.offsets.add(
                topic=key.topic,
                topic_id=topics[key.topic].topic_id,
                partition=key.partition,
                offset=offset,
                metadata=metadata,
                handed_out=handed_out.get(key),
            )
        return envelope

    async def _commit(self, envelope: GroupsCommand) -> object:
        group = envelope.commit_offsets.group
        return await self._node.commands.change_group(group, envelope.SerializeToString())

    def _fence(self, command: CommitOffsets) -> None:
        """Have a commit refused unless members here own the partitions, under the epochs that they
        were told.
        """
        command.node_id, command.incarnation = self._node.node_id, self._node.incarnation
        members = self._members.of(command.group)
        for offset in command.offsets:
            for member in members:
                epoch = member.epoch_of(offset.topic_id, offset.partition)
                if epoch is not None and member.member_id is not None:
                    offset.member, offset.epoch = member.member_id.number, epoch

    async def _set(self, envelope: GroupsCommand) -> None:
        """Commit offsets that a client sets: the members here go on with them."""
        command = envelope.commit_offsets
        members = list(self._members.of(command.group))
        partitions = [(offset.topic_id, offset.partition) for offset in command.offsets]
        epoch = None
        for member in members:
            member.begin_set(partitions)
        try:
            result = await self._commit(envelope)
            epoch = result.epoch if isinstance(result, GroupsChanged) else None
        finally:
            for member in members:
                member.end_set(partitions, epoch)

    def _with_address(self, command: CommitOffsets, error: OwnedElsewhere) -> OwnedElsewhere:
        """The refusal of a commit, with the address of the node that owns a partition."""
        membership = self._membership(command.group)
        for offset in command.offsets:
            owner = membership.owner(offset.topic_id, offset.partition)
            if owner is not None and owner.node_id != self._node.node_id:
                where = f"{offset.topic}/{offset.partition}"
                return OwnedElsewhere(f"{where} is consumed by {command.group} at {self._name(owner)}")
        return error

    def _name(self, member_id: MemberId) -> str:
        node = self._node.metadata.nodes.get(member_id.node_id)
        address = f" at {node.grpc_address}" if node is not None and node.grpc_address else ""
        return f"node {member_id.node_id}{address}"

    async def committed(self, group: str, topic: str) -> Mapping[int, OffsetCommit]:
        """As `Backend.committed_offsets`."""
        # The topic may have been deleted at another node, and created again.
        await self._confirm(self._node.state_groups.group_of(group), self._metadata)
        known = self._node.metadata.topics.get(topic)
        return {} if known is None else self._state(group).committed(group, known.topic_id)

    async def delete(self, group: str, topic: str) -> None:
        """As `Backend.delete_group`, with a topic that exists."""
        topic_id = self._node.metadata.topics[topic].topic_id if topic else b""
        await self._confirm(self._node.state_groups.group_of(group))
        seen = self._state(group).checksum(group, topic_id)
        await self._node.commands.delete_offsets(group, topic, topic_id, seen)

    def handed_out(self, group: str, topic: str) -> Mapping[int, int]:
        """As `Backend.handed_out`."""
        known = self._node.metadata.topics.get(topic)
        return {} if known is None else self._state(group).handed_out(group, known.topic_id)

    async def _confirm(self, *replicas: StateReplica) -> None:
        if not self._node.is_alone:
            await self._node.confirm(replicas, CONFIRM_S)

    @property
    def _metadata(self) -> StateReplica:
        return self._node.state_groups.metadata_replica

    def _state(self, group: str) -> GroupsState:
        return self._node.state_groups.offsets_of(group)

    def _membership(self, group: str) -> Membership:
        return self._state(group).membership(group)

    # --- questions --------------------------------------------------------------------------------

    async def list_groups(self) -> Collection[str]:
        """As `Backend.list_groups`."""
        names: set[str] = set()
        await self._confirm(*self._node.state_groups.groups)
        for state in self._node.state_groups.groups_states():
            for some in state.scan(_GROUPS_PER_ITERATION):
                names.update([name for name in some if state.has_offsets(name) or self._exists(state, name)])
                await asyncio.sleep(0)
        return names

    async def visit_positions(self, visit: VisitPosition) -> None:
        """As `Backend.visit_positions`."""
        topics = self._node.metadata.topics
        for state in self._node.state_groups.groups_states():
            async for group in in_steps(chain.from_iterable(state.scan(_GROUPS_PER_ITERATION))):
                for topic_id, (topic, offsets) in state.positions(group).items():
                    known = topics.get(topic)
                    if known is not None and known.topic_id == topic_id:
                        visit(group, topic, offsets)

    async def exists(self, group: str) -> bool:
        """As `Backend.consumer_group_exists`."""
        await self._confirm(self._node.state_groups.group_of(group))
        return self._exists(self._state(group), group)

    def _exists(self, state: GroupsState, group: str) -> bool:
        return group in state.classic_groups() or bool(self._present(state, group))

    async def consumers(self, topic: str) -> Mapping[str, Mapping[str, Sequence[int]]]:
        """As `Backend.list_consumers`."""
        await self._confirm(*self._node.state_groups.groups, self._metadata)
        known = self._node.metadata.topics.get(topic)
        topic_id = b"" if known is None else known.topic_id
        found: dict[str, dict[str, Sequence[int]]] = {}
        for state in self._node.state_groups.groups_states():
            async for group in in_steps(list(state.subscribers(topic))):
                clients = self._clients(state, group, topic, topic_id)
                if clients:
                    found[group] = clients
            async for group in in_steps(list(state.classic_groups())):
                clients = _classic_clients(state.classic(group), topic)
                if clients:
                    found[group] = clients
        return found

    def _clients(
        self, state: GroupsState, group: str, topic: str, topic_id: bytes
    ) -> dict[str, Sequence[int]]:
        """Partitions of a topic by client id, of the members that subscribe to it."""
        membership = state.membership(group)
        of = membership.topics.get(topic_id)
        numbers: dict[MemberId | None, list[int]] = {}
        for number, owner in enumerate(of.owners if of else ()):
            numbers.setdefault(owner, []).append(number)
        found: dict[str, list[int]] = {}
        for member_id in self._present(state, group):
            member = membership.members[member_id]
            if topic in member.topics:
                found.setdefault(member.client_id, []).extend(numbers.get(member_id, ()))
        return {client_id: sorted(owned) for client_id, owned in found.items()}

    def _present(self, state: GroupsState, group: str) -> Sequence[MemberId]:
        """The members of a group, without those of processes that have ended."""
        own, nodes = self._members.process, self._node.metadata.nodes
        members, starts = state.membership(group).members, self._node.starts_of_others()
        return [member_id for member_id in members if not why_ended(member_id.process, own, nodes, starts)]

    async def partition_owner(self, group: str, partition: TopicPartition) -> Owner | None:
        """As `Backend.partition_owner`."""
        owner = self._owner(group, partition)
        if owner is None:
            await self._confirm(self._node.state_groups.group_of(group))
            owner = self._owner(group, partition)
        membership = self._membership(group)
        if owner is None:
            if not membership.settled:
                raise OwnerUndecided(f"the owners of {group} are being decided; try again")
            return None
        if owner.process == self._members.process and all(
            member.member_id != owner for member in self._members.of(group)
        ):
            raise OwnerUndecided(f"this node has left {group}, and does not know the owner; try another node")
        return Owner(membership.members[owner].client_id, owner.node_id)

    def _owner(self, group: str, partition: TopicPartition) -> MemberId | None:
        topic = self._node.metadata.topics.get(partition.topic)
        return None if topic is None else self._membership(group).owner(topic.topic_id, partition.partition)

    def other_owners(self, group: str, topic: str) -> Sequence[int]:
        """As `Backend.other_owners`."""
        known = self._node.metadata.topics.get(topic)
        membership = self._membership(group)
        of = None if known is None else membership.topics.get(known.topic_id)
        if of is None:
            return ()
        if len(of.owners) <= _FEW:
            return self._nodes_of(of)
        answered = self._others.get(group, _NO_OTHERS).get(topic)
        if answered is not None and answered[0] is of:
            return answered[1]
        others = self._nodes_of(of)
        if self._members.of(group):
            present = {id(each) for each in membership.topics.values()}
            kept = {
                name: each
                for name, each in self._others.get(group, _NO_OTHERS).items()
                if id(each[0]) in present
            }
            self._others[group] = {**kept, topic: (of, others)}
        return others

    def _nodes_of(self, of: TopicOwners) -> list[int]:
        nodes = {owner.node_id for owner in of.owners if owner is not None}
        return sorted(nodes - {self._node.node_id})

    def _forget_others(self, group: str) -> None:
        self._others.pop(group, None)


def _classic_clients(of: StoredClassicGroup | None, topic: str) -> dict[str, Sequence[int]]:
    """Partitions of a topic by client id, of the members of a classic group that subscribe to
    it.
    """
    found: dict[str, list[int]] = {}
    for member in of.members if of is not None else ():
        assigned = decode_assignment(member.assignment).get(topic, ())
        if assigned or topic in decode_subscription(member.metadata):
            found.setdefault(member.client_id, []).extend(assigned)
    return {client_id: sorted(owned) for client_id, owned in found.items()}

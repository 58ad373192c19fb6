"""Consumer groups: members on this node, claims among nodes, committed offsets.

Committed offsets are read after a linearizable read of the group's state group, so a node that
takes a group over continues where the other one has stopped. Commits carry the claim of this
process as their fence.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from pixy.backend.group_claims import GroupClaims
from pixy.backend.partition_finder import CONFIRM_S
from pixy.backend.protocol import Assignment, Lease, OffsetCommit
from pixy.cluster import Coordinator, GroupsState, Member, Node, PeerMethod
from pixy.errors import OwnedElsewhere, PixyError
from pixy.proto.node_calls_pb2 import ConsumersRequest, ConsumersResponse
from pixy.proto.state_pb2 import CommitOffsets, CommittedOffset, GroupsCommand
from pixy.records import TopicPartition

__all__ = ["ClaimedMembership", "ConsumerGroups"]

_GROUPS_PER_ITERATION = 200
_ASK_S = 2.0


class ConsumerGroups:
    """Consumer groups of one node.

    Args:
        node: this node.
        coordinator: the members here.
        claims: of this node.
    """

    def __init__(self, node: Node, coordinator: Coordinator, claims: GroupClaims) -> None:
        self._node = node
        self._coordinator = coordinator
        self._claims = claims

    async def join(
        self, group: str, client_id: str, topics: Sequence[str], on_assignment: Assignment
    ) -> "ClaimedMembership":
        """As `Backend.join_consumer_group`."""
        if self._claims.are_used:
            await self._confirm_claim(group)
            await self._claims.acquire(group)
        member = Member(group, client_id, topics, on_assignment)
        self._coordinator.join(member)
        return ClaimedMembership(self._coordinator, self._claims, member)

    # --- offsets ----------------------------------------------------------------------------------

    async def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetCommit]) -> None:
        """As `Backend.commit_offsets`."""
        topics = self._node.metadata.topics
        command = CommitOffsets(
            group=group,
            offsets=[
                CommittedOffset(
                    topic=topic,
                    topic_id=topics[topic].topic_id,
                    partition=partition,
                    offset=offset,
                    metadata=metadata,
                )
                for (topic, partition), (offset, metadata) in offsets.items()
            ],
            timestamp_ms=self._node.now_ms(),
        )
        if self._claims.are_used:
            await self._fence(group, command)
        try:
            await self._node.commands.change_group(
                group, GroupsCommand(commit_offsets=command).SerializeToString()
            )
        except OwnedElsewhere as error:
            self._claims.look(group)
            claim = self._claims.claimed_by(group)
            raise error if claim is None else self._claims.elsewhere(group, claim) from None

    async def _fence(self, group: str, command: CommitOffsets) -> None:
        """Have the commit refused if another process has claimed the group; a claim of one that is
        gone is no obstacle.
        """
        present = self._state(group).claimed_by(group)
        own = self._claims.own
        if present not in (None, own):
            await self._confirm_claim(group)
            self._claims.check(group)
            if self._state(group).claimed_by(group) not in (None, own):
                return
        command.node_id, command.incarnation = own

    async def committed(self, group: str, topic: str) -> Mapping[int, OffsetCommit]:
        """As `Backend.committed_offsets`.

        Raises:
            OwnedElsewhere: the group has members here, and another node has claimed it.
        """
        await self._confirm(group)
        if self._coordinator.exists(group):
            await self._claims.acquire(group)
        known = self._node.metadata.topics.get(topic)
        if known is None and not self._node.is_alone:
            await self._node.confirm_metadata(CONFIRM_S)
            known = self._node.metadata.topics.get(topic)
        return {} if known is None else self._state(group).committed(group, known.topic_id)

    async def _confirm(self, group: str) -> None:
        """Wait until the group's claim and offsets are those of everything that was answered."""
        if not self._node.is_alone:
            await self._node.confirm([self._node.state_groups.group_of(group)], CONFIRM_S)

    async def _confirm_claim(self, group: str) -> None:
        """The same, for the nodes too: a claim of one that has left is void."""
        if not self._node.is_alone:
            groups = self._node.state_groups
            await self._node.confirm([groups.group_of(group), groups.metadata_replica], CONFIRM_S)

    def _state(self, group: str) -> GroupsState:
        return self._node.state_groups.offsets_of(group)

    # --- questions --------------------------------------------------------------------------------

    async def list_groups(self) -> Collection[str]:
        """As `Backend.list_groups`."""
        names = set(self._coordinator.groups())
        if not self._node.is_alone:
            await self._node.confirm(self._node.state_groups.groups, CONFIRM_S)
        for state in self._node.state_groups.groups_states():
            for some in state.scan(_GROUPS_PER_ITERATION):
                names.update([name for name in some if self._is_listed(state, name)])
                await asyncio.sleep(0)
        return names

    def _is_listed(self, state: GroupsState, group: str) -> bool:
        """True unless a group has nothing but the claim of a process that is gone."""
        return state.claimed_by(group) is None or self.exists(group) or state.has_offsets(group)

    def exists(self, group: str) -> bool:
        """True if a group has members, here or on another node."""
        if self._coordinator.exists(group):
            return True
        claim = self._claims.claimed_by(group) if self._claims.are_used else None
        return claim is not None and claim != self._claims.own

    async def consumers(self, topic: str) -> Mapping[str, Mapping[str, Sequence[int]]]:
        """As `Backend.list_consumers`. Nodes that cannot be reached are passed over."""
        found: dict[str, dict[str, Sequence[int]]] = {
            group: dict(members) for group, members in self._coordinator.consumers(topic).items()
        }
        if not self._node.is_alone:
            others = [each for each in self._node.metadata.registered if each != self._node.node_id]
            for response in await asyncio.gather(*(self._ask(node_id, topic) for node_id in others)):
                for member in response.members:
                    found.setdefault(member.group, {})[member.client_id] = list(member.partitions)
        return found

    async def _ask(self, node_id: int, topic: str) -> ConsumersResponse:
        calls = self._node.calls
        assert calls is not None
        request = ConsumersRequest(topic=topic).SerializeToString()
        try:
            return ConsumersResponse.FromString(await calls.ask(node_id, PeerMethod.GROUP, request, _ASK_S))
        except PixyError:
            return ConsumersResponse()

    async def partition_owner(self, group: str, partition: TopicPartition) -> str | None:
        """As `Backend.partition_owner`.

        Raises:
            OwnedElsewhere: another node has claimed the group.
        """
        if not self._coordinator.exists(group) and self._claims.are_used:
            await self._confirm_claim(group)
            self._claims.check(group)
        members = self._coordinator.consumers(partition.topic).get(group, {})
        return next((client for client, owned in members.items() if partition.partition in owned), None)


class ClaimedMembership:
    """A `ConsumerMembership`."""

    def __init__(self, coordinator: Coordinator, claims: GroupClaims, member: Member) -> None:
        self._coordinator = coordinator
        self._claims = claims
        self._member = member
        self.lease = Lease()

    async def subscribe(self, topics: Sequence[str]) -> None:
        """As `ConsumerMembership`."""
        self._coordinator.subscribe(self._member, topics)

    async def leave(self) -> None:
        """As `ConsumerMembership`."""
        self._coordinator.leave(self._member)
        if not self._coordinator.exists(self._member.consumer_group):
            await self._claims.release(self._member.consumer_group)

"""Consumer groups of in-memory clusters: members, assignments, committed offsets.

Several backends may share them, as nodes of one cluster. Partitions that move from one node to
another are revoked first, and go once their owner has settled them; within a node they move at
once.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pixy.backend import Lease, OffsetCommit, TopicPartition
from pixy.backend.protocol import Assignment, OffsetsChanged, Owner, Revocation
from pixy.errors import OffsetsSet, OwnedElsewhere


@dataclass(slots=True)
class _Group:
    """A consumer group."""

    # In order of joining, which is also that of the member ids.
    members: list["FakeMembership"] = field(default_factory=list)
    commits: dict[TopicPartition, OffsetCommit] = field(default_factory=dict)
    # Marks of what was handed out.
    handed_out: dict[TopicPartition, int] = field(default_factory=dict)
    # How often offsets of each partition were set.
    epochs: Counter[TopicPartition] = field(default_factory=Counter)


class Callbacks(NamedTuple):
    """Callbacks of a member, as in `Backend.join_consumer_group`."""

    on_assignment: Assignment
    on_revocation: Revocation | None = None
    on_offsets_set: OffsetsChanged | None = None


class Joining(NamedTuple):
    """A member that joins a group: its client id, node, and the steps of its calls."""

    client_id: str
    node_id: int
    callbacks: Callbacks
    step: Callable[[str], Awaitable[None]]


class FakeMembership:
    """A member of a consumer group. `assigned` is its assignment."""

    def __init__(self, groups: "FakeGroups", group: str, topics: Sequence[str], joining: Joining) -> None:
        self.client_id, self.node_id, callbacks, self._step = joining
        self._on_assignment, self.on_revocation, self.on_offsets_set = callbacks
        self.topics = tuple(topics)
        self.assigned: dict[str, tuple[int, ...]] | None = None
        self.lease = Lease()
        self.revoking: asyncio.Task[None] | None = None
        self._groups = groups
        self._group = group
        self._left = False

    @property
    def partitions(self) -> set[TopicPartition]:
        """The assignment as a set."""
        assigned = self.assigned or {}
        return {TopicPartition(topic, number) for topic, numbers in assigned.items() for number in numbers}

    async def subscribe(self, topics: Sequence[str]) -> None:
        await self._step("subscribe")
        self.topics = tuple(topics)
        if not self._left:
            self._groups.events.append(("subscribe", self._group, *topics))
            self._groups.assign(self._group)

    async def leave(self) -> None:
        if self._left:
            return
        await self._step("leave")
        self._groups.events.append(("leave", self._group))
        self.end()
        self._groups.remove(self._group, self)

    def end(self) -> None:
        """Stop all notifications."""
        self._left = True
        self.assigned = {}
        if self.revoking is not None:
            self.revoking.cancel()

    def expel(self) -> None:
        """Remove the member, which is told when it is there to hear it."""
        self.end()
        asyncio.get_running_loop().call_soon(self._on_assignment, {})

    def assign(self, assigned: dict[str, tuple[int, ...]], *, again: bool) -> None:
        """Assign these partitions and notify the member soon, unless they are unchanged and `again`
        is false.
        """
        if assigned == self.assigned and not again:
            return
        self.assigned = assigned
        asyncio.get_running_loop().call_soon(self._tell, assigned)

    def _tell(self, assigned: dict[str, tuple[int, ...]]) -> None:
        if not self._left:
            self._on_assignment({topic: list(partitions) for topic, partitions in assigned.items()})

    def tell_offsets_set(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Tell the member, if it is still there, that offsets of its partitions were set."""
        if not self._left and self.on_offsets_set is not None:
            self.on_offsets_set(partitions)


class FakeGroups:
    """All consumer groups.

    Args:
        partitions: number of partitions of a topic, None if it does not exist.

    Attributes:
        drain_s: time for acks before partitions go to another node.
    """

    def __init__(self, partitions: Callable[[str], int | None]) -> None:
        self._partitions = partitions
        self._groups: dict[str, _Group] = {}
        self.drain_s = 10.0
        # Event log: ("join", group, topic, ...), "subscribe", "leave", ("commit", group).
        self.events: list[tuple[str, ...]] = []
        # Partitions assigned to no member.
        self.withheld: set[TopicPartition] = set()
        # Members elsewhere that cannot be asked, by owned partition.
        self.owners: dict[TopicPartition, str] = {}

    def join(self, group: str, topics: Sequence[str], joining: Joining) -> FakeMembership:
        self.events.append(("join", group, *topics))
        member = FakeMembership(self, group, topics, joining)
        self.of(group).members.append(member)
        self.assign(group)
        return member

    def remove(self, group: str, member: FakeMembership) -> None:
        self._groups[group].members.remove(member)
        self.assign(group)

    def end(self, node_id: int) -> None:
        """Remove the members of a node, which hear nothing any more."""
        self._remove_all(node_id, FakeMembership.end)

    def expel(self, node_id: int) -> None:
        """Remove the members of a node; they are told."""
        self._remove_all(node_id, FakeMembership.expel)

    def _remove_all(self, node_id: int, remove: Callable[[FakeMembership], None]) -> None:
        for name, group in self._groups.items():
            gone = [member for member in group.members if member.node_id == node_id]
            for member in gone:
                remove(member)
                group.members.remove(member)
            if gone:
                self.assign(name)

    def of(self, group: str) -> _Group:
        """A group, created on first use."""
        return self._groups.setdefault(group, _Group())

    @property
    def members(self) -> dict[str, FakeMembership]:
        """First member of each group that has any."""
        return {name: group.members[0] for name, group in self._groups.items() if group.members}

    def member(self, group: str, node_id: int) -> FakeMembership | None:
        """The member of a node."""
        return next((each for each in self.of(group).members if each.node_id == node_id), None)

    # --- committed offsets ------------------------------------------------------------------------

    @property
    def commits(self) -> dict[str, dict[TopicPartition, OffsetCommit]]:
        """Committed offsets of each group."""
        return {name: group.commits for name, group in self._groups.items()}

    def epochs(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Numbers of changes of offsets by clients, which a commit is based on."""
        return {partition: self.of(group).epochs[partition] for partition in partitions}

    def commit(
        self,
        name: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        node_id: int,
        epochs: Mapping[TopicPartition, int],
        handed_out: Mapping[TopicPartition, int],
    ) -> None:
        """Commit offsets of a member.

        Args:
            node_id: node of the member.
            epochs: that the commit is based on.
            handed_out: marks of the partitions.
        """
        group = self.of(name)
        for partition in offsets:
            owner = self.owning_member(name, partition)
            if owner is not None and owner.node_id != node_id:
                raise OwnedElsewhere(f"{partition} of {name} is owned by node {owner.node_id}")
            if epochs[partition] != group.epochs[partition]:
                raise OffsetsSet(f"offsets of {partition} of {name} were set meanwhile")
        group.commits.update(offsets)
        for partition, mark in handed_out.items():
            group.handed_out[partition] = max(mark, group.handed_out.get(partition, 0))
        self.events.append(("commit", name))

    def set_offsets(self, name: str, offsets: Mapping[TopicPartition, OffsetCommit], node_id: int) -> None:
        """Set offsets by a client of a node; the owners at other nodes are told."""
        group = self.of(name)
        for partition in offsets.keys() - group.commits.keys():
            group.handed_out[partition] = 0
        group.commits.update(offsets)
        group.epochs.update(offsets.keys())
        self.events.append(("commit", name))
        for member in group.members:
            if member.node_id != node_id and (owned := member.partitions & offsets.keys()):
                asyncio.get_running_loop().call_soon(member.tell_offsets_set, self._by_topic(member, owned))

    def forget(self, topic: str) -> None:
        """Delete a topic's committed offsets."""
        for group in self._groups.values():
            group.commits = {each: commit for each, commit in group.commits.items() if each.topic != topic}
            group.handed_out = {each: mark for each, mark in group.handed_out.items() if each.topic != topic}

    # --- owners -----------------------------------------------------------------------------------

    def lose(self, topic: str) -> None:
        """Remove a topic from all assignments without notification."""
        for group in self._groups.values():
            for member in group.members:
                (member.assigned or {}).pop(topic, None)

    def consumers(self, topic: str) -> dict[str, dict[str, list[int]]]:
        """Owners of a topic's partitions: group -> client -> partitions."""
        found: dict[str, dict[str, list[int]]] = {}
        for name, group in self._groups.items():
            for member in group.members:
                partitions = (member.assigned or {}).get(topic)
                if partitions:
                    owned = found.setdefault(name, {}).setdefault(member.client_id, [])
                    owned[:] = sorted([*owned, *partitions])
        return found

    def owner(self, group: str, partition: TopicPartition) -> Owner | None:
        if partition in self.owners:
            return Owner(self.owners[partition])
        member = self.owning_member(group, partition)
        return None if member is None else Owner(member.client_id, member.node_id)

    def owning_member(self, group: str, partition: TopicPartition) -> FakeMembership | None:
        """The member that owns a partition."""
        members = self._groups[group].members if group in self._groups else []
        return next((member for member in members if partition in member.partitions), None)

    def other_owners(self, group: str, topic: str, node_id: int) -> list[int]:
        """Other nodes that own partitions of a topic."""
        members = self._groups[group].members if group in self._groups else []
        owners = {member.node_id for member in members if (member.assigned or {}).get(topic)}
        return sorted(owners - {node_id})

    # --- assignment -------------------------------------------------------------------------------

    def assign_all(self, *, again: bool = False) -> None:
        for group in list(self._groups):
            self.assign(group, again=again)

    def assign(self, name: str, *, again: bool = False) -> None:
        """Range assignment.

        Members that lose partitions are notified before those that get them.
        """
        group = self.of(name)
        targets = self._targets(group.members)
        if len({member.node_id for member in group.members}) > 1:
            self._move(name, targets)
            return
        for member in sorted(targets, key=lambda member: not member.partitions - targets[member]):
            member.assign(self._by_topic(member, targets[member]), again=again)

    def _targets(self, members: Sequence[FakeMembership]) -> dict[FakeMembership, set[TopicPartition]]:
        targets: dict[FakeMembership, set[TopicPartition]] = {member: set() for member in members}
        for topic in sorted({topic for member in members for topic in member.topics}):
            subscribed = [member for member in members if topic in member.topics]
            each, extra = divmod(self._partitions(topic) or 0, len(subscribed))
            first = 0
            for turn, member in enumerate(subscribed):
                last = first + each + (turn < extra)
                targets[member] |= {TopicPartition(topic, number) for number in range(first, last)}
                first = last
        return {member: target - self.withheld for member, target in targets.items()}

    def _move(self, name: str, targets: Mapping[FakeMembership, set[TopicPartition]]) -> None:
        """Assign what is free, and revoke what has another target."""
        owned = {partition for member in targets for partition in member.partitions}
        for member, target in targets.items():
            free = target - owned
            member.assign(self._by_topic(member, member.partitions | free), again=False)
            if (going := member.partitions - target) and member.revoking is None:
                member.revoking = asyncio.create_task(self._revoke(name, member, going))

    async def _revoke(self, name: str, member: FakeMembership, going: set[TopicPartition]) -> None:
        """Have a member settle partitions, and take those that still have another target."""
        assert member.on_revocation is not None
        await member.on_revocation(self.drain_s, self._by_topic(member, going))
        member.revoking = None
        gone = going - self._targets(self.of(name).members)[member]
        member.assign(self._by_topic(member, member.partitions - gone), again=True)
        self.assign(name)

    def _by_topic(
        self, member: FakeMembership, partitions: Collection[TopicPartition]
    ) -> dict[str, tuple[int, ...]]:
        """Partitions of the topics of a member, of which some may have none."""
        return {
            topic: tuple(sorted(number for name, number in partitions if name == topic))
            for topic in sorted(member.topics)
            if self._partitions(topic) is not None
        }

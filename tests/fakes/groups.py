"""Consumer groups of the in-memory cluster: members, assignments, committed offsets."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pixy.backend import Assignment, OffsetCommit, Revocation, TopicPartition

__all__ = ["FakeGroups", "FakeMembership"]


@dataclass(slots=True)
class _Group:
    """A consumer group."""

    # In order of joining, which is also that of the member ids.
    members: list["FakeMembership"] = field(default_factory=list)
    commits: dict[TopicPartition, OffsetCommit] = field(default_factory=dict)


class FakeMembership:
    """A member of a consumer group. `assigned` is its assignment."""

    def __init__(
        self,
        groups: "FakeGroups",
        group: str,
        client_id: str,
        topics: Sequence[str],
        on_assignment: Assignment,
        on_revocation: Revocation | None,
    ) -> None:
        self.client_id = client_id
        self.topics = tuple(topics)
        self.assigned: dict[str, tuple[int, ...]] | None = None
        self.on_revocation = on_revocation
        self._on_assignment = on_assignment
        self._groups = groups
        self._group = group
        self._left = False

    async def subscribe(self, topics: Sequence[str]) -> None:
        await self._groups.step("subscribe")
        self.topics = tuple(topics)
        if not self._left:
            self._groups.events.append(("subscribe", self._group, *topics))
            self._groups.assign(self._group)

    async def leave(self) -> None:
        if self._left:
            return
        await self._groups.step("leave")
        self._groups.events.append(("leave", self._group))
        self.end()
        self._groups.remove(self._group, self)

    def end(self) -> None:
        """Stop all notifications."""
        self._left = True
        self.assigned = {}

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


class FakeGroups:
    """All consumer groups.

    Args:
        step: awaited before each step of a member, by name.
        partitions: number of partitions of a topic, None if it does not exist.
    """

    def __init__(
        self, step: Callable[[str], Awaitable[None]], partitions: Callable[[str], int | None]
    ) -> None:
        self.step = step
        self._partitions = partitions
        self._groups: dict[str, _Group] = {}
        # Event log: ("join", group, topic, ...), "subscribe", "leave", ("commit", group).
        self.events: list[tuple[str, ...]] = []
        # Partitions assigned to no member.
        self.withheld: set[TopicPartition] = set()
        # Members elsewhere, by owned partition.
        self.owners: dict[TopicPartition, str] = {}

    def join(
        self,
        group: str,
        client_id: str,
        topics: Sequence[str],
        on_assignment: Assignment,
        on_revocation: Revocation | None,
    ) -> FakeMembership:
        self.events.append(("join", group, *topics))
        member = FakeMembership(self, group, client_id, topics, on_assignment, on_revocation)
        self.of(group).members.append(member)
        self.assign(group)
        return member

    def remove(self, group: str, member: FakeMembership) -> None:
        self._groups[group].members.remove(member)
        self.assign(group)

    def end(self) -> None:
        """Stop all notifications."""
        for group in self._groups.values():
            for member in group.members:
                member.end()
            group.members.clear()

    def of(self, group: str) -> _Group:
        """A group, created on first use."""
        return self._groups.setdefault(group, _Group())

    @property
    def members(self) -> dict[str, FakeMembership]:
        """First member of each group that has any."""
        return {name: group.members[0] for name, group in self._groups.items() if group.members}

    @property
    def commits(self) -> dict[str, dict[TopicPartition, OffsetCommit]]:
        """Committed offsets of each group."""
        return {name: group.commits for name, group in self._groups.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetCommit]) -> None:
        self.of(group).commits.update(offsets)
        self.events.append(("commit", group))

    def forget(self, topic: str) -> None:
        """Delete a topic's committed offsets."""
        for group in self._groups.values():
            group.commits = {each: commit for each, commit in group.commits.items() if each.topic != topic}

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

    def owner(self, group: str, partition: TopicPartition) -> str | None:
        if partition in self.owners:
            return self.owners[partition]
        topic, number = partition
        members = self._groups[group].members if group in self._groups else []
        return next((m.client_id for m in members if number in (m.assigned or {}).get(topic, ())), None)

    def assign_all(self, *, again: bool = False) -> None:
        for group in list(self._groups):
            self.assign(group, again=again)

    def assign(self, name: str, *, again: bool = False) -> None:
        """Range assignment.

        Members that lose partitions are notified before those that get them.
        """
        group = self.of(name)
        targets: list[dict[str, tuple[int, ...]]] = [{} for _ in group.members]
        for topic in sorted({topic for member in group.members for topic in member.topics}):
            partitions = self._partitions(topic)
            if partitions is None:
                continue
            subscribed = [at for at, member in enumerate(group.members) if topic in member.topics]
            each, extra = divmod(partitions, len(subscribed))
            first = 0
            for turn, at in enumerate(subscribed):
                last = first + each + (turn < extra)
                numbers = range(first, last)
                targets[at][topic] = tuple(
                    n for n in numbers if TopicPartition(topic, n) not in self.withheld
                )
                first = last
        changes = list(zip(group.members, targets, strict=True))
        for member, target in sorted(changes, key=lambda change: not _loses(*change)):
            member.assign(target, again=again)


def _loses(member: FakeMembership, target: Mapping[str, Sequence[int]]) -> bool:
    """True if the new assignment revokes any partition of the member."""
    owned = {(topic, number) for topic, numbers in (member.assigned or {}).items() for number in numbers}
    return bool(owned - {(topic, number) for topic, numbers in target.items() for number in numbers})

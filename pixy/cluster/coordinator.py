"""Membership of consumer groups, and the partitions assigned to each member.

Pure: a change of members or topics tells each member whose assignment changed. Membership lives as
long as the node, so none of it is stored; the committed offsets of a consumer group are in the
state groups.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from pixy.assignors import assign_topic_ranges

__all__ = ["Coordinator", "Member"]

Assignment = Mapping[str, Sequence[int]]


class Member:
    """One member of one consumer group."""

    __slots__ = ("assigned", "client_id", "consumer_group", "on_assignment", "topics")

    def __init__(
        self,
        consumer_group: str,
        client_id: str,
        topics: Sequence[str],
        on_assignment: Callable[[Assignment], None],
    ) -> None:
        self.consumer_group = consumer_group
        self.client_id = client_id
        self.topics = tuple(topics)
        self.on_assignment = on_assignment
        self.assigned: Assignment = {}


class Coordinator:
    """Members of all consumer groups.

    Args:
        partitions: tells the number of partitions of a topic, 0 if there is no such topic.
    """

    def __init__(self, partitions: Callable[[str], int]) -> None:
        self._partitions = partitions
        self._members: dict[str, list[Member]] = {}
        # Groups with members that subscribe to a topic, by topic: sets in insertion order.
        self._by_topic: dict[str, dict[str, None]] = {}

    def join(self, member: Member) -> None:
        """Add a member and rebalance."""
        self._members.setdefault(member.consumer_group, []).append(member)
        for topic in member.topics:
            self._by_topic.setdefault(topic, {})[member.consumer_group] = None
        self._assign(member.consumer_group)
        if not member.assigned:
            member.on_assignment(member.assigned)

    def subscribe(self, member: Member, topics: Sequence[str]) -> None:
        """Replace the topics of a member and rebalance."""
        before, member.topics = member.topics, tuple(topics)
        for topic in topics:
            self._by_topic.setdefault(topic, {})[member.consumer_group] = None
        self._forget_unwanted(member.consumer_group, before)
        self._assign(member.consumer_group)

    def leave(self, member: Member) -> None:
        """Remove a member and rebalance; its own callback is not called."""
        members = self._members.get(member.consumer_group, [])
        if member not in members:
            return
        members.remove(member)
        self._forget_unwanted(member.consumer_group, member.topics)
        if members:
            self._assign(member.consumer_group)
        else:
            del self._members[member.consumer_group]

    def restart(self, consumer_group: str) -> None:
        """Take all partitions from the members of a group, and assign them anew: others may have
        had them meanwhile.
        """
        members = list(self._members.get(consumer_group, ()))
        for member in members:
            member.on_assignment({})
        for member in members:
            member.on_assignment(member.assigned)

    def topic_changed(self, topic: str) -> Iterator[None]:
        """Rebalance the groups of a topic that is new or has more partitions, one per step."""
        for group in self._groups_of(topic):
            self._assign(group)
            yield

    def topic_deleted(self, topic: str) -> Iterator[None]:
        """Revoke the partitions of a deleted topic, one consumer group per step.

        A new topic of the same name may exist already.
        """
        for group in self._groups_of(topic):
            self._assign(group, gone=topic)
            yield

    def _groups_of(self, topic: str) -> list[str]:
        return list(self._by_topic.get(topic, ()))

    def _forget_unwanted(self, consumer_group: str, topics: Iterable[str]) -> None:
        """Drop a group from the topics that none of its members subscribes to any more."""
        wanted = {topic for member in self._members[consumer_group] for topic in member.topics}
        for topic in set(topics) - wanted:
            groups = self._by_topic[topic]
            groups.pop(consumer_group, None)
            if not groups:
                del self._by_topic[topic]

    def exists(self, consumer_group: str) -> bool:
        """True when a consumer group has members."""
        return consumer_group in self._members

    def groups(self) -> Collection[str]:
        """Names of the consumer groups with members."""
        return self._members.keys()

    def consumers(self, topic: str) -> dict[str, dict[str, list[int]]]:
        """Consumer group -> client id -> partitions, of the groups that consume `topic`."""
        found: dict[str, dict[str, list[int]]] = {}
        for group in self._by_topic.get(topic, ()):
            members = self._members[group]
            of_topic = {m.client_id: list(m.assigned.get(topic, ())) for m in members if topic in m.topics}
            found[group] = of_topic
        return found

    def _assign(self, consumer_group: str, gone: str | None = None) -> None:
        members = self._members.get(consumer_group, [])
        topics = {topic for member in members for topic in member.topics}
        counts = {topic: 0 if topic == gone else self._partitions(topic) for topic in topics}
        assigned = assign_topic_ranges({id(member): member.topics for member in members}, counts)
        changed = [member for member in members if assigned[id(member)] != member.assigned]
        # Members that lose partitions are told first, so that no partition ever has two owners.
        changed.sort(key=lambda member: not _loses(member.assigned, assigned[id(member)]))
        for member in changed:
            member.assigned = assigned[id(member)]
            member.on_assignment(member.assigned)


def _loses(before: Assignment, after: Assignment) -> bool:
    return any(set(partitions) - set(after.get(topic, ())) for topic, partitions in before.items())

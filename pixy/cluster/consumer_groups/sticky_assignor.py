"""Assignment of partitions to the members of a consumer group: sticky, balanced, near the replicas.
Pure.

In this order:

1. Each subscriber of a topic gets as many of its partitions as any other one, or one more.
2. A partition stays with its owner.
3. All topics together are balanced too: nobody has two partitions more than another one to whom it
   could give one.
4. A free partition goes where it was going, then to the node that is to lead it, then to one with a
   replica, then to whoever has least.

The same input gives the same result, and the result as an input gives itself. Moving partitions are
told by `targets`, which decide between equals only.

The road not taken: Kafka's range and round-robin assignors, which move most partitions when a
member comes or goes.
"""

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pixy.cluster.state import MemberId, Owners

_FAR = 2
_UNEVEN = 2
"""Difference of two members that a move makes smaller."""


class AssignableTopic(NamedTuple):
    """A topic to assign.

    Attributes:
        members: its subscribers, each once, at least one.
        owners, targets: present ones by partition, for as many partitions as there are. Those that
            are no subscribers count as nobody.
        replicas: nodes of each partition, the one that is to lead first.
    """

    members: Sequence[MemberId]
    owners: Owners
    targets: Owners
    replicas: Sequence[Sequence[int]]


def assign(topics: Sequence[AssignableTopic]) -> Generator[None, None, list[Owners]]:
    """Owners of the partitions of each topic; suspends after each step, which is one topic's.

    Args:
        topics: in an order that does not depend on the process.
    """
    totals: dict[MemberId, int] = {member: 0 for topic in topics for member in topic.members}
    parts = [_Assignment(topic, totals) for topic in topics]
    for part in parts:
        part.keep()
        yield
    for part in parts:
        part.fill()
        yield
    is_even = False
    while not is_even:
        is_even = True
        for part in parts:
            if part.even_out():
                is_even = False
            yield
    return [tuple(part.owners) for part in parts]


class _Assignment:
    """The assignment of one topic.

    Args:
        topic: the topic.
        totals: partitions of each member in all topics so far.
    """

    def __init__(self, topic: AssignableTopic, totals: dict[MemberId, int]) -> None:
        self._topic = topic
        self._totals = totals
        self._members = sorted(topic.members)
        # Everybody gets `_floor`; `_extras` members may yet get one more.
        self._floor, self._extras = divmod(len(topic.replicas), len(self._members))
        self.owners: list[MemberId | None] = [None] * len(topic.replicas)
        self._counts = dict.fromkeys(self._members, 0)

    def keep(self) -> None:
        """Leave partitions to their owners, as far as balance allows."""
        if len(self._members) == 1:
            # As on a node that is alone: a topic may have ten thousand.
            (member,) = self._members
            self.owners = [member] * len(self.owners)
            self._counts[member] = len(self.owners)
            self._totals[member] += len(self.owners)
            return
        kept: dict[MemberId, list[int]] = {member: [] for member in self._members}
        for partition, owner in enumerate(self._topic.owners):
            if owner in kept:
                kept[owner].append(partition)
        for member in sorted(self._members, key=lambda each: (-len(kept[each]), each)):
            partitions, quota = kept[member], self._floor
            if len(partitions) > quota and self._extras:
                quota += 1
                self._extras -= 1
            if len(partitions) > quota:
                partitions = sorted(partitions, key=partial(self._distance, member))[:quota]
            for partition in partitions:
                self._give(partition, member)

    def fill(self) -> None:
        """Give everything free to members with room: they have room for exactly that."""
        at: dict[int, list[MemberId]] = {}
        for member in self._members:
            at.setdefault(member.node_id, []).append(member)
        free = [partition for partition, owner in enumerate(self.owners) if owner is None]
        for candidates in (
            self._awaiting,
            partial(self._leading, at),
            partial(self._near, at),
            self._anybody,
        ):
            free = [partition for partition in free if not self._offer(partition, candidates(partition))]
        assert not free

    def even_out(self) -> bool:
        """Move a partition if that makes all topics together more even; True if it did."""
        above = [member for member, count in self._counts.items() if count > self._floor]
        below = [member for member, count in self._counts.items() if count == self._floor]
        if not above or not below:
            return False
        giver = max(above, key=self._totals.__getitem__)
        taker = min(below, key=self._totals.__getitem__)
        if self._totals[giver] - self._totals[taker] < _UNEVEN:
            return False
        moved = min(
            (partition for partition, owner in enumerate(self.owners) if owner == giver),
            key=lambda each: (self._distance(taker, each), each),
        )
        self._counts[giver] -= 1
        self._totals[giver] -= 1
        self._give(moved, taker)
        return True

    # --- candidates -------------------------------------------------------------------------------

    def _awaiting(self, partition: int) -> Sequence[MemberId]:
        target = self._topic.targets[partition]
        return (target,) if target in self._counts and target is not None else ()

    def _leading(self, at: Mapping[int, Sequence[MemberId]], partition: int) -> Sequence[MemberId]:
        replicas = self._topic.replicas[partition]
        return at.get(replicas[0], ()) if replicas else ()

    def _near(self, at: Mapping[int, Sequence[MemberId]], partition: int) -> Sequence[MemberId]:
        return [member for node in self._topic.replicas[partition] for member in at.get(node, ())]

    def _anybody(self, _: int) -> Sequence[MemberId]:
        return self._members

    # --- parts ------------------------------------------------------------------------------------

    def _offer(self, partition: int, candidates: Sequence[MemberId]) -> bool:
        """Give a partition to the candidate with room that has least; False if none has room."""
        most = self._floor if self._extras else self._floor - 1
        with_room = [member for member in candidates if self._counts[member] <= most]
        if not with_room:
            return False
        member = min(with_room, key=lambda each: (self._totals[each], self._counts[each]))
        if self._counts[member] == self._floor:
            self._extras -= 1
        self._give(partition, member)
        return True

    def _give(self, partition: int, member: MemberId) -> None:
        self.owners[partition] = member
        self._counts[member] += 1
        self._totals[member] += 1

    def _distance(self, member: MemberId, partition: int) -> tuple[bool, int]:
        """Distance of a partition from a member: larger if it is on its way elsewhere, then by its
        replicas.
        """
        target, replicas = self._topic.targets[partition], self._topic.replicas[partition]
        if member.node_id not in replicas:
            return target not in (None, member), _FAR
        return target not in (None, member), min(replicas.index(member.node_id), 1)

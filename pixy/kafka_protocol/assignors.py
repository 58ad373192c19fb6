"""Partition assignors of consumer groups: range and round robin, as Kafka's. Pure.

Both take the topics that each member subscribes to and the number of partitions of each topic, and
return the partitions of each member by topic. Members come in the order that decides who gets what
does not divide; members of Kafka's groups are sorted by id.
"""

from collections.abc import Collection, Mapping
from itertools import cycle
from typing import TypeVar

M = TypeVar("M")
"""A member: whatever identifies it."""


def assign_topic_ranges(
    subscriptions: Mapping[M, Collection[str]], counts: Mapping[str, int]
) -> dict[M, dict[str, list[int]]]:
    """Range assignor: each topic is split into contiguous ranges among its members.

    Args:
        subscriptions: topics by member.
        counts: partitions by topic, of every topic that is subscribed to.

    Returns:
        An entry for each topic that a member subscribes to, empty if it gets none of the
        partitions.
    """
    assigned: dict[M, dict[str, list[int]]] = {member: {} for member in subscriptions}
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        members = [member for member, topics in subscriptions.items() if topic in topics]
        for member, partitions in zip(members, split_range(counts[topic], len(members)), strict=True):
            assigned[member][topic] = partitions
    return assigned


def assign_round_robin(
    subscriptions: Mapping[M, Collection[str]], counts: Mapping[str, int]
) -> dict[M, dict[str, list[int]]]:
    """Round-robin assignor: the partitions of all topics, in order, go to the members in turn.

    Args and result as of `assign_topic_ranges`, but without empty entries.
    """
    assigned: dict[M, dict[str, list[int]]] = {member: {} for member in subscriptions}
    turns = cycle(subscriptions)
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        for partition in range(counts[topic]):
            member = next(each for each in turns if topic in subscriptions[each])
            assigned[member].setdefault(topic, []).append(partition)
    return assigned


def split_range(partitions: int, members: int) -> list[list[int]]:
    """Contiguous ranges of partitions, one for each member; the first members get what does not
    divide.
    """
    each, extra = divmod(partitions, members)
    ranges = []
    at = 0
    for member in range(members):
        size = each + (member < extra)
        ranges.append(list(range(at, at + size)))
        at += size
    return ranges

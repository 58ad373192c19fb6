"""Partitions by their raft groups, for messages of groups that this node has not opened yet.

A topic gets consecutive raft groups at its creation, and further ones when it grows. So a few
ranges name ten thousand partitions.
"""

from bisect import bisect_right
from typing import NamedTuple

from pixy.cluster.log import PartitionReplica, StateReplica
from pixy.cluster.state import Topic
from pixy.multiraft import RaftGroup
from pixy.records import TopicPartition


def group_name(group: RaftGroup) -> str:
    """Name of a raft group, for people."""
    application = group.application
    if isinstance(application, PartitionReplica):
        return f"partition {application.partition.partition} of topic {application.partition.topic}"
    return application.name if isinstance(application, StateReplica) else f"raft group {group.raft_group}"


class _Run(NamedTuple):
    """Consecutive raft groups of consecutive partitions."""

    first_group: int
    first_partition: int
    partitions: int
    topic: str


class PartitionsByRaftGroup:
    """Partitions by raft group."""

    def __init__(self) -> None:
        # Ascending by the first group; the runs do not overlap.
        self._runs: list[_Run] = []
        # Partitions that are known, by raft group of the first one.
        self._known: dict[int, int] = {}

    def put(self, topic: Topic) -> None:
        """Add a topic, or the partitions that it got since."""
        groups = topic.raft_groups
        if not groups:
            return
        number = self._known.get(groups[0], 0)
        self._known[groups[0]] = len(groups)
        while number < len(groups):
            count = 1
            while number + count < len(groups) and groups[number + count] == groups[number] + count:
                count += 1
            run = _Run(groups[number], number, count, topic.name)
            self._runs.insert(bisect_right(self._runs, run), run)
            number += count

    def remove(self, topic: Topic) -> None:
        """Forget a deleted topic."""
        if topic.raft_groups and self._known.pop(topic.raft_groups[0], None) is not None:
            groups = set(topic.raft_groups)
            self._runs = [run for run in self._runs if run.first_group not in groups]

    def find(self, raft_group: int) -> TopicPartition | None:
        """The partition of a raft group, None if it is not known."""
        at = bisect_right(self._runs, raft_group, key=_first_group) - 1
        if at < 0:
            return None
        first_group, first_partition, partitions, topic = self._runs[at]
        number = raft_group - first_group
        return TopicPartition(topic, first_partition + number) if number < partitions else None


def _first_group(run: _Run) -> int:
    return run.first_group

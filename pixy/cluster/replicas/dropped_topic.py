"""The directories of a deleted topic: renamed by the log writer, some at a time, then removed.

The log writer renames them before it sees anything of a later topic of the same name; the removal
of the renamed directories is `storage.disk.removal`'s.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pixy.cluster.log import PartitionReplica
from pixy.storage import LogWriter, Removal, deleted_directory

_DROPPED_PER_ITERATION = 100
"""Partitions dropped in one iteration of the event loop, and renamed in one job of the writer."""


class DroppedTopic:
    """The partitions of a deleted topic whose directories still have their names."""

    __slots__ = ("_removal", "_replicas", "_topics", "_writer")

    def __init__(
        self, replicas: deque[PartitionReplica], topics: Path, writer: LogWriter, removal: Removal
    ) -> None:
        self._replicas = replicas
        self._topics = topics
        self._writer = writer
        self._removal = removal

    def retire(self, then: Callable[[], None]) -> bool:
        """Let the writer rename the next directories, and call back when it has; False if there are
        none left.
        """
        replicas = take_some(self._replicas)
        if not replicas:
            return False

        def retired(directories: list[Path]) -> None:
            self._removal.remove_directories(directories)
            self._writer.forget_deleted(len(replicas))
            then()

        self._writer.run(partial(_retire, replicas, self._topics), retired)
        return True

    def retire_all(self) -> None:
        """Let the writer rename all the rest before its next work."""
        while self.retire(lambda: None):
            pass


def take_some(replicas: deque[PartitionReplica]) -> list[PartitionReplica]:
    """Take the next partitions out, as many as one iteration of the loop can free: freeing their
    memory takes longer than all the rest.
    """
    return [replicas.popleft() for _ in range(min(_DROPPED_PER_ITERATION, len(replicas)))]


def _retire(replicas: Sequence[PartitionReplica], topics: Path) -> list[Path]:
    """Rename directories, on the writer's thread; returns those that are to be removed."""
    retired = (replica.log.retire(deleted_directory(topics, replica.raft_group)) for replica in replicas)
    return [path for path in retired if path is not None]

"""Partition replicas that wait for a copy: they lack records that the journal of their leader does
not have any more.

Such a replica votes, and gets no records until it is copied (`copy_fetching`). Its leader offers it
a position from time to time (`partition_snapshots`), which marks it again; a leader with a longer
journal may still bring it up to date.
"""

import asyncio
from collections.abc import Callable

import structlog

from pixy.cluster.log import PartitionReplica
from pixy.raft import Message

log = structlog.get_logger(__name__)

_SWEEP_S = 5.0


class MissingCopies:
    """Marks replicas with `needs_copy`, and removes the marks.

    Args:
        on_caught_up: called with a replica that needs no copy any more.
    """

    def __init__(self, on_caught_up: Callable[[PartitionReplica], None] = lambda _: None) -> None:
        self._on_caught_up = on_caught_up
        # Index of the position that was offered last, by replica.
        self._begins: dict[PartitionReplica, int] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, replica: PartitionReplica, message: Message, *, copies: bool = False) -> None:
        """The leader of a partition has told its replica that it is behind.

        Args:
            copies: what it lacks is being copied.
        """
        assert message.snapshot is not None
        self._begins[replica] = message.snapshot.index
        if not replica.needs_copy:
            replica.needs_copy = True
            replica.wake()  # whoever waits for its records finds them elsewhere
            topic, partition = replica.partition
            told = log.info if copies else log.warning
            told(
                "a replica lacks records, and copies them from another one"
                if copies
                else "a replica waits for a copy: keep the other replicas, they have its records; a larger "
                "journal.retain_bytes lets nodes be away for longer",
                topic=topic,
                partition=partition,
                leader=message.sender,
                lacks_up_to_entry=message.snapshot.index,
            )
        if self._timer is None:
            self._timer = self._loop.call_later(_SWEEP_S, self._tick)

    def stop(self) -> None:
        """Look after no replica any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self.sweep()
        self._timer = self._loop.call_later(_SWEEP_S, self._tick) if self._begins else None

    def sweep(self) -> None:
        """Remove the marks of replicas that have caught up, or are gone; called by a timer."""
        for replica, begin in list(self._begins.items()):
            group = replica.group
            if replica.deleted or group is None or group.removed is not None:
                del self._begins[replica]
            elif group.applied_index >= begin and group.held is None:
                del self._begins[replica]
                replica.needs_copy = False
                topic, partition = replica.partition
                log.info("a replica needs no copy any more", topic=topic, partition=partition)
                self._on_caught_up(replica)

"""Commits of one consumer group: the positions to commit, and when.

A partition whose tracker moved is dirty; the first dirty one sets a timer, and all are committed in
one call. The position of a partition that is closed while dirty is left over, until it is
committed, set by the client, or lost to another process. A failed commit leaves its partitions
dirty. Commits are all or none: one that is refused for some of its partitions is made in parts,
without the positions that are void by then: each part counts as based on what the backend has said
last. A live partition that is refused stays dirty: the backend is about to say that it is gone or
reset.

Beside the position a commit has the mark of what was handed out (`handed_out`). Where nothing was
acked since the last commit the position is that one again, which a client may have set.

`lock` covers every commit and the reads that it depends on, so that neither a delayed periodic
commit nor the first commit of a new group overwrites offsets set by the client.

Only offsets of topics with the same id are committed, so the commits of other topics do not fail
with them, and a recreated topic begins without them.
"""

import asyncio
from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple

import structlog

from pixy.aio.steps import in_steps
from pixy.backend import OffsetCommit, TopicPartition
from pixy.consume.core import Alarm
from pixy.consume.partition.environment import ConsumeEnvironment
from pixy.consume.partition.partition import LivePartition
from pixy.errors import InvalidArgument, NotFound, OffsetsSet, OwnedElsewhere, PixyError

_log = structlog.get_logger()

PARTITIONS_PER_COMMIT = 1000
METADATA_PER_COMMIT = 1 << 20
"""Bytes of metadata: each node copies them several times, in steps that cannot be divided."""


class _Commit(NamedTuple):
    """The position to commit for a partition of the topic with this id."""

    topic_id: bytes
    offset: OffsetCommit
    handed_out: int
    # It has acks, not only records that were handed out.
    acks: bool

    @classmethod
    def of(cls, live: LivePartition) -> "_Commit":
        """The position of a live or closed partition."""
        offset = live.commit() if live.dirty else live.committed
        return cls(live.topic_id, offset, live.offers.handed_out, live.dirty)


def _bytes_of(metadata: str) -> int:
    """Bytes that metadata has at most."""
    return len(metadata) if metadata.isascii() else 4 * len(metadata)


class GroupCommits:
    """Positions to commit of one consumer group.

    Args:
        environment: the cluster, options, time and tasks.
        group: the group's name.

    Attributes:
        lock: held by every commit, and by callers that read or set committed offsets.
    """

    __slots__ = (
        "_alarm",
        "_dirty",
        "_environment",
        "_failing",
        "_group",
        "_handed_out",
        "_kept_due",
        "_leftover",
        "_void",
        "lock",
    )

    def __init__(self, environment: ConsumeEnvironment, group: str) -> None:
        self._environment = environment
        self._group = group
        self.lock = asyncio.Lock()
        # Dirty live partitions, in the order in which they became dirty.
        self._dirty: dict[LivePartition, None] = {}
        # Live partitions that have handed out records since their last commit.
        self._handed_out: dict[LivePartition, None] = {}
        # Partitions that are closed.
        self._leftover: dict[TopicPartition, LivePartition] = {}
        # Partitions whose position has become void since the present commit began.
        self._void: dict[TopicPartition, None] = {}
        # Time until which the first ack is to be committed that is kept, or was lately.
        self._kept_due = -inf
        self._alarm = Alarm(environment.timers, self._due)
        self._failing = False

    @property
    def leftover(self) -> bool:
        """True if positions of closed partitions are to be committed."""
        return bool(self._leftover)

    def has_leftover(self, topic: str) -> bool:
        """True if positions of closed partitions of a topic are to be committed."""
        return any(key.topic == topic for key in self._leftover)

    # --- positions --------------------------------------------------------------------------------

    def mark_dirty(self, live: LivePartition) -> None:
        """A live partition has a position to commit."""
        self._dirty[live] = None
        self._set_alarm()

    def mark_handed_out(self, live: LivePartition) -> None:
        """A live partition has handed out records since its last commit."""
        self._handed_out[live] = None
        self._set_alarm()

    def mark_kept(self) -> None:
        """An ack is answered that a partition keeps: it counts later, and is committed in time."""
        now = self._environment.timers.monotonic()
        if self._kept_due <= now:
            self._kept_due = now + self._environment.options.offsets_commit_interval

    def _set_alarm(self) -> None:
        now = self._environment.timers.monotonic()
        due = now + self._environment.options.offsets_commit_interval
        self._alarm.at(min(due, self._kept_due) if self._kept_due > now else due)

    def keep(self, live: LivePartition) -> None:
        """Keep the position of a closed partition for the next commit."""
        if live.dirty or live in self._handed_out:
            self._leftover[live.key] = live
        self._forget(live)

    def _forget(self, live: LivePartition) -> None:
        """Commit nothing of a partition any more."""
        self._dirty.pop(live, None)
        self._handed_out.pop(live, None)

    def lose(self, live: LivePartition) -> bool:
        """Give up the position of a revoked partition, which may not be committed any more.

        Returns:
            True if acks are lost by that.
        """
        live.lost = True
        self._void[live.key] = None
        self._forget(live)
        return live.dirty and self._environment.is_there(live.topic, live.topic_id)

    def lose_leftover(self, is_elsewhere: Callable[[str, int], bool]) -> list[TopicPartition]:
        """Give up the positions of closed partitions that other processes have now.

        Returns:
            Those whose acks are lost by that.
        """
        lost = [key for key in self._leftover if is_elsewhere(*key)]
        self._void |= dict.fromkeys(lost)
        return [key for key in lost if self._leftover.pop(key).dirty]

    def supersede(self, key: TopicPartition, live: LivePartition | None) -> None:
        """Forget the position of a partition: the client has set another one."""
        self._void[key] = None
        self._leftover.pop(key, None)
        if live is not None:
            self._forget(live)

    # --- commits ----------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit all positions."""
        async with self.lock:
            self._void.clear()
            leftover = dict(self._leftover)
            due: dict[TopicPartition, _Commit] = {}
            commits: dict[LivePartition, _Commit] = {}
            try:
                async for live in in_steps(leftover.values()):
                    due[live.key] = _Commit.of(live)
                async for live in in_steps(list(self._dirty | self._handed_out)):
                    if live in self._dirty or live in self._handed_out:
                        commits[live] = due[live.key] = _Commit.of(live)
                        self._forget(live)
                        live.commit_begins(commits[live].offset)
                refused = await self._commit_existing(due)
            except BaseException:
                self._restore(commits)
                raise
            self._restore({live: commit for live, commit in commits.items() if live.key in refused})
            for key, live in leftover.items():
                if self._leftover.get(key) is live:
                    del self._leftover[key]
                    if key in refused and due[key].acks:
                        self._warn_refused(key)

    async def commit_quietly(self) -> None:
        """Commit; the first failure of a series is logged, and the success after it."""
        try:
            await self.commit()
        except PixyError as error:
            if not self._failing:
                self._failing = True
                _log.warning("cannot commit offsets, trying again", group=self._group, error=str(error))
            return
        if self._failing:
            self._failing = False
            _log.info("committing offsets again", group=self._group)

    def cancel(self) -> None:
        """Cancel the next periodic commit."""
        self._alarm.cancel()

    def _due(self, _: float) -> None:
        if self._dirty or self._handed_out or self._leftover:
            self._environment.tasks.spawn(self.commit_quietly(), f"commit offsets of {self._group}")

    async def _commit_existing(self, due: Mapping[TopicPartition, _Commit]) -> set[TopicPartition]:
        """As `_commit_some`, in as many commits as it takes: each has a bounded size, whatever the
        partitions and their sparse acks are.
        """
        refused: set[TopicPartition] = set()
        some: dict[TopicPartition, _Commit] = {}
        metadata_left = METADATA_PER_COMMIT
        for key, commit in due.items():
            size = _bytes_of(commit.offset.metadata)
            if len(some) == PARTITIONS_PER_COMMIT or (size > metadata_left and some):
                refused |= await self._commit_some(some)
                some, metadata_left = {}, METADATA_PER_COMMIT
            some[key] = commit
            metadata_left -= size
        return refused | await self._commit_some(some)

    async def _commit_some(self, due: Mapping[TopicPartition, _Commit]) -> set[TopicPartition]:
        """Commit the offsets of topics that exist, also if one is deleted meanwhile.

        Returns:
            Partitions that are refused because they are elsewhere or their offsets were set.
        """
        offsets = self._existing(due)
        while offsets:
            try:
                marks = {key: due[key].handed_out for key in offsets}
                await self._environment.backend.commit_offsets(self._group, offsets, handed_out=marks)
                self._forget_marks(due, marks)
            except (InvalidArgument, NotFound):
                existing = self._existing(due)
                if len(existing) == len(offsets):
                    raise
                offsets = existing
            except (OffsetsSet, OwnedElsewhere):
                return set(due) if len(due) == 1 else await self._commit_parts(due)
            else:
                break
        return set()

    def _forget_marks(
        self, due: Mapping[TopicPartition, _Commit], marks: Mapping[TopicPartition, int]
    ) -> None:
        """The backend keeps these marks, so this process need not."""
        environment = self._environment
        if environment.backend.keeps_handed_out:
            for key, mark in marks.items():
                environment.handed_out.committed(self._group, key, due[key].topic_id, mark)

    async def _commit_parts(self, due: Mapping[TopicPartition, _Commit]) -> set[TopicPartition]:
        """Commit as much as is not refused; returns the rest."""
        refused: set[TopicPartition] = set()
        keys = list(due)
        for part in keys[::2], keys[1::2]:
            refused |= await self._commit_existing({key: due[key] for key in part})
        return refused

    def _warn_refused(self, key: TopicPartition) -> None:
        _log.warning(
            "acks are lost, their partition went elsewhere or its offsets were set",
            group=self._group,
            topic=key.topic,
            partition=key.partition,
        )

    def _existing(self, due: Mapping[TopicPartition, _Commit]) -> dict[TopicPartition, OffsetCommit]:
        is_there = self._environment.is_there
        return {
            key: commit.offset
            for key, commit in due.items()
            if key not in self._void and is_there(key.topic, commit.topic_id)
        }

    def _restore(self, commits: Mapping[LivePartition, _Commit]) -> None:
        """Commits of partitions failed: they are due again."""
        for live, commit in commits.items():
            if live.lost or (live.closed and live.key in self._void):
                continue
            had_acks, live.dirty = live.dirty, live.dirty or commit.acks
            if live.closed:
                self._leftover.setdefault(live.key, live)
                continue
            if live.dirty and not had_acks:
                self.mark_dirty(live)
            live.mark_handed_out()

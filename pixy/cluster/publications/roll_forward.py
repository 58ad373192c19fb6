"""The way of each publication from its commit to the end: proposed, applied, durable, forgotten.

    state        event             next         action
    PROPOSING    ALL_PROPOSED      APPLYING
    APPLYING     ALL_APPLIED       VISIBLE      the publisher's caller is answered
    VISIBLE      ALL_DURABLE       REMOVING     the stages are removed
    REMOVING     STAGES_REMOVED    FINISHING    FinishPublications is proposed
    FINISHING    FORGOTTEN         (gone)

An event that the table lacks in a state is a bug. A crash at any point repeats the way from
PROPOSING: a partition knows the last publication that it has applied, and numbers ascend, so each
partition gets what is above that number. Stages are removed before their publication is forgotten:
while a stage exists, it is known whether it was published.

A partition that is damaged at a start gets nothing. Its publications stay APPLYING, with their
stages, until it is repaired or its topic deleted. The part of a deleted topic is dropped.

A part that comes to its partition before its predecessor, whose stages may have replicas and which
another roll-forward brings, is refused there, and proposed again behind it.

Invariant: publications are first proposed to a partition in the order of their numbers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

import structlog

from pixy.aio.futures import resolve
from pixy.cluster.log import PartitionReplica, Replica
from pixy.cluster.replicas import Partitions
from pixy.cluster.state import MetadataState, Publication
from pixy.errors import CorruptData, FailedPrecondition, VoidEntry
from pixy.proto.state_pb2 import (
    FinishPublications,
    PartitionCommand,
    PublicationPart,
    PublishParts,
    SinksCommand,
)
from pixy.records import TopicPartition
from pixy.staging import StageName, Stages

log = structlog.get_logger(__name__)

STAGES_PER_ITERATION = 1000
"""Stages visited in one iteration of the loop: 2 or 3 microseconds each, for each partition of the
publication.
"""

Propose = Callable[[Replica, bytes, Callable[[Any], None]], None]
"""Proposes a command to a raft group and calls back with the result of applying it."""


class RollForwardState(Enum):
    """The state of a publication; see the table of the module."""

    PROPOSING = auto()
    APPLYING = auto()
    VISIBLE = auto()
    REMOVING = auto()
    FINISHING = auto()
    GONE = auto()


class RollForwardEvent(Enum):
    """An event of a publication."""

    ALL_PROPOSED = auto()
    ALL_APPLIED = auto()
    ALL_DURABLE = auto()
    STAGES_REMOVED = auto()
    FORGOTTEN = auto()


_NEXT = {
    (RollForwardState.PROPOSING, RollForwardEvent.ALL_PROPOSED): RollForwardState.APPLYING,
    (RollForwardState.APPLYING, RollForwardEvent.ALL_APPLIED): RollForwardState.VISIBLE,
    (RollForwardState.VISIBLE, RollForwardEvent.ALL_DURABLE): RollForwardState.REMOVING,
    (RollForwardState.REMOVING, RollForwardEvent.STAGES_REMOVED): RollForwardState.FINISHING,
    (RollForwardState.FINISHING, RollForwardEvent.FORGOTTEN): RollForwardState.GONE,
}


def next_state(state: RollForwardState, event: RollForwardEvent) -> RollForwardState:
    """The state behind an event; an event that the state does not have is a bug."""
    assert (state, event) in _NEXT, f"{event.name} of a publication that is {state.name}"
    return _NEXT[state, event]


@dataclass(eq=False, slots=True)
class _Progress:
    """One publication.

    Attributes:
        visible: done when the state becomes VISIBLE.
        known: set once it is visible, or a part is stuck.
        topic_ids: the topics of its parts.
        unapplied: partitions that were proposed their part, or are stuck, and have not applied it.
        undurable: parts that are not known to be durable.
        stuck: parts of damaged partitions, each with the damage.
    """

    publication: Publication
    visible: asyncio.Future[None]
    topic_ids: frozenset[bytes]
    undurable: list[PublicationPart]
    known: asyncio.Event = field(default_factory=asyncio.Event)
    state: RollForwardState = RollForwardState.PROPOSING
    unapplied: int = 0
    stuck: list[tuple[PublicationPart, CorruptData]] = field(default_factory=list)


class _Unproposed(NamedTuple):
    """A publication with its parts that have not been proposed; `starting` if an earlier process
    committed it.
    """

    progress: _Progress
    parts: Iterator[PublicationPart]
    starting: bool


class RollForward:
    """The unfinished publications of one node.

    Args:
        sinks: the replica of the group `sinks`.
        stages: the stages.
        metadata: the topics.
        partitions: their partitions.
        propose: see `Propose`.
    """

    def __init__(
        self,
        sinks: Replica,
        stages: Stages,
        metadata: MetadataState,
        partitions: Partitions,
        propose: Propose,
    ) -> None:
        self._sinks = sinks
        self._stages = stages
        self._metadata = metadata
        self._partitions = partitions
        self._propose = propose
        self._loop = asyncio.get_running_loop()
        # Unfinished publications by number, ascending.
        self._progress: dict[int, _Progress] = {}
        # Publications in PROPOSING, in the order of their numbers.
        self._unproposed: deque[_Unproposed] = deque()
        # Publications are in REMOVING or FINISHING. Invariant: these began together.
        self._finishing = False
        self._stopped = False

    def __len__(self) -> int:
        """Number of unfinished publications."""
        return len(self._progress)

    def stop(self) -> None:
        """Finish nothing more; the next start does."""
        self._stopped = True

    def begin(self, publication: Publication, *, starting: bool) -> None:
        """Roll a committed publication forward.

        Args:
            starting: an earlier process committed it, so its stages and partitions may be damaged.
        """
        progress = _Progress(
            publication,
            self._loop.create_future(),
            frozenset(part.topic_id for part in publication.parts),
            list(publication.parts),
        )
        self._progress[publication.number] = progress
        self._unproposed.append(_Unproposed(progress, iter(publication.parts), starting))
        if len(self._unproposed) > 1:
            return
        if starting:
            self._propose_parts()
        else:
            # In a step of its own: the commit of thousands of stages takes one, too.
            self._loop.call_soon(self._propose_parts)

    # --- questions --------------------------------------------------------------------------------

    def invisible_of_topic(self, topic_id: bytes) -> set[str]:
        """The sinks whose publications have parts of a topic and are not visible."""
        return {
            progress.publication.sink_id
            for progress in self._progress.values()
            if not progress.visible.done() and topic_id in progress.topic_ids
        }

    async def wait_visible(self, number: int) -> None:
        """Return once a publication is visible.

        Raises:
            CorruptData: a damaged partition cannot take its part.
        """
        progress = self._progress.get(number)
        if progress is None:
            return
        await progress.known.wait()
        for _, damage in progress.stuck:
            raise CorruptData(str(damage))
        await asyncio.shield(progress.visible)

    async def wait_sink_visible(self, sink_id: str) -> None:
        """`wait_visible` for all publications of a sink."""
        for progress in list(self._progress.values()):
            if progress.publication.sink_id == sink_id:
                await self.wait_visible(progress.publication.number)

    # --- the way ----------------------------------------------------------------------------------

    def _advance(self, progress: _Progress, event: RollForwardEvent) -> None:
        progress.state = next_state(progress.state, event)

    def _propose_parts(self) -> None:
        """Propose the parts to their partitions, some of them in each iteration of the loop."""
        looked_at = 0
        while self._unproposed and not self._stopped:
            progress, parts, starting = self._unproposed[0]
            for part in parts:
                self._propose_part(progress, part, starting=starting)
                looked_at += len(progress.publication.stage_ids)
                if looked_at >= STAGES_PER_ITERATION:
                    self._loop.call_soon(self._propose_parts)
                    return
            self._unproposed.popleft()
            self._advance(progress, RollForwardEvent.ALL_PROPOSED)
            self._maybe_visible(progress)

    def _propose_part(self, progress: _Progress, part: PublicationPart, *, starting: bool) -> None:
        publication, replica = progress.publication, self._replica(part)
        if replica is None or replica.publication >= publication.number:
            return
        progress.unapplied += 1
        if not starting or self._can_apply(progress, part, replica):
            self._send(progress, part, replica)

    def _send(self, progress: _Progress, part: PublicationPart, replica: PartitionReplica) -> None:
        publication = progress.publication
        command = self._publish_parts(publication, part)
        if command is None:
            damage = CorruptData(f"publication {publication.number} has other stages than it had")
            self._partitions.set_fault(replica, damage)
            self._stick(progress, part, damage)
            return
        self._propose(replica, command.SerializeToString(), partial(self._answered, progress, part))

    def _send_behind(self, progress: _Progress, part: PublicationPart, *_: object) -> None:
        """Propose a part again as soon as its predecessor is in its partition."""
        if self._stopped:
            return
        replica = self._replica(part)
        if replica is None:
            self._applied(progress)
        elif replica.publication < part.predecessor:
            replica.waiter().add_done_callback(partial(self._send_behind, progress, part))
        else:
            self._send(progress, part, replica)

    def _can_apply(self, progress: _Progress, part: PublicationPart, replica: PartitionReplica) -> bool:
        """True if partition and stages are undamaged at a start; else the part is stuck."""
        if replica.fault is None:
            missing = self._missing(progress.publication, part)
            if missing is not None:
                self._partitions.set_fault(replica, missing)
        if replica.fault is not None:
            self._stick(progress, part, replica.fault)
        return replica.fault is None

    def _stick(self, progress: _Progress, part: PublicationPart, damage: CorruptData) -> None:
        progress.stuck.append((part, damage))
        progress.known.set()

    def _missing(self, publication: Publication, part: PublicationPart) -> CorruptData | None:
        """The damage of the stages that keeps a partition from its part, if there is any."""
        names = [StageName(publication.sink_id, stage_id) for stage_id in publication.stage_ids]
        stages = [self._stages.get(name) for name in names]
        for name, stage in zip(names, stages, strict=True):
            if stage is None or stage.record is None:
                return CorruptData(
                    f"stage {name.stage_id} of sink {name.sink_id} was published, and is missing"
                    f"{self._stages.may_be_nameless}"
                )
            if stage.fault is not None:
                return stage.fault
        return None

    def _publish_parts(self, publication: Publication, part: PublicationPart) -> PartitionCommand | None:
        """The command for a partition; None if the stages are not what was published."""
        sink_id, key = publication.sink_id, (part.topic_id, part.partition)
        command = PartitionCommand(
            publish_parts=PublishParts(
                publication=publication.number, sink_id=sink_id, predecessor=part.predecessor
            )
        )
        # Made in place: a constructor copies messages that it is given, and there are thousands.
        add, size = command.publish_parts.parts.add, 0
        for stage_id in publication.stage_ids:
            stage = self._stages.get(StageName(sink_id, stage_id))
            staged = None if stage is None else stage.parts.get(key)
            if staged is not None:
                staged_bytes = staged.bytes
                size += staged_bytes
                add(stage_id=stage_id, bytes=staged_bytes, records=staged.records)
        return command if size == part.bytes else None

    def _answered(self, progress: _Progress, part: PublicationPart, result: Any) -> None:
        """A partition has taken its part, or refused it: then it is in none of its records."""
        if isinstance(result, FailedPrecondition):
            self._send_behind(progress, part)
            return
        if isinstance(result, VoidEntry):
            number = progress.publication.number
            damage = CorruptData(
                f"{part.topic}-{part.partition} has not taken publication {number}: {result}"
            )
            log.error("publication refused", publication=number, error=str(damage))
            self._stick(progress, part, damage)
            return
        self._applied(progress)

    def _applied(self, progress: _Progress) -> None:
        """A partition has applied its part, or is deleted."""
        progress.unapplied -= 1
        if progress.state is RollForwardState.APPLYING:
            self._maybe_visible(progress)

    def _maybe_visible(self, progress: _Progress) -> None:
        if progress.unapplied:
            return
        self._advance(progress, RollForwardEvent.ALL_APPLIED)
        resolve(progress.visible, None)
        progress.known.set()
        if not progress.undurable:
            self.maybe_finish()

    def topic_deleted(self, topic_id: bytes) -> None:
        """Drop the parts of a deleted topic."""
        for progress in list(self._progress.values()):
            if topic_id not in progress.topic_ids:
                continue
            stuck = progress.stuck
            progress.stuck = [each for each in stuck if each[0].topic_id != topic_id]
            for _ in range(len(stuck) - len(progress.stuck)):
                self._applied(progress)
        self.maybe_finish()

    def _replica(self, part: PublicationPart) -> PartitionReplica | None:
        """The partition of a part, None if its topic is deleted."""
        topic = self._metadata.topics.get(part.topic)
        if topic is None or topic.topic_id != part.topic_id:
            return None
        return self._partitions.get(TopicPartition(part.topic, part.partition))

    def maybe_finish(self) -> None:
        """Remove the stages of publications that are durable in every partition.

        Called when partitions become durable or go.
        """
        if self._finishing or self._stopped:
            return
        ready = [progress for progress in self._progress.values() if self._is_durable(progress)]
        if not ready:
            return
        self._finishing = True
        for progress in ready:
            self._advance(progress, RollForwardEvent.ALL_DURABLE)
        stages = [
            stage
            for progress in ready
            for stage_id in progress.publication.stage_ids
            if (stage := self._stages.get(StageName(progress.publication.sink_id, stage_id))) is not None
        ]
        self._stages.remove(stages, partial(self._finish, ready))

    def _is_durable(self, progress: _Progress) -> bool:
        number, undurable = progress.publication.number, progress.undurable
        # Each part is passed over once; the search ends at the first that is not durable.
        while undurable:
            replica = self._replica(undurable[-1])
            if replica is not None and replica.durable_publication < number:
                return False
            undurable.pop()
        return progress.state is RollForwardState.VISIBLE

    def _finish(self, ready: Sequence[_Progress]) -> None:
        if self._stopped:
            return  # the next start finds the stages gone and goes on from here
        for progress in ready:
            self._advance(progress, RollForwardEvent.STAGES_REMOVED)
        numbers = [progress.publication.number for progress in ready]

        def finished(_: Any) -> None:
            for progress in ready:
                self._advance(progress, RollForwardEvent.FORGOTTEN)
                del self._progress[progress.publication.number]
            self._finishing = False
            self.maybe_finish()

        command = SinksCommand(finish_publications=FinishPublications(publications=numbers))
        self._propose(self._sinks, command.SerializeToString(), finished)

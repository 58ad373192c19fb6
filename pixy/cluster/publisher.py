"""Publishes stages: the commit point in the state group `sinks`, and what follows from it in the partitions.

    PublishStages is applied         the publication has a number, and happens
    PublishParts in each partition   its records have offsets and are readable; the publication is visible and answered
    applied positions                each partition has its part in synced segments
    stages removed                   durably
    FinishPublications is applied    the publication is forgotten

After a crash at any place the next start goes on from there: a partition knows the last publication that it has applied, and numbers
ascend, so whatever is above that is proposed to it, again or for the first time. Whether a stage was published is known as long as it
is there.

A partition that is damaged at a start gets nothing; its publications stay, and so do their stages, until it is mended or its topic
deleted. A part of a topic that is deleted is dropped.

Here is also what goes with time: stages of sinks that do nothing, and sinks.

Invariant: publications are proposed to a partition in the order of their numbers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import structlog

from pixy.cluster.metadata import MetadataState, Topic
from pixy.cluster.partitions import Partitions
from pixy.cluster.replica import PartitionReplica, Replica
from pixy.cluster.sinks import NotNew, Publication, SinksState, StageName
from pixy.cluster.stage_expiry import StageExpiry
from pixy.cluster.stages import Seal, Stage, Stages, merged_parts
from pixy.cluster.turns import in_turns
from pixy.config import StagingConfig
from pixy.errors import CorruptData, FailedPrecondition, PixyError, Unavailable
from pixy.futures import resolve
from pixy.proto.state_pb2 import (
    ExpireSinks,
    FinishPublications,
    PartitionCommand,
    PublicationPart,
    PublishedPart,
    PublishParts,
    PublishStages,
    SinksCommand,
)
from pixy.records import TopicPartition
from pixy.storage import PieceBatches

__all__ = ["PUBLICATIONS_MAX", "Published", "Publisher"]

log = structlog.get_logger(__name__)

PUBLICATIONS_MAX = 1000
"""Publications that are not finished; more are refused for the moment."""

_ONE_TIME_SINK_S = 3600.0
"""How long a sink without a query is remembered at most: its call may be repeated so long."""
_SINKS_PER_TURN = 500
_STAGES_PER_TURN = 1000
"""Each takes 2 or 3 microseconds for each partition that it may have something for."""

Propose = Callable[[Replica, bytes, Callable[[Any], None]], None]


class Published(NamedTuple):
    """The outcome of a publish.

    Attributes:
        published: False if the epoch was published before.
        last_epoch: the last epoch that the sink has published.
    """

    published: bool
    last_epoch: int


@dataclass(eq=False, slots=True)
class _Progress:
    """How far a publication has come.

    Attributes:
        unapplied: partitions that have not applied their part.
        undurable: the parts that are not known to be durable.
        stuck: the parts of partitions that are damaged, with what is wrong: as long as there are any, it does not become visible.
        visible: ends when it is.
        topic_ids: the topics that get anything.
    """

    publication: Publication
    visible: asyncio.Future[None]
    topic_ids: frozenset[bytes]
    unapplied: int = 0
    undurable: list[PublicationPart] = field(default_factory=list)
    stuck: list[tuple[PublicationPart, CorruptData]] = field(default_factory=list)


class _Unproposed(NamedTuple):
    """A publication, and the parts of it that have not been proposed; `starting` if it was committed by an earlier process."""

    progress: _Progress
    parts: Iterator[PublicationPart]
    starting: bool


class Publisher:
    """Staged writes of one node.

    Args:
        state: the state machine of the group `sinks`.
        stages: what is staged.
        metadata: the topics.
        partitions: their partitions.
        config: how long what is kept.
        now_ms: the node's time.
        propose: proposes a command to a raft group, and calls back with the result of applying it.
        sinks: the replica of the group `sinks`.
    """

    def __init__(
        self,
        state: SinksState,
        stages: Stages,
        metadata: MetadataState,
        partitions: Partitions,
        config: StagingConfig,
        now_ms: Callable[[], int],
        propose: Propose,
        sinks: Replica,
    ) -> None:
        self._state = state
        self._stages = stages
        self._metadata = metadata
        self._partitions = partitions
        self._config = config
        self._now_ms = now_ms
        self._propose = propose
        self._sinks = sinks
        self._loop = asyncio.get_running_loop()
        # Sinks of which a publication is being committed.
        self._committing: dict[str, asyncio.Future[None]] = {}
        # Of unfinished publications by number, ascending.
        self._progress: dict[int, _Progress] = {}
        # Those that are to be proposed next, by number, ascending.
        self._unproposed: deque[_Unproposed] = deque()
        self._finishing = False
        self._stopped = False
        self._expiry = StageExpiry(stages, config.expiry, now_ms, self._may_go)
        # Topics that are being deleted: nothing more may be staged for them.
        self._deleting: set[bytes] = set()

    def start(self) -> None:
        """Go on with what was not finished. The partitions and stages are recovered."""
        for publication in self._state.publications.values():
            log.info("going on with a publication", sink=publication.sink_id, publication=publication.number)
            self._roll_forward(publication, starting=True)
        self.maybe_finish()

    def stop(self) -> None:
        """Finish nothing any more; the next start does."""
        self._stopped = True

    # --- what is asked for --------------------------------------------------------------------------------------

    async def stage(
        self, name: StageName, piece: int, batches: Sequence[PieceBatches], seal: Seal | None
    ) -> int:
        """Take a piece of a stage, or seal it, or both; returns the bytes that the stage has. As `Backend.stage`."""
        self._expiry.staged(name)
        if self._state.is_published(name):
            raise FailedPrecondition(f"stage {name.stage_id} of sink {name.sink_id} was published")
        for each in batches:
            if each.topic_id in self._deleting:
                raise FailedPrecondition(f"topic {each.topic} is being deleted")
        try:
            return await self._stages.stage(name, piece, batches, seal)
        finally:
            self._expiry.staged(name)

    async def publish(
        self,
        sink_id: str,
        epoch: int,
        query_id: str,
        stage_ids: Sequence[str],
        *,
        reset: bool = False,
        replaces: str = "",
    ) -> Published:
        """Make stages visible, all or none; on return they are. As `Backend.publish`."""
        self.touch(sink_id)
        while (committing := self._committing.get(sink_id)) is not None:
            await asyncio.shield(committing)
        command = PublishStages(
            sink_id=sink_id,
            epoch=epoch,
            query_id=query_id,
            reset_sink=reset,
            replaces_query_id=replaces,
            stage_ids=stage_ids,
        )
        refusal = self._state.judge(command)
        if isinstance(refusal, NotNew):
            return await self._answer_again(sink_id, refusal)
        if refusal is not None:
            raise refusal
        if len(self._progress) >= PUBLICATIONS_MAX:
            raise Unavailable(f"{PUBLICATIONS_MAX} publications are not finished yet; try again")
        stages = [self._publishable(StageName(sink_id, stage_id)) for stage_id in stage_ids]
        command.parts.extend(self._parts(stages))
        command.timestamp_ms = self._now_ms()
        result = await self._commit(command, stages)
        if isinstance(result, NotNew):
            return await self._answer_again(sink_id, result)
        if isinstance(result, PixyError):
            raise result
        assert isinstance(result, Publication)
        await self._wait_visible(result.number)
        return Published(True, epoch)

    async def discard(self, sink_id: str, stage_ids: Iterable[str]) -> None:
        """Drop stages that were not published. As `Backend.discard`."""
        self.touch(sink_id)
        names = [StageName(sink_id, stage_id) for stage_id in stage_ids]
        stages = [stage for name in names if (stage := self._stages.get(name)) and self._may_go(stage)]
        if stages:
            gone: asyncio.Future[None] = self._loop.create_future()
            self._stages.remove(stages, partial(resolve, gone, None))
            await asyncio.shield(gone)

    def staged_by(self, topic_id: bytes) -> list[str]:
        """The sinks that have records of a topic which nobody can read yet."""
        sinks = {stage.name.sink_id for stage in self._stages.of_topic(topic_id) if self._may_go(stage)}
        for progress in self._progress.values():
            if not progress.visible.done() and topic_id in progress.topic_ids:
                sinks.add(progress.publication.sink_id)
        return sorted(sinks)

    @contextmanager
    def deleting(self, topic: Topic, *, force: bool) -> Iterator[None]:
        """While a topic is being deleted: nothing more is staged or published for it.

        Raises:
            FailedPrecondition: records of it are staged, and `force` is not set.
        """
        sinks = self.staged_by(topic.topic_id)
        if sinks and not force:
            raise FailedPrecondition(
                f"records of topic {topic.name} are staged and not published yet, by {len(sinks)} sinks: {', '.join(sinks[:10])}; "
                "with force it is deleted nevertheless, and they are lost"
            )
        self._deleting.add(topic.topic_id)
        try:
            yield
        finally:
            self._deleting.discard(topic.topic_id)

    def _may_go(self, stage: Stage) -> bool:
        """Whether nobody relies on a stage."""
        return not stage.holders and not self._state.is_published(stage.name)

    def _publishable(self, name: StageName) -> Stage:
        if self._state.is_published(name):
            raise FailedPrecondition(f"stage {name.stage_id} of sink {name.sink_id} was published before")
        return self._stages.sealed(name, "it was never sealed, has expired, or was discarded")

    def _parts(self, stages: Sequence[Stage]) -> list[PublicationPart]:
        """What the partitions are to get; proves that all of them can take it."""
        parts = []
        for (topic_id, partition), part in merged_parts(stages).items():
            topic = self._metadata.topics.get(part.topic)
            if topic is None or topic.topic_id != topic_id or topic_id in self._deleting:
                raise FailedPrecondition(f"topic {part.topic} was deleted since records of it were staged")
            replica = self._partitions.get(TopicPartition(part.topic, partition))
            assert replica is not None
            if replica.fault is not None:
                raise CorruptData(str(replica.fault))
            parts.append(
                PublicationPart(
                    topic=part.topic,
                    topic_id=topic_id,
                    partition=partition,
                    bytes=part.bytes,
                    records=part.records,
                )
            )
        return parts

    async def _commit(self, command: PublishStages, stages: Sequence[Stage]) -> Any:
        """Propose a publication; what comes of it happens also if the caller goes away."""
        result: asyncio.Future[Any] = self._loop.create_future()
        committed: asyncio.Future[None] = self._loop.create_future()
        self._committing[command.sink_id] = committed
        for stage in stages:
            stage.holders += 1

        def applied(outcome: Any) -> None:
            for stage in stages:
                stage.holders -= 1
            del self._committing[command.sink_id]
            resolve(committed, None)
            resolve(result, outcome)

        payload = SinksCommand(publish_stages=command).SerializeToString()
        self._propose(self._sinks, payload, applied)
        return await result

    async def _answer_again(self, sink_id: str, refusal: NotNew) -> Published:
        """An epoch was published before: that its answer promised that everything is visible still holds."""
        for progress in list(self._progress.values()):
            if progress.publication.sink_id == sink_id:
                await self._wait_visible(progress.publication.number)
        return Published(False, refusal.last_epoch)

    async def _wait_visible(self, number: int) -> None:
        progress = self._progress.get(number)
        if progress is None:
            return
        for _, damage in progress.stuck:
            raise CorruptData(str(damage))
        await asyncio.shield(progress.visible)

    # --- roll forward -------------------------------------------------------------------------------------------

    def committed(self, publication: Publication) -> None:
        """A publication was applied: from here on it happens."""
        self._expiry.published(publication.sink_id)
        self._roll_forward(publication, starting=False)

    def _roll_forward(self, publication: Publication, *, starting: bool) -> None:
        topic_ids = frozenset(part.topic_id for part in publication.parts)
        progress = _Progress(publication, self._loop.create_future(), topic_ids)
        self._progress[publication.number] = progress
        progress.undurable = list(publication.parts)
        # Counted as one more until all have been proposed.
        progress.unapplied = 1
        self._unproposed.append(_Unproposed(progress, iter(publication.parts), starting))
        if len(self._unproposed) == 1:
            self._propose_parts()

    def _propose_parts(self) -> None:
        """Propose to partitions what they get, to some of them in each turn of the loop."""
        looked_at = 0
        while self._unproposed and not self._stopped:
            progress, parts, starting = self._unproposed[0]
            for part in parts:
                self._propose_part(progress, part, starting=starting)
                looked_at += len(progress.publication.stage_ids)
                if looked_at >= _STAGES_PER_TURN:
                    self._loop.call_soon(self._propose_parts)
                    return
            self._unproposed.popleft()
            self._applied(progress, None)

    def _propose_part(self, progress: _Progress, part: PublicationPart, *, starting: bool) -> None:
        publication, replica = progress.publication, self._replica(part)
        if replica is None or replica.publication >= publication.number:
            return
        progress.unapplied += 1
        if not starting or self._can_apply(progress, part, replica):
            command = self._publish_parts(publication, part)
            self._propose(replica, command.SerializeToString(), partial(self._applied, progress))

    def _can_apply(self, progress: _Progress, part: PublicationPart, replica: PartitionReplica) -> bool:
        """Whether a partition can take its part at a start: it is whole, and so are the stages."""
        if replica.fault is None:
            missing = self._missing(progress.publication, part)
            if missing is not None:
                self._partitions.set_fault(replica, missing)
        if replica.fault is not None:
            progress.stuck.append((part, replica.fault))
        return replica.fault is None

    def _missing(self, publication: Publication, part: PublicationPart) -> CorruptData | None:
        """What keeps a partition from getting its part."""
        names = [StageName(publication.sink_id, stage_id) for stage_id in publication.stage_ids]
        stages = [self._stages.get(name) for name in names]
        for name, stage in zip(names, stages, strict=True):
            if stage is None or stage.record is None:
                return CorruptData(
                    f"stage {name.stage_id} of sink {name.sink_id} was published, and is missing"
                )
            if stage.fault is not None:
                return stage.fault
        return None

    def _publish_parts(self, publication: Publication, part: PublicationPart) -> PartitionCommand:
        parts = []
        for stage_id in publication.stage_ids:
            stage = self._stages.get(StageName(publication.sink_id, stage_id))
            staged = None if stage is None else stage.parts.get((part.topic_id, part.partition))
            if staged is not None:
                parts.append(PublishedPart(stage_id=stage_id, bytes=staged.bytes, records=staged.records))
        assert sum(each.bytes for each in parts) == part.bytes, f"{publication} has other stages than it had"
        return PartitionCommand(
            publish_parts=PublishParts(
                publication=publication.number, sink_id=publication.sink_id, parts=parts
            )
        )

    def _applied(self, progress: _Progress, _: Any) -> None:
        """One of the partitions has its part, or is no more."""
        progress.unapplied -= 1
        if not progress.unapplied:
            resolve(progress.visible, None)
            if not progress.undurable:
                self.maybe_finish()

    def topic_deleted(self, topic_id: bytes) -> None:
        """A topic is deleted: what it was to get is dropped."""
        for progress in list(self._progress.values()):
            if topic_id not in progress.topic_ids:
                continue
            stuck = progress.stuck
            progress.stuck = [each for each in stuck if each[0].topic_id != topic_id]
            for _ in range(len(stuck) - len(progress.stuck)):
                self._applied(progress, None)
        self.maybe_finish()

    def _replica(self, part: PublicationPart) -> PartitionReplica | None:
        """The partition that gets a part, None if its topic is deleted."""
        topic = self._metadata.topics.get(part.topic)
        if topic is None or topic.topic_id != part.topic_id:
            return None
        return self._partitions.get(TopicPartition(part.topic, part.partition))

    def maybe_finish(self) -> None:
        """Some partitions have become durable, or are no more: remove the stages of publications that need them no longer."""
        if self._finishing or self._stopped:
            return
        ready = [progress for progress in self._progress.values() if self._is_durable(progress)]
        if not ready:
            return
        self._finishing = True
        stages = [
            stage
            for progress in ready
            for stage_id in progress.publication.stage_ids
            if (stage := self._stages.get(StageName(progress.publication.sink_id, stage_id))) is not None
        ]
        self._stages.remove(stages, partial(self._finish, ready))

    def _is_durable(self, progress: _Progress) -> bool:
        number, undurable = progress.publication.number, progress.undurable
        # Each part is passed once, and the first that is not durable is the last that is looked at.
        while undurable:
            replica = self._replica(undurable[-1])
            if replica is not None and replica.durable_publication < number:
                return False
            undurable.pop()
        return progress.visible.done()

    def _finish(self, ready: Sequence[_Progress]) -> None:
        if self._stopped:
            return  # the next start finds the stages gone, and goes on from here
        numbers = [progress.publication.number for progress in ready]

        def finished(_: Any) -> None:
            for number in numbers:
                del self._progress[number]
            self._finishing = False
            self.maybe_finish()

        command = SinksCommand(finish_publications=FinishPublications(publications=numbers))
        self._propose(self._sinks, command.SerializeToString(), finished)

    # --- what goes with time ------------------------------------------------------------------------------------

    def touch(self, sink_id: str) -> None:
        """A sink does something, or tries to; that matters only to the stages that it has."""
        self._expiry.touch(sink_id)

    def expire(self) -> None:
        """Drop the stages that have waited for `staging.expiry`, and forget sinks that are to be forgotten."""
        self._expiry.expire()
        now_ms = self._now_ms()
        one_time_s = min(self._config.expiry, _ONE_TIME_SINK_S)
        in_turns(self._expire_sinks(now_ms - round(one_time_s * 1000), one_time=True))
        if self._config.sink_retention:
            in_turns(self._expire_sinks(now_ms - round(self._config.sink_retention * 1000), one_time=False))

    def _expire_sinks(self, before_ms: int, *, one_time: bool) -> Iterator[None]:
        """In each step some of them."""
        sinks = self._state.sinks
        remaining = iter(list(sinks))
        while (some := list(islice(remaining, _SINKS_PER_TURN))) and not self._stopped:
            quiet = [
                sink_id
                for sink_id in some
                if self._state.is_inactive_since(sink_id, before_ms)
                and one_time is not bool(sinks[sink_id].query_id)
            ]
            if quiet:
                command = SinksCommand(expire_sinks=ExpireSinks(sink_ids=quiet, before_ms=before_ms))
                self._propose(self._sinks, command.SerializeToString(), lambda _: None)
            yield

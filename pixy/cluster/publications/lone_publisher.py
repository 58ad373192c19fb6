"""Stages that only this node has, and their publication: one commit point in the state group
`sinks`, then one entry in each partition. Those of several nodes are with `replicated_staging`.

    PublishStages is applied         the publication gets a number and is committed
    PublishParts in each partition   its records are readable, the caller is answered
    applied positions                each partition has its part in synced segments
    stages removed                   durably
    FinishPublications is applied    the publication is forgotten

`roll_forward` owns everything behind the commit point, also after a crash. This module owns the
requests before it (stage, publish, discard), and the expiry of stages and sinks.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import structlog

from pixy.aio.futures import resolve
from pixy.aio.steps import in_steps, run_in_steps
from pixy.clock import Clock
from pixy.cluster.log import StateReplica
from pixy.cluster.publications.roll_forward import Propose, RollForward
from pixy.cluster.replicas import Partitions
from pixy.cluster.state import MetadataState, Publication, SinksState, Topic
from pixy.config import StagingConfig
from pixy.errors import CorruptData, FailedPrecondition, PixyError, Unavailable
from pixy.multiraft import Repeated
from pixy.proto.state_pb2 import ExpireSinks, PublishStages, SinksCommand
from pixy.records import TopicPartition
from pixy.staging import (
    PUBLICATIONS_MAX,
    NotNew,
    Published,
    Stage,
    StageCall,
    StageExpiry,
    StageName,
    Stages,
    sizes_by_topic,
)

log = structlog.get_logger(__name__)

_ONE_TIME_SINK_S = 3600.0
"""Longest retention of a sink without a query: the time in which its call may be repeated."""
_SINKS_PER_ITERATION = 500


class SinksGroup(NamedTuple):
    """The raft group `sinks`: its state machine and its replica."""

    state: SinksState
    replica: StateReplica


class LonePublisher:
    """Staged writes of one node that has no others beside it.

    Args:
        sinks: the raft group `sinks`.
        stages: the stages.
        metadata: the topics.
        partitions: their partitions; an attribute, too.
        config: retention of stages and sinks.
        time: of the node.
        propose: see `Propose`.
    """

    def __init__(
        self,
        sinks: SinksGroup,
        stages: Stages,
        metadata: MetadataState,
        partitions: Partitions,
        config: StagingConfig,
        time: Clock,
        propose: Propose,
    ) -> None:
        self._state, self._sinks = sinks
        self._stages = stages
        self._metadata = metadata
        self.partitions = partitions
        self._config = config
        self._time = time
        self._propose = propose
        self._loop = asyncio.get_running_loop()
        # Publications that are being prepared, or proposed and not committed, by sink.
        self._committing: dict[str, asyncio.Future[None]] = {}
        self._roll_forward = RollForward(sinks.replica, stages, metadata, partitions, propose)
        self._stopped = False
        self._expiry = StageExpiry(
            stages, config.expiry, lambda: round(time.monotonic() * 1000), self._may_go
        )
        # Answers of `is_of_nobody`, which is asked often and of many parts, by publication.
        self._of_nobody: dict[int, bool] = {}
        # Ids of topics under deletion; stages for them are refused.
        self._deleting: set[bytes] = set()

    def start(self) -> None:
        """Roll unfinished publications forward. The partitions and stages are recovered."""
        for publication in self._state.publications.values():
            if publication.stages or self._is_elsewhere(publication):
                continue
            log.info("resuming a publication", sink=publication.sink_id, publication=publication.number)
            self._roll_forward.begin(publication, starting=True)
        self.maybe_finish()

    def stop(self) -> None:
        """Finish nothing more; the next start does."""
        self._stopped = True
        self._roll_forward.stop()

    # --- requests ---------------------------------------------------------------------------------

    def has(self, name: StageName) -> bool:
        """True if a stage is here."""
        return self._stages.get(name) is not None

    async def stage(self, call: StageCall) -> int:
        """Accept a piece of a stage, seal the stage, or both; returns the size of the stage.

        As `StagedWrites.stage`.
        """
        name = call.name
        self._expiry.staged(name)
        if self._state.is_published(name):
            raise FailedPrecondition(f"stage {name.stage_id} of sink {name.sink_id} was published")
        for each in call.batches:
            if each.topic_id in self._deleting:
                raise FailedPrecondition(f"topic {each.topic} is being deleted")
        try:
            return await self._stages.stage(call)
        finally:
            self._expiry.staged(name)

    async def publish(self, command: PublishStages) -> Published:
        """Make stages visible, all or none, and return once they are.

        As `StagedWrites.publish`; the time and what is staged are added to the command.
        """
        sink_id = command.sink_id
        self.touch(sink_id)
        while (committing := self._committing.get(sink_id)) is not None:
            await asyncio.shield(committing)
        refusal = self._state.judge(command)
        if isinstance(refusal, NotNew):
            return await self._answer_again(sink_id, refusal)
        if refusal is not None:
            raise refusal
        if len(self._roll_forward) >= PUBLICATIONS_MAX:
            raise Unavailable(f"{PUBLICATIONS_MAX} publications are not finished yet; try again").at_limit(
                "unfinished publications"
            )
        stages = [self._publishable(StageName(sink_id, stage_id)) for stage_id in command.stage_ids]
        self._committing[sink_id] = self._loop.create_future()
        try:
            with _held(stages):
                await self._add_parts(command, stages)
        except BaseException:
            self._end_commit(sink_id)
            raise
        command.timestamp_ms = self._time.wall_ms()
        result = await self._commit(command, stages)
        if isinstance(result, NotNew):
            return await self._answer_again(sink_id, result)
        if isinstance(result, PixyError):
            raise result
        if isinstance(result, Repeated):
            return await self._answer_again(sink_id, NotNew(command.epoch))
        assert isinstance(result, Publication)
        await self._roll_forward.wait_visible(result.number)
        return Published(True, command.epoch, sizes_by_topic(command.parts))

    async def discard(self, sink_id: str, stage_ids: Iterable[str]) -> None:
        """Drop stages that were not published. As `StagedWrites.discard`."""
        self.touch(sink_id)
        names = [StageName(sink_id, stage_id) for stage_id in stage_ids]
        stages = [stage for name in names if (stage := self._stages.get(name)) and self._may_go(stage)]
        if stages:
            gone: asyncio.Future[None] = self._loop.create_future()
            self._stages.remove(stages, partial(resolve, gone, None))
            await asyncio.shield(gone)

    def staged_by(self, topic_id: bytes) -> list[str]:
        """The sinks with records of a topic that are staged or not visible yet."""
        sinks = {stage.name.sink_id for stage in self._stages.of_topic(topic_id) if self._may_go(stage)}
        return sorted(sinks | self._roll_forward.invisible_of_topic(topic_id))

    def needs_only_replicas(self, topic_id: bytes) -> bool:
        """True while this node has stages with records of a topic, or publications of such stages
        that are not finished: partitions of it cannot get other replicas, which have no stages.
        """
        return bool(self._stages.of_topic(topic_id)) or any(
            not publication.stages and any(part.topic_id == topic_id for part in publication.parts)
            for publication in self._state.publications.values()
        )

    @contextmanager
    def deleting(self, topic: Topic, *, force: bool) -> Iterator[None]:
        """Context in which stages and publications for a topic are refused, for its deletion.

        Raises:
            FailedPrecondition: records of it are staged, and `force` is not set.
        """
        sinks = self.staged_by(topic.topic_id)
        if sinks and not force:
            raise staged_error(topic, sinks)
        self._deleting.add(topic.topic_id)
        try:
            yield
        finally:
            self._deleting.discard(topic.topic_id)

    def is_deleting(self, topic_id: bytes) -> bool:
        """True while a topic is being deleted."""
        return topic_id in self._deleting

    def _may_go(self, stage: Stage) -> bool:
        """True if no publication uses the stage."""
        return not stage.holders and not self._state.is_published(stage.name)

    def _publishable(self, name: StageName) -> Stage:
        if self._state.is_published(name):
            raise FailedPrecondition(f"stage {name.stage_id} of sink {name.sink_id} was published before")
        return self._stages.sealed(name, "it was never sealed, has expired, or was discarded")

    async def _add_parts(self, command: PublishStages, stages: Sequence[Stage]) -> None:
        """Add the parts of a publication to its command, in steps; raises if a partition cannot
        take its part.
        """
        merged: dict[tuple[bytes, int], list[Any]] = {}
        async for key, part in in_steps(chain.from_iterable(stage.parts.items() for stage in stages)):
            total = merged.get(key)
            if total is None:
                merged[key] = [part.topic, part.bytes, part.records]
            else:
                total[1] += part.bytes
                total[2] += part.records
        topics = {(topic, topic_id) for (topic_id, _), (topic, _, _) in merged.items()}
        self._check_topics(topics)
        async for (topic_id, partition), (topic, size, records) in in_steps(merged.items()):
            replica = self.partitions.get(TopicPartition(topic, partition))
            if replica is not None and replica.fault is not None:
                raise CorruptData(str(replica.fault))
            command.parts.add(
                topic=topic, topic_id=topic_id, partition=partition, bytes=size, records=records
            )
        self._check_topics(topics)

    def _check_topics(self, topics: Iterable[tuple[str, bytes]]) -> None:
        for name, topic_id in topics:
            topic = self._metadata.topics.get(name)
            if topic is None or topic.topic_id != topic_id or topic_id in self._deleting:
                raise FailedPrecondition(f"topic {name} was deleted since records of it were staged")

    async def _commit(self, command: PublishStages, stages: Sequence[Stage]) -> Any:
        """Propose a publication and return the result.

        It takes effect even if the caller goes away.
        """
        result: asyncio.Future[Any] = self._loop.create_future()
        for stage in stages:
            stage.holders += 1

        def applied(outcome: Any) -> None:
            for stage in stages:
                stage.holders -= 1
            self._end_commit(command.sink_id)
            resolve(result, outcome)

        payload = SinksCommand(publish_stages=command).SerializeToString()
        self._propose(self._sinks, payload, applied)
        return await result

    def _end_commit(self, sink_id: str) -> None:
        resolve(self._committing.pop(sink_id), None)

    async def _answer_again(self, sink_id: str, refusal: NotNew) -> Published:
        """The answer to a repeated epoch, once its publication is visible, as the first answer
        promised.
        """
        await self._roll_forward.wait_sink_visible(sink_id)
        return Published(False, refusal.last_epoch)

    def committed(self, publication: Publication) -> None:
        """A publication was applied to `sinks`: from here on it happens."""
        self._expiry.published(publication.sink_id)
        if not publication.stages and not self._is_elsewhere(publication):
            self._roll_forward.begin(publication, starting=False)

    def _is_elsewhere(self, publication: Publication) -> bool:
        """True unless this node rolls a publication forward: the one that has its stages, and the
        only replica of each partition.
        """
        nodes = self.partitions.only_replicas(publication.parts, self._metadata.topics)
        return not nodes <= {self.partitions.node_id}

    def is_of_nobody(self, publication: Publication) -> bool:
        """True for a publication of stages in a directory that no node can have: there is none with
        the only replica of each partition. A release that did not judge publications took it.
        """
        found = self._of_nobody.get(publication.number)
        if found is None:
            nodes = self.partitions.only_replicas(publication.parts, self._metadata.topics)
            found = not publication.stages and (len(nodes) > 1 or 0 in nodes)
            if len(self._of_nobody) > 2 * PUBLICATIONS_MAX:
                self._of_nobody.clear()
            self._of_nobody[publication.number] = found
        return found

    def topic_deleted(self, topic_id: bytes) -> None:
        """Drop what publications have for a deleted topic."""
        self._roll_forward.topic_deleted(topic_id)

    def maybe_finish(self) -> None:
        """See `RollForward.maybe_finish`."""
        self._roll_forward.maybe_finish()

    # --- expiry -----------------------------------------------------------------------------------

    def touch(self, sink_id: str) -> None:
        """Note activity of a sink, which keeps its stages from expiry."""
        self._expiry.touch(sink_id)

    def expire(self, age_ms: int) -> None:
        """Drop stages older than `staging.expiry`; the leader of `sinks` forgets inactive ones.

        Args:
            age_ms: time to measure ages by.
        """
        self._expiry.expire()
        if not self._sinks.group.decides:
            return
        one_time_s = min(self._config.expiry, _ONE_TIME_SINK_S)
        run_in_steps(self._expire_sinks(age_ms - round(one_time_s * 1000), one_time=True))
        if self._config.sink_retention:
            run_in_steps(
                self._expire_sinks(age_ms - round(self._config.sink_retention * 1000), one_time=False)
            )

    def _expire_sinks(self, before_ms: int, *, one_time: bool) -> Iterator[None]:
        """Propose the expiry of inactive sinks, `_SINKS_PER_ITERATION` of them per step."""
        sinks = self._state.sinks
        remaining = iter(list(sinks))
        while (some := list(islice(remaining, _SINKS_PER_ITERATION))) and not self._stopped:
            quiet = [
                sink_id
                for sink_id in some
                if self._state.is_inactive_since(sink_id, before_ms)
                and one_time is not bool(sinks[sink_id].query_id)
            ]
            if quiet:
                command = SinksCommand(expire_sinks=ExpireSinks(sink_ids=quiet, before_ms=before_ms))
                self.propose_to_sinks(command)
            yield

    def propose_to_sinks(self, command: SinksCommand) -> None:
        """Propose a command whose result nobody waits for."""
        self._propose(self._sinks, command.SerializeToString(), lambda _: None)


@contextmanager
def _held(stages: Sequence[Stage]) -> Iterator[None]:
    """Context in which stages are neither discarded nor expired."""
    for stage in stages:
        stage.holders += 1
    try:
        yield
    finally:
        for stage in stages:
            stage.holders -= 1


def staged_error(topic: Topic, sinks: Sequence[str]) -> FailedPrecondition:
    """The error of a deletion of a topic with unpublished records of these sinks."""
    return FailedPrecondition(
        f"records of topic {topic.name} are staged and not published yet, by {len(sinks)} sinks: {', '.join(sinks[:10])}; "
        "force deletes the topic with them"
    )

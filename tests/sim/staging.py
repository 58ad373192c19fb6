"""Workload of staged writes: stages in pieces, some repeated, some out of order, some abandoned;
repeated publications.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pixy.backend import EmbeddedBackend, StagedBatches, StageSeal
from pixy.cluster import MetadataState, Node, NodeOptions
from pixy.cluster.log.node_log import NodeLog
from pixy.cluster.log.recovery import RecoveredNode
from pixy.cluster.log.replica import PartitionReplica, Replica
from pixy.cluster.replicas.command_proposals import CommandProposals
from pixy.cluster.replicas.partitions import Partitions
from pixy.errors import (
    FailedPrecondition,
    PixyError,
    ShuttingDown,
    StorageFault,
    Unavailable,
    UnknownPartition,
)
from pixy.proto.state_pb2 import PartitionCommand
from pixy.records import NewRecord, TopicPartition, build_batch, crc32c
from pixy.staging import StageName
from pixy.storage import Worker
from tests.sim.model_offsets import PartitionId
from tests.sim.model_partition import Sent
from tests.sim.model_staging import Attempt, SinkModel, StagedBatch, StageModel
from tests.sim.world import World

SINKS = ("s", "t")
QUERIES = ("q", "r")
_SIZES = (0, 40, 300, 300, 1500, 4000)


class ObservedNode(Node):
    """A node that reports proposals of publications to the model."""

    def __init__(self, world: World, options: NodeOptions, on_fault: Callable[[BaseException], None]) -> None:
        super().__init__(world.disk, world.clock, options, on_fault)
        self._world = world

    async def _write_first_entry(self) -> None:
        await super()._write_first_entry()
        # The next step rolls publications forward, so the state found by the start is recorded
        # first.
        model = self._world.model
        stages = self._storage.stages
        found = [stage for sink_id in stages.sinks() for stage in stages.of_sink(sink_id)]
        assert all(stage.fault is None for stage in found), "a crash has damaged a stage"
        model.see(self.metadata)
        for id, replica in self.whole_partitions().items():
            model.partition(id).adopt_end(replica.log.end_offset)
        model.staging.adopt(self.publisher._state)

    def whole_partitions(self) -> dict[PartitionId, PartitionReplica]:
        """Ready partitions."""
        return {
            PartitionId(replica.log.identity.topic_id, replica.log.identity.partition): replica
            for replica in self.partitions
            if replica.fault is None
        }

    def check_publications(self) -> None:
        """Raise AssertionError if a publication is partial."""
        model = self._world.model
        model.see(self.metadata)
        model.staging.check({id: model.partition(id) for id in self.whole_partitions()})

    def _open(self, recovered: RecoveredNode, files: Worker) -> None:
        super()._open(recovered, files)
        self._proposals = _ObservedProposals(self._log, self.partitions, self.metadata, self._world)


class _ObservedProposals(CommandProposals):
    """Proposals that report those of publications."""

    def __init__(
        self, node_log: NodeLog, partitions: Partitions, metadata: MetadataState, world: World
    ) -> None:
        super().__init__(node_log, partitions, lambda _: "")
        self._metadata = metadata
        self._world = world

    def propose_and_tell(self, replica: Replica, payload: bytes, done: Callable[[Any], None]) -> None:
        command = PartitionCommand.FromString(payload) if isinstance(replica, PartitionReplica) else None
        if command is None or not command.HasField("publish_parts"):
            super().propose_and_tell(replica, payload, done)
            return
        assert isinstance(replica, PartitionReplica)
        model = self._world.model
        model.see(self._metadata)
        identity = replica.log.identity
        of = model.partition(PartitionId(identity.topic_id, identity.partition))
        id = PartitionId(identity.topic_id, identity.partition)
        numbers = model.staging.proposed(id, of, command.publish_parts, self._world.clock.true_ms())
        self._world.counts["parts published"] += 1

        def answered(result: Any) -> None:
            for number in numbers:
                if isinstance(result, UnknownPartition):
                    of.answer(number)
                else:
                    assert result is None, result
                    of.acknowledge(number)
            done(result)

        super().propose_and_tell(replica, payload, answered)


class StagingWorkload:
    """Makes random staged writes.

    Args:
        world: the world of the node.
        read_failed: predicate that is true after a failed read of the disk.

    Attributes:
        told: True if a caller got an error about a disk failure.
    """

    def __init__(
        self,
        world: World,
        node: Node,
        backend: EmbeddedBackend,
        read_failed: Callable[[], bool],
    ) -> None:
        self._rng = world.rng
        self._disk = world.disk
        self._model = world.model
        self._clock = world.clock
        self._counts = world.counts
        self._node = node
        self._backend = backend
        self._read_failed = read_failed
        # The batches of each piece.
        self._sent: dict[tuple[str, int, TopicPartition], list[StagedBatch]] = {}
        self.told = False

    # --- stages -----------------------------------------------------------------------------------

    async def stage(self, partitions: list[TopicPartition]) -> None:
        """Stage some pieces, and seal, abandon or discard them."""
        rng, staging = self._rng, self._model.staging
        sink_id = rng.choice(SINKS)
        sink = staging.sink(sink_id)
        stage = staging.new_stage(sink)
        pieces = [self._piece(stage, number, partitions) for number in range(rng.choice((1, 1, 1, 2, 4)))]
        if rng.random() < 0.2:
            await self._stage_at_once(sink_id, stage, pieces)
            return
        order = list(range(len(pieces)))
        if rng.random() < 0.3:
            order = rng.sample(order, len(order)) + rng.choices(order)
        for number in order:
            if not await self._send(sink_id, stage, number, pieces[number], None):
                return
        if rng.random() < 0.1:
            return
        if rng.random() < 0.1:
            await self._discard(sink_id, stage)
            return
        last = order[-1] if rng.random() < 0.5 else None
        again = pieces[last] if last is not None else []
        stage.sealing = True
        for _ in range(rng.choice((1, 1, 2))):
            if not await self._send(sink_id, stage, last or 0, again, _seal_of(pieces)):
                return
        stage.sealed = True
        self._counts["stages"] += 1
        if rng.random() < 0.1:
            await self._discard(sink_id, stage)

    async def _stage_at_once(
        self, sink_id: str, stage: StageModel, pieces: list[list[StagedBatches]]
    ) -> None:
        """Send all pieces and the seal concurrently; a seal that arrives before a piece is
        rejected, and retried.
        """
        seal, stage.sealing = _seal_of(pieces), True
        asked = [self._send(sink_id, stage, number, piece, None) for number, piece in enumerate(pieces)]
        asked.insert(self._rng.randint(0, len(asked)), self._seal_early(sink_id, stage, seal))
        if all(await asyncio.gather(*asked)):
            stage.sealed = await self._send(sink_id, stage, 0, [], seal)
            self._counts["stages at once"] += 1
        else:
            assert not stage.sealed, "a stage is sealed without one of its pieces"

    async def _seal_early(self, sink_id: str, stage: StageModel, seal: StageSeal) -> bool:
        try:
            await self._backend.stage(sink_id, stage.stage_id, 0, [], seal)
        except FailedPrecondition:
            return True
        except (Unavailable, ShuttingDown, StorageFault) as error:
            self._check_refusal(error)
            stage.gone = True
            return False
        stage.sealed = True
        return True

    def _piece(self, stage: StageModel, number: int, partitions: list[TopicPartition]) -> list[StagedBatches]:
        rng = self._rng
        made: list[StagedBatches] = []
        for partition in rng.sample(partitions, min(len(partitions), rng.choice((1, 1, 2, 3)))):
            data, records = b"", 0
            for _ in range(rng.choice((1, 1, 2))):
                batch = [self._record() for _ in range(rng.choice((1, 1, 3)))]
                built = build_batch([NewRecord(key, value, (), at_ms) for key, value, at_ms in batch])
                self._sent.setdefault((stage.stage_id, number, partition), []).append(
                    StagedBatch(batch, len(built))
                )
                data += built
                records += len(batch)
            made.append(StagedBatches(partition, data, records))
        return made

    def _record(self) -> Sent:
        rng = self._rng
        return Sent(None, b"staged" + rng.randbytes(8) + bytes(rng.choice(_SIZES)), self._clock.wall_ms())

    def _expect(self, stage: StageModel, number: int, piece: list[StagedBatches]) -> bool:
        """Record a piece when it is sent, because it is for the topics at that time; returns True
        if these exist.
        """
        topics = self._model.see(self._node.metadata)
        for (name, number_of_partition), _, _ in piece:
            if name not in topics or number_of_partition >= len(topics[name].partitions):
                return False
        stage.pieces[number] = {
            PartitionId(topics[each.partition.topic].topic_id, each.partition.partition): self._sent[
                stage.stage_id, number, each.partition
            ]
            for each in piece
        }
        return True

    async def _send(
        self,
        sink_id: str,
        stage: StageModel,
        number: int,
        piece: list[StagedBatches],
        seal: StageSeal | None,
    ) -> bool:
        """True if a request succeeds; otherwise the stage is abandoned."""
        sink = self._model.staging.sink(sink_id)
        gone = piece and number not in stage.pieces and not self._expect(stage, number, piece)
        try:
            await self._backend.stage(sink_id, stage.stage_id, number, piece, seal)
        except (UnknownPartition, FailedPrecondition) as error:
            ids = {id for each in stage.pieces.values() for id in each}
            gone = gone or stage.gone or any(self._is_deleted(id) for id in ids)
            if not gone and not self._model.staging.may_have_expired(sink, stage):
                raise AssertionError(f"a piece is refused: {error!r}") from error
        except (Unavailable, ShuttingDown, StorageFault) as error:
            self._check_refusal(error)
        else:
            return True  # also after a fault: stages depend only on their own files
        # The state after a failed seal is unknown, and not used.
        stage.gone = True
        return False

    async def _discard(self, sink_id: str, stage: StageModel) -> None:
        stage.gone = True
        try:
            await self._backend.discard(sink_id, [stage.stage_id])
        except ShuttingDown:
            return
        self._counts["stages discarded"] += 1

    def _is_deleted(self, id: PartitionId) -> bool:
        self._model.see(self._node.metadata)
        topic = self._model.topics.by_id(id.topic_id)
        return topic.deleted or any(
            change.what == "delete" and change.name == topic.name for change in self._model.topics.pending
        )

    def _check_refusal(self, error: PixyError) -> None:
        if isinstance(error, StorageFault):
            assert self._disk.failed is not None or self._read_failed(), (
                f"a fault without a reason: {error!r}"
            )
            self._counts["stages that failed"] += 1
            self.told = True

    # --- publications -----------------------------------------------------------------------------

    async def publish(self) -> None:
        """Publish stages of a sink without a publication in flight; sometimes twice concurrently,
        or stages published before.
        """
        rng, staging = self._rng, self._model.staging
        sink_id = rng.choice(SINKS)
        if sink_id in staging.sinks and staging.sinks[sink_id].under_way is not None:
            return
        sink = staging.sink(sink_id)
        if sink.last is not None and rng.random() < 0.2:
            await self._publish_again(sink_id, sink, sink.last)
            return
        ready = [
            stage for stage in sink.stages.values() if stage.sealed or (stage.sealing and rng.random() < 0.2)
        ]
        stages = rng.sample(ready, min(len(ready), rng.choice((1, 1, 2, 3))))
        query_id, epoch = self._next_epoch(sink)
        attempt = Attempt(query_id, epoch, stages)
        staging.attempt(sink, attempt)
        asked = [self._ask(sink_id, attempt) for _ in range(rng.choice((1, 1, 1, 2)))]
        # As children of this task: they end with it.
        results = await asyncio.gather(*asked, return_exceptions=True)
        staging.answered(sink, attempt)
        for result in results:
            if isinstance(result, BaseException):
                self._check_not_published(sink, attempt, result)
            else:
                self._check_published(sink, attempt, result)

    def _next_epoch(self, sink: SinkModel) -> tuple[str, int]:
        rng = self._rng
        if sink.last is None:
            return rng.choice(QUERIES), rng.choice((0, 0, 5))
        if rng.random() < 0.1:
            return next(each for each in QUERIES if each != sink.last.query_id), 0
        return sink.last.query_id, sink.last.epoch + rng.choice((1, 1, 7))

    async def _ask(self, sink_id: str, attempt: Attempt) -> bool:
        stage_ids = [stage.stage_id for stage in attempt.stages]
        published = await self._backend.publish(
            sink_id, attempt.epoch, attempt.query_id, stage_ids, reset=True
        )
        assert published.last_epoch == attempt.epoch
        return published.published

    def _check_published(self, sink: SinkModel, attempt: Attempt, published: bool) -> None:
        if published and not attempt.committed:
            self._model.staging.commit(sink, attempt)  # none of it was proposed to any partition
        assert attempt.committed, "answered as published before, and was not"
        self._counts["publications" if published else "publications that were there already"] += 1
        for id in attempt.parts():
            if not self._is_deleted(id):
                of = self._model.partition(id)
                assert of.tagged(attempt, promised=True) == len(attempt.parts()[id]), (
                    "answered before it is visible"
                )

    def _check_not_published(self, sink: SinkModel, attempt: Attempt, error: BaseException) -> None:
        if isinstance(error, FailedPrecondition):
            if attempt.committed:
                raise AssertionError("a publication happens, and is refused") from error
            staging = self._model.staging
            excuse = any(
                stage.gone or not stage.sealed or staging.may_have_expired(sink, stage)
                for stage in attempt.stages
            ) or any(self._is_deleted(id) for id in attempt.parts())
            assert excuse, f"a sealed stage cannot be published: {error!r}"
            for stage in attempt.stages:
                if not stage.sealed or stage.gone or staging.may_have_expired(sink, stage):
                    sink.stages.pop(stage.stage_id, None)
            self._counts["publications refused"] += 1
        elif not isinstance(error, Unavailable):
            raise error

    async def _publish_again(self, sink_id: str, sink: SinkModel, last: Attempt) -> None:
        try:
            published = await self._backend.publish(
                sink_id,
                self._rng.randint(0, last.epoch),
                last.query_id,
                [stage.stage_id for stage in last.stages],
            )
        except Unavailable:
            return
        assert not published.published, "published twice"
        assert published.last_epoch >= last.epoch or sink.last is not last
        self._counts["publications again"] += 1

    def check_left(self, names: Mapping[str, object]) -> None:
        """Raise AssertionError if a sealed stage is missing, or a published one still exists."""
        staging = self._model.staging
        for sink_id, sink in staging.sinks.items():
            there = {stage.name.stage_id for stage in self._node.publisher._stages.of_sink(sink_id)}
            needed = {
                name
                for name, stage in sink.stages.items()
                if stage.sealed
                and not stage.gone
                and not stage.published
                and not staging.may_have_expired(sink, stage)
            }
            assert needed <= there, f"stages {needed - there} of sink {sink_id} are gone"
            for name in there:
                assert not self._node.publisher._state.is_published(StageName(sink_id, name))
            self._counts["stages left"] += len(there)
        stages = self._node.publisher._stages
        known = [stage for sink_id in stages.sinks() for stage in stages.of_sink(sink_id)]
        expected = {f"{stage.number:020d}" for stage in known}
        assert set(names) <= expected, f"directories of no stages: {set(names) - expected}"
        sealed = {f"{stage.number:020d}" for stage in known if stage.record is not None}
        assert sealed <= set(names), f"directories of stages are gone: {sealed - set(names)}"


def _seal_of(pieces: list[list[StagedBatches]]) -> StageSeal:
    crcs = [crc32c(b"".join(each.batches for each in piece)) for piece in pieces]
    return StageSeal(len(pieces), crc32c(b"".join(crc.to_bytes(4, "big") for crc in crcs)))

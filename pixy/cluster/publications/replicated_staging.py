"""Staged writes with replicas: requests, at whichever node they come.

    OpenStage is applied to `sinks`  the stage has a number
    pieces are brought               to all replicas of each partition, at least to a majority
    StagedPiece in each partition    committed: with its bytes on a majority
    AddPiece is applied to `sinks`   the stage has the piece or seal, and the caller is answered
    PublishStages is applied         the commit point
    FinishPublications is applied    all of it is visible (`replicated_roll_forward`)

Nothing of a stage is kept by the node that takes a piece, so each request may go to another node.
Each step is idempotent, and a request that ends half-way is repeated by its client from the start.
What an unfinished request leaves behind belongs to an open stage, and goes with it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pixy.aio.futures import resolve
from pixy.aio.steps import in_steps
from pixy.cluster.log import PartitionReplica
from pixy.cluster.peering import PartitionProposals
from pixy.cluster.publications.piece_calls import PieceCalls
from pixy.cluster.replicas import Partitions
from pixy.cluster.state import (
    IDENTITY_LEVEL,
    PIECE_BYTES_MAX,
    MetadataState,
    Publication,
    ReplicatedStage,
    SinksState,
)
from pixy.errors import FailedPrecondition, PixyError, ResourceExhausted, Unavailable
from pixy.multiraft import Repeated
from pixy.proto.state_pb2 import (
    AddPiece,
    DiscardStages,
    OpenStage,
    PiecePart,
    PieceRecord,
    PublishStages,
    SealRecord,
    SinksCommand,
    StagedPiece,
    TouchSink,
)
from pixy.records import TopicPartition, crc32c
from pixy.staging import (
    PUBLICATIONS_MAX,
    NewPiece,
    NotNew,
    PieceBatches,
    PieceKey,
    Published,
    StageCall,
    StageClient,
    StageName,
    StageSeal,
)
from pixy.storage import EntryType

_ENTRY_S = 10.0
"""Longest wait for an entry of a partition; a change of leaders takes two seconds."""
_TOUCHES = 8
"""Times that an idle sink is recorded as active within the time after which its stages expire."""


@dataclass(frozen=True, slots=True)
class StagingDependencies:
    """Parts of a node that staged writes use.

    Attributes:
        state: the state group `sinks`, as far as it is applied here.
        metadata, partitions: topics, and their partitions.
        calls: bring pieces to nodes.
        proposals: to partitions.
        command: runs a command in `sinks`; returns its result, or raises it.
        confirm: returns once `sinks`, and metadata, have here what was committed before.
        now_ms: the node's time, to stamp with.
        feature_level: see `StateGroups`.
    """

    state: SinksState
    metadata: MetadataState
    partitions: Partitions
    calls: PieceCalls
    proposals: PartitionProposals
    command: Callable[[SinksCommand], Awaitable[object]]
    confirm: Callable[[], Awaitable[None]]
    now_ms: Callable[[], int]
    feature_level: Callable[[], int]


class ReplicatedStaging:
    """Staged writes of one node.

    Args:
        parts: see `StagingDependencies`.
        expiry_s: seconds after which the stages of an idle sink expire.
        is_deleting: tells whether a topic, by its id, is being deleted.
    """

    def __init__(
        self, parts: StagingDependencies, expiry_s: float, is_deleting: Callable[[bytes], bool]
    ) -> None:
        self._parts = parts
        self._state = parts.state
        self._touch_after_ms = round(expiry_s * 1000) // _TOUCHES
        self._is_deleting = is_deleting
        self._loop = asyncio.get_running_loop()
        # Bytes of pieces that are being brought, by address of the client.
        self._bringing: Counter[str] = Counter()
        # Callers that wait for the end of a publication, by its number.
        self._unfinished: dict[int, asyncio.Future[None]] = {}

    # --- stages -----------------------------------------------------------------------------------

    def has(self, name: StageName) -> bool:
        """True if a stage is replicated, as far as this node knows."""
        return self._state.table.find(name) is not None

    async def stage(self, call: StageCall) -> int:
        """Accept a piece of a stage, seal the stage, or both; returns the size of the stage.

        As `StagedWrites.stage`.
        """
        name = call.name
        if self._state.is_published(name):
            raise FailedPrecondition(f"stage {name.stage_id} of sink {name.sink_id} was published")
        for each in call.batches:
            if self._is_deleting(each.topic_id):
                raise FailedPrecondition(f"topic {each.topic} is being deleted")
        stage = self._state.table.find(name)
        is_new = stage is None or call.piece not in stage.pieces
        with self._share(call.client, sum(len(each.batches) for each in call.batches) if is_new else 0):
            return await self._stage(call)

    @contextmanager
    def _share(self, client: StageClient, size: int) -> Iterator[None]:
        """Count bytes for a client until its piece is in the table.

        Raises:
            ResourceExhausted: they do not fit in its share.
        """
        address = client.address
        if not size or not address:
            yield
            return
        client.check(self._state.table.bytes_of[address] + self._bringing[address], size)
        self._bringing[address] += size
        try:
            yield
        finally:
            self._bringing[address] -= size
            if not self._bringing[address]:
                del self._bringing[address]

    async def _stage(self, call: StageCall) -> int:
        name, piece, batches, seal, client = call
        number = await self._open(name, batches, seal)
        command = AddPiece(stage=number, timestamp_ms=self._parts.now_ms())
        if batches:
            replicas = [self._replica(each) for each in batches]
            command.piece.CopyFrom(_record(piece, batches, replicas))
            command.piece.client = client.address
            if not self._has_piece(number, command.piece):
                await self._bring(name, number, command.piece, batches, replicas)
        if seal is not None:
            command.seal.CopyFrom(SealRecord(pieces=seal.pieces, crc=seal.crc))
        return _number(await self._parts.command(SinksCommand(add_piece=command)))

    async def _open(self, name: StageName, batches: Sequence[PieceBatches], seal: StageSeal | None) -> int:
        """Number of a stage, which begins if it does not exist."""
        stage = self._state.table.find(name)
        if stage is None and not batches and seal is not None and seal.pieces:
            await self._parts.confirm()
            stage = self._state.table.find(name)
            if stage is None:
                raise FailedPrecondition(
                    f"there is no stage {name.stage_id} of sink {name.sink_id}: it was published or discarded, or has "
                    "expired"
                )
        if stage is not None:
            return stage.number
        command = OpenStage(sink_id=name.sink_id, stage_id=name.stage_id, timestamp_ms=self._parts.now_ms())
        return _number(await self._parts.command(SinksCommand(open_stage=command)))

    def _has_piece(self, number: int, piece: PieceRecord) -> bool:
        """True if a stage has a piece; raises if it cannot take it."""
        stage = self._state.table.stages.get(number)
        if stage is None:
            return False  # `AddPiece` finds out
        refusal = self._state.table.judge_piece(stage, piece)
        if refusal is not None:
            raise refusal
        return piece.number in stage.pieces

    def _replica(self, piece: PieceBatches) -> PartitionReplica:
        replica = self._parts.partitions.get(TopicPartition(piece.topic, piece.partition))
        if replica is None or replica.log.identity.topic_id != piece.topic_id:
            raise FailedPrecondition(f"topic {piece.topic} was deleted meanwhile")
        if len(piece.batches) > PIECE_BYTES_MAX:
            raise ResourceExhausted(
                f"{len(piece.batches)} bytes for one partition in a piece, {PIECE_BYTES_MAX} are allowed"
            ).at_limit("bytes of a piece")
        return replica

    async def _bring(
        self,
        name: StageName,
        number: int,
        piece: PieceRecord,
        batches: Sequence[PieceBatches],
        replicas: Sequence[PartitionReplica],
    ) -> None:
        """Make a piece durable on a majority of the replicas of each of its partitions, with an
        entry of each.
        """
        new = [
            (
                NewPiece(
                    PieceKey(number, part.raft_group, piece.number, part.crc), part.records, each.batches
                ),
                replica.replicas,
            )
            for part, each, replica in zip(piece.parts, batches, replicas, strict=True)
        ]
        await self._parts.calls.bring(new)
        entries = [
            StagedPiece(
                sink_id=name.sink_id,
                stage_id=name.stage_id,
                number=piece.number,
                length=part.bytes,
                crc=part.crc,
                stage_number=number,
                records=part.records,
            ).SerializeToString()
            for part in piece.parts
        ]
        propose = self._parts.proposals.propose
        await asyncio.gather(
            *(
                propose(replica, EntryType.STAGED_PIECE, entry, _ENTRY_S)
                for replica, entry in zip(replicas, entries, strict=True)
            )
        )

    # --- publications -----------------------------------------------------------------------------

    async def publish(self, command: PublishStages) -> Published:
        """Make stages visible, all or none, and return once they are.

        As `StagedWrites.publish`; the time and what is staged are added to the command.
        """
        sink_id = command.sink_id
        command.replicated = True
        await self._parts.confirm()
        refusal = self._state.judge(command)
        if isinstance(refusal, NotNew):
            return await self._answer_again(sink_id, refusal.last_epoch)
        if refusal is not None:
            raise refusal
        if len(self._state.publications) >= PUBLICATIONS_MAX:
            raise Unavailable(f"{PUBLICATIONS_MAX} publications are not finished yet; try again").at_limit(
                "unfinished publications"
            )
        stages = self._sealed(sink_id, command.stage_ids)
        if self._parts.feature_level() >= IDENTITY_LEVEL:
            command.next_stage = self._state.table.next_stage
        sizes = await _sizes(stages)
        self._check_topics(sizes)
        command.timestamp_ms = self._parts.now_ms()
        result = await self._parts.command(SinksCommand(publish_stages=command))
        if isinstance(result, NotNew):
            return await self._answer_again(sink_id, result.last_epoch)
        if isinstance(result, Repeated):
            await self.wait_sink(sink_id)
        else:
            assert isinstance(result, Publication)
            await self._wait_finished(result.number)
        return Published(True, command.epoch, {topic: size for (topic, _), size in sizes.items()})

    def _sealed(self, sink_id: str, stage_ids: Sequence[str]) -> Sequence[ReplicatedStage]:
        for stage_id in stage_ids:
            if self._state.is_published(StageName(sink_id, stage_id)):
                raise FailedPrecondition(f"stage {stage_id} of sink {sink_id} was published before")
        stages = self._state.table.sealed(sink_id, stage_ids)
        if isinstance(stages, PixyError):
            raise stages
        return stages

    def _check_topics(self, topics: Iterable[tuple[str, bytes]]) -> None:
        for name, topic_id in topics:
            topic = self._parts.metadata.topics.get(name)
            if topic is None or topic.topic_id != topic_id or self._is_deleting(topic_id):
                raise FailedPrecondition(f"topic {name} was deleted since records of it were staged")

    async def _answer_again(self, sink_id: str, last_epoch: int) -> Published:
        """The answer to a repeated epoch, once its publication is visible, as the first answer
        promised.
        """
        await self.wait_sink(sink_id)
        return Published(False, last_epoch)

    async def wait_sink(self, sink_id: str) -> None:
        """Return once all publications of a sink with replicated stages are finished."""
        for publication in list(self._state.publications.values()):
            if publication.sink_id == sink_id and publication.stages:
                await self._wait_finished(publication.number)

    async def _wait_finished(self, number: int) -> None:
        if number not in self._state.publications:
            return
        waiting = self._unfinished.get(number)
        if waiting is None:
            waiting = self._unfinished[number] = self._loop.create_future()
        await asyncio.shield(waiting)

    def look_at_publications(self) -> None:
        """Publications may have been finished: answer those who wait for them."""
        for number in [each for each in self._unfinished if each not in self._state.publications]:
            resolve(self._unfinished.pop(number), None)

    # --- discarded and idle stages ----------------------------------------------------------------

    async def discard(self, sink_id: str, stage_ids: Sequence[str], next_stage: int) -> None:
        """Drop stages that were not published. As `StagedWrites.discard`.

        Args:
            next_stage: those from this number on stay; 0: none does.
        """
        command = DiscardStages(sink_id=sink_id, stage_ids=stage_ids, next_stage=next_stage)
        await self._parts.command(SinksCommand(discard_stages=command))

    async def touch(self, sink_id: str) -> None:
        """Note activity of a sink, which keeps its stages from expiry."""
        active_ms, now_ms = self._state.table.activity.get(sink_id), self._parts.now_ms()
        if active_ms is not None and now_ms - active_ms > self._touch_after_ms:
            command = TouchSink(sink_id=sink_id, timestamp_ms=now_ms)
            await self._parts.command(SinksCommand(touch_sink=command))


async def _sizes(stages: Sequence[ReplicatedStage]) -> dict[tuple[str, bytes], tuple[int, int]]:
    """Records and bytes of stages by name and id of the topic."""
    sizes: dict[tuple[str, bytes], tuple[int, int]] = {}
    async for stage in in_steps(stages):
        for (topic_id, _), part in stage.parts.items():
            records, size = sizes.get((part.topic, topic_id), (0, 0))
            sizes[part.topic, topic_id] = records + part.records, size + part.bytes
    return sizes


def _record(
    number: int, batches: Sequence[PieceBatches], replicas: Sequence[PartitionReplica]
) -> PieceRecord:
    crc, parts = 0, []
    for each, replica in zip(batches, replicas, strict=True):
        crc = crc32c(each.batches, crc)
        parts.append(
            PiecePart(
                topic=each.topic,
                topic_id=each.topic_id,
                partition=each.partition,
                raft_group=replica.raft_group,
                bytes=len(each.batches),
                records=each.records,
                crc=crc32c(each.batches),
            )
        )
    return PieceRecord(number=number, crc=crc, parts=parts)


def _number(result: object) -> int:
    number = result.value if isinstance(result, Repeated) else result
    assert isinstance(number, int)
    return number

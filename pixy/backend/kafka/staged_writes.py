"""Staged writes to Kafka: stages are files of this daemon, a publication is one Kafka transaction.

    <directory>/lock              locked by one daemon at a time
    <directory>/staging/          the stages (`staging.stage_files`)
    <directory>/publishing/       marks of unfinished publications (`staging.publication_marks`)

Stages are accepted, sealed, limited and expired exactly as on an embedded node. They stay on the
daemon that accepted them; another daemon on the same cluster does not have them. So a stage can be
large, and Kafka never holds data that may not be published.

Steps of a publication, and the recovery after a crash behind each:

    epoch read, stages validated       nothing
    mark written                       the start asks Kafka: epoch not published; removes the mark
    transaction begun, batches sent    the same, and the query aborts the transaction, of which no
                                       reader of committed data saw anything
    EndTxn                             the start asks Kafka: epoch published; removes the stages
    stages removed                     the start removes the mark
    mark removed                       nothing

The same query settles, at the next call for the sink, a publication with an unknown outcome. A
stage of an unsettled publication is never published under another epoch: that call settles it
first. Without an answer of Kafka nothing is published and nothing removed.

The ids of their topics identify the cluster of stages. Nothing is written to disk before the first
stage.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from pixy.aio.futures import reject, resolve
from pixy.aio.tasks import Tasks
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.options import KafkaOptions
from pixy.backend.kafka.produce import Producer, TransactionalId
from pixy.backend.kafka.publication_turns import PublicationTurns
from pixy.backend.kafka.send_stages import STAGES_WINDOW_BYTES, StageSender
from pixy.backend.kafka.topic_limits import ask_batch_bytes
from pixy.backend.kafka.transactions import SinkTransactions, Unsettled
from pixy.clock import Clock
from pixy.config import StagingConfig
from pixy.errors import (
    DataDirectoryError,
    FailedPrecondition,
    Internal,
    PixyError,
    ShuttingDown,
    Unavailable,
    UnknownPartition,
)
from pixy.faults import OnFault, internal_error
from pixy.proto.state_pb2 import PublishStages
from pixy.records import TopicPartition
from pixy.staging import (
    KAFKA_CLUSTER_ID,
    NO_CLIENT,
    NotNew,
    PieceBatches,
    Published,
    Sink,
    Stage,
    StageCall,
    StageClient,
    StagedBatches,
    StageExpiry,
    StageName,
    Stages,
    StageSeal,
    judge_epoch,
    merged_parts,
    publish_command,
    read_marks,
    remove_mark,
    sizes_by_topic,
    write_mark,
)
from pixy.storage import Disk, File, MakeWorker, Worker, run_on

log = structlog.get_logger(__name__)

_EXPIRY_CHECK_S = 60.0
_SETTLE_PAUSE_S = 1.0
_WHERE = (
    "it was never sealed, has expired, was published or discarded, or is at another daemon; stages are published by "
    "the daemon that accepted them"
)


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """The place of the stages.

    Args:
        disk, directory: the files. The first stage creates the directory.
        worker: makes the thread for the files.
        clock: the time, for expiry.
        config: limits and retention. `sink_retention` is Kafka's `offsets.retention.minutes` here.
        client_share_percent: part of the turns of publications that the clients of one address may
            have.
    """

    disk: Disk
    directory: Path
    worker: MakeWorker
    clock: Clock
    config: StagingConfig
    client_share_percent: int = 100


class KafkaStagedWrites:
    """The staged writes of one Kafka cluster; see `StagedWrites.stage`.

    Args:
        client: the cluster's brokers and metadata.
        options: limits of writes.
        place: the place of the stages.
        on_fault: called with an exception that is a bug.
        on_storage_fault: called with a fault that only a restart repairs.
        know: looks for a partition; see `KafkaBackend`.
    """

    def __init__(
        self,
        client: KafkaClient,
        options: KafkaOptions,
        place: StagingPlace,
        on_fault: OnFault,
        on_storage_fault: OnFault,
        know: Callable[[TopicPartition], Awaitable[None]],
    ) -> None:
        self._client = client
        self._options = options
        self._place = place
        self._on_fault = on_fault
        self._on_storage_fault = on_storage_fault
        self._know = know
        self._transactions = SinkTransactions(client, options.transaction_timeout_s)
        self._tasks = Tasks(on_fault)
        self._background = Tasks(on_fault)
        self._opening = asyncio.Lock()
        self._lock: File | None = None
        self._worker: Worker | None = None
        self._stages: Stages | None = None
        self._expiry: StageExpiry | None = None
        # Marks by sink and number, of publications with an unknown outcome, or whose stages are
        # being removed. Invariant: no sink without marks.
        self._marks: dict[str, dict[int, PublishStages]] = {}
        self._next_mark = 1
        self._turns = PublicationTurns(place.client_share_percent)
        # Topics under deletion; stages and publications for them are refused.
        self._deleting: set[bytes] = set()
        self._stopped = False

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the stages, and settle unfinished publications once Kafka can be reached.

        Raises:
            DataDirectoryError, CorruptData: the directory cannot be used.
        """
        if self._place.directory.exists():
            await self._open()
            if self._marks:
                self._background.spawn(self._settle_all(), "settle publications")

    async def stop(self) -> None:
        """Finish publications, within `delivery_timeout_s`; the next start settles the others."""
        self._stopped = True
        await self._background.cancel_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.delivery_timeout_s):
                await self._tasks.wait_all()
        await self._tasks.cancel_all()
        if self._stages is not None:
            self._stages.stop()
        elif self._worker is not None:
            self._worker.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def troubles(self) -> list[str]:
        """As `Stages.troubles`."""
        return [] if self._stages is None else self._stages.troubles

    async def _open(self) -> Stages:
        async with self._opening:
            self._check_running()
            if self._stages is None:
                place = self._place
                self._worker = self._worker or place.worker("pixy-staging", background=True)
                await run_on(self._worker, self._lock_directory)
                stages = Stages(
                    place.disk,
                    place.directory / "staging",
                    self._worker,
                    place.config.max_bytes,
                    self._on_storage_fault,
                )
                marks = await run_on(self._worker, partial(read_marks, place.disk, self._marks_in))
                for number, mark in marks.items():
                    self._marks.setdefault(mark.sink_id, {})[number] = mark
                self._next_mark = max(marks, default=0) + 1
                await stages.recover(KAFKA_CLUSTER_ID)
                self._expiry = StageExpiry(stages, place.config.expiry, self._now_ms, _may_go)
                self._stages = stages
                self._background.spawn(self._expire(), "expire stages")
            return self._stages

    def _check_running(self) -> None:
        if self._stopped:
            raise ShuttingDown

    def _lock_directory(self) -> None:
        """Lock the directory, once.

        The worker keeps the lock even if the caller is gone by then.
        """
        if self._lock is not None:
            return
        disk, directory = self._place.disk, self._place.directory
        try:
            disk.make_directory(directory)
            lock = disk.lock(directory / "lock")
        except OSError as error:
            raise DataDirectoryError(f"{directory} cannot be used for stages: {error}") from error
        if lock is None:
            raise DataDirectoryError(f"{directory} is used by another process; give each daemon a data_dir")
        self._lock = lock

    @property
    def _marks_in(self) -> Path:
        return self._place.directory / "publishing"

    def _now_ms(self) -> int:
        return round(self._place.clock.monotonic() * 1000)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_CHECK_S)
            assert self._expiry is not None
            try:
                self._expiry.expire()
            except Exception as bug:
                self._on_fault(bug)

    # --- stages -----------------------------------------------------------------------------------

    async def stage(
        self,
        sink_id: str,
        stage_id: str,
        piece: int,
        batches: Sequence[StagedBatches],
        seal: StageSeal | None = None,
        client: StageClient = NO_CLIENT,
    ) -> int:
        """As `StagedWrites.stage`."""
        self._check_running()
        for each in batches:
            await self._know(each.partition)
        name = StageName(sink_id, stage_id)
        try:
            stages = await self._open()
        except DataDirectoryError as error:
            # The caller may retry once the directory is repaired; at a start the error would be the
            # operator's.
            raise Unavailable(str(error)) from error
        assert self._expiry is not None
        self._expiry.staged(name)
        pieces = [self._piece(each) for each in batches]
        try:
            return await stages.stage(StageCall(name, piece, pieces, seal, client))
        finally:
            self._expiry.staged(name)

    def _piece(self, batches: StagedBatches) -> PieceBatches:
        topic, number = batches.partition
        known = self._client.metadata.topics.get(topic)
        if known is None or not 0 <= number < len(known.partitions):
            raise UnknownPartition(f"unknown partition {number} of topic {topic}")
        if known.topic_id in self._deleting:
            raise FailedPrecondition(f"topic {topic} is being deleted")
        return PieceBatches(topic, known.topic_id, number, batches.batches, batches.records)

    async def discard(self, sink_id: str, stage_ids: Sequence[str]) -> None:
        """As `StagedWrites.discard`."""
        self._check_running()
        if self._stages is None or self._expiry is None:
            return
        self._expiry.touch(sink_id)
        names = [StageName(sink_id, stage_id) for stage_id in stage_ids]
        await self._remove([stage for name in names if (stage := self._stages.get(name)) and _may_go(stage)])

    async def _remove(self, stages: Sequence[Stage]) -> None:
        if stages and self._stages is not None:
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._stages.remove(stages, partial(resolve, gone, None))
            await asyncio.shield(gone)

    def begin_deletion(self, topic_id: bytes, *, force: bool) -> None:
        """Refuse stages and publications for a topic under deletion, until `end_deletion`.

        Raises:
            FailedPrecondition: records of it are staged, and `force` is not set; the message names
                the sinks.
        """
        stages = [] if self._stages is None else self._stages.of_topic(topic_id)
        if stages and not force:
            sinks = ", ".join(sorted({stage.name.sink_id for stage in stages}))
            raise FailedPrecondition(
                f"records of the topic are staged by {sinks}; publish or discard them, or force the deletion"
            )
        self._deleting.add(topic_id)

    def end_deletion(self, topic_id: bytes) -> None:
        """The deletion has succeeded or failed."""
        self._deleting.discard(topic_id)

    # --- publishing -------------------------------------------------------------------------------

    async def publish(
        self,
        sink_id: str,
        epoch: int,
        query_id: str,
        stage_ids: Sequence[str],
        *,
        reset: bool = False,
        replaces: str = "",
        client: StageClient = NO_CLIENT,
    ) -> Published:
        """As `StagedWrites.publish`.

        A publication that has begun continues even if the caller goes away.
        """
        self._check_running()
        command = publish_command(sink_id, epoch, query_id, stage_ids, reset=reset, replaces=replaces)
        if self._expiry is not None:
            self._expiry.touch(command.sink_id)
        outcome: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        what = f"publish epoch {command.epoch} of {command.sink_id}"
        self._tasks.spawn(self._publish_in_turn(command, client.address, outcome), what)
        return await asyncio.shield(outcome)

    async def _publish_in_turn(
        self, command: PublishStages, address: str, outcome: "asyncio.Future[Published]"
    ) -> None:
        try:
            with self._turns.in_progress(address):
                async with self._turns.of_sink(command.sink_id):
                    published = await self._publish(command, address)
        except PixyError as error:
            reject(outcome, error)
            outcome.exception()  # retrieved even if the caller is gone
        except BaseException as error:
            stopped = isinstance(error, asyncio.CancelledError)
            reject(outcome, ShuttingDown() if stopped else internal_error(error))
            outcome.exception()
            raise
        else:
            resolve(outcome, published)

    async def _publish(self, command: PublishStages, address: str) -> Published:
        sink_id = command.sink_id
        async with self._turns.preparing(address):
            with suppress(Unsettled):
                # A repeated or refused call must not fence a publisher.
                sink = await self._transactions.read(sink_id, wait=False)
                if self._is_new(command, sink) is not None:
                    return await self._answer_again(sink_id, sink)
                if sink_id not in self._marks:
                    await self._look_at(self._stages_of(command))
            transaction = await self._transactions.begin(sink_id)
            sink = await self._transactions.read(sink_id, wait=True)
            await self._settle(sink_id, sink, final=True)
            if self._is_new(command, sink) is not None:
                return await self._answer_again(sink_id, sink)
            stages = self._stages_of(command)
            for stage in stages:
                stage.holders += 1
        try:
            async with self._turns.sending(address):
                await self._look_at(stages)
                await self._transact(command, transaction, stages)
        finally:
            for stage in stages:
                stage.holders -= 1
        await self._settle(sink_id, Sink(command.query_id, command.epoch, 0), final=True)
        if self._expiry is not None:
            self._expiry.published(sink_id)
        return Published(True, command.epoch, sizes_by_topic(merged_parts(stages).values()))

    def _is_new(self, command: PublishStages, sink: Sink | None) -> NotNew | None:
        """None if the sink may publish this epoch.

        Raises:
            FailedPrecondition: the sink belongs to another query.
        """
        if sink is None:
            return None
        judged = judge_epoch(sink, command)
        if isinstance(judged, FailedPrecondition):
            raise judged
        return judged

    async def _answer_again(self, sink_id: str, sink: Sink | None) -> Published:
        assert sink is not None
        await self._settle(sink_id, sink, final=False)
        return Published(False, sink.last_epoch)

    def _stages_of(self, command: PublishStages) -> list[Stage]:
        """The stages of a publication; raises if one is not there. Nobody holds them yet."""
        if not command.stage_ids:
            return []
        names = [StageName(command.sink_id, stage_id) for stage_id in command.stage_ids]
        if self._stages is None:
            raise FailedPrecondition(
                f"stage {names[0].stage_id} of sink {command.sink_id} is not there: {_WHERE}"
            )
        return [self._stages.sealed(name, _WHERE) for name in names]

    async def _look_at(self, stages: Sequence[Stage]) -> None:
        """Ask Kafka for the topics of stages; raises if one was deleted."""
        topics = {part.topic for part in merged_parts(stages).values()}
        if topics:
            await self._client.refresh(topics)
        self._topic_ids(stages)

    def _topic_ids(self, stages: Sequence[Stage]) -> dict[str, bytes]:
        """Ids of the topics of stages; raises if one was deleted, or is being deleted."""
        ids = {}
        for part in merged_parts(stages).values():
            known = self._client.metadata.topics.get(part.topic)
            if known is None or known.topic_id != part.topic_id or part.topic_id in self._deleting:
                raise FailedPrecondition(f"topic {part.topic} was deleted since records of it were staged")
            ids[part.topic] = part.topic_id
        return ids

    async def _transact(
        self, command: PublishStages, transaction: TransactionalId, stages: Sequence[Stage]
    ) -> None:
        """Write all stages as one transaction.

        Raises:
            PixyError: nothing was published; after a failed `commit` that is unknown and settled
                later.
        """
        await self._mark(command)
        try:
            await self._transactions.add(
                transaction,
                [TopicPartition(part.topic, part.partition) for part in merged_parts(stages).values()],
            )
            if stages:
                await self._send(transaction, stages)
        except PixyError:
            with suppress(PixyError):
                await self._transactions.abort(transaction)
            raise
        try:
            await self._transactions.commit(transaction, command.epoch, command.query_id)
        except PixyError:
            # The outcome is known once this transaction can no longer be committed.
            await self._transactions.begin(command.sink_id)
            sink = await self._transactions.read(command.sink_id, wait=True)
            if not _has_published(sink, command):
                await self._settle(command.sink_id, sink, final=True)
                raise

    async def _send(self, transaction: TransactionalId, stages: Sequence[Stage]) -> None:
        assert self._stages is not None
        assert self._worker is not None
        parts = []
        for stage in stages:
            for (topic_id, number), held in stage.parts.items():
                part = self._stages.part(stage.name, topic_id, number)
                if part is None:
                    raise Internal(f"stage {stage.name.stage_id} of sink {stage.name.sink_id} is gone")
                parts.append((TopicPartition(held.topic, number), part))
        ids = self._topic_ids(stages)
        producer = Producer(self._client, self._options, self._on_fault, transaction, ids)
        window_bytes = min(STAGES_WINDOW_BYTES, self._options.buffer_bytes)
        ask = partial(ask_batch_bytes, self._client)
        await StageSender(producer, self._place.disk, self._worker, window_bytes, ask).send(parts)

    # --- what is not settled ----------------------------------------------------------------------

    async def _mark(self, command: PublishStages) -> None:
        if not command.stage_ids:
            return
        assert self._worker is not None
        number, self._next_mark = self._next_mark, self._next_mark + 1
        try:
            await run_on(self._worker, partial(write_mark, self._place.disk, self._marks_in, number, command))
        except OSError as error:
            raise Unavailable(f"the mark of a publication could not be written: {error}") from error
        self._marks.setdefault(command.sink_id, {})[number] = command

    async def _settle(self, sink_id: str, sink: Sink | None, *, final: bool) -> None:
        """Remove published stages, and the marks that are settled.

        Args:
            sink: the last publication of the sink.
            final: earlier publications can no longer be committed.
        """
        marks = self._marks.get(sink_id, {})
        for number, mark in list(marks.items()):
            if _has_published(sink, mark):
                names = [StageName(sink_id, stage_id) for stage_id in mark.stage_ids]
                assert self._stages is not None
                await self._remove([stage for name in names if (stage := self._stages.get(name)) is not None])
            elif not final:
                continue
            assert self._worker is not None
            await run_on(self._worker, partial(remove_mark, self._place.disk, self._marks_in, number))
            del marks[number]
            if not marks:
                del self._marks[sink_id]

    async def _settle_all(self) -> None:
        """Settle the publications of the last process, which aborts its open transactions."""
        await self._client.reached.wait()
        for sink_id in sorted(self._marks):
            while True:
                try:
                    async with self._turns.of_sink(sink_id):
                        if sink_id in self._marks:
                            await self._transactions.begin(sink_id)
                            await self._settle(
                                sink_id, await self._transactions.read(sink_id, wait=True), final=True
                            )
                    break
                except PixyError as error:
                    log.warning("a publication is not settled yet", sink=sink_id, error=str(error))
                await asyncio.sleep(_SETTLE_PAUSE_S)


def _may_go(stage: Stage) -> bool:
    """True if no call uses the stage."""
    return not stage.holders


def _has_published(sink: Sink | None, mark: PublishStages) -> bool:
    return sink is not None and sink.query_id == mark.query_id and sink.last_epoch >= mark.epoch

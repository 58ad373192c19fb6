"""Staged writes in front of Kafka: stages are files of this daemon, a publication is one transaction of Kafka.

    <directory>/lock              held: one daemon at a time
    <directory>/staging/          the stages (`storage.staging`)
    <directory>/publishing/       what is being published (`storage.publication_marks`)

Stages are taken, sealed, bounded and expired exactly as an embedded node does it. They are where they were taken: another daemon in
front of the same cluster does not have them. That is why a stage can be large, and why Kafka holds nothing that may never be published.

A publication, and what a crash leaves behind each step:

    epoch read, stages looked at       nothing
    mark written                       a start asks Kafka, hears that the epoch is not published, and removes the mark
    transaction begun, batches sent    the same, and its asking aborts the transaction; nobody who reads what is committed saw any of it
    EndTxn                             a start asks Kafka, hears that the epoch is published, and removes the stages
    stages removed                     a start removes the mark
    mark removed                       nothing

The same asking settles, at the next call for the sink, what this process could not find out. A stage of an unsettled publication is not
published under another epoch: that call settles it first. Without an answer of Kafka nothing is published and nothing removed.

Which cluster stages belong to is told by the ids of their topics. Nothing is made on the disk until the first stage comes.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.options import KafkaOptions
from pixy.backend.kafka.produce import Producer, TransactionalId
from pixy.backend.kafka.send_stages import STAGES_WINDOW_BYTES, StageSender
from pixy.backend.kafka.transactions import SinkTransactions, Unsettled
from pixy.backend.protocol import Published, StagedBatches, StageSeal
from pixy.clock import Clock
from pixy.cluster import (
    KAFKA_CLUSTER_ID,
    NotNew,
    Seal,
    Sink,
    Stage,
    StageExpiry,
    StageName,
    Stages,
    judge_epoch,
    merged_parts,
)
from pixy.config import StagingConfig
from pixy.errors import (
    DataDirectoryError,
    FailedPrecondition,
    PixyError,
    ShuttingDown,
    Unavailable,
    UnknownPartition,
)
from pixy.faults import OnFault, internal_error
from pixy.futures import reject, resolve
from pixy.proto.state_pb2 import PublishStages
from pixy.records import TopicPartition
from pixy.storage import (
    Disk,
    File,
    MakeWorker,
    PieceBatches,
    Worker,
    read_marks,
    remove_mark,
    run_on,
    write_mark,
)
from pixy.tasks import Tasks

__all__ = ["PUBLICATIONS_MAX", "KafkaStagedWrites", "StagingPlace"]

log = structlog.get_logger(__name__)

PUBLICATIONS_MAX = 1000
"""Calls of `publish` that may be under way; more are refused for the moment."""

_AT_ONCE = 4
"""Publications that send batches at a time; the others wait."""
_EXPIRY_CHECK_S = 60.0
_SETTLE_PAUSE_S = 1.0
_WHERE = (
    "it was never sealed, has expired, was published or discarded, or is at another daemon; stages are published by the daemon that "
    "took them"
)


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """Where stages are.

    Args:
        disk, directory: the files. The directory is made when the first stage comes.
        worker: makes the thread for them.
        clock: measures expiry.
        config: bounds and times. `sink_retention` is Kafka's `offsets.retention.minutes` here.
    """

    disk: Disk
    directory: Path
    worker: MakeWorker
    clock: Clock
    config: StagingConfig


class KafkaStagedWrites:
    """The staged writes of one Kafka cluster; see `Backend.stage`.

    Args:
        client: topics and brokers.
        options: how to write.
        place: where stages are.
        on_fault: called with an exception that is a bug.
        on_storage_fault: called with what only a restart mends.
    """

    def __init__(
        self,
        client: KafkaClient,
        options: KafkaOptions,
        place: StagingPlace,
        on_fault: OnFault,
        on_storage_fault: OnFault,
    ) -> None:
        self._client = client
        self._options = options
        self._place = place
        self._on_fault = on_fault
        self._on_storage_fault = on_storage_fault
        self._transactions = SinkTransactions(client, options.transaction_timeout_s)
        self._tasks = Tasks(on_fault)
        self._background = Tasks(on_fault)
        self._opening = asyncio.Lock()
        self._lock: File | None = None
        self._worker: Worker | None = None
        self._stages: Stages | None = None
        self._expiry: StageExpiry | None = None
        # By number; of publications whose outcome is not known, or whose stages are just being removed.
        self._marks: dict[int, PublishStages] = {}
        self._next_mark = 1
        # By sink: one publication at a time. Bounded by `PUBLICATIONS_MAX`.
        self._turns: dict[str, asyncio.Lock] = {}
        self._publishing = 0
        self._sending = asyncio.Semaphore(_AT_ONCE)
        # Topics that are being deleted: nothing more is staged or published for them.
        self._deleting: set[bytes] = set()
        self._stopped = False

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find what is there, and settle what was being published as soon as Kafka can be asked.

        Raises:
            DataDirectoryError, CorruptData: what is there cannot be used.
        """
        if self._place.directory.exists():
            await self._open()
            if self._marks:
                self._background.spawn(self._settle_all(), "settle publications")

    async def stop(self) -> None:
        """Finish what is being published, within `delivery_timeout_s`; what is not settled then is settled by the next start."""
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

    async def _open(self) -> Stages:
        async with self._opening:
            if self._stopped:
                raise ShuttingDown
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
                self._marks = dict(
                    await run_on(self._worker, partial(read_marks, place.disk, self._marks_in))
                )
                self._next_mark = max(self._marks, default=0) + 1
                await stages.recover(KAFKA_CLUSTER_ID)
                self._expiry = StageExpiry(stages, place.config.expiry, self._now_ms, _may_go)
                self._stages = stages
                self._background.spawn(self._expire(), "expire stages")
            return self._stages

    def _lock_directory(self) -> None:
        """Lock the directory, once. On the worker, which keeps the lock for whoever comes next: the caller may be gone by then."""
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

    # --- stages ---------------------------------------------------------------------------------------------------

    async def stage(
        self, name: StageName, piece: int, batches: Sequence[StagedBatches], seal: StageSeal | None
    ) -> int:
        """As `Backend.stage`. The partitions are known."""
        try:
            stages = await self._open()
        except DataDirectoryError as error:
            # Not at a start, where it would be the operator's: the caller may try again when it is mended.
            raise Unavailable(str(error)) from error
        assert self._expiry is not None
        self._expiry.staged(name)
        pieces = [self._piece(each) for each in batches]
        try:
            return await stages.stage(name, piece, pieces, None if seal is None else Seal(*seal))
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

    async def discard(self, sink_id: str, stage_ids: Iterable[str]) -> None:
        """As `Backend.discard`."""
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
        """A topic is being deleted: nothing more is staged or published for it until `end_deletion`.

        Raises:
            FailedPrecondition: records of it are staged, and `force` is not set; names the sinks.
        """
        stages = [] if self._stages is None else self._stages.of_topic(topic_id)
        if stages and not force:
            sinks = ", ".join(sorted({stage.name.sink_id for stage in stages}))
            raise FailedPrecondition(
                f"records of the topic are staged by {sinks}; publish or discard them, or force it"
            )
        self._deleting.add(topic_id)

    def end_deletion(self, topic_id: bytes) -> None:
        """The topic is deleted, or is not after all."""
        self._deleting.discard(topic_id)

    # --- publishing -----------------------------------------------------------------------------------------------

    async def publish(self, command: PublishStages) -> Published:
        """As `Backend.publish`. What was begun goes on when the caller goes away."""
        if self._publishing >= PUBLICATIONS_MAX:
            raise Unavailable(f"{PUBLICATIONS_MAX} publications are under way; try again")
        if self._expiry is not None:
            self._expiry.touch(command.sink_id)
        outcome: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        self._publishing += 1
        what = f"publish epoch {command.epoch} of {command.sink_id}"
        self._tasks.spawn(self._publish_in_turn(command, outcome), what)
        return await asyncio.shield(outcome)

    async def _publish_in_turn(self, command: PublishStages, outcome: "asyncio.Future[Published]") -> None:
        try:
            async with self._turn(command.sink_id):
                published = await self._publish(command)
        except PixyError as error:
            reject(outcome, error)
            outcome.exception()  # also if nobody waits any more
        except BaseException as error:
            stopped = isinstance(error, asyncio.CancelledError)
            reject(outcome, ShuttingDown() if stopped else internal_error(error))
            outcome.exception()
            raise
        else:
            resolve(outcome, published)
        finally:
            self._publishing -= 1

    def _turn(self, sink_id: str) -> asyncio.Lock:
        if len(self._turns) > 2 * PUBLICATIONS_MAX:
            self._turns = {name: turn for name, turn in self._turns.items() if turn.locked()}
        return self._turns.setdefault(sink_id, asyncio.Lock())

    async def _publish(self, command: PublishStages) -> Published:
        sink_id = command.sink_id
        with suppress(Unsettled):
            # Whoever asks again, or in vain, does not fence a publisher.
            sink = await self._transactions.read(sink_id, wait=False)
            if self._is_new(command, sink) is not None:
                return await self._answer_again(sink_id, sink)
            if not self._marks_of(sink_id):
                await self._look_at(command)
        transaction = await self._transactions.begin(sink_id)
        sink = await self._transactions.read(sink_id, wait=True)
        await self._settle(sink_id, sink, final=True)
        if self._is_new(command, sink) is not None:
            return await self._answer_again(sink_id, sink)
        stages = await self._look_at(command)
        for stage in stages:
            stage.holders += 1
        try:
            await self._transact(command, transaction, stages)
        finally:
            for stage in stages:
                stage.holders -= 1
        await self._settle(sink_id, Sink(command.query_id, command.epoch, 0), final=True)
        if self._expiry is not None:
            self._expiry.published(sink_id)
        return Published(True, command.epoch)

    def _is_new(self, command: PublishStages, sink: Sink | None) -> NotNew | None:
        """None if the sink may publish this epoch.

        Raises:
            FailedPrecondition: it is another query's.
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

    async def _look_at(self, command: PublishStages) -> list[Stage]:
        """The stages of a publication; proves that they can be published."""
        if not command.stage_ids:
            return []
        names = [StageName(command.sink_id, stage_id) for stage_id in command.stage_ids]
        if self._stages is None:
            raise FailedPrecondition(
                f"stage {names[0].stage_id} of sink {command.sink_id} is not there: {_WHERE}"
            )
        stages = [self._stages.sealed(name, _WHERE) for name in names]
        topics = {part.topic: part.topic_id for part in merged_parts(stages).values()}
        if topics:
            await self._client.refresh(topics)
        known = self._client.metadata.topics
        for topic_id, _ in merged_parts(stages):
            if topic_id in self._deleting or not any(each.topic_id == topic_id for each in known.values()):
                name = next(name for name, each in topics.items() if each == topic_id)
                raise FailedPrecondition(f"topic {name} was deleted since records of it were staged")
        return stages

    async def _transact(
        self, command: PublishStages, transaction: TransactionalId, stages: Sequence[Stage]
    ) -> None:
        """Write everything as one transaction.

        Raises:
            PixyError: nothing was published; or, of `commit`, perhaps: then this is settled later.
        """
        async with self._sending:
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
                # Whether it was committed is known once nobody can commit it any more.
                await self._transactions.begin(command.sink_id)
                sink = await self._transactions.read(command.sink_id, wait=True)
                if not _has_published(sink, command):
                    await self._settle(command.sink_id, sink, final=True)
                    raise

    async def _send(self, transaction: TransactionalId, stages: Sequence[Stage]) -> None:
        assert self._stages is not None
        assert self._worker is not None
        parts = [
            (TopicPartition(held.topic, number), part)
            for stage in stages
            for (topic_id, number), held in stage.parts.items()
            if (part := self._stages.part(stage.name, topic_id, number)) is not None
        ]
        producer = Producer(self._client, self._options, self._on_fault, transaction)
        window_bytes = min(STAGES_WINDOW_BYTES, self._options.buffer_bytes)
        await StageSender(producer, self._place.disk, self._worker, window_bytes).send(parts)

    # --- what is not settled --------------------------------------------------------------------------------------

    def _marks_of(self, sink_id: str) -> list[int]:
        return [number for number, mark in self._marks.items() if mark.sink_id == sink_id]

    async def _mark(self, command: PublishStages) -> None:
        if not command.stage_ids:
            return
        assert self._worker is not None
        number, self._next_mark = self._next_mark, self._next_mark + 1
        try:
            await run_on(self._worker, partial(write_mark, self._place.disk, self._marks_in, number, command))
        except OSError as error:
            raise Unavailable(f"a publication could not be noted: {error}") from error
        self._marks[number] = command

    async def _settle(self, sink_id: str, sink: Sink | None, *, final: bool) -> None:
        """Remove the stages that are known to be published, and the marks that nobody needs any more.

        Args:
            sink: what it has published.
            final: nobody can publish what was begun before.
        """
        for number in self._marks_of(sink_id):
            mark = self._marks[number]
            if _has_published(sink, mark):
                names = [StageName(sink_id, stage_id) for stage_id in mark.stage_ids]
                assert self._stages is not None
                await self._remove([stage for name in names if (stage := self._stages.get(name)) is not None])
            elif not final:
                continue
            assert self._worker is not None
            await run_on(self._worker, partial(remove_mark, self._place.disk, self._marks_in, number))
            del self._marks[number]

    async def _settle_all(self) -> None:
        """Find out what came of publications that the last process was at; what it left open is aborted by that."""
        await self._client.reached.wait()
        for sink_id in sorted({mark.sink_id for mark in self._marks.values()}):
            while True:
                try:
                    async with self._turn(sink_id):
                        if self._marks_of(sink_id):
                            await self._transactions.begin(sink_id)
                            await self._settle(
                                sink_id, await self._transactions.read(sink_id, wait=True), final=True
                            )
                    break
                except PixyError as error:
                    log.warning("a publication is not settled yet", sink=sink_id, error=str(error))
                await asyncio.sleep(_SETTLE_PAUSE_S)


def _may_go(stage: Stage) -> bool:
    """Whether nobody works on a stage."""
    return not stage.holders


def _has_published(sink: Sink | None, mark: PublishStages) -> bool:
    return sink is not None and sink.query_id == mark.query_id and sink.last_epoch >= mark.epoch

"""The stages of a node, or of a daemon in front of Kafka: accepts their pieces, seals them, indexes
and bounds them.

A stage is *open* until it is sealed, and only as durable as the process. *Sealed*, it survives
restarts until it is published, discarded or expired. Publication is the cluster's own; it holds the
stages that it works on, and held stages are neither discarded nor expired.

All file work runs on one worker, which the clients share fairly (`stage_jobs`). A piece or a seal
that has begun goes on when its callers go away, and a retry gets the same answer; before that it is
dropped, and a retry begins it anew. A stop drops every piece and seal that is not finished: it has
told no caller that they are. What is not sealed is removed behind the next start, in turns with the
work for clients.

Invariants: `bytes` is the disk space of all stages, at most `bytes_max`; `bytes_of` is that of the
clients of each address, at most their share, without what was staged before a restart; `extents` is
the number of extents in memory of all stages, at most `EXTENTS_MAX`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from pixy.errors import (
    CorruptData,
    DataDirectoryError,
    FailedPrecondition,
    InvalidArgument,
    PixyError,
    ResourceExhausted,
    ShuttingDown,
    StorageFault,
    Unavailable,
)
from pixy.proto.state_pb2 import StageRecord
from pixy.records import crc32c
from pixy.staging.epochs import StageName
from pixy.staging.fair_queue import Lane
from pixy.staging.stage import Piece, Stage, StageCall, StageSeal
from pixy.staging.stage_client import NO_CLIENT, StageClient
from pixy.staging.stage_files import (
    PieceBatches,
    StageFiles,
    recover_stages,
    remove_stages,
    staged_part,
)
from pixy.staging.stage_jobs import DroppedJob, StageJobs
from pixy.storage import Disk, StagedPart, Worker, is_disk_full, run_on, unlink_directories

log = structlog.get_logger(__name__)

KAFKA_CLUSTER_ID = b"kafka"
"""Cluster id of stages in front of Kafka, so that neither kind of cluster takes the other's stages.
"""

STAGES_MAX = 10_000
"""Stages of one node."""

_LEFTOVERS = Lane("", "")
"""Of no client and no sink: the turns of stages that an earlier process has left."""

_REMOVE_AGAIN_S = 1.0
"""Pause before stages are removed that a full disk has kept."""

STAGE_BYTES_MAX = 1 << 30
"""Bytes of one stage: its part of a partition may become a segment, whose indexes have 31-bit
positions.
"""

PIECES_MAX = 10_000
"""Pieces of one stage."""

PUBLICATIONS_MAX = 1000
"""Unfinished publications; more are refused until some have finished."""

EXTENTS_MAX = 500_000
"""Extents in memory of all stages together. In an open stage each piece, and its part of each
partition, is an extent; in a sealed stage each piece and each partition. An extent takes 180 bytes,
or 650 as the only one of its partition: 90 MB in all, 325 at the very most.
"""

QUEUED_BYTES_MAX = 128 << 20
"""Bytes of pieces that are queued or being written, including begun ones whose callers went away;
more are refused temporarily.
"""


class Stages:
    """All stages of a node.

    Args:
        disk, directory: location of their files.
        worker: the thread for their files, owned by the stages from here on.
        bytes_max: maximum of bytes of all stages.
        on_fault: called with the error when a removal fails, or when it is unknown whether a
            directory is durable.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        worker: Worker,
        bytes_max: int,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._disk = disk
        self.directory = directory
        self._worker = worker
        self._jobs = StageJobs(worker)
        self._bytes_max = bytes_max
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self._cluster_id = b""
        self._next_number = 1
        self._stages: dict[StageName, Stage] = {}
        self._by_sink: dict[str, dict[str, Stage]] = {}
        # Sets in insertion order.
        self._by_topic: dict[bytes, dict[Stage, None]] = {}
        # Bytes of pieces submitted to the jobs and not yet written.
        self._queued_bytes = 0
        # Faults of damaged stages, by number, and of those whose names cannot be read.
        self._faults: dict[int, CorruptData] = {}
        self._nameless: Sequence[CorruptData] = ()
        self.bytes = 0
        self.bytes_of: Counter[str] = Counter()
        self.extents = 0

    async def recover(self, cluster_id: bytes) -> None:
        """Find the sealed stages, and begin to remove the leftovers of earlier processes.

        Raises:
            DataDirectoryError, CorruptData: the files cannot be used.
        """
        self._cluster_id = cluster_id
        try:
            found = await run_on(
                self._worker, partial(recover_stages, self._disk, self.directory, cluster_id)
            )
        except OSError as error:
            raise DataDirectoryError(f"{self.directory} cannot be used: {error}") from error
        self._next_number, self._nameless = found.next_number, found.nameless
        for number, record, fault in found.stages:
            name = StageName(record.sink_id, record.stage_id)
            stage = self._add(name, number, NO_CLIENT)
            stage.pieces = {piece: Piece(crc, 0, None) for piece, crc in enumerate(record.pieces)}
            self._sealed(stage, record)
            if fault is not None:
                stage.fault = self._faults[number] = fault
            stage.seal = StageSeal(len(record.pieces), seal_crc(record.pieces))
            self._has_topics(stage, (part.topic_id for part in record.parts))
            self._count(stage, sum(part.bytes for part in record.parts), 0, NO_CLIENT)
        for damage in self.faults:
            log.error("a stage is damaged, and cannot be published", error=str(damage))
        if found.leftovers:
            steps = unlink_directories(self._disk, found.leftovers)
            self._jobs.submit(_LEFTOVERS, steps, self._removed_leftovers)

    def _removed_leftovers(self, _: None, error: BaseException | None) -> None:
        # A stop drops the removal, and the next start begins it anew.
        if error is not None and not isinstance(error, DroppedJob):
            self._on_fault(error)

    def stop(self) -> None:
        """Finish removals, drop pieces and seals in progress, and stop."""
        self._jobs.stop()

    # --- what there is ----------------------------------------------------------------------------

    @property
    def faults(self) -> list[CorruptData]:
        """Faults of the damaged stages."""
        return [*self._nameless, *self._faults.values()]

    @property
    def troubles(self) -> list[str]:
        """A sentence about the damaged stages, for the status; none if there are none."""
        faults = self.faults
        return [f"damaged stages of staged writes: {len(faults)}, {faults[0]}"] if faults else []

    @property
    def may_be_nameless(self) -> str:
        """Addition to the error of a stage that is missing: it may be a damaged one, whose name
        cannot be read. Empty if there is none.
        """
        return f"; or it is one that is damaged: {self._nameless[0]}" if self._nameless else ""

    def get(self, name: StageName) -> Stage | None:
        """A stage, None if it does not exist."""
        return self._stages.get(name)

    def sealed(self, name: StageName, where: str) -> Stage:
        """A stage that can be published.

        Args:
            where: possible reasons for its absence, for the error.

        Raises:
            FailedPrecondition: it does not exist, or is not sealed.
            CorruptData: it is damaged, or may be.
        """
        stage = self._stages.get(name)
        if stage is not None and stage.record is not None and stage.fault is None:
            return stage
        what = f"stage {name.stage_id} of sink {name.sink_id}"
        if stage is None:
            missing = f"{what} does not exist: {where}"
            if self._nameless:
                raise CorruptData(missing + self.may_be_nameless)
            raise FailedPrecondition(missing)
        if stage.record is None:
            raise FailedPrecondition(f"{what} is not sealed")
        raise CorruptData(f"{what} is damaged: {stage.fault}")

    def has_sink(self, sink_id: str) -> bool:
        """True when a sink has stages."""
        return sink_id in self._by_sink

    def sinks(self) -> list[str]:
        """Ids of sinks that have stages."""
        return list(self._by_sink)

    def of_sink(self, sink_id: str) -> list[Stage]:
        """Stages of a sink."""
        return list(self._by_sink.get(sink_id, {}).values())

    def of_topic(self, topic_id: bytes) -> list[Stage]:
        """Stages that have records of a topic."""
        return list(self._by_topic.get(topic_id, ()))

    def part(self, name: StageName, topic_id: bytes, partition: int) -> StagedPart | None:
        """A sealed stage's part of a partition, for reading; None if there is no such stage or
        part.
        """
        stage = self._stages.get(name)
        part = None if stage is None else stage.parts.get((topic_id, partition))
        if stage is None or part is None:
            return None
        return staged_part(self.directory, stage.number, part)

    # --- pieces -----------------------------------------------------------------------------------

    async def stage(self, call: StageCall) -> int:
        """Write a piece, or seal a stage, or both; see `StagedWrites.stage`.

        Returns:
            Size of the stage in bytes.
        """
        if self._jobs.stopped:
            raise ShuttingDown
        name, piece, batches, seal, client = call
        stage = self._stages.get(name)
        if stage is None:
            if not batches and seal is not None and seal.pieces:
                raise FailedPrecondition(
                    f"there is no stage {name.stage_id} of sink {name.sink_id}: it was published or discarded, has expired, or "
                    "this node restarted before it was sealed"
                )
            if len(self._stages) >= STAGES_MAX:
                raise ResourceExhausted(f"there are {STAGES_MAX} stages, which is the limit").at_limit(
                    "stages of a cluster"
                )
            self._check_room(batches, 0, client)
            stage = self._add(name, self._next_number, client)
            self._next_number += 1
        if batches:
            await self._take(stage, piece, batches, client)
        if seal is not None:
            await self._seal(stage, seal)
        return stage.size

    async def _take(
        self, stage: Stage, number: int, batches: Sequence[PieceBatches], client: StageClient
    ) -> None:
        crc = 0
        for each in batches:
            crc = crc32c(each.batches, crc)
        piece = stage.pieces.get(number)
        if piece is None:
            piece = self._begin_piece(stage, number, crc, batches, client)
        elif piece.crc != crc:
            raise InvalidArgument(
                f"piece {number} of stage {stage.name.stage_id} has CRC-32C {crc:#010x}, the same piece had "
                f"{piece.crc:#010x} before"
            )
        if piece.writing is not None:
            _raise(await piece.writing.wait())

    def _begin_piece(
        self, stage: Stage, number: int, crc: int, batches: Sequence[PieceBatches], client: StageClient
    ) -> Piece:
        if stage.seal is not None:
            raise FailedPrecondition(
                f"stage {stage.name.stage_id} is sealed with {stage.seal.pieces} pieces, and {number} is not among them"
            )
        if len(stage.pieces) >= PIECES_MAX:
            raise ResourceExhausted(f"a stage may have {PIECES_MAX} pieces").at_limit("pieces of a stage")
        size = self._check_room(batches, stage.size, client)
        if self._queued_bytes and self._queued_bytes + size > QUEUED_BYTES_MAX:
            raise Unavailable(f"{self._queued_bytes} bytes wait to be staged; try again").at_limit(
                "bytes that wait to be staged"
            )
        piece = stage.pieces[number] = Piece(crc, size, None)
        self._count(stage, size, _extents(batches), client)
        self._queued_bytes += size
        self._has_topics(stage, (each.topic_id for each in batches))

        def done(_: None, error: BaseException | None) -> PixyError | None:
            piece.writing = None
            self._queued_bytes -= size
            if error is not None:
                del stage.pieces[number]
                if self._stages.get(stage.name) is stage:
                    self._count(stage, -size, -_extents(batches), client)
                    if stage.is_empty:
                        self._forget(stage)
            self._stop_if_fault(error)
            return _as_refusal(error, f"piece {number} of stage {stage.name.stage_id}")

        piece.writing = self._jobs.submit(stage.lane, stage.files.write(number, batches), done)
        return piece

    async def _seal(self, stage: Stage, seal: StageSeal) -> None:
        # More pieces may arrive during the wait, and a seal must not count a piece whose write
        # fails.
        while writing := [piece.writing for piece in stage.pieces.values() if piece.writing is not None]:
            await writing[-1].wait()
        if stage.seal is None:
            self._begin_seal(stage, seal)
        elif stage.seal != seal:
            raise FailedPrecondition(
                f"stage {stage.name.stage_id} is sealed with {stage.seal.pieces} pieces and CRC-32C {stage.seal.crc:#010x}, "
                f"not with {seal.pieces} and {seal.crc:#010x}"
            )
        if stage.sealing is not None:
            _raise(await stage.sealing.wait())

    def _begin_seal(self, stage: Stage, seal: StageSeal) -> None:
        if self._jobs.stopped:
            raise ShuttingDown
        if self._stages.get(stage.name) is not stage:
            raise _discarded(stage)
        missing = next((number for number in range(seal.pieces) if number not in stage.pieces), None)
        if missing is not None:
            raise FailedPrecondition(
                f"stage {stage.name.stage_id} must have {seal.pieces} pieces, but piece {missing} is missing: it never arrived, or this "
                "node has restarted since"
            )
        if len(stage.pieces) != seal.pieces:
            raise FailedPrecondition(
                f"stage {stage.name.stage_id} must have {seal.pieces} pieces, but has piece {max(stage.pieces)}"
            )
        pieces = [stage.pieces[number].crc for number in range(seal.pieces)]
        crc = seal_crc(pieces)
        if crc != seal.crc:
            raise FailedPrecondition(
                f"the pieces of stage {stage.name.stage_id} have CRC-32C {crc:#010x}, its seal says {seal.crc:#010x}"
            )
        stage.seal = seal

        def done(record: StageRecord | None, error: BaseException | None) -> PixyError | None:
            stage.sealing = None
            if record is not None:
                self._sealed(stage, record)
            elif isinstance(error, DroppedJob):
                stage.seal = None
                if stage.is_empty:
                    self._forget(stage)
            elif self._stages.get(stage.name) is stage:
                # The state of files after a failed sync is unknown: drop the stage, and let its
                # writer start over.
                log.error("a stage could not be sealed and is dropped", stage=stage.name, error=str(error))
                self.remove([stage], lambda: None)
            self._stop_if_fault(error)
            return _as_refusal(error, f"stage {stage.name.stage_id}")

        steps = stage.files.seal(self._cluster_id, *stage.name, pieces)
        stage.sealing = self._jobs.submit(stage.lane, steps, done)

    def _stop_if_fault(self, error: BaseException | None) -> None:
        if isinstance(error, StorageFault):
            self._on_fault(error)

    def _sealed(self, stage: Stage, record: StageRecord) -> None:
        stage.sealed(record)
        if self._stages.get(stage.name) is stage:
            self._count(stage, 0, len(stage.pieces) + len(stage.parts) - stage.extents, NO_CLIENT)

    def _count(self, stage: Stage, size: int, extents: int, client: StageClient) -> None:
        stage.size += size
        self.bytes += size
        if client.address:
            stage.bytes_of[client.address] += size
            self.bytes_of[client.address] += size
        stage.extents += extents
        self.extents += extents

    def _check_room(self, batches: Sequence[PieceBatches], staged_bytes: int, client: StageClient) -> int:
        """Reject a piece that does not fit, and return its size.

        Args:
            staged_bytes: present size of its stage.
        """
        size = sum(len(each.batches) for each in batches)
        if staged_bytes + size > STAGE_BYTES_MAX:
            raise ResourceExhausted(
                f"the stage would have {staged_bytes + size} bytes, {STAGE_BYTES_MAX} are allowed: begin another one"
            ).at_limit("bytes of a stage")
        client.check(self.bytes_of[client.address], size)
        if self.bytes + size > self._bytes_max:
            raise ResourceExhausted(
                f"{self.bytes} bytes are staged, staging.max_bytes allows {self._bytes_max}: {size} more do not fit"
            ).at_limit("staging.max_bytes")
        if self.extents + _extents(batches) > EXTENTS_MAX:
            raise ResourceExhausted(
                f"all stages together have {self.extents} pieces and parts of pieces, and {EXTENTS_MAX} are allowed: make larger pieces, "
                "of fewer partitions each, or publish or discard some stages"
            ).at_limit("parts of all stages")
        return size

    # --- removal ----------------------------------------------------------------------------------

    def remove(self, stages: Iterable[Stage], then: Callable[[], None]) -> None:
        """Forget stages at once, and remove their files; `then` is called when they are durably
        gone, on a full disk once there is room.
        """
        by_lane: dict[Lane, list[Stage]] = {}
        for stage in stages:
            if self._forget(stage):
                by_lane.setdefault(stage.lane, []).append(stage)
        remaining = len(by_lane)
        if not by_lane:
            self._loop.call_soon(then)

        def begin(lane: Lane, gone: Sequence[Stage]) -> None:
            steps = remove_stages(self._disk, self.directory, [stage.number for stage in gone])
            self._jobs.submit(lane, steps, partial(removed, lane, gone), must=True)

        def removed(lane: Lane, gone: Sequence[Stage], _: None, error: BaseException | None) -> None:
            nonlocal remaining
            if is_disk_full(error):
                log.warning("stages cannot be removed for the moment", error=str(error), stages=len(gone))
                self._loop.call_later(_REMOVE_AGAIN_S, begin, lane, gone)
                return
            if error is not None:
                self._on_fault(error)
                return
            self.bytes -= sum(stage.size for stage in gone)
            for stage in gone:
                self.bytes_of -= stage.bytes_of
            remaining -= 1
            if not remaining:
                then()

        for lane, gone in by_lane.items():
            begin(lane, gone)

    def _forget(self, stage: Stage) -> bool:
        """Take a stage out of the indexes; its pieces, or its seal, are dropped unless they have
        begun. Returns False if it is gone.
        """
        if self._stages.get(stage.name) is not stage:
            return False
        del self._stages[stage.name]
        self._faults.pop(stage.number, None)
        of_sink = self._by_sink[stage.name.sink_id]
        del of_sink[stage.name.stage_id]
        if not of_sink:
            del self._by_sink[stage.name.sink_id]
        for topic_id in stage.topic_ids:
            del self._by_topic[topic_id][stage]
            if not self._by_topic[topic_id]:
                del self._by_topic[topic_id]
        self.extents -= stage.extents
        jobs = [stage.sealing, *(piece.writing for piece in stage.pieces.values())]
        for job in jobs:
            if job is not None:
                self._jobs.drop(job, _discarded(stage))
        return True

    def _has_topics(self, stage: Stage, topic_ids: Iterable[bytes]) -> None:
        for topic_id in topic_ids:
            stage.topic_ids.add(topic_id)
            self._by_topic.setdefault(topic_id, {})[stage] = None

    def _add(self, name: StageName, number: int, client: StageClient) -> Stage:
        lane = Lane(client.address, name.sink_id)
        stage = Stage(name, number, lane, StageFiles(self._disk, self.directory, number))
        self._stages[name] = stage
        self._by_sink.setdefault(name.sink_id, {})[name.stage_id] = stage
        return stage


def _extents(batches: Sequence[PieceBatches]) -> int:
    """Number of extents of a piece: itself, and its part of each partition."""
    return 1 + len(batches)


def seal_crc(pieces: Sequence[int]) -> int:
    """Checksum of a seal: over the checksums of the pieces, by number."""
    crc: int = crc32c(b"".join(piece.to_bytes(4, "big") for piece in pieces))
    return crc


def _discarded(stage: Stage) -> FailedPrecondition:
    return FailedPrecondition(f"stage {stage.name.stage_id} of sink {stage.name.sink_id} was discarded")


def _as_refusal(error: BaseException | None, what: str) -> PixyError | None:
    """Error for the caller of a job that was dropped, or after an error of the disk."""
    if error is None:
        return None
    if isinstance(error, DroppedJob):
        return error.reason
    if is_disk_full(error):
        return Unavailable(f"{what} was not written: the disk is full")
    log.error("a stage cannot be written", what=what, error=str(error))
    return StorageFault(f"{what} was not written: {error}")


def _raise(error: Any) -> None:
    if error is not None:
        # Each caller gets its own: an exception raised repeatedly accumulates tracebacks.
        raise copy(error)

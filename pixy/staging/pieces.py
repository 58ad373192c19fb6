"""The pieces of replicated stages that a node has: writes, finds and removes them.

A replica of a partition has to have the pieces that its log names before it confirms the entries
(`cluster.sideloading`). Which pieces those are, and when they may go, is for others to say: this
module stores bytes by their key. A piece is durable once `put` has returned, and is written once,
however often it comes.

All file work runs on one worker, in the order of the requests.

Invariants: `bytes` is the sum of the sizes of all files; a piece that `has` is durable.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path

import structlog

from pixy.aio.futures import resolve
from pixy.aio.steps import run_in_steps
from pixy.errors import DataDirectoryError, NotFound, PixyError, ResourceExhausted, StorageFault, Unavailable
from pixy.staging.piece_files import (
    UNIT_PIECES_MAX,
    NewPiece,
    PieceFile,
    PieceKey,
    PiecePlace,
    recover_pieces,
    remove_piece_files,
)
from pixy.storage import Disk, StagedPart, Worker, is_disk_full, run_on

log = structlog.get_logger(__name__)

QUEUED_BYTES_MAX = 64 << 20
"""Bytes of pieces that wait for the worker; more are refused temporarily."""
FORGOTTEN_PER_STEP = 500


class _StagePieces:
    """The pieces of one stage."""

    __slots__ = ("file", "places", "size", "writing")

    def __init__(self, file: PieceFile) -> None:
        self.file = file
        self.places: dict[PieceKey, PiecePlace] = {}
        self.size = 0
        # Pieces that are being written; resolve to None or the write's error.
        self.writing: dict[PieceKey, asyncio.Future[PixyError | None]] = {}


class Pieces:
    """All pieces of a node.

    Args:
        disk, directory: location of their files.
        worker: the thread for their files; not owned.
        bytes_max: maximum of bytes, for pieces that may be refused.
        on_fault: called with the error when it is unknown what of a file is durable.

    Attributes:
        bytes: sum of the sizes of all files.
        retained_bytes: of these, what does not count for `bytes_max`; set by whoever retains them.
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
        self._directory = directory
        self._worker = worker
        self._bytes_max = bytes_max
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self._cluster_id = b""
        self._stages: dict[int, _StagePieces] = {}
        # The same by raft group, with their stages; those of removed stages go in steps.
        self._by_raft_group: dict[int, dict[PieceKey, _StagePieces]] = {}
        self._queued_bytes = 0
        self.bytes = 0
        self.retained_bytes = 0

    async def recover(self, cluster_id: bytes) -> None:
        """Find the pieces of an earlier process.

        Raises:
            DataDirectoryError: the files cannot be used.
        """
        self._cluster_id = cluster_id
        try:
            found = await run_on(
                self._worker, partial(recover_pieces, self._disk, self._directory, cluster_id)
            )
        except OSError as error:
            raise DataDirectoryError(f"{self._directory} cannot be used: {error}") from error
        for number, (size, places) in sorted(found.items()):
            stage = self._stages[number] = _StagePieces(self._file(number, size))
            stage.places, stage.size = places, size
            self._put(places, stage)
            self.bytes += size

    # --- what there is ----------------------------------------------------------------------------

    @property
    def stages(self) -> Mapping[int, int]:
        """Bytes of each stage with pieces here, by its number."""
        return {number: stage.size for number, stage in self._stages.items()}

    def size_of(self, stage: int) -> int:
        """Bytes of a stage; 0 if there is none."""
        found = self._stages.get(stage)
        return 0 if found is None else found.size

    def raft_groups_of(self, stage: int) -> set[int]:
        """Raft groups of the partitions that a stage has pieces for."""
        found = self._stages.get(stage)
        return set() if found is None else {key.raft_group for key in found.places}

    def of_raft_group(self, raft_group: int) -> Iterator[tuple[PieceKey, PiecePlace]]:
        """The pieces of a partition that are durable."""
        for key, stage in self._by_raft_group.get(raft_group, {}).items():
            if self._stages.get(key.stage) is stage:
                yield key, stage.places[key]

    def has(self, key: PieceKey) -> bool:
        """True if a piece is here and durable."""
        stage = self._stages.get(key.stage)
        return stage is not None and key in stage.places

    def matches(self, key: PieceKey, size: int, records: int) -> bool:
        """True if a piece is here and durable, with this size and number of records."""
        stage = self._stages.get(key.stage)
        place = None if stage is None else stage.places.get(key)
        return place is not None and (place.size, place.records) == (size, records)

    def part(self, key: PieceKey, size: int, records: int) -> StagedPart:
        """A piece, for reading. One that is not here, or not with this size and number of records,
        is a part that cannot be read, with the name of the file where it should be.
        """
        stage = self._stages.get(key.stage)
        place = None if stage is None else stage.places.get(key)
        if stage is None or place is None or (place.size, place.records) != (size, records):
            path = self._file(key.stage, 0).path
            return StagedPart(f"{path}, piece {key.number}", size, records)
        return StagedPart(stage.file.path, place.size, place.records, begin=place.begin)

    async def read(self, key: PieceKey, position: int, max_bytes: int) -> bytes:
        """Bytes of a piece from `position` on.

        Raises:
            NotFound: it is not here, or not any more.
            StorageFault: it cannot be read.
        """
        stage = self._stages.get(key.stage)
        place = None if stage is None else stage.places.get(key)
        if stage is None or place is None:
            raise NotFound(f"piece {key.number} of stage {key.stage} is not here")
        position = min(position, place.size)
        size = min(max_bytes, place.size - position)
        return await run_on(self._worker, partial(self._read, stage.file.path, place.begin + position, size))

    def _read(self, path: Path, position: int, size: int) -> bytes:
        try:
            file = self._disk.open(path)
            try:
                return file.read_at(size, position)
            finally:
                file.close()
        except FileNotFoundError as error:
            raise NotFound(f"{path} was removed") from error
        except OSError as error:
            raise StorageFault(f"{path} cannot be read: {error}") from error

    # --- writing ----------------------------------------------------------------------------------

    async def put(self, pieces: Sequence[NewPiece], *, must: bool = False) -> None:
        """Write pieces of one stage, if any, as far as they are not here; durable on return. The
        write goes on when the caller goes away.

        Args:
            pieces: with verified bytes; one that is there twice is one.
            must: they are needed, whatever the limits.

        Raises:
            ResourceExhausted: too much is staged, or these are too many.
            Unavailable: the disk is full, or too much waits to be written.
            StorageFault: the disk has failed.
        """
        by_key = {each.key: each for each in pieces}
        while by_key:
            number = pieces[0].key.stage
            stage = self._stages.get(number)
            places, writing = ({}, {}) if stage is None else (stage.places, stage.writing)
            missing = [each for key, each in by_key.items() if key not in places]
            if not missing:
                return
            other = next((writing[each.key] for each in missing if each.key in writing), None)
            if other is None:
                self._check_room(missing, must=must)
            error = await asyncio.shield(other or self._begin(number, missing))
            if error is not None:
                raise copy(error)
            if other is None:
                return

    def _check_room(self, pieces: Sequence[NewPiece], *, must: bool) -> None:
        if len(pieces) > UNIT_PIECES_MAX:
            raise ResourceExhausted(
                f"{len(pieces)} pieces at a time, {UNIT_PIECES_MAX} are allowed"
            ).at_limit("pieces that are staged at a time")
        size = sum(len(each.batches) for each in pieces)
        staged = self.bytes - self.retained_bytes
        if not must and staged + size > self._bytes_max:
            raise ResourceExhausted(
                f"{staged} bytes are staged, staging.max_bytes allows {self._bytes_max}: {size} more do not fit"
            ).at_limit("staging.max_bytes")
        if self._queued_bytes and self._queued_bytes + size > QUEUED_BYTES_MAX:
            raise Unavailable(f"{self._queued_bytes} bytes wait to be staged; try again").at_limit(
                "bytes that wait to be staged"
            )

    def _begin(self, number: int, pieces: Sequence[NewPiece]) -> "asyncio.Future[PixyError | None]":
        stage = self._stages.get(number)
        if stage is None:
            stage = self._stages[number] = _StagePieces(self._file(number, 0))
        written: asyncio.Future[PixyError | None] = self._loop.create_future()
        size = sum(len(each.batches) for each in pieces)
        self._queued_bytes += size
        stage.writing.update((each.key, written) for each in pieces)

        def done(places: dict[PieceKey, PiecePlace] | None, error: BaseException | None) -> None:
            self._queued_bytes -= size
            for each in pieces:
                del stage.writing[each.key]
            if places is not None:
                stage.places.update(places)
                if self._stages.get(number) is stage:
                    self._put(places, stage)
                    self._grow(stage, max(place.begin + place.size for place in places.values()))
            elif not (stage.places or stage.writing) and self._stages.get(number) is stage:
                del self._stages[number]
            if isinstance(error, StorageFault):
                self._on_fault(error)
            resolve(written, None if error is None else _as_refusal(error, number))

        self._worker.submit(partial(stage.file.write, pieces), done)
        return written

    def _put(self, places: Iterable[PieceKey], stage: _StagePieces) -> None:
        """Note pieces of a stage by their raft groups."""
        by_raft_group = self._by_raft_group
        for key in places:
            pieces = by_raft_group.get(key.raft_group)
            if pieces is None:
                pieces = by_raft_group[key.raft_group] = {}
            pieces[key] = stage

    def _forget(self, stages: list[_StagePieces]) -> Iterator[None]:
        """Forget the pieces of stages that were removed, in steps."""
        forgotten = 0
        while stages:
            stage = stages.pop()
            for key in stage.places:
                pieces = self._by_raft_group.get(key.raft_group, {})
                if pieces.get(key) is stage:
                    del pieces[key]
                    if not pieces:
                        del self._by_raft_group[key.raft_group]
                forgotten += 1
                if not forgotten % FORGOTTEN_PER_STEP:
                    yield

    def _grow(self, stage: _StagePieces, size: int) -> None:
        self.bytes += size - stage.size
        stage.size = size

    def _file(self, number: int, size: int) -> PieceFile:
        return PieceFile(self._disk, self._directory, self._cluster_id, number, size)

    # --- removal ----------------------------------------------------------------------------------

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget stages at once, and remove their files. A crash may bring these back."""
        gone, stages = [], []
        for number in numbers:
            stage = self._stages.pop(number, None)
            if stage is not None:
                self.bytes -= stage.size
                gone.append(number)
                stages.append(stage)
        if not gone:
            return
        run_in_steps(self._forget(stages))

        def done(_: None, error: BaseException | None) -> None:
            if error is not None:
                log.error("files of stages cannot be removed", stages=gone, error=str(error))

        self._worker.submit(partial(remove_piece_files, self._disk, self._directory, gone), done)


def _as_refusal(error: BaseException, number: int) -> PixyError:
    if is_disk_full(error):
        return Unavailable(f"pieces of stage {number} were not written: the disk is full")
    return StorageFault(f"pieces of stage {number} were not written: {error}")

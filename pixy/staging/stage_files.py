"""The files of stages: record batches that are durable and belong to no log yet.

    staging/<number, 20 digits>/
        <topic id, hexadecimal>-<partition>.batches    plain record batches back to back
        stage                                          the contents of the stage; its presence
                                                       seals the stage

Knows the name and the contents of a stage, and nothing of its publication: that is its owner's,
which may be any kind of cluster. Every function and method here blocks, and those that change
something run on one worker. Writes, seals and removals are generators, with steps of some files
each: other stages get their turns in between, but no other call for the same stage.

Sealing makes the files durable, then their names, then the file `stage`: a stage that has it is
complete. A stage without it was left by a process that ended before, which has told no caller that
it is durable. A removal begins with a durable rename to `<number>-deleted`, because half of a stage
is none; on a disk too full for the new name, with a durable removal of the file `stage`. The
leftovers of ended processes are removed behind the start, which may take minutes on a slow disk: an
unsealed stage where it is, because half of it is unsealed as well, and its number is not used again
while it is there.

    found at a start                                       done
    -----------------------------------------------------  -----------------------------------------
    sealed        a valid file `stage`, and files at       taken
                  least as long as it says
    longer        a segment of a log, by another name      taken: bytes behind the length are not
                                                           the stage's
    unsealed      no file `stage`                          logged, and removed later
    half removed  `<number>-deleted`                       logged, and removed later
    incomplete    a valid file `stage`, and a file is      taken as damaged: it cannot be published,
                  missing or short                         and a partition that waits for it is not
                                                           ready
    damaged       a file `stage` that is not valid, or a   taken as damaged, and kept: which stage
                  directory that cannot be listed          it is cannot be told, so one that is
                                                           missing may be this one
    twice         the sink and stage of another one        refused
    foreign       another cluster's                        refused
    newer         a newer version                          refused
    stray         a file, or a directory of any other name refused
"""

import errno
import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import structlog

from pixy.errors import CorruptData, DataDirectoryError, StorageFault
from pixy.proto.state_pb2 import StagePart, StageRecord
from pixy.storage import (
    Disk,
    StagedPart,
    Steps,
    is_disk_full,
    lost_is_corrupt,
    read_stage_record,
    sync_is_final,
    unlink_directories,
    write_stage_record,
)

log = structlog.get_logger(__name__)

STAGE_FILE = "stage"
"""The file that a stage has once it is sealed."""

_STEP_BYTES = 4 << 20
_FILE_BYTES = _STEP_BYTES // 16
"""A step has at most 16 files, a file counting as these bytes and its own, or one larger file."""

_NAME = re.compile(r"\d{20}")
_RENAMED_PER_STEP = 100
_DELETED = re.compile(r"\d{20}-deleted")


class PieceBatches(NamedTuple):
    """Batches of one partition in a piece of a stage: whole, back to back, with their records
    counted.
    """

    topic: str
    topic_id: bytes
    partition: int
    batches: bytes | memoryview
    records: int


class SealedStage(NamedTuple):
    """A stage found at start, with the fault of its files; None if none is known."""

    number: int
    record: StageRecord
    fault: CorruptData | None


def stage_directory(directory: Path, number: int) -> Path:
    """Directory of a stage."""
    return directory / _directory_name(number)


def _directory_name(number: int) -> str:
    return f"{number:020d}"


def staged_part(directory: Path, number: int, part: StagePart) -> StagedPart:
    """Part of a sealed stage, for reading."""
    name = _file_name(part.topic_id, part.partition)
    return StagedPart(f"{directory}/{_directory_name(number)}/{name}", part.bytes, part.records)


def _file_name(topic_id: bytes, partition: int) -> str:
    return f"{topic_id.hex()}-{partition}.batches"


class _Extent(NamedTuple):
    piece: int
    position: int
    size: int


@dataclass(slots=True)
class _PartFile:
    """File of a stage that is being written.

    `extents` are in the order of the file; `size` is their sum in bytes.
    """

    topic: str
    topic_id: bytes
    partition: int
    extents: list[_Extent] = field(default_factory=list)
    size: int = 0
    records: int = 0


class RecoveredStages(NamedTuple):
    """Stages found at start. New stages get numbers from `next_number` on; `leftovers` are
    directories to be removed; `nameless` are faults of stages whose names cannot be read.
    """

    stages: list[SealedStage]
    next_number: int
    leftovers: list[Path]
    nameless: list[CorruptData]


class _StepSize:
    """The size of the present step of some work on files."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    def ends_before(self, size: int) -> bool:
        """True if the step ends before a file of which `size` bytes are worked on."""
        cost = _FILE_BYTES + size
        ends = bool(self._bytes) and self._bytes + cost > _STEP_BYTES
        self._bytes = cost if ends else self._bytes + cost
        return ends


class StageFiles:
    """Writes one stage. No file stays open between two calls: a node may have many stages, of many
    partitions each.

    Args:
        disk: the file system.
        directory: the directory of all stages.
        number: the number of this one.

    Attributes:
        made: true once its directory is there.
    """

    def __init__(self, disk: Disk, directory: Path, number: int) -> None:
        self._disk = disk
        self._directory = stage_directory(directory, number)
        self.made = False
        self._files: dict[tuple[bytes, int], _PartFile] = {}

    def write(self, piece: int, batches: Sequence[PieceBatches]) -> Steps:
        """Write a piece, in steps; no piece is written twice. Nothing of it counts before the end.

        Raises:
            OSError: nothing of it counts as written.
            StorageFault: it is unknown whether a directory is durable; the process must end.
        """
        self._make_directory()
        written: list[tuple[_PartFile, PieceBatches]] = []
        step = _StepSize()
        for each in batches:
            if step.ends_before(len(each.batches)):
                yield
            key = (each.topic_id, each.partition)
            part = self._files.get(key) or _PartFile(each.topic, each.topic_id, each.partition)
            file = self._disk.open(self._path(part), create=True)
            try:
                file.write_at([each.batches], part.size)
            finally:
                file.close()
            written.append((part, each))
        for part, each in written:
            part.extents.append(_Extent(piece, part.size, len(each.batches)))
            part.size += len(each.batches)
            part.records += each.records
            self._files[part.topic_id, part.partition] = part

    def seal(self, cluster_id: bytes, sink_id: str, stage_id: str, pieces: Sequence[int]) -> Steps:
        """Make the stage complete and durable, in steps; `pieces` has the checksum of each. Begins
        once at most. The result is the `StageRecord`.

        Raises:
            OSError: it is unknown what of it is durable, so it must be removed.
            StorageFault: as `write`.
        """
        self._make_directory()
        step = _StepSize()
        for part in self._files.values():
            if step.ends_before(part.size):
                yield
            yield from self._put_in_order(part)
            file = self._disk.open(self._path(part))
            try:
                # The rest of a failed write may follow the end of the part.
                if file.size() > part.size:
                    file.truncate(part.size)
                with sync_is_final():
                    file.sync()
            finally:
                file.close()
        with sync_is_final():
            self._disk.sync_directory(self._directory)
        parts = [
            StagePart(
                topic=part.topic,
                topic_id=part.topic_id,
                partition=part.partition,
                bytes=part.size,
                records=part.records,
            )
            for part in self._files.values()
        ]
        record = StageRecord(
            cluster_id=cluster_id, sink_id=sink_id, stage_id=stage_id, pieces=pieces, parts=parts
        )
        write_stage_record(self._disk, self._directory / STAGE_FILE, record)
        self._files.clear()
        return record

    def _make_directory(self) -> None:
        if self.made:
            return
        try:
            self._disk.make_directory(self._directory)
        except OSError as error:
            if error.errno == errno.EIO:
                # A second attempt would find the directory, and take its name for durable.
                raise StorageFault(f"{self._directory} was made, perhaps not durably: {error}") from error
            raise
        self.made = True

    def _path(self, part: _PartFile) -> Path:
        return self._directory / _file_name(part.topic_id, part.partition)

    def _put_in_order(self, part: _PartFile) -> Steps:
        """Write the file again, in steps, unless its pieces came in the order of their numbers."""
        ordered = sorted(part.extents)
        if ordered == part.extents:
            return
        path = self._path(part)
        ordered_path = path.with_suffix(".ordered")
        position = 0
        step = _StepSize()
        for extent in ordered:
            if step.ends_before(extent.size):
                yield
            self._copy(path, extent, ordered_path, position)
            position += extent.size
        self._disk.rename(ordered_path, path)

    def _copy(self, path: Path, extent: _Extent, to: Path, position: int) -> None:
        # Opened for each: a file would stay open between two steps.
        source = self._disk.open(path)
        try:
            content = source.read_at(extent.size, extent.position)
        finally:
            source.close()
        target = self._disk.open(to, create=True)
        try:
            target.write_at([content], position)
        finally:
            target.close()


def recover_stages(disk: Disk, directory: Path, cluster_id: bytes) -> RecoveredStages:
    """Find the sealed stages, and the leftovers of ended processes. Blocks.

    Raises:
        DataDirectoryError: a foreign file, or one of a newer release.
        CorruptData: a stage is there twice.
        OSError: the disk refuses.
    """
    found: list[SealedStage] = []
    leftovers: list[Path] = []
    nameless: list[CorruptData] = []
    names: dict[tuple[str, str], Path] = {}
    last = 0
    for name in disk.names(directory):
        path = directory / name
        stage = _sort(disk, path)
        last = max(last, int(name[:20]))
        if stage is None:
            leftovers.append(path)
            continue
        if isinstance(stage, CorruptData):
            nameless.append(stage)
            continue
        if stage.record.cluster_id != cluster_id:
            raise DataDirectoryError(
                f"{path} belongs to cluster {stage.record.cluster_id.hex()}, this is {cluster_id.hex()}; move it out of the way"
            )
        key = (stage.record.sink_id, stage.record.stage_id)
        if key in names:
            raise CorruptData(f"{path} is stage {key[1]} of sink {key[0]}, and so is {names[key]}")
        names[key] = path
        # The process that sealed it may have ended before the name of its file was durable.
        disk.sync_directory(path)
        found.append(stage)
    return RecoveredStages(found, last + 1, leftovers, nameless)


def _sort(disk: Disk, path: Path) -> SealedStage | CorruptData | None:
    """Stage at a path in the directory of stages; None for a leftover, its fault for one whose name
    cannot be read.
    """
    unlisted: CorruptData | None = None
    try:
        with lost_is_corrupt(path):
            files = disk.names(path)
    except NotADirectoryError as error:
        raise DataDirectoryError(f"{path} is not a directory; move it out of the way") from error
    except CorruptData as error:
        unlisted = error
    if _DELETED.fullmatch(path.name):
        log.warning("removing what the removal of a stage has left", directory=str(path))
        return None
    if _NAME.fullmatch(path.name) is None:
        raise DataDirectoryError(f"{path} is not a stage; move it out of the way")
    if unlisted is not None:
        return unlisted
    if STAGE_FILE not in files:
        log.warning("removing a stage that was never sealed", directory=str(path))
        return None
    try:
        with lost_is_corrupt(path / STAGE_FILE):
            record = read_stage_record(disk, path / STAGE_FILE)
    except CorruptData as error:
        return error
    return SealedStage(int(path.name), record, find_fault(disk, path, record))


def find_fault(disk: Disk, path: Path, record: StageRecord) -> CorruptData | None:
    """Fault of the files of a sealed stage, judged by existence and length alone; None if there is
    none. Blocks.
    """
    for part in record.parts:
        name = path / _file_name(part.topic_id, part.partition)
        try:
            with lost_is_corrupt(name), closing(disk.open(name)) as file:
                size = file.size()
        except FileNotFoundError:
            return CorruptData(f"{name} is missing, it was sealed")
        except CorruptData as error:
            return error
        if size < part.bytes:
            return CorruptData(f"{name} has {size} bytes, {part.bytes} were sealed")
    return None


def remove_stages(disk: Disk, directory: Path, numbers: Iterable[int]) -> Steps:
    """Remove stages, sealed or not, in steps; durable at the end. Files that cannot be removed are
    logged, and go at the next start.

    Raises:
        OSError: some of the stages may still exist; for lack of space it can be tried again.
    """
    there, gone = set(disk.names(directory)), list[Path]()
    for number in numbers:
        path = stage_directory(directory, number)
        deleted = path.with_name(f"{path.name}-deleted")
        if path.name in there:
            if len(gone) % _RENAMED_PER_STEP == _RENAMED_PER_STEP - 1:
                yield
            gone.append(deleted if _rename(disk, path, deleted) else path)
        elif deleted.name in there:
            gone.append(deleted)  # an earlier attempt has renamed it
    if gone:
        with sync_is_final():
            disk.sync_directory(directory)
    yield from unlink_directories(disk, gone)


def _rename(disk: Disk, path: Path, deleted: Path) -> bool:
    """Rename a stage that is to be removed, or unseal it if the disk is too full for another name;
    True if it was renamed.
    """
    try:
        disk.rename(path, deleted)
    except OSError as error:
        if not is_disk_full(error):
            raise
        if STAGE_FILE in disk.names(path):
            disk.unlink(path / STAGE_FILE)
        with sync_is_final():
            disk.sync_directory(path)
        return False
    return True

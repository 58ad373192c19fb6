"""Checkpoints: snapshots of a state group, in files named as KIP-630 names them.

    <end offset, 20 digits>-<epoch, 10 digits>.checkpoint

`end offset` is the index of the last entry that the snapshot includes; `epoch` is that entry's term. While it is written the file ends
in `.checkpoint.part`; it is synced, renamed, and the directory synced, so a file of the final name is complete.

The body is a sequence of Kafka v2 record batches with offsets from 0 on and the epoch as leader epoch: first a control
batch with a snapshot header (control type 3, version, time of the last contained record), then the records, last a control batch
with a snapshot footer (control type 4). A file without a valid footer counts as absent.

    found                                        done
    -------------------------------------------  ------------------------------------------------------------
    `.checkpoint.part`                           left from a crash: removed
    a `.checkpoint` that is damaged or cut off   said, counts as absent: the one before it is used, and the next one
                                                 that is written removes it
    a snapshot header of a newer version         refused
    any other name                               refused
"""

import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from pixy.errors import CorruptData, DataDirectoryError
from pixy.records import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    NewRecord,
    batch_bytes,
    build_batch,
    build_control_batch,
    check_batch,
    patch_batch,
    read_control_record,
    read_header,
    read_records,
)
from pixy.storage.disk import Disk

__all__ = ["Checkpoint", "CheckpointId", "CheckpointStore", "read_checkpoint"]

log = structlog.get_logger(__name__)

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_PART = ".checkpoint.part"
_SNAPSHOT_HEADER = 3
_SNAPSHOT_FOOTER = 4
_HEADER_VALUE = struct.Struct(">hqB")
_FOOTER_VALUE = struct.Struct(">hB")
_FORMAT_VERSION = 0
_RECORDS_PER_BATCH = 500
_KEPT = 2


class CheckpointId(NamedTuple):
    """Names a checkpoint; a later one is greater."""

    epoch: int
    end_offset: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"

    @classmethod
    def from_file_name(cls, name: str) -> "CheckpointId | None":
        """The checkpoint of that file name, None if it is not one's."""
        match = _NAME.fullmatch(name)
        return None if match is None else cls(int(match[2]), int(match[1]))


class Checkpoint(NamedTuple):
    """A checkpoint that was read: key and value of each record."""

    id: CheckpointId
    records: list[tuple[bytes, bytes]]


class CheckpointStore:
    """The checkpoints of one state group. Every method blocks and is called by one worker at a time."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._damaged: set[CheckpointId] = set()

    def write(
        self, id: CheckpointId, records: Iterable[tuple[bytes, bytes]], timestamp_ms: int
    ) -> list[CheckpointId]:
        """Write a checkpoint durably, then remove all but the newest two that are valid.

        Returns:
            What is there then, oldest first.
        """
        self._disk.make_directory(self._directory)
        part = self._directory / (id.file_name.removesuffix(".checkpoint") + _PART)
        try:
            self._write_part(part, _batches(id.epoch, records, timestamp_ms))
        except OSError:
            # A full disk gets its bytes back.
            with suppress(OSError):
                self._disk.unlink(part)
            raise
        self._disk.rename(part, self._directory / id.file_name)
        self._disk.sync_directory(self._directory)
        self._damaged.discard(id)
        return self._remove_old()

    def load(self) -> tuple[Checkpoint | None, list[CheckpointId]]:
        """The newest valid checkpoint, and the ids of all valid ones, oldest first.

        Raises:
            DataDirectoryError: a file that does not belong here, or of a newer release.
        """
        ids = self._ids()
        newest: Checkpoint | None = None
        valid: list[CheckpointId] = []
        for id in reversed(ids):
            path = self._directory / id.file_name
            try:
                checkpoint = Checkpoint(id, read_checkpoint(self._disk, path))
            except CorruptData as error:
                log.error("a checkpoint is damaged and not used", file=str(path), reason=str(error))
                self._damaged.add(id)
                continue
            newest = newest or checkpoint
            valid.insert(0, id)
        return newest, valid

    def _write_part(self, part: Path, batches: Iterable[bytearray]) -> None:
        file = self._disk.open(part, create=True)
        try:
            file.truncate(0)
            position = 0
            for batch in batches:
                file.write_at([batch], position)
                position += len(batch)
            file.sync()
        finally:
            file.close()

    def _ids(self) -> list[CheckpointId]:
        ids = []
        for name in self._disk.names(self._directory):
            if name.endswith(_PART):
                self._disk.unlink(self._directory / name)
                continue
            id = CheckpointId.from_file_name(name)
            if id is None:
                raise DataDirectoryError(
                    f"{self._directory / name} is not a checkpoint; move it out of the way"
                )
            ids.append(id)
        return sorted(ids)

    def _remove_old(self) -> list[CheckpointId]:
        ids = self._ids()
        kept = [id for id in ids if id not in self._damaged][-_KEPT:]
        for id in ids:
            if id not in kept:
                self._disk.unlink(self._directory / id.file_name)
        self._disk.sync_directory(self._directory)
        self._damaged.clear()
        return kept


def read_checkpoint(disk: Disk, path: Path) -> list[tuple[bytes, bytes]]:
    """Key and value of each record of a checkpoint. Blocks.

    Raises:
        DataDirectoryError: a newer release wrote it.
        CorruptData: it is damaged, or has no valid footer.
    """
    file = disk.open(path)
    try:
        data = file.read_at(file.size(), 0)
    finally:
        file.close()
    batches = _split(data)
    if len(batches) < 2:
        raise CorruptData(f"{len(batches)} batches, expected a header and a footer at least")
    _check_header(path, batches[0])
    if read_control_record(batches[-1])[0] != _SNAPSHOT_FOOTER:
        raise CorruptData("the last batch is not a snapshot footer")
    return [
        (record.key or b"", record.value or b"") for batch in batches[1:-1] for record in read_records(batch)
    ]


def _batches(epoch: int, records: Iterable[tuple[bytes, bytes]], timestamp_ms: int) -> Iterable[bytearray]:
    """The body of a checkpoint, batch by batch."""
    offset = 0

    def numbered(batch: bytearray) -> bytearray:
        nonlocal offset
        patch_batch(batch, offset, epoch)
        offset = read_header(batch).next_offset
        return batch

    header = _HEADER_VALUE.pack(_FORMAT_VERSION, timestamp_ms, 0)
    yield numbered(build_control_batch(_SNAPSHOT_HEADER, header, timestamp_ms))
    pending: list[NewRecord] = []
    for key, value in records:
        pending.append(NewRecord(key, value, (), timestamp_ms))
        if len(pending) == _RECORDS_PER_BATCH:
            yield numbered(build_batch(pending))
            pending = []
    if pending:
        yield numbered(build_batch(pending))
    yield numbered(
        build_control_batch(_SNAPSHOT_FOOTER, _FOOTER_VALUE.pack(_FORMAT_VERSION, 0), timestamp_ms)
    )


def _split(data: bytes) -> list[memoryview]:
    """Whole batches, each checked."""
    view = memoryview(data)
    batches = []
    at = 0
    while at < len(view):
        if len(view) - at < HEADER_BYTES:
            raise CorruptData(f"cut off at byte {at}")
        end = at + batch_bytes(view, at)
        if end > len(view) or end <= at + LENGTH_PREFIX_BYTES:
            raise CorruptData(f"a batch at byte {at} ends at byte {end}, the file at byte {len(view)}")
        check_batch(view[at:end])
        batches.append(view[at:end])
        at = end
    return batches


def _check_header(path: Path, batch: memoryview) -> None:
    control_type, value = read_control_record(batch)
    if control_type != _SNAPSHOT_HEADER or len(value) < _HEADER_VALUE.size:
        raise CorruptData("the first batch is not a snapshot header")
    version: int = _HEADER_VALUE.unpack_from(value)[0]
    if version > _FORMAT_VERSION:
        raise DataDirectoryError(
            f"{path} has format version {version}, this release reads up to {_FORMAT_VERSION}: a newer one wrote it"
        )

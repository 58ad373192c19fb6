"""Checkpoints: snapshots of a state group, in files named as KIP-630 names them.

    <end offset, 20 digits>-<epoch, 10 digits>.checkpoint

`end offset` is the index of the last entry in the snapshot; `epoch` is the term of that entry.
During the write, or the download from another node (`checkpoint_download`), the file is called
`.checkpoint.part`. It is synced and renamed, then the directory is synced, so a file with the final
name is complete.

The body is a sequence of Kafka v2 record batches with offsets from 0 on and the epoch as leader
epoch: a control batch with the snapshot header (control type 3, version, time of the last contained
record), the records, and a control batch with the snapshot footer (control type 4). A file without
a valid footer counts as absent.

Base offset and leader epoch of a batch are outside its checksum, and the file name is outside all
of them. Hence each batch must begin at the offset where the one before ends, and have the epoch of
the name. The end offset is in the name alone and cannot be verified.

    row                 found                                    done
    ------------------  ---------------------------------------  -----------------------------------
    absent              no file                                  the journal alone has the state
                                                                 group's entries
    whole               header, records and footer, all batches  the newest is used
                        valid
    temporary file      `.checkpoint.part`                       the newest is kept for its download
                                                                 from another node to go on, if it
                                                                 is newer than all checkpoints;
                                                                 others are removed
    temporary file of   the same, of a raft group without        removed
    a lone node         members on other nodes
    half a rename       a whole `.checkpoint.part`: a crash      as a temporary file: nothing relies
                        lost its new name                        on it before the directory is
                                                                 synced
    half a removal      more than two whole ones: a crash lost   the newest is used; the next write
                        the removal of the oldest                removes all but two
    foreign name        any other name, or one with an           refused
                        impossible end offset or epoch
    foreign node        a whole one of another node or cluster   cannot be detected, is used;
                                                                 `identity` and the journal name the
                                                                 owner of a directory
    newer version       a version above ours in header or        refused: written by a newer release
                        footer
    version below 0     in header or footer                      damaged
    short               cut off anywhere, or empty               damaged
    no footer           cut off between two batches              damaged
    no header           the first batch is not a snapshot        damaged
                        header
    compressed          a compressed batch: none is written      damaged
    records of no node  a whole one with records that no node    the node refuses to start, with the
                        writes, or a state that no commands      reason; a download is given up
                        lead to
    zero tail           zeros behind the footer                  damaged
    torn                zeros in its middle                      damaged
    bad checksum        a batch with a wrong checksum            damaged
    batch missing       a base offset that leaves a hole         damaged
    batch twice         a base offset that was there before      damaged
    other epoch         a leader epoch other than the name's: a  damaged
                        batch of another checkpoint, or a
                        renamed file
    control in between  a header or footer between the records,  damaged
                        or a batch behind the footer
    older neighbour     the newest is damaged, the one before    the one before is used
                        is whole
    without group       a whole one without the record of its    used: written by the first release
    state               raft group
    newer than the      an end offset behind the last entry of   the node refuses to start: journal
    journal             the state group in the journal           files are missing, or are those of
                                                                 an older state
    of another term     the journal has the entry at its end     the node refuses to start: one of
                        offset with another term                 them is of another node
    ahead of the        one of these two, of a raft group with   used: a snapshot that was fetched;
    journal             members on other nodes                   the start writes the log reset
    all damaged         none is whole                            as absent; then the journal does
                                                                 not reach back far enough, and the
                                                                 node refuses to start

A damaged checkpoint is logged, counts as absent, and is removed by the next write.
"""

import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from pixy.entry_ids import INDEX_MAX, TERM_MAX, LogPosition
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
from pixy.storage.disk import (
    CHECKPOINT_BYTES_MAX,
    Disk,
    File,
    lost_is_corrupt,
    read_whole,
    scan_headers,
    sync_is_final,
)

log = structlog.get_logger(__name__)

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
PART = ".part"
"""Suffix of a file that is being written, or fetched."""
_SNAPSHOT_HEADER = 3
_SNAPSHOT_FOOTER = 4
_HEADER_VALUE = struct.Struct(">hqB")
_FOOTER_VALUE = struct.Struct(">hB")
_FORMAT_VERSION = 0
_RECORDS_PER_BATCH = 500
_KEPT = 2


class CheckpointId(NamedTuple):
    """Identity of a checkpoint; a later one is greater."""

    epoch: int
    end_offset: int

    @property
    def position(self) -> LogPosition:
        """The last entry in the checkpoint of a raft group."""
        return LogPosition(self.epoch, self.end_offset)

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"

    @property
    def part_name(self) -> str:
        """Name of the file while it is incomplete."""
        return self.file_name + PART

    @classmethod
    def from_file_name(cls, name: str) -> "CheckpointId | None":
        """The id in a file name, None if the name is not a checkpoint's."""
        match = _NAME.fullmatch(name)
        if match is None or int(match[1]) > INDEX_MAX or int(match[2]) > TERM_MAX:
            return None
        return cls(int(match[2]), int(match[1]))


class Checkpoint(NamedTuple):
    """The content of a checkpoint: key and value of each record."""

    id: CheckpointId
    records: list[tuple[bytes, bytes]]


class CheckpointStore:
    """Checkpoints of one state group. All methods block and are called by one worker at a time.

    Attributes:
        disk, directory: their location.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self.disk = disk
        self.directory = directory
        self._damaged: set[CheckpointId] = set()

    def write(
        self, id: CheckpointId, records: Iterable[tuple[bytes, bytes]], timestamp_ms: int
    ) -> list[CheckpointId]:
        """Write a checkpoint durably, then remove all but the newest two valid ones.

        Returns:
            The remaining checkpoints, oldest first.
        """
        self.disk.make_directory(self.directory)
        part = self.directory / id.part_name
        try:
            self._write_part(part, _batches(id.epoch, records, timestamp_ms))
            self.disk.rename(part, self.directory / id.file_name)
        except OSError:
            # Return the space to a full disk.
            with suppress(OSError):
                self.disk.unlink(part)
            raise
        return self._complete(id)

    def adopt(self, id: CheckpointId) -> list[CheckpointId]:
        """Take over a checkpoint whose download is complete and verified, durably, then remove all
        but the newest two valid ones.

        Returns:
            The remaining checkpoints, oldest first.
        """
        names = self.disk.names(self.directory)
        if id.part_name not in names and id.file_name in names:
            return self._remove_old()  # this node has written the same one meanwhile
        file = self.disk.open(self.directory / id.part_name)
        try:
            with sync_is_final():
                file.sync()
        finally:
            file.close()
        self.disk.rename(self.directory / id.part_name, self.directory / id.file_name)
        return self._complete(id)

    def _complete(self, id: CheckpointId) -> list[CheckpointId]:
        """Make the name of a synced file durable, then remove old ones."""
        with sync_is_final():
            self.disk.sync_directory(self.directory)
        self._damaged.discard(id)
        return self._remove_old()

    def load(self) -> tuple[Checkpoint | None, list[CheckpointId]]:
        """The newest valid checkpoint, and the ids of all valid ones, oldest first.

        Incomplete ones are removed, except the newest if it is newer than all of these.

        Raises:
            DataDirectoryError: a foreign file, or one of a newer release.
        """
        ids, parts = self._scan()
        newest: Checkpoint | None = None
        valid: list[CheckpointId] = []
        for id in reversed(ids):
            path = self.directory / id.file_name
            try:
                checkpoint = Checkpoint(id, read_checkpoint(self.disk, path))
            except CorruptData as error:
                log.error("a checkpoint is damaged and not used", file=str(path), reason=str(error))
                self._damaged.add(id)
                continue
            newest = newest or checkpoint
            valid.insert(0, id)
        self._remove_parts(parts, valid)
        return newest, valid

    def remove_parts(self) -> None:
        """Remove incomplete checkpoints: no download of this group can go on."""
        _, parts = self._scan()
        for name in parts:
            self.disk.unlink(self.directory / name)

    def open(self, id: CheckpointId) -> File:
        """A checkpoint whose batches are whole, to be read and closed; it stays readable when it is
        removed.

        Raises:
            FileNotFoundError: it was removed.
            CorruptData: it is damaged, and not among those that are kept by the next `write`.
        """
        path = self.directory / id.file_name
        try:
            with lost_is_corrupt(path):
                file = self.disk.open(path)
                try:
                    _check_batches(file, path)
                except BaseException:
                    file.close()
                    raise
        except CorruptData:
            self._damaged.add(id)
            raise
        return file

    def make_durable(self) -> None:
        """Make the names durable that `load` has found: a process that was killed may have left one
        that a loss of power takes away.
        """
        with sync_is_final():
            self.disk.sync_directory(self.directory)

    def _write_part(self, part: Path, batches: Iterable[bytearray]) -> None:
        file = self.disk.open(part, create=True)
        try:
            file.truncate(0)
            position = 0
            for batch in batches:
                file.write_at([batch], position)
                position += len(batch)
            with sync_is_final():
                file.sync()
        finally:
            file.close()

    def _scan(self) -> tuple[list[CheckpointId], list[str]]:
        """Ids of the checkpoints, oldest first, and names of the incomplete ones."""
        ids, parts = [], []
        for name in self.disk.names(self.directory):
            if name.endswith(f".checkpoint{PART}"):
                parts.append(name)
                continue
            id = CheckpointId.from_file_name(name)
            if id is None:
                raise DataDirectoryError(
                    f"{self.directory / name} is not a checkpoint; move it out of the way"
                )
            ids.append(id)
        return sorted(ids), parts

    def _remove_old(self) -> list[CheckpointId]:
        ids, parts = self._scan()
        kept = [id for id in ids if id not in self._damaged][-_KEPT:]
        for id in ids:
            if id not in kept:
                self.disk.unlink(self.directory / id.file_name)
        self._remove_parts(parts, kept)
        with sync_is_final():
            self.disk.sync_directory(self.directory)
        self._damaged.clear()
        return kept

    def _remove_parts(self, names: list[str], checkpoints: list[CheckpointId]) -> None:
        """Remove incomplete checkpoints, except the newest if it is newer than the others."""
        ids = [CheckpointId.from_file_name(name.removesuffix(PART)) for name in names]
        newest = max([*checkpoints, *[id for id in ids if id is not None]], default=None)
        for name, id in zip(names, ids, strict=True):
            if id is None or id != newest or id in checkpoints:
                self.disk.unlink(self.directory / name)


def read_checkpoint(disk: Disk, path: Path) -> list[tuple[bytes, bytes]]:
    """Key and value of each record of a checkpoint. Blocks.

    Raises:
        DataDirectoryError: a newer release wrote it.
        CorruptData: it is damaged, has no valid footer, or contradicts its name.
    """
    id = CheckpointId.from_file_name(path.name)
    if id is None:
        raise CorruptData("its name is not a checkpoint's")
    with lost_is_corrupt(path):
        data = read_whole(disk, path, CHECKPOINT_BYTES_MAX)
    return decode_checkpoint(data, id, path)


def decode_checkpoint(data: bytes, id: CheckpointId, path: Path) -> list[tuple[bytes, bytes]]:
    """Key and value of each record in the content of a checkpoint.

    Args:
        path: the file that it is from, for errors.

    Raises:
        DataDirectoryError: a newer release wrote it.
        CorruptData: it is damaged, has no valid footer, or contradicts its id.
    """
    records: list[tuple[bytes, bytes]] = []
    ended = False
    for position, batch in _split(data, id.epoch):
        if ended:
            raise CorruptData(f"corrupt at byte {position}: a batch behind the snapshot footer")
        if not position:
            _check_version(path, batch, _SNAPSHOT_HEADER, _HEADER_VALUE)
        elif read_header(batch).is_control:
            _check_version(path, batch, _SNAPSHOT_FOOTER, _FOOTER_VALUE)
            ended = True
        else:
            records += [(record.key or b"", record.value or b"") for record in read_records(batch, 0)]
    if not ended:
        raise CorruptData(f"cut off at byte {len(data)}: no snapshot footer")
    return records


def _check_batches(file: File, path: Path) -> None:
    for position, header in scan_headers(file, path, 0, file.size()):
        check_batch(file.read_at(LENGTH_PREFIX_BYTES + header.length, position))


def intact_bytes(data: bytes, epoch: int) -> int:
    """Bytes from the beginning of a checkpoint that are whole and valid batches."""
    end = 0
    with suppress(CorruptData):
        for at, batch in _split(data, epoch):
            end = at + len(batch)
    return end


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


def _split(data: bytes, epoch: int) -> Iterator[tuple[int, memoryview]]:
    """Position and bytes of each batch, with checksum, base offset and leader epoch verified."""
    view = memoryview(data)
    at = offset = 0
    while at < len(view):
        if len(view) - at < HEADER_BYTES:
            raise CorruptData(f"cut off at byte {at}")
        end = at + batch_bytes(view, at)
        if end > len(view) or end <= at + LENGTH_PREFIX_BYTES:
            raise CorruptData(f"a batch at byte {at} ends at byte {end}, the file at byte {len(view)}")
        check_batch(view[at:end])
        header = read_header(view, at)
        if (header.base_offset, header.leader_epoch) != (offset, epoch):
            raise CorruptData(
                f"corrupt at byte {at}: offset {header.base_offset} and epoch {header.leader_epoch}, "
                f"expected {offset} and {epoch}"
            )
        yield at, view[at:end]
        at, offset = end, header.next_offset


def _check_version(path: Path, batch: memoryview, expected: int, layout: struct.Struct) -> None:
    """Verify type and version of a control batch."""
    control_type, value = read_control_record(batch)
    name = "header" if expected == _SNAPSHOT_HEADER else "footer"
    if control_type != expected or len(value) < layout.size:
        raise CorruptData(f"a batch of control type {control_type} is not a snapshot {name}")
    version: int = layout.unpack_from(value)[0]
    if version > _FORMAT_VERSION:
        raise DataDirectoryError(
            f"{path} has format version {version}, this release reads up to {_FORMAT_VERSION}: a newer one wrote it"
        )
    if version < 0:
        raise CorruptData(f"the snapshot {name} has version {version}")

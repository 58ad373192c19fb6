"""Files of replicated stages: pieces of record batches that are durable, one file per stage.

    pieces/<number of the stage, 20 digits>.pieces

A file has a header and, back to back, one unit for each write. Pieces that arrive together are one
unit, hence one sync. Nothing in a file ever changes; it is removed as a whole. All numbers are
little-endian.

    byte  size  header
    0     8     magic "PIXYPIEC"
    8     4     format version, 1
    12    4     CRC-32C of bytes 0 to 11 and 16 to 39
    16    16    cluster id
    32    8     number of the stage

    byte  size  unit
    0     4     magic "UNIT"
    4     4     CRC-32C of bytes 8 to the end of the index
    8     4     length of the index
    12    8     length of the batches
    20          index, a `PieceIndex`
                batches of its pieces, back to back

A unit is synced before the next one begins, so only the last unit of a file can be torn. A node may
do without any piece that it finds missing: other replicas have it. So damage is cut off, and what
was behind it is fetched again when it is asked for. The start verifies the checksums of the last
unit; those of the others are verified by readers, as those of segments are.

    found at a start                                       done
    -----------------------------------------------------  -----------------------------------------
    whole         units up to the end                      taken
    torn          a last unit that is short or has a wrong cut off
                  checksum
    damaged       a unit with a wrong head, others behind  cut off with them, and logged
    unborn        no valid header: the first write was     removed
                  torn
    unreadable    a bad sector in one of these             as damaged, torn, or unborn
    foreign       another cluster's                        refused
    newer         a newer version                          refused
    stray         any other name, or a directory           refused
"""

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import structlog
from google.protobuf.message import DecodeError

from pixy.errors import DataDirectoryError, StorageFault
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import PieceExtent, PieceIndex
from pixy.records import crc32c
from pixy.storage import Disk, File, is_disk_full, is_unreadable, sync_is_final

log = structlog.get_logger(__name__)

_NAME = re.compile(r"\d{20}\.pieces")
_MAGIC = b"PIXYPIEC"
_VERSION = 1
_START = struct.Struct("<8sI")
_CRC = struct.Struct("<I")
_REST = struct.Struct("<16sQ")
_HEADER_BYTES = _START.size + _CRC.size + _REST.size
_UNIT_MAGIC = b"UNIT"
_UNIT_START = struct.Struct("<4sI")
_LENGTHS = struct.Struct("<IQ")
_UNIT_HEAD_BYTES = _UNIT_START.size + _LENGTHS.size
UNIT_PIECES_MAX = 100_000
"""Pieces of one unit; each has 46 bytes of its index at most."""
_INDEX_BYTES_MAX = 128 << 20
"""Largest index that is read; earlier releases wrote one of any size that a frame has."""
_READ_BYTES = 1 << 20


class PieceKey(NamedTuple):
    """Identifies the part of a piece for one partition.

    The checksum is part of it: two writers of one piece may have sent different bytes, and only one
    of them has come through.
    """

    stage: int
    raft_group: int
    number: int
    crc: int


class NewPiece(NamedTuple):
    """A piece to be written: whole record batches back to back, with their records counted."""

    key: PieceKey
    records: int
    batches: bytes | memoryview


class PiecePlace(NamedTuple):
    """Place of a piece in the file of its stage."""

    begin: int
    size: int
    records: int


class FoundUnit(NamedTuple):
    """A unit with a valid head: its pieces, and the byte behind it."""

    pieces: dict[PieceKey, PiecePlace]
    end: int


class PieceFile:
    """The file of a stage. Every method blocks, and all are used on one worker.

    Args:
        directory: the directory of all of these files.
        cluster_id: the cluster that it belongs to.
        stage: number of its stage.
        size: bytes of it that count; 0 if there is no file.
    """

    def __init__(self, disk: Disk, directory: Path, cluster_id: bytes, stage: int, size: int = 0) -> None:
        self._disk = disk
        self.path = _path(directory, stage)
        self._header = _header(cluster_id, stage)
        self._size = size

    def write(self, pieces: Sequence[NewPiece]) -> dict[PieceKey, PiecePlace]:
        """Write pieces, `UNIT_PIECES_MAX` at most; durable on return.

        Raises:
            OSError: the disk is full; none of the pieces counts.
            StorageFault: it is unknown what of the file is durable; the process must end.
        """
        is_new = not self._size
        try:
            if is_new:
                self._disk.make_directory(self.path.parent)
            file = self._disk.open(self.path, create=is_new)
            try:
                return self._write(file, pieces)
            finally:
                file.close()
        except OSError as error:
            if is_disk_full(error):
                raise
            raise StorageFault(f"{self.path} cannot be written: {error}") from error

    def _write(self, file: File, pieces: Sequence[NewPiece]) -> dict[PieceKey, PiecePlace]:
        is_new = not self._size
        at = _HEADER_BYTES if is_new else self._size
        head = _unit_head(pieces)
        places, begin = {}, at + len(head)
        for key, records, batches in pieces:
            places[key] = PiecePlace(begin, len(batches), records)
            begin += len(batches)
        if file.size() > at:
            file.truncate(at)  # the rest of a write that has failed
        file.write_at(
            [*([self._header] if is_new else ()), head, *(each.batches for each in pieces)],
            0 if is_new else at,
        )
        with sync_is_final():
            file.sync()
            if is_new:
                self._disk.sync_directory(self.path.parent)
        self._size = begin
        return places


def recover_pieces(
    disk: Disk, directory: Path, cluster_id: bytes
) -> dict[int, tuple[int, dict[PieceKey, PiecePlace]]]:
    """Find the pieces of all stages: for each stage the bytes of its file that count, and the
    places of its pieces. Blocks.

    Raises:
        DataDirectoryError: a foreign file, or one of a newer release.
        OSError: the disk refuses.
    """
    found = {}
    for name in disk.names(directory):
        path = directory / name
        if not is_piece_file(name):
            raise DataDirectoryError(f"{path} has no pieces of a stage; move it out of the way")
        file = _open(disk, path)
        taken = None
        if file is not None:
            with closing(file):
                taken = _recover(file, path, cluster_id)
        if taken is None:
            log.warning("removing the file of a stage that has no whole pieces", file=str(path))
            disk.unlink(path)
        else:
            found[int(path.stem)] = taken
    if found:
        disk.sync_directory(directory)
    return found


def _open(disk: Disk, path: Path) -> File | None:
    """A file of pieces, None if it is lost."""
    try:
        return disk.open(path)
    except IsADirectoryError as error:
        raise DataDirectoryError(f"{path} is a directory; move it out of the way") from error
    except OSError as error:
        if not is_unreadable(error):
            raise
        return None


def _recover(file: File, path: Path, cluster_id: bytes) -> tuple[int, dict[PieceKey, PiecePlace]] | None:
    owner = read_piece_header(file, path)
    if owner is None:
        return None
    if owner != cluster_id:
        raise DataDirectoryError(
            f"{path} belongs to cluster {owner.hex()}, this is {cluster_id.hex()}; move it out of the way"
        )
    units = list(find_units(file, path))
    if units and unit_damage(file, units[-1]):
        units.pop()
    if not units:
        return None  # its only unit was torn
    size, end = file.size(), units[-1].end
    if size > end:
        log.warning("cutting off what is no unit of pieces", file=str(path), position=end, bytes=size - end)
        file.truncate(end)
    # The process that wrote it may have ended before its sync.
    file.sync()
    return end, {key: place for unit in units for key, place in unit.pieces.items()}


def find_units(file: File, path: Path) -> Iterator[FoundUnit]:
    """The units of a file with a valid header, up to the end or to the first one with a wrong head.

    Their batches are not read.
    """
    at, size, stage = _HEADER_BYTES, file.size(), int(path.stem)
    while at + _UNIT_HEAD_BYTES <= size:
        start = _read(file, _UNIT_HEAD_BYTES, at)
        if not start:
            return
        magic, crc = _UNIT_START.unpack_from(start)
        index_bytes, batches_bytes = _LENGTHS.unpack_from(start, _UNIT_START.size)
        begin = at + _UNIT_HEAD_BYTES + index_bytes
        if magic != _UNIT_MAGIC or index_bytes > _INDEX_BYTES_MAX or begin + batches_bytes > size:
            return
        index = _read(file, index_bytes, at + _UNIT_HEAD_BYTES)
        if crc32c(index, crc32c(start[_UNIT_START.size :])) != crc:
            return
        try:
            extents = parsed(PieceIndex, index).extents
        except DecodeError:
            return
        at = begin + batches_bytes
        pieces = {}
        for each in extents:
            key = PieceKey(stage, each.raft_group, each.number, each.crc)
            pieces[key] = PiecePlace(begin, each.bytes, each.records)
            begin += each.bytes
        yield FoundUnit(pieces, at)


def unit_damage(file: File, unit: FoundUnit) -> str:
    """Damage of the batches of a unit, in words; empty if there is none."""
    for key, place in unit.pieces.items():
        crc, at, end = 0, place.begin, place.begin + place.size
        while at < end:
            block = _read(file, min(_READ_BYTES, end - at), at)
            if not block:
                return f"ends at byte {at}, or cannot be read there"
            crc, at = crc32c(block, crc), at + len(block)
        if crc != key.crc:
            return (
                f"piece {key.number} at byte {place.begin} has CRC-32C {crc:#010x}, expected {key.crc:#010x}"
            )
    return ""


def remove_piece_files(disk: Disk, directory: Path, stages: Sequence[int]) -> None:
    """Remove the files of stages. Blocks.

    A file that a crash restores belongs to a stage that is gone, which the start finds.

    Raises:
        OSError: some of them may still exist.
    """
    for stage in stages:
        try:
            disk.unlink(_path(directory, stage))
        except FileNotFoundError:
            continue


def _path(directory: Path, stage: int) -> Path:
    return directory / f"{stage:020d}.pieces"


def _header(cluster_id: bytes, stage: int) -> bytes:
    start, rest = _START.pack(_MAGIC, _VERSION), _REST.pack(cluster_id, stage)
    return start + _CRC.pack(crc32c(rest, crc32c(start))) + rest


def is_piece_file(name: str) -> bool:
    """True if a file of this name has the pieces of a stage."""
    return _NAME.fullmatch(name) is not None


def read_piece_header(file: File, path: Path) -> bytes | None:
    """Cluster id in the header of a file, None if the header is not valid. Blocks.

    Raises:
        DataDirectoryError: a newer release wrote it.
    """
    header = _read(file, _HEADER_BYTES, 0)
    if len(header) < _HEADER_BYTES:
        return None
    magic, version = _START.unpack_from(header)
    if magic == _MAGIC and version > _VERSION:
        raise DataDirectoryError(
            f"{path} has format version {version}, this release reads {_VERSION}: a newer one wrote it"
        )
    rest_at = _START.size + _CRC.size
    (crc,) = _CRC.unpack_from(header, _START.size)
    cluster_id, stage = _REST.unpack_from(header, rest_at)
    if (
        magic != _MAGIC
        or crc32c(header[rest_at:], crc32c(header[: _START.size])) != crc
        or stage != int(path.stem)
    ):
        return None
    owner: bytes = cluster_id
    return owner


def _read(file: File, size: int, position: int) -> bytes:
    """Bytes of a file; none if the device has lost some of them."""
    try:
        return file.read_at(size, position)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return b""


def _unit_head(pieces: Sequence[NewPiece]) -> bytes:
    index = PieceIndex(
        extents=[
            PieceExtent(
                raft_group=key.raft_group, number=key.number, records=records, bytes=len(batches), crc=key.crc
            )
            for key, records, batches in pieces
        ]
    ).SerializeToString()
    lengths = _LENGTHS.pack(len(index), sum(len(each.batches) for each in pieces))
    return _UNIT_START.pack(_UNIT_MAGIC, crc32c(index, crc32c(lengths))) + lengths + index

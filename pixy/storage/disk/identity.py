"""Small checksummed files: `identity` of the node and of each partition, `stage`, and marks.

A `stage` file names the owner of a sealed stage's directory; `publication_marks` describes the
marks.

All numbers are little-endian.

    byte  size  field
    0     8     magic: "PIXYNODE", "PIXYPART" for a partition, "PIXYSTGE" for a stage,
                "PIXYPUBL" for a mark, "PIXYCOPY" for a staged copy, "PIXYDAMG" for a damage mark,
                "PIXYPROD" for producers
    8     4     format version, 1
    12    4     CRC-32C of bytes 0 to 11 and 16 to the end
    16    4     length of the payload
    20          payload, a `NodeIdentity`, `PartitionIdentity`, `StageRecord`, `PublishStages` or
                `CopyManifest`, the text of a damage mark, or a table of `records.producers`

Each is written as `<name>.part`, synced and renamed, then the directory is synced: an update never
tears a valid file.

The identity of the node at startup:

    found                                                       done
    ----------------------------------------------------------  ------------------------------------
    absent          and no journal, staging, topics or state    a new node: written
    lost            absent, but one of these directories        refused: no crash leaves this
                    exists
    own                                                         accepted
    short           or torn; wrong magic, length or checksum;   refused
                    a partition's
    newer version                                               refused
    temporary file  `identity.part` with any content, and no    left by a crash at the first start:
                    identity                                    overwritten

The decisions for partitions are in `partition_directory`, those for stages in `staging`.
"""

import struct
from pathlib import Path

from pixy.errors import CorruptData, DataDirectoryError
from pixy.parsed_messages import parsed
from pixy.proto.copies_pb2 import CopyManifest
from pixy.proto.state_pb2 import NodeIdentity, PartitionIdentity, PublishStages, StageRecord
from pixy.records import crc32c
from pixy.storage.disk.disk import Disk, sync_is_final
from pixy.storage.disk.whole_file import read_whole

IDENTITY_PART = "identity.part"
"""Temporary name of an identity file, before it is complete."""

_NODE = b"PIXYNODE"
_PARTITION = b"PIXYPART"
_STAGE = b"PIXYSTGE"
_PUBLICATION = b"PIXYPUBL"
_COPY = b"PIXYCOPY"
_DAMAGE = b"PIXYDAMG"
_PRODUCERS = b"PIXYPROD"
_FORMAT_VERSION = 1
_START = struct.Struct("<8sI")
_CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_CRC_AT = _START.size
_LENGTH_AT = _CRC_AT + _CRC.size
_PAYLOAD_AT = _LENGTH_AT + _LENGTH.size


def load_identity(disk: Disk, directory: Path, new: NodeIdentity) -> NodeIdentity:
    """Read the identity of a data directory; write `new` if the directory is empty. Blocks.

    Raises:
        DataDirectoryError: a newer release wrote it, or the directory has files but no identity.
        CorruptData: the file is damaged.
    """
    names = disk.names(directory)
    path = directory / "identity"
    if path.name in names:
        return read_identity(disk, path)
    for other in ("journal", "topics", "state", "staging", "pieces"):
        if other in names:
            raise DataDirectoryError(f"{path} is missing, although {directory} has {other!r}")
    _write(disk, path, _encode(_NODE, new.SerializeToString()))
    return new


def write_identity(disk: Disk, directory: Path, identity: NodeIdentity) -> None:
    """Replace the identity of a data directory; durable on return. Blocks."""
    _write(disk, directory / "identity", _encode(_NODE, identity.SerializeToString()))


def read_identity(disk: Disk, path: Path) -> NodeIdentity:
    """Read the identity of a node. Blocks.

    Raises:
        DataDirectoryError: a newer release wrote it.
        CorruptData: the file is damaged.
    """
    return parsed(NodeIdentity, _read(disk, path, _NODE))


def read_partition_identity(disk: Disk, path: Path) -> PartitionIdentity:
    """Read the identity of a partition. Blocks.

    Raises:
        FileNotFoundError: there is none.
        DataDirectoryError: a newer release wrote it.
        CorruptData: the file is damaged.
    """
    return parsed(PartitionIdentity, _read(disk, path, _PARTITION))


def write_partition_identity(disk: Disk, path: Path, identity: PartitionIdentity) -> None:
    """Write or replace the identity of a partition; durable on return. Blocks."""
    _write(disk, path, _encode(_PARTITION, identity.SerializeToString()))


def read_stage_record(disk: Disk, path: Path) -> StageRecord:
    """Read the record of a sealed stage. Blocks.

    Raises:
        FileNotFoundError: there is none.
        DataDirectoryError: a newer release wrote it.
        CorruptData: the file is damaged.
    """
    return parsed(StageRecord, _read(disk, path, _STAGE))


def write_stage_record(disk: Disk, path: Path, record: StageRecord) -> None:
    """Write the record that seals a stage; durable on return. Blocks."""
    _write(disk, path, _encode(_STAGE, record.SerializeToString()))


def read_publication_mark(disk: Disk, path: Path) -> PublishStages:
    """Read the mark of a publication. Blocks; raises as `read_stage_record`."""
    return parsed(PublishStages, _read(disk, path, _PUBLICATION))


def write_publication_mark(disk: Disk, path: Path, mark: PublishStages) -> None:
    """Write the mark of a publication; durable on return. Blocks."""
    _write(disk, path, _encode(_PUBLICATION, mark.SerializeToString()))


def read_copy_manifest(disk: Disk, path: Path) -> CopyManifest:
    """Read the manifest of a staged copy. Blocks; raises as `read_stage_record`."""
    return parsed(CopyManifest, _read(disk, path, _COPY))


def write_copy_manifest(disk: Disk, path: Path, manifest: CopyManifest) -> None:
    """Write or replace the manifest of a staged copy; durable on return. Blocks."""
    _write(disk, path, _encode(_COPY, manifest.SerializeToString()))


def read_damage_mark(disk: Disk, path: Path) -> str:
    """Read a damage mark; errors are those of `read_identity`, and those of a read. Blocks."""
    return _read(disk, path, _DAMAGE).decode(errors="replace")


def write_damage_mark(disk: Disk, path: Path, found: str) -> None:
    """Write or replace a damage mark; durable on return. Blocks."""
    _write(disk, path, _encode(_DAMAGE, found.encode(errors="replace")))


def read_producers(disk: Disk, path: Path) -> bytes:
    """Read a table of producers; errors are those of `read_damage_mark`. Blocks."""
    return _read(disk, path, _PRODUCERS)


def write_producers(disk: Disk, path: Path, table: bytes) -> None:
    """Write or replace a table of producers; durable on return. Blocks."""
    _write(disk, path, _encode(_PRODUCERS, table))


def _write(disk: Disk, path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    file = disk.open(part, create=True)
    try:
        file.truncate(0)
        file.write_at([content], 0)
        with sync_is_final():
            file.sync()
    finally:
        file.close()
    disk.rename(part, path)
    with sync_is_final():
        disk.sync_directory(path.parent)


def _encode(magic: bytes, payload: bytes) -> bytes:
    start, rest = _START.pack(magic, _FORMAT_VERSION), _LENGTH.pack(len(payload)) + payload
    return start + _CRC.pack(crc32c(rest, crc32c(start))) + rest


def _read(disk: Disk, path: Path, magic: bytes) -> bytes:
    """The payload of an identity file."""
    data = read_whole(disk, path)
    if len(data) < _PAYLOAD_AT:
        raise CorruptData(f"{path} has {len(data)} bytes, expected {_PAYLOAD_AT} at least")
    found, version = _START.unpack_from(data)
    if found == magic and version > _FORMAT_VERSION:
        raise DataDirectoryError(
            f"{path} has format version {version}, this release reads {_FORMAT_VERSION}: a newer one wrote it"
        )
    (crc,) = _CRC.unpack_from(data, _CRC_AT)
    (length,) = _LENGTH.unpack_from(data, _LENGTH_AT)
    payload = data[_PAYLOAD_AT:]
    if (found, version, length) != (magic, _FORMAT_VERSION, len(payload)) or crc32c(
        data[_LENGTH_AT:], crc32c(data[:_CRC_AT])
    ) != crc:
        raise CorruptData(f"{path} is damaged")
    return payload

"""The file `identity`: which node of which cluster a data directory belongs to. Written once, at the first start.

All numbers are little-endian.

    byte  size  field
    0     8     magic "PIXYNODE"
    8     4     format version, 1
    12    4     CRC-32C of the payload
    16    4     length of the payload
    20          payload, a `NodeIdentity`

    found                              done
    ---------------------------------  ---------------------------------------------------------------------
    absent, and the directory is empty  a new node: written as `identity.part`, synced, renamed, synced
    absent, and there is a journal,     refused: this is not what a crash leaves
    are topics or states
    short, wrong magic or checksum      refused
    a newer version                     refused
    `identity.part`                     left from a crash at the first start: overwritten
"""

import struct
from pathlib import Path

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import NodeIdentity
from pixy.records import crc32c
from pixy.storage.disk import Disk

__all__ = ["load_identity", "read_identity"]

_MAGIC = b"PIXYNODE"
_FORMAT_VERSION = 1
_HEAD = struct.Struct("<8sIII")


def load_identity(disk: Disk, directory: Path, new: NodeIdentity) -> NodeIdentity:
    """The identity of a data directory; one that has none becomes `new`. Blocks.

    Raises:
        DataDirectoryError: a newer release wrote it, or it has files but no identity.
        CorruptData: the file is damaged.
    """
    names = disk.names(directory)
    path = directory / "identity"
    if path.name in names:
        return read_identity(disk, path)
    for other in ("journal", "topics", "state"):
        if other in names:
            raise DataDirectoryError(f"{path} is missing, although {directory} has {other!r}")
    _write(disk, path, new)
    return new


def read_identity(disk: Disk, path: Path) -> NodeIdentity:
    """What an identity file says. Blocks.

    Raises:
        DataDirectoryError: a newer release wrote it.
        CorruptData: the file is damaged.
    """
    file = disk.open(path)
    try:
        data = file.read_at(file.size(), 0)
    finally:
        file.close()
    if len(data) < _HEAD.size:
        raise CorruptData(f"{path} has {len(data)} bytes, expected {_HEAD.size} at least")
    magic, version, crc, size = _HEAD.unpack_from(data)
    payload = data[_HEAD.size : _HEAD.size + size]
    if magic != _MAGIC or len(payload) != size or crc32c(payload) != crc:
        raise CorruptData(f"{path} is damaged")
    if version > _FORMAT_VERSION:
        raise DataDirectoryError(
            f"{path} has format version {version}, this release reads up to {_FORMAT_VERSION}: a newer one wrote it"
        )
    return NodeIdentity.FromString(payload)


def _write(disk: Disk, path: Path, identity: NodeIdentity) -> None:
    payload = identity.SerializeToString()
    part = path.with_name("identity.part")
    file = disk.open(part, create=True)
    try:
        file.truncate(0)
        file.write_at([_HEAD.pack(_MAGIC, _FORMAT_VERSION, crc32c(payload), len(payload)), payload], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(part, path)
    disk.sync_directory(path.parent)

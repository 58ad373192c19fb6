"""Names of the objects of a target. Pure.

    backups/<id>.json                                  the manifest of a backup
    state/<cluster>/<id>-<size>-<crc>                  its state beside the records
    data/<cluster>/<topic>/<partition>/                its records, in ranges of offsets:
        <first>-<end>-<size>-<crc>

Cluster and topic are ids in hexadecimal digits, `first` is the first offset of a range, `end` the
one behind its last, `size` in bytes, `crc` the CRC-32C of the object. So a listing tells which
ranges are there, and whole as far as their size goes: a broken backup goes on without a word about
it anywhere, and the next one has the ranges of those before.

The id of the cluster is in the path because a restored cluster has the same topics, and other
records at the same offsets.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from pixy.records import crc32c

BACKUPS, DATA, STATE = "backups", "data", "state"

_RANGE = re.compile(r"(\d{20})-(\d{20})-(\d+)-([0-9a-f]{8})")
_STATE = re.compile(r".+-(\d+)-([0-9a-f]{8})")
_ID = re.compile(r"\d{8}T\d{6}\.\d{3}Z")


class RangeName(NamedTuple):
    """The name of an object with records.

    Attributes:
        first, end: the offsets from the one up to the other.
        size: in bytes.
        crc: CRC-32C of the object.
    """

    first: int
    end: int
    size: int
    crc: int

    def __str__(self) -> str:
        return f"{self.first:020}-{self.end:020}-{self.size}-{self.crc:08x}"


def range_name(text: str) -> RangeName | None:
    """The parts of a name, None if it is not one of records."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return None
    first, end, size = map(int, found.groups()[:3])
    return RangeName(first, end, size, int(found[4], 16)) if first < end else None


def backup_id(time_ms: int) -> str:
    """Id of a backup that begins at a time in milliseconds since the Unix epoch."""
    when = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{when:%Y%m%dT%H%M%S}.{time_ms % 1000:03}Z"


def is_backup_id(text: str) -> bool:
    """True if a text may be the id of a backup."""
    return _ID.fullmatch(text) is not None


def manifest_path(backup: str) -> str:
    """Path of the manifest of a backup."""
    return f"{BACKUPS}/{backup}.json"


def state_path(cluster_id: bytes, backup: str, pieces: Iterable[bytes]) -> str:
    """Path of the state of a backup, which consists of these pieces."""
    crc = size = 0
    for piece in pieces:
        crc, size = crc32c(piece, crc), size + len(piece)
    return f"{STATE}/{cluster_id.hex()}/{backup}-{size}-{crc:08x}"


def size_and_crc(path: str) -> tuple[int, int]:
    """Size and CRC-32C of an object, by its path.

    Raises:
        ValueError: it is the path of no object.
    """
    name = path.rpartition("/")[2]
    found = range_name(name)
    if found is not None:
        return found.size, found.crc
    other = _STATE.fullmatch(name)
    if other is None:
        raise ValueError(f"{path} is not the path of an object")
    return int(other[1]), int(other[2], 16)


def cluster_folder(cluster_id: bytes) -> str:
    """Folder of all records of a cluster."""
    return f"{DATA}/{cluster_id.hex()}"


def partition_folder(cluster_id: bytes, topic_id: bytes, partition: int) -> str:
    """Folder of the records of a partition."""
    return f"{cluster_folder(cluster_id)}/{topic_id.hex()}/{partition}"

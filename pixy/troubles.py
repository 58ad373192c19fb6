"""Faults of the machine that a node can see coming, and what it has left.

Writers themselves notice a full disk (`cluster.log.disk_reserve`); this is the warning before.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from pixy.cluster import DiskSpace

_LOW_SHARE = 0.05
_LOW_BYTES = 1 << 30


def disk_space(directory: Path) -> DiskSpace:
    """The file system of a directory."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return DiskSpace()  # the next write says so
    return DiskSpace(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)


def low_disk(directory: Path) -> Iterator[str]:
    """A sentence if the disk of a directory gets full: less than 5 % and than 1 GiB are left."""
    size, left = disk_space(directory)
    if left < min(_LOW_SHARE * size, _LOW_BYTES):
        yield f"its disk gets full: {left >> 20} MiB of {size >> 20} are left for {directory}"

"""Faults of the machine that a node can see coming.

Writers themselves notice a full disk (`cluster.disk_reserve`); this is the warning before.
"""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["low_disk"]

_LOW_SHARE = 0.05
_LOW_BYTES = 1 << 30


def low_disk(directory: Path) -> Iterator[str]:
    """A sentence if the disk of a directory gets full: less than 5 % and than 1 GiB are left."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return  # the next write says so
    left, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    if left < min(_LOW_SHARE * size, _LOW_BYTES):
        yield f"its disk gets full: {left >> 20} MiB of {size >> 20} are left for {directory}"

"""The pages of a file in the page cache."""

import ctypes
import mmap
import os
from pathlib import Path


def forget_pages(path: Path) -> None:
    """Evict a synced file, so that the next read comes from the device."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_pages(path: Path) -> list[bool]:
    """For each page of a file, True if it is cached. Unlike a read, this caches none."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        here = ctypes.c_char.from_buffer(mapping)
        found = (ctypes.c_ubyte * -(-len(mapping) // mmap.PAGESIZE))()
        failed = ctypes.CDLL(None).mincore(ctypes.byref(here), ctypes.c_size_t(len(mapping)), found)
        del here
        assert not failed
        return [bool(page & 1) for page in found]

"""The machine's own limits, by system calls alone: the reference of the storage's figures.

Of pixy only the checksum is used, so these are limits for any program on this disk.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pixy.records import crc32c

_READ_BYTES = 1 << 20
_MOUNTS = Path("/proc/self/mountinfo")


def file_system(directory: Path) -> str:
    """The type of a directory's file system, such as ext4; "unknown" if the system does not report
    it.
    """
    device = os.stat(directory).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    if not _MOUNTS.exists():
        return "unknown"
    for line in _MOUNTS.read_text().splitlines():
        where, _, what = line.partition(" - ")
        if where.split()[2] == name:
            return what.split()[0]
    return "unknown"


def files_below(directory: Path) -> list[Path]:
    """Every file in a directory tree, sorted."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


@contextmanager
def _preallocated(path: Path, size: int) -> Iterator[int]:
    """A preallocated file of `size` bytes, which exists during the `with` block."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        os.fsync(fd)
        yield fd
    finally:
        os.close(fd)
        path.unlink()


def sequential_write(
    directory: Path, total_bytes: int, write_bytes: int, *, seconds_max: float, sync_each: bool = True
) -> float:
    """Bytes per second of writing one preallocated file, in writes of `write_bytes`, each synced or
    synced once at the end.

    Ends after `total_bytes` or `seconds_max`, whichever comes first.
    """
    buffer = os.urandom(write_bytes)
    written = 0
    with _preallocated(directory / "raw", total_bytes) as fd:
        started = time.perf_counter()
        while written < total_bytes and time.perf_counter() - started < seconds_max:
            written += os.pwrite(fd, buffer, written)
            if sync_each:
                os.fdatasync(fd)
        os.fdatasync(fd)
        return written / (time.perf_counter() - started)


def new_file_write(path: Path, total_bytes: int, write_bytes: int) -> float:
    """Bytes per second of writing a new file in the simplest way: one write after the other, and a
    sync at the end. The file stays.
    """
    buffer = os.urandom(write_bytes)
    started = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for position in range(0, total_bytes, write_bytes):
            os.pwrite(fd, buffer, position)
        os.fdatasync(fd)
    finally:
        os.close(fd)
    return total_bytes / (time.perf_counter() - started)


class DurableWrites:
    """Small writes into a preallocated file, each synced: the upper limit of a journal.

    Args:
        directory: directory of the file, which exists during the `with` block.
        size: size of the file.
    """

    def __init__(self, directory: Path, size: int) -> None:
        self._file = _preallocated(directory / "durable", size)
        self._size = size
        self._position = 0
        self._fd = -1

    def __enter__(self) -> "DurableWrites":
        self._fd = self._file.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__(None, None, None)

    def write(self, buffer: bytes) -> float:
        """Write and sync; returns the duration in seconds."""
        assert self._position + len(buffer) <= self._size, "the file is full"
        started = time.perf_counter()
        os.pwrite(self._fd, buffer, self._position)
        os.fdatasync(self._fd)
        seconds = time.perf_counter() - started
        self._position += len(buffer)
        return seconds


def read_and_checksum(paths: Iterable[Path]) -> float:
    """Bytes per second of reading files in blocks of 1 MiB and computing the checksum of each
    block.
    """
    size = 0
    started = time.perf_counter()
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while block := os.read(fd, _READ_BYTES):
                crc32c(block)
                size += len(block)
        finally:
            os.close(fd)
    return size / (time.perf_counter() - started)


def drop_page_cache(paths: Iterable[Path]) -> None:
    """Drop these files from the page cache, so that the next read is from the disk. Unsynced pages
    stay in memory.
    """
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

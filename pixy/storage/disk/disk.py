"""The file system as a constructor argument: the real one here, a simulated one in tests.

Every method blocks and belongs on a worker thread. Errors are `OSError` with the `errno` of the
failing call.

The real disk keeps background reads out of the way of durable writes. A device serves its requests
in order, so a sync waits for all reads before it. Hence a file that is opened for background reads
has no readahead, which would be megabytes, and is read in pieces. A piece begins only when no
durable write is in progress, or after a bounded time. If no durable write is expected, such a file
is like any other, and cached data is read by one call.

The roads not taken: I/O priorities, which most schedulers of fast devices ignore; direct reads,
which give up the page cache that readers share; `mincore` to find the cached pages, which needs a
mapping of the file.
"""

import ctypes
import errno
import fcntl
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from pixy.errors import CorruptData
from pixy.storage.disk.direct_writes import DIRECT_BYTES_MAX, DIRECT_BYTES_MIN, DirectWrites, write_all
from pixy.storage.disk.io_uring import IoUring
from pixy.storage.disk.regular_file import DIRECTORY_MODE, FILE_MODE, regular_file

T = TypeVar("T")

log = structlog.get_logger(__name__)

Buffer = bytes | bytearray | memoryview

_VECTORS_MAX = 1024
"""Linux's limit of buffers in one vectored write."""
_WRITE_BYTES_MAX = 1 << 20
"""Longer copies occupy a core for milliseconds and delay other threads, like the event loop's."""

_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Linux's call, which the `os` module lacks; None on other systems."""
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

_DSYNC: int = getattr(os, "RWF_DSYNC", 0)
"""Flag for a write that returns once its bytes are on stable storage; 0 on systems without it."""


_PIECE_BYTES = 128 << 10
"""Size of a background read. A sync waits for the one in progress, which takes 0.1 or 0.2 ms."""
_YIELD_S_MAX = 0.005
"""Limit of a piece's wait for a durable write: continuous writes must not starve the reads."""
_WRITING_S = 0.1
"""Time after a durable write in which another one is expected."""
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
"""Flag for a read that fails instead of waiting for the device; 0 on systems without it."""

_DESCRIPTOR_RETRY_S = 0.01

_LOST = (errno.EIO, errno.EBADMSG, errno.ENODATA, getattr(errno, "EUCLEAN", errno.EIO))

_THIS_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)
_BLOCK_BYTES = 512
"""Unit of Linux's count of input blocks, for any block size of the file system."""


def is_disk_full(error: BaseException | None) -> bool:
    """True if a disk operation has failed for lack of space."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_unreadable(error: OSError) -> bool:
    """True if a file is there and the device, or the file system, has lost some of its bytes."""
    return error.errno in _LOST


@contextmanager
def lost_is_corrupt(path: Path) -> Iterator[None]:
    """Raise CorruptData for a file of which bytes are lost, see `is_unreadable`."""
    try:
        yield
    except OSError as error:
        if not is_unreadable(error):
            raise
        raise CorruptData(f"{path} cannot be read: {error}") from error


@contextmanager
def sync_is_final() -> Iterator[None]:
    """Map a sync's lack of space to the errno EIO.

    A write that finds the disk full is retried. A sync must not be: the next one would report
    success for the bytes that the failed one has lost.
    """
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise OSError(errno.EIO, f"cannot be synced: {error.strerror}", error.filename) from error
        raise


class File(Protocol):
    """An open file."""

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers back to back from byte `position` on; short writes are continued.

        Without buffers, or with empty ones, nothing is written and the file does not grow.

        Raises:
            OSError: the write is incomplete; any part from `position` on may have been written.
                ENOSPC or EDQUOT: the disk is full.
        """

    def write_direct(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write as `write_at`, around the page cache where that is possible: for bytes in large
        amounts that nobody reads soon.

        Raises:
            OSError: as `write_at`.
        """

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write as `write_at` and sync these bytes, in one call if the system has one.

        If the process is killed during the call, the write ends at any page of the file, regardless
        of the boundaries between buffers.

        Raises:
            OSError: any part may have been written, and none may be durable. Like a failed `sync`,
                this must never be retried.
        """

    def read_at(self, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position` on: fewer only at the end of the file, none behind."""

    def size(self) -> int:
        """Length in bytes."""

    def allocate(self, size: int) -> None:
        """Make the file at least `size` bytes long and reserve the space; new bytes are zeros.

        Raises:
            OSError: ENOSPC or EDQUOT if the disk is full; the file may have grown by zeros.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def begin_sync(self) -> None:
        """Start writeback of the bytes that `sync` will wait for. A hint: it never fails.

        Syncing many files costs a fraction if writeback of all has started before the first sync.
        """

    def sync(self) -> None:
        """Return when everything written is on stable storage.

        Raises:
            OSError: with any errno, ENOSPC too. It must never be retried: see `sync_is_final`.
        """

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system.

    A missing path raises `FileNotFoundError`, a path through a file `NotADirectoryError`, and a
    directory in place of a file `IsADirectoryError`; anything else in its place, such as a FIFO,
    EINVAL. Removing needs no space.
    """

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> File:
        """Open for reading and writing.

        Args:
            create: create a missing file; its name is durable after `sync_directory`.
            background: reads give way to durable writes on this disk, if there are any at the time.
        """

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory.

        Raises:
            NotADirectoryError: the path is a file, or leads through one.
        """

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents durably; existing directories are not synced.

        Raises:
            NotADirectoryError: the path, or one above it, is a file; `filename` is that path.
            OSError: EIO if the sync has failed, which must never be retried.
        """

    def rename(self, old: Path, new: Path) -> None:
        """Atomically replace `new` by `old`, in the same directory; durable after `sync_directory`.

        `old` may be a directory if `new` does not exist. Open files in it, or below, stay open.

        Raises:
            OSError: `new` is a directory (EISDIR, ENOTEMPTY), or a file while `old` is a directory
                (ENOTDIR); or the disk is full (ENOSPC, EDQUOT): a name that is not there yet may
                need space.
        """

    def link(self, old: Path, new: Path) -> None:
        """Add a hard link to a file, in any directory; durable after `sync_directory` of that.

        Raises:
            OSError: `new` exists (EEXIST), or the file system cannot link there (EPERM, EOPNOTSUPP,
                EMLINK, EXDEV).
        """

    def unlink(self, path: Path) -> None:
        """Remove a name of a file, with its last name the file; durable after `sync_directory`.

        An open file stays readable, and keeps its disk space, until it is closed.
        """

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory; durable after `sync_directory` of its parent.

        Raises:
            OSError: the directory is not empty (ENOTEMPTY), or is a file (ENOTDIR).
        """

    def sync_directory(self, path: Path) -> None:
        """Return when creations, renames and removals in a directory are on stable storage."""

    def device_bytes_read(self) -> int:
        """Bytes that the device has read for the calling thread so far, readahead included.

        0 on systems without this count.
        """

    def modified_ms(self, path: Path) -> int:
        """Time of the last change of a file, in milliseconds since the Unix epoch."""

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        """Give a file another time of its last change; durable with its next sync."""

    def open_file_limit(self) -> int:
        """Limit of open files of the process, those outside of this disk included."""

    def lock(self, path: Path) -> File | None:
        """Acquire the lock on a file, None if it is held already. Closing the file releases it."""


class _DurableWrites:
    """Durable writes in progress on a disk, which background reads give way to.

    Attributes:
        none: set while there are none.
    """

    __slots__ = ("_ended", "none")

    def __init__(self) -> None:
        # End of the last one, by `time.monotonic`.
        self._ended = float("-inf")
        self.none = threading.Event()
        self.none.set()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """One begins."""
        self.none.clear()

    def end(self) -> None:
        """It has ended."""
        self._ended = time.monotonic()
        self.none.set()

    def are_expected(self) -> bool:
        """True if one is in progress, or the last one ended a short time ago."""
        return not self.none.is_set() or time.monotonic() - self._ended < _WRITING_S


class RealFile:
    """A file of the machine."""

    __slots__ = ("_direct_writes", "_durable_writes", "_fd", "_in_kernel")

    def __init__(self, fd: int, durable_writes: _DurableWrites) -> None:
        self._fd = fd
        self._durable_writes = durable_writes
        self._direct_writes: DirectWrites | None = None
        # The kernel has a write that has not ended.
        self._in_kernel = False

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        for chunk in _chunks(buffers, _WRITE_BYTES_MAX):
            expected = sum(map(len, chunk))
            written = os.pwritev(self._fd, chunk, position)
            if written < expected:
                write_all(self._fd, memoryview(b"".join(chunk))[written:], position + written)
            position += expected

    def write_direct(self, buffers: Sequence[Buffer], position: int) -> None:
        for chunk in _chunks(buffers, DIRECT_BYTES_MAX):
            size = sum(map(len, chunk))
            if not self._written_directly(chunk, position, size):
                self.write_at(chunk, position)
            position += size

    def _written_directly(self, buffers: Sequence[Buffer], position: int, size: int) -> bool:
        if size < DIRECT_BYTES_MIN:
            return False
        if self._direct_writes is None:
            self._direct_writes = DirectWrites(self._fd)
        return self._direct_writes.write(buffers, position, size)

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        with self._durable_writes:
            size = sum(map(len, buffers))
            if self._written_directly(buffers, position, size):
                self.sync()
                return
            if len(buffers) > _VECTORS_MAX:
                buffers = [b"".join(buffers)]
            # One call, not two: each releases the GIL, and waits for it while the loop is busy.
            if _DSYNC:
                try:
                    if os.pwritev(self._fd, buffers, position, _DSYNC) == size:
                        return
                except OSError as error:
                    if error.errno != errno.EOPNOTSUPP:  # some file systems do not know the flag
                        raise
            write_all(self._fd, memoryview(b"".join(buffers)), position)
            self.sync()

    def begin_write(
        self, ring: IoUring, buffers: Sequence[Buffer], position: int, done: Callable[[int], None]
    ) -> bool:
        """Begin a durable write on the event loop; see `IoUring.write`."""

        def ended(result: int) -> None:
            self._in_kernel = False
            self._durable_writes.end()
            done(result)

        if not ring.write(self._fd, buffers, position, ended):
            return False
        self._in_kernel = True
        self._durable_writes.begin()
        return True

    def read_at(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        while 0 < len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def begin_sync(self) -> None:
        # With this flag alone the call does not consume a writeback error that `sync` must report.
        if _sync_file_range is not None:
            _sync_file_range(self._fd, 0, 0, _SYNC_FILE_RANGE_WRITE)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._direct_writes is not None:
            self._direct_writes.close()
        # The number of a closed descriptor may soon be another file's.
        if not self._in_kernel:
            os.close(self._fd)


class _BackgroundFile(RealFile):
    """A file read in small pieces, without readahead, and if possible between durable writes.

    Readahead fetches megabytes in one request, and a sync would wait for all of them.
    """

    __slots__ = ()

    def __init__(self, fd: int, durable_writes: _DurableWrites) -> None:
        super().__init__(fd, durable_writes)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def read_at(self, size: int, position: int) -> bytes:
        # Cached data is read in one piece: each call releases the GIL and waits for it again.
        if size <= _PIECE_BYTES or (self._is_in_memory(position) and self._is_in_memory(position + size - 1)):
            return super().read_at(size, position)
        pieces: list[bytes] = []
        for at in range(position, position + size, _PIECE_BYTES):
            self._durable_writes.none.wait(_YIELD_S_MAX)
            pieces.append(super().read_at(min(_PIECE_BYTES, position + size - at), at))
        return b"".join(pieces)

    def _is_in_memory(self, position: int) -> bool:
        # An error means not cached, or not supported; the read itself reports any other fault.
        try:
            os.preadv(self._fd, [bytearray(1)], position, _NOWAIT)
        except OSError:
            return False
        return True


def _chunks(buffers: Sequence[Buffer], bytes_max: int) -> Iterator[Sequence[Buffer]]:
    """Groups of buffers, one for each system call: of `bytes_max` at most, or one buffer."""
    first = size = 0
    for at, buffer in enumerate(buffers):
        size += len(buffer)
        if at > first and (size > bytes_max or at - first == _VECTORS_MAX):
            yield buffers[first:at]
            first, size = at, len(buffer)
    if buffers:
        yield buffers[first:]


def _open(path: Path, flags: int) -> int:
    return _with_descriptor(path, lambda: os.open(path, flags | os.O_CLOEXEC, FILE_MODE))


def _names(directory: Path) -> list[str]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Takes a second descriptor. The first one is not kept while this waits for it.
        return os.listdir(fd)
    finally:
        os.close(fd)


def _with_descriptor(path: Path, call: Callable[[], T]) -> T:
    """Call; wait while the process or the system is out of descriptors.

    Connections use descriptors too, and release them. An error would end the process here, as any
    failure of the journal does.
    """
    told = False
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if not told:
                log.warning("waiting for a file descriptor", path=str(path), reason=error.strerror)
                told = True
        # The system does not notify when a descriptor is free.
        time.sleep(_DESCRIPTOR_RETRY_S)


class RealDisk:
    """The file system of the machine. What takes file descriptors waits while there are none."""

    def __init__(self) -> None:
        self._durable_writes = _DurableWrites()

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> RealFile:
        fd = regular_file(_open(path, os.O_RDWR | (os.O_CREAT if create else 0)), path)
        if background and self._durable_writes.are_expected():
            return _BackgroundFile(fd, self._durable_writes)
        return RealFile(fd, self._durable_writes)

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(_with_descriptor(directory, lambda: _names(directory)))
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        missing: list[Path] = []
        at = path
        while not at.is_dir():
            missing.append(at)
            at = at.parent
        for directory in reversed(missing):
            try:
                directory.mkdir(DIRECTORY_MODE, exist_ok=True)
            except FileExistsError as error:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from error
            try:
                self.sync_directory(directory.parent)
            except OSError as error:
                # Not ENOSPC, which is retried: a retry would find the directory and not sync it.
                reason = f"the new directory cannot be synced: {error}"
                raise OSError(errno.EIO, reason, str(directory)) from error

    def rename(self, old: Path, new: Path) -> None:
        assert old.parent == new.parent, f"{old} and {new} are not in one directory"
        os.rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        os.link(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        os.rmdir(path)

    def sync_directory(self, path: Path) -> None:
        fd = _open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def device_bytes_read(self) -> int:
        return 0 if _THIS_THREAD is None else _BLOCK_BYTES * resource.getrusage(_THIS_THREAD).ru_inblock

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))

    def open_file_limit(self) -> int:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return sys.maxsize if soft == resource.RLIM_INFINITY else soft

    def lock(self, path: Path) -> RealFile | None:
        fd = regular_file(_open(path, os.O_RDWR | os.O_CREAT), path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return RealFile(fd, self._durable_writes)

"""The file system as a constructor argument: the real one here, a simulated one in tests.

Every method blocks and belongs on a worker thread. Errors are `OSError` with the `errno` of the failing call.

The real disk is where reads meet durable writes, so here they take turns. A device serves what it was asked for first; whoever waits for a
sync waits for all reads before it. A file that is opened for reads in the background therefore has nothing read ahead, which would be
megabytes, and is read in pieces, of which none begins while a durable write is under way, for a bounded time. Where no durable write is
expected, such a file is like any other, and where all is in memory, it is read by one call.

The roads not taken: I/O priorities, which most schedulers of fast devices know nothing of; direct reads, which give up the page cache that
readers share; to ask `mincore` what is in memory, which needs a mapping of the file.
"""

import ctypes
import errno
import fcntl
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import structlog

from pixy.storage.direct_writes import DIRECT_BYTES_MIN, DirectWrites, write_all

__all__ = ["Buffer", "Disk", "File", "RealDisk", "is_disk_full", "sync_is_final"]

log = structlog.get_logger(__name__)

Buffer = bytes | bytearray | memoryview

_VECTORS_MAX = 1024
"""Linux takes at most this many buffers in one vectored write."""
_WRITE_BYTES_MAX = 1 << 20
"""A call that copies more keeps a core from other threads for milliseconds, the event loop's among them."""

_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Linux's, None elsewhere. Python has no name for it."""
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

_DSYNC: int = getattr(os, "RWF_DSYNC", 0)
"""Flag of a write that returns when its bytes are on stable storage; 0 where the system has none."""


_PIECE_BYTES = 128 << 10
"""A sync waits for the read that the device is at. So much takes it 0.1 or 0.2 ms."""
_YIELD_S_MAX = 0.005
"""So long a piece waits for a durable write that is under way: reads in the background go on beside writes that never end, too."""
_WRITING_S = 0.1
"""So long behind a durable write the next one is expected."""
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
"""Flag of a read that fails where it would have to wait for the device; 0 where the system has none."""

_DESCRIPTOR_RETRY_S = 0.01

_THIS_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)
_BLOCK_BYTES = 512
"""Of which Linux counts blocks of input, whatever blocks the file system has."""


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a call on a disk has failed for want of room."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def sync_is_final() -> Iterator[None]:
    """Give a sync that fails for want of room the errno EIO.

    A write that finds no room is tried again. A sync must not be: what it has lost looks durable to the next one.
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

        No buffers, or empty ones, write nothing and make no file longer.

        Raises:
            OSError: not all of it is written; any part from `position` on may be. ENOSPC or EDQUOT: there is no room.
        """

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        """As `write_at` and `sync` of what was written, in one call where the system has one.

        A process that is killed meanwhile leaves it done up to any page of the file, wherever one buffer ends and the next begins.

        Raises:
            OSError: any part may be written, and none of it need be durable. As a failed `sync`, this must never be retried.
        """

    def read_at(self, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position` on; fewer only at the end of the file, none behind it."""

    def size(self) -> int:
        """Length in bytes."""

    def allocate(self, size: int) -> None:
        """Make the file at least `size` bytes long, with the space for it taken; new bytes read as zeros.

        Raises:
            OSError: ENOSPC or EDQUOT if there is no room; the file may be longer than before, by zeros.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def begin_sync(self) -> None:
        """Let the system begin with what `sync` will wait for. A hint: proves nothing, and never fails.

        The syncs of many files cost a fraction if all of them have begun before the first one waits.
        """

    def sync(self) -> None:
        """Return when everything written is on stable storage.

        Raises:
            OSError: with any errno, that of want of room too. It must never be retried: see `sync_is_final`.
        """

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system.

    What has no name raises `FileNotFoundError`; a path through a file `NotADirectoryError`, and a directory in the place of a file
    `IsADirectoryError`. Removing and renaming need no room.
    """

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> File:
        """Open for reading and writing; with `create` a missing file is made, whose name is durable after `sync_directory`.

        With `background`, reads from the file leave the device to durable writes on this disk, if there are any at the time.
        """

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory.

        Raises:
            NotADirectoryError: the path is a file's, or leads through one.
        """

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents, and make their entries durable; what is there already is not synced.

        Raises:
            NotADirectoryError: the path, or one above it, is a file's; `filename` is that path.
            OSError: EIO whenever it is the sync that has failed, and must never be tried again.
        """

    def rename(self, old: Path, new: Path) -> None:
        """Atomically replace `new` by `old`, both in one directory; durable after `sync_directory` of that.

        `old` may be a directory; then `new` must not be there. Files that are open in it, or below, stay open.

        Raises:
            OSError: `new` is a directory (EISDIR, ENOTEMPTY), or a file while `old` is a directory (ENOTDIR).
        """

    def link(self, old: Path, new: Path) -> None:
        """Give a file one more name, in any directory; durable after `sync_directory` of that.

        Raises:
            OSError: `new` is there (EEXIST), or the file system has no such names (EPERM, EOPNOTSUPP, EMLINK, EXDEV).
        """

    def unlink(self, path: Path) -> None:
        """Remove a name of a file, with the last one the file; durable after `sync_directory`.

        Who has it open keeps it, and its room on the disk, until it is closed.
        """

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory; durable after `sync_directory` of its parent.

        Raises:
            OSError: it is not empty (ENOTEMPTY), or a file (ENOTDIR).
        """

    def sync_directory(self, path: Path) -> None:
        """Return when creations, renames and removals in a directory are on stable storage."""

    def device_bytes_read(self) -> int:
        """What the device has given to reads of the calling thread so far, what was read ahead for them included.

        0 where the system does not tell.
        """

    def open_file_limit(self) -> int:
        """How many files the process may have open, those that are no files of this disk included."""

    def lock(self, path: Path) -> File | None:
        """Take the lock that a file stands for, None if somebody holds it. Closing the file releases it."""


class _DurableWrites:
    """The durable writes on a disk, for those who read in the background.

    Attributes:
        none: set while none is under way.
    """

    __slots__ = ("_ended", "none")

    def __init__(self) -> None:
        # When the last one ended, in the time of `time.monotonic`.
        self._ended = float("-inf")
        self.none = threading.Event()
        self.none.set()

    def __enter__(self) -> None:
        self.none.clear()

    def __exit__(self, *_: object) -> None:
        self._ended = time.monotonic()
        self.none.set()

    def are_expected(self) -> bool:
        """Whether one is under way, or the next one may come at any moment."""
        return not self.none.is_set() or time.monotonic() - self._ended < _WRITING_S


class RealFile:
    """A file of the machine."""

    __slots__ = ("_direct_writes", "_durable_writes", "_fd")

    def __init__(self, fd: int, durable_writes: _DurableWrites) -> None:
        self._fd = fd
        self._durable_writes = durable_writes
        self._direct_writes: DirectWrites | None = None

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        for chunk in _chunks(buffers):
            expected = sum(map(len, chunk))
            written = os.pwritev(self._fd, chunk, position)
            if written < expected:
                write_all(self._fd, memoryview(b"".join(chunk))[written:], position + written)
            position += expected

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        with self._durable_writes:
            size = sum(map(len, buffers))
            if size >= DIRECT_BYTES_MIN:
                if self._direct_writes is None:
                    self._direct_writes = DirectWrites(self._fd)
                if self._direct_writes.write(buffers, position, size):
                    self.sync()
                    return
            if len(buffers) > _VECTORS_MAX:
                buffers = [b"".join(buffers)]
            # One call instead of two: each gives up the interpreter lock, and waits for it again while the event loop is busy.
            if _DSYNC:
                try:
                    if os.pwritev(self._fd, buffers, position, _DSYNC) == size:
                        return
                except OSError as error:
                    if error.errno != errno.EOPNOTSUPP:  # some file systems do not know the flag
                        raise
            write_all(self._fd, memoryview(b"".join(buffers)), position)
            self.sync()

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
        # With this flag alone it takes no note of an error that a sync is to tell of.
        if _sync_file_range is not None:
            _sync_file_range(self._fd, 0, 0, _SYNC_FILE_RANGE_WRITE)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._direct_writes is not None:
            self._direct_writes.close()
        os.close(self._fd)


class _BackgroundFile(RealFile):
    """A file from which little is read at a time, nothing ahead, and if possible not during a durable write.

    What the system reads ahead is megabytes in one go, and a sync waits until the device is through with them.
    """

    __slots__ = ()

    def __init__(self, fd: int, durable_writes: _DurableWrites) -> None:
        super().__init__(fd, durable_writes)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def read_at(self, size: int, position: int) -> bytes:
        # In one piece from memory: each call gives up the interpreter lock, and waits for it again.
        if size <= _PIECE_BYTES or (self._is_in_memory(position) and self._is_in_memory(position + size - 1)):
            return super().read_at(size, position)
        pieces: list[bytes] = []
        for at in range(position, position + size, _PIECE_BYTES):
            self._durable_writes.none.wait(_YIELD_S_MAX)
            pieces.append(super().read_at(min(_PIECE_BYTES, position + size - at), at))
        return b"".join(pieces)

    def _is_in_memory(self, position: int) -> bool:
        # An error: it is not, or the file system cannot tell; what else is wrong the read itself will say.
        try:
            os.preadv(self._fd, [bytearray(1)], position, _NOWAIT)
        except OSError:
            return False
        return True


def _chunks(buffers: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
    """What goes into one system call each."""
    first = size = 0
    for at, buffer in enumerate(buffers):
        size += len(buffer)
        if at > first and (size > _WRITE_BYTES_MAX or at - first == _VECTORS_MAX):
            yield buffers[first:at]
            first, size = at, len(buffer)
    if buffers:
        yield buffers[first:]


def _open(path: Path, flags: int) -> int:
    """Open a file; wait while the process or the system has no descriptor for it.

    Connections take descriptors too, and give them back. A failure would end the process here, as one of the journal does.
    """
    told = False
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if not told:
                log.warning("waiting for a file descriptor", path=str(path), reason=error.strerror)
                told = True
        # Nobody tells when there is one.
        time.sleep(_DESCRIPTOR_RETRY_S)


class RealDisk:
    """The file system of the machine. Out of file descriptors, it waits for one."""

    def __init__(self) -> None:
        self._durable_writes = _DurableWrites()

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> RealFile:
        fd = _open(path, os.O_RDWR | (os.O_CREAT if create else 0))
        if background and self._durable_writes.are_expected():
            return _BackgroundFile(fd, self._durable_writes)
        return RealFile(fd, self._durable_writes)

    def names(self, directory: Path) -> list[str]:
        try:
            fd = _open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return []
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def make_directory(self, path: Path) -> None:
        missing: list[Path] = []
        at = path
        while not at.is_dir():
            missing.append(at)
            at = at.parent
        for directory in reversed(missing):
            try:
                directory.mkdir(exist_ok=True)
            except FileExistsError as error:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from error
            try:
                self.sync_directory(directory.parent)
            except OSError as error:
                # Not to be taken for want of room, which is tried again: it would find the directory, and not sync it.
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

    def open_file_limit(self) -> int:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return sys.maxsize if soft == resource.RLIM_INFINITY else soft

    def lock(self, path: Path) -> RealFile | None:
        fd = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return RealFile(fd, self._durable_writes)

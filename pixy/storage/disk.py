"""The file system as a constructor argument: the real one here, a simulated one in tests.

Every method blocks and belongs on a worker thread. Errors are `OSError` with the `errno` of the failing call.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["Buffer", "Disk", "File", "RealDisk"]

Buffer = bytes | bytearray | memoryview

_VECTORS_MAX = 1024
"""Linux takes at most this many buffers in one vectored write."""


_DSYNC: int = getattr(os, "RWF_DSYNC", 0)
"""Flag of a write that returns when its bytes are on stable storage; 0 where the system has none."""


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

    def sync(self) -> None:
        """Return when everything written is on stable storage. A failure must never be retried."""

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system.

    What has no name raises `FileNotFoundError`; a path through a file `NotADirectoryError`, and a directory in the place of a file
    `IsADirectoryError`. Removing and renaming need no room.
    """

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; with `create` a missing file is made, whose name is durable after `sync_directory`."""

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory.

        Raises:
            NotADirectoryError: the path is a file's, or leads through one.
        """

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents, and make their entries durable; what is there already is not synced.

        Raises:
            NotADirectoryError: the path, or one above it, is a file's; `filename` is that path.
        """

    def rename(self, old: Path, new: Path) -> None:
        """Atomically replace `new` by `old`, both in one directory; durable after `sync_directory` of that.

        `old` may be a directory; then `new` must not be there. Files that are open in it, or below, stay open.

        Raises:
            OSError: `new` is a directory (EISDIR, ENOTEMPTY), or a file while `old` is a directory (ENOTDIR).
        """

    def unlink(self, path: Path) -> None:
        """Remove a file; durable after `sync_directory`. Who has it open keeps it, and its room on the disk, until it is closed."""

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory; durable after `sync_directory` of its parent.

        Raises:
            OSError: it is not empty (ENOTEMPTY), or a file (ENOTDIR).
        """

    def sync_directory(self, path: Path) -> None:
        """Return when creations, renames and removals in a directory are on stable storage."""

    def lock(self, path: Path) -> File | None:
        """Take the lock that a file stands for, None if somebody holds it. Closing the file releases it."""


class RealFile:
    """A file of the machine."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        for first in range(0, len(buffers), _VECTORS_MAX):
            chunk = buffers[first : first + _VECTORS_MAX]
            expected = sum(map(len, chunk))
            written = os.pwritev(self._fd, chunk, position)
            position += written
            if written < expected:
                rest = memoryview(b"".join(chunk))[written:]
                while rest:
                    written = os.pwrite(self._fd, rest, position)
                    position += written
                    rest = rest[written:]

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        # One call instead of two: each gives up the interpreter lock, and waits for it again while the event loop is busy.
        if _DSYNC and len(buffers) <= _VECTORS_MAX:
            try:
                if os.pwritev(self._fd, buffers, position, _DSYNC) == sum(map(len, buffers)):
                    return
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:  # some file systems do not know the flag
                    raise
        self.write_at(buffers, position)
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

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealDisk:
    """The file system of the machine."""

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags, 0o644))

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
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
                directory.mkdir(exist_ok=True)
            except FileExistsError as error:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from error
            self.sync_directory(directory.parent)

    def rename(self, old: Path, new: Path) -> None:
        assert old.parent == new.parent, f"{old} and {new} are not in one directory"
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        os.rmdir(path)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: Path) -> RealFile | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return RealFile(fd)

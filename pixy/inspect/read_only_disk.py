"""A read-only file system: every call that would change something fails with EROFS."""

import errno
import fcntl
import os
from pathlib import Path
from typing import NoReturn

from pixy.storage import RealDisk, RealFile
from pixy.storage.disk import regular_file


class ReadOnlyDisk(RealDisk):
    """The file system of the machine, read only, also through the files that it opens."""

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> RealFile:
        if create:
            _refuse(path)
        return RealFile(_open(path), self._durable_writes)

    def make_directory(self, path: Path) -> None:
        _refuse(path)

    def rename(self, old: Path, new: Path) -> None:
        _refuse(old)

    def link(self, old: Path, new: Path) -> None:
        _refuse(new)

    def unlink(self, path: Path) -> None:
        _refuse(path)

    def remove_directory(self, path: Path) -> None:
        _refuse(path)

    def sync_directory(self, path: Path) -> None:
        _refuse(path)

    def lock(self, path: Path) -> RealFile | None:
        """Lock out writers, not other readers; None if there is a writer.

        Raises:
            FileNotFoundError: there is no lock file, so nobody holds it.
        """
        file_number = _open(path)
        try:
            fcntl.flock(file_number, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file_number)
            return None
        return RealFile(file_number, self._durable_writes)


def _open(path: Path) -> int:
    """Descriptor of a regular file; without O_NONBLOCK a FIFO would wait for a writer."""
    return regular_file(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), path)


def _refuse(path: Path) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

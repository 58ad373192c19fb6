"""A real daemon whose disk and clock a test can spoil, also while it runs.

The daemon runs as `Daemon(folder, config, program=FAULTY)`; `Faults(folder)` controls it by two
files in its directory: a lock that every write takes for a moment, so that holding it stalls them,
and a JSON object with the other faults. Nothing of the daemon is replaced but its `Disk` and its
`Clock`, which are constructor arguments everywhere below `pixy.daemon`.

A full disk refuses what takes space: allocations, writes beyond the end of a file, new names. What
was allocated can be written, as on a real one.
"""

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO
from unittest import mock

from pixy.storage import RealDisk
from pixy.storage.disk.disk import Buffer, File, RealFile

_ROOT = str(Path(__file__).parents[2])
FAULTY = (
    "-c",
    f"import sys; sys.path.insert(0, {_ROOT!r}); from tests.integration.faulty_daemon import main; main()",
)
"""Program of a `Daemon`."""

_STALL = "stall"
_SPOILED = "faults.json"


@dataclass(frozen=True, slots=True)
class _Spoiled:
    """Current faults.

    Args:
        error: errno of every write, sync and change of a directory; 0 for none.
        full: the disk is full.
        clock_ahead_s: seconds that the wall clock is ahead; negative if it is behind.
    """

    error: int = 0
    full: bool = False
    clock_ahead_s: float = 0.0


# --- in the test ----------------------------------------------------------------------------------


class Faults:
    """Faults of a daemon, effective when the method returns.

    Args:
        folder: the daemon's directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spoiled = _Spoiled()
        self._stall: IO[bytes] | None = None

    def stall(self) -> None:
        """Make every write and sync wait until `resume`. Returns when those in progress have
        ended.
        """
        assert self._stall is None, "it is stalled already"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._stall = (self._folder / _STALL).open("wb")
        fcntl.flock(self._stall, fcntl.LOCK_EX)

    def resume(self) -> None:
        """End a stall, if there is one."""
        if self._stall is not None:
            self._stall.close()
            self._stall = None

    def fail(self, error: int = errno.EIO) -> None:
        """Fail every write and sync."""
        self._set(replace(self._spoiled, error=error))

    def fill(self) -> None:
        """Make the disk full."""
        self._set(replace(self._spoiled, full=True))

    def set_clock_ahead(self, seconds: float) -> None:
        """Set the wall clock ahead of the machine's."""
        self._set(replace(self._spoiled, clock_ahead_s=seconds))

    def heal(self) -> None:
        """End all faults."""
        self.resume()
        self._set(_Spoiled())

    def _set(self, spoiled: _Spoiled) -> None:
        self._spoiled = spoiled
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f"{_SPOILED}.new"
        new.write_text(json.dumps(asdict(spoiled)))
        os.replace(new, self._folder / _SPOILED)


# --- in the daemon's process, whose working directory is its folder -------------------------------


class _Control:
    """The daemon's view of its faults."""

    def __init__(self) -> None:
        self._stall = os.open(_STALL, os.O_RDWR | os.O_CREAT, 0o644)
        # The file that `_spoiled` was read from.
        self._file = (0, 0)
        self._spoiled = _Spoiled()

    def spoiled(self) -> _Spoiled:
        """The current faults."""
        try:
            status = os.stat(_SPOILED)
        except FileNotFoundError:
            return self._spoiled
        if (file := (status.st_ino, status.st_mtime_ns)) != self._file:
            self._spoiled = _Spoiled(**json.loads(Path(_SPOILED).read_text()))
            self._file = file
        return self._spoiled

    @contextmanager
    def writing(self, name: str | Path) -> Iterator[None]:
        """A write, sync or change of a directory, which waits while the disk is stalled."""
        # A lock belongs to an open file, so each write, in any thread, has one of its own.
        lock = os.open(_STALL, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if error := self.spoiled().error:
                raise OSError(error, os.strerror(error), str(name))
            yield
        finally:
            os.close(lock)

    def take_space(self, name: str | Path) -> None:
        """Fail if the disk is full."""
        if self.spoiled().full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(name))


class _FaultyFile:
    def __init__(self, control: _Control, file: RealFile, name: str) -> None:
        self._control = control
        self._file = file
        self._name = name

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        with self._control.writing(self._name):
            self._grow_to(position + sum(map(len, buffers)))
            self._file.write_at(buffers, position)

    def write_direct(self, buffers: Sequence[Buffer], position: int) -> None:
        with self._control.writing(self._name):
            self._grow_to(position + sum(map(len, buffers)))
            self._file.write_direct(buffers, position)

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        with self._control.writing(self._name):
            self._grow_to(position + sum(map(len, buffers)))
            self._file.write_durably(buffers, position)

    def read_at(self, size: int, position: int) -> bytes:
        return self._file.read_at(size, position)

    def size(self) -> int:
        return self._file.size()

    def allocate(self, size: int) -> None:
        with self._control.writing(self._name):
            self._grow_to(size)
            self._file.allocate(size)

    def truncate(self, size: int) -> None:
        with self._control.writing(self._name):
            self._file.truncate(size)

    def begin_sync(self) -> None:
        self._file.begin_sync()

    def sync(self) -> None:
        with self._control.writing(self._name):
            self._file.sync()

    def close(self) -> None:
        self._file.close()

    def _grow_to(self, size: int) -> None:
        if size > self._file.size():
            self._control.take_space(self._name)


class _FaultyDisk:
    """A `Disk`."""

    def __init__(self) -> None:
        self._disk = RealDisk()
        self._control = _Control()

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> File:
        if create and not path.exists():
            self._control.take_space(path)
        opened = self._disk.open(path, create=create, background=background)
        return _FaultyFile(self._control, opened, str(path))

    def names(self, directory: Path) -> list[str]:
        return self._disk.names(directory)

    def make_directory(self, path: Path) -> None:
        with self._control.writing(path):
            if not path.is_dir():
                self._control.take_space(path)
            self._disk.make_directory(path)

    def rename(self, old: Path, new: Path) -> None:
        with self._control.writing(old):
            if not new.exists():
                self._control.take_space(new)
            self._disk.rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        with self._control.writing(old):
            self._control.take_space(new)
            self._disk.link(old, new)

    def unlink(self, path: Path) -> None:
        with self._control.writing(path):
            self._disk.unlink(path)

    def remove_directory(self, path: Path) -> None:
        with self._control.writing(path):
            self._disk.remove_directory(path)

    def sync_directory(self, path: Path) -> None:
        with self._control.writing(path):
            self._disk.sync_directory(path)

    def device_bytes_read(self) -> int:
        return self._disk.device_bytes_read()

    def modified_ms(self, path: Path) -> int:
        return self._disk.modified_ms(path)

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        self._disk.set_modified_ms(path, time_ms)

    def open_file_limit(self) -> int:
        return self._disk.open_file_limit()

    def lock(self, path: Path) -> File | None:
        return self._disk.lock(path)


class _SpoiledTime:
    """A `Clock`."""

    def __init__(self) -> None:
        self._control = _Control()

    monotonic = staticmethod(time.monotonic)
    monotonic_ns = staticmethod(time.monotonic_ns)

    def wall_ns(self) -> int:
        return time.time_ns() + int(self._control.spoiled().clock_ahead_s * 1e9)

    def wall_ms(self) -> int:
        return self.wall_ns() // 1_000_000


def main() -> None:
    """The command `pixy`, with a disk and a clock that can be spoiled."""
    from pixy.cli import main as command

    # Constructed by `pixy.daemon` alone, which wires everything.
    with (
        mock.patch("pixy.daemon.RealDisk", _FaultyDisk),
        mock.patch("pixy.daemon.SystemClock", _SpoiledTime),
    ):
        command()

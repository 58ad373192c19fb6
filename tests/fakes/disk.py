"""A disk that records its calls, and fails where a test wants it to.

It never really syncs: tests check the order of calls, and no test survives a power failure.
"""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pixy.storage.disk.disk import Buffer, File, RealDisk


class Call(NamedTuple):
    """A recorded call: `create`, `write`, `allocate`, `truncate`, `begin_sync`, `sync`, `rename`,
    `link`, `unlink`, `remove_directory`, `make_directory`, `sync_directory`.

    `at` is the position of a write, or the size for `allocate` and `truncate`.
    """

    what: str
    name: str
    at: int = 0


class _UnsyncedDisk(RealDisk):
    def sync_directory(self, path: Path) -> None:
        pass


class RecordingDisk:
    """The real disk, with a list of all modifying calls.

    `before` is called ahead of each of them and may raise. A write is recorded once it has
    returned. Files and directories in `unreadable` have bad sectors, those in `bad_bytes` one at
    this byte; what is in `lost` cannot even be opened.
    """

    def __init__(self) -> None:
        self._disk = _UnsyncedDisk()
        self.calls: list[Call] = []
        # Range of each durable write: first byte, and the one after its last.
        self.durable_writes: list[tuple[int, int]] = []
        self.before: Callable[[Call], None] = lambda _: None
        self.unreadable: set[Path] = set()
        self.bad_bytes: dict[Path, int] = {}
        self.lost: set[Path] = set()

    def did(self, what: str, ending: str = "") -> list[Call]:
        """Calls of one kind on paths with this suffix."""
        return [call for call in self.calls if call.what == what and call.name.endswith(ending)]

    def fail(self, what: str, ending: str, error: int) -> None:
        """Fail further calls of a kind on paths with this suffix, with an errno."""

        def before(call: Call) -> None:
            if call.what == what and call.name.endswith(ending):
                raise OSError(error, os.strerror(error), call.name)

        self.before = before

    def heal(self) -> None:
        """End all failures."""
        self.before = lambda _: None

    def do(self, call: Call) -> None:
        self.before(call)
        self.calls.append(call)

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> File:
        if path in self.lost:
            raise _input_output_error(path)
        if create and not path.exists():
            self.do(Call("create", path.name))
        return _RecordingFile(self, self._disk.open(path, create=create, background=background), path)

    def names(self, directory: Path) -> list[str]:
        if directory in self.unreadable:
            raise _input_output_error(directory)
        return self._disk.names(directory)

    def make_directory(self, path: Path) -> None:
        if not path.is_dir():
            self.do(Call("make_directory", path.name))
        self._disk.make_directory(path)

    def rename(self, old: Path, new: Path) -> None:
        self.do(Call("rename", new.name))
        self._disk.rename(old, new)
        self.unreadable.discard(new)

    def link(self, old: Path, new: Path) -> None:
        self.do(Call("link", new.name))
        self._disk.link(old, new)

    def unlink(self, path: Path) -> None:
        self.do(Call("unlink", path.name))
        self._disk.unlink(path)
        self.unreadable.discard(path)

    def remove_directory(self, path: Path) -> None:
        self.do(Call("remove_directory", path.name))
        self._disk.remove_directory(path)

    def sync_directory(self, path: Path) -> None:
        self.do(Call("sync_directory", path.name))

    def modified_ms(self, path: Path) -> int:
        return self._disk.modified_ms(path)

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        self._disk.set_modified_ms(path, time_ms)

    def open_file_limit(self) -> int:
        return self._disk.open_file_limit()

    def device_bytes_read(self) -> int:
        return self._disk.device_bytes_read()

    def lock(self, path: Path) -> File | None:
        return self._disk.lock(path)


class _RecordingFile:
    def __init__(self, disk: RecordingDisk, file: File, path: Path) -> None:
        self._disk = disk
        self._file = file
        self._path = path
        self._name = path.name

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        self._disk.do(Call("write", self._name, position))
        self._file.write_at(buffers, position)

    def write_direct(self, buffers: Sequence[Buffer], position: int) -> None:
        self._disk.do(Call("write", self._name, position))
        self._file.write_direct(buffers, position)

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        self.write_at(buffers, position)
        self.sync()
        self._disk.durable_writes.append((position, position + sum(map(len, buffers))))

    def read_at(self, size: int, position: int) -> bytes:
        bad = self._disk.bad_bytes.get(self._path, -1)
        if self._path in self._disk.unreadable or position <= bad < position + size:
            raise _input_output_error(self._path)
        return self._file.read_at(size, position)

    def size(self) -> int:
        return self._file.size()

    def allocate(self, size: int) -> None:
        self._disk.do(Call("allocate", self._name, size))
        self._file.allocate(size)

    def truncate(self, size: int) -> None:
        self._disk.do(Call("truncate", self._name, size))
        self._file.truncate(size)

    def begin_sync(self) -> None:
        self._disk.do(Call("begin_sync", self._name))

    def sync(self) -> None:
        self._disk.do(Call("sync", self._name))

    def close(self) -> None:
        self._file.close()


def _input_output_error(path: Path) -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def full(disk: RecordingDisk, what: str, ending: str) -> None:
    """Fail with ENOSPC from here on."""
    disk.fail(what, ending, errno.ENOSPC)

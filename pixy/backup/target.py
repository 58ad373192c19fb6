"""Targets of backups: folders of objects, on a disk or in an object store.

    target                  objects                       an object appears
    ----------------------  ----------------------------  ------------------------------------------
    a directory, file://    files                         whole: it is synced, then gets its name
    any other URL           those of fsspec, for S3, GCS  whole, in object stores; other file
                            and Azure with its driver     systems may leave a part of it, which its
                                                          size, or the checksum of a manifest, tells

Methods block, and may be called from several threads.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pixy.backup.object_names import size_and_crc
from pixy.errors import CorruptData, FailedPrecondition, NotFound, Unavailable
from pixy.records import crc32c

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")

_PART = ".part"
_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")
_NUMBERS = count()
"""Of files that are being written by this process."""


class ObjectWriter(Protocol):
    """An object on its way, which gets its name at the end. One thread at a time."""

    def write(self, piece: Buffer) -> None:
        """Add bytes."""

    def commit(self, name: str) -> None:
        """Make it an object of this name in its folder; durable after `flush`."""

    def abandon(self) -> None:
        """Give it up; no effect on one that has a name."""


class Target(Protocol):
    """Objects by path, whose parts are separated by slashes.

    Raises:
        Unavailable: an object cannot be read or written now; names the target and the reason.
    """

    url: str

    def begin(self, folder: str) -> ObjectWriter:
        """Begin an object in a folder."""

    def flush(self) -> None:
        """Make everything durable that was put."""

    def get(self, path: str) -> bytes:
        """Read an object.

        Raises:
            NotFound: there is none.
        """

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes in bytes of all objects in a folder, and in folders in it, by path."""

    def remove(self, path: str) -> None:
        """Remove an object, if it is there."""

    def remove_parts(self) -> None:
        """Remove what was never a whole object."""


def open_target(url: str) -> Target:
    """The target of a URL, or of the path of a directory.

    Raises:
        FailedPrecondition: fsspec, or its driver for the scheme, is not installed.
        Unavailable: it cannot be reached.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        return DirectoryTarget(Path(rest if separator else url))
    return FsspecTarget(url)


def read_object(target: Target, path: str) -> bytes:
    """An object, compared with the size and the checksum in its path.

    Raises:
        CorruptData: it is another one, or there is none.
        Unavailable: it cannot be read now.
    """
    size, crc = size_and_crc(path)
    try:
        data = target.get(path)
    except NotFound as error:
        raise CorruptData(f"{path} is missing") from error
    found = crc32c(data)
    if (len(data), found) != (size, crc):
        raise CorruptData(
            f"{path} has {len(data)} bytes with CRC {found:#010x}, expected {size} with {crc:#010x}"
        )
    return data


def put(target: Target, path: str, pieces: Iterable[Buffer]) -> None:
    """Write an object, or replace it; durable after `flush`."""
    folder, _, name = path.rpartition("/")
    writer = target.begin(folder)
    try:
        for piece in pieces:
            writer.write(piece)
        writer.commit(name)
    finally:
        writer.abandon()


class DirectoryTarget:
    """A directory.

    Args:
        directory: made by the first write.
    """

    def __init__(self, directory: Path) -> None:
        self.url = str(directory)
        self._directory = directory
        # Directories with names that may not be durable.
        self._unsynced: set[Path] = set()
        self._lock = threading.Lock()

    def begin(self, folder: str) -> ObjectWriter:
        """As `Target`."""
        with self.faults():
            self._make(self._directory / folder)
            return _FileWriter(self, self._directory / folder)

    def _make(self, folder: Path) -> None:
        missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
        folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._unsynced.update(each.parent for each in missing)

    def named(self, folder: Path) -> None:
        """A file in a folder has got its name, which is not durable yet."""
        with self._lock:
            self._unsynced.add(folder)

    def flush(self) -> None:
        """As `Target`."""
        with self._lock:
            directories, self._unsynced = self._unsynced, set()
        with self.faults():
            for directory in directories:
                handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def get(self, path: str) -> bytes:
        """As `Target`."""
        with self.faults():
            return (self._directory / path).read_bytes()

    def sizes(self, folder: str) -> dict[str, int]:
        """As `Target`."""
        found = {}
        with self.faults():
            for path in self._files(self._directory / folder):
                if not path.name.endswith(_PART):
                    found[path.relative_to(self._directory).as_posix()] = path.stat().st_size
        return found

    def _files(self, folder: Path) -> Iterator[Path]:
        for parent, _, names in os.walk(folder, onerror=_raise_unless_missing):
            for name in names:
                yield Path(parent, name)

    def remove(self, path: str) -> None:
        """As `Target`."""
        with self.faults(), suppress(FileNotFoundError):
            (self._directory / path).unlink()

    def remove_parts(self) -> None:
        """As `Target`."""
        with self.faults():
            for path in list(self._files(self._directory)):
                if path.name.endswith(_PART):
                    path.unlink(missing_ok=True)

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Turns errors of the system into those of a target."""
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound(f"{error.filename} is not there") from error
        except OSError as error:
            where = error.filename or self.url
            raise Unavailable(f"{where}: {error.strerror or error}") from error


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class _FileWriter:
    """A file with another name until it is whole."""

    def __init__(self, target: DirectoryTarget, folder: Path) -> None:
        self._target = target
        self._part = folder / f"{os.getpid()}-{next(_NUMBERS)}{_PART}"
        self._file = self._part.open("wb", buffering=0)

    def write(self, piece: Buffer) -> None:
        """As `ObjectWriter`."""
        left = memoryview(piece)
        with self._target.faults():
            while left:
                left = left[os.write(self._file.fileno(), left) :]

    def commit(self, name: str) -> None:
        """As `ObjectWriter`."""
        with self._target.faults():
            os.fsync(self._file.fileno())
            self._part.replace(self._part.with_name(name))
            self._file.close()
        self._target.named(self._part.parent)

    def abandon(self) -> None:
        """As `ObjectWriter`."""
        if not self._file.closed:
            self._file.close()
            with suppress(OSError):
                self._part.unlink()


class FsspecTarget:
    """A file system of fsspec.

    Args:
        url: with the scheme of a file system.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise FailedPrecondition(
                f"{url}: targets with a scheme need fsspec: pip install 'pixyd[backup]'"
            ) from error
        try:
            found = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise FailedPrecondition(f"{url}: {error}") from error
        self._fs: Any = found[0]
        self._root = str(found[1]).rstrip("/")
        # They have no directories, and a driver that is to make one makes a bucket.
        self._is_store = url.partition("://")[0] in _STORES

    def begin(self, folder: str) -> ObjectWriter:
        """As `Target`."""
        return _BufferWriter(self, folder)

    def write(self, path: str, data: bytes) -> None:
        """Write a whole object."""
        full = f"{self._root}/{path}"

        def write() -> None:
            try:
                self._fs.pipe_file(full, data)
            except FileNotFoundError:
                if self._is_store:
                    raise
                self._fs.makedirs(full.rpartition("/")[0], exist_ok=True)
                self._fs.pipe_file(full, data)

        self._run(write)

    def flush(self) -> None:
        """As `Target`: an object is durable once it is written."""

    def get(self, path: str) -> bytes:
        """As `Target`."""
        return self._run(lambda: bytes(self._fs.cat_file(f"{self._root}/{path}")))

    def sizes(self, folder: str) -> dict[str, int]:
        """As `Target`."""

        def find() -> dict[str, Any]:
            self._fs.invalidate_cache()
            found: dict[str, Any] = self._fs.find(f"{self._root}/{folder}", detail=True)
            return found

        try:
            found = self._run(find)
        except NotFound:
            return {}
        return {
            name[len(self._root) :].strip("/"): int(info["size"])
            for name, info in found.items()
            if info.get("size") is not None
        }

    def remove(self, path: str) -> None:
        """As `Target`."""
        with suppress(NotFound):
            self._run(lambda: self._fs.rm_file(f"{self._root}/{path}"))

    def remove_parts(self) -> None:
        """As `Target`: there are none."""

    def _run(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except FileNotFoundError as error:
            raise NotFound(f"{self.url}: not found: {error}") from error
        except Exception as error:  # drivers raise what their libraries do
            raise Unavailable(f"{self.url}: {type(error).__name__}: {error}") from error


class _BufferWriter:
    """An object in memory: stores take it as a whole, or by parts that begin with megabytes."""

    def __init__(self, target: FsspecTarget, folder: str) -> None:
        self._target = target
        self._folder = folder
        self._data = bytearray()

    def write(self, piece: Buffer) -> None:
        """As `ObjectWriter`."""
        self._data += piece

    def commit(self, name: str) -> None:
        """As `ObjectWriter`."""
        self._target.write(f"{self._folder}/{name}", bytes(self._data))
        self._data.clear()

    def abandon(self) -> None:
        """As `ObjectWriter`."""
        self._data.clear()

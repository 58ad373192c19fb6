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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pixy.backup.object_names import size_and_crc
from pixy.errors import CorruptData, FailedPrecondition, NotFound, Unavailable
from pixy.records import crc32c

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")

_PART = ".part"
_IOV_MAX = 512


class Target(Protocol):
    """Objects by path, whose parts are separated by slashes.

    Raises:
        Unavailable: an object cannot be read or written now; names the target and the reason.
    """

    url: str

    def put(self, path: str, pieces: Sequence[Buffer]) -> None:
        """Write an object, or replace it; durable after `flush`."""

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

    def put(self, path: str, pieces: Sequence[Buffer]) -> None:
        """As `Target`."""
        final = self._directory / path
        part = final.with_name(final.name + _PART)
        with self._faults():
            self._make_parents(final)
            try:
                with part.open("wb", buffering=0) as file:
                    _write_all(file.fileno(), pieces)
                    os.fsync(file.fileno())
                part.replace(final)
            except BaseException:
                with suppress(OSError):
                    part.unlink()
                raise
        with self._lock:
            self._unsynced.add(final.parent)

    def _make_parents(self, path: Path) -> None:
        missing = []
        for parent in path.parents:
            if parent.is_dir():
                break
            missing.append(parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._unsynced.update(parent.parent for parent in missing)

    def flush(self) -> None:
        """As `Target`."""
        with self._lock:
            directories, self._unsynced = self._unsynced, set()
        with self._faults():
            for directory in directories:
                handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def get(self, path: str) -> bytes:
        """As `Target`."""
        with self._faults():
            return (self._directory / path).read_bytes()

    def sizes(self, folder: str) -> dict[str, int]:
        """As `Target`."""
        found = {}
        with self._faults():
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
        with self._faults(), suppress(FileNotFoundError):
            (self._directory / path).unlink()

    def remove_parts(self) -> None:
        """As `Target`."""
        with self._faults():
            for path in list(self._files(self._directory)):
                if path.name.endswith(_PART):
                    path.unlink(missing_ok=True)

    @contextmanager
    def _faults(self) -> Iterator[None]:
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


def _write_all(file: int, pieces: Sequence[Buffer]) -> None:
    left = [memoryview(piece) for piece in pieces if len(piece)]
    while left:
        written = os.writev(file, left[:_IOV_MAX])
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


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

    def put(self, path: str, pieces: Sequence[Buffer]) -> None:
        """As `Target`."""
        full = f"{self._root}/{path}"

        def put() -> None:
            self._fs.makedirs(full.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(full, b"".join(pieces))

        self._run(put)

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
            raise NotFound(f"{self.url}: {error} is not there") from error
        except Exception as error:  # drivers raise what their libraries do
            raise Unavailable(f"{self.url}: {type(error).__name__}: {error}") from error


def remove_all(target: Target, paths: Iterable[str]) -> int:
    """Remove objects; returns how many."""
    count = 0
    for path in paths:
        target.remove(path)
        count += 1
    return count

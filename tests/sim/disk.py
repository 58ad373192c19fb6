"""A disk in memory that forgets what was not synced, tears it, fails, and dies where a simulation wants it to.

It implements `pixy.storage.Disk` with two states of everything: what a running process sees, and what a power failure leaves.

- A file is pages of 4096 bytes in 512-byte sectors. A page that was written and not synced is, after a power failure, what it was
  before, what it has become, anything that it was in between, or torn: one of these up to a sector, another from there on.
- The length of a file is durable with a sync. Before that, any length since the last one may be left. A truncation and its
  length are one change, as in a file system with a log of its metadata.
- `write_durably` makes the pages that it wrote durable, and a length that reaches over them; nothing else of the file.
- Creations, renames and removals of names are durable with `sync_directory`. Before that each is kept or forgotten independently,
  a rename as one. A directory whose own name is forgotten is gone with all that is in it.
- A process that is killed loses nothing: the next one sees what it saw, synced or not.
- A sync that fails leaves pages that are in memory only and that no later sync writes, as Linux does.

Every call that changes something is an operation with a number. `die_at` and `fail_at` say at which operation the process ends
or an error is returned. All that is random comes from one generator.

The road not taken: losing bytes that are reported synced, or reordering what is separated by a sync. No software survives that.
"""

import errno
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from pixy.storage.disk import Buffer, File

__all__ = ["PAGE_BYTES", "SECTOR_BYTES", "Ended", "Operation", "SimulatedDisk"]

PAGE_BYTES = 4096
SECTOR_BYTES = 512

_STORAGE = tuple(os.sep + os.path.join("pixy", part) + os.sep for part in ("storage", "cluster"))


class Ended(BaseException):
    """The process that made this call has ended in the middle of it."""


class Operation(NamedTuple):
    """A call that changes something: `create`, `make_directory`, `write`, `allocate`, `truncate`, `sync`, `rename`, `unlink`,
    `sync_directory`."""

    what: str
    path: Path


class _Version(NamedTuple):
    """What a page may be after a power failure; `size_number` is that of the file's length at that moment."""

    size_number: int
    truncated: bool
    content: bytes


class _Size(NamedTuple):
    number: int
    size: int


@dataclass(slots=True)
class _Inode:
    """A file's content.

    Attributes:
        data: what a process reads.
        sizes: the lengths since the last sync, the durable one first. Invariant: the last one is that of `data`.
        versions: for each page that is not synced, what it was and became, oldest first.
        stuck: unsynced pages that a sync does not write any more, because one has failed. Invariant: all are in `versions`.
        last_durable_write: position of the last `write_durably`.
    """

    data: bytearray = field(default_factory=bytearray)
    sizes: list[_Size] = field(default_factory=lambda: [_Size(0, 0)])
    versions: dict[int, list[_Version]] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)
    last_durable_write: int = 0

    def write(self, data: bytes, position: int) -> None:
        end = position + len(data)
        before = self._pages(position, end)
        self.extend(end)
        self.data[position:end] = data
        self._remember(before, truncated=False)

    def extend(self, size: int) -> None:
        if size > len(self.data):
            self.data.extend(bytes(size - len(self.data)))
            self._resized()

    def truncate(self, size: int) -> None:
        if size >= len(self.data):
            self.extend(size)
            return
        before = self._pages(size, len(self.data))
        del self.data[size:]
        self._resized()
        self._remember(before, truncated=True)

    def sync(self) -> None:
        self.sizes = [_Size(0, len(self.data))]
        self.versions = {
            page: [_Version(0, False, version.content) for version in versions]
            for page, versions in self.versions.items()
            if page in self.stuck
        }

    def sync_range(self, position: int, end: int) -> None:
        self.sizes = [size for size in self.sizes if size.size >= end]
        for page in _page_range(position, end):
            self.versions.pop(page, None)

    def fail_sync(self, rng: Random) -> None:
        for page in list(self.versions):
            if rng.random() < 0.5:
                self.stuck.add(page)
            elif page not in self.stuck:
                del self.versions[page]

    def lose_power(self, rng: Random) -> None:
        kept = rng.choice((0.0, 0.5, 0.5, 1.0, rng.random()))
        size = self.sizes[-1] if rng.random() < kept else rng.choice((self.sizes[0], rng.choice(self.sizes)))
        self.data = self.data[: size.size]
        self.data.extend(bytes(size.size - len(self.data)))
        for page, versions in self.versions.items():
            content = _survivor(rng, _possible(versions, size.number), kept)
            at = page * PAGE_BYTES
            content = content[: max(0, size.size - at)]
            self.data[at : at + len(content)] = content
        self.sizes = [_Size(0, size.size)]
        self.versions = {}
        self.stuck = set()

    def _resized(self) -> None:
        self.sizes.append(_Size(self.sizes[-1].number + 1, len(self.data)))

    def _pages(self, position: int, end: int) -> dict[int, bytes]:
        return {page: self._page(page) for page in _page_range(position, end)}

    def _page(self, page: int) -> bytes:
        return bytes(self.data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]).ljust(PAGE_BYTES, b"\0")

    def _remember(self, before: dict[int, bytes], *, truncated: bool) -> None:
        number = self.sizes[-1].number
        for page, content in before.items():
            versions = self.versions.setdefault(page, [_Version(self.sizes[0].number, False, content)])
            versions.append(_Version(number, truncated, self._page(page)))
            self.stuck.discard(page)


def _page_range(position: int, end: int) -> range:
    return range(position // PAGE_BYTES, -(-end // PAGE_BYTES))


def _possible(versions: list[_Version], size_number: int) -> list[bytes]:
    """What a page may be if the file's length is the one of that number: truncations behind it have not happened."""
    contents: list[bytes] = []
    for version in versions:
        if version.truncated:
            if version.size_number > size_number:
                continue
            contents = []
        contents.append(version.content)
    return contents


def _survivor(rng: Random, contents: list[bytes], kept: float) -> bytes:
    if rng.random() < 0.25:
        cut = rng.randrange(1, PAGE_BYTES // SECTOR_BYTES) * SECTOR_BYTES
        return rng.choice(contents)[:cut] + rng.choice(contents)[cut:]
    return contents[-1] if rng.random() < kept else rng.choice((contents[0], rng.choice(contents)))


class _Change(NamedTuple):
    """An unsynced change of names: `new` comes to be `node`, and `old` goes; either may be None."""

    old: str | None
    new: str | None
    node: "_Inode | _Directory"


@dataclass(slots=True)
class _Directory:
    """Names. `durable` is what is on stable storage, `pending` what has changed since, oldest first."""

    names: "dict[str, _Inode | _Directory]" = field(default_factory=dict)
    durable: "dict[str, _Inode | _Directory]" = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)

    def change(self, change: _Change) -> None:
        _apply(self.names, change)
        self.pending.append(change)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending = []

    def lose_power(self, rng: Random) -> None:
        kept = rng.choice((0.0, 0.5, 1.0, rng.random()))
        for change in self.pending:
            if rng.random() < kept:
                _apply(self.durable, change)
        self.names, self.pending = dict(self.durable), []
        for node in self.names.values():
            node.lose_power(rng)


def _apply(names: "dict[str, _Inode | _Directory]", change: _Change) -> None:
    if change.old is not None and names.get(change.old) is change.node:
        del names[change.old]
    if change.new is not None:
        names[change.new] = change.node


class SimulatedDisk:
    """A file system in memory.

    Args:
        rng: what every random choice comes from.

    Attributes:
        operations: how many operations there were since the last `restart`.
        die_at, die_phase: the operation at which the process ends, and whether `before`, in the `middle` of or `after` it.
        fail_at: the operation that fails, once, with EIO.
        fail_read_at: the read that fails, once, with EIO.
        failed: the operation that `fail_at` has hit.
        full: whether there is no room: nothing can be created or made longer.
        ended: whether the process has ended. Until `restart` every call raises `Ended`.
        on_ended: called when that happens.
        ignored: the places whose syncs do nothing.
        sites: how often each place has synced.
        before: called ahead of every operation.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._root = _Directory()
        self._locks: set[Path] = set()
        self._life = 0
        self.operations = 0
        self.reads = 0
        self.die_at = 0
        self.die_phase = "before"
        self.fail_at = 0
        self.fail_read_at = 0
        self.failed: Operation | None = None
        self.full = False
        self.ended = False
        self.on_ended: Callable[[], object] = lambda: None
        self.ignored: frozenset[str] = frozenset()
        self.sites: Counter[str] = Counter()
        self.before: Callable[[Operation], None] = lambda _: None

    # --- what a simulation does ---------------------------------------------------------------------------------

    def end(self) -> None:
        """End the process: what it holds open is dead, and its locks are free."""
        self.ended = True
        self._locks.clear()
        self.on_ended()

    def lose_power(self) -> None:
        """Forget what was not synced, or parts of it."""
        if not self.ended:
            self.end()
        self._root.lose_power(self._rng)

    def restart(self) -> None:
        """Let a new process begin, with nothing planned to fail."""
        self._life += 1
        self._locks.clear()
        self.operations = self.reads = self.die_at = self.fail_at = self.fail_read_at = 0
        self.ended = self.full = False
        self.failed = None
        self.on_ended = lambda: None

    def copy(self) -> "SimulatedDisk":
        """Another disk with the same files, all of it durable."""
        other = SimulatedDisk(Random(self._rng.random()))
        other._root = _copy(self._root)
        return other

    def files(self) -> dict[Path, int]:
        """Every file with its size."""
        return {path: len(inode.data) for path, inode in _walk(Path("/"), self._root)}

    def flip(self, path: Path, position: int, bit: int) -> None:
        """Flip a bit at rest."""
        self._inode(path).data[position] ^= 1 << bit

    def last_durable_write(self, path: Path) -> int:
        """Where the last `write_durably` to a file began."""
        return self._inode(path).last_durable_write

    def unsynced(self, path: Path) -> bool:
        """Whether a power failure may take something from a file's content."""
        inode = self._inode(path)
        return bool(inode.versions) or len(inode.sizes) > 1

    # --- Disk ---------------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> "_SimulatedFile":
        self._check_alive()
        directory = self._directory(path.parent)
        node = directory.names.get(path.name)
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            inode = _Inode()
            self._do(
                Operation("create", path),
                lambda: directory.change(_Change(None, path.name, inode)),
                grows=True,
            )
            return _SimulatedFile(self, inode, path, self._life)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        return _SimulatedFile(self, node, path, self._life)

    def names(self, directory: Path) -> list[str]:
        self._check_alive()
        try:
            return sorted(self._directory(directory).names)
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        self._check_alive()
        at = self._root
        for depth, name in enumerate(path.parts[1:], 1):
            node = at.names.get(name)
            if node is None:
                made = Path(*path.parts[: depth + 1])
                node = self._make_directory(at, name, made)
            if not isinstance(node, _Directory):
                raise _error(errno.ENOTDIR, path)
            at = node

    def _make_directory(self, parent: _Directory, name: str, path: Path) -> _Directory:
        directory = _Directory()
        self._do(
            Operation("make_directory", path),
            lambda: parent.change(_Change(None, name, directory)),
            grows=True,
        )
        self._sync(Operation("sync_directory", path.parent), "make_directory", parent.sync)
        return directory

    def rename(self, old: Path, new: Path) -> None:
        assert old.parent == new.parent, "names move within one directory only"
        directory = self._directory(old.parent)
        node = directory.names.get(old.name)
        if node is None:
            raise _error(errno.ENOENT, old)
        self._do(Operation("rename", new), lambda: directory.change(_Change(old.name, new.name, node)))

    def unlink(self, path: Path) -> None:
        directory = self._directory(path.parent)
        node = directory.names.get(path.name)
        if node is None:
            raise _error(errno.ENOENT, path)
        self._do(Operation("unlink", path), lambda: directory.change(_Change(path.name, None, node)))

    def sync_directory(self, path: Path) -> None:
        directory = self._directory(path)
        self._sync(Operation("sync_directory", path), "sync_directory", directory.sync)

    def lock(self, path: Path) -> File | None:
        file = self.open(path, create=True)
        if path in self._locks:
            return None
        self._locks.add(path)
        return file

    # --- operations ---------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self.ended:
            raise Ended

    def _do(
        self,
        operation: Operation,
        change: Callable[[], object],
        partly: Callable[[], object] = lambda: None,
        *,
        grows: bool = False,
    ) -> None:
        """Carry an operation out, or `partly` if the process ends in the middle of it or it fails."""
        self._check_alive()
        self.before(operation)
        self.operations += 1
        dies = self.operations == self.die_at
        if dies and self.die_phase != "after":
            if self.die_phase == "middle":
                partly()
            self.end()
            raise Ended
        if self.operations == self.fail_at:
            self.failed = operation
            partly()
            raise _error(errno.EIO, operation.path)
        if self.full and grows:
            partly()
            raise _error(errno.ENOSPC, operation.path)
        change()
        if dies:
            self.end()
            raise Ended

    def _sync(
        self,
        operation: Operation,
        call: str,
        change: Callable[[], object],
        failing: Callable[[], object] = lambda: None,
    ) -> None:
        site = _site(call)
        self.sites[site] += 1
        ignored = site in self.ignored

        def fail() -> None:
            if self.failed is not None and not ignored:
                failing()

        self._do(operation, (lambda: None) if ignored else change, fail)

    def _read(self, path: Path) -> None:
        self._check_alive()
        self.reads += 1
        if self.reads == self.fail_read_at:
            raise _error(errno.EIO, path)

    def _directory(self, path: Path) -> _Directory:
        self._check_alive()
        at = self._root
        for name in path.parts[1:]:
            node = at.names.get(name)
            if not isinstance(node, _Directory):
                raise _error(errno.ENOENT, path)
            at = node
        return at

    def _inode(self, path: Path) -> _Inode:
        at = self._root
        for name in path.parts[1:-1]:
            node = at.names[name]
            assert isinstance(node, _Directory)
            at = node
        inode = at.names[path.name]
        assert isinstance(inode, _Inode)
        return inode


class _SimulatedFile:
    __slots__ = ("_disk", "_inode", "_life", "_path")

    def __init__(self, disk: SimulatedDisk, inode: _Inode, path: Path, life: int) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._life = life

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        self._check_alive()
        data = b"".join(buffers)
        end = position + len(data)

        def partly() -> None:
            # Whole pages arrive, from the first one on.
            stop = self._disk._rng.randint(position // PAGE_BYTES, end // PAGE_BYTES) * PAGE_BYTES
            if stop > position:
                self._inode.write(data[: stop - position], position)

        self._disk._do(
            Operation("write", self._path),
            lambda: self._inode.write(data, position),
            partly,
            grows=end > len(self._inode.data),
        )

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        self.write_at(buffers, position)
        end = position + sum(map(len, buffers))
        self._disk._sync(
            Operation("sync", self._path),
            "write_durably",
            lambda: self._inode.sync_range(position, end),
            lambda: self._inode.fail_sync(self._disk._rng),
        )
        self._inode.last_durable_write = position

    def read_at(self, size: int, position: int) -> bytes:
        self._check_alive()
        self._disk._read(self._path)
        return bytes(self._inode.data[position : position + size])

    def size(self) -> int:
        self._check_alive()
        return len(self._inode.data)

    def allocate(self, size: int) -> None:
        self._check_alive()
        self._disk._do(
            Operation("allocate", self._path),
            lambda: self._inode.extend(size),
            grows=size > len(self._inode.data),
        )

    def truncate(self, size: int) -> None:
        self._check_alive()
        self._disk._do(Operation("truncate", self._path), lambda: self._inode.truncate(size))

    def sync(self) -> None:
        self._check_alive()
        self._disk._sync(
            Operation("sync", self._path),
            "sync",
            self._inode.sync,
            lambda: self._inode.fail_sync(self._disk._rng),
        )

    def close(self) -> None:
        if self._life == self._disk._life:
            self._disk._locks.discard(self._path)

    def _check_alive(self) -> None:
        if self._life != self._disk._life:
            raise Ended


def _site(call: str) -> str:
    """The place in the storage that makes a call."""
    frame = sys._getframe(2)
    while True:
        code = frame.f_code
        for part in _STORAGE:
            at = code.co_filename.rfind(part)
            if at >= 0:
                name = code.co_filename[at + len(f"{os.sep}pixy{os.sep}") :]
                return f"{name}:{code.co_qualname} {call}"
        if frame.f_back is None:
            return f"test {call}"
        frame = frame.f_back


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


def _copy(directory: _Directory) -> _Directory:
    copy = _Directory()
    for name, node in directory.names.items():
        if isinstance(node, _Directory):
            copy.names[name] = _copy(node)
        else:
            inode = _Inode(bytearray(node.data), last_durable_write=node.last_durable_write)
            inode.sync()
            copy.names[name] = inode
    copy.sync()
    return copy


def _walk(path: Path, directory: _Directory) -> list[tuple[Path, _Inode]]:
    found: list[tuple[Path, _Inode]] = []
    for name, node in sorted(directory.names.items()):
        if isinstance(node, _Directory):
            found += _walk(path / name, node)
        else:
            found.append((path / name, node))
    return found

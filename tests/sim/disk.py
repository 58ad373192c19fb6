"""An in-memory disk that loses or tears unsynced data, fails, and ends its process where a
simulation chooses.

It implements `pixy.storage.Disk` with two states: the one seen by a running process, and the one
left by a power failure.

- A file is pages of 4096 bytes in 512-byte sectors. A page that was written and not synced has,
  after a power failure, its old content, its new content, any content in between, or is torn: one
  of these up to a sector, another from there on.
- The length of a file is durable after a sync. Before that, any length since the last sync may be
  left. A truncation and its length are one change, as in a file system with a metadata journal.
- `write_durably` makes the written pages durable, and a length that covers them; nothing else of
  the file.
- Creations, renames and removals of names are durable after a `sync_directory` of their directory.
  Before that each is kept or lost independently, a rename as one; only changes of the same name are
  lost from the last one back. So nothing has two names except by a link, and a renamed file is not
  lost to its replacement. A linked file has one content under all its names.
- A directory is a name in its parent and has names of its own, made durable by two separate syncs.
  After a rename it has either name. A removed one may be back, with the names that a power failure
  leaves in it: an unlink in it is kept or lost independently of its own rename or removal. A
  directory whose own name is lost is gone with its content.
- A killed process loses nothing: the next one sees the same state, synced or not.
- A failed sync leaves pages in memory that no later sync writes, as on Linux.
- Space is counted by the lengths of files, holes included; names are free. A file that is unlinked,
  or replaced by a rename, keeps its space until it is closed; a power failure adjusts the space to
  the files that it removes and restores. Operations without enough space fail with ENOSPC or
  EDQUOT. Before that, a write may have been partly done and an `allocate` may have extended the
  file, at most by all free space. Without free space nothing can be created either, and nothing
  gets a name that is not there yet, as in a directory of ext4 whose blocks are full. Removing,
  replacing, truncating and overwriting need none.

Every call that changes something is a numbered operation. `die_at` and `fail_at` set the operation
at which the process ends or an error is returned. All randomness comes from one generator.

The road not taken: losing bytes reported as synced, or reordering across a sync. No software
survives that.
"""

import errno
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from pixy.storage.disk.disk import Buffer, File
from tests.sim.nodes import PAGE_BYTES, Change, Directory, Inode

_TAKES_ROOM = ("create", "make_directory", "write", "allocate", "link", "rename")
_STORAGE = tuple(os.sep + os.path.join("pixy", part) + os.sep for part in ("storage", "staging", "cluster"))


class Ended(BaseException):
    """Raised by a call in which the process ends."""


class Interruptible(Protocol):
    """A job that the disk can stop."""

    def between_calls(self) -> None:
        """Called before each call on the disk."""

    def kill(self) -> None:
        """End it, if it is stopped."""


Written = Callable[[Path, int, bytes], object]
"""Gets the file, the position and the data of a write."""


class Operation(NamedTuple):
    """A call that changes something: `create`, `make_directory`, `write`, `allocate`, `truncate`,
    `sync`, `rename`, `link`, `unlink`, `remove_directory`, `sync_directory`.
    """

    what: str
    path: Path


class SimulatedDisk:
    """An in-memory file system.

    Args:
        rng: source of all random choices.

    Attributes:
        operations: number of operations since the last `restart`.
        die_at, die_phase: the operation at which the process ends: `before`, in the `middle` of or
            `after` it.
        die_near: a kind of operation and a suffix of its file's name: the process ends at the first
            match, or soon after it.
        die_behind: a site and two numbers: that many of its syncs pass, and the process ends that
            many operations behind the next one; 0 for the sync itself.
        fail_at, fail_errno: the operation that fails, once, and its error. ENOSPC applies to
            operations that take space, and to syncs; others fail with EIO instead.
        fail_read_at: the read that fails, once, with ENOMEM: it is no damage.
        bytes_read: bytes read from files since the disk was created.
        failed: the operation hit by `fail_at`, unless it may be retried.
        refused: the operation hit that may be retried: not a sync, and failed for lack of space.
        room: free space in bytes; None without a limit.
        full: True if there is a limit; setting it to True leaves no space, setting it to False
            lifts the limit.
        ended: True once the process has ended. Until `restart` every call raises `Ended`.
        on_ended: called when the process ends.
        ignored: sites whose syncs are ignored.
        sites: number of syncs by site.
        before: called before every operation.
        on_writing, on_durable: called with file, position and data of each `write_durably`: before
            it, and once it is durable.
        jobs: jobs that may be stopped at each call. Stopped ones end with the process.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._root = Directory()
        self._locks: set[Path] = set()
        self._open: set[_SimulatedFile] = set()
        self._capacity: int | None = None
        self._life = 0
        self.operations = 0
        self.reads = 0
        self.bytes_read = 0
        self.die_at = 0
        self.die_phase = "before"
        self.die_near: tuple[str, str] | None = None
        self.die_behind: tuple[str, int, int] | None = None
        self.fail_at = 0
        self.fail_errno = errno.EIO
        self.fail_read_at = 0
        self.failed: Operation | None = None
        self.refused: Operation | None = None
        self.ended = False
        self.on_ended: Callable[[], object] = lambda: None
        self.ignored: frozenset[str] = frozenset()
        self.sites: Counter[str] = Counter()
        self.before: Callable[[Operation], None] = lambda _: None
        self.on_writing: Written = lambda *_: None
        self.on_durable: Written = lambda *_: None
        self.jobs: list[Interruptible] = []

    @property
    def room(self) -> int | None:
        return None if self._capacity is None else max(0, self._capacity - self._used())

    @room.setter
    def room(self, room: int | None) -> None:
        self._capacity = None if room is None else self._used() + room

    @property
    def full(self) -> bool:
        return self._capacity is not None

    @full.setter
    def full(self, full: bool) -> None:
        self.room = 0 if full else None

    # --- operations of a simulation ---------------------------------------------------------------

    def end(self) -> None:
        """End the process: its open files are closed, and its locks are released."""
        self.ended = True
        self._locks.clear()
        self._open.clear()
        self.on_ended()
        self._end_jobs()

    def lose_power(self) -> None:
        """Lose unsynced data, or parts of it."""
        if not self.ended:
            self.end()
        self._root.lose_power(self._rng)

    def restart(self) -> None:
        """Begin a new process, without planned failures."""
        self._end_jobs()
        self._life += 1
        self._locks.clear()
        self._open.clear()
        self.operations = self.reads = self.die_at = self.fail_at = self.fail_read_at = 0
        self.ended = self.full = False
        self.fail_errno = errno.EIO
        self.die_near = self.die_behind = self.failed = self.refused = None
        self.on_ended = lambda: None

    def copy(self) -> "SimulatedDisk":
        """A copy of the disk with the same files, all durable."""
        other = SimulatedDisk(Random(self._rng.random()))
        other._root = self._root.copy()
        return other

    def crashed(self, rng: Random) -> "SimulatedDisk":
        """A copy of the disk as a power failure at this moment might leave it."""
        other = SimulatedDisk(rng)
        other._root = self._root.copy(durable=False)
        other._root.lose_power(rng)
        return other

    def files(self) -> dict[Path, int]:
        """All files with their sizes."""
        return {path: len(inode.data) for path, inode in self._root.walk(Path("/"))}

    def inode(self, path: Path) -> Inode:
        """The file that has a name now, even if the name changes later."""
        at = self._root
        for name in path.parts[1:-1]:
            node = at.names[name]
            assert isinstance(node, Directory)
            at = node
        inode = at.names[path.name]
        assert isinstance(inode, Inode)
        return inode

    def aliases(self, inode: Inode) -> list[Path]:
        """All current names of a file."""
        return [path for path, other in self._root.walk(Path("/")) if other is inode]

    def flip(self, path: Path, position: int, bit: int) -> None:
        """Flip a bit at rest."""
        self.inode(path).data[position] ^= 1 << bit

    def last_durable_write(self, path: Path) -> int:
        """Start of the last `write_durably` to a file."""
        return self.inode(path).last_durable_write

    def unsynced(self, path: Path) -> bool:
        """True if a power failure may change a file's content."""
        inode = self.inode(path)
        return bool(inode.versions) or len(inode.sizes) > 1

    def is_durable(self, path: Path) -> bool:
        """True if a power failure changes neither a file nor its name."""
        at = self._root
        for name in path.parts[1:]:
            node = at.durable.get(name)
            if isinstance(node, Directory):
                at = node
            elif node is not None:
                return at.names.get(name) is node and not self.unsynced(path)
        return False

    # --- Disk -------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> "_SimulatedFile":
        self._enter()
        directory = self._directory(path.parent)
        node = directory.names.get(path.name)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            node = Inode()
            self._create(Operation("create", path), directory, node)
        file = _SimulatedFile(self, node, path, self._life)
        self._open.add(file)
        return file

    def names(self, directory: Path) -> list[str]:
        self._enter()
        try:
            return sorted(self._directory(directory).names)
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        self._enter()
        at = self._root
        for depth, name in enumerate(path.parts[1:], 1):
            node = at.names.get(name)
            made = Path(*path.parts[: depth + 1])
            if node is None:
                node = Directory()
                self._create(Operation("make_directory", made), at, node)
                self._sync_made(made, at)
            if not isinstance(node, Directory):
                raise _error(errno.ENOTDIR, made)
            at = node

    def _sync_made(self, made: Path, parent: Directory) -> None:
        try:
            self._sync(Operation("sync_directory", made.parent), "make_directory", parent.sync)
        except OSError as error:
            raise _error(errno.EIO, made) from error

    def rename(self, old: Path, new: Path) -> None:
        self._enter()
        assert old.parent == new.parent, f"{old} and {new} are not in one directory"
        directory, node = self._named(old)
        there = directory.names.get(new.name, node)
        if isinstance(there, Directory) and there is not node:
            # A real disk lets a directory replace an empty one. No code may rely on that.
            raise _error(errno.ENOTEMPTY if isinstance(node, Directory) else errno.EISDIR, new)
        if isinstance(node, Directory) and there is not node:
            raise _error(errno.ENOTDIR, new)

        def rename() -> None:
            if self.room == 0 and new.name not in directory.names:
                raise _error(errno.ENOSPC, new)
            directory.change(Change(old.name, new.name, node))

        self._do(Operation("rename", new), rename)

    def link(self, old: Path, new: Path) -> None:
        self._enter()
        _, node = self._named(old)
        if isinstance(node, Directory):
            raise _error(errno.EPERM, new)
        directory = self._directory(new.parent)
        if new.name in directory.names:
            raise _error(errno.EEXIST, new)
        self._create(Operation("link", new), directory, node)

    def unlink(self, path: Path) -> None:
        self._enter()
        directory, node = self._named(path)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        self._do(Operation("unlink", path), lambda: directory.change(Change(path.name, None, node)))

    def remove_directory(self, path: Path) -> None:
        self._enter()
        parent, node = self._named(path)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR, path)
        if node.names:
            raise _error(errno.ENOTEMPTY, path)
        self._do(Operation("remove_directory", path), lambda: parent.change(Change(path.name, None, node)))

    def sync_directory(self, path: Path) -> None:
        self._enter()
        directory = self._directory(path)
        self._sync(Operation("sync_directory", path), "sync_directory", directory.sync)

    def modified_ms(self, path: Path) -> int:
        """Files have no times, so they are never too old.

        Raises:
            OSError: always.
        """
        raise _error(errno.ENOENT, path)

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        """No effect, see `modified_ms`."""

    def open_file_limit(self) -> int:
        return 1024

    def device_bytes_read(self) -> int:
        """All reads count as reads from the device."""
        return self.bytes_read

    def lock(self, path: Path) -> File | None:
        file = self.open(path, create=True)
        if path in self._locks:
            return None
        self._locks.add(path)
        return file

    # --- operations -------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Begin a call: other jobs may run before it."""
        for job in list(self.jobs):
            job.between_calls()
        self._check_alive()

    def _end_jobs(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job.kill()

    def _check_alive(self) -> None:
        if self.ended:
            raise Ended

    def _do(
        self,
        operation: Operation,
        change: Callable[[], object],
        partly: Callable[[], object] = lambda: None,
        *,
        durable: bool = False,
    ) -> None:
        """Carry out an operation, or call `partly` if the process ends in the middle of it or it
        fails.

        Args:
            durable: True if it is part of a sync.
        """
        self._check_alive()
        self.before(operation)
        self.operations += 1
        if self.die_near is not None and not self.die_at:
            what, ending = self.die_near
            if operation.what == what and operation.path.name.endswith(ending):
                self.die_at = self.operations + self._rng.randrange(4)
        dies = self.operations == self.die_at
        if dies and self.die_phase != "after":
            if self.die_phase == "middle":
                partly()
            self.end()
            raise Ended
        if self.operations == self.fail_at:
            self._fail(operation, partly, durable=durable)
        change()
        if dies:
            self.end()
            raise Ended

    def _fail(self, operation: Operation, partly: Callable[[], object], *, durable: bool) -> None:
        number = self.fail_errno
        if number == errno.EIO or durable:
            self.failed = operation
        elif operation.what in _TAKES_ROOM:
            self.refused = operation
        else:
            self.failed, number = operation, errno.EIO
        partly()
        raise _error(number, operation.path)

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
        if self.die_behind is not None and self.die_behind[0] == site and not self.die_at:
            _, passing, behind = self.die_behind
            if passing:
                self.die_behind = site, passing - 1, behind
            else:
                self.die_at = self.operations + 1 + behind

        def fail() -> None:
            if self.failed is not None and not ignored:
                failing()

        self._do(operation, (lambda: None) if ignored else change, fail, durable=True)

    def _read(self, path: Path) -> None:
        self._check_alive()
        self.reads += 1
        if self.reads == self.fail_read_at:
            raise _error(errno.ENOMEM, path)

    def _create(self, operation: Operation, directory: Directory, node: Inode | Directory) -> None:
        def create() -> None:
            if self.room == 0:
                raise self._no_room(operation.path)
            directory.change(Change(None, operation.path.name, node))

        self._do(operation, create)

    def _used(self) -> int:
        inodes = [inode for _, inode in self._root.walk(Path("/"))] + [file.inode for file in self._open]
        return sum(len(inode.data) for inode in {id(inode): inode for inode in inodes}.values())

    def _last(self, inode: Inode, end: int) -> int:
        """The byte up to which there is space for a file, at most `end`."""
        room = self.room
        return end if room is None else min(end, len(inode.data) + room)

    def _reach(self, inode: Inode, first: int, end: int) -> int:
        """The end that a file reaches when it grows from byte `first` to `end`: `end`, or as far as
        there is space, or less.
        """
        last = self._last(inode, end)
        if last == end:
            return end
        last = max(first, last)
        return self._rng.choice((first, last, self._rng.randint(first, last)))

    def _no_room(self, path: Path) -> OSError:
        return _error(errno.EDQUOT if self._rng.random() < 0.25 else errno.ENOSPC, path)

    def _directory(self, path: Path) -> Directory:
        self._check_alive()
        at = self._root
        for name in path.parts[1:]:
            node = at.names.get(name)
            if not isinstance(node, Directory):
                raise _error(errno.ENOENT if node is None else errno.ENOTDIR, path)
            at = node
        return at

    def _named(self, path: Path) -> tuple[Directory, Inode | Directory]:
        """The node with a name, and its directory."""
        directory = self._directory(path.parent)
        node = directory.names.get(path.name)
        if node is None:
            raise _error(errno.ENOENT, path)
        return directory, node


class _SimulatedFile:
    __slots__ = ("_disk", "_life", "_path", "inode")

    def __init__(self, disk: SimulatedDisk, inode: Inode, path: Path, life: int) -> None:
        self._disk = disk
        self.inode = inode
        self._path = path
        self._life = life

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        self._check_alive()
        self._write(b"".join(buffers), position, durable=False)

    def write_direct(self, buffers: Sequence[Buffer], position: int) -> None:
        self.write_at(buffers, position)

    def _write(self, data: bytes, position: int, *, durable: bool) -> None:
        end = position + len(data)

        def partly() -> None:
            # Whole pages are written, from the first one on.
            stop = self._disk._rng.randint(position // PAGE_BYTES, end // PAGE_BYTES) * PAGE_BYTES
            stop = min(stop, self._disk._last(self.inode, end))
            if stop > position:
                self.inode.write(data[: stop - position], position)

        def write() -> None:
            stop = self._disk._reach(self.inode, position, end)
            self.inode.write(data[: stop - position], position)
            if stop < end:
                raise self._disk._no_room(self._path)

        self._disk._do(Operation("write", self._path), write, partly, durable=durable)

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        self._check_alive()
        data = b"".join(buffers)
        self._disk.on_writing(self._path, position, data)
        self._write(data, position, durable=True)

        def sync() -> None:
            if data:
                self.inode.sync_range(position, position + len(data))
            self._disk.on_durable(self._path, position, data)

        self._disk._sync(
            Operation("sync", self._path),
            "write_durably",
            sync,
            lambda: self.inode.fail_sync(self._disk._rng),
        )
        self.inode.last_durable_write = position

    def read_at(self, size: int, position: int) -> bytes:
        self._check_alive()
        self._disk._read(self._path)
        data = bytes(self.inode.data[position : position + size])
        self._disk.bytes_read += len(data)
        return data

    def size(self) -> int:
        self._check_alive()
        return len(self.inode.data)

    def allocate(self, size: int) -> None:
        self._check_alive()

        def allocate() -> None:
            stop = self._disk._reach(self.inode, len(self.inode.data), size)
            self.inode.extend(stop)
            if stop < size:
                raise self._disk._no_room(self._path)

        self._disk._do(Operation("allocate", self._path), allocate)

    def truncate(self, size: int) -> None:
        self._check_alive()
        self._disk._do(Operation("truncate", self._path), lambda: self.inode.truncate(size))

    def begin_sync(self) -> None:
        """Changes nothing: unsynced data may be on the disk at any time."""
        self._check_alive()

    def sync(self) -> None:
        self._check_alive()
        self._disk._sync(
            Operation("sync", self._path),
            "sync",
            self.inode.sync,
            lambda: self.inode.fail_sync(self._disk._rng),
        )

    def close(self) -> None:
        if self._life == self._disk._life:
            self._disk._locks.discard(self._path)
            self._disk._open.discard(self)

    def _check_alive(self) -> None:
        self._disk._enter()
        if self._life != self._disk._life:
            raise Ended


def _site(call: str) -> str:
    """The call site in the storage."""
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

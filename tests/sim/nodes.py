"""Files and directories of the simulated disk, each as seen by a process and as left by a power
failure.

They know nothing of paths, processes, space or faults: see `tests.sim.disk`, whose docstring
specifies the possible losses.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

PAGE_BYTES = 4096
SECTOR_BYTES = 512


class _Version(NamedTuple):
    """A possible content of a page after a power failure; `size_number` is the index of the file's
    length at that moment.
    """

    size_number: int
    truncated: bool
    content: bytes


class _Size(NamedTuple):
    number: int
    size: int


@dataclass(slots=True)
class Inode:
    """A file's content.

    Attributes:
        data: content as read by a process.
        sizes: lengths since the last sync, the durable one first. Invariant: the last one is that
            of `data`.
        versions: contents of each unsynced page, oldest first.
        stuck: unsynced pages that syncs no longer write after a failed one. Invariant: all are in
            `versions`.
        last_durable_write: position of the last `write_durably`.
    """

    data: bytearray = field(default_factory=bytearray)
    sizes: list[_Size] = field(default_factory=lambda: [_Size(0, 0)])
    versions: dict[int, list[_Version]] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)
    last_durable_write: int = 0

    def write(self, data: bytes, position: int) -> None:
        if not data:
            return  # which extends no file
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

    def copy(self, *, durable: bool = True) -> "Inode":
        """A copy with the same content, all durable, or as durable as this one."""
        copy = Inode(bytearray(self.data), last_durable_write=self.last_durable_write)
        if durable:
            copy.sync()
        else:
            copy.sizes, copy.stuck = list(self.sizes), set(self.stuck)
            copy.versions = {page: list(versions) for page, versions in self.versions.items()}
        return copy

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
    """Possible contents of a page with the file's length of that index: later truncations have not
    happened.
    """
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


class Change(NamedTuple):
    """An unsynced change of names: `new` becomes the name of `node`, and its name `old` is removed;
    either may be None.
    """

    old: str | None
    new: str | None
    node: "Node"


@dataclass(slots=True)
class Directory:
    """Names of a directory. `durable` is the state on stable storage, `pending` the changes since,
    oldest first.

    Invariant: `names` is `durable` with all of `pending` applied to it.
    """

    names: "dict[str, Node]" = field(default_factory=dict)
    durable: "dict[str, Node]" = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)

    def change(self, change: Change) -> None:
        _apply(self.names, change)
        self.pending.append(change)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending = []

    def lose_power(self, rng: Random) -> None:
        kept = rng.choice((0.0, 0.5, 1.0, rng.random()))
        forgotten: set[str | None] = set()
        for change in self.pending:
            touched = {change.old, change.new} - {None}
            # A change is kept only with the earlier changes of the same names.
            if rng.random() < kept and forgotten.isdisjoint(touched):
                _apply(self.durable, change)
            else:
                forgotten |= touched
        self.names, self.pending = dict(self.durable), []
        for node in self.names.values():
            node.lose_power(rng)

    def copy(self, copied: "dict[int, Node] | None" = None, *, durable: bool = True) -> "Directory":
        """A copy with the same names and files, all durable, or as durable as in this one. `copied`
        has the nodes already copied under another name.
        """
        copied = {} if copied is None else copied

        def copy_of(node: Node) -> Node:
            if id(node) not in copied:
                copied[id(node)] = (
                    node.copy(copied, durable=durable)
                    if isinstance(node, Directory)
                    else node.copy(durable=durable)
                )
            return copied[id(node)]

        copy = Directory({name: copy_of(node) for name, node in self.names.items()})
        if durable:
            copy.sync()
        else:
            copy.durable = {name: copy_of(node) for name, node in self.durable.items()}
            copy.pending = [change._replace(node=copy_of(change.node)) for change in self.pending]
        return copy

    def walk(self, path: Path) -> Iterator[tuple[Path, "Inode"]]:
        """All files in it and below, relative to `path`."""
        for name, node in sorted(self.names.items()):
            if isinstance(node, Directory):
                yield from node.walk(path / name)
            else:
                yield path / name, node


Node = Inode | Directory


def _apply(names: "dict[str, Node]", change: Change) -> None:
    if change.old is not None:
        del names[change.old]
    if change.new is not None:
        names[change.new] = change.node

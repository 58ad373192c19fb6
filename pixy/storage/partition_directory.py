"""Which directories below `topics` belong to which partition, and what becomes of those of deleted topics.

A partition's directory is `<topic>-<partition>`. Its file `identity`, durable before the first segment, says which raft group it
belongs to; raft groups are never used again, so what a deleted topic has left is never taken for that of a later one of the same
name. A deletion first renames the directory to `<raft group>-deleted`; the rest is left to `removal`.

What a directory is, is decided by `judge_partition_directory` alone, for a start and for a check of a stopped node's files.

    found at a start                                       done
    -----------------------------------------------------  ---------------------------------------------------
    absent       nothing                                   made by the first write
    own          its partition's identity                  taken
    deleted      the identity of a raft group that is no   left from a deletion: removed, said
                 more
    half deleted `<raft group>-deleted` of a raft group    left from a deletion: removed, said
                 that is no more
    half made    the name of a partition, no valid         left from a crash: removed, said
                 identity, and nothing else in it
    nameless     no valid identity, but other files        the name of a partition that there is: it is not
                                                           ready; else refused
    misplaced    the identity, or the name of a deletion,  the same
                 of another raft group that is there, or
                 never was
    foreign      the identity of another cluster           refused
    newer        an identity of a newer version            refused
    stray        a file, or a directory of any other name  refused
"""

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import structlog

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import PartitionIdentity
from pixy.storage.disk import Disk
from pixy.storage.identity import IDENTITY_PART, read_partition_identity

__all__ = [
    "DirectoryKind",
    "JudgedDirectory",
    "KnownPartitions",
    "SortedDirectories",
    "judge_partition_directory",
    "remove_with_files",
    "rename_partition_directory",
    "retire_partition_directory",
    "sort_partition_directories",
]

log = structlog.get_logger(__name__)

_PARTITION = re.compile(r".+-\d+")
_DELETED = re.compile(r"(\d+)-deleted")
_IDENTITY = "identity"


class DirectoryKind(Enum):
    """What a directory below `topics` is, by what a start does with it."""

    OWN = "taken"
    UNFINISHED = "left from a crash: removed"
    DELETED = "left from a deleted topic: removed"
    HALF_DELETED = "left from a deletion: removed"
    NOT_READY = "the partition of its name is not ready"
    REFUSED = "the start is refused"


class JudgedDirectory(NamedTuple):
    """What a directory is.

    Attributes:
        reason: what is wrong with it, empty if nothing is.
        raft_group: whose it was, if that is gone.
        nameless: whether it does not say whose it is.
    """

    kind: DirectoryKind
    reason: str = ""
    raft_group: int = 0
    nameless: bool = False


class KnownPartitions:
    """What directories are judged by.

    Args:
        live: the partitions that there are, by the name of their directory.
        cluster_id: this cluster.
        next_raft_group: raft groups from here on were never used.
    """

    def __init__(
        self, live: Mapping[str, PartitionIdentity], cluster_id: bytes, next_raft_group: int
    ) -> None:
        self._live = live
        self._used = {identity.raft_group for identity in live.values()}
        self._cluster_id = cluster_id
        self._next_raft_group = next_raft_group

    def is_gone(self, raft_group: int) -> bool:
        """Whether a raft group was that of a partition that is no more."""
        return raft_group not in self._used and raft_group < self._next_raft_group

    def judge(self, path: Path, identity: PartitionIdentity) -> JudgedDirectory:
        """Whose a directory with this identity is."""
        if identity.cluster_id != self._cluster_id:
            found = f"{path} belongs to cluster {identity.cluster_id.hex()}, this is {self._cluster_id.hex()}"
            return JudgedDirectory(DirectoryKind.REFUSED, found)
        if identity == self._live.get(path.name):
            return JudgedDirectory(DirectoryKind.OWN)
        if self.is_gone(identity.raft_group):
            return JudgedDirectory(DirectoryKind.DELETED, raft_group=identity.raft_group)
        return self.unusable(
            path, f"{path} belongs to raft group {identity.raft_group}, which is not its partition's"
        )

    def unusable(self, path: Path, reason: str, *, nameless: bool = False) -> JudgedDirectory:
        """Nobody can use it: the partition of its name is not ready, and if there is none, nobody knows what it is."""
        if path.name in self._live:
            return JudgedDirectory(DirectoryKind.NOT_READY, reason, nameless=nameless)
        return JudgedDirectory(DirectoryKind.REFUSED, f"{reason}; no topic has a partition {path.name}")


class SortedDirectories(NamedTuple):
    """What there is below `topics`.

    Attributes:
        found: the names of partitions that are known; with what is wrong if the directory is not that partition's.
        retired: what deletions have left, renamed and not durably so; to be removed.
    """

    found: dict[str, CorruptData | None]
    retired: list[Path]


def sort_partition_directories(disk: Disk, topics: Path, known: KnownPartitions) -> SortedDirectories:
    """Tell what there is, and take the names of what deletions and crashes have left. Blocks.

    Args:
        topics: where the directories are.
        known: what there should be.

    Raises:
        DataDirectoryError: something that does not belong here; nothing of it was changed.
        OSError: the disk refuses.
    """
    sorting = _Sorting(disk, known)
    # What is left of deletions comes first: a name may be wanted for what another one has left.
    for name in sorted(disk.names(topics), key=lambda name: _DELETED.fullmatch(name) is None):
        sorting.sort(topics / name)
    if sorting.retired:
        first, count = str(next(iter(sorting.retired))), len(sorting.retired)
        log.warning("removing what the deletion of topics has left", first=first, directories=count)
    return SortedDirectories(sorting.found, list(sorting.retired))


def retire_partition_directory(disk: Disk, path: Path, identity: PartitionIdentity) -> Path | None:
    """Rename the directory of a partition that is no more, if there is one; `removal` makes that durable, and removes it. Blocks.

    One that says it belongs to another raft group stays: the next start refuses it.

    Returns:
        What it is called now, None if nothing was renamed.

    Raises:
        OSError: it still has its name.
    """
    files = disk.names(path)
    if not files:
        return None
    try:
        found = _read_identity(disk, path, files)
        misplaced = found != identity
    except CorruptData:
        misplaced = False
    except DataDirectoryError:
        misplaced = True
    if misplaced:
        log.error("a deleted topic's directory is another's, and stays", directory=str(path))
        return None
    return rename_partition_directory(disk, path, identity.raft_group)


def rename_partition_directory(disk: Disk, path: Path, raft_group: int) -> Path:
    """Rename a directory to `<raft group>-deleted`; returns what it is called now. Blocks."""
    gone = path.with_name(f"{raft_group}-deleted")
    disk.rename(path, gone)
    return gone


class _Sorting:
    """One pass over the directories at a start; see `sort_partition_directories`."""

    def __init__(self, disk: Disk, known: KnownPartitions) -> None:
        self._disk = disk
        self._known = known
        self.found: dict[str, CorruptData | None] = {}
        # A set that remembers the order.
        self.retired: dict[Path, None] = {}

    def sort(self, path: Path) -> None:
        found = judge_partition_directory(self._disk, path, self._known)
        match found.kind:
            case DirectoryKind.OWN:
                self.found[path.name] = None
            case DirectoryKind.NOT_READY:
                self.found[path.name] = CorruptData(found.reason)
            case DirectoryKind.REFUSED:
                raise DataDirectoryError(f"{found.reason}; move it out of the way")
            case DirectoryKind.DELETED:
                self._retire(path, found.raft_group)
            case DirectoryKind.HALF_DELETED:
                self.retired[path] = None
            case DirectoryKind.UNFINISHED:
                log.warning(
                    "removing a partition's directory that a crash left unfinished", directory=str(path)
                )
                remove_with_files(self._disk, path)

    def _retire(self, path: Path, raft_group: int) -> None:
        left = path.with_name(f"{raft_group}-deleted")
        if left in self.retired:
            # Somebody has copied it: no deletion leaves both.
            remove_with_files(self._disk, left)
        self.retired[rename_partition_directory(self._disk, path, raft_group)] = None


def judge_partition_directory(disk: Disk, path: Path, known: KnownPartitions) -> JudgedDirectory:
    """Tell what a directory below `topics` is, and change nothing. Blocks.

    Raises:
        DataDirectoryError: a newer release wrote it.
        OSError: it cannot be read.
    """
    try:
        files = disk.names(path)
    except NotADirectoryError:
        return JudgedDirectory(DirectoryKind.REFUSED, f"{path} is not a directory")
    deleted = _DELETED.fullmatch(path.name)
    if deleted is not None:
        if known.is_gone(int(deleted[1])):
            return JudgedDirectory(DirectoryKind.HALF_DELETED)
        return known.unusable(path, f"{path} is left from a deletion that never was")
    if _PARTITION.fullmatch(path.name) is None:
        return JudgedDirectory(DirectoryKind.REFUSED, f"{path} is not a partition's directory")
    return _judge_partition(disk, path, files, known)


def _judge_partition(disk: Disk, path: Path, files: list[str], known: KnownPartitions) -> JudgedDirectory:
    try:
        identity = _read_identity(disk, path, files)
    except CorruptData as error:
        if set(files) <= {_IDENTITY, IDENTITY_PART}:
            return JudgedDirectory(DirectoryKind.UNFINISHED)
        return known.unusable(path, str(error), nameless=True)
    return known.judge(path, identity)


def _read_identity(disk: Disk, path: Path, files: list[str]) -> PartitionIdentity:
    if _IDENTITY not in files:
        raise CorruptData(f"{path / _IDENTITY} is missing")
    return read_partition_identity(disk, path / _IDENTITY)


def remove_with_files(disk: Disk, path: Path) -> None:
    """Remove a directory that is needed no more, and its files. What cannot be removed is said, and goes at the next start. Blocks."""
    try:
        for name in disk.names(path):
            disk.unlink(path / name)
        disk.remove_directory(path)
    except OSError as error:
        log.error("cannot remove a directory that is needed no more", directory=str(path), error=str(error))

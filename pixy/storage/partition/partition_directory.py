"""Ownership of the directories below `topics`, and the leftovers of deleted topics.

The directory of a partition is `<topic>-<partition>`. Its file `identity`, durable before the first
segment, has the raft group that owns it. Raft groups are never reused, so the directory of a
deleted topic is never mistaken for that of a later topic with the same name. A deletion first
renames the directory to `<raft group>-deleted`; `removal` does the rest. A disk too full for the
new name loses the directory at its own: the identity goes last, so what a crash leaves of it still
belongs to a removed raft group.

A replica that is copied gets its files in `<raft group>-copy`. Once they are its log, that becomes
the name of the partition, and the former directory `<raft group>-replaced` (`pixy.copies`). Both
names of a partition that is gone are leftovers of a deletion.

A replica that departs leaves its partition to other nodes. When the journal says that it is gone,
its directory gets the name `<raft group>-replaced`, too. It may come back, and has no files then.

`judge_partition_directory` alone decides about a directory, at startup and in a check of a stopped
node's files.

    found at startup                                       done
    -----------------------------------------------------  -----------------------------------------
    absent       nothing                                   made by the first write
    own          its partition's identity                  accepted
    deleted      the identity of a removed raft group      left by a deletion: removed, logged
    half deleted `<raft group>-deleted` of a removed raft  left by a deletion: removed, logged
                 group
    departed     the identity of a partition elsewhere, or  left by a replica that has departed:
                 of a replica here that has come back       removed, logged
    copy         `<raft group>-copy` of a partition here   a copy that is under way: kept
    replaced     `<raft group>-replaced` of a partition    left by an installed copy: removed
    half made    the name of a partition, no valid         left by a crash: removed, logged
                 identity, and nothing else in it
    nameless     no valid identity, but other files        the existing partition of that name is
                                                           not ready; refused if there is none
    misplaced    the identity, or the name of a deletion,  the same
                 of another raft group that exists, or
                 never did
    foreign      the identity of another cluster           refused
    newer        an identity of a newer version            refused
    stray        a file, or a directory of any other name  refused
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import structlog

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import PartitionIdentity
from pixy.storage.disk import (
    IDENTITY_PART,
    Disk,
    is_disk_full,
    lost_is_corrupt,
    read_partition_identity,
    sync_is_final,
)

log = structlog.get_logger(__name__)

_PARTITION = re.compile(r".+-\d+")
_OTHERS = re.compile(r"(\d+)-(deleted|copy|replaced)")
_IDENTITY = "identity"


class DirectoryKind(Enum):
    """Kind of a directory below `topics`; the value is the startup's decision."""

    OWN = "taken"
    UNFINISHED = "left from a crash: removed"
    DELETED = "left from a deleted topic: removed"
    HALF_DELETED = "left from a deletion: removed"
    DEPARTED = "left from a replica that went to other nodes: removed"
    COPY = "a copy that is under way: kept"
    REPLACED = "left from a copy that was installed: removed"
    NOT_READY = "the partition of its name is not ready"
    REFUSED = "the start is refused"


class JudgedDirectory(NamedTuple):
    """The decision about a directory.

    Attributes:
        reason: the fault in words, empty if there is none.
        raft_group: the former owner, if its partition was deleted, or its replica has departed.
        nameless: True if the directory has no valid identity.
    """

    kind: DirectoryKind
    reason: str = ""
    raft_group: int = 0
    nameless: bool = False


class KnownPartitions:
    """Partitions known to the cluster, which directories are compared with.

    Args:
        live: the existing partitions, by directory name.
        cluster_id: the id of this cluster.
        next_raft_group: the first raft group that was never used.
        departed: raft groups of partitions whose replicas here have departed, or have come back and
            have no files yet.
    """

    def __init__(
        self,
        live: Mapping[str, PartitionIdentity],
        cluster_id: bytes,
        next_raft_group: int,
        departed: Collection[int] = (),
    ) -> None:
        self._live = live
        self._used = {identity.raft_group for identity in live.values()}
        self._cluster_id = cluster_id
        self._next_raft_group = next_raft_group
        self._departed = frozenset(departed)

    def is_gone(self, raft_group: int) -> bool:
        """True if a raft group belonged to a partition that was deleted."""
        return raft_group not in self._used and raft_group < self._next_raft_group

    def is_here(self, raft_group: int) -> bool:
        """True if a raft group belongs to an existing partition."""
        return raft_group in self._used

    def judge(self, path: Path, identity: PartitionIdentity) -> JudgedDirectory:
        """Decide about a directory with this identity."""
        if identity.cluster_id != self._cluster_id:
            found = f"{path} belongs to cluster {identity.cluster_id.hex()}, this is {self._cluster_id.hex()}"
            return JudgedDirectory(DirectoryKind.REFUSED, found)
        if identity.raft_group in self._departed:
            return JudgedDirectory(DirectoryKind.DEPARTED, raft_group=identity.raft_group)
        if identity == self._live.get(path.name):
            return JudgedDirectory(DirectoryKind.OWN)
        if self.is_gone(identity.raft_group):
            return JudgedDirectory(DirectoryKind.DELETED, raft_group=identity.raft_group)
        return self.unusable(
            path, f"{path} belongs to raft group {identity.raft_group}, which is not its partition's"
        )

    def unusable(self, path: Path, reason: str, *, nameless: bool = False) -> JudgedDirectory:
        """Decide about an unusable directory: a partition of its name is not ready, else refuse."""
        if path.name in self._live:
            return JudgedDirectory(DirectoryKind.NOT_READY, reason, nameless=nameless)
        return JudgedDirectory(DirectoryKind.REFUSED, f"{reason}; no topic has a partition {path.name}")


class SortedDirectories(NamedTuple):
    """The directories below `topics`.

    Attributes:
        found: names of known partitions, with the error if the directory is not that partition's.
        retired: leftovers of deletions, departures and copies, renamed but not yet durably; to be
            removed.
    """

    found: dict[str, CorruptData | None]
    retired: list[Path]


def sort_partition_directories(disk: Disk, topics: Path, known: KnownPartitions) -> SortedDirectories:
    """Sort the directories, and rename or remove the leftovers of deletions and crashes. Blocks.

    Args:
        topics: the parent of the directories.
        known: the partitions of the cluster.

    Raises:
        DataDirectoryError: a foreign file or directory, which was not changed.
        OSError: the disk has failed.
    """
    sorting = _Sorting(disk, known)
    # Renamed leftovers come first: another directory may have to take such a name.
    for name in sorted(disk.names(topics), key=lambda name: _OTHERS.fullmatch(name) is None):
        sorting.sort(topics / name)
    if sorting.retired:
        first, count = str(next(iter(sorting.retired))), len(sorting.retired)
        log.warning(
            "removing what deleted topics and departed replicas have left", first=first, directories=count
        )
    return SortedDirectories(sorting.found, [*sorting.retired, *sorting.replaced])


def retire_partition_directory(
    disk: Disk, path: Path, identity: PartitionIdentity, gone: Path
) -> Path | None:
    """Rename the directory of a partition that is deleted, or elsewhere, to `gone`, if there is
    one. Blocks.

    `removal` makes that durable and removes it. The directory of another raft group stays: the next
    start refuses it.

    Returns:
        The new path, None if there is nothing to remove.

    Raises:
        OSError: as `rename_partition_directory`.
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
    return rename_partition_directory(disk, path, gone)


def rename_partition_directory(disk: Disk, path: Path, gone: Path) -> Path | None:
    """Rename a directory, or remove it if the disk is too full. Blocks.

    Returns:
        The new path, None if the directory was removed.

    Raises:
        OSError: the directory was not renamed, or a sync has failed.
    """
    try:
        disk.rename(path, gone)
    except OSError as error:
        if not is_disk_full(error):
            raise
        _remove_in_place(disk, path)
        return None
    return gone


def deleted_directory(topics: Path, raft_group: int) -> Path:
    """Directory of a deleted partition, to be removed."""
    return topics / f"{raft_group}-deleted"


def copy_directory(topics: Path, raft_group: int) -> Path:
    """Directory of the copy of a partition that is under way."""
    return topics / f"{raft_group}-copy"


def replaced_directory(topics: Path, raft_group: int) -> Path:
    """Directory of a partition that a copy has replaced, or that is elsewhere, to be removed."""
    return topics / f"{raft_group}-replaced"


class _Sorting:
    """One pass over the directories at startup; see `sort_partition_directories`."""

    def __init__(self, disk: Disk, known: KnownPartitions) -> None:
        self._disk = disk
        self._known = known
        self.found: dict[str, CorruptData | None] = {}
        # An ordered set.
        self.retired: dict[Path, None] = {}
        self.replaced: list[Path] = []

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
                self._retire(path, deleted_directory(path.parent, found.raft_group))
            case DirectoryKind.DEPARTED:
                self._retire(path, replaced_directory(path.parent, found.raft_group))
            case DirectoryKind.COPY:
                pass
            case DirectoryKind.REPLACED:
                self.replaced.append(path)
            case DirectoryKind.HALF_DELETED:
                self.retired[path] = None
            case DirectoryKind.UNFINISHED:
                log.warning(
                    "removing a partition's directory that a crash left unfinished", directory=str(path)
                )
                _remove_with_files(self._disk, path)

    def _retire(self, path: Path, left: Path) -> None:
        if left in self.retired or left in self.replaced:
            # Of an earlier departure. No deletion leaves both: the directory was copied by hand.
            _remove_with_files(self._disk, left)
        gone = rename_partition_directory(self._disk, path, left)
        if gone is not None:
            self.retired[gone] = None


def judge_partition_directory(disk: Disk, path: Path, known: KnownPartitions) -> JudgedDirectory:
    """Decide about a directory below `topics`, without a change to it. Blocks.

    Raises:
        DataDirectoryError: a newer release wrote it.
        OSError: the directory cannot be read.
    """
    unlisted = ""
    try:
        with lost_is_corrupt(path):
            files = disk.names(path)
    except NotADirectoryError:
        return JudgedDirectory(DirectoryKind.REFUSED, f"{path} is not a directory")
    except CorruptData as error:
        unlisted = str(error)
    found = _OTHERS.fullmatch(path.name)
    if found is not None:
        return _judge_other(path, int(found[1]), found[2], known)
    if _PARTITION.fullmatch(path.name) is None:
        return JudgedDirectory(DirectoryKind.REFUSED, f"{path} is not a partition's directory")
    if unlisted:
        return known.unusable(path, unlisted)
    return _judge_partition(disk, path, files, known)


def _judge_other(path: Path, raft_group: int, kind: str, known: KnownPartitions) -> JudgedDirectory:
    """Decide about a directory that has the name of a deletion, or of a copy."""
    if kind != "deleted" and known.is_here(raft_group):
        return JudgedDirectory(DirectoryKind.COPY if kind == "copy" else DirectoryKind.REPLACED)
    if known.is_gone(raft_group):
        return JudgedDirectory(DirectoryKind.HALF_DELETED)
    left = "a deletion" if kind == "deleted" else "a copy of a partition"
    return known.unusable(path, f"{path} is left from {left} that never was")


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
    with lost_is_corrupt(path / _IDENTITY):
        return read_partition_identity(disk, path / _IDENTITY)


def _remove_in_place(disk: Disk, path: Path) -> None:
    """Remove the directory of a deleted partition, its identity durably after all other files.

    Blocks. A failure is logged; the next start removes the rest.

    Raises:
        OSError: the sync has failed; the identity is still there.
    """
    log.warning("no room for another name of a directory, removing it at once", directory=str(path))
    try:
        for name in disk.names(path):
            if name != _IDENTITY:
                with suppress(FileNotFoundError):  # the removal of retired segments goes on
                    disk.unlink(path / name)
    except OSError as error:
        _log_failure(path, error)
        return
    with sync_is_final():
        disk.sync_directory(path)
    _remove_with_files(disk, path)


def _remove_with_files(disk: Disk, path: Path) -> None:
    """Remove an obsolete directory and its files. Blocks.

    A failure is logged; the next start removes the rest.
    """
    try:
        for name in disk.names(path):
            disk.unlink(path / name)
        disk.remove_directory(path)
    except OSError as error:
        _log_failure(path, error)


def _log_failure(path: Path, error: OSError) -> None:
    log.error("cannot remove a directory that is needed no more", directory=str(path), error=str(error))

"""Which directories below `topics` belong to which partition, and what becomes of those of deleted topics.

A partition's directory is `<topic>-<partition>`. Its file `identity`, durable before the first segment, says which raft group it
belongs to; raft groups are never used again, so what a deleted topic has left is never taken for that of a later one of the same
name. A deletion first renames the directory to `<raft group>-deleted`, durably, and then removes it piece by piece.

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
from pathlib import Path

import structlog

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import PartitionIdentity
from pixy.storage.disk import Disk
from pixy.storage.identity import IDENTITY_PART, read_partition_identity

__all__ = ["remove_partition_directory", "sort_partition_directories"]

log = structlog.get_logger(__name__)

_PARTITION = re.compile(r".+-\d+")
_DELETED = re.compile(r"(\d+)-deleted")
_IDENTITY = "identity"


def sort_partition_directories(
    disk: Disk, topics: Path, live: Mapping[str, PartitionIdentity], cluster_id: bytes, next_raft_group: int
) -> dict[str, CorruptData | None]:
    """Remove what deletions and crashes have left, and tell what there is. Blocks.

    Args:
        topics: where the directories are.
        live: the partitions that there are, by the name of their directory.
        cluster_id: this cluster.
        next_raft_group: raft groups from here on were never used.

    Returns:
        The names that are there, of those in `live`; with what is wrong if it is not that partition's.

    Raises:
        DataDirectoryError: something that does not belong here; nothing of it was changed.
        OSError: the disk refuses.
    """
    sorting = _Sorting(disk, live, cluster_id, next_raft_group)
    # What is left of deletions goes first: a name may be wanted for what another one has left.
    for name in sorted(disk.names(topics), key=lambda name: _DELETED.fullmatch(name) is None):
        sorting.sort(topics / name)
    return sorting.found


def remove_partition_directory(disk: Disk, path: Path, identity: PartitionIdentity) -> None:
    """Remove the directory of a partition that is no more, if there is one; of its name at once. Blocks.

    One that says it belongs to another raft group stays: the next start refuses it. What cannot be removed is said, and left to the
    next start.

    Raises:
        OSError: it still has its name.
    """
    files = disk.names(path)
    if not files:
        return
    try:
        found = _read_identity(disk, path, files)
        misplaced = found != identity
    except CorruptData:
        misplaced = False
    except DataDirectoryError:
        misplaced = True
    if misplaced:
        log.error("a deleted topic's directory is another's, and stays", directory=str(path))
    else:
        _rename_and_remove(disk, path, identity.raft_group)


class _Sorting:
    """One pass over the directories at a start; see `sort_partition_directories`."""

    def __init__(
        self, disk: Disk, live: Mapping[str, PartitionIdentity], cluster_id: bytes, next_raft_group: int
    ) -> None:
        self._disk = disk
        self._live = live
        self._used = {identity.raft_group for identity in live.values()}
        self._cluster_id = cluster_id
        self._next_raft_group = next_raft_group
        self.found: dict[str, CorruptData | None] = {}

    def sort(self, path: Path) -> None:
        try:
            files = self._disk.names(path)
        except NotADirectoryError as error:
            raise DataDirectoryError(f"{path} is not a directory; move it out of the way") from error
        deleted = _DELETED.fullmatch(path.name)
        if deleted is not None:
            self._sort_deleted(path, int(deleted[1]))
        elif _PARTITION.fullmatch(path.name) is None:
            raise DataDirectoryError(f"{path} is not a partition's directory; move it out of the way")
        else:
            self._sort_partition(path, files)

    def _sort_deleted(self, path: Path, raft_group: int) -> None:
        if not self._is_gone(raft_group):
            self._damaged(path, CorruptData(f"{path} is left from a deletion that never was"))
        log.warning("removing what the deletion of a topic has left", directory=str(path))
        _remove(self._disk, path)

    def _sort_partition(self, path: Path, files: list[str]) -> None:
        try:
            identity = _read_identity(self._disk, path, files)
        except CorruptData as error:
            if set(files) <= {_IDENTITY, IDENTITY_PART}:
                log.warning(
                    "removing a partition's directory that a crash left unfinished", directory=str(path)
                )
                _remove(self._disk, path)
            else:
                self._damaged(path, error)
            return
        if identity.cluster_id != self._cluster_id:
            raise DataDirectoryError(
                f"{path} belongs to cluster {identity.cluster_id.hex()}, this is {self._cluster_id.hex()}; "
                "move it out of the way"
            )
        if identity == self._live.get(path.name):
            self.found[path.name] = None
        elif self._is_gone(identity.raft_group):
            log.warning("removing what a deleted topic has left", directory=str(path))
            _rename_and_remove(self._disk, path, identity.raft_group)
        else:
            reason = f"{path} belongs to raft group {identity.raft_group}, which is not its partition's"
            self._damaged(path, CorruptData(reason))

    def _is_gone(self, raft_group: int) -> bool:
        return raft_group not in self._used and raft_group < self._next_raft_group

    def _damaged(self, path: Path, error: CorruptData) -> None:
        if path.name not in self._live:
            raise DataDirectoryError(f"{error}; no topic has a partition {path.name}: move it out of the way")
        self.found[path.name] = error


def _read_identity(disk: Disk, path: Path, files: list[str]) -> PartitionIdentity:
    if _IDENTITY not in files:
        raise CorruptData(f"{path / _IDENTITY} is missing")
    return read_partition_identity(disk, path / _IDENTITY)


def _rename_and_remove(disk: Disk, path: Path, raft_group: int) -> None:
    gone = path.with_name(f"{raft_group}-deleted")
    disk.rename(path, gone)
    # Without its name nobody takes what is left of it for something whole.
    disk.sync_directory(path.parent)
    _remove(disk, gone)


def _remove(disk: Disk, path: Path) -> None:
    try:
        for name in disk.names(path):
            disk.unlink(path / name)
        disk.remove_directory(path)
    except OSError as error:
        log.error("cannot remove a directory that is needed no more", directory=str(path), error=str(error))

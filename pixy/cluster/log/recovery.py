"""The blocking part of a node's start: locks the data directory, reads its identity and journal."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pixy.cluster.state import FIRST_NODE
from pixy.errors import DataDirectoryError
from pixy.proto.state_pb2 import NodeIdentity
from pixy.storage import (
    Disk,
    File,
    RecoveredGroup,
    RecoveredJournal,
    load_identity,
    recover_journal,
    write_identity,
)

RESTORING = "restoring"
"""Marker in a directory into which a backup is restored: no start takes it."""
WHY_RESTORING = "the restore of a backup into it has not ended: run `pixy restore` once more"

_BEHIND_THE_JOURNAL = ("topics", "state", "staging", "pieces")
"""Directories of which the journal says what they mean."""


class DataDirectory(NamedTuple):
    """A node's data directory, and the id of its cluster."""

    disk: Disk
    path: Path
    cluster_id: bytes


class EnteredDirectory(NamedTuple):
    """A data directory that is locked until `lock` is closed."""

    lock: File
    identity: NodeIdentity


@dataclass(slots=True)
class RecoveredNode:
    """Contents of a data directory, locked until `lock` is closed."""

    lock: File
    identity: NodeIdentity
    journal: RecoveredJournal

    def group(self, raft_group: int) -> RecoveredGroup:
        """Records of one raft group in the journal, perhaps none."""
        return self.journal.groups.get(raft_group) or RecoveredGroup(raft_group)


def cluster_id_of(identity: NodeIdentity) -> bytes:
    """Id of a node's cluster, as other nodes and clients know it. Files may have an older one."""
    return identity.new_cluster_id or identity.cluster_id


def enter_directory(
    disk: Disk,
    directory: Path,
    random_bytes: Callable[[int], bytes],
    *,
    joins: bool,
    restores: bool = False,
) -> EnteredDirectory:
    """Lock the data directory of a node and read its identity. Blocks.

    An empty directory becomes that of a new cluster's first node.

    Args:
        joins: an empty directory becomes that of a node without a cluster instead, which is to find
            one: `NodeIdentity.cluster_id` is empty.
        restores: a backup is restored into it; else it is refused until that has ended.

    Raises:
        DataDirectoryError: it is in use, not writable, foreign or of a newer release.
        CorruptData: durable data is damaged.
    """
    try:
        disk.make_directory(directory)
        lock = disk.lock(directory / "lock")
    except OSError as error:
        raise DataDirectoryError(
            f"data directory {directory} cannot be used: {error.filename}: {error.strerror}"
        ) from error
    if lock is None:
        raise DataDirectoryError(f"data directory {directory} is in use by another process")
    try:
        founder = NodeIdentity(cluster_id=random_bytes(16), node_id=FIRST_NODE)
        new = NodeIdentity() if joins else founder
        names = disk.names(directory)
        if RESTORING in names and not restores:
            raise DataDirectoryError(f"{directory}: {WHY_RESTORING}")
        if "identity" not in names:
            _sync_ancestors(disk, directory)
            new.secret = random_bytes(16)
        identity = load_identity(disk, directory, new)
        if not identity.cluster_id:
            identity = _candidate(disk, directory, identity, founder, joins=joins)
        return EnteredDirectory(lock, identity)
    except OSError as error:
        lock.close()
        raise DataDirectoryError(f"data directory {directory} cannot be used: {error}") from error
    except BaseException:
        lock.close()
        raise


def _candidate(
    disk: Disk, directory: Path, found: NodeIdentity, founder: NodeIdentity, *, joins: bool
) -> NodeIdentity:
    """Durable identity of a node that belongs to no cluster: others may register its secret."""
    if joins:
        # A start that was killed may have left the name of the file to the system.
        disk.sync_directory(directory)
        return found
    # The join list was taken from its configuration.
    founder.secret = found.secret
    write_identity(disk, directory, founder)
    return founder


def recover_node(
    disk: Disk, directory: Path, random_bytes: Callable[[int], bytes], *, restores: bool = False
) -> RecoveredNode:
    """Lock and read the data directory of a node. Blocks.

    An empty directory becomes that of a new cluster's first node.

    Args:
        restores: as in `enter_directory`.

    Raises:
        DataDirectoryError, CorruptData: as `enter_directory` and `read_directory`.
    """
    entered = enter_directory(disk, directory, random_bytes, joins=False, restores=restores)
    try:
        return read_directory(disk, directory, entered)
    except BaseException:
        entered.lock.close()
        raise


def read_directory(disk: Disk, directory: Path, entered: EnteredDirectory) -> RecoveredNode:
    """Read the data directory of a node, which stays locked. Blocks.

    Raises:
        DataDirectoryError: it is not writable, foreign or of a newer release.
        CorruptData: durable data is damaged.
    """
    lock, identity = entered
    try:
        _sync_directories(disk, directory)
        disk.make_directory(directory / "journal")
        owner = (identity.cluster_id, identity.node_id)
        journal = recover_journal(disk, directory / "journal", owner)
        _check_not_lost(disk, directory, journal)
    except OSError as error:
        raise DataDirectoryError(f"data directory {directory} cannot be used: {error}") from error
    return RecoveredNode(lock, identity, journal)


def _sync_ancestors(disk: Disk, directory: Path) -> None:
    """Make the names of the directory and of those above it durable.

    A start that created them may have ended before.
    """
    for path in directory.absolute().parents:
        try:
            disk.sync_directory(path)
        except OSError as error:
            # A directory that we may not read, or that cannot be synced, was not created by us.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL):
                raise


def _sync_directories(disk: Disk, directory: Path) -> None:
    """Sync names that may not be on stable storage yet, if only the process ended and not the
    machine.
    """
    names = disk.names(directory)
    disk.sync_directory(directory)
    for name in _BEHIND_THE_JOURNAL:
        if name in names:
            disk.sync_directory(directory / name)


def _check_not_lost(disk: Disk, directory: Path, journal: RecoveredJournal) -> None:
    """Refuse a directory without a journal but with other data.

    A node writes the journal before anything else, and never removes its newest file.
    """
    if journal.files:
        return
    for name in _BEHIND_THE_JOURNAL:
        if name in disk.names(directory):
            raise DataDirectoryError(
                f"{directory / 'journal'} has no journal files, although {directory} has {name!r}"
            )

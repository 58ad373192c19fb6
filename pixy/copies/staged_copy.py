"""A copy of a partition on its way: the directory `<raft group>-copy`, beside the partition's own.

It has segments as the log of any partition has, so that it becomes that log by a rename, and the
file `copy` with a manifest (`CopyManifest`):

    the manifest     the directory has               and a start
    ---------------  ------------------------------  -----------------------------------------------
    is missing, or   nothing that counts             leaves it; the next copy begins it anew
    damaged
    has `copied`     synced records up to there,     leaves it; the next copy goes on with it, cut
                     perhaps more                    back to there
    has `complete`   the whole log of the replica    replaces the partition's directory by it, if
    too              at that applied position        the journal has the same applied position
                                                     (`directory_swap`), else as above

A replica that has the first records keeps them: its own segments get a second name here. They are
synced, and no more is written to them, neither there (it waits for the copy) nor here (the newest
segment is another one). So a copy is a whole directory, whatever was fetched for it.

Before the manifest says that the directory is complete, it is opened as a start would open it. All
methods block, and are called by one worker at a time.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.copies_pb2 import CopyManifest
from pixy.proto.state_pb2 import AppliedPosition, PartitionIdentity
from pixy.storage import (
    COPY_MANIFEST,
    AgedSegments,
    Disk,
    PartitionLog,
    TopicLogs,
    copy_directory,
    lost_is_corrupt,
    read_copy_manifest,
    unlink_directories,
    write_copy_manifest,
    write_table,
)

SYNC_BYTES = 16 << 20
_SYNC_SHARE = 32
_SYNC_BYTES_MAX = 128 << 20
"""Bytes that are copied between two syncs, and are fetched again after a crash: as many at least,
a part of what was copied, and as many at most. A sync takes as long as some megabytes besides.
"""


class OwnRecords(NamedTuple):
    """Records that a replica keeps: those of a log from an offset to its end."""

    log: PartitionLog
    begin_offset: int
    end_offset: int


def read_manifest(disk: Disk, directory: Path) -> CopyManifest | None:
    """The manifest of a staged copy, None if there is no valid one. Blocks.

    Raises:
        DataDirectoryError: a newer release wrote it.
    """
    try:
        with lost_is_corrupt(directory / COPY_MANIFEST):
            return read_copy_manifest(disk, directory / COPY_MANIFEST)
    except (FileNotFoundError, CorruptData):
        return None


class StagedCopy:
    """The copy of one partition.

    Args:
        disk: the file system.
        topics: the parent of the directories of partitions.
        identity: the partition.
        topic: see `PartitionLog`.

    Attributes:
        begin_offset: where the copied records begin.
        end_offset: where they end.
    """

    def __init__(self, disk: Disk, topics: Path, identity: PartitionIdentity, topic: TopicLogs) -> None:
        self._disk = disk
        self._identity = identity
        self._topic = topic
        self._directory = copy_directory(topics, identity.raft_group)
        self._log = self._new_log()
        # Since the last sync, and since the copy was opened.
        self._unsynced_bytes = self._written_bytes = 0
        self.begin_offset = self.end_offset = 0

    def _new_log(self) -> PartitionLog:
        return PartitionLog(self._disk, self._directory, self._identity, self._topic, direct=True)

    def open(self, lowest: int, highest: int, end_offset: int) -> None:
        """Go on with what an earlier attempt has left, if it begins between two offsets and ends
        between `highest` and `end_offset`; else begin at `highest`.
        """
        manifest = read_manifest(self._disk, self._directory)
        copied = None if manifest is None else manifest.copied
        if copied is not None and (
            lowest <= copied.log_begin_offset <= highest <= copied.end_offset <= end_offset
        ):
            with suppress(CorruptData, DataDirectoryError):
                self._resume(copied)
                return
        self.restart(highest)

    def _resume(self, copied: AppliedPosition) -> None:
        """Cut the directory back to what was copied, which is not complete any more."""
        self._write_manifest(copied)
        log = self._new_log()
        left = log.open(copied, exists=True)
        for path in left:
            if path.name != COPY_MANIFEST:
                self._disk.unlink(path)
        self._log, self._unsynced_bytes = log, 0
        self.begin_offset, self.end_offset = copied.log_begin_offset, copied.end_offset

    def restart(self, offset: int) -> None:
        """Begin anew at an offset."""
        self.remove()
        self._log, self._unsynced_bytes = self._new_log(), 0
        self._log.open(self._position(offset, offset, offset, 0), exists=False)
        self.begin_offset = self.end_offset = offset

    def remove(self) -> None:
        """Remove the directory, the manifest before what it says is there."""
        self._log.close()
        self._unsynced_bytes = 0
        if read_manifest(self._disk, self._directory) is not None:
            self._disk.unlink(self._directory / COPY_MANIFEST)
            self._disk.sync_directory(self._directory)
        for _ in unlink_directories(self._disk, [self._directory] if self._exists() else []):
            pass

    def _exists(self) -> bool:
        return self._directory.name in self._disk.names(self._directory.parent)

    def keep(self) -> None:
        """Sync what was copied, for the next copy, and close open files."""
        if self._unsynced_bytes:
            self._write_manifest(self._sync())
        self._log.close()

    def write(self, batches: Sequence[memoryview], end_offset: int) -> None:
        """Add verified batches, which end at an offset."""
        self._log.write(batches, AgedSegments())
        self.end_offset = end_offset
        size = sum(map(len, batches))
        self._unsynced_bytes += size
        self._written_bytes += size
        if self._unsynced_bytes >= max(SYNC_BYTES, min(self._written_bytes // _SYNC_SHARE, _SYNC_BYTES_MAX)):
            self._write_manifest(self._sync())

    def _sync(self) -> AppliedPosition:
        """Make everything durable; returns the position of what was copied."""
        _, base, size = self._log.sync()
        self._unsynced_bytes = 0
        return self._position(self.begin_offset, self.end_offset, base, size)

    def seal(self, state: AppliedPosition, own: OwnRecords | None, producers: bytes) -> AppliedPosition:
        """Make the directory the whole log of a replica, durably.

        Args:
            state: the applied position to become, without segments.
            own: the records that the replica keeps, which end where the copied ones begin.
            producers: table of the producers that have written these records, and perhaps later
                ones; empty if there are none.

        Returns:
            The applied position that the directory is for.

        Raises:
            CorruptData: the files are not what they should be.
        """
        copied = self._sync()
        begin_offset = self.begin_offset if own is None else own.begin_offset
        complete = AppliedPosition()
        complete.CopyFrom(state)
        complete.producers = bool(producers)
        complete.log_begin_offset = min(state.end_offset, max(state.log_begin_offset, begin_offset))
        if complete.log_begin_offset == complete.end_offset:
            complete.segment_base_offset, complete.segment_bytes = complete.end_offset, 0
        else:
            complete.segment_base_offset, complete.segment_bytes = (
                copied.segment_base_offset,
                copied.segment_bytes,
            )
        self._log.close()
        # Segments would have claimed it.
        self._log.claim()
        if producers:
            write_table(self._disk, self._directory, producers)
        self._write_manifest(copied)
        if own is not None:
            own.log.share(self._directory, complete.log_begin_offset)
        log = self._new_log()
        for path in log.open(complete, exists=True):
            if path.name != COPY_MANIFEST:
                self._disk.unlink(path)
        log.close()
        # The names of all files are durable with that of the manifest.
        self._write_manifest(copied, complete)
        return complete

    def _position(self, begin: int, end: int, base: int, size: int) -> AppliedPosition:
        return AppliedPosition(
            raft_group=self._identity.raft_group,
            log_begin_offset=begin,
            end_offset=end,
            segment_base_offset=base,
            segment_bytes=size,
        )

    def _write_manifest(self, copied: AppliedPosition, complete: AppliedPosition | None = None) -> None:
        self._disk.make_directory(self._directory)
        manifest = CopyManifest(raft_group=self._identity.raft_group, copied=copied, complete=complete)
        write_copy_manifest(self._disk, self._directory / COPY_MANIFEST, manifest)

"""Background removal of retired files and directories.

A deletion has two steps. First the writer retires the files by renaming them, which frees the name
at once and never leaves a partial deletion under it: a segment and its indexes to `<name>.deleted`,
the directory of a partition to `<raft group>-deleted`. The second step is here: the new names of
directories are synced, one sync for all pending directories, then the files are unlinked, a few per
step. Leftovers of a crash have such names, and the next start submits them here again.

A new name may need space: the file system adds it to the directory before it removes the old one.
On a full disk files are unlinked at their own names instead, which needs none, in an order that a
start understands after a crash.

Retired files are never needed again, so a failed unlink is logged and left to the next start. A
failed sync is a fault.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from pixy.storage.disk.disk import Disk, is_disk_full
from pixy.storage.disk.upkeep import Steps, Upkeep

log = structlog.get_logger(__name__)

FILES_PER_STEP = 50
"""Number of unlinks in one step. Each takes 10 to 100 us, a large segment some milliseconds."""


class Removal:
    """Queue of retired files and directories.

    Args:
        disk: the file system.
        topics: the parent of the directories of partitions.
        upkeep: runs the removal.
    """

    def __init__(self, disk: Disk, topics: Path, upkeep: Upkeep) -> None:
        self._disk = disk
        self._topics = topics
        self._upkeep = upkeep
        self._gathered: list[Path] = []
        self._running = False

    def remove_files(self, files: Sequence[Path]) -> None:
        """Remove retired files."""
        if files:
            self._upkeep.add(remove_files(self._disk, files), _nothing)

    def remove_directories(self, directories: Iterable[Path]) -> None:
        """Remove retired directories of partitions."""
        self._gathered += directories
        if self._gathered and not self._running:
            self._running = True
            gathered, self._gathered = self._gathered, []
            self._upkeep.add(remove_directories(self._disk, self._topics, gathered), self._removed)

    def _removed(self, _: None) -> None:
        self._running = False
        self.remove_directories(())


def retire_file(disk: Disk, path: Path, retired: Path) -> bool:
    """Rename a file that is needed no more, or unlink it if the disk is too full for another name.

    Returns:
        True if it was renamed, and is still to be removed.
    """
    try:
        disk.rename(path, retired)
    except OSError as error:
        if not is_disk_full(error):
            raise
        disk.unlink(path)
        return False
    return True


def remove_files(disk: Disk, files: Iterable[Path]) -> Steps:
    """Unlink files, a few per step; missing ones are removed with their renamed directory."""
    for number, path in enumerate(files, 1):
        try:
            with suppress(FileNotFoundError):
                disk.unlink(path)
        except OSError as error:
            log.error("cannot remove a file that is needed no more", file=str(path), error=str(error))
        if not number % FILES_PER_STEP:
            yield


def remove_directories(disk: Disk, parent: Path, directories: Sequence[Path]) -> Steps:
    """Make the new names of directories in `parent` durable, then remove them, in steps.

    Raises:
        OSError: the sync has failed. Nothing is removed.
    """
    disk.sync_directory(parent)
    yield from unlink_directories(disk, directories)


def unlink_directories(disk: Disk, directories: Iterable[Path]) -> Steps:
    """Remove directories with their files, in steps; what cannot be removed is logged."""
    done = 0
    for path in directories:
        try:
            for name in disk.names(path):
                if not done % FILES_PER_STEP:
                    yield
                disk.unlink(path / name)
                done += 1
            disk.remove_directory(path)
        except OSError as error:
            log.error(
                "cannot remove a directory that is needed no more", directory=str(path), error=str(error)
            )


def _nothing(_: None) -> None:
    """Ignore the end of a removal, which has no waiters."""

"""Removes files and directories that have lost their names, in the background.

Whatever is deleted goes in two steps. First it is renamed, by whoever writes there, so that it is never taken for something whole and its
name is free at once: a segment and its indexes to `<name>.deleted`, a partition's directory to `<raft group>-deleted`. That is all that
the writer has to do with it. The rest is done here: the names of directories are synced, one sync for all that have gathered, and then
file after file is unlinked, a few in each step. What a crash leaves has such a name, and the next start hands it over here again.

Nothing of it is ever needed again, so a file that cannot be unlinked is said and left to the next start. A failed sync is a fault.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from pixy.storage.disk import Disk
from pixy.storage.upkeep import Steps, Upkeep

__all__ = ["FILES_PER_STEP", "Removal", "remove_directories", "remove_files"]

log = structlog.get_logger(__name__)

FILES_PER_STEP = 50
"""Unlinked in one step. Each takes 10 to 100 microseconds, a large segment some milliseconds."""


class Removal:
    """What has lost its name, and goes.

    Args:
        disk: the file system.
        topics: the directory that the directories of partitions are in.
        upkeep: runs the removal.
    """

    def __init__(self, disk: Disk, topics: Path, upkeep: Upkeep) -> None:
        self._disk = disk
        self._topics = topics
        self._upkeep = upkeep
        self._gathered: list[Path] = []
        self._running = False

    def remove_files(self, files: Sequence[Path]) -> None:
        """Remove files that were renamed to be removed."""
        if files:
            self._upkeep.add(remove_files(self._disk, files), _nothing)

    def remove_directories(self, directories: Iterable[Path]) -> None:
        """Remove directories of partitions that were renamed to be removed."""
        self._gathered += directories
        if self._gathered and not self._running:
            self._running = True
            gathered, self._gathered = self._gathered, []
            self._upkeep.add(remove_directories(self._disk, self._topics, gathered), self._removed)

    def _removed(self, _: None) -> None:
        self._running = False
        self.remove_directories(())


def remove_files(disk: Disk, files: Iterable[Path]) -> Steps:
    """Unlink files, some in each step; those of a directory that was renamed meanwhile go with it."""
    for number, path in enumerate(files, 1):
        try:
            with suppress(FileNotFoundError):
                disk.unlink(path)
        except OSError as error:
            log.error("cannot remove a file that is needed no more", file=str(path), error=str(error))
        if not number % FILES_PER_STEP:
            yield


def remove_directories(disk: Disk, parent: Path, directories: Sequence[Path]) -> Steps:
    """Make the new names of directories in `parent` durable, then remove them with their files, some in each step.

    Raises:
        OSError: the sync has failed. Nothing is removed.
    """
    disk.sync_directory(parent)
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
    """Nobody waits for a file to be gone."""

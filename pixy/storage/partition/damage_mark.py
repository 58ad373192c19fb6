"""The mark of a partition whose segments a check of a stopped node has found damaged: the file
`damaged` in its directory, with what was found.

A start does not read segments as a whole. With the mark it knows of the damage, and the partition
is not ready until a copy of another replica replaces the directory, mark included
(`pixy.cluster.snapshots`). A partition without other replicas has no mark.

    found                      the partition
    -------------------------  -----------------------------------------------------------------
    no mark                    is as its segments are
    a mark                     is not ready, with its text as the reason
    one that cannot be read    is not ready: whoever has checked it may be another user
"""

from contextlib import suppress
from pathlib import Path

from pixy.errors import CorruptData, DataDirectoryError
from pixy.storage.disk import Disk, read_damage_mark, write_damage_mark

DAMAGE_MARK = "damaged"


def found_damage(disk: Disk, directory: Path) -> str:
    """The damage that a mark in a directory tells of, empty without one. Blocks."""
    try:
        return f"{directory} was found damaged: {read_damage_mark(disk, directory / DAMAGE_MARK)}"
    except FileNotFoundError:
        return ""
    except (OSError, CorruptData, DataDirectoryError) as error:
        return f"{directory} was found damaged, its mark cannot be read: {error}"


def mark_directory(disk: Disk, directory: Path, found: str) -> None:
    """Mark a directory as damaged, durably, or as undamaged if nothing was found. Blocks.

    Raises:
        OSError: the disk is full, or has failed.
    """
    path = directory / DAMAGE_MARK
    if found:
        write_damage_mark(disk, path, found)
    else:
        with suppress(FileNotFoundError):
            disk.unlink(path)

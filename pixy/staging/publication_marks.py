"""Marks of publications whose outcome is stored elsewhere: their stages and epoch.

    publishing/<number, 20 digits>      a `PublishStages` message, with a checksum

A mark is durable before anything of its publication leaves this process. It is removed once the
stages are removed, or are known not to be published. Hence a restart that finds stages knows the
ones that may have been published, and the place to look up the outcome.

At startup a valid mark is accepted. `<number>.part`, left by a process that ended during the write,
is ignored and overwritten. Anything else is refused: a stage without its mark might be published
twice.
"""

import re
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path

from pixy.errors import DataDirectoryError
from pixy.proto.state_pb2 import PublishStages
from pixy.storage import Disk, read_publication_mark, write_publication_mark

_NAME = re.compile(r"\d{20}")
_PART = re.compile(r"\d{20}\.part")


class MarkName(Enum):
    """Kind of a file in the directory of marks, by its name."""

    MARK = auto()
    UNFINISHED = auto()
    FOREIGN = auto()


def mark_name(name: str) -> MarkName:
    """Classify a file name, for startup and for checks."""
    if _NAME.fullmatch(name) is not None:
        return MarkName.MARK
    return MarkName.FOREIGN if _PART.fullmatch(name) is None else MarkName.UNFINISHED


def write_mark(disk: Disk, directory: Path, number: int, mark: PublishStages) -> None:
    """Write the mark of a publication; durable on return. Blocks."""
    disk.make_directory(directory)
    write_publication_mark(disk, _path(directory, number), mark)


def remove_mark(disk: Disk, directory: Path, number: int) -> None:
    """Remove a mark, once the outcome is known. Blocks.

    A mark that a crash restores does no harm.
    """
    disk.unlink(_path(directory, number))


def read_marks(disk: Disk, directory: Path) -> Mapping[int, PublishStages]:
    """Read all marks, by number. Blocks.

    Raises:
        DataDirectoryError: a foreign file, or one of a newer release.
        CorruptData: a mark is damaged.
    """
    found: dict[int, PublishStages] = {}
    for name in disk.names(directory):
        kind = mark_name(name)
        if kind is MarkName.MARK:
            found[int(name)] = read_publication_mark(disk, directory / name)
        elif kind is MarkName.FOREIGN:
            raise DataDirectoryError(f"{directory / name} is not a publication; move it out of the way")
    return found


def _path(directory: Path, number: int) -> Path:
    return directory / f"{number:020d}"

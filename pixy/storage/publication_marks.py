"""Marks of publications whose outcome is kept elsewhere: which stages are being published, under which epoch.

    publishing/<number, 20 digits>      what is being published, with a checksum

A mark is durable before anything of its publication leaves this process, and goes when the stages are gone or are known not to be
published. So whoever finds stages at a start knows which of them may have been published, and whom to ask.

What a start finds: a valid mark is taken; `<number>.part`, which a process left that ended while it wrote, is passed over and written
over; everything else is refused, because a stage whose mark is not read might be published twice.
"""

import re
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path

from pixy.errors import DataDirectoryError
from pixy.proto.state_pb2 import PublishStages
from pixy.storage.disk import Disk
from pixy.storage.identity import read_publication_mark, write_publication_mark

__all__ = ["MarkName", "mark_name", "read_marks", "remove_mark", "write_mark"]

_NAME = re.compile(r"\d{20}")
_PART = re.compile(r"\d{20}\.part")


class MarkName(Enum):
    """What a file beside marks is, by its name."""

    MARK = auto()
    UNFINISHED = auto()
    FOREIGN = auto()


def mark_name(name: str) -> MarkName:
    """What a file of this name is; the same for a start and for a check."""
    if _NAME.fullmatch(name) is not None:
        return MarkName.MARK
    return MarkName.FOREIGN if _PART.fullmatch(name) is None else MarkName.UNFINISHED


def write_mark(disk: Disk, directory: Path, number: int, mark: PublishStages) -> None:
    """Say that stages are being published; durable on return. Blocks."""
    disk.make_directory(directory)
    write_publication_mark(disk, _path(directory, number), mark)


def remove_mark(disk: Disk, directory: Path, number: int) -> None:
    """The outcome is known, and nobody needs the mark any more. Blocks. One that comes back in a crash does no harm."""
    disk.unlink(_path(directory, number))


def read_marks(disk: Disk, directory: Path) -> Mapping[int, PublishStages]:
    """The marks that are there, by number. Blocks.

    Raises:
        DataDirectoryError: something that does not belong here, or is a newer release's.
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

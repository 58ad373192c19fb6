"""The file `producers` of a partition: its table of idempotent producers as of an offset.

The rest is in the headers of the batches behind that offset, up to the end of the synced segments,
and in the entries of the journal. Written before segments are synced, as a whole, so the file may
be ahead of the applied position that counts: by batches that are committed.

    found at a start                       the table
    -------------------------------------  -----------------------------------------------------
    an applied position without producers  is empty
    whole                                  is read, and goes on with the headers behind it
    missing, short, torn or damaged        is made from all headers in the segments, with a warning
    a newer version                        the start is refused

Segments that retention has removed told of producers too: a table that is made anew takes any
sequence of one that it does not know.
"""

from pathlib import Path

import structlog

from pixy.errors import CorruptData
from pixy.records import ANY_FORGOTTEN, ProducerTable
from pixy.storage.disk import Disk, is_unreadable, read_producers, write_producers

PRODUCERS_FILE = "producers"
PRODUCERS_PART = "producers.part"
"""Temporary name of the file, before it is complete."""

log = structlog.get_logger(__name__)


def read_table(disk: Disk, directory: Path) -> ProducerTable:
    """The table that a directory has; one that has lost everything, as of offset -1, if there is
    none. Blocks.

    Raises:
        DataDirectoryError: a newer release wrote it.
        OSError: the disk has failed.
    """
    path = directory / PRODUCERS_FILE
    try:
        return ProducerTable.decoded(read_producers(disk, path))
    except (OSError, CorruptData) as error:
        if (
            isinstance(error, OSError)
            and not isinstance(error, FileNotFoundError)
            and not is_unreadable(error)
        ):
            raise
        log.warning(
            "the producers of a partition are found anew", directory=str(directory), reason=str(error)
        )
        table = ProducerTable(ANY_FORGOTTEN)
        table.end_offset = -1
        return table


def write_table(disk: Disk, directory: Path, content: bytes) -> None:
    """Replace the table of a directory; durable on return. Blocks."""
    write_producers(disk, directory / PRODUCERS_FILE, content)

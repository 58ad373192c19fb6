"""Bookkeeping of journal files: names, ends, and the entries of each raft group in them.

A span covers all entries of a raft group in a file. There is no position for each of them: a reader
looks for them from the span's position on (`journal_reader`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pixy.storage.journal.journal_format import FILE_HEADER_BYTES, FORMAT_VERSION


def journal_path(directory: Path, file_number: int) -> Path:
    """Path of a journal file."""
    return directory / f"{file_number:020d}.journal"


class JournalPosition(NamedTuple):
    """Position of the next flush. `file_number` 0: there is no file yet."""

    file_number: int
    position: int
    flush_number: int


EMPTY_JOURNAL = JournalPosition(file_number=0, position=0, flush_number=1)

Span = tuple[int, int, int]
"""Entries of a raft group in a file: lowest index, highest index, and the byte position of the
first flush with one of them.

Not a `NamedTuple`: a flush makes one for each of its raft groups, on the event loop.
"""


@dataclass(slots=True)
class JournalFile:
    """Bookkeeping of one journal file.

    Invariant: `spans` has every raft group with an entry in the file, originals and relocated ones,
    also those that were replaced or voided since, but by a REPLICA_GONE. So a file is retained for
    a group whose entries were copied into it, and for entries replaced since.

    Attributes:
        number: its number.
        version: its format version.
        end: byte behind its last durable flush.
        spans: the entries in it, by raft group.
    """

    number: int
    version: int = FORMAT_VERSION
    end: int = FILE_HEADER_BYTES
    spans: dict[int, Span] = field(default_factory=dict)

    def add(self, lowest: Mapping[int, int], highest: Mapping[int, int], position: int) -> None:
        """Add the entries of the flush at `position`: lowest and highest index by raft group."""
        spans = self.spans
        for raft_group, index in highest.items():
            span = spans.get(raft_group)
            if span is None:
                spans[raft_group] = (lowest[raft_group], index, position)
            else:
                spans[raft_group] = (min(span[0], lowest[raft_group]), max(span[1], index), span[2])


class FilePart(NamedTuple):
    """Part of a journal file: the flushes from byte `begin` to byte `end`.

    Both are ends of durable flushes, or the begin of the first one.
    """

    number: int
    begin: int
    end: int


def forget_entries(files: Iterable[JournalFile], raft_group: int) -> None:
    """Take a raft group out of the spans of files: a REPLICA_GONE behind them voids its entries."""
    for file in files:
        file.spans.pop(raft_group, None)


def parts_with(files: Iterable[JournalFile], raft_group: int, lo: int, hi: int) -> list[FilePart]:
    """Parts of files in which entries [lo, hi) of a raft group may be, in the files' order."""
    return [
        FilePart(file.number, span[2], file.end)
        for file in files
        if (span := file.spans.get(raft_group)) is not None and span[0] < hi and lo <= span[1]
    ]

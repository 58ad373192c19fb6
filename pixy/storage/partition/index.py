"""Sparse indexes of a segment: hints for lookups. Never trusted, never synced, rebuilt when lost.
One that the device cannot read is as one that is missing.

A loss of power may lose any sectors of a recently written index: its end, which is found when the
segment is measured, or some in its middle, which `ascends` finds.

Both have the layout of Kafka's index files, big-endian, entries ascending:

    <base offset>.index       4  last offset of a batch - base offset
                              4  position of that batch in the segment
    <base offset>.timeindex   8  largest timestamp up to a batch
                              4  last offset of that batch - base offset

Lookups bisect the file, so an index takes no memory, however large the log is.
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pixy.errors import CorruptData
from pixy.storage.disk import Disk, File, is_unreadable, lost_is_corrupt, read_whole

INDEX_INTERVAL_BYTES = 32768
"""Bytes of a segment between two entries."""

_SECTOR_BYTES = 512
"""Unit that a loss of power loses or leaves as a whole."""

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")


@dataclass(slots=True)
class IndexEntries:
    """Entries of the offset index and of the time index, the same number of both."""

    offsets: list[tuple[int, int]] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)


class MayBeLost:
    """Passes over reads of a file that is missing, or that the device cannot read."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        return isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and is_unreadable(error))


class _Index:
    """Fixed-size entries in a file, ascending by their first field."""

    _entry: struct.Struct

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path

    def append(self, entries: Sequence[tuple[int, int]], count: int) -> None:
        """Write entries behind the first `count`."""
        file = self._disk.open(self.path, create=True)
        try:
            file.write_at([self._entry.pack(*entry) for entry in entries], count * self._entry.size)
        finally:
            file.close()

    def count_below(self, limit: int) -> int:
        """Number of leading entries whose second field is below `limit`."""
        with MayBeLost(), closing(self._disk.open(self.path)) as file:
            return self._bisect(file, lambda entry: entry[1] < limit)
        return 0

    def entry(self, at: int) -> tuple[int, int]:
        """The entry number `at`, which must exist."""
        with closing(self._disk.open(self.path)) as file:
            return self._read(file, at)

    def truncate(self, count: int) -> bool:
        """Keep the first `count` entries; True if there were more."""
        try:
            file = self._disk.open(self.path)
        except FileNotFoundError:
            return False
        try:
            longer = file.size() > count * self._entry.size
            if longer:
                file.truncate(count * self._entry.size)
            return longer
        finally:
            file.close()

    def ascends(self, least: tuple[int, int]) -> bool:
        """True if the first entries of all sectors can be read and ascend, none below `least`."""
        try:
            with lost_is_corrupt(self.path):
                data = read_whole(self._disk, self.path)
        except FileNotFoundError:
            return True
        except CorruptData:
            return False
        size = self._entry.size
        firsts = [-(-at // size) * size for at in range(0, len(data), _SECTOR_BYTES)]
        entries = [self._entry.unpack_from(data, at) for at in firsts if at + size <= len(data)]
        return all(before <= after for before, after in pairwise([least, *entries]))

    def floor(self, target: int) -> tuple[int, int] | None:
        """The last entry whose first field is at most `target`."""
        found = self.numbered_floor(target)
        return None if found is None else found[1]

    def numbered_floor(self, target: int) -> tuple[int, tuple[int, int]] | None:
        """As `floor`, with the number of the entry."""
        with MayBeLost(), closing(self._disk.open(self.path)) as file:
            at = self._bisect(file, lambda entry: entry[0] <= target)
            return (at - 1, self._read(file, at - 1)) if at else None
        return None

    def entries(self) -> list[tuple[int, int]]:
        """All entries."""
        data = b""
        with MayBeLost():
            data = read_whole(self._disk, self.path)
        whole = len(data) // self._entry.size * self._entry.size
        return [(first, second) for first, second in self._entry.iter_unpack(data[:whole])]

    def _bisect(self, file: File, before: Callable[[tuple[int, int]], bool]) -> int:
        """Number of leading entries for which `before` holds."""
        low, high = 0, file.size() // self._entry.size
        while low < high:
            middle = (low + high) // 2
            if before(self._read(file, middle)):
                low = middle + 1
            else:
                high = middle
        return low

    def _read(self, file: File, at: int) -> tuple[int, int]:
        first, second = self._entry.unpack(file.read_at(self._entry.size, at * self._entry.size))
        return first, second


class OffsetIndex(_Index):
    """Entries (last offset of a batch relative to the segment's base, position of the batch)."""

    _entry = _OFFSET_ENTRY


class TimeIndex(_Index):
    """Entries (largest timestamp so far, last offset of its batch relative to the base)."""

    _entry = _TIME_ENTRY

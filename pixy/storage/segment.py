"""One segment: a file of plain Kafka v2 record batches back to back, and the indexes beside it.

The file `<base offset, 20 digits>.log` holds nothing else, so Kafka's own tools read it. A segment is written by one worker at
a time and read by any number of threads; a reader opens the file for itself, so that removing a segment never disturbs one
that is under way.
"""

import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from pixy.errors import CorruptData
from pixy.records import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchHeader,
    batch_bytes,
    check_batch,
    read_header,
)
from pixy.storage.disk import Buffer, Disk, File
from pixy.storage.index import INDEX_INTERVAL_BYTES, IndexEntries, OffsetIndex, TimeIndex
from pixy.storage.scan import check_bounds, scan_headers

__all__ = ["RETIRED", "Chunk", "Segment", "segment_path"]

RETIRED = ".deleted"
"""Behind the name of a file that is to be removed."""
_SUFFIXES = (".log", ".index", ".timeindex")
_NO_TIMESTAMP = -(2**63)
_STEP_BYTES = 1 << 20
"""Scanned in one step in the background: some milliseconds."""

log = structlog.get_logger(__name__)


def segment_path(directory: Path, base_offset: int) -> Path:
    """Where the segment that begins at `base_offset` lives."""
    return directory / f"{base_offset:020d}.log"


class Chunk(NamedTuple):
    """Whole batches that were read together, and the offset behind them."""

    batches: list[memoryview]
    next_offset: int


class Segment:
    """Reads and writes one segment. Every method blocks.

    Attributes:
        base_offset: offset of its first record.
        size: bytes of whole batches in the file.
        end_offset: offset behind its last record.
        max_timestamp: largest timestamp in it, negative if it has none.
        first_timestamp: timestamp of its first record.
    """

    __slots__ = (
        "_cut",
        "_directory",
        "_disk",
        "_entries",
        "_file",
        "_max_timestamp_offset",
        "_missing",
        "_time_entries",
        "_torn",
        "_unindexed_bytes",
        "base_offset",
        "end_offset",
        "first_timestamp",
        "max_timestamp",
        "size",
    )

    def __init__(self, disk: Disk, directory: Path, base_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self.base_offset = self.end_offset = base_offset
        self.size = 0
        self.first_timestamp = 0
        self.max_timestamp = _NO_TIMESTAMP
        self._file: File | None = None
        # The file may have been made shorter, which is not durable yet.
        self._cut = False
        # A part of a write that has failed may be behind `size`.
        self._torn = False
        # Entries in the index files. Invariant: they point below `size`.
        self._entries = 0
        self._time_entries = 0
        self._unindexed_bytes = 0
        # What the indexes should say behind their first `_entries`, and do not.
        self._missing = IndexEntries()
        # Last offset of the first batch that has the largest timestamp, relative to the base.
        self._max_timestamp_offset = 0

    @property
    def path(self) -> Path:
        return segment_path(self._directory, self.base_offset)

    @property
    def is_indexed(self) -> bool:
        """Whether it is long enough for entries in its indexes."""
        return self.size > INDEX_INTERVAL_BYTES

    @property
    def is_unsynced(self) -> bool:
        """Whether there is something to sync: writes, or a cut."""
        return self._file is not None or self._cut

    # --- writing ------------------------------------------------------------------------------------------------

    def write(self, batches: Sequence[Buffer]) -> None:
        """Append batches. They are durable after `sync`."""
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
        try:
            self._file.write_at(batches, self.size)
        except OSError:
            self._torn = True
            raise
        entries = IndexEntries()
        for batch in batches:
            self._add(read_header(batch), len(batch), entries)
        self._write_indexes(entries)

    def begin_sync(self) -> None:
        """Let the system begin with what `sync` will wait for."""
        if self._file is not None:
            self._file.begin_sync()

    def link(self, source: Path, file: File, headers: Iterable[tuple[int, BatchHeader]]) -> None:
        """Make a file that is there this segment, by one more name. It is durable after `sync`, its name after one of the directory.

        Args:
            source: the file.
            file: the same, open; the segment owns it from here on.
            headers: size and header of each batch in it, in their order; taken before the file gets its name.

        Raises:
            OSError: it has not got the name; nothing of this segment is there, but perhaps indexes, which are hints.
        """
        entries = IndexEntries()
        try:
            for size, header in headers:
                self._add(header, size, entries)
            self._write_indexes(entries)
            self._disk.link(source, self.path)
        except BaseException:
            file.close()
            raise
        self._file = file

    def sync(self) -> None:
        """Make what was written durable, and a cut, and close the file.

        What a cut took away must not come back once another segment follows, and nothing of a write that has failed may stay: the
        file's size is then taken as it is.
        """
        if self._file is None and self._cut:
            self._file = self._disk.open(self.path)
        if self._file is not None:
            if self._torn:
                self._file.truncate(self.size)
                self._torn = False
            self._file.sync()
            self._file.close()
            self._file = None
            self._cut = False

    def close(self) -> None:
        """Close the file without a sync."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def measure(self, size: int | None = None) -> None:
        """Find out what the file holds: all of it, or its first `size` bytes. Looks at the end only, as far as the indexes help.

        Raises:
            CorruptData: the file is missing, shorter than `size`, or does not end with a whole batch.
        """
        try:
            file = self._disk.open(self.path)
        except FileNotFoundError as error:
            raise CorruptData(f"{self.path} is missing, it was synced") from error
        try:
            found = file.size()
            if size is not None and found < size:
                raise CorruptData(f"{self.path} has {found} bytes, {size} were synced")
            self.size = found if size is None else size
            if self.size:
                self._measure(file)
        finally:
            file.close()

    def _measure(self, file: File) -> None:
        start = self._indexed_position(file)
        if start:
            _, first = next(self._headers(file, 0, self.size))
            self.first_timestamp = first.base_timestamp
        self._unindexed_bytes = 0
        for position, header in self._headers(file, start, self.size):
            if not position:
                self.first_timestamp = header.base_timestamp
            self._count(header, position, self._missing)

    def _indexed_position(self, file: File) -> int:
        """The last position below `size` that both indexes know; takes over the largest timestamp up to there.

        If they are not right, they count as empty.
        """
        index, times = self._offset_index(), self._time_index()
        count = index.count_below(self.size)
        if count:
            count = min(count, times.count_below(index.entry(count - 1)[0] + 1))
        if count:
            position = self._checked_hint(file, index.entry(count - 1), self.size)
            latest = times.entry(count - 1)
            named = self._find(file, self.base_offset + latest[1], self.size)
            # Zeros are what a crash leaves of an entry: they may fit a first record of 1970 and hide every later one.
            if position and any(latest) and named is not None and named[1].max_timestamp == latest[0]:
                self._entries = self._time_entries = count
                self.max_timestamp, self._max_timestamp_offset = latest
                return position
        self._entries = self._time_entries = 0
        return 0

    def cut(self) -> None:
        """Cut the file to what was measured, and the indexes with it."""
        file = self._disk.open(self.path)
        try:
            if file.size() > self.size:
                file.truncate(self.size)
            # Even if there was nothing to cut: an earlier start may have done it, and ended before that was durable.
            self._cut = True
        finally:
            file.close()
        # Each of them, whatever the other one was.
        longer = [
            self._offset_index().truncate(self._entries),
            self._time_index().truncate(self._time_entries),
        ]
        if any(longer):
            log.info("cut the indexes of a segment", segment=str(self.path), entries=self._entries)

    # --- lost indexes -------------------------------------------------------------------------------------------

    def complete_indexes(self) -> None:
        """Write what `measure` found to be missing at the end of the indexes, if that is anything."""
        if self._missing.offsets:
            log.warning(
                "rebuilt the end of a segment's indexes",
                segment=str(self.path),
                from_byte=self._missing.offsets[0][1],
                entries=len(self._missing.offsets),
            )
            self._write_indexes(self._missing)
            self._missing = IndexEntries()

    def has_torn_indexes(self) -> bool:
        """Whether a loss of power has taken something from the middle of the indexes."""
        # Zeros are no entry of an offset index, and one of a time index only where records are of 1970 or before.
        least = (0, 1) if self.first_timestamp > 0 else (_NO_TIMESTAMP, 0)
        return not (self._offset_index().ascends((1, 0)) and self._time_index().ascends(least))

    def scan_indexes(self, size: int) -> Generator[None, None, IndexEntries]:
        """What the indexes should say of the first `size` bytes. Each step reads some MiB, and nothing is changed.

        Raises:
            CorruptData: the segment is damaged.
        """
        scanned, entries = Segment(self._disk, self._directory, self.base_offset), IndexEntries()
        file = self._disk.open(self.path, background=True)
        try:
            step_end = _STEP_BYTES
            for position, header in self._headers(file, 0, size):
                scanned._count(header, position, entries)
                if position >= step_end:
                    step_end = position + _STEP_BYTES
                    yield
        finally:
            file.close()
        return entries

    def replace_indexes(self, entries: IndexEntries, size: int) -> None:
        """Replace what the indexes say of the first `size` bytes; what was written behind them meanwhile stays."""
        log.warning("rebuilt the indexes of a segment", segment=str(self.path), entries=len(entries.offsets))
        offsets = [entry for entry in self._offset_index().entries()[: self._entries] if entry[1] >= size]
        times = self._time_index().entries()[self._time_entries - len(offsets) : self._time_entries]
        self._entries = self._time_entries = 0
        self._write_indexes(IndexEntries(entries.offsets + offsets, entries.times + times))
        self._offset_index().truncate(self._entries)
        self._time_index().truncate(self._time_entries)

    def retire(self) -> list[Path]:
        """Rename the file and its indexes, so that nobody takes them for a segment any more. A reader that has opened it goes on.

        Returns:
            What is to be removed.
        """
        self.close()
        retired = []
        for suffix in _SUFFIXES:
            path = self.path.with_suffix(suffix)
            gone = path.with_name(path.name + RETIRED)
            with suppress(FileNotFoundError):
                self._disk.rename(path, gone)
                retired.append(gone)
        return retired

    def _count(self, header: BatchHeader, position: int, entries: IndexEntries) -> None:
        """There is a batch at a position; adds what the indexes are to say of it."""
        self.end_offset = header.next_offset
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self._max_timestamp_offset = header.next_offset - 1 - self.base_offset
        if self._unindexed_bytes >= INDEX_INTERVAL_BYTES:
            self._unindexed_bytes = 0
            entries.offsets.append((header.next_offset - 1 - self.base_offset, position))
            entries.times.append((self.max_timestamp, self._max_timestamp_offset))
        self._unindexed_bytes += LENGTH_PREFIX_BYTES + header.length

    def _add(self, header: BatchHeader, size: int, entries: IndexEntries) -> None:
        """A batch of `size` bytes is behind the others; adds what the indexes are to say of it."""
        if not self.size:
            self.first_timestamp = header.base_timestamp
        self._count(header, self.size, entries)
        self.size += size

    def _write_indexes(self, entries: IndexEntries) -> None:
        if not entries.offsets:
            return
        # A hint that cannot be written, or that does not fit, is no fault of the segment.
        with suppress(OSError, struct.error):
            self._offset_index().append(entries.offsets, self._entries)
            self._entries += len(entries.offsets)
            self._time_index().append(entries.times, self._time_entries)
            self._time_entries += len(entries.times)

    # --- reading ------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, size: int) -> Chunk:
        """Batches from the one that holds `offset` on: at most `max_bytes`, at least one. Only the first `size` bytes count.

        An empty chunk means that no batch below `size` reaches `offset`.

        Raises:
            CorruptData: a batch is damaged; names file and byte.
        """
        file = self._disk.open(self.path, background=True)
        try:
            found = self._find(file, offset, size)
            if found is None:
                return Chunk([], offset)
            position, header = found
            if header.base_offset > offset:
                raise CorruptData(
                    f"{self.path} is corrupt at byte {position}: a batch with base offset {header.base_offset} where "
                    f"offset {offset} was expected"
                )
            return self._read_batches(file, position, max_bytes, size)
        finally:
            file.close()

    def offset_for_timestamp(self, timestamp_ms: int, size: int) -> tuple[int, int] | None:
        """Position and base offset of the first batch with a timestamp at or after `timestamp_ms`."""
        hint = self._time_index().floor(timestamp_ms - 1)
        file = self._disk.open(self.path, background=True)
        try:
            start = self._checked_time_hint(file, hint, size)
            for position, header in self._headers(file, start, size):
                if header.max_timestamp >= timestamp_ms:
                    return position, header.base_offset
        finally:
            file.close()
        return None

    def _find(self, file: File, offset: int, size: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the batch that holds `offset`, or of the first behind it."""
        start = self._checked_hint(file, self._offset_index().floor(offset - self.base_offset), size)
        for position, header in self._headers(file, start, size):
            if header.next_offset > offset:
                return position, header
        return None

    def _checked_time_hint(self, file: File, hint: tuple[int, int] | None, size: int) -> int:
        """The position of the batch that a time index entry names if it has that timestamp, else the segment's start."""
        if hint is None:
            return 0
        found = self._find(file, self.base_offset + hint[1], size)
        return 0 if found is None or found[1].max_timestamp != hint[0] else found[0]

    def _checked_hint(self, file: File, hint: tuple[int, int] | None, size: int) -> int:
        """The position of an index entry if the batch that it promises is there, else the segment's start."""
        if hint is None or hint[1] + HEADER_BYTES > size:
            return 0
        data = file.read_at(HEADER_BYTES, hint[1])
        if len(data) < HEADER_BYTES:
            return 0
        return hint[1] if read_header(data).next_offset - 1 == self.base_offset + hint[0] else 0

    def _headers(self, file: File, position: int, size: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of the batches from `position` on."""
        expected = None if position else self.base_offset
        for at, header in scan_headers(file, self.path, position, size):
            if header.base_offset != expected and expected is not None:
                raise CorruptData(
                    f"{self.path} is corrupt at byte {at}: a batch with base offset {header.base_offset}, expected {expected}"
                )
            expected = header.next_offset
            yield at, header

    def _read_batches(self, file: File, position: int, max_bytes: int, size: int) -> Chunk:
        wanted = min(max(max_bytes, HEADER_BYTES), size - position)
        data = file.read_at(wanted, position)
        first = batch_bytes(data)
        if first > len(data):
            check_bounds(read_header(data), self.path, position, size)
            data = file.read_at(first, position)
        view = memoryview(data)
        batches: list[memoryview] = []
        at = 0
        next_offset = read_header(view).base_offset
        while at + HEADER_BYTES <= len(view):
            end = at + batch_bytes(view, at)
            if end > len(view) and batches:
                break
            batch = view[at:end]
            try:
                check_batch(batch)
            except CorruptData as error:
                raise CorruptData(f"{self.path} is corrupt at byte {position + at}: {error}") from error
            header = read_header(batch)
            if header.base_offset != next_offset:
                raise CorruptData(
                    f"{self.path} is corrupt at byte {position + at}: a batch with base offset {header.base_offset}, "
                    f"expected {next_offset}"
                )
            next_offset = header.next_offset
            batches.append(batch)
            at = end
        return Chunk(batches, next_offset)

    def _offset_index(self) -> OffsetIndex:
        return OffsetIndex(self._disk, self.path.with_suffix(".index"))

    def _time_index(self) -> TimeIndex:
        return TimeIndex(self._disk, self.path.with_suffix(".timeindex"))

"""One segment: a file of plain Kafka v2 record batches back to back, and its indexes.

The file `<base offset, 20 digits>.log` has nothing else, so Kafka's own tools can read it. A
segment is written by one worker at a time and read by any number of threads. Each read opens the
file, so removing a segment never disturbs a read in progress.
"""

import errno
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
from pixy.storage.disk import Buffer, Disk, File, check_bounds, retire_file, scan_headers
from pixy.storage.partition.index import INDEX_INTERVAL_BYTES, IndexEntries, MayBeLost, OffsetIndex, TimeIndex
from pixy.storage.partition.retention import AHEAD_MS_MAX

RETIRED = ".deleted"
"""Suffix of retired files, which are to be removed."""
_SUFFIXES = (".log", ".index", ".timeindex")
_NO_TIMESTAMP = -(2**63)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
_STEP_BYTES = 1 << 20
"""Size of one step of a background scan, which takes some milliseconds."""

log = structlog.get_logger(__name__)


def segment_path(directory: Path, base_offset: int) -> Path:
    """Path of the segment that begins at `base_offset`."""
    return directory / f"{base_offset:020d}.log"


class Chunk(NamedTuple):
    """Whole batches of one read, and the offset behind them."""

    batches: list[memoryview]
    next_offset: int


class Segment:
    """One segment. Every method blocks.

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
        "_noticed",
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
        # The file may have been truncated, which is not durable yet.
        self._cut = False
        # Bytes of a failed write may be behind `size`.
        self._torn = False
        # Numbers of entries in the index files. Invariant: these entries point below `size`.
        self._entries = 0
        self._time_entries = 0
        self._unindexed_bytes = 0
        # Entries that are missing in the indexes behind the first `_entries`.
        self._missing = IndexEntries()
        # A time of the last write that is in the future, and the time at which that was noticed.
        self._noticed = (0, 0)
        # Last offset of the first batch with the largest timestamp, relative to the base.
        self._max_timestamp_offset = 0

    @property
    def path(self) -> Path:
        return segment_path(self._directory, self.base_offset)

    @property
    def is_indexed(self) -> bool:
        """True if the segment is long enough for index entries."""
        return self.size > INDEX_INTERVAL_BYTES

    def last_write_ms(self, now_ms: int) -> int | None:
        """Time of the last write to its file, None if there is no file.

        If that is in the future, the first `now_ms` since the write.
        """
        try:
            written_ms = self._disk.modified_ms(self.path)
        except OSError:
            return None
        if written_ms <= now_ms + AHEAD_MS_MAX:
            return written_ms
        if self._noticed[0] != written_ms:
            self._noticed = written_ms, now_ms
        return self._noticed[1]

    @property
    def is_unsynced(self) -> bool:
        """True if there are writes or a cut to sync."""
        return self._file is not None or self._cut

    # --- writing ----------------------------------------------------------------------------------

    def write(self, batches: Sequence[Buffer], *, direct: bool = False) -> None:
        """Append batches. They are durable after `sync`.

        Args:
            direct: around the page cache, see `File.write_direct`.
        """
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
        try:
            if direct:
                self._file.write_direct(batches, self.size)
            else:
                self._file.write_at(batches, self.size)
        except OSError:
            self._torn = True
            raise
        entries = IndexEntries()
        for batch in batches:
            self._add(read_header(batch), len(batch), entries)
        self._write_indexes(entries)

    def begin_sync(self) -> None:
        """Start writeback of the bytes that `sync` will wait for."""
        if self._file is not None:
            self._file.begin_sync()

    def link(self, source: Path, file: File, headers: Iterable[tuple[int, BatchHeader]]) -> None:
        """Make an existing file this segment, by a hard link.

        The content is durable after `sync`, the name after a sync of the directory.

        Args:
            source: the file.
            file: the same file, open; the segment takes ownership.
            headers: size and header of each batch in order; consumed before the link is made.

        Raises:
            OSError: the link has failed; nothing of this segment exists, except perhaps indexes,
                which are hints.
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

    def sync(self, time_ms: int | None = None) -> None:
        """Make writes and a cut durable, and close the file.

        Once another segment follows, the size of the file is trusted. So bytes that were cut must
        not return, and bytes of a failed write must not remain.

        Args:
            time_ms: the time of the last write, if the machine's clock is wrong.
        """
        if self._file is None and self._cut:
            self._file = self._disk.open(self.path)
        if self._file is not None:
            if self._torn:
                self._file.truncate(self.size)
                self._torn = False
            if time_ms is not None:
                with suppress(OSError):  # the file keeps the time of the wrong clock
                    self._disk.set_modified_ms(self.path, time_ms)
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
        """Determine the attributes from the file, or from its first `size` bytes.

        Reads only the headers behind the last index entry.

        Raises:
            CorruptData: the file is missing, shorter than `size`, or does not end with a whole
                batch.
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
        """The last position below `size` in both indexes; sets the largest timestamp up to there.

        Wrong indexes, and those that cannot be read, count as empty.
        """
        with MayBeLost():
            index, times = self._offset_index(), self._time_index()
            count = index.count_below(self.size)
            if count:
                count = min(count, times.count_below(index.entry(count - 1)[0] + 1))
            if count:
                position = self._checked_hint(file, index.entry(count - 1), self.size)
                latest = times.entry(count - 1)
                named = self._find(file, self.base_offset + latest[1], self.size)
                # A crash may leave zeros in place of an entry. They would match a first record of
                # 1970 and hide all later ones.
                if position and any(latest) and named is not None and named[1].max_timestamp == latest[0]:
                    self._entries = self._time_entries = count
                    self.max_timestamp, self._max_timestamp_offset = latest
                    return position
        self._entries = self._time_entries = 0
        return 0

    def cut(self) -> None:
        """Truncate the file to the measured size, and the indexes with it."""
        file = self._disk.open(self.path)
        try:
            if file.size() > self.size:
                file.truncate(self.size)
            # Even without a cut: an earlier start may have cut the file and ended before a sync.
            self._cut = True
        finally:
            file.close()
        # A list, not `or`: both are truncated.
        longer = [
            self._offset_index().truncate(self._entries),
            self._time_index().truncate(self._time_entries),
        ]
        if any(longer):
            log.info("cut the indexes of a segment", segment=str(self.path), entries=self._entries)

    # --- lost indexes -----------------------------------------------------------------------------

    def complete_indexes(self) -> None:
        """Write the entries that `measure` found missing at the end of the indexes, if any."""
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
        """True if a loss of power has lost sectors in the middle of the indexes."""
        # Zeros are never a valid offset entry, and a valid time entry only for records up to 1970.
        least = (0, 1) if self.first_timestamp > 0 else (_NO_TIMESTAMP, 0)
        return not (self._offset_index().ascends((1, 0)) and self._time_index().ascends(least))

    def scan_indexes(self, size: int) -> Generator[None, None, IndexEntries]:
        """Build the index entries for the first `size` bytes; a step reads some MiB.

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
        """Replace the index entries for the first `size` bytes; newer entries behind them stay."""
        log.warning("rebuilt the indexes of a segment", segment=str(self.path), entries=len(entries.offsets))
        offsets = [entry for entry in self._offset_index().entries()[: self._entries] if entry[1] >= size]
        times = self._time_index().entries()[self._time_entries - len(offsets) : self._time_entries]
        self._entries = self._time_entries = 0
        for index in (self._offset_index(), self._time_index()):
            with suppress(OSError):
                # What the device cannot read may be in a place that it cannot write.
                self._disk.unlink(index.path)
        self._write_indexes(IndexEntries(entries.offsets + offsets, entries.times + times))
        self._offset_index().truncate(self._entries)
        self._time_index().truncate(self._time_entries)

    def retire(self) -> list[Path]:
        """Rename the file and its indexes to retired names. Reads in progress continue.

        A disk too full for these names loses the files at once: the segment is not in the log that
        is durable, so a start needs none of them.

        Returns:
            The files to be removed.
        """
        self.close()
        retired = []
        for suffix in _SUFFIXES:
            path = self.path.with_suffix(suffix)
            gone = path.with_name(path.name + RETIRED)
            with suppress(FileNotFoundError):
                if retire_file(self._disk, path, gone):
                    retired.append(gone)
        return retired

    def _count(self, header: BatchHeader, position: int, entries: IndexEntries) -> None:
        """Count the batch at a position; adds its index entries, if it gets any."""
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
        """Count an appended batch of `size` bytes; adds its index entries, if it gets any."""
        if not self.size:
            self.first_timestamp = header.base_timestamp
        self._count(header, self.size, entries)
        self.size += size

    def _write_indexes(self, entries: IndexEntries) -> None:
        if not entries.offsets:
            return
        # A hint that cannot be written, or is out of range, is not a fault of the segment.
        with suppress(OSError, struct.error):
            self._offset_index().append(entries.offsets, self._entries)
            self._entries += len(entries.offsets)
            self._time_index().append(entries.times, self._time_entries)
            self._time_entries += len(entries.times)

    def share(self, directory: Path) -> None:
        """Give the files a second name in another directory; where that is impossible, copy them.
        Everything in them was synced but for a cut, and nothing is written any more.

        Raises:
            CorruptData: there are bytes behind the synced ones, or the file is gone.
        """
        try:
            file = self._disk.open(self.path)
        except FileNotFoundError as error:
            raise CorruptData(f"{self.path} is missing, it was synced") from error
        try:
            found = file.size()
            if found == self.size and self.is_unsynced:
                file.sync()  # else bytes that a start has cut may be back after a loss of power
        finally:
            file.close()
        if found != self.size:
            raise CorruptData(f"{self.path} has {found} bytes, {self.size} were synced")
        self._link_or_copy(self.path, directory)
        for suffix in _SUFFIXES[1:]:
            with suppress(FileNotFoundError):
                self._link_or_copy(self.path.with_suffix(suffix), directory)

    def _link_or_copy(self, path: Path, directory: Path) -> None:
        try:
            self._disk.link(path, directory / path.name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._copy(path, directory / path.name)

    def _copy(self, path: Path, target: Path) -> None:
        file = self._disk.open(path)
        try:
            copy = self._disk.open(target, create=True)
            try:
                size = file.size()
                for at in range(0, size, _STEP_BYTES):
                    copy.write_at([file.read_at(min(_STEP_BYTES, size - at), at)], at)
                copy.sync()
            finally:
                copy.close()
        finally:
            file.close()

    # --- reading ----------------------------------------------------------------------------------

    def read_bytes(self, position: int, size: int) -> bytes:
        """Read bytes as they are, damaged or not."""
        file = self._disk.open(self.path, background=True)
        try:
            return file.read_at(size, position)
        finally:
            file.close()

    def position_of(self, offset: int) -> int | None:
        """Position of the batch that has an offset, None if none does.

        Raises:
            CorruptData: the segment is damaged.
        """
        file = self._disk.open(self.path, background=True)
        try:
            found = self._find(file, offset, self.size)
        finally:
            file.close()
        return found[0] if found is not None and found[1].base_offset <= offset else None

    def headers_from(self, offset: int) -> Iterator[BatchHeader]:
        """Headers of the batches from the one with an offset on.

        Raises:
            CorruptData: the segment is damaged.
            OSError: the disk has failed.
        """
        file = self._disk.open(self.path, background=True)
        try:
            found = self._find(file, offset, self.size)
            if found is not None:
                for _, header in self._headers(file, found[0], self.size):
                    yield header
        finally:
            file.close()

    def read(self, offset: int, max_bytes: int, size: int) -> Chunk:
        """Read batches from the one with `offset` on, in the first `size` bytes.

        Returns:
            At most `max_bytes`, but at least one batch; none if all batches end at or below
            `offset`.

        Raises:
            CorruptData: a batch is damaged; the message names file and byte.
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
        """Position and base offset of the first batch at or after `timestamp_ms`.

        Between two entries of the index, whatever the timestamps are: a search that began at the
        largest timestamp before might go through the whole segment.
        """
        if self.max_timestamp < timestamp_ms:
            return None
        hint = self._time_index().numbered_floor(timestamp_ms - 1)
        file = self._disk.open(self.path, background=True)
        try:
            start = 0 if hint is None else self._checked_time_hint(file, *hint, size)
            for position, header in self._headers(file, start, size):
                if header.max_timestamp >= timestamp_ms:
                    return position, header.base_offset
        finally:
            file.close()
        return None

    def _find(self, file: File, offset: int, size: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the batch with `offset`, or of the first one behind it."""
        start = self._checked_hint(file, self._offset_index().floor(offset - self.base_offset), size)
        for position, header in self._headers(file, start, size):
            if header.next_offset > offset:
                return position, header
        return None

    def _checked_time_hint(self, file: File, number: int, hint: tuple[int, int], size: int) -> int:
        """Position up to which no batch has a larger timestamp than a time index entry; 0 if the
        batch that it names has another timestamp.

        The entry of the offset index with the same number is of the same batch, or, if entries of
        the time index could not be written, of an earlier one.
        """
        found = self._find(file, self.base_offset + hint[1], size)
        if found is None or found[1].max_timestamp != hint[0]:
            return 0
        try:
            position = self._checked_hint(file, self._offset_index().entry(number), size)
        except (OSError, struct.error):
            position = 0
        return max(found[0], position)

    def _checked_hint(self, file: File, hint: tuple[int, int] | None, size: int) -> int:
        """Position in an index entry if that batch is there, else 0."""
        if hint is None or hint[1] + HEADER_BYTES > size:
            return 0
        data = file.read_at(HEADER_BYTES, hint[1])
        if len(data) < HEADER_BYTES:
            return 0
        return hint[1] if read_header(data).next_offset - 1 == self.base_offset + hint[0] else 0

    def _headers(self, file: File, position: int, size: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of the batches from `position` on, verified to be consecutive."""
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

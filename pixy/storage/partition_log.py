"""The log of one partition: what has been committed and applied, on disk in segments and its newest part in memory.

A batch goes through three states. *Appended*: it has its offset, the journal has made it durable, and it is read from memory.
*Written*: it is also in a segment. *Synced*: the segment is on stable storage, and an applied position in the journal says so;
only then may the journal forget it. Answers wait for the first state alone; the other two happen behind it, many batches at a
time.

The event loop calls everything but `open`, `write`, `sync`, `read` and `find_timestamp`, which block. `write` and `sync` are
called by one worker at a time; `read` may run beside them, because it never looks behind `written_offset`.

A partition log holds no uncommitted record and is never truncated, except at start, to what was synced.

Invariants: begin_offset <= written_offset <= end_offset; the batches in memory are the last ones, without holes, and reach
back at least to written_offset.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pixy.errors import CorruptData, DataDirectoryError, StorageFault
from pixy.proto.state_pb2 import AppliedPosition
from pixy.records import patch_batch, read_header
from pixy.storage.disk import Disk
from pixy.storage.segment import Chunk, Segment, segment_path

__all__ = ["PartitionLog", "SegmentPosition", "Unwritten"]

_SEGMENT_NAME = re.compile(r"\d{20}\.log")
_TRIM = 64
"""Evicted batches are dropped from the lists this many at a time."""


class SegmentPosition(NamedTuple):
    """Where a log's active segment ends."""

    base_offset: int
    size: int


class Unwritten(NamedTuple):
    """Batches that are in memory only, and the offset behind them."""

    batches: list[bytearray]
    end_offset: int


class PartitionLog:
    """One partition's log.

    Args:
        disk: the file system.
        directory: where the segments are; made by the first write.
        segment_bytes: size at which a new segment begins.

    Attributes:
        begin_offset: first offset that is served.
        end_offset: offset that the next record gets; also the high watermark, because only committed records get here.
        written_offset: everything below it can be read from segments.
    """

    __slots__ = (
        "_bases",
        "_batches",
        "_directory",
        "_directory_made",
        "_disk",
        "_evicted",
        "_file_end",
        "_new_segment",
        "_segment_bytes",
        "_segments",
        "_unwritten_at",
        "begin_offset",
        "end_offset",
        "written_offset",
    )

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segments: list[Segment] = []
        self._directory_made = False
        self._new_segment = False
        # Offset behind the last batch in the segments, as the worker knows it.
        self._file_end = 0
        # Batches in memory with their base offsets; the first `_evicted` are gone, the list is trimmed now and then.
        self._bases: list[int] = []
        self._batches: list[bytearray | None] = []
        self._evicted = 0
        # Invariant: batches from this place in the lists on are not in a segment.
        self._unwritten_at = 0
        self.begin_offset = 0
        self.end_offset = 0
        self.written_offset = 0

    # --- on the event loop --------------------------------------------------------------------------------------

    def append(self, batch: bytearray, leader_epoch: int) -> int:
        """Take a committed batch: give it the next offset, write that and `leader_epoch` into its header.

        Returns:
            The offset of its first record.
        """
        base = self.end_offset
        patch_batch(batch, base, leader_epoch)
        self.end_offset = read_header(batch).next_offset
        self._bases.append(base)
        self._batches.append(batch)
        return base

    def read_memory(self, offset: int, max_bytes: int) -> Chunk | None:
        """Batches from the one that holds `offset` on, if memory reaches back that far; None if it does not.

        At most `max_bytes`, but at least one; none if `offset` is the end.
        """
        if offset == self.end_offset:
            return Chunk([], offset)
        at = bisect_right(self._bases, offset, self._evicted) - 1
        if at < self._evicted:
            return None
        chunk: list[memoryview] = []
        size = 0
        count = len(self._batches)
        while at < count:
            batch = self._batches[at]
            assert batch is not None
            size += len(batch)
            if chunk and size > max_bytes:
                break
            chunk.append(memoryview(batch))
            at += 1
        return Chunk(chunk, self._bases[at] if at < count else self.end_offset)

    def unwritten(self) -> Unwritten:
        """What is not in a segment yet."""
        batches = [batch for batch in self._batches[self._unwritten_at :] if batch is not None]
        return Unwritten(batches, self.end_offset)

    def wrote(self, unwritten: Unwritten) -> None:
        """Take note that a worker has written this."""
        self._unwritten_at += len(unwritten.batches)
        self.written_offset = unwritten.end_offset

    def evict(self) -> int:
        """Drop the oldest batch from memory; returns its size, 0 if it is not written yet or there is none."""
        at = self._evicted
        if at >= self._unwritten_at:
            return 0
        batch = self._batches[at]
        assert batch is not None
        self._batches[at] = None
        self._evicted = at + 1
        if self._evicted >= _TRIM:
            del self._bases[: self._evicted]
            del self._batches[: self._evicted]
            self._unwritten_at -= self._evicted
            self._evicted = 0
        return len(batch)

    # --- on a worker --------------------------------------------------------------------------------------------

    def open(self, applied: AppliedPosition | None, *, replayed: bool = True) -> None:
        """Bring the files to the state of `applied`, which the journal says was synced; without one, to nothing.

        What is in the files beyond that was written and never synced: the journal has it, and it is applied again.

        Args:
            applied: what the journal says, None if nothing.
            replayed: whether the journal has entries behind `applied`. If it has neither, then nothing was ever written.

        Raises:
            CorruptData: synced bytes are missing, or there are segments that the journal knows nothing of.
            DataDirectoryError: a file that does not belong here.
        """
        names = self._disk.names(self._directory)
        self._directory_made = bool(names)
        bases = self._base_offsets(names)
        if bases and applied is None and not replayed:
            raise CorruptData(
                f"{self._directory} has segments, but the journal does not know of any record there"
            )
        last = -1 if applied is None else applied.segment_base_offset
        for base in bases:
            if base > last:
                self._remove(base, names)
        kept = [base for base in bases if base <= last]
        if applied is None:
            return
        if applied.segment_bytes or applied.end_offset > applied.log_begin_offset:
            if not kept or kept[-1] != last:
                raise CorruptData(f"{segment_path(self._directory, last)} is missing, it was synced")
            self._segments = [Segment(self._disk, self._directory, base) for base in kept]
            for segment in self._segments[:-1]:
                segment.size = self._size_of(segment)
            self._segments[-1].cut(applied.segment_bytes)
        self.begin_offset = applied.log_begin_offset
        self.end_offset = self.written_offset = self._file_end = applied.end_offset

    def write(self, batches: Sequence[bytearray]) -> None:
        """Append batches to the active segment, beginning new ones as they fill up."""
        at = 0
        while at < len(batches) and read_header(batches[at]).base_offset < self._file_end:
            at += 1  # a call that failed half-way has written these
        while at < len(batches):
            segment = self._active(len(batches[at]), read_header(batches[at]).base_offset)
            room = self._segment_bytes - segment.size
            end = at
            while end < len(batches) and (end == at or room >= len(batches[end])):
                room -= len(batches[end])
                end += 1
            segment.write(batches[at:end])
            self._file_end = read_header(batches[end - 1]).next_offset
            at = end

    def sync(self) -> SegmentPosition:
        """Make everything written durable.

        Returns:
            Where the active segment ends.
        """
        for segment in self._segments:
            if segment.is_unsynced:
                segment.sync()
        if self._new_segment:
            self._disk.sync_directory(self._directory)
            self._new_segment = False
        if not self._segments:
            return SegmentPosition(0, 0)
        return SegmentPosition(self._segments[-1].base_offset, self._segments[-1].size)

    def close(self) -> None:
        """Close open files."""
        for segment in self._segments:
            segment.close()

    def read(self, offset: int, max_bytes: int) -> Chunk:
        """Batches from the one that holds `offset` on, from segments: at most `max_bytes`, at least one.

        Raises:
            CorruptData: what is stored there is damaged; names file and byte.
            StorageFault: the disk does not give it.
        """
        segments = self._segments
        at = max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1)
        with self._faults():
            while at < len(segments):
                size = segments[at].size
                if size:  # a new segment has no file yet
                    chunk = segments[at].read(offset, max_bytes, size)
                    if chunk.batches:
                        return chunk
                at += 1
        raise CorruptData(f"{self._directory} has no record batch for offset {offset}")

    def find_timestamp(self, timestamp_ms: int) -> int | None:
        """Base offset of the first batch in the segments with a timestamp at or after `timestamp_ms`.

        Raises:
            CorruptData, StorageFault: as `read`.
        """
        with self._faults():
            for segment in self._segments:
                size = segment.size
                found = segment.offset_for_timestamp(timestamp_ms, size) if size else None
                if found is not None:
                    return found[1]
        return None

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageFault(f"{self._directory} cannot be read: {error}") from error

    def _active(self, batch_size: int, base_offset: int) -> Segment:
        if self._segments and self._segments[-1].size + batch_size <= self._segment_bytes:
            return self._segments[-1]
        if self._segments and not self._segments[-1].size:
            return self._segments[-1]
        if not self._directory_made:
            self._disk.make_directory(self._directory)
            self._directory_made = True
        segment = Segment(self._disk, self._directory, base_offset)
        self._segments.append(segment)
        self._new_segment = True
        return segment

    def _base_offsets(self, names: list[str]) -> list[int]:
        bases = []
        for name in names:
            if not name.endswith(".log"):
                continue
            if _SEGMENT_NAME.fullmatch(name) is None:
                raise DataDirectoryError(f"{self._directory / name} is not a segment; move it out of the way")
            bases.append(int(name[:20]))
        return bases

    def _size_of(self, segment: Segment) -> int:
        file = self._disk.open(segment.path)
        try:
            return file.size()
        finally:
            file.close()

    def _remove(self, base: int, names: list[str]) -> None:
        path = segment_path(self._directory, base)
        for suffix in (".log", ".index", ".timeindex"):
            if path.with_suffix(suffix).name in names:
                self._disk.unlink(path.with_suffix(suffix))

"""The log of one partition: what has been committed and applied, on disk in segments and its newest part in memory.

A batch goes through three states. *Appended*: it has its offset, the journal has made it durable, and it is read from memory.
*Written*: it is also in a segment. *Synced*: the segment is on stable storage, and an applied position in the journal says so;
only then may the journal forget it. Answers wait for the first state alone; the other two happen behind it, many batches at a
time.

The event loop calls everything of the first part below; the rest blocks. `open`, `write`, `sync`, `drop_segments` and `remove` are
called by one worker at a time; `read` and `find_timestamp` may run beside them on another, because they never look behind
`written_offset`, and the list of segments is replaced when one goes. A log holds one file open at most, from a write to the next sync:
a segment is synced before the one behind it begins.

A partition log holds no uncommitted record and is never truncated, except at start, to what was synced. At its front it is cut by whole
segments: first the log begin offset moves, then an applied position with it becomes durable, and only then the files go.

Invariants: begin_offset <= end_offset, written_offset <= end_offset; the batches in memory are the last ones, without holes, and
reach back at least to written_offset.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pixy.errors import CorruptData, DataDirectoryError, OffsetOutOfRange, StorageFault
from pixy.proto.state_pb2 import AppliedPosition, PartitionIdentity
from pixy.records import BatchHeader, patch_batch, read_header
from pixy.storage.disk import Disk
from pixy.storage.identity import write_partition_identity
from pixy.storage.partition_directory import remove_partition_directory
from pixy.storage.retention import LogOptions, SegmentFacts, retained_from
from pixy.storage.segment import Chunk, Segment

__all__ = ["PartitionLog", "SyncedPosition", "Unwritten"]

_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex)")
_TRIM = 64
"""Evicted batches are dropped from the lists this many at a time."""


class SyncedPosition(NamedTuple):
    """What is durable of a log: where it begins, and where its active segment ends."""

    log_begin_offset: int
    segment_base_offset: int
    segment_bytes: int


class Unwritten(NamedTuple):
    """Batches that are in memory only, and the offset behind them."""

    batches: list[bytearray]
    end_offset: int


class PartitionLog:
    """One partition's log.

    Args:
        disk: the file system.
        directory: where the segments are; made by the first write.
        identity: whose log it is.
        options: when a segment is full, and what is kept; may be replaced at any time.

    Attributes:
        begin_offset: first offset that is served.
        end_offset: offset that the next record gets; also the high watermark, because only committed records get here.
        written_offset: everything below it can be read from segments.
    """

    __slots__ = (
        "_bases",
        "_batches",
        "_directory",
        "_disk",
        "_evicted",
        "_file_end",
        "_identity",
        "_identity_written",
        "_new_segment",
        "_removed",
        "_segments",
        "_unwritten_at",
        "begin_offset",
        "end_offset",
        "options",
        "written_offset",
    )

    def __init__(self, disk: Disk, directory: Path, identity: PartitionIdentity, options: LogOptions) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self.options = options
        self._segments: list[Segment] = []
        self._identity_written = False
        self._new_segment = False
        # The topic is deleted, and the files are gone.
        self._removed = False
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

    def move_begin(self, offset: int) -> bool:
        """Serve nothing below `offset` any more; whether that changed anything."""
        offset = min(offset, self.end_offset)
        if offset <= self.begin_offset:
            return False
        self.begin_offset = offset
        return True

    def retained_from(self, now_ms: int) -> int:
        """The log begin offset that the options ask for; never above what is in segments."""
        segments = [
            SegmentFacts(segment.end_offset, segment.size, segment.max_timestamp)
            for segment in self._segments
            if segment.size
        ]
        if not segments:
            return self.begin_offset
        offset = retained_from(segments, self.begin_offset, self.options, now_ms)
        return max(self.begin_offset, min(offset, self.written_offset))

    def has_segments_below(self, log_begin_offset: int) -> bool:
        """Whether `drop_segments` would find anything."""
        segments = self._segments
        return bool(segments) and bool(segments[0].size) and segments[0].end_offset <= log_begin_offset

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

    def open(self, applied: AppliedPosition | None, *, exists: bool, replayed: bool = True) -> None:
        """Bring the files to the state of `applied`, which the journal says was synced; without one, to nothing.

        What is in the files beyond that was written and never synced: the journal has it, and it is applied again. Segments below the
        log begin offset go. Nothing is changed before everything is known to be right.

        Args:
            applied: what the journal says, None if nothing.
            exists: whether there is a directory of this partition.
            replayed: whether the journal has entries behind `applied`. If it has neither, then nothing was ever written.

        Raises:
            CorruptData: synced bytes are missing, or there are segments that the journal knows nothing of.
            DataDirectoryError: a file that does not belong here.
        """
        # An identity that no position followed may be in memory only: its sync may have failed.
        self._identity_written = exists and applied is not None
        if applied is not None:
            self.begin_offset = applied.log_begin_offset
            self.end_offset = self.written_offset = self._file_end = applied.end_offset
        names = self._disk.names(self._directory) if exists else []
        bases = self._base_offsets(names)
        if applied is None:
            if bases and not replayed:
                raise CorruptData(
                    f"{self._directory} has segments, but the journal does not know of any record there"
                )
        else:
            self._segments = self._synced_segments(applied, bases)
            if self._segments:
                self._segments[-1].cut()
        found = {int(match[1]) for name in names if (match := _SEGMENT_FILE.fullmatch(name))}
        for base in sorted(found.difference(segment.base_offset for segment in self._segments)):
            Segment(self._disk, self._directory, base).remove()

    def _synced_segments(self, applied: AppliedPosition, bases: list[int]) -> list[Segment]:
        """The segments from the log begin offset to the applied position, each proven to go on where the one before it ends."""
        if applied.log_begin_offset == applied.end_offset:
            return []
        last = applied.segment_base_offset
        kept = [base for base in bases if base < last]
        while len(kept) > 1 and kept[1] <= applied.log_begin_offset:
            del kept[0]
        if kept and last <= applied.log_begin_offset:
            kept = []
        segments = [Segment(self._disk, self._directory, base) for base in [*kept, last]]
        if segments[0].base_offset > applied.log_begin_offset:
            raise CorruptData(
                f"{segments[0].path} is the first segment, but records from offset {applied.log_begin_offset} on were synced"
            )
        for segment, following in pairwise(segments):
            segment.measure()
            _check_end(segment, following.base_offset)
        segments[-1].measure(applied.segment_bytes)
        _check_end(segments[-1], applied.end_offset)
        return segments

    def write(self, batches: Sequence[bytearray]) -> None:
        """Append batches to the active segment, beginning new ones as they fill up."""
        if self._removed:
            return
        at = 0
        while at < len(batches) and read_header(batches[at]).base_offset < self._file_end:
            at += 1  # a call that failed half-way has written these
        while at < len(batches):
            segment = self._active(len(batches[at]), read_header(batches[at]))
            end = self._fitting(segment, batches, at)
            segment.write(batches[at:end])
            self._file_end = segment.end_offset
            at = end

    def _fitting(self, segment: Segment, batches: Sequence[bytearray], at: int) -> int:
        """Behind the last of the batches from `at` on that go into a segment, which has room for the first."""
        room = self.options.segment_bytes - segment.size - len(batches[at])
        # A segment that begins with old records is full before its size.
        latest = self.options.segment_ms + (
            segment.first_timestamp if segment.size else read_header(batches[at]).base_timestamp
        )
        end = at + 1
        while end < len(batches):
            room -= len(batches[end])
            if room < 0 or read_header(batches[end]).max_timestamp >= latest:
                break
            end += 1
        return end

    def sync(self) -> SyncedPosition:
        """Make everything written durable, and tell what that is."""
        if self._removed:
            return SyncedPosition(self._file_end, self._file_end, 0)
        for segment in self._segments:
            if segment.is_unsynced:
                segment.sync()
        if self._new_segment:
            self._disk.sync_directory(self._directory)
            self._new_segment = False
        begin_offset = min(self.begin_offset, self._file_end)
        if begin_offset == self._file_end:
            return SyncedPosition(begin_offset, begin_offset, 0)
        return SyncedPosition(begin_offset, self._segments[-1].base_offset, self._segments[-1].size)

    def drop_segments(self, log_begin_offset: int) -> None:
        """Remove the segments below a log begin offset that an applied position durably says."""
        if self._removed:
            return
        segments = self._segments
        gone = 0
        while gone < len(segments) and segments[gone].end_offset <= log_begin_offset and segments[gone].size:
            gone += 1
        self._segments = segments[gone:]
        for segment in segments[:gone]:
            segment.remove()

    def remove(self) -> None:
        """Remove everything: the topic is deleted. What is written afterwards goes nowhere."""
        self._removed = True
        self.close()
        self._segments = []
        remove_partition_directory(self._disk, self._directory, self._identity)

    def close(self) -> None:
        """Close open files."""
        for segment in self._segments:
            segment.close()

    def read(self, offset: int, max_bytes: int) -> Chunk:
        """Batches from the one that holds `offset` on, from segments: at most `max_bytes`, at least one.

        Raises:
            OffsetOutOfRange: the log begin offset has moved above `offset` meanwhile.
            CorruptData: what is stored there is damaged; names file and byte.
            StorageFault: the disk does not give it.
        """
        segments = self._segments
        first = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        with self._faults(offset):
            for segment in segments[first:] if first >= 0 else ():
                size = segment.size
                if size:  # a new segment has no file yet
                    chunk = segment.read(offset, max_bytes, size)
                    if chunk.batches:
                        return chunk
            if offset >= self.begin_offset:
                raise CorruptData(f"{self._directory} has no record batch for offset {offset}")
            raise FileNotFoundError

    def find_timestamp(self, timestamp_ms: int) -> int | None:
        """Base offset of the first batch in the segments with a timestamp at or after `timestamp_ms`.

        Raises:
            CorruptData, StorageFault: as `read`.
        """
        for segment in self._segments:
            size = segment.size
            if not size or segment.end_offset <= self.begin_offset:
                continue
            try:
                with self._faults(segment.end_offset - 1):
                    found = segment.offset_for_timestamp(timestamp_ms, size)
            except OffsetOutOfRange:
                continue  # it went meanwhile
            if found is not None:
                return found[1]
        return None

    @contextmanager
    def _faults(self, offset: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and offset < self.begin_offset:
                # The file went before it was opened.
                raise OffsetOutOfRange(
                    f"offset {offset} is out of range: {self.begin_offset} to {self.end_offset} are served",
                    self.begin_offset,
                    self.end_offset,
                ) from error
            raise StorageFault(f"{self._directory} cannot be read: {error}") from error

    def _active(self, batch_size: int, header: BatchHeader) -> Segment:
        """The segment that takes the next batch."""
        if self._segments:
            active = self._segments[-1]
            if not active.size or not self._is_full(active, batch_size, header):
                return active
            self._sync_full(active)
        if not self._identity_written:
            self._claim_directory()
        segment = Segment(self._disk, self._directory, header.base_offset)
        self._segments = [*self._segments, segment]
        self._new_segment = True
        return segment

    def _sync_full(self, segment: Segment) -> None:
        try:
            segment.sync()
        except OSError as error:
            # Not the error of a write, which is tried again when the disk was full: a failed sync must not be.
            raise StorageFault(f"{segment.path} cannot be synced: {error}") from error

    def _claim_directory(self) -> None:
        """Make the directory, and make it this partition's."""
        self._disk.make_directory(self._directory)
        if any(name.endswith(".log") for name in self._disk.names(self._directory)):
            raise CorruptData(f"{self._directory} has segments of another partition; move it out of the way")
        write_partition_identity(self._disk, self._directory / "identity", self._identity)
        self._identity_written = True

    def _is_full(self, segment: Segment, batch_size: int, header: BatchHeader) -> bool:
        return (
            segment.size + batch_size > self.options.segment_bytes
            or header.max_timestamp - segment.first_timestamp >= self.options.segment_ms
            # What it begins with is to go, and it goes only as a whole.
            or segment.base_offset < self.begin_offset
        )

    def _base_offsets(self, names: list[str]) -> list[int]:
        bases = []
        for name in names:
            if not name.endswith(".log"):
                continue
            if _SEGMENT_FILE.fullmatch(name) is None:
                raise DataDirectoryError(f"{self._directory / name} is not a segment; move it out of the way")
            bases.append(int(name[:20]))
        return bases


def _check_end(segment: Segment, expected: int) -> None:
    if segment.end_offset != expected:
        raise CorruptData(
            f"{segment.path} is corrupt at byte {segment.size}: its records end before offset {segment.end_offset}, "
            f"{expected} was expected"
        )

"""The log of one partition: its committed and applied batches, in segments and in memory.

A batch goes through three states. *Appended*: it has its offset, the journal has made it durable,
and it is read from memory. *Written*: it is also in a segment. *Synced*: the segment is on stable
storage, and an applied position in the journal says so; only then may the journal drop it.
Responses wait for the first state alone; the other two follow later, many batches at a time.

The methods of the first section below are called on the event loop; the others block. `open`,
`write`, `sync`, `drop_segments`, `replace_indexes` and `retire` are called by one worker at a time.
`read`, `find_timestamp` and `find_torn_indexes` may run beside them on another worker, because they
never read behind `written_offset`, and the list of segments is replaced when a segment is removed.
A log holds at most one open file, from a write to the next sync: a segment is synced before the
next one begins.

A staged batch is appended together with all of its part, which is a file and never in memory. Until
the part is written, it is read from that file. To write a part means to copy its batches, or, if it
is large, to make the file a segment; see `staged_part`.

A partition log has no uncommitted records and is never truncated, except at startup, to its synced
position. It is cut at the front by whole segments: first the log begin offset moves, then an
applied position with it becomes durable, and only then the files are removed.

If a part turns out to be damaged when it is to be written, the log is *given up* in this process:
everything behind its applied position is left to the journal. From then on it only counts offsets,
and neither stores nor serves batches.

Invariants: begin_offset <= end_offset, written_offset <= end_offset; the batches in memory, with
the parts between them, are the last ones, without holes, and reach back at least to written_offset,
unless the log is given up.
"""

import errno
import re
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from pixy.errors import CorruptData, DataDirectoryError, OffsetOutOfRange, StorageFault
from pixy.proto.state_pb2 import AppliedPosition, PartitionIdentity
from pixy.records import BatchHeader, patch_batch, read_header
from pixy.storage.disk import Disk
from pixy.storage.identity import write_partition_identity
from pixy.storage.index import IndexEntries
from pixy.storage.log_tail import Appended, LogTail, Unwritten
from pixy.storage.partition_directory import rename_partition_directory, retire_partition_directory
from pixy.storage.retention import LogOptions, SegmentFacts, retained_from
from pixy.storage.segment import RETIRED, Chunk, Segment
from pixy.storage.staged_part import StagedPart
from pixy.storage.synced_segments import check_not_ahead, synced_segments

__all__ = ["PartitionLog", "RebuiltIndexes", "SyncedPosition", "TopicLogs", "Unwritten"]

log = structlog.get_logger(__name__)

_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex)")
_RETIRED_FILE = re.compile(_SEGMENT_FILE.pattern + re.escape(RETIRED))
LINK_BYTES_MIN = 4 << 20
"""Minimum size of a staged part that becomes a segment. Smaller ones are copied: fewer files."""

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
"""Errors of a file system that cannot link a file: then a part of any size is copied."""


class SyncedPosition(NamedTuple):
    """Durable state of a log: its begin offset, and the end of its active segment."""

    log_begin_offset: int
    segment_base_offset: int
    segment_bytes: int


class GivenUp(NamedTuple):
    """Sizes of a log at the time when it was given up.

    Attributes:
        unwritten_bytes: bytes that were in no segment.
        memory_bytes: bytes in memory.
        undurable_bytes: bytes that are durable in the journal only.
    """

    unwritten_bytes: int
    memory_bytes: int
    undurable_bytes: int


class RebuiltIndexes(NamedTuple):
    """Correct index entries for the first `size` bytes of a segment."""

    segment: Segment
    entries: IndexEntries
    size: int


@dataclass(eq=False, slots=True)
class TopicLogs:
    """State shared by the logs of one topic.

    Attributes:
        options: limits of segments and retention; may be replaced at any time.
        deleted: the topic was deleted: nothing is written or synced any more, and the files of
            parts may be missing.
    """

    options: LogOptions
    deleted: bool = False


class PartitionLog:
    """One partition's log.

    Args:
        disk: the file system.
        directory: the parent of the segments; created by the first write.
        identity: the owner of the directory.
        topic: the state shared with the other logs of the topic.

    Attributes:
        begin_offset: the first offset that is served.
        identity, topic: as given.
        end_offset: the offset of the next record; also the high watermark, because a log has only
            committed records.
        written_offset: the end of the batches in segments.
    """

    __slots__ = (
        "_directory",
        "_disk",
        "_file_end",
        "_given_up",
        "_identity_written",
        "_linked",
        "_new_segment",
        "_segments",
        "_tail",
        "_unsynced_bytes",
        "begin_offset",
        "end_offset",
        "identity",
        "topic",
        "written_offset",
    )

    def __init__(self, disk: Disk, directory: Path, identity: PartitionIdentity, topic: TopicLogs) -> None:
        self._disk = disk
        self._directory = directory
        self.identity = identity
        self.topic = topic
        self._segments: list[Segment] = []
        self._identity_written = False
        self._new_segment = False
        # Base offset of the last segment that was a staged part. It takes no more batches, and its
        # file may have a second name.
        self._linked = -1
        # Nothing more is stored, written or synced.
        self._given_up = False
        # Offset behind the last batch in the segments; the worker's.
        self._file_end = 0
        # Bytes in the segments behind the last `sync`, which only the journal has durably; without
        # parts that became segments.
        self._unsynced_bytes = 0
        self._tail = LogTail()
        self.begin_offset = 0
        self.end_offset = 0
        self.written_offset = 0

    # --- on the event loop ------------------------------------------------------------------------

    def append(self, batch: bytearray, leader_epoch: int) -> int:
        """Append a committed batch: write the next offset and `leader_epoch` into its header.

        Returns:
            The offset of its first record.
        """
        base = self.end_offset
        self.end_offset = patch_batch(batch, base, leader_epoch)
        if not self._given_up:
            self._tail.append(batch, base)
        return base

    def append_part(self, part: StagedPart, leader_epoch: int) -> None:
        """Append a committed part of a stage: its records get the next offsets.

        The file must stay until the part is synced.
        """
        placed = part.placed(self.end_offset, leader_epoch)
        if not self._given_up:
            self._tail.append_part(placed)
        self.end_offset = placed.end_offset

    def read_memory(self, offset: int, max_bytes: int) -> Chunk | None:
        """Batches in memory from the one with `offset` on; None if they must be read from files.

        At most `max_bytes`, but at least one batch; none if `offset` is the end.
        """
        if offset == self.end_offset:
            return Chunk([], offset)
        return self._tail.read(offset, max_bytes, self.end_offset)

    def move_begin(self, offset: int) -> bool:
        """Move the log begin offset up to `offset`; False if it is there already."""
        offset = min(offset, self.end_offset)
        if offset <= self.begin_offset:
            return False
        self.begin_offset = offset
        return True

    def retained_from(self, now_ms: int) -> int:
        """The log begin offset by the retention options; never above the written offset."""
        segments = [
            SegmentFacts(segment.end_offset, segment.size, segment.max_timestamp)
            for segment in self._segments
            if segment.size
        ]
        if not segments:
            return self.begin_offset
        offset = retained_from(segments, self.begin_offset, self.topic.options, now_ms)
        return max(self.begin_offset, min(offset, self.written_offset))

    def has_segments_below(self, log_begin_offset: int) -> bool:
        """True if `drop_segments` would remove a segment."""
        segments = self._segments
        return bool(segments) and bool(segments[0].size) and segments[0].end_offset <= log_begin_offset

    def give_up(self) -> "GivenUp":
        """Stop storing, writing and syncing, because a part cannot be written.

        Not to be called while a worker uses the log.
        """
        unwritten, memory_bytes = self.unwritten().memory_bytes, self._tail.memory_bytes
        self._given_up = True
        self._tail = LogTail()
        return GivenUp(unwritten, memory_bytes, unwritten + self._unsynced_bytes)

    def unwritten(self) -> Unwritten:
        """Batches and parts that are in no segment."""
        return self._tail.unwritten(self.end_offset)

    def wrote(self, unwritten: Unwritten) -> None:
        """Mark batches and parts as written by a worker."""
        self._tail.wrote(unwritten)
        self.written_offset = unwritten.end_offset

    def evict(self) -> int:
        """Drop the oldest batch from memory.

        Returns:
            Its size; 0 if it is not written yet, or there is none.
        """
        return self._tail.evict()

    # --- on a worker ------------------------------------------------------------------------------

    def open(self, applied: AppliedPosition | None, *, exists: bool, replayed: bool = True) -> list[Path]:
        """Cut the files back to the synced state in `applied`; without one, to an empty log.

        Anything behind it was written and never synced: the journal has it and replays it. Segments
        below the log begin offset are removed. Nothing is changed before everything is verified.

        Args:
            applied: the applied position in the journal, None if there is none.
            exists: True if the partition has a directory.
            replayed: True if the journal has entries behind `applied`. With neither, nothing was
                ever written.

        Returns:
            Obsolete files, to be removed.

        Raises:
            CorruptData: synced bytes are missing, or there are segments, or bytes in them, that are
                unknown to the journal.
            DataDirectoryError: a foreign file.
        """
        # Without a position the identity may be in memory only: its sync may have failed.
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
            self._segments = synced_segments(self._disk, self._directory, applied, bases)
            if not replayed:
                check_not_ahead(self._disk, self._directory, applied, bases, self._segments[-1:])
            if self._segments:
                self._segments[-1].cut()
            for segment in self._segments:
                segment.complete_indexes()
        found = {int(match[1]) for name in names if (match := _SEGMENT_FILE.fullmatch(name))}
        gone = sorted(found.difference(segment.base_offset for segment in self._segments))
        left = [self._directory / name for name in names if _RETIRED_FILE.fullmatch(name)]
        return left + self._retire(
            [Segment(self._disk, self._directory, base) for base in gone], "that the journal does not need"
        )

    def write(self, appended: Sequence[Appended]) -> None:
        """Write batches to the active segment, rolling full ones, and copy or link parts of stages.

        Raises:
            CorruptData: a part is damaged or missing; the batches before it may have been written.
            OSError: the disk has failed; a call with the same arguments resumes where this one
                ended.
        """
        batches: list[bytearray] = []
        for each in () if self.topic.deleted else appended:
            if isinstance(each, StagedPart):
                self._write_batches(batches)
                batches = []
                try:
                    self._write_part(each)
                except FileNotFoundError as error:
                    # Another thread removes stages that belong to deleted topics only.
                    if self.topic.deleted:
                        return
                    if error.filename != str(each.path):
                        raise
                    raise CorruptData(f"{each.path} is missing, it was sealed") from error
            else:
                batches.append(each)
        self._write_batches(batches)

    def _write_part(self, part: StagedPart) -> None:
        if part.end_offset <= self._file_end:
            return  # a call that failed later has written it
        if part.size >= LINK_BYTES_MIN and part.base_offset == self._file_end and self._link(part):
            return
        for batches in part.batches(self._disk):
            self._write_batches(batches)

    def _link(self, part: StagedPart) -> bool:
        """Make the file of a part a segment; False if that is not possible."""
        if self._segments:
            if not self._segments[-1].size:
                return False  # a call that failed later has begun to copy it
            self._sync_full(self._segments[-1])
        if not self._identity_written:
            self._claim_directory()
        segment = Segment(self._disk, self._directory, part.base_offset)
        file = self._disk.open(part.path)
        try:
            segment.link(part.path, file, part.patch(file))
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
        self._segments = [*self._segments, segment]
        self._new_segment = True
        self._linked = segment.base_offset
        self._file_end = segment.end_offset
        return True

    def _write_batches(self, batches: Sequence[bytearray]) -> None:
        at = 0
        while at < len(batches) and read_header(batches[at]).base_offset < self._file_end:
            at += 1  # a call that failed half-way has written these
        while at < len(batches):
            segment = self._active(len(batches[at]), read_header(batches[at]))
            end = self._fitting(segment, batches, at)
            size = segment.size
            segment.write(batches[at:end])
            self._unsynced_bytes += segment.size - size
            self._file_end = segment.end_offset
            at = end

    def _fitting(self, segment: Segment, batches: Sequence[bytearray], at: int) -> int:
        """End of the batches from `at` on that fit into a segment, where the first one does fit."""
        room = self.topic.options.segment_bytes - segment.size - len(batches[at])
        # Age can fill a segment before size does.
        latest = self.topic.options.segment_ms + (
            segment.first_timestamp if segment.size else read_header(batches[at]).base_timestamp
        )
        end = at + 1
        while end < len(batches):
            room -= len(batches[end])
            if room < 0 or read_header(batches[end]).max_timestamp >= latest:
                break
            end += 1
        return end

    def begin_sync(self) -> None:
        """Start writeback of the bytes that `sync` will wait for; speeds up syncs of many logs."""
        for segment in self._segments[-1:]:
            segment.begin_sync()

    def sync(self) -> SyncedPosition:
        """Make everything written durable; returns the durable state."""
        if self.topic.deleted:
            return SyncedPosition(self._file_end, self._file_end, 0)
        for segment in self._segments:
            if segment.is_unsynced:
                segment.sync()
        if self._new_segment:
            self._disk.sync_directory(self._directory)
            self._new_segment = False
        self._unsynced_bytes = 0
        begin_offset = min(self.begin_offset, self._file_end)
        if begin_offset == self._file_end:
            return SyncedPosition(begin_offset, begin_offset, 0)
        return SyncedPosition(begin_offset, self._segments[-1].base_offset, self._segments[-1].size)

    def drop_segments(self, log_begin_offset: int) -> list[Path]:
        """Retire the segments below the log begin offset of a durable applied position.

        Returns:
            The files to be removed.
        """
        if self.topic.deleted:
            return []
        segments = self._segments
        gone = 0
        while gone < len(segments) and segments[gone].end_offset <= log_begin_offset and segments[gone].size:
            gone += 1
        self._segments = segments[gone:]
        return self._retire(segments[:gone], f"below the log begin offset {log_begin_offset}")

    def _retire(self, segments: Sequence[Segment], why: str) -> list[Path]:
        if segments:
            first = str(segments[0].path)
            log.info(f"removing segments {why}", first=first, segments=len(segments))
        return [path for segment in segments for path in segment.retire()]

    def has_indexes(self) -> bool:
        """True if any segment is long enough for indexes."""
        return any(segment.is_indexed for segment in self._segments)

    def find_torn_indexes(self) -> Generator[None, None, list[RebuiltIndexes]]:
        """Scan the segments with torn indexes, for `replace_indexes`.

        Changes nothing; each step is short.
        """
        rebuilt = []
        for segment in self._segments:
            size = segment.size
            # Faults of a segment are for its readers to report, and a removed one needs no index.
            with suppress(OSError, CorruptData):
                if segment.is_indexed and segment.has_torn_indexes():
                    rebuilt.append(RebuiltIndexes(segment, (yield from segment.scan_indexes(size)), size))
            yield
        return rebuilt

    def replace_indexes(self, rebuilt: Sequence[RebuiltIndexes]) -> None:
        """Replace torn indexes."""
        for segment, entries, size in rebuilt:
            if segment in self._segments:
                segment.replace_indexes(entries, size)

    def retire(self) -> Path | None:
        """Rename the directory of a deleted topic's log. Nothing is written afterwards.

        Returns:
            The new path, to be removed; None if there is no directory.
        """
        self.close()
        self._segments = []
        if self._identity_written:
            with suppress(FileNotFoundError):
                return rename_partition_directory(self._disk, self._directory, self.identity.raft_group)
        return retire_partition_directory(self._disk, self._directory, self.identity)

    def close(self) -> None:
        """Close open files."""
        for segment in self._segments:
            segment.close()

    def read(self, offset: int, max_bytes: int) -> Chunk:
        """Read batches from files, beginning with the one that has `offset`.

        At most `max_bytes`, but at least one batch.

        Raises:
            OffsetOutOfRange: the log begin offset has moved above `offset` meanwhile.
            CorruptData: the stored bytes are damaged; the message names file and byte.
            StorageFault: the disk has failed.
        """
        # Parts before segments: a part that was removed from the list is in a segment by then.
        for part in self._tail.parts:
            if part.base_offset <= offset < part.end_offset:
                with suppress(FileNotFoundError), self._faults(offset, may_go=True):
                    return part.read(self._disk, offset, max_bytes)
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
        """Base offset of the first batch in the segments at or after `timestamp_ms`.

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
                continue  # removed meanwhile
            if found is not None:
                return found[1]
        return None

    @contextmanager
    def _faults(self, offset: int, *, may_go: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and may_go:
                raise
            if isinstance(error, FileNotFoundError) and offset < self.begin_offset:
                # The file was removed before it was opened.
                raise OffsetOutOfRange(
                    f"offset {offset} is out of range: {self.begin_offset} to {self.end_offset} are served",
                    self.begin_offset,
                    self.end_offset,
                ) from error
            raise StorageFault(f"{self._directory} cannot be read: {error}") from error

    def _active(self, batch_size: int, header: BatchHeader) -> Segment:
        """The segment for the next batch; rolls a full one."""
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
            # Not an OSError, which is retried if the disk was full: a failed sync must not be.
            raise StorageFault(f"{segment.path} cannot be synced: {error}") from error

    def _claim_directory(self) -> None:
        """Create the directory with this partition's identity."""
        self._disk.make_directory(self._directory)
        if any(name.endswith(".log") for name in self._disk.names(self._directory)):
            raise CorruptData(f"{self._directory} has segments of another partition; move it out of the way")
        write_partition_identity(self._disk, self._directory / "identity", self.identity)
        self._identity_written = True

    def _is_full(self, segment: Segment, batch_size: int, header: BatchHeader) -> bool:
        return (
            segment.base_offset == self._linked
            or segment.size + batch_size > self.topic.options.segment_bytes
            or header.max_timestamp - segment.first_timestamp >= self.topic.options.segment_ms
            # Its first records are to be removed, and segments are removed as a whole.
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

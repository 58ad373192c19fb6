"""The log of one partition: what has been committed and applied, on disk in segments and its newest part in memory.

A batch goes through three states. *Appended*: it has its offset, the journal has made it durable, and it is read from memory.
*Written*: it is also in a segment. *Synced*: the segment is on stable storage, and an applied position in the journal says so;
only then may the journal forget it. Answers wait for the first state alone; the other two happen behind it, many batches at a
time.

The event loop calls everything of the first part below; the rest blocks. `open`, `write`, `sync`, `drop_segments`, `replace_indexes` and
`retire` are called by one worker at a time; `read`, `find_timestamp` and `find_torn_indexes` may run beside them on another, because they
never look behind `written_offset`, and the list of segments is replaced when one goes. A log holds one file open at most, from a write to
the next sync: a segment is synced before the one behind it begins.

A batch that was staged is appended with all of its part, which is a file: it is never in memory. Until the part is written it is read
from that file. Writing it means to copy its batches, or, if it is large, to make the file a segment; see `staged_part`.

A partition log holds no uncommitted record and is never truncated, except at start, to what was synced. At its front it is cut by whole
segments: first the log begin offset moves, then an applied position with it becomes durable, and only then the files go.

A part that is found damaged when it is to be written ends the log's life in this process: it is *given up*, with everything behind its
applied position left to the journal. From there on it counts offsets, and takes and gives nothing.

Invariants: begin_offset <= end_offset, written_offset <= end_offset; the batches in memory, with the parts between them, are the last ones,
without holes, and reach back at least to written_offset, unless the log is given up.
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
"""A staged part of this size or above becomes a segment as it is; a smaller one is copied, because small segments are many files."""

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
"""What a file system answers that cannot give a file one more name there: then a part is copied, whatever its size."""


class SyncedPosition(NamedTuple):
    """What is durable of a log: where it begins, and where its active segment ends."""

    log_begin_offset: int
    segment_base_offset: int
    segment_bytes: int


class GivenUp(NamedTuple):
    """What a log had when it was given up: bytes that were in no segment, bytes in memory, and bytes that only the journal has durably."""

    unwritten_bytes: int
    memory_bytes: int
    undurable_bytes: int


class RebuiltIndexes(NamedTuple):
    """What the indexes of a segment should say of its first `size` bytes."""

    segment: Segment
    entries: IndexEntries
    size: int


@dataclass(eq=False, slots=True)
class TopicLogs:
    """What the logs of one topic share.

    Attributes:
        options: when a segment is full, and what is kept; may be replaced at any time.
        deleted: the topic is no more: nobody needs what is appended, nothing is written or synced, and files of parts may go.
    """

    options: LogOptions
    deleted: bool = False


class PartitionLog:
    """One partition's log.

    Args:
        disk: the file system.
        directory: where the segments are; made by the first write.
        identity: whose log it is.
        topic: what it shares with the topic's other logs.

    Attributes:
        begin_offset: first offset that is served.
        identity, topic: as given.
        end_offset: offset that the next record gets; also the high watermark, because only committed records get here.
        written_offset: everything below it can be read from segments.
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
        # Base offset of the last segment that was a staged part: as such it is full, and its file may have a second name.
        self._linked = -1
        # Nothing more is kept, written or synced.
        self._given_up = False
        # Offset behind the last batch in the segments, as the worker knows it.
        self._file_end = 0
        # Batches that no `sync` has told of, without parts that became segments: what of the segments only the journal has durably.
        self._unsynced_bytes = 0
        self._tail = LogTail()
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
        self.end_offset = patch_batch(batch, base, leader_epoch)
        if not self._given_up:
            self._tail.append(batch, base)
        return base

    def append_part(self, part: StagedPart, leader_epoch: int) -> None:
        """Take a committed part of a stage: its records get the next offsets. Its file must stay until it is synced."""
        placed = part.placed(self.end_offset, leader_epoch)
        if not self._given_up:
            self._tail.append_part(placed)
        self.end_offset = placed.end_offset

    def read_memory(self, offset: int, max_bytes: int) -> Chunk | None:
        """Batches from the one that holds `offset` on, if they are in memory; None if they must be read from files.

        At most `max_bytes`, but at least one; none if `offset` is the end.
        """
        if offset == self.end_offset:
            return Chunk([], offset)
        return self._tail.read(offset, max_bytes, self.end_offset)

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
        offset = retained_from(segments, self.begin_offset, self.topic.options, now_ms)
        return max(self.begin_offset, min(offset, self.written_offset))

    def has_segments_below(self, log_begin_offset: int) -> bool:
        """Whether `drop_segments` would find anything."""
        segments = self._segments
        return bool(segments) and bool(segments[0].size) and segments[0].end_offset <= log_begin_offset

    def give_up(self) -> "GivenUp":
        """Keep, write and sync nothing any more, because a part cannot be written. Not while a worker works on the log."""
        unwritten, memory_bytes = self.unwritten().memory_bytes, self._tail.memory_bytes
        self._given_up = True
        self._tail = LogTail()
        return GivenUp(unwritten, memory_bytes, unwritten + self._unsynced_bytes)

    def unwritten(self) -> Unwritten:
        """What is not in a segment yet."""
        return self._tail.unwritten(self.end_offset)

    def wrote(self, unwritten: Unwritten) -> None:
        """Take note that a worker has written this."""
        self._tail.wrote(unwritten)
        self.written_offset = unwritten.end_offset

    def evict(self) -> int:
        """Drop the oldest batch from memory; returns its size, 0 if it is not written yet or there is none."""
        return self._tail.evict()

    # --- on a worker --------------------------------------------------------------------------------------------

    def open(self, applied: AppliedPosition | None, *, exists: bool, replayed: bool = True) -> list[Path]:
        """Bring the files to the state of `applied`, which the journal says was synced; without one, to nothing.

        What is in the files beyond that was written and never synced: the journal has it, and it is applied again. Segments below the
        log begin offset go. Nothing is changed before everything is known to be right.

        Args:
            applied: what the journal says, None if nothing.
            exists: whether there is a directory of this partition.
            replayed: whether the journal has entries behind `applied`. If it has neither, then nothing was ever written.

        Returns:
            Files that are needed no more, to be removed.

        Raises:
            CorruptData: synced bytes are missing, or there are segments, or bytes in them, that the journal knows nothing of.
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
        """Append batches to the active segment, beginning new ones as they fill up, and parts of stages as is best for them.

        Raises:
            CorruptData: a part is damaged or missing; what is before it may be written.
            OSError: the disk refuses; a call with the same goes on where this one ended.
        """
        batches: list[bytearray] = []
        for each in () if self.topic.deleted else appended:
            if isinstance(each, StagedPart):
                self._write_batches(batches)
                batches = []
                try:
                    self._write_part(each)
                except FileNotFoundError as error:
                    # Another thread removes stages that only a deleted topic has needed.
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
        """Make a part's file a segment; whether the file system can."""
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
        """Behind the last of the batches from `at` on that go into a segment, which has room for the first."""
        room = self.topic.options.segment_bytes - segment.size - len(batches[at])
        # A segment that begins with old records is full before its size.
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
        """Let the system begin with what `sync` will wait for: worth it before many logs are synced."""
        for segment in self._segments[-1:]:
            segment.begin_sync()

    def sync(self) -> SyncedPosition:
        """Make everything written durable, and tell what that is."""
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
        """Retire the segments below a log begin offset that an applied position durably says; returns the files to be removed."""
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
        """Whether any segment is long enough for indexes."""
        return any(segment.is_indexed for segment in self._segments)

    def find_torn_indexes(self) -> Generator[None, None, list[RebuiltIndexes]]:
        """What `replace_indexes` is to write where a loss of power has torn indexes. Changes nothing; each step is short."""
        rebuilt = []
        for segment in self._segments:
            size = segment.size
            # Who reads finds what is wrong with a segment, and one that went meanwhile needs no index.
            with suppress(OSError, CorruptData):
                if segment.is_indexed and segment.has_torn_indexes():
                    rebuilt.append(RebuiltIndexes(segment, (yield from segment.scan_indexes(size)), size))
            yield
        return rebuilt

    def replace_indexes(self, rebuilt: Sequence[RebuiltIndexes]) -> None:
        """Replace indexes that were found to be torn."""
        for segment, entries, size in rebuilt:
            if segment in self._segments:
                segment.replace_indexes(entries, size)

    def retire(self) -> Path | None:
        """Take the directory's name away: the topic is deleted. Nothing is written afterwards.

        Returns:
            The directory, which is to be removed; None if there is none.
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
        """Batches from the one that holds `offset` on, from segments: at most `max_bytes`, at least one.

        Raises:
            OffsetOutOfRange: the log begin offset has moved above `offset` meanwhile.
            CorruptData: what is stored there is damaged; names file and byte.
            StorageFault: the disk does not give it.
        """
        # Looked at before the segments: a part that is not among them any more is in one of these.
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
    def _faults(self, offset: int, *, may_go: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and may_go:
                raise
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
        write_partition_identity(self._disk, self._directory / "identity", self.identity)
        self._identity_written = True

    def _is_full(self, segment: Segment, batch_size: int, header: BatchHeader) -> bool:
        return (
            segment.base_offset == self._linked
            or segment.size + batch_size > self.topic.options.segment_bytes
            or header.max_timestamp - segment.first_timestamp >= self.topic.options.segment_ms
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

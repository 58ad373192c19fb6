"""The files of a partition log: its segments, and the directory that they are in.

Changed by one worker at a time. `segments` is replaced when one is added or removed, so that
readers on other threads may take the current list. At most one file is open, from a write to the
next sync: a segment is synced before the next one begins.

To write a part of a stage means to copy its batches, or, if it is large, to make its file a
segment; see `staged_part`.
"""

import errno
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from pixy.errors import CorruptData, DataDirectoryError, StorageFault
from pixy.proto.state_pb2 import AppliedPosition, PartitionIdentity
from pixy.records import BatchHeader, read_header
from pixy.storage.disk import Disk, is_disk_full, lost_is_corrupt, write_partition_identity
from pixy.storage.partition.applied_position import why_no_position
from pixy.storage.partition.index import IndexEntries
from pixy.storage.partition.log_tail import Appended
from pixy.storage.partition.partition_directory import rename_partition_directory, retire_partition_directory
from pixy.storage.partition.retention import LogOptions
from pixy.storage.partition.segment import RETIRED, Segment
from pixy.storage.partition.staged_part import StagedPart
from pixy.storage.partition.synced_segments import check_not_ahead, synced_segments

log = structlog.get_logger(__name__)

_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex)")
_RETIRED_FILE = re.compile(_SEGMENT_FILE.pattern + re.escape(RETIRED))
COPY_MANIFEST = "copy"
"""File of a directory that was, or is to become, the copy of a replica; see `pixy.copies`."""

LINK_BYTES_MIN = 4 << 20
"""Minimum size of a staged part that becomes a segment. Smaller ones are copied: fewer files."""

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
"""Errors of a file system that cannot link a file: then a part of any size is copied."""


class RebuiltIndexes(NamedTuple):
    """Correct index entries for the first `size` bytes of a segment."""

    segment: Segment
    entries: IndexEntries
    size: int


@dataclass(slots=True)
class AgedSegments:
    """Segments that one job of the writer may still end because of the age of their records, each
    with a sync: whoever writes records chooses their timestamps. When none is left, segments take
    younger records as well; the next job ends them.
    """

    left: int = 16


@dataclass(eq=False, slots=True)
class TopicLogs:
    """State shared by the logs of one topic.

    Attributes:
        options: limits of segments and retention; may be replaced at any time.
        deleted: the topic was deleted: nothing is written or synced any more, and the files of
            parts may be missing.
        file_time_ms: the time to give to written files, None to leave them that of the machine's
            clock. Called by the worker.
    """

    options: LogOptions
    deleted: bool = False
    file_time_ms: Callable[[], int | None] = lambda: None


class LogSegments:
    """The segments of one partition log.

    Args:
        disk: the file system.
        directory: the parent of the segments; created by the first write.
        identity: the owner of the directory.
        topic: the state shared with the other logs of the topic.
        direct: batches are written around the page cache, see `File.write_direct`.

    Attributes:
        disk, directory: as given.
        segments: in the order of their offsets.
        pinned_from: segments with records from this offset on are not removed, None: all may be.
        end_offset: offset behind the last batch in them.
        unsynced_bytes: bytes in them behind the last `sync`, which only the journal has durably;
            without parts that became segments.
        unkept_bytes: bytes in them that were written since the caller has set it to 0.
    """

    __slots__ = (
        "_aged",
        "_direct",
        "_identity",
        "_identity_written",
        "_linked",
        "_log_begin_offset",
        "_new_segment",
        "_topic",
        "directory",
        "disk",
        "end_offset",
        "pinned_from",
        "segments",
        "unkept_bytes",
        "unsynced_bytes",
    )

    def __init__(
        self, disk: Disk, directory: Path, identity: PartitionIdentity, topic: TopicLogs, *, direct: bool
    ) -> None:
        self.disk = disk
        self.directory = directory
        self._identity = identity
        self._topic = topic
        self._direct = direct
        self.segments: list[Segment] = []
        self.pinned_from: int | None = None
        self._identity_written = False
        self._new_segment = False
        # Base offset of the last segment that was a staged part. It takes no more batches, and its
        # file may have a second name.
        self._linked = -1
        # The log begin offset at the begin of the last `write`.
        self._log_begin_offset = 0
        # Of the job that `write` belongs to.
        self._aged = AgedSegments()
        self.end_offset = 0
        self.unsynced_bytes = self.unkept_bytes = 0

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
            CorruptData: `applied` is of no log, synced bytes are missing, or there are segments, or
                bytes in them, that are unknown to the journal.
            DataDirectoryError: a foreign file.
        """
        reason = "" if applied is None else why_no_position(applied)
        if reason:
            raise CorruptData(f"{self.directory}: {reason}")
        # Without a position the identity may be in memory only: its sync may have failed.
        self._identity_written = exists and applied is not None
        if applied is not None:
            self.end_offset = applied.end_offset
        names = self.disk.names(self.directory) if exists else []
        bases = self._base_offsets(names)
        if applied is None:
            if bases and not replayed:
                raise CorruptData(
                    f"{self.directory} has segments, but the journal does not know of any record there"
                )
        else:
            with lost_is_corrupt(self.directory):
                self.segments = synced_segments(self.disk, self.directory, applied, bases)
                if not replayed:
                    check_not_ahead(self.disk, self.directory, applied, bases, self.segments[-1:])
            if self.segments:
                self.segments[-1].cut()
            for segment in self.segments:
                segment.complete_indexes()
        found = {int(match[1]) for name in names if (match := _SEGMENT_FILE.fullmatch(name))}
        gone = sorted(found.difference(segment.base_offset for segment in self.segments))
        left = [
            self.directory / name for name in names if _RETIRED_FILE.fullmatch(name) or name == COPY_MANIFEST
        ]
        return left + self._retire(
            [Segment(self.disk, self.directory, base) for base in gone], "that the journal does not need"
        )

    def write(self, appended: Sequence[Appended], log_begin_offset: int, aged: AgedSegments) -> None:
        """Write batches to the active segment, rolling full ones, and copy or link parts of stages.

        Args:
            appended: the next batches and parts; those below `end_offset` are passed over.
            log_begin_offset: a segment that begins below takes no more batches.
            aged: what the writes of a job have in common.

        Raises:
            CorruptData: a part is damaged or missing; the batches before it may have been written.
            OSError: the disk has failed; a call with the same arguments resumes where this one
                ended.
        """
        self._log_begin_offset, self._aged = log_begin_offset, aged
        batches: list[bytes | bytearray | memoryview] = []
        for each in () if self._topic.deleted else appended:
            if isinstance(each, StagedPart):
                self._write_batches(batches)
                batches = []
                try:
                    self._write_part(each)
                except FileNotFoundError as error:
                    # Another thread removes stages that belong to deleted topics only.
                    if self._topic.deleted:
                        return
                    if error.filename != str(each.path):
                        raise
                    raise CorruptData(f"{each.path} is missing, it was sealed") from error
            else:
                batches.append(each)
        self._write_batches(batches)

    def claim(self) -> None:
        """Create the directory with this partition's identity, unless it is there."""
        if self._identity_written:
            return
        self.disk.make_directory(self.directory)
        if any(name.endswith(".log") for name in self.disk.names(self.directory)):
            raise CorruptData(f"{self.directory} has segments of another partition; move it out of the way")
        write_partition_identity(self.disk, self.directory / "identity", self._identity)
        self._identity_written = True

    def begin_sync(self) -> None:
        """Start writeback of the bytes that `sync` will wait for; speeds up syncs of many logs."""
        for segment in self.segments[-1:]:
            segment.begin_sync()

    def sync(self) -> None:
        """Make everything written durable."""
        for segment in self.segments:
            if segment.is_unsynced:
                segment.sync(self._topic.file_time_ms())
        if self._new_segment:
            self.disk.sync_directory(self.directory)
            self._new_segment = False
        self.unsynced_bytes = 0

    def drop_below(self, log_begin_offset: int) -> list[Path]:
        """Retire the segments below the log begin offset of a durable applied position.

        Returns:
            The files to be removed.
        """
        if self._topic.deleted:
            return []
        if self.pinned_from is not None:
            log_begin_offset = min(log_begin_offset, self.pinned_from)
        segments = self.segments
        gone = 0
        while gone < len(segments) and segments[gone].end_offset <= log_begin_offset and segments[gone].size:
            gone += 1
        self.segments = segments[gone:]
        return self._retire(segments[:gone], f"below the log begin offset {log_begin_offset}")

    def share(self, directory: Path, log_begin_offset: int) -> None:
        """Give the segments with records from an offset on a second name in another directory; see
        `Segment.share`.
        """
        for segment in self.segments:
            if segment.end_offset > log_begin_offset:
                segment.share(directory)

    def has_indexes(self) -> bool:
        """True if any segment is long enough for indexes."""
        return any(segment.is_indexed for segment in self.segments)

    def find_torn_indexes(self) -> Generator[None, None, list[RebuiltIndexes]]:
        """Scan the segments with torn indexes, for `replace_indexes`.

        Changes nothing; each step is short.
        """
        rebuilt = []
        for segment in self.segments:
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
            if segment in self.segments:
                segment.replace_indexes(entries, size)

    def retire(self, gone: Path) -> Path | None:
        """Rename the directory of a log that is needed no more. Nothing is written afterwards.

        Returns:
            The new path, to be removed; None if there is no directory, or a full disk had no room
            for the name: then it is removed.
        """
        self.close()
        self.segments = []
        if self._identity_written:
            with suppress(FileNotFoundError):
                return rename_partition_directory(self.disk, self.directory, gone)
        return retire_partition_directory(self.disk, self.directory, self._identity, gone)

    def close(self) -> None:
        """Close open files."""
        for segment in self.segments:
            segment.close()

    # --- inside -----------------------------------------------------------------------------------

    def _write_part(self, part: StagedPart) -> None:
        if part.end_offset <= self.end_offset:
            return  # a call that failed later has written it
        links = part.size >= LINK_BYTES_MIN and not part.begin and part.base_offset == self.end_offset
        if links and self._link(part):
            return
        for batches in part.batches(self.disk):
            self._write_batches(batches)

    def _link(self, part: StagedPart) -> bool:
        """Make the file of a part a segment; False if that is not possible."""
        if self.segments:
            if not self.segments[-1].size:
                return False  # a call that failed later has begun to copy it
            self._sync_full(self.segments[-1])
        self.claim()
        segment = Segment(self.disk, self.directory, part.base_offset)
        with lost_is_corrupt(part.path):
            file = self.disk.open(part.path)
        try:
            segment.link(part.path, file, part.patch(file))
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
        self.segments = [*self.segments, segment]
        self._new_segment = True
        self._linked = segment.base_offset
        self.end_offset = segment.end_offset
        self.unkept_bytes += segment.size
        return True

    def _write_batches(self, batches: Sequence[bytes | bytearray | memoryview]) -> None:
        at = 0
        while at < len(batches) and read_header(batches[at]).base_offset < self.end_offset:
            at += 1  # a call that failed half-way has written these
        while at < len(batches):
            segment = self._active(len(batches[at]), read_header(batches[at]))
            end = self._fitting(segment, batches, at)
            size = segment.size
            segment.write(batches[at:end], direct=self._direct)
            self.unsynced_bytes += segment.size - size
            self.unkept_bytes += segment.size - size
            self.end_offset = segment.end_offset
            at = end

    def _fitting(self, segment: Segment, batches: Sequence[bytes | bytearray | memoryview], at: int) -> int:
        """End of the batches from `at` on that fit into a segment, where the first one does fit."""
        room = self._topic.options.segment_bytes - segment.size - len(batches[at])
        first = segment.first_timestamp if segment.size else read_header(batches[at]).base_timestamp
        end = at + 1
        while end < len(batches):
            room -= len(batches[end])
            if room < 0 or self._is_aged(first, read_header(batches[end])):
                break
            end += 1
        return end

    def _active(self, batch_size: int, header: BatchHeader) -> Segment:
        """The segment for the next batch; rolls a full one."""
        if self.segments:
            active = self.segments[-1]
            if not active.size:
                return active
            if not self._is_full(active, batch_size):
                if not self._is_aged(active.first_timestamp, header):
                    return active
                self._aged.left -= 1
            self._sync_full(active)
        self.claim()
        segment = Segment(self.disk, self.directory, header.base_offset)
        self.segments = [*self.segments, segment]
        self._new_segment = True
        return segment

    def _sync_full(self, segment: Segment) -> None:
        try:
            segment.sync(self._topic.file_time_ms())
        except OSError as error:
            # Not an OSError, which is retried if the disk was full: a failed sync must not be.
            raise StorageFault(f"{segment.path} cannot be synced: {error}") from error

    def _is_aged(self, first_timestamp: int, header: BatchHeader) -> bool:
        """True if a batch is too young for a segment, and a segment may end because of that."""
        segment_ms = self._topic.options.segment_ms
        return header.max_timestamp - first_timestamp >= segment_ms and self._aged.left > 0

    def _is_full(self, segment: Segment, batch_size: int) -> bool:
        return (
            segment.base_offset == self._linked
            or segment.size + batch_size > self._topic.options.segment_bytes
            # Its first records are to be removed, and segments are removed as a whole.
            or segment.base_offset < self._log_begin_offset
        )

    def _base_offsets(self, names: list[str]) -> list[int]:
        bases = []
        for name in names:
            if not name.endswith(".log"):
                continue
            if _SEGMENT_FILE.fullmatch(name) is None:
                raise DataDirectoryError(f"{self.directory / name} is not a segment; move it out of the way")
            bases.append(int(name[:20]))
        return bases

    def _retire(self, segments: Sequence[Segment], why: str) -> list[Path]:
        if segments:
            first = str(segments[0].path)
            log.info(f"removing segments {why}", first=first, segments=len(segments))
        first_needed = self.segments[0].base_offset if self.segments else self.end_offset
        retired = []
        for segment in segments:
            try:
                retired += segment.retire()
            except OSError as error:
                # One that is not below the log would get in the way of its next segments.
                if not is_disk_full(error) or segment.base_offset >= first_needed:
                    raise
                log.error(
                    "no room to remove a segment, the next start tries again",
                    segment=str(segment.path),
                    error=str(error),
                )
        return retired

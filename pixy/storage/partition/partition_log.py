"""The log of one partition: its committed and applied batches, in segments and in memory.

A batch goes through three states. *Appended*: it is committed at its offset, durable in the
journal, and read from memory. *Written*: it is also in a segment. *Synced*: the segment is on
stable storage, and an applied position in the journal says so; only then may the journal drop it.
Responses wait for the first state alone; the other two follow later, many batches at a time.

The methods of the first section below are called on the event loop; the others block. `open`,
`write`, `sync`, `drop_segments`, `replace_indexes` and `retire` are called by one worker at a time.
`read`, `find_timestamp` and `find_torn_indexes` may run beside them on another worker, because they
never read behind `written_offset`, and the list of segments is replaced when a segment is removed.
`log_tail` has what is in memory, `log_segments` what is in files; here are the offsets, and reads
across both.

A staged batch is appended together with all of its part, which is a file and never in memory. Until
the part is written, it is read from that file.

A partition log has no uncommitted records and is never truncated, except at startup, to its synced
position. It is cut at the front by whole segments: first the log begin offset moves, then an
applied position with it becomes durable, and only then the files are removed.

If a part turns out to be damaged when it is to be written, or the files at a start, the log is
*given up* in this process: everything behind its applied position is left to the journal. From then
on it only counts offsets, and neither stores nor serves batches.

Invariants: begin_offset <= end_offset, written_offset <= end_offset; the batches in memory, with
the parts between them, are the last ones, without holes, and reach back at least to written_offset,
unless the log is given up.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pixy.errors import CorruptData, OffsetOutOfRange, StorageFault
from pixy.proto.state_pb2 import AppliedPosition, PartitionIdentity
from pixy.records import BatchHeader, KeptProducers, ProducerBatch, ProducerTable, offsets_of
from pixy.storage.disk import Disk, is_unreadable, lost_is_corrupt
from pixy.storage.partition.damage_mark import found_damage
from pixy.storage.partition.log_segments import AgedSegments, LogSegments, RebuiltIndexes, TopicLogs
from pixy.storage.partition.log_tail import Appended, LogTail, Unwritten
from pixy.storage.partition.producers_file import read_table, write_table
from pixy.storage.partition.retention import SegmentFacts, retained_from
from pixy.storage.partition.segment import Chunk, Segment
from pixy.storage.partition.staged_part import StagedPart


class SyncedPosition(NamedTuple):
    """Durable state of a log: its begin offset, and the end of its active segment."""

    log_begin_offset: int
    segment_base_offset: int
    segment_bytes: int


class SegmentExtent(NamedTuple):
    """Offsets and written bytes of a segment."""

    base_offset: int
    end_offset: int
    size: int


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


class PartitionLog:
    """One partition's log.

    Args:
        disk: the file system.
        directory: the parent of the segments; created by the first write.
        identity: the owner of the directory.
        topic: the state shared with the other logs of the topic.
        direct: batches are written around the page cache, see `File.write_direct`.

    Attributes:
        begin_offset: the first offset that is served.
        identity, topic: as given.
        end_offset: the offset of the next record; also the high watermark, because a log has only
            committed records.
        written_offset: the end of the batches in segments.
        gathered_bytes: bytes that wait for the `LogWriter`, which keeps the number.
    """

    __slots__ = (
        "_dropped_below",
        "_files",
        "_given_up",
        "_pins",
        "_producers",
        "_producers_from",
        "_tail",
        "begin_offset",
        "end_offset",
        "gathered_bytes",
        "identity",
        "topic",
        "written_offset",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        identity: PartitionIdentity,
        topic: TopicLogs,
        *,
        direct: bool = False,
    ) -> None:
        self.identity = identity
        self.topic = topic
        # Nothing more is stored, written or synced.
        self._given_up = False
        self._tail = LogTail()
        self._files = LogSegments(disk, directory, identity, topic, direct=direct)
        # First offsets that copies need, by session, and the log begin offset up to which segments
        # may go.
        self._pins: dict[int, int] = {}
        self._dropped_below = 0
        # Producers to be written with the next batches, and the offset as of which these or those
        # in the file are; -1: there are none.
        self._producers: KeptProducers | None = None
        self._producers_from = -1
        self.begin_offset = 0
        self.end_offset = 0
        self.written_offset = 0
        self.gathered_bytes = 0

    # --- on the event loop ------------------------------------------------------------------------

    def append(self, batch: bytes | bytearray | memoryview) -> int:
        """Append a committed batch, whose header has the next offset.

        Returns:
            The offset of its first record.
        """
        base, end = offsets_of(batch)
        assert base == self.end_offset, f"batch at {base} behind a log that ends at {self.end_offset}"
        self.end_offset = end
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
            SegmentFacts(segment.end_offset, segment.size, segment.max_timestamp, segment.last_write_ms)
            for segment in self._files.segments
            if segment.size
        ]
        if not segments:
            return self.begin_offset
        offset = retained_from(segments, self.begin_offset, self.topic.options, now_ms)
        return max(self.begin_offset, min(offset, self.written_offset))

    @property
    def segments_bytes(self) -> int:
        """Bytes of batches in segments, with those that were written lately and are not synced."""
        return sum(segment.size for segment in self._files.segments)

    def has_segments_below(self, log_begin_offset: int) -> bool:
        """True if `drop_segments` would remove a segment."""
        segments = self._files.segments
        return bool(segments) and bool(segments[0].size) and segments[0].end_offset <= log_begin_offset

    def pin(self, session: int, offset: int) -> list[SegmentExtent]:
        """Keep the segments with records from an offset on, until `unpin`; returns them."""
        self._pins[session] = offset
        self._files.pinned_from = min(self._pins.values())
        extents = [
            SegmentExtent(segment.base_offset, segment.end_offset, segment.size)
            for segment in self._files.segments
        ]
        return [each for each in extents if each.size and each.end_offset > offset]

    def unpin(self, session: int) -> int:
        """End a pin; returns the offset below which segments may go, for `drop_segments`."""
        self._pins.pop(session, None)
        self._files.pinned_from = min(self._pins.values(), default=None)
        return self._dropped_below

    def is_keeping_due(self, unkept_bytes: int) -> bool:
        """True if the table of producers is to be kept: there is none yet, or so many bytes have
        come since, or records were removed that a start would make it from.

        Not to be called while a worker uses the log, as `keep_producers`.
        """
        kept_from = self._producers_from
        return kept_from < self.begin_offset or self._files.unkept_bytes >= unkept_bytes

    def keep_producers(self, producers: KeptProducers) -> None:
        """Write the table of producers with the next batches, before the next `sync`."""
        self._producers, self._producers_from = producers, producers.end_offset
        self._files.unkept_bytes = 0

    def give_up(self) -> "GivenUp":
        """Stop storing, writing and syncing, because a part cannot be written.

        Not to be called while a worker uses the log.
        """
        unwritten, memory_bytes = self.unwritten().memory_bytes, self._tail.memory_bytes
        self._given_up = True
        self._tail = LogTail()
        return GivenUp(unwritten, memory_bytes, unwritten + self._files.unsynced_bytes)

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

    def begin_at(self, applied: AppliedPosition | None) -> None:
        """Have the offsets of an applied position, before `open` on another thread."""
        if applied is not None:
            self.begin_offset = applied.log_begin_offset
            self.end_offset = self.written_offset = applied.end_offset

    def open(self, applied: AppliedPosition | None, *, exists: bool, replayed: bool = True) -> list[Path]:
        """Cut the log back to the synced state in `applied`; without one, to an empty log.

        Arguments, result and errors are those of `LogSegments.open`.
        """
        self.begin_at(applied)
        return self._files.open(applied, exists=exists, replayed=replayed)

    def found_damage(self) -> str:
        """The damage that a check has marked, empty without a mark."""
        return found_damage(self._files.disk, self._files.directory)

    def open_given_up(self, applied: AppliedPosition | None) -> None:
        """Only count offsets, from the synced state in `applied` on: its files are damaged."""
        self.begin_at(applied)
        self._given_up = True

    def write(self, appended: Sequence[Appended], aged: AgedSegments) -> None:
        """Write batches and parts to segments; errors are those of `LogSegments.write`.

        Args:
            aged: what the writes of a job have in common.
        """
        self._files.write(appended, self.begin_offset, aged)

    def write_producers(self) -> None:
        """Write the table of producers that is to be kept, if there is one.

        Raises:
            OSError: the disk has failed; to be called again if it was full.
        """
        producers = self._producers
        if producers is not None and not self.topic.deleted:
            self._files.claim()
            write_table(self._files.disk, self._files.directory, producers.encoded())
            self._producers = None

    def read_producers(self, applied: AppliedPosition) -> ProducerTable | None:
        """The producers as of an applied position, None if there are none: those that were kept,
        and those in the headers of later batches.

        Raises:
            CorruptData: the segments are damaged.
            DataDirectoryError: a newer release wrote the file.
            OSError: the disk has failed.
        """
        if not applied.producers:
            return None
        files = self._files
        table = read_table(files.disk, files.directory)
        self._producers_from = table.end_offset
        begin = max(table.end_offset, self.begin_offset)
        with lost_is_corrupt(files.directory):
            for segment in files.segments:
                for header in segment.headers_from(begin) if segment.end_offset > begin else ():
                    files.unkept_bytes += header.length
                    if header.producer_id >= 0:
                        table.apply(_batch_of(header), -1)
        return table

    def begin_sync(self) -> None:
        """Start writeback of the bytes that `sync` will wait for; speeds up syncs of many logs."""
        self._files.begin_sync()

    def sync(self) -> SyncedPosition:
        """Make everything written durable; returns the durable state."""
        files = self._files
        if self.topic.deleted:
            return SyncedPosition(files.end_offset, files.end_offset, 0)
        files.sync()
        begin_offset = min(self.begin_offset, files.end_offset)
        if begin_offset == files.end_offset:
            return SyncedPosition(begin_offset, begin_offset, 0)
        active = files.segments[-1]
        return SyncedPosition(begin_offset, active.base_offset, active.size)

    def drop_segments(self, log_begin_offset: int) -> list[Path]:
        """Retire the segments below the log begin offset of a durable applied position.

        Returns:
            The files to be removed.
        """
        self._dropped_below = max(self._dropped_below, log_begin_offset)
        return self._files.drop_below(log_begin_offset)

    def claim(self) -> None:
        """Have a directory, with or without segments."""
        self._files.claim()

    def share(self, directory: Path, log_begin_offset: int) -> None:
        """Give segments a second name in another directory; see `LogSegments`."""
        self._files.share(directory, log_begin_offset)

    def read_bytes(self, base_offset: int, position: int, size: int) -> bytes:
        """Read bytes of a segment as they are, damaged or not.

        Raises:
            FileNotFoundError: it was removed.
            OSError: the disk has failed.
        """
        return self._segment(base_offset).read_bytes(position, size)

    def position_of(self, base_offset: int, offset: int) -> int | None:
        """Position in a segment of the batch that has an offset, None if none does.

        Raises:
            CorruptData: the segment is damaged.
            OSError: as `read_bytes`.
        """
        return self._segment(base_offset).position_of(offset)

    def _segment(self, base_offset: int) -> Segment:
        for segment in self._files.segments:
            if segment.base_offset == base_offset:
                return segment
        raise FileNotFoundError(f"{self._files.directory} has no segment at offset {base_offset} any more")

    def has_indexes(self) -> bool:
        """True if any segment is long enough for indexes."""
        return self._files.has_indexes()

    def find_torn_indexes(self) -> Generator[None, None, list[RebuiltIndexes]]:
        """Scan the segments with torn indexes; see `LogSegments`."""
        return self._files.find_torn_indexes()

    def replace_indexes(self, rebuilt: Sequence[RebuiltIndexes]) -> None:
        """Replace torn indexes."""
        self._files.replace_indexes(rebuilt)

    def retire(self, gone: Path) -> Path | None:
        """Rename the directory of a log that is needed no more. Nothing is written afterwards.

        Returns:
            The new path, to be removed; None if there is no directory.
        """
        return self._files.retire(gone)

    def close(self) -> None:
        """Close open files."""
        self._files.close()

    def read(self, offset: int, max_bytes: int) -> Chunk:
        """Read batches from files, beginning with the one that has `offset`.

        At most `max_bytes`, but at least one batch.

        Raises:
            OffsetOutOfRange: the log begin offset has moved above `offset` meanwhile.
            CorruptData: the stored bytes are damaged, or lost; the message names the file.
            StorageFault: they cannot be read now.
        """
        # Parts before segments: a part that was removed from the list is in a segment by then.
        parts = self._tail.parts
        at = bisect_right(parts, offset, key=_base_offset) - 1
        if at >= 0 and offset < parts[at].end_offset:
            with suppress(FileNotFoundError), self._faults(offset, may_go=True):
                return parts[at].read(self._files.disk, offset, max_bytes)
        segments = self._files.segments
        first = bisect_right(segments, offset, key=_base_offset) - 1
        with self._faults(offset):
            for segment in segments[first:] if first >= 0 else ():
                size = segment.size
                if size:  # a new segment has no file yet
                    chunk = segment.read(offset, max_bytes, size)
                    if chunk.batches:
                        return chunk
            if offset >= self.begin_offset:
                raise CorruptData(f"{self._files.directory} has no record batch for offset {offset}")
            raise FileNotFoundError

    def find_timestamp(self, timestamp_ms: int) -> int | None:
        """Base offset of the first batch in the segments at or after `timestamp_ms`.

        Raises:
            CorruptData, StorageFault: as `read`.
        """
        for segment in self._files.segments:
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
            kind = CorruptData if is_unreadable(error) else StorageFault
            raise kind(f"{self._files.directory} cannot be read: {error}") from error


def _batch_of(header: BatchHeader) -> ProducerBatch:
    return ProducerBatch(
        header.base_offset,
        header.last_offset_delta,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )


def _base_offset(of: StagedPart | Segment) -> int:
    return of.base_offset

"""Checks the segments and indexes of one partition of a stopped node, batch by batch,
and changes nothing.

    found                                                        verdict
    -----------------------------------------------------------  -----------------------------------
    segments from the log begin offset to the applied position,  ok
    every batch with valid header and checksum, offsets without
    holes, epochs that never decrease nor exceed the applied
    position's
    bytes and segments behind the applied position, with         ok, applied again
    entries in the journal
    the same without entries                                     damaged: the partition is not ready
    an entry to be applied again with a batch that does not      damaged: the next start is refused
    continue the log
    index that is missing from a long segment, contradicts it,   warning
    or has no segment; producers that are missing or damaged;
    unknown file
    producers of a newer version                                 damaged: the next start is refused
    an applied position that no log has                          damaged: the partition is not ready
    segments without an applied position or an entry; a name     damaged: the next start is refused
    like `x.log`
    anything else                                                damaged
"""

import re
import sys
from pathlib import Path

from pixy.errors import CorruptData, DataDirectoryError
from pixy.inspect.replayed_entries import ReplayedEntries
from pixy.inspect.report import Report, Verdict
from pixy.proto.state_pb2 import AppliedPosition
from pixy.records import BatchHeader, ProducerTable
from pixy.storage import (
    DAMAGE_MARK,
    INDEX_INTERVAL_BYTES,
    PRODUCERS_FILE,
    PRODUCERS_PART,
    RETIRED,
    Disk,
    OffsetIndex,
    TimeIndex,
    read_producers,
    scan_batches,
    segment_path,
    why_no_position,
)

_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex)")
_UNINDEXED_BYTES_MAX = 4 * INDEX_INTERVAL_BYTES
"""Bytes that may lack an index entry: a start of an earlier release began a new interval."""


def check_partition(
    disk: Disk,
    directory: Path,
    applied: AppliedPosition | None,
    replayed: ReplayedEntries | None,
    report: Report,
    advice: str = "",
) -> str:
    """Check one partition's directory. Blocks.

    Args:
        applied: the applied position in the journal, None without one.
        replayed: the entries behind it; None if they are unknown, because the journal is damaged.
        advice: what can be done if something is damaged.

    Returns:
        The first damage that was found, empty if there is none.
    """
    return _PartitionCheck(disk, directory, applied, replayed, report).run(advice)


class _PartitionCheck:
    """One pass over the segments of a partition, oldest first."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        applied: AppliedPosition | None,
        replayed: ReplayedEntries | None,
        report: Report,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._applied = applied
        self._replayed = replayed
        self._report = report
        # Offset that the next batch must have, None behind damage that hides it.
        self._next_offset: int | None = None
        self._epoch = 0
        self._records = 0
        self._bytes = 0

    def run(self, advice: str) -> str:
        before = len(self._report.findings)
        names = self._disk.names(self._directory)
        bases = self._base_offsets(names)
        reason = "" if self._applied is None else why_no_position(self._applied)
        if self._applied is None:
            self._without_position(bases)
        elif reason:
            found = f"{reason}: the partition is not ready"
            self._report.damaged("partition", self._directory.name, found)
            for base in bases:
                self._segment(base, self._size(base), synced=False)
        else:
            self._with_position(self._applied, bases)
            if self._applied.producers:
                self._producers()
        # An impossible position does not say what follows.
        if self._replayed is not None and self._replayed.fault and not reason:
            found = f"{self._replayed.fault}: the next start is refused"
            self._report.damaged("partition", self._directory.name, found)
        findings = self._report.findings[before:]
        verdict = max((finding.verdict for finding in findings), default=Verdict.OK)
        damage = [f"{each.where}: {each.found}" for each in findings if each.verdict is Verdict.DAMAGED]
        self._report.records += self._records
        self._report.add(
            "partition",
            self._directory.name,
            self._summary(len(bases)),
            verdict,
            advice if damage else "",
        )
        return damage[0] if damage else ""

    def _summary(self, segments: int) -> str:
        applied, replayed = self._applied, self._replayed
        parts = ["no synced records"]
        if applied is not None and why_no_position(applied):
            return f"{self._records} records in {self._bytes} bytes"
        if applied is not None and (applied.segment_bytes or applied.end_offset > applied.log_begin_offset):
            files = "segment" if segments == 1 else "segments"
            offsets = f"offsets {applied.log_begin_offset} to {applied.end_offset - 1}"
            parts = [f"{offsets} in {segments} {files}, {self._bytes} bytes"]
        elif self._records:
            parts = [f"{self._records} records in {self._bytes} bytes"]
        if replayed is not None and replayed.records:
            parts.append(f"{replayed.records} records in the journal to be applied again")
        return "; ".join(parts)

    def _producers(self) -> None:
        path = self._directory / PRODUCERS_FILE
        try:
            ProducerTable.decoded(read_producers(self._disk, path))
        except DataDirectoryError as error:
            self._report.damaged("producers", path, f"{error}: the next start is refused")
        except (OSError, CorruptData) as error:
            found = f"{error}: the next start finds the producers anew, from the headers in the segments"
            self._report.warn("producers", path, found)

    def _base_offsets(self, names: list[str]) -> list[int]:
        bases = []
        for name in names:
            if name in ("identity", PRODUCERS_FILE, PRODUCERS_PART):
                continue
            if name == DAMAGE_MARK:
                found = "a check has found damage: the next start fetches the partition from another node"
                self._report.warn("file", self._directory / name, found)
                continue
            match = _SEGMENT_FILE.fullmatch(name)
            if match is not None and match[2] == "log":
                bases.append(int(match[1]))
            elif name.endswith(".log"):
                self._report.damaged(
                    "segment", self._directory / name, "not a segment: the next start is refused"
                )
            elif name.endswith(RETIRED) and _SEGMENT_FILE.fullmatch(name.removesuffix(RETIRED)):
                found = "left from a removal: removed by the next start"
                self._report.warn("file", self._directory / name, found)
            elif match is None:
                self._report.warn("file", self._directory / name, "does not belong here")
            elif f"{match[1]}.log" not in names:
                self._report.warn("index", self._directory / name, "an index without its segment")
        return bases

    # --- the segments that must exist -------------------------------------------------------------

    def _without_position(self, bases: list[int]) -> None:
        if not bases:
            return
        if self._replayed is not None and not self._replayed.entries:
            self._report.damaged(
                "segment",
                self._directory,
                f"{len(bases)} segments, but the journal does not know of any record there: the next start is refused",
            )
        elif self._replayed is not None:
            self._behind(sum(self._size(base) for base in bases))
            return
        for base in bases:
            self._segment(base, self._size(base), synced=False)

    def _with_position(self, applied: AppliedPosition, bases: list[int]) -> None:
        last = applied.segment_base_offset
        kept = [base for base in bases if base <= last]
        behind = sum(self._size(base) for base in bases if base > last)
        if applied.segment_bytes or applied.end_offset > applied.log_begin_offset:
            if not kept or kept[-1] != last:
                path = segment_path(self._directory, last)
                self._report.damaged(
                    "segment", path, f"missing: {applied.segment_bytes} bytes of it were synced"
                )
            elif kept[0] > applied.log_begin_offset:
                found = f"no segment has offsets {applied.log_begin_offset} to {kept[0] - 1}"
                self._report.damaged("segment", self._directory, found)
            for base in kept:
                behind += self._kept(base, applied)
            self._end(applied, kept)
        else:
            behind += sum(self._size(base) for base in kept if base == last)
            if kept and kept[0] < last:
                found = "segments below the log begin offset: removed by the next start"
                self._report.warn("segment", self._directory, found)
        self._behind(behind)

    def _kept(self, base: int, applied: AppliedPosition) -> int:
        """Check a segment of which at least the beginning was synced.

        Returns:
            The bytes behind the synced part.
        """
        path = segment_path(self._directory, base)
        found = size = self._size(base)
        if base == applied.segment_base_offset:
            size = applied.segment_bytes
            if found < size:
                self._report.damaged("segment", path, f"{found} bytes, {size} were synced")
        if self._next_offset is not None and base != self._next_offset:
            self._report.damaged(
                "segment", path, f"the segment before it ends with offset {self._next_offset - 1}"
            )
        self._segment(base, min(found, size), synced=True, cut=found > size)
        return max(0, found - size)

    def _end(self, applied: AppliedPosition, kept: list[int]) -> None:
        path = segment_path(self._directory, applied.segment_base_offset)
        complete = kept and kept[-1] == applied.segment_base_offset
        if complete and self._next_offset not in (None, applied.end_offset):
            found = f"offset {self._next_offset} follows, the applied position says {applied.end_offset}"
            self._report.damaged("segment", path, found)
        if self._epoch > applied.term:
            found = f"leader epoch {self._epoch}, the applied position has term {applied.term}"
            self._report.damaged("segment", path, found)

    def _behind(self, size: int) -> None:
        if not size:
            return
        if self._replayed is None or self._replayed.entries:
            found = f"{size} bytes behind the applied position, to be applied again"
            self._report.add("segment", self._directory, found)
        else:
            found = f"{size} bytes that no entry of the journal speaks of: the partition is not ready"
            self._report.damaged("segment", self._directory, found)

    # --- one segment ------------------------------------------------------------------------------

    def _segment(self, base: int, size: int, *, synced: bool, cut: bool = False) -> None:
        """Check the first `size` bytes of a segment, which must be whole batches.

        The rest is cut by the next start, together with its index entries.
        """
        path = segment_path(self._directory, base)
        indexes = _Indexes(self._disk, path, base, size if cut else None)
        damage: list[str] = []
        expected: int | None = base
        position, records, epoch = 0, 0, self._epoch
        try:
            for position, header, _, reason in scan_batches(self._disk, path, size):
                base_offset = header.base_offset
                if (
                    reason
                    or (base_offset != expected and expected is not None)
                    or header.leader_epoch < epoch
                ):
                    found = reason or _out_of_place(header, expected, epoch)
                    damage.append(f"corrupt at byte {position}: {found}")
                    # The header's offsets mean nothing: the next batch shows its own.
                    expected = None
                    continue
                expected = base_offset + header.last_offset_delta + 1
                epoch = header.leader_epoch
                records += header.last_offset_delta + 1
                if position in indexes.positions or expected - 1 in indexes.offsets:
                    indexes.saw(position, expected - 1, header.max_timestamp)
        except CorruptData as error:
            damage.append(str(error))
            expected = None
        self._report.bytes += size
        self._bytes += size
        self._records += records
        self._epoch = epoch
        self._next_offset = expected
        if damage:
            more = f" (and {len(damage) - 1} more batches)" if len(damage) > 1 else ""
            verdict = Verdict.DAMAGED if synced else Verdict.WARNING
            self._report.add("segment", path, damage[0] + more, verdict)
        else:
            indexes.report(self._report, position, self._next_offset)

    def _size(self, base: int) -> int:
        file = self._disk.open(segment_path(self._directory, base))
        try:
            return file.size()
        finally:
            file.close()


def _out_of_place(header: BatchHeader, expected: int | None, epoch: int) -> str:
    """Describe the fault of the fields outside the checksum."""
    if expected is not None and header.base_offset != expected:
        return f"a batch with base offset {header.base_offset}, expected {expected}"
    return f"leader epoch {header.leader_epoch} after {epoch}"


class _Indexes:
    """Compares the two indexes of a segment with its batches."""

    def __init__(self, disk: Disk, path: Path, base: int, size: int | None) -> None:
        self._path = path
        promised = OffsetIndex(disk, path.with_suffix(".index")).entries()
        times = TimeIndex(disk, path.with_suffix(".timeindex")).entries()
        self._empty = not promised, not times
        # Entries of bytes behind `size` are cut with them; None cuts nothing.
        self._cut = size is not None
        offsets = [entry for entry in promised if size is None or entry[1] < size]
        self._ascending = offsets == sorted(offsets), times == sorted(times)
        # Entries without a batch so far. Invariant: `positions` is last offset by position,
        # `offsets` is largest timestamp by last offset.
        self.positions = {position: base + last for last, position in offsets}
        self.offsets = {base + last: timestamp for timestamp, last in times}
        self._wrong_positions = 0
        self._wrong_offsets = 0

    def saw(self, position: int, last_offset: int, max_timestamp: int) -> None:
        """Compare the entries of a batch with it."""
        self._wrong_positions += self.positions.pop(position, last_offset) != last_offset
        self._wrong_offsets += self.offsets.pop(last_offset, max_timestamp) != max_timestamp

    def report(self, report: Report, last_position: int, end_offset: int | None) -> None:
        """Report entries without a batch, after all batches of an undamaged segment up to
        `end_offset`.
        """
        end = end_offset if self._cut and end_offset is not None else sys.maxsize
        behind = sum(last >= end for last in self.offsets)
        wrong = (
            len(self.positions) + self._wrong_positions,
            len(self.offsets) - behind + self._wrong_offsets,
        )
        rows = zip((".index", ".timeindex"), wrong, self._ascending, self._empty, strict=True)
        for suffix, count, ascending, empty in rows:
            path = self._path.with_suffix(suffix)
            if count:
                report.warn("index", path, f"{count} entries name no batch of the segment; they are not used")
            elif not ascending:
                report.warn("index", path, "its entries do not ascend")
            elif empty and last_position >= _UNINDEXED_BYTES_MAX:
                report.warn("index", path, "missing or empty: reads look from the segment's start")

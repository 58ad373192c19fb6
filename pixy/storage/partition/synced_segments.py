"""The synced segments of a partition, by its applied position: verified before any change.

The rules are the table of segments in `docs/storage.md`. Only the headers behind the last index
entry of each segment are read here; reads verify the batches.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pixy.errors import CorruptData
from pixy.proto.state_pb2 import AppliedPosition
from pixy.storage.disk import Disk
from pixy.storage.partition.segment import Segment, segment_path


def synced_segments(
    disk: Disk, directory: Path, applied: AppliedPosition, bases: Sequence[int]
) -> list[Segment]:
    """The consecutive segments from the log begin offset to the applied position. Blocks.

    Args:
        bases: base offsets of the existing segments, ascending.

    Raises:
        CorruptData: synced bytes are missing, or damaged as far as they were read.
    """
    if applied.log_begin_offset == applied.end_offset:
        return []
    last = applied.segment_base_offset
    kept = [base for base in bases if base < last]
    while len(kept) > 1 and kept[1] <= applied.log_begin_offset:
        del kept[0]
    if kept and last <= applied.log_begin_offset:
        kept = []
    segments = [Segment(disk, directory, base) for base in [*kept, last]]
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


def check_not_ahead(
    disk: Disk, directory: Path, applied: AppliedPosition, bases: Sequence[int], active: Sequence[Segment]
) -> None:
    """Verify that there are no bytes behind the applied position, if the journal has none. Blocks.

    Args:
        active: the last of `synced_segments`, if there is any.

    Raises:
        CorruptData: a segment has such bytes.
    """
    synced = [(each.base_offset, each.size) for each in active]
    newer = [(base, 0) for base in bases if base >= applied.end_offset]
    for base, size in synced + newer:
        path = segment_path(directory, base)
        file = disk.open(path)
        try:
            found = file.size()
        finally:
            file.close()
        if found > size:
            raise CorruptData(
                f"{path} has {found} bytes, but of what is behind byte {size} the journal does not know: files of it are "
                "missing, or are those of an older state"
            )


def _check_end(segment: Segment, expected: int) -> None:
    if segment.end_offset != expected:
        raise CorruptData(
            f"{segment.path} is corrupt at byte {segment.size}: its records end before offset {segment.end_offset}, "
            f"{expected} was expected"
        )

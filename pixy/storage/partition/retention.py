"""Retention of a partition log, by size and by time. Pure: works on facts about segments.

Records are removed in whole segments, oldest first, as in Kafka:

- by size: the oldest segment is removed as long as the rest has at least `retention_bytes`; the
  active one stays;
- by time: the oldest segment is removed if its largest timestamp is older than `retention_ms`, and
  so on up to the first younger one. If all of them are older, the active one is removed too: the
  log is empty then, and its next record has the next offset.

Timestamps are the producers'. One that no clock can have given, because there is none or it is
more than an hour ahead, is not believed: the time of the last write to the segment's file counts
instead, as in Kafka for segments without timestamps. It is asked for only then. One that is more
than an hour ahead as well was given by a wrong clock, and the time at which that was first noticed
counts. A segment without a file is never too old.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

AHEAD_MS_MAX = 3_600_000
"""Difference to the present from which on a time was given by no clock, or by a wrong one."""


class LogOptions(NamedTuple):
    """Options of a partition log; a topic may override them.

    Attributes:
        segment_bytes, segment_ms: size, and age of the oldest record, at which a segment is full.
        retention_bytes, retention_ms: minimum size and age of the retained records; None: no limit.
    """

    segment_bytes: int
    segment_ms: int
    retention_bytes: int | None = None
    retention_ms: int | None = None


class SegmentFacts(NamedTuple):
    """Facts about a segment.

    Attributes:
        end_offset: the offset behind its last record.
        size: its size in bytes.
        max_timestamp: its largest timestamp, negative if it has none.
        last_write_ms: time of the last write to it, for one that asks at that time; None if that is
            not known.
    """

    end_offset: int
    size: int
    max_timestamp: int
    last_write_ms: Callable[[int], int | None]

    def time_ms(self, now_ms: int) -> int | None:
        """Time of its newest record as far as that can be believed, None for none."""
        if 0 <= self.max_timestamp <= now_ms + AHEAD_MS_MAX:
            return self.max_timestamp
        return self.last_write_ms(now_ms)


def retained_from(
    segments: Sequence[SegmentFacts], begin_offset: int, options: LogOptions, now_ms: int
) -> int:
    """The first offset to retain: `begin_offset`, or the end of the last segment to be removed."""
    if options.retention_bytes is not None:
        left = sum(segment.size for segment in segments)
        for segment in segments[:-1]:
            left -= segment.size
            if left < options.retention_bytes:
                break
            begin_offset = max(begin_offset, segment.end_offset)
    if options.retention_ms is not None:
        oldest_ms = now_ms - options.retention_ms
        # Of all of them, so that a wrong time is noticed now.
        times = [segment.time_ms(now_ms) for segment in segments]
        for segment, time_ms in zip(segments, times, strict=True):
            if time_ms is None or time_ms >= oldest_ms:
                break
            begin_offset = max(begin_offset, segment.end_offset)
    return begin_offset

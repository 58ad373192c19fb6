"""Which records of a partition log are to go. Pure: looks at what segments say of themselves, touches nothing.

Records go in whole segments, oldest first, as in Kafka:

- by size: the oldest segment goes as long as what is left still has `retention_bytes`; the active one stays;
- by time: the oldest segment goes if its largest timestamp is older than `retention_ms`, and so on up to the first that is not.
  If that is all of them, the active one goes too: the log is empty then, and its next record has the next offset.

A segment without any timestamp has no age, and is never too old.
"""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["LogOptions", "SegmentFacts", "retained_from"]


class LogOptions(NamedTuple):
    """What a partition log is told; a topic may have its own.

    Attributes:
        segment_bytes, segment_ms: size, and age of its oldest record, at which a segment is full.
        retention_bytes, retention_ms: what is kept; None: everything.
    """

    segment_bytes: int
    segment_ms: int
    retention_bytes: int | None = None
    retention_ms: int | None = None


class SegmentFacts(NamedTuple):
    """What retention needs to know of a segment; `end_offset` is the offset behind it, `max_timestamp` is negative if it has none."""

    end_offset: int
    size: int
    max_timestamp: int


def retained_from(
    segments: Sequence[SegmentFacts], begin_offset: int, options: LogOptions, now_ms: int
) -> int:
    """The first offset to keep: `begin_offset`, or the end of the last segment that is to go."""
    if options.retention_bytes is not None:
        left = sum(segment.size for segment in segments)
        for segment in segments[:-1]:
            left -= segment.size
            if left < options.retention_bytes:
                break
            begin_offset = max(begin_offset, segment.end_offset)
    if options.retention_ms is not None:
        oldest_ms = now_ms - options.retention_ms
        for segment in segments:
            if not 0 <= segment.max_timestamp < oldest_ms:
                break
            begin_offset = max(begin_offset, segment.end_offset)
    return begin_offset

"""The position at which a consumer group resumes in a partition with a committed offset. Pure.

committed offset                           resumes at
within the log                             the offset; records acked above it are skipped
below the log begin offset (retention)     the log begin offset; logged
beyond the end (truncated, another log)    the end; acks above are void; logged
with metadata that is not sparse acks      the offset; the metadata is discarded; logged
"""

from typing import NamedTuple

from pixy.backend import OffsetCommit, OffsetRange, TopicPartition
from pixy.consume import sparse_acks
from pixy.consume.offset_tracker import OffsetTracker
from pixy.errors import InvalidOffset

__all__ = ["Remark", "resume"]


class Remark(NamedTuple):
    """A log message about a partition in which a group resumes."""

    event: str
    partition: TopicPartition
    fields: dict[str, object]


def resume(
    partition: TopicPartition, commit: OffsetCommit, served: OffsetRange, remarks: list[Remark]
) -> OffsetTracker:
    """The position of a group with a committed offset.

    Args:
        served: the offsets that the log has.
        remarks: log messages are added to it.
    """

    def remark(event: str, **fields: object) -> None:
        remarks.append(Remark(event, partition, fields))

    try:
        ranges = sparse_acks.decode(commit.offset, commit.metadata)
    except InvalidOffset as error:
        remark("sparse acks cannot be read and are discarded", metadata=commit.metadata, error=str(error))
        ranges = []
    if commit.offset > served.end:
        remark("committed offset is beyond the end", offset=commit.offset, end=served.end)
        return OffsetTracker(served.end)
    if commit.offset < served.begin:
        remark("committed offset is below the log begin offset", offset=commit.offset, begin=served.begin)
    tracker = OffsetTracker(commit.offset)
    for begin, end in ranges:
        tracker.skip(begin, min(end, served.end))
    tracker.adjust(served.begin)
    return tracker

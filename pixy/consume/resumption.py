"""Where a consumer group continues in a partition that it has committed something for. Pure.

committed                                  continues
between what the log serves                there; what is acked above is passed
below the log begin offset (expired)       at the log begin offset; said
beyond the end (truncated, another log)    at the end, and what was acked above is void; said
with metadata that is not ours             at the offset; the metadata is discarded; said
"""

from typing import NamedTuple

from pixy.backend import OffsetCommit, OffsetRange, TopicPartition
from pixy.consume import sparse_acks
from pixy.consume.offset_tracker import OffsetTracker
from pixy.errors import InvalidOffset

__all__ = ["Remark", "resume"]


class Remark(NamedTuple):
    """Something to say about a partition that a group continues in."""

    event: str
    partition: TopicPartition
    fields: dict[str, object]


def resume(
    partition: TopicPartition, commit: OffsetCommit, served: OffsetRange, remarks: list[Remark]
) -> OffsetTracker:
    """Where a group continues that has committed something. What is notable about that is added to `remarks`."""

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

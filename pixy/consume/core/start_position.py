"""The position at which a consumer group begins in a partition, or resumes. Pure.

committed offset                           begins at
none                                       the end, or the log begin offset; see `first_position`
within the log                             the offset; records acked above it are skipped
below the log begin offset (retention)     the log begin offset; logged
beyond the end (truncated, another log)    the end; acks above are void; logged
with metadata of another program           the offset
with metadata that is not sparse acks      the offset; the metadata is discarded; logged
with more sparse acks than a commit can    the offset; records acked above it are skipped; logged:
have, of an earlier release                the next commit has the first of them
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pixy.backend import OffsetCommit, OffsetRange, TopicPartition
from pixy.consume.core import sparse_acks
from pixy.consume.core.offset_tracker import OffsetTracker
from pixy.consume.core.sparse_acks import METADATA_BYTES_MAX
from pixy.errors import InvalidOffset

_SHOWN_CHARS = 100


class Remark(NamedTuple):
    """A log message about a partition in which a group resumes."""

    event: str
    partition: TopicPartition
    fields: dict[str, object]


def first_position(served: OffsetRange, *, oldest: bool) -> OffsetTracker:
    """The position of a group without a committed offset.

    Args:
        served: the offsets that the log has.
        oldest: the group wants all records: by its options, or because it was there before the
            partition.
    """
    return OffsetTracker(served.begin if oldest else served.end)


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

    tracker = OffsetTracker(commit.offset)
    try:
        for begin, end in sparse_acks.iterate(commit.offset, commit.acks):
            tracker.skip(begin, min(end, served.end))
    except InvalidOffset as error:
        shown = commit.metadata[:_SHOWN_CHARS]
        remark("sparse acks cannot be read and are discarded", metadata=shown, error=str(error))
        tracker = OffsetTracker(commit.offset)
    if commit.offset > served.end:
        remark("committed offset is beyond the end", offset=commit.offset, end=served.end)
        return OffsetTracker(served.end)
    if commit.offset < served.begin:
        remark("committed offset is below the log begin offset", offset=commit.offset, begin=served.begin)
    tracker.adjust(served.begin)
    if tracker.size > METADATA_BYTES_MAX:
        remark(
            "more sparse acks than a commit can have: records of the last are offered again after a restart",
            size=tracker.size,
            maximum=METADATA_BYTES_MAX,
        )
    return tracker


def first_of_each(remarks: Sequence[Remark]) -> list[tuple[Remark, int]]:
    """The first remark of each event, and how many there are."""
    first: dict[str, Remark] = {}
    for remark in remarks:
        first.setdefault(remark.event, remark)
    counts = Counter(remark.event for remark in remarks)
    return [(remark, counts[event]) for event, remark in first.items()]


def is_long(commit: OffsetCommit) -> bool:
    """True if `resume` takes more than a few milliseconds: an earlier release has stored more
    metadata than a commit can have.
    """
    return len(commit.metadata) > METADATA_BYTES_MAX

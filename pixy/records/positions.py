"""Names for places in the log, for everybody who speaks of them."""

from typing import NamedTuple

__all__ = ["OffsetCommit", "OffsetRange", "TopicPartition"]


class TopicPartition(NamedTuple):
    """Names one partition."""

    topic: str
    partition: int


class OffsetRange(NamedTuple):
    """What a partition serves: first offset, and one past the last committed one."""

    begin: int
    end: int


class OffsetCommit(NamedTuple):
    """How far a consumer group is in a partition: all below `offset`, and what `metadata` encodes above it."""

    offset: int
    metadata: str = ""

"""Types for positions in the log, shared by all layers."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition."""

    topic: str
    partition: int


class OffsetRange(NamedTuple):
    """The range served by a partition: its first offset, and one past the last committed one."""

    begin: int
    end: int


class OffsetCommit(NamedTuple):
    """Position of a consumer group in a partition: all records below `offset` are acked, and so are
    those encoded in `metadata`.
    """

    offset: int
    metadata: str = ""

    @property
    def acks(self) -> str:
        """The acks in `metadata`; empty if it is another program's."""
        return self.metadata


class ForeignCommit(OffsetCommit):
    """A position that another program has committed: its metadata is of no concern here, though it
    may look like acks.
    """

    __slots__ = ()

    @property
    def acks(self) -> str:
        """As `OffsetCommit`."""
        return ""

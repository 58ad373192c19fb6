"""Counts of the snapshots of state groups, or of the copies of partitions, that nodes fetch from
each other.
"""

from typing import NamedTuple, Protocol


class TransferCounts(NamedTuple):
    """Snapshots or copies of one node since its start.

    Attributes:
        sent, fetched: whole ones.
        sent_bytes, fetched_bytes: of all slices.
        failed: fetches that were given up.
    """

    sent: int
    sent_bytes: int
    fetched: int
    fetched_bytes: int
    failed: int


class TransferSource(Protocol):
    """Gives snapshots or copies; see `TransferCounts`."""

    sent: int
    sent_bytes: int


class TransferDestination(Protocol):
    """Fetches them; see `TransferCounts`."""

    fetched: int
    failed: int

    @property
    def fetched_bytes(self) -> int:
        """See `TransferCounts`."""


def transfer_counts(source: TransferSource, destination: TransferDestination) -> TransferCounts:
    """The counts of both sides of a node."""
    return TransferCounts(
        source.sent,
        source.sent_bytes,
        destination.fetched,
        destination.fetched_bytes,
        destination.failed,
    )

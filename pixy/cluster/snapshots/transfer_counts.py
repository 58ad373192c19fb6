"""Counts of the snapshots of state groups, or of the copies of partitions, that nodes fetch from
each other.
"""

from typing import NamedTuple


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

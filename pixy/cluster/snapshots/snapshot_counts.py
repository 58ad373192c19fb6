"""Counts of the snapshots of state groups that nodes fetch from leaders."""

from typing import NamedTuple


class SnapshotCounts(NamedTuple):
    """Snapshots of one node since its start.

    Attributes:
        sent, fetched: whole ones.
        sent_bytes, fetched_bytes: of their slices.
        failed: fetches that were given up.
    """

    sent: int
    sent_bytes: int
    fetched: int
    fetched_bytes: int
    failed: int

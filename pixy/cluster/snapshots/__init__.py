"""Snapshots between nodes: checkpoints and copies of partitions that a follower fetches.

What a snapshot means for a raft group is in `pixy.multiraft`.
"""

from pixy.cluster.snapshots.copy_fetching import CopyFetching, StagedPieces
from pixy.cluster.snapshots.copy_pulling import CopyFetchingOptions, CopyMethod
from pixy.cluster.snapshots.copy_serving import CopyServing
from pixy.cluster.snapshots.snapshot_fetching import FetchingOptions, SnapshotFetching
from pixy.cluster.snapshots.snapshot_serving import SnapshotServing
from pixy.cluster.snapshots.transfer_counts import TransferCounts, transfer_counts

__all__ = [
    "CopyFetching",
    "CopyFetchingOptions",
    "CopyMethod",
    "CopyServing",
    "FetchingOptions",
    "SnapshotFetching",
    "SnapshotServing",
    "StagedPieces",
    "TransferCounts",
    "transfer_counts",
]

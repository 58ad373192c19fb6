"""Snapshots between nodes: checkpoints that a follower fetches, and replicas that wait for copies.

What a snapshot means for a raft group is in `pixy.multiraft`.
"""

from pixy.cluster.snapshots.snapshot_counts import SnapshotCounts
from pixy.cluster.snapshots.snapshot_fetching import FetchingOptions, SnapshotFetching
from pixy.cluster.snapshots.snapshot_serving import SnapshotServing

__all__ = [
    "FetchingOptions",
    "SnapshotCounts",
    "SnapshotFetching",
    "SnapshotServing",
]

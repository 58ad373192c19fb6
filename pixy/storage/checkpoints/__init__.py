"""Checkpoints of state groups: written whole, read whole, or downloaded in slices."""

from pixy.storage.checkpoints.checkpoint import Checkpoint, CheckpointId, CheckpointStore, read_checkpoint
from pixy.storage.checkpoints.checkpoint_download import CheckpointDownload, DownloadedBytes

__all__ = [
    "Checkpoint",
    "CheckpointDownload",
    "CheckpointId",
    "CheckpointStore",
    "DownloadedBytes",
    "read_checkpoint",
]

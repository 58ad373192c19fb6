"""Copies of partitions: the sessions, the download and the files. Who needs one is not known here.

A copy session gives another node the segments of a replica as they were at one moment
(`copy_session`). The other node asks for bytes, verifies them (`copy_download`) at a pace that
leaves room for clients (`pacing`), and writes them to a directory beside the partition's own
(`staged_copy`), which it becomes when the journal says so (`directory_swap`).
"""

from pixy.copies.copy_download import CopyDownload, CopySources, DescendingEpoch, RequestsAhead
from pixy.copies.copy_session import CopiedSegment, CopyKey, CopySession, CopySessions, WantedBytes
from pixy.copies.directory_swap import is_due, roll_forward, swap_directories
from pixy.copies.pacing import ChunkSize, TokenBucket
from pixy.copies.progress import CopyProgress
from pixy.copies.staged_copy import OwnRecords, StagedCopy

__all__ = [
    "ChunkSize",
    "CopiedSegment",
    "CopyDownload",
    "CopyKey",
    "CopyProgress",
    "CopySession",
    "CopySessions",
    "CopySources",
    "DescendingEpoch",
    "OwnRecords",
    "RequestsAhead",
    "StagedCopy",
    "TokenBucket",
    "WantedBytes",
    "is_due",
    "roll_forward",
    "swap_directories",
]

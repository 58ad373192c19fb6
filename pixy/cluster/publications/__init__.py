"""Staged writes of a cluster: stages, their pieces on the replicas, and publications.

The commit point is a command to the state group of sinks; here is what comes before and behind it.
The files of stages are in `pixy.staging`.
"""

from pixy.cluster.publications.lone_publisher import LonePublisher, SinksGroup, staged_error
from pixy.cluster.publications.piece_retention import PieceRetention
from pixy.cluster.publications.sideloading import Sideloading, pieces_of
from pixy.cluster.publications.staging_router import StagingNode, StagingRouter

__all__ = [
    "LonePublisher",
    "PieceRetention",
    "Sideloading",
    "SinksGroup",
    "StagingNode",
    "StagingRouter",
    "pieces_of",
    "staged_error",
]

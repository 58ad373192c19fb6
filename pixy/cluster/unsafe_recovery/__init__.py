"""A stopped node that goes on alone after its majority is lost, raft groups that are mended, and
nodes that begin a cluster with the contents of another one.

For commands on a stopped node's directory; nothing of it runs in a daemon.
"""

from pixy.cluster.unsafe_recovery.founded_node import FoundedNode, FoundedPartition
from pixy.cluster.unsafe_recovery.lost_majority import LossReport, LostMajority, SurvivingGroup
from pixy.cluster.unsafe_recovery.mended_groups import MendedGroup, MendedGroups
from pixy.cluster.unsafe_recovery.stopped_node import StoppedNode, stopped_node

__all__ = [
    "FoundedNode",
    "FoundedPartition",
    "LossReport",
    "LostMajority",
    "MendedGroup",
    "MendedGroups",
    "StoppedNode",
    "SurvivingGroup",
    "stopped_node",
]

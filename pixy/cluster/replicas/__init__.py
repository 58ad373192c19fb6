"""The replicas of one node: opened, applied to, cut to what topics retain, and dropped.

It never decides where a replica belongs, which metadata does, and never sends.
"""

from pixy.cluster.replicas.command_proposals import CommandProposals
from pixy.cluster.replicas.node_time import CLOCK_OFF_MS, NodeTime, OtherClocks
from pixy.cluster.replicas.partitions import Partitions
from pixy.cluster.replicas.partitions_by_raft_group import group_name
from pixy.cluster.replicas.retention import Retention
from pixy.cluster.replicas.state_group_recovery import check_journal_reaches, check_reset
from pixy.cluster.replicas.state_groups import GROUPS_COUNT, StateGroups

__all__ = [
    "CLOCK_OFF_MS",
    "GROUPS_COUNT",
    "CommandProposals",
    "NodeTime",
    "OtherClocks",
    "Partitions",
    "Retention",
    "StateGroups",
    "check_journal_reaches",
    "check_reset",
    "group_name",
]

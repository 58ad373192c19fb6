"""The disk of a node: its journal, checkpoints and replicas, and the start that finds them there.

Journal, checkpoints and applied positions of all raft groups, the replicas of partitions and of
state groups, and when files of the journal may go. It never talks to another node.
"""

from pixy.cluster.log.applied_positions import positions_record
from pixy.cluster.log.checkpoint_state import restore_state, restored_state
from pixy.cluster.log.cluster_options import ClusterOptions
from pixy.cluster.log.cold_reads import ColdReads
from pixy.cluster.log.disk_reserve import Reserve
from pixy.cluster.log.node_log import LogCounters, LogHooks, LogPeers, NodeLog
from pixy.cluster.log.node_options import NodeObserver, NodeOptions, unsynced_logs_max
from pixy.cluster.log.partition_condition import PartitionCondition
from pixy.cluster.log.partition_snapshots import (
    applied_state,
    copied_position,
    describe,
    descriptor_of,
    has_records,
    is_written,
)
from pixy.cluster.log.peer_start_record import PeerStartRecord
from pixy.cluster.log.peer_starts import PeerStart, StartClaim, lacks
from pixy.cluster.log.recovery import (
    RESTORING,
    WHY_RESTORING,
    DataDirectory,
    EnteredDirectory,
    RecoveredNode,
    cluster_id_of,
    enter_directory,
    read_directory,
    recover_node,
)
from pixy.cluster.log.replica import (
    Mark,
    PartitionReplica,
    Replica,
    RestoredState,
    StateMachine,
    StateReplica,
)

__all__ = [
    "RESTORING",
    "WHY_RESTORING",
    "ClusterOptions",
    "ColdReads",
    "DataDirectory",
    "EnteredDirectory",
    "LogCounters",
    "LogHooks",
    "LogPeers",
    "Mark",
    "NodeLog",
    "NodeObserver",
    "NodeOptions",
    "PartitionCondition",
    "PartitionReplica",
    "PeerStart",
    "PeerStartRecord",
    "RecoveredNode",
    "Replica",
    "Reserve",
    "RestoredState",
    "StartClaim",
    "StateMachine",
    "StateReplica",
    "applied_state",
    "cluster_id_of",
    "copied_position",
    "describe",
    "descriptor_of",
    "enter_directory",
    "has_records",
    "is_written",
    "lacks",
    "positions_record",
    "read_directory",
    "recover_node",
    "restore_state",
    "restored_state",
    "unsynced_logs_max",
]

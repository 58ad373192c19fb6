"""A node of the embedded cluster: raft groups, state machines and the group coordinator."""

from pixy.cluster.cluster_options import ClusterOptions
from pixy.cluster.coordinator import Coordinator, Member
from pixy.cluster.entry_offsets import misplaced_batch, published_records
from pixy.cluster.group_states import conf_state_of, split_checkpoint
from pixy.cluster.groups import FIRST_GROUPS_GROUP, GroupsState
from pixy.cluster.metadata import FIRST_PARTITION_GROUP, METADATA_GROUP, PARTITIONS_MAX, MetadataState, Topic
from pixy.cluster.node import Node
from pixy.cluster.node_options import NodeObserver, NodeOptions, unsynced_logs_max
from pixy.cluster.publisher import Publisher
from pixy.cluster.replica import PartitionReplica
from pixy.cluster.sinks import SINKS_GROUP, SinksState
from pixy.cluster.state_group_recovery import check_journal_reaches, check_reset

__all__ = [
    "FIRST_GROUPS_GROUP",
    "FIRST_PARTITION_GROUP",
    "METADATA_GROUP",
    "PARTITIONS_MAX",
    "SINKS_GROUP",
    "ClusterOptions",
    "Coordinator",
    "GroupsState",
    "Member",
    "MetadataState",
    "Node",
    "NodeObserver",
    "NodeOptions",
    "PartitionReplica",
    "Publisher",
    "SinksState",
    "Topic",
    "check_journal_reaches",
    "check_reset",
    "conf_state_of",
    "misplaced_batch",
    "published_records",
    "split_checkpoint",
    "unsynced_logs_max",
]

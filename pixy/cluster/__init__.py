"""A node of the embedded cluster: raft groups, state machines and the group coordinator."""

from pixy.cluster.coordinator import Coordinator, Member
from pixy.cluster.groups import FIRST_GROUPS_GROUP, GroupsState
from pixy.cluster.metadata import FIRST_PARTITION_GROUP, METADATA_GROUP, PARTITIONS_MAX, MetadataState, Topic
from pixy.cluster.node import Node
from pixy.cluster.node_options import NodeObserver, NodeOptions, unsynced_logs_max
from pixy.cluster.publisher import Published, Publisher
from pixy.cluster.replica import PartitionReplica
from pixy.cluster.sinks import SINKS_GROUP, NotNew, Sink, SinksState, StageName, judge_epoch
from pixy.cluster.stage_expiry import StageExpiry
from pixy.cluster.stages import KAFKA_CLUSTER_ID, Stage, Stages, StageSeal, merged_parts
from pixy.cluster.state_groups import check_journal_reaches
from pixy.cluster.steps import run_in_steps

__all__ = [
    "FIRST_GROUPS_GROUP",
    "FIRST_PARTITION_GROUP",
    "KAFKA_CLUSTER_ID",
    "METADATA_GROUP",
    "PARTITIONS_MAX",
    "SINKS_GROUP",
    "Coordinator",
    "GroupsState",
    "Member",
    "MetadataState",
    "Node",
    "NodeObserver",
    "NodeOptions",
    "NotNew",
    "PartitionReplica",
    "Published",
    "Publisher",
    "Sink",
    "SinksState",
    "Stage",
    "StageExpiry",
    "StageName",
    "StageSeal",
    "Stages",
    "Topic",
    "check_journal_reaches",
    "judge_epoch",
    "merged_parts",
    "run_in_steps",
    "unsynced_logs_max",
]

"""A node of the embedded cluster: raft groups, state machines and the group coordinator."""

from pixy.cluster.check import check_directory, check_node, node_directories
from pixy.cluster.coordinator import Coordinator, Member
from pixy.cluster.dump import DumpLine, dump
from pixy.cluster.metadata import PARTITIONS_MAX, MetadataState, Topic
from pixy.cluster.node import Node
from pixy.cluster.node_options import NodeObserver, NodeOptions, unsynced_logs_max
from pixy.cluster.publisher import Published, Publisher
from pixy.cluster.replica import PartitionReplica
from pixy.cluster.sinks import NotNew, Sink, StageName, judge_epoch
from pixy.cluster.stage_expiry import StageExpiry
from pixy.cluster.stages import KAFKA_CLUSTER_ID, Stage, Stages, StageSeal, merged_parts
from pixy.cluster.turns import in_turns

__all__ = [
    "KAFKA_CLUSTER_ID",
    "PARTITIONS_MAX",
    "Coordinator",
    "DumpLine",
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
    "Stage",
    "StageExpiry",
    "StageName",
    "StageSeal",
    "Stages",
    "Topic",
    "check_directory",
    "check_node",
    "dump",
    "in_turns",
    "judge_epoch",
    "merged_parts",
    "node_directories",
    "unsynced_logs_max",
]

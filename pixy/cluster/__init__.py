"""A node of the embedded cluster: its raft groups, their state machines, and the coordinator of consumer groups."""

from pixy.cluster.check import check_node, node_directories
from pixy.cluster.coordinator import Coordinator, Member
from pixy.cluster.dump import DumpLine, dump
from pixy.cluster.metadata import MetadataState, Topic
from pixy.cluster.node import Node, NodeObserver, NodeOptions
from pixy.cluster.replica import PartitionReplica

__all__ = [
    "Coordinator",
    "DumpLine",
    "Member",
    "MetadataState",
    "Node",
    "NodeObserver",
    "NodeOptions",
    "PartitionReplica",
    "Topic",
    "check_node",
    "dump",
    "node_directories",
]

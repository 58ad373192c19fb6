"""A node of the embedded cluster: raft groups, state machines and the group coordinator."""

from pixy.cluster.checkpoint_state import restore_state
from pixy.cluster.cluster_options import ClusterOptions
from pixy.cluster.commands import partition_command, publication_in
from pixy.cluster.entry_limits import frame_bytes_max
from pixy.cluster.entry_offsets import misplaced_batch, published_records, takes_publication
from pixy.cluster.group_coordinator import why_ended
from pixy.cluster.group_members import GroupMember, MemberId, Membership, Process, TopicOwners, member_message
from pixy.cluster.group_sessions import LEASE_S
from pixy.cluster.group_states import conf_state_of, split_checkpoint
from pixy.cluster.groups import FIRST_GROUPS_GROUP, GroupsChanged, GroupsState
from pixy.cluster.impossible_states import (
    ADVICE,
    FoundState,
    why_impossible,
    why_never_a_member,
)
from pixy.cluster.lost_majority import LossReport, LostMajority, SurvivingGroup
from pixy.cluster.mended_groups import MendedGroup, MendedGroups
from pixy.cluster.metadata import METADATA_GROUP, PARTITIONS_MAX, MetadataState, Topic
from pixy.cluster.node import Node
from pixy.cluster.node_options import NodeObserver, NodeOptions, unsynced_logs_max
from pixy.cluster.peer_messages import PeerMethod
from pixy.cluster.publisher import Publisher, staged_error
from pixy.cluster.raft_group import FIRST_PARTITION_GROUP, replicas_in_sync
from pixy.cluster.replica import PartitionReplica, StateReplica
from pixy.cluster.replica_calls import RemotePartition, ReplicaCalls
from pixy.cluster.sideloading import pieces_of
from pixy.cluster.sinks import SINKS_GROUP, SinksState
from pixy.cluster.state_group_recovery import check_journal_reaches, check_reset
from pixy.cluster.status import (
    ClusterStatus,
    DiskSpace,
    MemberState,
    MemberStatus,
    NodeStatus,
    RaftGroupStatus,
)
from pixy.cluster.status_messages import decode_status, encode_status
from pixy.cluster.status_problems import problems
from pixy.cluster.stop_checks import (
    leaving_beside,
    reasons_to_keep,
    safe_to_stop,
    staying_without,
    unreplicated,
)
from pixy.cluster.stopped_node import StoppedNode, stopped_node

__all__ = [
    "ADVICE",
    "FIRST_GROUPS_GROUP",
    "FIRST_PARTITION_GROUP",
    "LEASE_S",
    "METADATA_GROUP",
    "PARTITIONS_MAX",
    "SINKS_GROUP",
    "ClusterOptions",
    "ClusterStatus",
    "DiskSpace",
    "FoundState",
    "GroupMember",
    "GroupsChanged",
    "GroupsState",
    "LossReport",
    "LostMajority",
    "MemberId",
    "MemberState",
    "MemberStatus",
    "Membership",
    "MendedGroup",
    "MendedGroups",
    "MetadataState",
    "Node",
    "NodeObserver",
    "NodeOptions",
    "NodeStatus",
    "PartitionReplica",
    "PeerMethod",
    "Process",
    "Publisher",
    "RaftGroupStatus",
    "RemotePartition",
    "ReplicaCalls",
    "SinksState",
    "StateReplica",
    "StoppedNode",
    "SurvivingGroup",
    "Topic",
    "TopicOwners",
    "check_journal_reaches",
    "check_reset",
    "conf_state_of",
    "decode_status",
    "encode_status",
    "frame_bytes_max",
    "leaving_beside",
    "member_message",
    "misplaced_batch",
    "partition_command",
    "pieces_of",
    "problems",
    "publication_in",
    "published_records",
    "reasons_to_keep",
    "replicas_in_sync",
    "restore_state",
    "safe_to_stop",
    "split_checkpoint",
    "staged_error",
    "staying_without",
    "stopped_node",
    "takes_publication",
    "unreplicated",
    "unsynced_logs_max",
    "why_ended",
    "why_impossible",
    "why_never_a_member",
]

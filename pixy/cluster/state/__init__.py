"""The state machines of a cluster: metadata, consumer groups, and publications of staged writes.

Pure: committed commands in, state and what changed out, the same on every node. What a command may
be is judged here, too. Nothing here reads a disk or a clock, or knows which node it runs on.
"""

from pixy.cluster.state.classic_records import classic_record
from pixy.cluster.state.cluster_limits import ClusterLimits
from pixy.cluster.state.command_maxima import why_too_large, why_too_many_bytes
from pixy.cluster.state.command_rules import empty_of
from pixy.cluster.state.commands import decoded, partition_command, publication_in, undecodable
from pixy.cluster.state.element_maxima import ElementMaxima
from pixy.cluster.state.entry_offsets import misplaced_batch, published_records, takes_publication
from pixy.cluster.state.exported_state import (
    ExportedRecord,
    ExportedState,
    FoundedCluster,
    StateToFound,
    export_records,
    found_cluster,
)
from pixy.cluster.state.group_members import (
    GroupMember,
    MemberId,
    Membership,
    Owners,
    Process,
    TopicOwners,
    member_message,
    target_message,
)
from pixy.cluster.state.groups import FIRST_GROUPS_GROUP, Forgotten, GroupsChanged, GroupsState, groups_index
from pixy.cluster.state.join_request_checks import check_join, check_joined, check_place, check_told
from pixy.cluster.state.metadata import (
    METADATA_GROUP,
    PARTITIONS_MAX,
    WHY_NO_MOVES,
    WHY_NO_PRODUCERS,
    DeletedTopic,
    LeftNode,
    MetadataState,
)
from pixy.cluster.state.newer_command import newer_command
from pixy.cluster.state.nodes import (
    APPLIED_LEVEL,
    CLASSIC_LEVEL,
    COPIES_LEVEL,
    DEPARTURES_LEVEL,
    FEATURE_LEVEL,
    FIRST_NODE,
    IDENTITY_LEVEL,
    LEAVING_LEVEL,
    MOVES_LEVEL,
    NODES_MAX,
    PLACEMENT_LEVEL,
    POLICY_LEVEL,
    PRODUCERS_LEVEL,
    REMOVING_LEVEL,
    SECOND_PROTOCOL_LEVEL,
    SEEN_LEVEL,
    NodeInfo,
    node_of,
    node_record,
    other_secret,
    removal,
    why_left,
    why_older,
)
from pixy.cluster.state.partition_moves import MOVES_MAX, MovesChanged, partition_move, reason_name
from pixy.cluster.state.piece_checks import CALL_PIECES_MAX, PIECE_BYTES_MAX, PiecesCheck
from pixy.cluster.state.placement import replication_of
from pixy.cluster.state.producer_commands import (
    BLOCK_IDS,
    EXPIRED_MAX,
    PRODUCER_IDS_SKIPPED,
    answer_of,
    answered_batch,
    expire_producers,
)
from pixy.cluster.state.proposable import why_not_proposable
from pixy.cluster.state.publication_parts import PartKey, part_commands
from pixy.cluster.state.publications import SINKS_GROUP, SINKS_MAX, Finished, Publication, SinksState
from pixy.cluster.state.stage_table import GoneStages, ReplicatedStage
from pixy.cluster.state.topic import Move, Topic, with_target
from pixy.cluster.state.topic_commands import (
    alter_command,
    create_command,
    delete_command,
    is_topic_deletion,
    why_no_such_replicas,
)
from pixy.cluster.state.topic_config import is_compacted, log_options

__all__ = [
    "APPLIED_LEVEL",
    "BLOCK_IDS",
    "CALL_PIECES_MAX",
    "CLASSIC_LEVEL",
    "COPIES_LEVEL",
    "DEPARTURES_LEVEL",
    "EXPIRED_MAX",
    "FEATURE_LEVEL",
    "FIRST_GROUPS_GROUP",
    "FIRST_NODE",
    "IDENTITY_LEVEL",
    "LEAVING_LEVEL",
    "METADATA_GROUP",
    "MOVES_LEVEL",
    "MOVES_MAX",
    "NODES_MAX",
    "PARTITIONS_MAX",
    "PIECE_BYTES_MAX",
    "PLACEMENT_LEVEL",
    "POLICY_LEVEL",
    "PRODUCERS_LEVEL",
    "PRODUCER_IDS_SKIPPED",
    "REMOVING_LEVEL",
    "SECOND_PROTOCOL_LEVEL",
    "SEEN_LEVEL",
    "SINKS_GROUP",
    "SINKS_MAX",
    "WHY_NO_MOVES",
    "WHY_NO_PRODUCERS",
    "ClusterLimits",
    "DeletedTopic",
    "ElementMaxima",
    "ExportedRecord",
    "ExportedState",
    "Finished",
    "Forgotten",
    "FoundedCluster",
    "GoneStages",
    "GroupMember",
    "GroupsChanged",
    "GroupsState",
    "LeftNode",
    "MemberId",
    "Membership",
    "MetadataState",
    "Move",
    "MovesChanged",
    "NodeInfo",
    "Owners",
    "PartKey",
    "PiecesCheck",
    "Process",
    "Publication",
    "ReplicatedStage",
    "SinksState",
    "StateToFound",
    "Topic",
    "TopicOwners",
    "alter_command",
    "answer_of",
    "answered_batch",
    "check_join",
    "check_joined",
    "check_place",
    "check_told",
    "classic_record",
    "create_command",
    "decoded",
    "delete_command",
    "empty_of",
    "expire_producers",
    "export_records",
    "found_cluster",
    "groups_index",
    "is_compacted",
    "is_topic_deletion",
    "log_options",
    "member_message",
    "misplaced_batch",
    "newer_command",
    "node_of",
    "node_record",
    "other_secret",
    "part_commands",
    "partition_command",
    "partition_move",
    "publication_in",
    "published_records",
    "reason_name",
    "removal",
    "replication_of",
    "takes_publication",
    "target_message",
    "undecodable",
    "why_left",
    "why_no_such_replicas",
    "why_not_proposable",
    "why_older",
    "why_too_large",
    "why_too_many_bytes",
    "with_target",
]

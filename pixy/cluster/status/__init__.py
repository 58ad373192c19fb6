"""The status of a cluster: what nodes report, its problems, and who can be stopped.

It judges and changes nothing.
"""

from pixy.cluster.status.move_states import MoveStanding, MoveState, move_standings
from pixy.cluster.status.node_status import SelfReports, StatusReports, status_of_nobody
from pixy.cluster.status.status import (
    ClusterStatus,
    CopyStatus,
    DiskSpace,
    MemberState,
    MemberStatus,
    MoveStatus,
    NodeStatus,
    RaftGroupStatus,
)
from pixy.cluster.status.status_messages import decode_status, encode_status
from pixy.cluster.status.status_problems import problems
from pixy.cluster.status.status_words import counted
from pixy.cluster.status.stop_checks import (
    leaving_beside,
    reasons_to_keep,
    safe_to_stop,
    staying_without,
    unreplicated,
)

__all__ = [
    "ClusterStatus",
    "CopyStatus",
    "DiskSpace",
    "MemberState",
    "MemberStatus",
    "MoveStanding",
    "MoveState",
    "MoveStatus",
    "NodeStatus",
    "RaftGroupStatus",
    "SelfReports",
    "StatusReports",
    "counted",
    "decode_status",
    "encode_status",
    "leaving_beside",
    "move_standings",
    "problems",
    "reasons_to_keep",
    "safe_to_stop",
    "status_of_nobody",
    "staying_without",
    "unreplicated",
]

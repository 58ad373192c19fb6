"""Consumer groups of Kafka's classic protocol, as their coordinator keeps them. Pure.

Members compute the assignment of partitions themselves; the group gathers them, has one of them
decide, and hands its decision out. What they subscribe to and own are bytes that it does not read.

It owns the phases of a rebalance, all of its timers, and the order of checks of each request. It
never reads a clock, draws an id or stores anything: time and new ids are arguments, and what has to
be stored before an answer is an output (`group`).
"""

from pixy.classic_groups.codes import GroupCode
from pixy.classic_groups.group import ClassicGroup, GroupPhase
from pixy.classic_groups.values import (
    ClassicOptions,
    GroupJoin,
    GroupOutput,
    GroupSync,
    Joined,
    LeavingMember,
    MemberProtocol,
    SeenMember,
    StoredClassicGroup,
    StoredClassicMember,
    Synced,
)

__all__ = [
    "ClassicGroup",
    "ClassicOptions",
    "GroupCode",
    "GroupJoin",
    "GroupOutput",
    "GroupPhase",
    "GroupSync",
    "Joined",
    "LeavingMember",
    "MemberProtocol",
    "SeenMember",
    "StoredClassicGroup",
    "StoredClassicMember",
    "Synced",
]

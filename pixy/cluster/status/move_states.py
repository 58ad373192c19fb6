"""States of moves of partitions, and what they wait for. Pure.

state          the raft group of the partition
-------------  ---------------------------------------------------------------------------------
waiting        has no leader, or one that has not told, or that changes nothing yet
learner        does not have all new nodes as members, or these do not take entries yet
copying        has new nodes that fetch a copy of the records
caught up      has new nodes that take entries as they come: they become voters next
handing over   the same, and a leader that goes
joint          decides with the former and the new voters together
ending         has the target as its voters: metadata will say so next
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from pixy.cluster.status.status import ClusterStatus, MemberState, MoveStatus, RaftGroupStatus


class MoveState(StrEnum):
    """See the module."""

    WAITING = "waiting"
    LEARNER = "learner"
    COPYING = "copying"
    CAUGHT_UP = "caught up"
    HANDING_OVER = "handing over"
    JOINT = "joint"
    ENDING = "ending"


class MoveStanding(NamedTuple):
    """State of a move, and the reason why it does not go on; empty if it does."""

    move: MoveStatus
    state: MoveState
    waits: str


def move_standings(status: ClusterStatus) -> tuple[MoveStanding, ...]:
    """State of each move."""
    if not status.moves:
        return ()
    groups = {group.raft_group: group for group in status.groups}
    up = {node.node_id for node in status.nodes if node.up}
    return tuple(_standing(move, groups, up) for move in status.moves)


def _standing(move: MoveStatus, groups: Mapping[int, RaftGroupStatus], up: set[int]) -> MoveStanding:
    group = groups.get(move.raft_group)
    if group is None or not group.leader:
        return MoveStanding(move, MoveState.WAITING, "the partition has no leader")
    if not group.members:
        return MoveStanding(
            move, MoveState.WAITING, f"its leader, node {group.leader}, has not told where it is"
        )
    state = _state(move, group)
    return MoveStanding(move, state, move.waits or _waits(move, group, state, up))


def _state(move: MoveStatus, group: RaftGroupStatus) -> MoveState:
    voters, target = {*group.voters}, {*move.target}
    if group.voters_outgoing:
        return MoveState.JOINT
    if voters == target and not group.learners:
        return MoveState.ENDING
    coming = target - voters
    members = {each.node_id: each for each in group.members}
    if not coming <= members.keys():
        return MoveState.WAITING if move.waits else MoveState.LEARNER
    if any(members[node_id].state is MemberState.COPY for node_id in coming):
        return MoveState.COPYING
    if not all(members[node_id].caught_up for node_id in coming):
        return MoveState.LEARNER
    return MoveState.CAUGHT_UP if group.leader in target else MoveState.HANDING_OVER


def _waits(move: MoveStatus, group: RaftGroupStatus, state: MoveState, up: set[int]) -> str:
    """Reason why the leader of a partition waits for others."""
    down = [node_id for node_id in move.target if node_id not in up]
    if down and {*down} - {*group.voters}:
        return f"node {down[0]}, which is to have a replica, is down"
    if state is MoveState.COPYING:
        copy = next((each for each in move.copies if each.waits), None)
        if copy is not None:
            return f"node {copy.node_id} cannot copy it: {copy.waits}"
    return ""

"""Status of a node's raft groups, as it knows them by itself."""

from pixy.cluster.metadata import FIRST_PARTITION_GROUP
from pixy.cluster.raft_group import RaftGroup
from pixy.cluster.status import MemberState, MemberStatus, RaftGroupStatus
from pixy.raft import StateType
from pixy.raft.progress import Progress, ProgressState

__all__ = ["raft_group_status"]


def raft_group_status(group: RaftGroup, name: str, node_id: int) -> RaftGroupStatus:
    """The status of a raft group as this node knows it: its members only if it leads."""
    config, storage = group.storage.conf_state, group.storage
    leader, term = group.leader, storage.hard_state.term
    members: tuple[MemberStatus, ...] = ()
    if not group.has_peers and node_id in config.voters:
        # It leads as soon as it is asked for something.
        leader = node_id
        members = (MemberStatus(node_id, storage.last_index(), 0, MemberState.LEADER),)
    elif group.node is not None:
        raft = group.node.raft
        term = raft.term
        if raft.state is StateType.LEADER:
            last = raft.log.last_index()
            members = tuple(
                MemberStatus(
                    member, progress.match, last - progress.match, _state(group, member == node_id, progress)
                )
                for member, progress in sorted(raft.tracker.progress.items())
            )
    return RaftGroupStatus(
        group.raft_group,
        name,
        leader,
        term,
        tuple(config.voters),
        tuple(sorted({*config.learners, *config.learners_next})),
        tuple(config.voters_outgoing),
        members,
    )


def _state(group: RaftGroup, is_leader: bool, progress: Progress) -> MemberState:
    if is_leader:
        return MemberState.LEADER
    match progress.state:
        case ProgressState.REPLICATE:
            return MemberState.REPLICATING
        case ProgressState.SNAPSHOT:
            is_partition = group.raft_group >= FIRST_PARTITION_GROUP
            return MemberState.COPY if is_partition else MemberState.CHECKPOINT
        case _:
            return MemberState.PROBING

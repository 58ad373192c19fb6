"""Statuses of small clusters."""

from dataclasses import replace

from pixy.cluster.status.status import ClusterStatus, MemberState, MemberStatus, NodeStatus, RaftGroupStatus

REPLICATING, CHECKPOINT, COPY = MemberState.REPLICATING, MemberState.CHECKPOINT, MemberState.COPY


def node(node_id: int, *, up: bool = True, heard_s: float | None = 0.1, problem: str = "") -> NodeStatus:
    is_self = node_id == 1
    return NodeStatus(
        node_id,
        f"10.0.0.{node_id}:19094",
        up=up,
        is_self=is_self,
        heard_s=None if is_self else heard_s,
        problem=problem,
    )


def group(
    raft_group: int = 1,
    name: str = "metadata",
    *,
    leader: int = 1,
    voters: tuple[int, ...] = (1, 2, 3),
    states: dict[int, MemberState] | None = None,
    behind: dict[int, int] | None = None,
) -> RaftGroupStatus:
    members = tuple(
        MemberStatus(
            voter,
            100,
            (behind or {}).get(voter, 0),
            MemberState.LEADER if voter == leader else (states or {}).get(voter, REPLICATING),
        )
        for voter in voters
    )
    return RaftGroupStatus(raft_group, name, leader, 5, voters, members=members if leader else ())


def cluster(*groups: RaftGroupStatus, nodes: tuple[NodeStatus, ...] = ()) -> ClusterStatus:
    return ClusterStatus(b"c" * 16, nodes or (node(1), node(2), node(3)), groups)


WELL = cluster(group(), group(1000, "topic-0", leader=2))
LOST_NODE_3 = cluster(group(), nodes=(node(1), node(2), node(3, up=False, heard_s=12.3)))
LEAVING = replace(WELL, nodes=(node(1), node(2), replace(node(3), removed=True)))

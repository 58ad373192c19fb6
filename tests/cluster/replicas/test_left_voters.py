"""Voters that have left, and raft groups that have no majority without them."""

import pytest

from pixy.cluster.replicas.left_voters import why_stuck
from pixy.cluster.state.nodes import NodeInfo
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfState


def node(node_id: int, *, removed: bool) -> NodeInfo:
    return NodeInfo(node_id, bytes(16), "", "", "", 1, "", removed=removed)


@pytest.mark.parametrize(
    ("voters", "outgoing", "left", "needed"),
    [
        ((1,), (), (), ""),
        ((1,), (), (2,), ""),
        ((1, 2), (), (), ""),
        ((1, 2), (), (2,), "node 2"),
        ((1, 2, 3), (), (2,), ""),
        ((1, 2, 3), (), (2, 3), "nodes 2, 3"),
        ((1, 2, 3, 4), (), (3, 4), "nodes 3, 4"),
        ((1,), (1, 2), (2,), "node 2"),
        ((1, 3), (1, 2, 3), (2,), ""),
    ],
)
def test_a_group_is_stuck_if_the_voters_that_stay_are_no_majority(
    voters: tuple[int, ...], outgoing: tuple[int, ...], left: tuple[int, ...], needed: str
) -> None:
    nodes = {node_id: node(node_id, removed=node_id in left) for node_id in range(1, 5)}
    whole = RaftGroup(7, RaftStorage(ConfState((1,))), 1)
    found = why_stuck(
        [whole, RaftGroup(8, RaftStorage(ConfState(voters, voters_outgoing=outgoing)), 1)], nodes
    )
    assert (f"no leader of raft group 8 can be elected without {needed}, which" in found) is bool(needed)
    assert bool(found) is bool(needed)

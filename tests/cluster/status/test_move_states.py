"""States of moves, and what they wait for."""

from dataclasses import replace

import pytest

from pixy.cluster.status.move_states import MoveState, move_standings
from pixy.cluster.status.status import ClusterStatus, CopyStatus, MoveStatus, RaftGroupStatus, merged
from pixy.cluster.status.status_problems import problems
from pixy.records import TopicPartition
from tests.cluster.statuses import COPY, REPLICATING, cluster, group, node

NODES = (node(1), node(2), node(3), node(4))
MOVE = MoveStatus(1000, TopicPartition("t", 0), "drain", (1, 2, 3), (1, 2, 4))


def moving(*groups: RaftGroupStatus, move: MoveStatus = MOVE) -> ClusterStatus:
    return replace(cluster(*groups, nodes=NODES), can_move=True, moves=(move,))


def of(
    leader: int = 1, voters: tuple[int, ...] = (1, 2, 3), learners: tuple[int, ...] = ()
) -> RaftGroupStatus:
    whole = group(1000, "t-0", leader=leader, voters=(*voters, *learners))
    return replace(whole, voters=voters, learners=learners)


def standing(status: ClusterStatus) -> tuple[MoveState, str]:
    (found,) = move_standings(status)
    return found.state, found.waits


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (of(), MoveState.LEARNER),
        (
            replace(group(1000, voters=(1, 2, 3, 4), states={4: COPY}), voters=(1, 2, 3), learners=(4,)),
            "copying",
        ),
        (of(learners=(4,)), MoveState.CAUGHT_UP),
        (of(leader=3, learners=(4,)), MoveState.HANDING_OVER),
        (replace(of(voters=(1, 2, 4)), voters_outgoing=(1, 2, 3)), MoveState.JOINT),
        (of(voters=(1, 2, 4)), MoveState.ENDING),
    ],
)
def test_the_raft_group_says_where_a_move_is(found: RaftGroupStatus, state: str) -> None:
    assert standing(moving(found)) == (state, "")


def test_a_learner_that_lacks_entries_is_no_voter_yet() -> None:
    behind = group(1000, voters=(1, 2, 3, 4), states={4: REPLICATING}, behind={4: 5000})
    status = moving(replace(behind, voters=(1, 2, 3), learners=(4,)))
    assert standing(status) == (MoveState.LEARNER, "")


def test_a_move_waits_for_a_leader_and_for_what_it_tells() -> None:
    assert standing(moving()) == (MoveState.WAITING, "the partition has no leader")
    assert standing(moving(of(leader=0))) == (MoveState.WAITING, "the partition has no leader")
    silent = replace(of(), members=())
    assert standing(moving(silent)) == (MoveState.WAITING, "its leader, node 1, has not told where it is")


def test_a_move_waits_for_its_destination_its_source_and_stages() -> None:
    down = replace(moving(of(learners=(4,))), nodes=(*NODES[:3], node(4, up=False)))
    assert standing(down)[1] == "node 4, which is to have a replica, is down"
    copying = replace(group(1000, voters=(1, 2, 3, 4), states={4: COPY}), voters=(1, 2, 3), learners=(4,))
    failing = moving(copying, move=replace(MOVE, copies=(CopyStatus(4, waits="no replica gives it"),)))
    assert standing(failing) == (MoveState.COPYING, "node 4 cannot copy it: no replica gives it")
    alone = replace(MOVE, replicas=(1,), waits="stages are there")
    assert standing(moving(of(voters=(1,)), move=alone)) == (MoveState.WAITING, "stages are there")


def test_what_does_not_move_on_is_a_problem_and_what_moves_is_none() -> None:
    assert not [each for each in problems(moving(of())) if "move" in each]
    stuck = moving(of(), move=replace(MOVE, waits="stages are there"))
    assert "partition t-0 cannot move on: stages are there" in problems(stuck)


def test_replicas_that_a_drained_node_keeps_are_a_problem() -> None:
    kept = replace(moving(of()), nodes=(*NODES[:3], replace(NODES[3], draining=True, replicas=5, kept=2)))
    assert "node 4 is drained, and keeps 2 replicas: no other node can take them" in problems(kept)


def test_copies_are_told_by_the_nodes_that_fetch_them() -> None:
    mine, other = CopyStatus(3, 1, 2, 3), CopyStatus(4, 5, 6, 7)
    own = moving(of(), move=replace(MOVE, copies=(other,)))
    told = moving(of(), move=replace(MOVE, waits="w", copies=(mine,)))
    unknown = moving(of(), move=replace(MOVE, raft_group=7, copies=(mine,)))
    assert merged(own, [told, unknown]).moves == (replace(MOVE, waits="w", copies=(mine, other)),)

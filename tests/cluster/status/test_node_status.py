"""The status of raft groups that a node tells, and that of others that it takes."""

from pathlib import Path
from typing import Any

import pytest

from pixy.cluster.status.node_status import raft_group_status, status_of
from pixy.cluster.status.status import MemberState
from pixy.proto.pixy_cluster_pb2 import (
    CopyStatus,
    DamagedReplica,
    MemberStatus,
    MoveStatus,
    NodeStatus,
    RaftGroupStatus,
    StatusResponse,
)
from tests.cluster.drivers import GROUP, DriverNetwork, DriverNode

LEADER, REPLICATING, PROBING = MemberState.LEADER, MemberState.REPLICATING, MemberState.PROBING


async def test_the_leader_knows_its_members_and_a_follower_its_leader(tmp_path: Path) -> None:
    network = DriverNetwork(tmp_path, 1, 2, 3)
    leader = await network.elect(2)
    leader.propose(b"x")
    await network.run()
    of_leader = raft_group_status(leader.group, "t-0", 2)
    assert (of_leader.raft_group, of_leader.name, of_leader.leader) == (GROUP, "t-0", 2)
    assert (of_leader.voters, of_leader.learners, of_leader.voters_outgoing) == ((1, 2, 3), (), ())
    assert [(each.node_id, each.state, each.behind) for each in of_leader.members] == [
        (1, REPLICATING, 0),
        (2, LEADER, 0),
        (3, REPLICATING, 0),
    ]
    of_follower = raft_group_status(network[1].group, "t-0", 1)
    assert (of_follower.leader, of_follower.term, of_follower.members) == (2, of_leader.term, ())
    network.close()


async def test_a_member_that_does_not_answer_is_behind(tmp_path: Path) -> None:
    network = DriverNetwork(tmp_path, 1, 2, 3)
    leader = await network.elect(1)
    network.cut.add(3)
    for name in (b"a", b"b"):
        leader.propose(name)
    await network.run()
    third = raft_group_status(leader.group, "t-0", 1).members[2]
    assert (third.node_id, third.behind) == (3, 2)
    network.close()


async def test_a_partition_that_needs_a_snapshot_waits_for_a_copy(tmp_path: Path) -> None:
    network = DriverNetwork(tmp_path, 1, 2, 3)
    leader = await network.elect(1)
    assert leader.group.node is not None
    leader.group.node.raft.tracker.progress[3].become_snapshot(1)
    assert raft_group_status(leader.group, "t-0", 1).members[2].state is MemberState.COPY
    network.close()


async def test_a_sole_voter_leads_before_it_is_asked_for_anything(tmp_path: Path) -> None:
    node = DriverNode(tmp_path / "1").bind()
    idle = raft_group_status(node.group, "t-0", 1)
    assert (idle.leader, [each.state for each in idle.members]) == (1, [LEADER])
    await node.lead()
    assert raft_group_status(node.group, "t-0", 1).leader == 1
    node.close()


def test_of_another_node_the_status_of_known_raft_groups_is_taken() -> None:
    groups = [
        RaftGroupStatus(raft_group=raft_group, name="n" * 5000) for raft_group in (0, 7, 1000, 2**64 - 1)
    ]
    status = status_of(StatusResponse(groups=groups).SerializeToString(), {0, 1000})
    assert status is not None
    assert [group.raft_group for group in status.groups] == [0, 1000]
    assert {len(group.name) for group in status.groups} == {2000}


@pytest.mark.parametrize(
    "impossible",
    [
        {"groups": [RaftGroupStatus()] * 1100},
        {"nodes": [NodeStatus()] * 1100},
        {"under_replicated": [""] * 1100},
        {"groups": [RaftGroupStatus(members=[MemberStatus()] * 101)]},
        {"groups": [RaftGroupStatus(voters=[1] * 101)]},
        {"groups": [RaftGroupStatus(damaged=[DamagedReplica()] * 101)]},
        {"nodes": [NodeStatus(troubles=["t"] * 201)]},
        {"groups": [RaftGroupStatus(learners=[1] * 101)]},
        {"groups": [RaftGroupStatus(voters_outgoing=[1] * 101)]},
        {"moves": [MoveStatus()] * 1100},
        {"moves": [MoveStatus(replicas=[1] * 101)]},
        {"moves": [MoveStatus(target=[1] * 101)]},
        {"moves": [MoveStatus(copies=[CopyStatus()] * 101)]},
        {"not_ready": "x" * (2 << 20)},
    ],
    ids=lambda impossible: next(iter(impossible)),
)
def test_a_status_of_more_than_there_can_be_is_none(impossible: dict[str, Any]) -> None:
    assert status_of(StatusResponse(**impossible).SerializeToString(), range(50)) is None


@pytest.mark.parametrize("answer", [b"", b"\xff" * 100])
def test_what_is_no_status_is_none(answer: bytes) -> None:
    assert status_of(answer, range(50)) is None

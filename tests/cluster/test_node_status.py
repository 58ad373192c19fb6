from pathlib import Path

from pixy.cluster.node_status import raft_group_status
from pixy.cluster.status import MemberState
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

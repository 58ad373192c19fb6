"""One raft group on this node: its members, its role, and what its log has."""

import pytest

from pixy.entry_ids import LogPosition, ProposalId
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfState, Entry
from tests.cluster.drivers import COMMAND, DriverNetwork, DriverNode, forwarded_proposal


def group_of(conf_state: ConfState) -> RaftGroup:
    return RaftGroup(7, RaftStorage(conf_state), 1)


# --- members --------------------------------------------------------------------------------------


def test_a_group_of_one_voter_has_no_peers() -> None:
    assert not group_of(ConfState((1,))).has_peers
    assert not group_of(ConfState((1,), voters_outgoing=(1,))).has_peers


@pytest.mark.parametrize(
    "conf_state", [ConfState((1, 2)), ConfState((1,), (2,)), ConfState((1,), voters_outgoing=(1, 2))]
)
def test_voters_learners_and_outgoing_voters_are_peers(conf_state: ConfState) -> None:
    assert group_of(conf_state).has_peers


@pytest.mark.parametrize("conf_state", [ConfState(), ConfState((2,)), ConfState((), (1,))])
def test_a_group_that_this_node_does_not_vote_in_decides_nothing_alone(conf_state: ConfState) -> None:
    group = group_of(conf_state)
    assert (group.has_peers, group.decides) == (True, False)
    assert group.is_blank is (conf_state == ConfState())


def test_a_new_configuration_may_end_having_peers() -> None:
    group = group_of(ConfState((1, 2)))
    group.storage.conf_state = ConfState((1,))
    group.look_at_members()
    assert not group.has_peers


# --- role -----------------------------------------------------------------------------------------


async def test_a_node_that_could_be_outvoted_decides_only_while_it_leads(network: DriverNetwork) -> None:
    assert not network[1].group.decides
    leader = await network.elect(1)
    assert leader.group.decides
    assert not network[2].group.decides


async def test_a_sole_member_decides_without_a_leader(node: DriverNode) -> None:
    assert (node.group.leader, node.group.decides) == (0, True)


async def test_the_leader_is_known_to_all_that_heard_of_it(network: DriverNetwork) -> None:
    network.cut.add(3)
    await network.elect(2)
    assert [node.group.leader for node in network.nodes.values()] == [2, 2, 0]


async def test_a_leadership_begins_once_in_its_term(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    before = list(leader.application.tails)
    leader.propose(b"command")
    leader.group.look_at_role()
    assert leader.application.tails == before
    await network.run()
    assert leader.results == {b"command": None}


async def test_a_new_leader_begins_behind_the_tail_of_the_one_before(network: DriverNetwork) -> None:
    await network.elect(2)
    network[2].propose(b"command")
    # Stored by all, committed by none.
    network.lost = lambda message: message.to == 2
    await network.run()
    network.lost = lambda _: False
    network.cut.add(2)
    node = await network.elect(1)
    assert node.application.tails == [[2, 3]]
    assert node.application.applied == [b"command"]
    assert (node.group.term, node.group.tail_ids) == (2, set())


async def test_a_group_without_a_core_has_no_role(node: DriverNode) -> None:
    node.group.look_at_role()
    assert (node.group.leads, node.application.tails) == (False, [])


# --- log ------------------------------------------------------------------------------------------


def with_log() -> RaftGroup:
    """Entries 1 to 3 of term 1, 4 and 5 of term 3, of which the first two were compacted."""
    group = group_of(ConfState((1,)))
    group.storage.append([Entry(1 if index < 4 else 3, index) for index in range(1, 6)])
    group.storage.compact(2)
    group.applied_term, group.applied_index = 1, 2
    return group


@pytest.mark.parametrize(
    ("position", "there"),
    [
        (LogPosition(1, 1), False),
        (LogPosition(1, 2), True),
        (LogPosition(1, 3), True),
        (LogPosition(2, 3), False),
        (LogPosition(3, 4), True),
        (LogPosition(1, 4), False),
        (LogPosition(3, 5), True),
        (LogPosition(3, 6), False),
    ],
)
@pytest.mark.parametrize("opened", [False, True])
async def test_an_entry_is_known_by_term_and_index(
    node: DriverNode, position: LogPosition, there: bool, opened: bool
) -> None:
    group = with_log()
    if opened:
        node.driver.open(group)
    assert group.has_entry(position) is there


async def test_an_entry_that_is_not_stored_yet_is_in_the_log(node: DriverNode) -> None:
    await node.lead()
    node.holds_writes = True
    node.propose(b"command")
    assert node.group.storage.last_index() == 1
    assert node.group.has_entry(LogPosition(1, 2))


def test_entries_behind_the_applied_one_are_its_tail() -> None:
    group = with_log()
    assert (group.applied, group.has_tail) == (LogPosition(1, 2), True)
    group.applied_index = 5
    assert not group.has_tail


def test_groups_without_a_tail_share_their_set_of_identities() -> None:
    one, other = group_of(ConfState((1,))), group_of(ConfState((1,)))
    assert one.tail_ids is other.tail_ids


async def test_the_shared_set_is_not_changed_by_a_proposal_for_another_node(node: DriverNode) -> None:
    await node.lead()
    empty = group_of(ConfState((1,))).tail_ids
    node.holds_writes = True
    assert node.driver.propose_for(*forwarded_proposal(node.group, COMMAND, b"command", ProposalId(2, 1, 1)))
    assert node.group.tail_ids == {ProposalId(2, 1, 1)}
    assert empty == set()
    node.holds_writes = False
    await node.settle()
    assert node.group.tail_ids == set()

"""The end of the rest of raft groups: one test for each row of the table in
`pixy/multiraft/resting_groups.py`, and the claims that keep it.
"""

from random import Random

import pytest

from pixy.multiraft.driver_options import RAFT_CONFIG
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.multiraft.resting_groups import RestClaim, RestingGroups
from pixy.raft import ConfState, RaftNode, StateType

TIMEOUT = RAFT_CONFIG.election_tick
OWN, OTHER, THIRD = 1, 2, 3


def group_of(raft_group: int, lead: int, term: int = 5) -> RaftGroup:
    """A group of three nodes, which one of them leads."""
    group = RaftGroup(raft_group, RaftStorage(ConfState((OWN, OTHER, THIRD))), OWN)
    group.node = RaftNode(OWN, group.storage, RAFT_CONFIG, Random(1))
    raft = group.node.raft
    raft.term, raft.lead = term, lead
    raft.state = StateType.LEADER if lead == OWN else StateType.FOLLOWER
    return group


def resting(*groups: RaftGroup) -> RestingGroups:
    made = RestingGroups(TIMEOUT)
    for group in groups:
        made.begin(group, OWN)
    return made


def woken(rest: RestingGroups, ticks: int) -> list[tuple[int, int, int]]:
    """Groups, elapsed ticks and silent nodes of what the last one of these ticks wakes."""
    waking = [rest.tick() for _ in range(ticks)]
    assert waking[:-1] == [[]] * (ticks - 1)
    return [(group.raft_group, elapsed, silent) for group, elapsed, silent in waking[-1]]


def claim_to(rest: RestingGroups, node_id: int) -> RestClaim:
    return dict(rest.claims())[node_id]


def test_a_follower_wakes_after_an_election_timeout_without_an_equal_claim() -> None:
    rest = resting(group_of(1000, OTHER), group_of(1001, OTHER), group_of(1002, THIRD))
    claims = resting(group_of(1002, OWN))
    assert woken(rest, TIMEOUT // 2) == []
    rest.heard(THIRD, claim_to(claims, OTHER))
    rest.heard(OTHER, claim_to(claims, OTHER))
    found = woken(rest, TIMEOUT - TIMEOUT // 2)
    assert [(each, silent) for each, _, silent in found] == [(1000, 0), (1001, 0)]
    assert all(0 < elapsed < TIMEOUT for _, elapsed, _ in found), "its leader has time to be heard"


def test_a_leader_wakes_after_an_election_timeout_without_any_claim_of_a_follower() -> None:
    rest = resting(group_of(1000, OWN))
    assert woken(rest, TIMEOUT // 2) == []
    rest.heard(OTHER, RestClaim(7, 7))
    assert woken(rest, TIMEOUT - TIMEOUT // 2) == [(1000, 0, THIRD)]


@pytest.mark.parametrize("lead", [OWN, OTHER])
def test_a_connection_that_ends_or_begins_wakes_what_rests_with_its_node(lead: int) -> None:
    rest = resting(group_of(1000, lead), group_of(1001, THIRD))
    assert [group.raft_group for group, _, _ in rest.with_node(OTHER)] == [1000]
    assert rest.with_node(99) == []


def test_equal_claims_keep_the_rest() -> None:
    follower, leader = resting(group_of(1000, OTHER)), resting(group_of(1000, OWN))
    for _ in range(5 * TIMEOUT):
        assert follower.tick() == []
        follower.heard(OTHER, claim_to(leader, OTHER))


@pytest.mark.parametrize(
    "claimed",
    [
        [],
        [group_of(1000, OWN)],
        [group_of(1000, OWN), group_of(1002, OWN)],
        [group_of(1000, OWN), group_of(1001, OWN, term=6)],
        [group_of(1000, OWN, term=6), group_of(1001, OWN, term=4)],
        [group_of(1000, OWN), group_of(1001, OWN), group_of(1002, OWN)],
    ],
)
def test_a_claim_of_other_groups_or_terms_proves_nothing(claimed: list[RaftGroup]) -> None:
    follower = resting(group_of(1000, OTHER), group_of(1001, OTHER))
    leader = resting(*claimed)
    claim = claim_to(leader, OTHER) if claimed else RestClaim()
    assert woken(follower, TIMEOUT - 1) == []
    follower.heard(OTHER, claim)
    assert [raft_group for raft_group, _, _ in woken(follower, 1)] == [1000, 1001]
    for group in claimed:
        group.resting = False


def test_what_has_ended_is_claimed_no_more() -> None:
    groups = [group_of(1000, OWN), group_of(1001, OWN)]
    rest = resting(*groups)
    before = claim_to(resting(group_of(1001, OWN)), OTHER)
    rest.end(groups[0])
    rest.end(groups[0])
    assert (claim_to(rest, OTHER), len(rest)) == (before, 1)
    rest.end(groups[1])
    assert list(rest.claims()) == []
    assert rest.tick() == []

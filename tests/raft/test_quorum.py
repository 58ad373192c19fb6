"""Quorum arithmetic against slow and obvious definitions."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.raft.quorum import (
    INFINITY,
    VoteResult,
    joint_committed_index,
    joint_vote_result,
    majority_committed_index,
    majority_vote_result,
)

pytestmark = pytest.mark.slow

VOTERS = st.sets(st.integers(1, 9), max_size=7)
ACKED = st.dictionaries(st.integers(1, 9), st.integers(0, 20))
VOTES = st.dictionaries(st.integers(1, 9), st.booleans())


def majorities(voters: set[int]) -> list[set[int]]:
    """All subsets that are a majority."""
    return [
        set(some)
        for size in range(len(voters) // 2 + 1, len(voters) + 1)
        for some in combinations(sorted(voters), size)
    ]


@given(VOTERS.filter(bool), ACKED)
def test_an_index_is_committed_if_some_majority_has_acknowledged_it(
    voters: set[int], acked: dict[int, int]
) -> None:
    expected = max(min(acked.get(voter, 0) for voter in majority) for majority in majorities(voters))
    assert majority_committed_index(voters, acked.get) == expected


@given(VOTERS, VOTERS, ACKED)
def test_a_joint_configuration_commits_what_both_halves_commit(
    left: set[int], right: set[int], acked: dict[int, int]
) -> None:
    halves = [majority_committed_index(half, acked.get) for half in (left, right)]
    assert joint_committed_index(left, right, acked.get) == min(halves)


def test_the_empty_configuration_commits_everything_and_wins_every_vote() -> None:
    assert majority_committed_index(set(), lambda _: None) == INFINITY
    assert majority_vote_result(set(), {}) is VoteResult.WON


@given(VOTERS.filter(bool), VOTES)
def test_a_vote_is_won_or_lost_as_soon_as_no_missing_vote_can_change_it(
    voters: set[int], votes: dict[int, bool]
) -> None:
    yes = {voter for voter in voters if votes.get(voter) is True}
    no = {voter for voter in voters if votes.get(voter) is False}
    if any(majority <= yes for majority in majorities(voters)):
        expected = VoteResult.WON
    elif any(majority <= voters - no for majority in majorities(voters)):
        expected = VoteResult.PENDING
    else:
        expected = VoteResult.LOST
    assert majority_vote_result(voters, votes) is expected


@given(VOTERS, VOTERS, VOTES)
def test_a_joint_vote_is_lost_with_one_half_and_won_with_both(
    left: set[int], right: set[int], votes: dict[int, bool]
) -> None:
    halves = [majority_vote_result(half, votes) for half in (left, right)]
    order = [VoteResult.LOST, VoteResult.PENDING, VoteResult.WON]
    assert joint_vote_result(left, right, votes) is min(halves, key=order.index)

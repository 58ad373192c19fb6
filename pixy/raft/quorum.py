"""Majorities of one configuration, and of the two halves of a joint one.

A majority of voters decides (Raft §5.1). During a membership change the group has two sets of
voters, and a decision needs a majority of both (Raft §6, thesis §4.3). The empty set agrees to
everything, so a configuration with an empty outgoing half decides like its incoming half alone.

A voter acknowledges an index if its log is known to be stored up to there. `committed_index` is the
highest index acknowledged by a majority; a voter without a known index counts as 0.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum

INFINITY = 2**64 - 1
"""Committed index of an empty majority."""

AckedIndex = Callable[[int], int | None]
"""Index acknowledged by a voter, None if unknown."""


class VoteResult(Enum):
    """Outcome of an election so far."""

    PENDING = "VotePending"
    LOST = "VoteLost"
    WON = "VoteWon"


def is_majority(some: Sequence[int], voters: Sequence[int]) -> bool:
    """True for more than half of the voters."""
    return len(some) > len(voters) // 2


def majority_committed_index(voters: Collection[int], acked: AckedIndex) -> int:
    """Highest index acknowledged by a majority of the voters; `INFINITY` without voters."""
    if not voters:
        return INFINITY
    indexes = sorted([acked(voter) or 0 for voter in voters])
    return indexes[(len(indexes) - 1) // 2]


def joint_committed_index(incoming: Collection[int], outgoing: Collection[int], acked: AckedIndex) -> int:
    """Highest index acknowledged by majorities of both halves."""
    index = majority_committed_index(incoming, acked)
    return min(index, majority_committed_index(outgoing, acked)) if outgoing else index


def majority_vote_result(voters: Collection[int], votes: Mapping[int, bool]) -> VoteResult:
    """Outcome of the votes cast so far; an election without voters is won."""
    quorum = len(voters) // 2 + 1 if voters else 0
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    if granted >= quorum:
        return VoteResult.WON
    missing = sum(1 for voter in voters if voter not in votes)
    return VoteResult.PENDING if granted + missing >= quorum else VoteResult.LOST


def joint_vote_result(
    incoming: Collection[int], outgoing: Collection[int], votes: Mapping[int, bool]
) -> VoteResult:
    """Won if both halves are won, lost as soon as one is lost."""
    results = {majority_vote_result(incoming, votes), majority_vote_result(outgoing, votes)}
    if VoteResult.LOST in results:
        return VoteResult.LOST
    return VoteResult.PENDING if VoteResult.PENDING in results else VoteResult.WON

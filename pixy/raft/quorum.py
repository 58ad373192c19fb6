"""Majorities, and majorities of two configurations at once.

A decision of a group is taken by a majority of its voters (Raft §5.1). While the group moves from one configuration to
another it has two sets of voters, and every decision needs a majority of both (Raft §6, thesis §4.3). The empty set
agrees to everything: so a configuration with an empty outgoing half decides like its incoming half alone.

An index is acknowledged by a voter if its log is known to be stored up to there. `committed_index` finds the largest
index that a majority acknowledges; a voter of whom nothing is known counts as 0.
"""

from collections.abc import Callable, Collection, Mapping
from enum import Enum

__all__ = [
    "INFINITY",
    "VoteResult",
    "joint_committed_index",
    "joint_vote_result",
    "majority_committed_index",
    "majority_vote_result",
]

INFINITY = 2**64 - 1
"""What the empty majority has committed."""

AckedIndex = Callable[[int], int | None]
"""The index that a voter acknowledges, None if nothing is known of it."""


class VoteResult(Enum):
    """The state of an election."""

    PENDING = "VotePending"
    LOST = "VoteLost"
    WON = "VoteWon"


def majority_committed_index(voters: Collection[int], acked: AckedIndex) -> int:
    """The largest index that a majority of the voters acknowledges; `INFINITY` without voters."""
    if not voters:
        return INFINITY
    indexes = sorted([acked(voter) or 0 for voter in voters])
    return indexes[(len(indexes) - 1) // 2]


def joint_committed_index(incoming: Collection[int], outgoing: Collection[int], acked: AckedIndex) -> int:
    """The largest index that majorities of both halves acknowledge."""
    index = majority_committed_index(incoming, acked)
    return min(index, majority_committed_index(outgoing, acked)) if outgoing else index


def majority_vote_result(voters: Collection[int], votes: Mapping[int, bool]) -> VoteResult:
    """What the votes cast so far amount to; an election without voters is won."""
    quorum = len(voters) // 2 + 1 if voters else 0
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    if granted >= quorum:
        return VoteResult.WON
    missing = sum(1 for voter in voters if voter not in votes)
    return VoteResult.PENDING if granted + missing >= quorum else VoteResult.LOST


def joint_vote_result(
    incoming: Collection[int], outgoing: Collection[int], votes: Mapping[int, bool]
) -> VoteResult:
    """Won if both halves are, lost as soon as one is."""
    results = {majority_vote_result(incoming, votes), majority_vote_result(outgoing, votes)}
    if VoteResult.LOST in results:
        return VoteResult.LOST
    return VoteResult.PENDING if VoteResult.PENDING in results else VoteResult.WON

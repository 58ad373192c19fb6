"""Identity of a proposal to a raft group, stored in its entry."""

from typing import NamedTuple

__all__ = ["ProposalId"]


class ProposalId(NamedTuple):
    """Identity of a proposal within one raft group; the same for every attempt to append it.

    Attributes:
        node_id: node that proposes it, or forwards it for a client.
        incarnation: number of that node's start, ascending.
        sequence: number of the proposal, ascending within raft group and incarnation, from 1 on.
    """

    node_id: int
    incarnation: int
    sequence: int

"""Identity of a proposal to a raft group, as in its entry; and the largest numbers of a node."""

from typing import NamedTuple

from pixy.log_position import INDEX_MAX

__all__ = ["FLUSH_MAX", "INCARNATION_JUMP_MAX", "INCARNATION_MAX", "NODE_ID_MAX", "ProposalId"]

NODE_ID_MAX = 2**31 - 1
"""Largest id of a node in what is stored."""
INCARNATION_MAX = 2**32 - 1
"""Largest number of a start in what is stored."""
INCARNATION_JUMP_MAX = 2**24
"""Most starts of a node that a peer can miss: half a year of a start a second."""
FLUSH_MAX = 2**62 - 1
"""Largest number of a flush of a journal: no node gets there."""


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

    def is_possible(self, after: int) -> bool:
        """True if a correct node may send this, behind its proposal with the sequence `after`."""
        return 0 < self.sequence <= INDEX_MAX and after <= INDEX_MAX

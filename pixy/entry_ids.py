"""Names of what is in the log of a raft group: the position of an entry, and the identity of the
proposal that it came from; and the largest numbers in them.

A leaf of its own, so that a node names entries without the import of the Raft core.
"""

from typing import NamedTuple

INDEX_MAX = 2**62 - 1
"""Largest index, and largest sequence of a proposal: no log gets there."""
TERM_MAX = 2**31 - 1
"""Largest term: that of a leader is the epoch of record batches and of checkpoints, which has 32
bits in the formats of Kafka.
"""
TERM_JUMP_MAX = 2**24
"""Largest distance of the terms of two nodes: half a year of an election a second."""
TERM_KEPT_MAX = TERM_MAX - TERM_JUMP_MAX
"""Largest term that a node keeps which mends its directory alone: there are others behind it."""
NODE_ID_MAX = 2**31 - 1
"""Largest id of a node in what is stored."""
INCARNATION_MAX = 2**32 - 1
"""Largest number of a start in what is stored."""
INCARNATION_JUMP_MAX = 2**24
"""Most starts of a node that a peer can miss: half a year of a start a second."""
FLUSH_MAX = 2**62 - 1
"""Largest number of a flush of a journal: no node gets there."""


class LogPosition(NamedTuple):
    """Position of an entry. Positions compare as logs do: by term, then by index (Raft §5.4.1)."""

    term: int
    index: int  # type: ignore[assignment]  # it hides tuple.index, which a pair has no use for


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

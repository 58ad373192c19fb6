"""The position of an entry in the log of a raft group.

A leaf of its own, so that a node names positions without the import of the Raft core.
"""

from typing import NamedTuple

__all__ = ["INDEX_MAX", "TERM_JUMP_MAX", "TERM_KEPT_MAX", "TERM_MAX", "LogPosition"]

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


class LogPosition(NamedTuple):
    """Position of an entry. Positions compare as logs do: by term, then by index (Raft §5.4.1)."""

    term: int
    index: int  # type: ignore[assignment]  # it hides tuple.index, which a pair has no use for

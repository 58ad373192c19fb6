"""The position of an entry in the log of a raft group.

A leaf of its own, so that a node names positions without the import of the Raft core.
"""

from typing import NamedTuple

__all__ = ["POSITION_MAX", "TERM_JUMP_MAX", "LogPosition"]

POSITION_MAX = 2**62 - 1
"""Largest term, and largest index: no log gets there. One above comes from a faulty node."""
TERM_JUMP_MAX = 2**32
"""Largest distance of the terms of two nodes. Each election takes one."""


class LogPosition(NamedTuple):
    """Position of an entry. Positions compare as logs do: by term, then by index (Raft §5.4.1)."""

    term: int
    index: int  # type: ignore[assignment]  # it hides tuple.index, which a pair has no use for

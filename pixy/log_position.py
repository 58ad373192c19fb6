"""The position of an entry in the log of a raft group.

A leaf of its own, so that a node names positions without the import of the Raft core.
"""

from typing import NamedTuple

__all__ = ["LogPosition"]


class LogPosition(NamedTuple):
    """Position of an entry. Positions compare as logs do: by term, then by index (Raft §5.4.1)."""

    term: int
    index: int  # type: ignore[assignment]  # it hides tuple.index, which a pair has no use for

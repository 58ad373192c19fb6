"""Raft groups in a journal with a term, or an index, that no log has. Pure.

A node of an earlier release took any term from another node, and wrote it to its journal. From
there on nobody can campaign: the next term does not exist, or is no epoch of a batch. A start
refuses such a group, `pixy storage check` reports it, and `pixy storage recover` lowers the term of
a group whose only voter this node is (`mended_terms`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from pixy.log_position import INDEX_MAX, TERM_MAX, LogPosition
from pixy.proto.state_pb2 import AppliedPosition, HardState
from pixy.storage import TermRun

__all__ = ["ADVICE", "FoundTerms", "why_impossible"]

ADVICE = (
    "a node with a bug, or one that does not belong to the cluster, has raised it. `pixy storage recover` lowers "
    "it and loses nothing, if this node is the only one of its cluster. Else forget this node at another one "
    "(`pixy cluster forget`), and let it join again with an empty data directory; if it is so on a majority of the "
    "nodes, `pixy cluster recover` has one of them go on alone"
)


class FoundTerms(NamedTuple):
    """Terms and indexes of one raft group in a journal.

    Attributes:
        hard_state: its newest hard state, None if there is none.
        runs: first index and term of each run of entries of one term.
        last: index of its last entry.
        reset: position of its newest log reset, None if there is none.
        applied: its newest applied position, None if there is none.
    """

    hard_state: HardState | None
    runs: Sequence[TermRun]
    last: int
    reset: LogPosition | None
    applied: AppliedPosition | None

    @property
    def log_terms(self) -> list[int]:
        """Terms of everything but the hard state."""
        terms = [term for _, term in self.runs]
        terms += [self.reset.term] if self.reset is not None else []
        return terms + ([self.applied.term] if self.applied is not None else [])


def why_impossible(found: FoundTerms) -> str:
    """The first term or index that is impossible, with its place; empty if there is none."""
    state = found.hard_state
    if state is not None and state.term > TERM_MAX:
        return f"its hard state has term {state.term}, at most {TERM_MAX} is possible"
    term = max(found.log_terms, default=0)
    if term > TERM_MAX:
        return f"its log has an entry of term {term}, at most {TERM_MAX} is possible"
    index = max(found.last, state.commit if state is not None else 0)
    if index > INDEX_MAX:
        return f"it has index {index}, at most {INDEX_MAX} is possible"
    return ""

"""Raft groups in a journal with a term, an index or a configuration that none has. Pure.

A node of an earlier release took any term from another node, and wrote it to its journal. From
there on nobody can campaign: the next term does not exist, or is no epoch of a batch. In a
configuration without voters, with a node twice, or with a learner that votes, nobody can be
elected. A start refuses such a group, `pixy storage check` reports it, and `pixy storage recover`
mends a group whose only voter this node is, or has to be (`mended_groups`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from pixy.entry_ids import INDEX_MAX, TERM_MAX, LogPosition
from pixy.multiraft.group_states import conf_state_of
from pixy.proto.state_pb2 import AppliedPosition, HardState
from pixy.raft import MalformedMessage
from pixy.raft.conf_change import check_configuration
from pixy.storage import TermRun

ADVICE = (
    "a node with a bug, or one that does not belong to the cluster, has written it. `pixy storage recover` mends "
    "it and loses nothing, if this node is the only one of its cluster. Else forget this node at another one "
    "(`pixy cluster forget`), and let it join again with an empty data directory; if it is so on a majority of the "
    "nodes, `pixy cluster recover` has one of them go on alone"
)


class FoundState(NamedTuple):
    """Terms, indexes and configuration of one raft group in a journal.

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

    @property
    def highest_index(self) -> int:
        """The largest index that is named."""
        state = self.hard_state
        return max(self.last, *((0, 0) if state is None else (state.commit, state.conf_index)))


def why_impossible(found: FoundState) -> str:
    """The first term, index or configuration that is impossible, with its place; empty if there is
    none.
    """
    state = found.hard_state
    if state is not None and state.term > TERM_MAX:
        return f"its hard state has term {state.term}, at most {TERM_MAX} is possible"
    term = max(found.log_terms, default=0)
    if term > TERM_MAX:
        return f"its log has an entry of term {term}, at most {TERM_MAX} is possible"
    if found.highest_index > INDEX_MAX:
        return f"it has index {found.highest_index}, at most {INDEX_MAX} is possible"
    reason = "" if state is None or is_blank(found) else why_no_configuration(state)
    return reason and f"its hard state has a configuration that is none: {reason}"


def is_blank(found: FoundState) -> bool:
    """True if a group has a hard state, and neither members nor a log: a replica that is new, or
    has departed. See `RaftGroup.is_blank`.
    """
    state = found.hard_state
    if state is None or found.runs or found.last or found.reset is not None or found.applied is not None:
        return False
    return not (conf_state_of(state).members or state.conf_index)


def why_no_configuration(state: HardState) -> str:
    """Reason why no raft group has the configuration of a hard state or checkpoint, empty if one
    can.
    """
    try:
        check_configuration(conf_state_of(state))
    except MalformedMessage as error:
        return str(error)
    return ""


def why_never_a_member(state: HardState | None, next_node_id: int) -> str:
    """The first member of a possible configuration that never was in the cluster; empty if there is
    none.

    Args:
        next_node_id: the id that metadata gives next, where metadata is current.
    """
    if state is None or why_no_configuration(state):
        return ""
    unknown = sorted([each for each in conf_state_of(state).members if each >= next_node_id])
    return (
        f"its hard state has node {unknown[0]} as a member, which never was in the cluster" if unknown else ""
    )

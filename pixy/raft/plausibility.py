"""Messages of other nodes that no correct one sends, in the present state of this one.

A step trusts its message: etcd's core panics where one contradicts the log, because there every
member is trusted. Here a node may have a bug, or be somebody else's. So the driver asks before each
step, and drops what is impossible: a message that is lost harms nothing.

    message                     is impossible if
    --------------------------  --------------------------------------------------------------------
    any                         it comes from this node, or its term is more than `TERM_JUMP_MAX`
                                above this node's: each election takes one
    any but the answers of      this node has the only vote: see below
    learners
    APP, HEARTBEAT, SNAP,       another node leads in this term (Raft §5.2)
    TIMEOUT_NOW,
    READ_INDEX_RESP
    APP                         it replaces an entry of its own term (leader append-only, §5.3)
    HEARTBEAT                   it commits more than the log has: a leader commits only what the
                                follower has confirmed
    SNAP                        its position is more than `_INDEX_JUMP_MAX` above the log
    VOTE, PRE_VOTE              the candidate's log has an entry of the term it campaigns for
    APP_RESP                    it confirms more than the leader's log has
    READ_INDEX                  it has a term

**The only voter.** Only this node can commit an entry, so no change of the configuration is unknown
to it, and nobody else can be elected. It is deposed by nobody: it takes no votes, appends,
heartbeats or snapshots, whatever their term. That begins when a change that leaves it as the only
voter is applied here, and ends when one that makes another voter is in its log: that node may be
elected once both have the entry, which the latter may learn of first. Learners answer, and may be
ahead in the term, as former voters: their answers to an append are taken, and if such a term
deposes this node, the driver has it campaign at once.
"""

from collections.abc import Callable

from pixy.entry_ids import TERM_JUMP_MAX, TERM_MAX
from pixy.raft.errors import EntriesNotLoaded
from pixy.raft.messages import NODE_ID_MAX, NONE, Message, MessageType, StateType
from pixy.raft.sizes import NO_LIMIT
from pixy.raft.state import RaftState

_LEADER = StateType.LEADER
_INDEX_JUMP_MAX = 2**48
"""Ten years of a million entries a second: what a new replica may lack."""


def why_impossible(raft: RaftState, m: Message) -> str:
    """Reason why no correct node has sent a message, empty if there is none."""
    sender, term = m.sender, m.term
    if sender == raft.id or not NONE < sender <= NODE_ID_MAX:
        return f"it comes from node {sender}"
    if term > raft.term + TERM_JUMP_MAX or term > TERM_MAX:
        return f"term {term} is too far above {raft.term}"
    if len(raft.tracker.voters) == 1 and is_deposed_by_nobody(raft) and not _is_of_learner(raft, m):
        return "this node has the only vote"
    check = _CHECKS.get(m.type)
    # What is of an earlier term changes nothing but the sender.
    return check(raft, m) if check is not None and (term >= raft.term or not term) else ""


def is_deposed_by_nobody(raft: RaftState) -> bool:
    """True if this node has the only vote, and its log has no change of the configuration that is
    not applied.
    """
    if not raft.tracker.is_only_voter(raft.id):
        return False
    log = raft.log
    first, end = max(log.applied, raft.conf_index) + 1, log.last_index() + 1
    try:
        return first >= end or not any(entry.type for entry in log.slice(first, end, NO_LIMIT))
    except EntriesNotLoaded:
        return False


def _is_of_learner(raft: RaftState, m: Message) -> bool:
    if m.sender not in raft.tracker.progress:
        return False
    if m.type is MessageType.APP_RESP:
        return True
    return m.type in (MessageType.HEARTBEAT_RESP, MessageType.READ_INDEX) and m.term <= raft.term


def _of_second_leader(raft: RaftState, m: Message) -> str:
    if m.term == raft.term and raft.lead not in (NONE, m.sender):
        return f"node {raft.lead} leads in term {raft.term}"
    return ""


def _append(raft: RaftState, m: Message) -> str:
    log = raft.log
    if m.entries and m.index < log.last_index():
        term, last = log.last_position()
        if term == m.term:
            at = max(log.term_start(last), m.index + 1) - m.index - 1
            if at < len(m.entries) and m.entries[at].term != term:
                return f"it replaces entry {m.entries[at].index} of its own term {term}"
    return "" if raft.lead == m.sender else _of_second_leader(raft, m)


def _heartbeat(raft: RaftState, m: Message) -> str:
    last = raft.log.last_index()
    if m.commit > last:
        return f"it commits up to entry {m.commit}, the log ends at {last}"
    return _of_second_leader(raft, m)


def _snapshot(raft: RaftState, m: Message) -> str:
    last = raft.log.last_index()
    if m.snapshot is None or m.snapshot.index > last + _INDEX_JUMP_MAX:
        return f"it has a snapshot at entry {m.snapshot and m.snapshot.index}, the log ends at {last}"
    return _of_second_leader(raft, m)


def _vote(_: RaftState, m: Message) -> str:
    if m.log_term >= m.term:
        return f"it campaigns for term {m.term} with an entry of term {m.log_term}"
    return ""


def _append_response(raft: RaftState, m: Message) -> str:
    if m.reject or raft.state is not _LEADER or m.term != raft.term:
        return ""
    last = raft.log.last_index()
    return f"it confirms entry {m.index}, the log ends at {last}" if m.index > last else ""


def _read(_: RaftState, m: Message) -> str:
    return f"a request to read has term {m.term}" if m.term else ""


_CHECKS: dict[MessageType, Callable[[RaftState, Message], str]] = {
    MessageType.APP: _append,
    MessageType.APP_RESP: _append_response,
    MessageType.HEARTBEAT: _heartbeat,
    MessageType.PRE_VOTE: _vote,
    MessageType.READ_INDEX: _read,
    MessageType.READ_INDEX_RESP: _of_second_leader,
    MessageType.SNAP: _snapshot,
    MessageType.TIMEOUT_NOW: _of_second_leader,
    MessageType.VOTE: _vote,
}

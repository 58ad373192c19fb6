"""Messages of another term than the node's (Raft §5.1, with the exceptions for pre-vote and
check-quorum).

A later term makes every node a follower in it, except that

- a vote request is ignored by a node in contact with a leader (check-quorum; thesis §4.2.3), unless
  that leader asked for the election;
- a pre-vote and a granted pre-vote carry a term that is not in effect yet (thesis §9.6).

An earlier term is answered only if the sender would otherwise never learn that it is out of date.
"""

from pixy.raft.messages import CAMPAIGN_TRANSFER, NONE, Message, MessageType
from pixy.raft.state import VOTE_REJECTED, RaftState
from pixy.raft.text import message_type_name

_FROM_LEADER = (MessageType.APP, MessageType.HEARTBEAT, MessageType.SNAP)


def reconcile_terms(raft: RaftState, m: Message) -> bool:
    """Handle the term difference; False if the message needs no further processing."""
    if m.term < raft.term:
        _answer_lower_term(raft, m)
        return False
    if m.type is MessageType.VOTE or m.type is MessageType.PRE_VOTE:
        in_lease = (
            raft.config.check_quorum
            and raft.lead != NONE
            and raft.election_elapsed < raft.config.election_tick
        )
        if in_lease and m.context != CAMPAIGN_TRANSFER:
            # Thesis §4.2.3: a node in contact with a leader does not help to depose it.
            _trace_ignored_in_lease(raft, m)
            return False
    if m.type is MessageType.PRE_VOTE or (m.type is MessageType.PRE_VOTE_RESP and not m.reject):
        # The term of a pre-vote takes effect only when it is won.
        return True
    raft.trace.info(
        "%x [term: %d] received a %s message with higher term from %x [term: %d]",
        raft.id,
        raft.term,
        message_type_name(m.type),
        m.sender,
        m.term,
    )
    raft.become_follower(m.term, m.sender if m.type in _FROM_LEADER else NONE)
    return True


def _trace_ignored_in_lease(raft: RaftState, m: Message) -> None:
    raft.trace_vote(
        "%x [logterm: %d, index: %d, vote: %x] ignored %s from %x [logterm: %d, index: %d] at term %d: "
        "lease is not expired (remaining ticks: %d)",
        m,
        raft.config.election_tick - raft.election_elapsed,
    )


def _answer_lower_term(raft: RaftState, m: Message) -> None:
    if (raft.config.check_quorum or raft.config.pre_vote) and m.type in (
        MessageType.HEARTBEAT,
        MessageType.APP,
    ):
        # Without this, a node that incremented its term while partitioned could neither follow,
        # since the leader's term is lower, nor be elected, since its vote requests are ignored
        # (thesis §9.6).
        raft.send(Message(MessageType.APP_RESP, m.sender))
    elif m.type is MessageType.PRE_VOTE:
        raft.trace_vote(VOTE_REJECTED, m)
        raft.send(Message(MessageType.PRE_VOTE_RESP, m.sender, term=raft.term, reject=True))
    else:
        raft.trace.info(
            "%x [term: %d] ignored a %s message with lower term from %x [term: %d]",
            raft.id,
            raft.term,
            message_type_name(m.type),
            m.sender,
            m.term,
        )

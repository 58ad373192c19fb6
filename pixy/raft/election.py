"""Campaigns and votes (Raft §5.2, §5.4.1; pre-vote: thesis §9.6; leadership transfer: thesis
§3.10).

A campaign requests the vote of each voter in both halves of the configuration. A node's vote for
itself is a message to itself that is delivered once the vote is stored, like any other vote; so
even a single voter becomes leader only after a write. With pre-vote, a node first asks whether it
would win, without incrementing its term, and so causes no disruption if it would not.

Votes are granted to any node, member or not, and by learners too: the receiver may not know of its
promotion yet.
"""

from pixy.entry_ids import TERM_MAX, LogPosition
from pixy.raft import follower, replication
from pixy.raft.errors import EntriesNotLoaded, StorageError, panic
from pixy.raft.messages import (
    CAMPAIGN_TRANSFER,
    NONE,
    Message,
    MessageType,
    RaftEntryType,
    StateType,
)
from pixy.raft.quorum import VoteResult
from pixy.raft.sizes import NO_LIMIT
from pixy.raft.state import VOTE_REJECTED, Campaign, RaftState
from pixy.raft.text import message_type_name, state_name

_CAST = "%x [logterm: %d, index: %d, vote: %x] cast %s for %x [logterm: %d, index: %d] at term %d"


def hup(raft: RaftState, _: Message) -> None:
    """HUP: the election timeout has elapsed, or the application wants this node to lead."""
    start_campaign(raft, Campaign.PRE_ELECTION if raft.config.pre_vote else Campaign.ELECTION)


def timeout_now(raft: RaftState, m: Message) -> None:
    """TIMEOUT_NOW at a follower: the leader transfers its leadership.

    No pre-vote: the election is known to be winnable.
    """
    raft.trace.info(
        "%x [term %d] received MsgTimeoutNow from %x and starts an election to get leadership.",
        raft.id,
        raft.term,
        m.sender,
    )
    start_campaign(raft, Campaign.TRANSFER)


def ignore_timeout_now(raft: RaftState, m: Message) -> None:
    """TIMEOUT_NOW at a candidate, which is campaigning already."""
    raft.trace.debug(
        "%x [term %d state %s] ignored MsgTimeoutNow from %x",
        raft.id,
        raft.term,
        state_name(raft.state),
        m.sender,
    )


def start_campaign(raft: RaftState, campaign: Campaign) -> None:
    """Campaign, unless this node is the leader, is not promotable, or has committed configuration
    changes that its configuration does not include yet.

    If it has to load entries to know that, it campaigns when they are loaded, unless it has heard
    from a leader before, or its term has changed.
    """
    if raft.state is StateType.LEADER:
        raft.trace.debug("%x ignoring MsgHup because already leader", raft.id)
        return
    if not raft.promotable():
        raft.trace.warning("%x is unpromotable and can not campaign", raft.id)
        return
    if raft.term >= TERM_MAX:
        raft.trace.error("%x cannot campaign: term %d is the last one", raft.id, raft.term)
        return
    raft.awaiting_campaign = None
    try:
        changing = _has_unapplied_conf_change(raft)
    except EntriesNotLoaded:
        raft.trace.debug("%x loads unapplied entries before it campaigns at term %d", raft.id, raft.term)
        raft.awaiting_campaign = campaign
        return
    if changing:
        raft.trace.warning(
            "%x cannot campaign at term %d since there are still pending configuration changes to apply",
            raft.id,
            raft.term,
        )
        return
    raft.trace.info("%x is starting a new election at term %d", raft.id, raft.term)
    _campaign(raft, campaign)


def _has_unapplied_conf_change(raft: RaftState) -> bool:
    log = raft.log
    # A restart may have a configuration that is ahead of the applied entries.
    lo, hi = max(log.applied, raft.conf_index, raft.no_conf_change_to) + 1, log.committed + 1
    while lo < hi:
        try:
            entries = log.slice(lo, hi, NO_LIMIT)
            if not entries:
                raise StorageError(f"got 0 entries in [{lo}, {hi})")
        except EntriesNotLoaded:
            raise
        except StorageError as error:
            panic(raft.trace, "error scanning unapplied entries [%d, %d): %s", lo, hi, error)
        if any(entry.type is not RaftEntryType.NORMAL for entry in entries):
            return True
        lo += len(entries)
        # Committed entries stay as they are, so none is read twice.
        raft.no_conf_change_to = lo - 1
    return False


def resume_campaign(raft: RaftState) -> None:
    """Campaign if this node was loading entries before it could."""
    if raft.awaiting_campaign is not None:
        start_campaign(raft, raft.awaiting_campaign)


def _campaign(raft: RaftState, campaign: Campaign) -> None:
    if not raft.promotable():
        # It was promotable when it requested the pre-votes that it has now won.
        raft.trace.warning("%x is unpromotable; campaign() should have been called", raft.id)
    if campaign is Campaign.PRE_ELECTION:
        raft.become_pre_candidate()
        request, response, term = MessageType.PRE_VOTE, MessageType.PRE_VOTE_RESP, raft.term + 1
    else:
        raft.become_candidate()
        request, response, term = MessageType.VOTE, MessageType.VOTE_RESP, raft.term
    context = CAMPAIGN_TRANSFER if campaign is Campaign.TRANSFER else b""
    last = raft.log.last_position()
    for voter in raft.tracker.voters:
        if voter == raft.id:
            raft.send(Message(response, voter, term=term))
            continue
        raft.trace.info(
            "%x [logterm: %d, index: %d] sent %s request to %x at term %d",
            raft.id,
            last.term,
            last.index,
            message_type_name(request),
            voter,
            raft.term,
        )
        raft.send(Message(request, voter, term=term, log_term=last.term, index=last.index, context=context))


def handle_vote_request(raft: RaftState, m: Message) -> None:
    """VOTE or PRE_VOTE, in any role."""
    last = raft.log.last_position()
    candidate = LogPosition(m.log_term, m.index)
    # Raft §5.2: one vote per term; a pre-vote for a later term is not binding.
    may_vote = (
        raft.vote == m.sender
        or (raft.vote == NONE and raft.lead == NONE)
        or (m.type is MessageType.PRE_VOTE and m.term > raft.term)
    )
    # Raft §5.4.1: only if the candidate's log is at least as up-to-date.
    granted = may_vote and candidate >= last
    raft.trace_vote(_CAST if granted else VOTE_REJECTED, m)
    response = MessageType.VOTE_RESP if m.type is MessageType.VOTE else MessageType.PRE_VOTE_RESP
    raft.send(Message(response, m.sender, term=m.term if granted else raft.term, reject=not granted))
    if granted and m.type is MessageType.VOTE:
        raft.election_elapsed = 0
        raft.vote = m.sender


def handle_vote_response(raft: RaftState, m: Message) -> None:
    """VOTE_RESP at a candidate."""
    result = _count(raft, m)
    if result is VoteResult.WON:
        raft.become_leader()
        replication.broadcast_append(raft)
    elif result is VoteResult.LOST:
        raft.become_follower(raft.term, NONE)


def handle_pre_vote_response(raft: RaftState, m: Message) -> None:
    """PRE_VOTE_RESP at a pre-candidate."""
    result = _count(raft, m)
    if result is VoteResult.WON:
        _campaign(raft, Campaign.ELECTION)
    elif result is VoteResult.LOST:
        # The message's term may be later than this node's, which is kept.
        raft.become_follower(raft.term, NONE)


def _count(raft: RaftState, m: Message) -> VoteResult:
    name = message_type_name(m.type)
    text = "%x received %s rejection from %x at term %d" if m.reject else "%x received %s from %x at term %d"
    raft.trace.info(text, raft.id, name, m.sender, raft.term)
    raft.tracker.record_vote(m.sender, not m.reject)
    granted, rejected, result = raft.tracker.tally()
    raft.trace.info("%x has received %d %s votes and %d vote rejections", raft.id, granted, name, rejected)
    return result


def follow_leader(raft: RaftState, m: Message) -> None:
    """APP, HEARTBEAT or SNAP of the current term at a candidate: another node was elected (Raft
    §5.2).
    """
    raft.become_follower(m.term, m.sender)
    follower.handle_leader_message(raft, m)

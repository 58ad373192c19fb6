"""Follower: appends entries from the leader, forwards requests to it, and restores snapshots."""

from collections.abc import Sequence

from pixy.entry_ids import LogPosition
from pixy.raft import conf_change, rest
from pixy.raft.config import ReadOnlyOption
from pixy.raft.configuration import switch_to_config
from pixy.raft.messages import COMMIT_ONLY, NONE, Entry, Message, MessageType, ReadState, Snapshot, StateType
from pixy.raft.proposals import NotAppended
from pixy.raft.state import RaftState
from pixy.raft.text import describe_conf_state
from pixy.raft.trace import Described

# Members of enumerations are found slowly.
_APP, _APP_RESP = MessageType.APP, MessageType.APP_RESP


def handle_leader_message(raft: RaftState, m: Message) -> None:
    """APP, HEARTBEAT or SNAP of the current term: the sender is the leader."""
    raft.election_elapsed = 0
    raft.lead = m.sender
    raft.awaiting_campaign = None
    if m.type is _APP:
        _take_append(raft, m)
    elif m.type is MessageType.HEARTBEAT:
        raft.log.commit_to(m.commit)
        raft.resting = rest.agrees(raft, m)
        index = m.index if raft.resting else 0
        raft.send(Message(MessageType.HEARTBEAT_RESP, m.sender, index=index, context=m.context))
    else:
        _take_snapshot(raft, m)


# --- the log (Raft §5.3, figure 2: AppendEntries) -------------------------------------------------


def _take_append(raft: RaftState, m: Message) -> None:
    log = raft.log
    if m.index < log.committed:
        # A stale message. Committed entries match, so the leader may continue from there.
        if m.context != COMMIT_ONLY:
            raft.send(Message(_APP_RESP, m.sender, index=log.committed))
        return
    last_new = log.maybe_append(LogPosition(m.log_term, m.index), m.entries, m.commit)
    if last_new is not None:
        if m.context != COMMIT_ONLY:
            raft.messages_after_append.append(
                Message(_APP_RESP, m.sender, raft.id, raft.term, index=last_new)
            )
        return
    raft.trace.debug(
        "%x [logterm: %d, index: %d] rejected MsgApp [logterm: %d, index: %d] from %x",
        raft.id,
        log.term_or_zero(m.index),
        m.index,
        m.log_term,
        m.index,
        m.sender,
    )
    # The last entry that may match. Terms never decrease, so no later entry has a term as early as
    # the leader's.
    hint = log.find_conflict_by_term(min(m.index, log.last_index()), m.log_term)
    raft.send(
        Message(
            _APP_RESP,
            m.sender,
            index=m.index,
            reject=True,
            reject_hint=hint.index,
            log_term=hint.term,
        )
    )


# --- snapshots (Raft §7) --------------------------------------------------------------------------


def _take_snapshot(raft: RaftState, m: Message) -> None:
    snapshot = m.snapshot or Snapshot()
    if raft.config.defer_snapshots and _is_needed(raft, snapshot):
        awaited = raft.awaited_snapshot
        if awaited is not None and awaited.snapshot is not None and _is_needed(raft, awaited.snapshot):
            # Its data is on the way. If each later snapshot replaced it, none might ever arrive.
            if snapshot.index != awaited.snapshot.index:
                _refuse_snapshot(raft, m.sender, snapshot)
            return
        raft.awaited_snapshot = m
        raft.trace.info(
            "%x [commit: %d] awaits the data of snapshot [index: %d, term: %d]",
            raft.id,
            raft.log.committed,
            snapshot.index,
            snapshot.term,
        )
        return
    _answer_snapshot(raft, m.sender, snapshot)


def complete_snapshot(raft: RaftState, snapshot: Snapshot) -> bool:
    """Restore the snapshot whose data has arrived, and answer the current leader; False if it is no
    longer awaited.

    Anything may have happened in between: a snapshot has committed state only, and `restore` checks
    whether it is still needed.
    """
    awaited = raft.awaited_snapshot
    if awaited is None or awaited.snapshot != snapshot:
        return False
    raft.awaited_snapshot = None
    if raft.state is StateType.LEADER or not _is_needed(raft, snapshot):
        return False
    if raft.state is not StateType.FOLLOWER:
        # Only a log that lacks committed entries needs the snapshot: the campaign is of no use.
        raft.become_follower(raft.term, NONE)
    return _answer_snapshot(raft, raft.lead or awaited.sender, snapshot)


def awaits_snapshot(raft: RaftState, snapshot: Snapshot) -> bool:
    """True while the data of this snapshot is awaited and needed."""
    awaited = raft.awaited_snapshot
    if awaited is None or awaited.snapshot != snapshot or raft.state is StateType.LEADER:
        return False
    return _is_needed(raft, snapshot)


def abandon_snapshot(raft: RaftState, snapshot: Snapshot, *, silently: bool) -> None:
    """Await the snapshot no longer, whose data could not be fetched, and refuse it. `silently`: the
    leader is told only what is here; its acknowledgement may have been lost, and no entry with it.
    """
    awaited = raft.awaited_snapshot
    if awaited is None or awaited.snapshot != snapshot:
        return
    raft.awaited_snapshot = None
    if raft.state is not StateType.FOLLOWER:
        return
    leader = raft.lead or awaited.sender
    if silently:
        raft.send(Message(_APP_RESP, leader, index=_shared_index(raft)))
    else:
        _refuse_snapshot(raft, leader, snapshot)


def _shared_index(raft: RaftState) -> int:
    """Index up to which the leader surely has the same entries: an entry of its own term comes from
    it, with all those before (Raft §5.3).
    """
    last = raft.log.last_position()
    return last.index if last.term == raft.term else raft.log.committed


def _refuse_snapshot(raft: RaftState, leader: int, snapshot: Snapshot) -> None:
    """Tell the leader that it waits for the snapshot in vain."""
    raft.trace.info(
        "%x [commit: %d] refused snapshot [index: %d, term: %d] from %x",
        raft.id,
        raft.log.committed,
        snapshot.index,
        snapshot.term,
        leader,
    )
    last = raft.log.last_index()
    raft.send(Message(_APP_RESP, leader, index=snapshot.index, reject=True, reject_hint=last))


def _is_needed(raft: RaftState, snapshot: Snapshot) -> bool:
    """True if `restore` would replace the log."""
    log, member = raft.log, raft.id in snapshot.conf_state.members
    return snapshot.index > log.committed and member and not log.match_term(snapshot.term, snapshot.index)


def _answer_snapshot(raft: RaftState, leader: int, snapshot: Snapshot) -> bool:
    restored = restore(raft, snapshot)
    raft.trace.info(
        "%x [commit: %d] %s snapshot [index: %d, term: %d]",
        raft.id,
        raft.log.committed,
        "restored" if restored else "ignored",
        snapshot.index,
        snapshot.term,
    )
    index = raft.log.last_index() if restored else raft.log.committed
    raft.send(Message(_APP_RESP, leader, index=index))
    return restored


def restore(raft: RaftState, snapshot: Snapshot) -> bool:
    """Replace log and configuration by a snapshot; False if it is not needed or not meant for this
    node.
    """
    log = raft.log
    if snapshot.index <= log.committed:
        return False
    if raft.state is not StateType.FOLLOWER:
        raft.trace.warning("%x attempted to restore snapshot as leader; should never happen", raft.id)
        raft.become_follower(raft.term + 1, NONE)
        return False
    state = snapshot.conf_state
    if raft.id not in state.members:
        raft.trace.warning(
            "%x attempted to restore snapshot but it is not in the ConfState %s; should never happen",
            raft.id,
            Described(describe_conf_state, state),
        )
        return False
    if log.match_term(snapshot.term, snapshot.index):
        last = log.last_position()
        raft.trace.info(
            "%x [commit: %d, lastindex: %d, lastterm: %d] fast-forwarded commit to snapshot [index: %d, term: %d]",
            raft.id,
            log.committed,
            last.index,
            last.term,
            snapshot.index,
            snapshot.term,
        )
        log.commit_to(snapshot.index)
        return False
    log.restore(snapshot)
    switch_to_config(raft, *conf_change.restore(state, raft.new_progress), snapshot.index)
    last = log.last_position()
    raft.trace.info(
        "%x [commit: %d, lastindex: %d, lastterm: %d] restored snapshot [index: %d, term: %d]",
        raft.id,
        log.committed,
        last.index,
        last.term,
        snapshot.index,
        snapshot.term,
    )
    return True


# --- requests for the leader ----------------------------------------------------------------------


def forward_proposal(raft: RaftState, entries: Sequence[Entry], proposer: int) -> NotAppended:
    """Forward a proposal to the leader, if there is one and forwarding is enabled.

    A candidate knows of no leader.
    """
    if raft.lead == NONE:
        raft.trace.info("%x no leader at term %d; dropping proposal", raft.id, raft.term)
        return NotAppended.NO_LEADER
    if raft.config.disable_proposal_forwarding:
        raft.trace.info(
            "%x not forwarding to leader %x at term %d; dropping proposal", raft.id, raft.lead, raft.term
        )
        return NotAppended.NOT_LEADER
    raft.send(Message(MessageType.PROP, raft.lead, proposer, entries=entries))
    return NotAppended.FORWARDED


def forward_transfer(raft: RaftState, m: Message) -> None:
    """TRANSFER_LEADER at a follower."""
    if raft.lead == NONE:
        raft.trace.info("%x no leader at term %d; dropping leader transfer msg", raft.id, raft.term)
    else:
        raft.send(Message(MessageType.TRANSFER_LEADER, raft.lead, m.sender))


def forward_read(raft: RaftState, m: Message) -> None:
    """READ_INDEX at a follower."""
    if raft.lead == NONE:
        raft.trace.info("%x no leader at term %d; dropping index reading msg", raft.id, raft.term)
    else:
        raft.send(Message(MessageType.READ_INDEX, raft.lead, m.sender, entries=m.entries))


def handle_read_index_response(raft: RaftState, m: Message) -> None:
    """READ_INDEX_RESP: the leader's response to a forwarded read."""
    if len(m.entries) != 1:
        raft.trace.error(
            "%x invalid format of MsgReadIndexResp from %x, entries count: %d",
            raft.id,
            m.sender,
            len(m.entries),
        )
        return
    raft.read_states.append(ReadState(m.index, bytes(m.entries[0].data)))


def forget_leader(raft: RaftState, _: Message) -> None:
    """FORGET_LEADER: the driver knows that the leader is gone, so votes may be granted before the
    election timeout.
    """
    if raft.config.read_only is ReadOnlyOption.LEASE_BASED:
        # The leader's lease relies on this node remembering it.
        raft.trace.error("ignoring MsgForgetLeader due to ReadOnlyLeaseBased")
    elif raft.lead != NONE:
        raft.trace.info("%x forgetting leader %x at term %d", raft.id, raft.lead, raft.term)
        raft.lead = NONE

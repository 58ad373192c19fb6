"""Leader: proposals, quorum checks and leadership transfer."""

from collections.abc import Sequence

from pixy.entry_ids import LogPosition, ProposalId
from pixy.raft import replication, rest
from pixy.raft.errors import ProposalDropped, panic
from pixy.raft.messages import NONE, ConfChange, Entry, Message, MessageType, RaftEntryType, StateType
from pixy.raft.proposals import NotAppended
from pixy.raft.state import RaftState
from pixy.raft.text import describe_conf_change, describe_config
from pixy.raft.trace import Described
from pixy.raft.wire import decode_conf_change


def ignore_from_member(raft: RaftState, m: Message) -> None:
    """A message that a leader ignores, apart from checking that its sender is a member."""
    replication.progress_of_sender(raft, m)


def check_quorum(raft: RaftState, _: Message) -> None:
    """CHECK_QUORUM: a leader that has lost its quorum steps down (thesis §6.2)."""
    progress = raft.tracker.progress
    own = progress.get(raft.id)
    if own is not None:
        own.recently_active = True
    if not raft.tracker.quorum_active():
        raft.trace.warning("%x stepped down to follower since quorum is not active", raft.id)
        raft.become_follower(raft.term, NONE)
    for node_id, pr in progress.items():
        if node_id != raft.id:
            pr.recently_active = False


# --- proposals ------------------------------------------------------------------------------------


def propose(raft: RaftState, entries: Sequence[Entry]) -> LogPosition | NotAppended:
    """Append all of the entries and replicate them, or none of them.

    Returns:
        Position of the first one, or the reason why nothing was appended.
    """
    if not entries:
        panic(raft.trace, "%x stepped empty MsgProp", raft.id)
    reason = _unavailable(raft)
    if reason is not None:
        return reason
    if [entry for entry in entries if entry.type]:
        entries = _check_conf_changes(raft, entries)
    term, first = raft.term, raft.log.last_index() + 1
    return _append(
        raft,
        [
            Entry(term, index, entry.type, entry.data, entry.kind, entry.proposal)
            for index, entry in enumerate(entries, first)
        ],
    )


def propose_payloads(
    raft: RaftState, payloads: Sequence[bytes | bytearray], kind: int, proposal: ProposalId | None
) -> LogPosition | NotAppended:
    """The same for the payloads of NORMAL entries, one or more: each entry is created once."""
    reason = _unavailable(raft)
    if reason is not None:
        return reason
    term, first = raft.term, raft.log.last_index() + 1
    normal = RaftEntryType.NORMAL
    if len(payloads) == 1:
        return _append(raft, [Entry(term, first, normal, payloads[0], kind, proposal)])
    return _append(
        raft,
        [
            Entry(term, index, normal, payload, kind, proposal)
            for index, payload in enumerate(payloads, first)
        ],
    )


def _unavailable(raft: RaftState) -> NotAppended | None:
    """Reason to take no proposals at all."""
    if raft.id not in raft.tracker.progress:
        # Removed from the configuration, but leader until another node is elected.
        return NotAppended.NOT_MEMBER
    if raft.lead_transferee != NONE:
        raft.trace.debug(
            "%x [term %d] transfer leadership to %x is in progress; dropping proposal",
            raft.id,
            raft.term,
            raft.lead_transferee,
        )
        return NotAppended.TRANSFERRING
    return None


def _append(raft: RaftState, entries: Sequence[Entry]) -> LogPosition:
    if raft.resting:
        rest.wake(raft)
    position = raft.append_entries(entries)
    replication.broadcast_append(raft)
    return position


def _check_conf_changes(raft: RaftState, entries: Sequence[Entry]) -> list[Entry]:
    """Replace invalid configuration changes by empty entries."""
    checked = []
    for index, entry in enumerate(entries, raft.log.last_index() + 1):
        taken = entry
        if entry.type is not RaftEntryType.NORMAL:
            change = decode_conf_change(entry)
            v2 = change.as_v2() if isinstance(change, ConfChange) else change
            refusal = _refusal(raft, leaves=not v2.changes)
            if refusal and not raft.config.disable_conf_change_validation:
                raft.trace.info(
                    "%x ignoring conf change %s at config %s: %s",
                    raft.id,
                    Described(describe_conf_change, change),
                    Described(describe_config, raft.tracker.config),
                    refusal,
                )
                taken = Entry()
            else:
                raft.pending_conf_index = index
        checked.append(taken)
    return checked


def _refusal(raft: RaftState, *, leaves: bool) -> str:
    """Reason to refuse a configuration change, empty if it is valid.

    At most one may be unapplied in the log (thesis §4.1).
    """
    joint = bool(raft.tracker.config.voters_outgoing)
    if raft.pending_conf_index > raft.log.applied:
        return f"possible unapplied conf change at index {raft.pending_conf_index} (applied to {raft.log.applied})"
    if joint and not leaves:
        return "must transition out of joint config first"
    if not joint and leaves:
        return "not in joint state; refusing empty conf change"
    return ""


# --- leadership transfer (thesis §3.10) -----------------------------------------------------------


def transfer_leader(raft: RaftState, m: Message) -> None:
    """TRANSFER_LEADER: bring the target's log up to date, then tell it to campaign at once. Aborted
    after an election timeout.
    """
    pr = replication.progress_of_sender(raft, m)
    if pr is None:
        return
    if pr.learner:
        raft.trace.debug("%x is learner. Ignored transferring leadership", raft.id)
        return
    transferee, previous = m.sender, raft.lead_transferee
    if previous == transferee:
        raft.trace.info(
            "%x [term %d] transfer leadership to %x is in progress, ignores request to same node %x",
            raft.id,
            raft.term,
            transferee,
            transferee,
        )
        return
    if previous != NONE:
        raft.trace.info(
            "%x [term %d] abort previous transferring leadership to %x", raft.id, raft.term, previous
        )
        abort_transfer(raft)
    if transferee == raft.id:
        raft.trace.debug("%x is already leader. Ignored transferring leadership to self", raft.id)
        return
    raft.trace.info("%x [term %d] starts to transfer leadership to %x", raft.id, raft.term, transferee)
    raft.election_elapsed = 0
    raft.lead_transferee = transferee
    if pr.match == raft.log.last_index():
        raft.send(Message(MessageType.TIMEOUT_NOW, transferee))
        raft.trace.info(
            "%x sends MsgTimeoutNow to %x immediately as %x already has up-to-date log",
            raft.id,
            transferee,
            transferee,
        )
    else:
        pr.paused = False
        replication.send_append(raft, transferee)


def abort_transfer(raft: RaftState) -> None:
    """End a leadership transfer: proposals are taken again."""
    raft.lead_transferee = NONE
    maybe_leave_joint(raft)


def maybe_leave_joint(raft: RaftState) -> None:
    """Leave a joint configuration with auto_leave, as the leader that has applied it."""
    config = raft.tracker.config
    if not config.auto_leave or raft.state is not StateType.LEADER:
        return
    if raft.log.applied < raft.pending_conf_index:
        return
    outcome = propose(raft, [Entry(type=RaftEntryType.CONF_CHANGE_V2)])
    if isinstance(outcome, NotAppended):
        # A leadership transfer is pending. Its end, or the next apply, retries.
        raft.trace.debug(
            "not initiating automatic transition out of joint configuration %s: %s",
            Described(describe_config, config),
            ProposalDropped.text,
        )
    else:
        raft.trace.info(
            "initiating automatic transition out of joint configuration %s",
            Described(describe_config, config),
        )

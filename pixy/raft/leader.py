"""Leader: proposals, quorum checks and leadership transfer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pixy.entry_ids import LogPosition, ProposalId
from pixy.raft import replication
from pixy.raft.errors import panic
from pixy.raft.messages import NONE, ConfChange, Entry, Message, MessageType, RaftEntryType
from pixy.raft.proposals import NotAppended
from pixy.raft.text import describe_conf_change, describe_config
from pixy.raft.trace import Described
from pixy.raft.wire import decode_conf_change

if TYPE_CHECKING:
    from pixy.raft.raft import Raft

__all__ = ["check_quorum", "ignore_from_member", "propose", "propose_payloads", "transfer_leader"]


def ignore_from_member(raft: "Raft", m: Message) -> None:
    """A message that a leader ignores, apart from checking that its sender is a member."""
    replication.progress_of_sender(raft, m)


def check_quorum(raft: "Raft", _: Message) -> None:
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


def propose(raft: "Raft", entries: Sequence[Entry]) -> LogPosition | NotAppended:
    """Append all of the entries and replicate them, or none of them.

    Returns:
        Position of the first one, or the reason why nothing was appended.
    """
    if not entries:
        panic(raft.trace, "%x stepped empty MsgProp", raft.id)
    reason = _unavailable(raft)
    if reason is not None:
        return reason
    pending_conf_index = raft.pending_conf_index
    if [entry for entry in entries if entry.type]:
        entries = _check_conf_changes(raft, entries)
    term, first = raft.term, raft.log.last_index() + 1
    outcome = _append(
        raft,
        [
            Entry(term, index, entry.type, entry.data, entry.kind, entry.proposal)
            for index, entry in enumerate(entries, first)
        ],
    )
    if isinstance(outcome, NotAppended):
        # There is no such change in the log: it must not hold up the next one.
        raft.pending_conf_index = pending_conf_index
    return outcome


def propose_payloads(
    raft: "Raft", payloads: Sequence[bytes | bytearray], kind: int, proposal: ProposalId | None
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


def _unavailable(raft: "Raft") -> NotAppended | None:
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


def _append(raft: "Raft", entries: Sequence[Entry]) -> LogPosition | NotAppended:
    position = raft.append_entries(entries)
    if position is None:
        return NotAppended.TOO_MUCH_UNCOMMITTED
    replication.broadcast_append(raft)
    return position


def _check_conf_changes(raft: "Raft", entries: Sequence[Entry]) -> list[Entry]:
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


def _refusal(raft: "Raft", *, leaves: bool) -> str:
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


def transfer_leader(raft: "Raft", m: Message) -> None:
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
        raft.abort_transfer()
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

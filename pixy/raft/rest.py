"""Rest: a group in which nothing happens, and whose members all agree on that, needs neither ticks
nor heartbeats.

    leader      begins to ask when its driver says so; its heartbeats then name the last entry
    follower    has exactly that entry, and nothing left to do: it rests, and its answer names the
                entry too. Else it answers as ever, which ends the asking
    leader      rests once all others have agreed on the entry that is still the last one

Every other message, proposal or request wakes a node, with full timers: a leader is heard with the
next tick, and a follower that was woken by somebody else than its leader answers this one, which
wakes it. So of a group that rests in part, whoever is awake wakes the others: a leader by
heartbeats, a follower by that answer, and if it is lost by its campaign, which they refuse as long
as they know a leader.

What ticks were for is the driver's: that a leader is gone (the followers' election timeout), and
that the followers are (the leader's check of its quorum). `docs/raft.md` has its duties. No answer
to a client depends on ticks: reads are confirmed by a round of heartbeats, which wakes everybody.

A release without this rule takes a heartbeat for what it was before, and answers without an entry.
"""

from pixy.entry_ids import LogPosition
from pixy.raft.messages import NONE, Message, MessageType, StateType
from pixy.raft.progress import ProgressState
from pixy.raft.state import RaftState

_SILENT = (MessageType.FORGET_LEADER, MessageType.HUP)
"""Of the node itself, which knows that its leader is gone."""


def may_ask(raft: RaftState) -> bool:
    """True for a leader whose followers have everything, and which has nothing left to do."""
    last = raft.log.last_index()
    return (
        raft.state is StateType.LEADER
        and _is_quiet(raft)
        and raft.committed_in_own_term()
        and raft.lead_transferee == NONE
        and not raft.commit_message_due
        and not raft.pending_reads
        and not raft.read_only.context()
        and raft.id in raft.tracker.progress
        and all(
            pr.match == last and pr.state is ProgressState.REPLICATE and not pr.awaits_storage
            for pr in raft.tracker.progress.values()
        )
    )


def _is_quiet(raft: RaftState) -> bool:
    """True if every entry is stored, committed and applied, and nothing is waited for."""
    log = raft.log
    return (
        log.applied == log.committed == log.last_index()
        and not log.unstable.entries
        and log.unstable.snapshot is None
        and not raft.messages_after_append
        and not raft.tracker.config.voters_outgoing
        and raft.awaited_snapshot is None
        and raft.awaiting_campaign is None
    )


def asked_entry(raft: RaftState) -> LogPosition | None:
    """The last entry, which the next heartbeats of a leader that asks name; None if it does not
    ask, or has something to do again.
    """
    if not raft.rest_index:
        return None
    if raft.rest_index != raft.log.last_index() or not may_ask(raft):
        # Those that have agreed are woken by the heartbeats.
        raft.rest_index, raft.rest_answers = 0, None
        return None
    if raft.rest_answers is None:
        # Answers to earlier heartbeats are none to this.
        raft.rest_answers = set()
    return raft.log.last_position()


def agrees(raft: RaftState, m: Message) -> bool:
    """True if a follower rests with the leader of this heartbeat."""
    return (
        m.index > 0 and m.index == m.commit and raft.log.last_position() == (m.log_term, m.index)
    ) and _is_quiet(raft)


def take_answer(raft: RaftState, m: Message) -> None:
    """Count the answer to a heartbeat of a leader that asks."""
    if raft.rest_answers is None:
        return
    if m.index and m.index == raft.rest_index:
        raft.rest_answers.add(m.sender)
    else:
        stop_asking(raft)


def all_agree(raft: RaftState) -> bool:
    """True if the leader may rest: all others do, behind the entry that is still the last one."""
    return (
        raft.rest_answers is not None
        and raft.rest_index == raft.log.last_index()
        and raft.rest_answers == raft.tracker.progress.keys() - {raft.id}
        and may_ask(raft)
    )


def stop_asking(raft: RaftState) -> None:
    """Go on as before; those that have agreed learn it with the next tick."""
    if raft.rest_index:
        raft.rest_index, raft.rest_answers = 0, None
        raft.heartbeat_elapsed = raft.config.heartbeat_tick - 1


def is_of_rest(raft: RaftState, m: Message) -> bool:
    """True for what does not wake a node: its leader asks again, or a late answer."""
    if not m.index or m.term != raft.term:
        return False
    if m.type is MessageType.HEARTBEAT:
        return m.sender == raft.lead and agrees(raft, m)
    return m.type is MessageType.HEARTBEAT_RESP and m.index == raft.rest_index


def wake(raft: RaftState, cause: Message | None = None) -> None:
    """End the rest of a node.

    Args:
        cause: what has woken it, None if its driver has.
    """
    raft.resting = False
    raft.rest_index, raft.rest_answers = 0, None
    if raft.state is StateType.LEADER:
        raft.heartbeat_elapsed = raft.config.heartbeat_tick - 1
        return
    if raft.lead != NONE and (cause is None or (cause.sender != raft.lead and cause.type not in _SILENT)):
        raft.send(Message(MessageType.HEARTBEAT_RESP, raft.lead))

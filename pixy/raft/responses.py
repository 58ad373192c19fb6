"""The leader's handling of its followers' responses (Raft §5.3, thesis §10.2).

A response updates the follower's `Progress` and may commit entries; then everything that may be
sent is sent. A heartbeat response makes a follower active again that was considered unreachable.
"""

from pixy.raft import reads, replication, rest
from pixy.raft.messages import Message, MessageType
from pixy.raft.progress import Progress, ProgressState
from pixy.raft.state import RaftState

# Members of enumerations are found slowly.
_PROBE, _REPLICATE = ProgressState.PROBE, ProgressState.REPLICATE


def handle_append_response(raft: RaftState, m: Message) -> None:
    """APP_RESP: a follower has stored or rejected entries."""
    pr = replication.progress_of_sender(raft, m)
    if pr is None:
        return
    pr.recently_active = True
    if m.reject and pr.state is ProgressState.SNAPSHOT and m.index == pr.pending_snapshot:
        # It has not got the data, or fetches that of another snapshot (`defer_snapshots`).
        handle_snapshot_status(raft, Message(MessageType.SNAP_STATUS, raft.id, m.sender, reject=True))
    elif m.reject:
        _take_rejection(raft, m, pr)
    elif pr.maybe_update(m.index) or pr.is_confirmed(m.index):
        _take_acknowledgement(raft, m, pr)


def _take_rejection(raft: RaftState, m: Message, pr: Progress) -> None:
    raft.trace.debug(
        "%x received MsgAppResp(rejected, hint: (index %d, term %d)) from %x for index %d",
        raft.id,
        m.reject_hint,
        m.log_term,
        m.sender,
        m.index,
    )
    hint = m.reject_hint
    if m.log_term > 0:
        # Raft §5.3: the follower has no term above log_term at the hint, so entries of later terms
        # cannot match.
        hint = raft.log.find_conflict_by_term(hint, m.log_term).index
    if pr.maybe_decrease(m.index, hint):
        raft.trace.debug("%x decreased progress of %x to [%s]", raft.id, m.sender, pr)
        if pr.state is _REPLICATE:
            pr.become_probe()
        replication.send_append(raft, m.sender)


def _take_acknowledgement(raft: RaftState, m: Message, pr: Progress) -> None:
    if pr.state is _REPLICATE:
        pr.inflights.free_to(m.index)
    elif pr.state is _PROBE:
        pr.become_replicate()
    elif pr.match + 1 >= raft.log.first_index():
        # The log continues from there, whichever snapshot the follower has restored.
        raft.trace.debug(
            "%x recovered from needing snapshot, resumed sending replication messages to %x [%s]",
            raft.id,
            m.sender,
            pr,
        )
        pr.become_probe()
        pr.become_replicate()
    elif pr.match >= pr.pending_snapshot:
        # It has the snapshot, but the log goes on behind a later one, which it needs.
        pr.become_probe()
    # An index at or below the commit index cannot advance it.
    if m.index > raft.log.committed and raft.maybe_commit():
        reads.release_pending_reads(raft)
        replication.broadcast_commit(raft)
    elif pr.can_bump_commit(raft.log.committed):
        replication.send_commit(raft, m.sender)
    if pr.next <= raft.log.last_index():
        # The window has space: with a limit on message size there may be several messages to send.
        while replication.maybe_send_append(raft, m.sender, send_if_empty=False):
            pass
    if m.sender == raft.lead_transferee and pr.match == raft.log.last_index():
        raft.trace.info("%x sent MsgTimeoutNow to %x after received MsgAppResp", raft.id, m.sender)
        raft.send(Message(MessageType.TIMEOUT_NOW, m.sender))


def handle_heartbeat_response(raft: RaftState, m: Message) -> None:
    """HEARTBEAT_RESP: the follower is alive, and confirms reads."""
    pr = replication.progress_of_sender(raft, m)
    if pr is None:
        return
    pr.recently_active = True
    pr.paused = False
    rest.take_answer(raft, m)
    if pr.match < raft.log.last_index() or pr.state is _PROBE:
        # Even with a full window: the empty append reveals whether the messages in flight were
        # lost.
        replication.send_append(raft, m.sender)
    if m.context:
        reads.handle_read_confirmation(raft, m)


def handle_snapshot_status(raft: RaftState, m: Message) -> None:
    """SNAP_STATUS: the driver reports a snapshot as delivered or failed; a failed one is sent again
    after a heartbeat.
    """
    pr = replication.progress_of_sender(raft, m)
    if pr is None or pr.state is not ProgressState.SNAPSHOT:
        return
    if m.reject:
        pr.pending_snapshot = 0
        pr.become_probe()
        raft.trace.debug(
            "%x snapshot failed, resumed sending replication messages to %x [%s]", raft.id, m.sender, pr
        )
    else:
        pr.become_probe()
        raft.trace.debug(
            "%x snapshot succeeded, resumed sending replication messages to %x [%s]", raft.id, m.sender, pr
        )
    # A delivered snapshot is acknowledged by an APP_RESP, a failed one needs time: wait for that or
    # for a heartbeat response.
    pr.paused = True


def own_entries_stored(raft: RaftState, index: int) -> None:
    """The own log of a leader is stored up to `index`, in its present term."""
    log, tracker = raft.log, raft.tracker
    progress = tracker.progress
    own = progress.get(raft.id)
    if own is None or index <= own.match:
        return
    own.match = index
    if own.next <= index:
        own.next = index + 1
    if index <= log.committed:
        return
    has_peers = len(progress) > 1
    committed = tracker.committed() if has_peers else index
    if committed <= log.committed or committed < raft.first_own_index:
        return
    # Raft §5.4.2; at most the last entry, which is stored.
    log.committed = committed
    if raft.pending_reads:
        reads.release_pending_reads(raft)
    if has_peers:
        replication.broadcast_commit(raft)

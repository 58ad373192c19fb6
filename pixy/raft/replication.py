"""The leader's messages to followers: appends, snapshots, heartbeats (Raft §5.3, §7; thesis §10.2).

The `Progress` of a follower decides what may be sent to it. There is no send queue: a paused
follower is served again upon its next response, see `pixy.raft.responses`.
"""

from pixy.raft import rest
from pixy.raft.errors import EntriesNotLoaded, SnapshotTemporarilyUnavailable, StorageError
from pixy.raft.messages import COMMIT_ONLY, Entry, Message, MessageType
from pixy.raft.progress import Progress, ProgressState
from pixy.raft.sizes import payload_size
from pixy.raft.state import RaftState

# Members of enumerations are found slowly.
_APP = MessageType.APP
_REPLICATE, _SNAPSHOT = ProgressState.REPLICATE, ProgressState.SNAPSHOT


def progress_of_sender(raft: RaftState, m: Message) -> Progress | None:
    """Progress of the message's sender; None, and a line in the trace, if it is not a member."""
    pr = raft.tracker.progress.get(m.sender)
    if pr is None:
        raft.trace.debug("%x no progress available for %x", raft.id, m.sender)
    return pr


def broadcast_append(raft: RaftState) -> None:
    """Send new entries to all followers."""
    for node_id in raft.tracker.progress:
        if node_id != raft.id:
            maybe_send_append(raft, node_id, send_if_empty=True)


def send_append(raft: RaftState, to: int) -> None:
    """Send new entries to a follower; without any, an empty append with the commit index."""
    maybe_send_append(raft, to, send_if_empty=True)


def broadcast_commit(raft: RaftState) -> None:
    """Tell all followers of a new commit index, at once or when the driver asks for it."""
    if raft.config.defer_commit_messages:
        raft.commit_message_due = True
    else:
        broadcast_append(raft)


def send_commit(raft: RaftState, to: int) -> None:
    """Tell a follower of the commit index, at once or when the driver asks for it."""
    if raft.config.defer_commit_messages:
        raft.commit_message_due = True
    else:
        send_append(raft, to)


def pass_commit_on(raft: RaftState, to: int) -> None:
    """Tell a follower of the commit index. It does not answer if it has all entries that were sent
    to it.
    """
    pr, log = raft.tracker.progress[to], raft.log
    if pr.state is not _REPLICATE or pr.paused or pr.next <= log.last_index():
        maybe_send_append(raft, to, send_if_empty=True)
        return
    previous = pr.next - 1
    raft.messages.append(
        Message(
            _APP,
            to,
            raft.id,
            raft.term,
            log.term(previous),
            previous,
            commit=log.committed,
            context=COMMIT_ONLY,
        )
    )
    pr.sent_commit = log.committed


def maybe_send_append(raft: RaftState, to: int, *, send_if_empty: bool) -> bool:
    """Send an append, or a snapshot if entries the follower needs were compacted; False if nothing
    was sent.

    A follower whose entries are not in memory, or whose snapshot is not ready, is paused until the
    driver reports them.
    """
    pr = raft.tracker.progress[to]
    if pr.paused or pr.state is _SNAPSHOT:
        return False
    log = raft.log
    previous = pr.next - 1
    entries: list[Entry] = []
    try:
        previous_term = log.term(previous)
        # With a full window an empty append may pass: if all messages in flight were lost, its
        # response reveals that.
        if pr.state is not _REPLICATE or not pr.inflights.full():
            entries = log.entries(pr.next, raft.config.max_size_per_message)
    except EntriesNotLoaded:
        pr.await_storage()
        return False
    except StorageError:
        return _maybe_send_snapshot(raft, to, pr)
    if not entries and not send_if_empty:
        return False
    raft.messages.append(
        Message(_APP, to, raft.id, raft.term, previous_term, previous, entries, log.committed)
    )
    pr.sent_entries(len(entries), payload_size(entries) if entries else 0)
    pr.sent_commit = log.committed
    return True


def resume_sending(raft: RaftState) -> None:
    """Send to all followers that wait for the storage."""
    for node_id, pr in raft.tracker.progress.items():
        if pr.awaits_storage:
            pr.awaits_storage = pr.paused = False
            while maybe_send_append(raft, node_id, send_if_empty=False):
                pass


def _maybe_send_snapshot(raft: RaftState, to: int, pr: Progress) -> bool:
    """Raft §7."""
    if not pr.recently_active:
        raft.trace.debug("ignore sending snapshot to %x since it is not recently active", to)
        return False
    try:
        snapshot = raft.log.snapshot()
    except SnapshotTemporarilyUnavailable:
        raft.trace.debug(
            "%x failed to send snapshot to %x because snapshot is temporarily unavailable", raft.id, to
        )
        pr.await_storage()
        return False
    assert snapshot.index > 0, "need non-empty snapshot"
    raft.trace.debug(
        "%x [firstindex: %d, commit: %d] sent snapshot[index: %d, term: %d] to %x [%s]",
        raft.id,
        raft.log.first_index(),
        raft.log.committed,
        snapshot.index,
        snapshot.term,
        to,
        pr,
    )
    pr.become_snapshot(snapshot.index)
    raft.trace.debug("%x paused sending replication messages to %x [%s]", raft.id, to, pr)
    raft.send(Message(MessageType.SNAP, to, snapshot=snapshot))
    return True


def beat(raft: RaftState, _: Message) -> None:
    """BEAT: the heartbeat interval has elapsed."""
    broadcast_heartbeat(raft)


def broadcast_heartbeat(raft: RaftState) -> None:
    """Send heartbeats to all followers, with the number of reads waiting for confirmation."""
    context = raft.read_only.context()
    asked = rest.asked_entry(raft)
    for node_id, pr in raft.tracker.progress.items():
        if node_id != raft.id:
            # The follower may lack committed entries; it must not commit entries that it cannot
            # match.
            commit = min(pr.match, raft.log.committed)
            heartbeat = Message(MessageType.HEARTBEAT, node_id, commit=commit, context=context)
            if asked is not None:
                heartbeat.log_term, heartbeat.index = asked
            raft.send(heartbeat)

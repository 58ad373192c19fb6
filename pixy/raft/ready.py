"""What a driver has to do next, and the messages to the storage threads.

The order is the contract (thesis §10.2.1; etcd's raft does the same):

    synchronous     1. store hard state, entries and snapshot; durable if `must_sync`
                    2. send the messages
                    3. apply the snapshot, then the committed entries
                    4. call `advance`
    asynchronous    messages to the append thread and to the apply thread are work for them, in the order given; whatever else
                    is in `messages` may be sent at once. A thread delivers the `responses` of a message when its work is done,
                    and durable in the case of the append thread.

The responses of a STORAGE_APPEND are what this node promises to others, and a STORAGE_APPEND_RESP to itself. That one names the
log's last entry and the term in which it was written. Entries of the same index may be replaced, by another leader, while the
first ones are still being stored, and the storage goes through old states on its way: so an answer of an earlier term says nothing
about what is in the log now. It is attached whenever anything is unstable, also without new entries, so that an answer of the current
term always comes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pixy.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    Entry,
    HardState,
    Message,
    MessageType,
    ReadState,
    Snapshot,
    SoftState,
)
from pixy.raft.raft import Raft

__all__ = ["Ready", "storage_append", "storage_append_response", "storage_apply", "storage_apply_response"]


@dataclass(slots=True)
class Ready:
    """Work for the driver.

    Args:
        soft_state: leader and role, if they changed.
        hard_state: to be stored, if it changed.
        read_states: reads that may be served once their index is applied.
        entries: to be stored; they replace everything stored from the first one's index on.
        snapshot: to be stored in place of the log.
        awaited_snapshot: a snapshot message whose data is to be fetched, from its sender or any other member that has it; then call
            `RaftNode.snapshot_arrived`. Given again whenever a leader sends it again. Only with `defer_snapshots`.
        committed_entries: to be applied; never together with a snapshot.
        messages: to be sent.
        must_sync: whether what is stored must be durable before messages are sent: not if only the commit index changed.
    """

    soft_state: SoftState | None
    hard_state: HardState | None
    read_states: Sequence[ReadState]
    entries: list[Entry]
    snapshot: Snapshot | None
    committed_entries: list[Entry]
    messages: list[Message]
    must_sync: bool
    awaited_snapshot: Message | None = None


def storage_append(raft: Raft, ready: Ready) -> Message | None:
    """The append thread's share of the work, None if there is none."""
    if not (ready.entries or ready.hard_state or ready.snapshot or raft.messages_after_append):
        return None
    responses = raft.messages_after_append
    done = storage_append_response(raft, ready)
    if done is not None:
        responses = [*responses, done]
    state = ready.hard_state or HardState()
    return Message(
        MessageType.STORAGE_APPEND,
        APPEND_THREAD,
        raft.id,
        term=state.term,
        vote=state.vote,
        commit=state.commit,
        entries=ready.entries,
        snapshot=ready.snapshot,
        responses=responses,
    )


def storage_append_response(raft: Raft, ready: Ready) -> Message | None:
    """Tells this node what is stored when all work so far is done, None if nothing is unstable."""
    unstable = raft.log.unstable
    if not unstable.entries and ready.snapshot is None:
        return None
    response = Message(
        MessageType.STORAGE_APPEND_RESP, raft.id, APPEND_THREAD, raft.term, snapshot=ready.snapshot
    )
    if unstable.entries:
        last = unstable.entries[-1]
        response.index, response.log_term = last.index, last.term
    return response


def storage_apply(raft: Raft, ready: Ready) -> Message:
    """The apply thread's share of the work."""
    return Message(
        MessageType.STORAGE_APPLY,
        APPLY_THREAD,
        raft.id,
        entries=ready.committed_entries,
        responses=[storage_apply_response(raft, ready.committed_entries)],
    )


def storage_apply_response(raft: Raft, entries: list[Entry]) -> Message:
    """Tells this node that these were applied. Without a term: what is committed is so in all of them."""
    return Message(MessageType.STORAGE_APPLY_RESP, raft.id, APPLY_THREAD, entries=entries)

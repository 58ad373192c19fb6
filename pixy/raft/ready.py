"""Pending work for the driver, and the messages to the storage threads.

The order is part of the contract (thesis §10.2.1; as in etcd's raft):

    synchronous     1. store hard state, entries and snapshot; durably if `must_sync`
                    2. send the messages
                    3. apply the snapshot, then the committed entries
                    4. call `advance`
    asynchronous    messages to the append thread and to the apply thread are work for them, in the
                    order given; all other messages may be sent at once. A thread delivers the
                    `responses` of a message when its work is done, and durable in the case of the
                    append thread.

The responses of a STORAGE_APPEND are promises to other nodes, and a STORAGE_APPEND_RESP to this
node itself. The latter names the log's last entry and the term in which the message was created.
While entries are being stored, another leader may replace them by others of the same indexes, and
the storage passes through outdated states: so a response of an earlier term says nothing about the
current log. A response is attached whenever there is unstable state, even without new entries, so
that one of the current term always arrives.

A STORAGE_APPEND without entries, snapshot, term, vote and commit index stores nothing, and needs no
write: its responses are delivered as soon as everything before it is durable.
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
        soft_state: leader and role, if changed.
        hard_state: state to store, if changed.
        read_states: reads that may be served once their index is applied.
        entries: entries to store; they replace all stored ones from the first one's index on.
        snapshot: snapshot to store in place of the log.
        awaited_snapshot: snapshot message whose data has to be fetched from its sender or any other
            member that has it, followed by `RaftNode.snapshot_arrived` or `snapshot_failed`. Not
            repeated. Only with `defer_snapshots`.
        committed_entries: entries to apply; never together with a snapshot.
        messages: messages to send.
        must_sync: True if stored state must be durable before messages are sent; False if only the
            commit index changed, or nothing.
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
    """The append thread's part of the work, None if there is none."""
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
    """Response that tells this node what is stored once all work so far is done, None if nothing is
    unstable.
    """
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
    """The apply thread's part of the work."""
    return Message(
        MessageType.STORAGE_APPLY,
        APPLY_THREAD,
        raft.id,
        entries=ready.committed_entries,
        responses=[storage_apply_response(raft, ready.committed_entries)],
    )


def storage_apply_response(raft: Raft, entries: list[Entry]) -> Message:
    """Response that tells this node that entries were applied.

    It has no term: committed entries are committed in all of them.
    """
    return Message(MessageType.STORAGE_APPLY_RESP, raft.id, APPLY_THREAD, entries=entries)

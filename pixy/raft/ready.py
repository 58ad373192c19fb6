"""Pending work for the driver, in two forms.

The order is part of the contract (thesis §10.2.1; as in etcd's raft):

    synchronous     1. store hard state, entries and snapshot; durably if `must_sync`
                    2. send the messages
                    3. apply the snapshot, then the committed entries
                    4. call `advance`
    asynchronous    messages to the append thread and to the apply thread are work for them, in the
                    order given; all other messages may be sent at once. A thread delivers the
                    `responses` of a message when its work is done, and durable in the case of the
                    append thread.

A driver that has both threads in its own hands takes `Work` instead of a `Ready` (`takes_work`):
the same asynchronous work as a `StorageAppend` and a list of entries, acknowledged by
`RaftNode.stored` and `RaftNode.applied`. No message is made for it, not even for a leader's
acknowledgement of its own entries, which follows from `StorageAppend.last`. What a leader appends
by `RaftNode.append_payload` is handed out by itself, and acknowledged by `RaftNode.own_stored`.

The responses of a `StorageAppend` are promises to other nodes, and acknowledgements of this node to
itself. It also names the log's last entry and the term in which it was handed out. While entries
are being stored, another leader may replace them by others of the same indexes, and the storage
passes through outdated states: so the end of a write of an earlier term says nothing about the
current log. The last entry is named whenever there is unstable state, even without new entries, so
that a write of the current term always ends.

A `StorageAppend` that `is_empty` stores nothing, and needs no write: it is done as soon as
everything before it is durable.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pixy.entry_ids import LogPosition
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

__all__ = [
    "Ready",
    "StorageAppend",
    "Work",
    "append_message",
    "append_response",
    "apply_message",
    "apply_response",
]


@dataclass(slots=True)
class StorageAppend:
    """One atomic write to stable storage, and what it promises once it is durable.

    Args:
        term: term of the node at the time.
        entries: entries to store; they replace all stored ones from the first one's index on.
        hard_state: state to store, if changed. In `Work` the commit index alone is no change: a
            driver stores the one that it finds with the entries.
        snapshot: snapshot to store in place of the log.
        last: last entry that is not known to be stored, None if there is none.
        responses: messages to be delivered once the write is durable.
    """

    term: int
    entries: list[Entry]
    hard_state: HardState | None
    snapshot: Snapshot | None
    last: LogPosition | None
    responses: Sequence[Message]

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to store."""
        return not self.entries and self.hard_state is None and self.snapshot is None


@dataclass(slots=True)
class Work:
    """Asynchronous work for a driver that stores and applies by itself.

    Args:
        append: the next write, None if there is none; acknowledged by `RaftNode.stored`. Writes are
            acknowledged in their order.
        committed_entries: entries to apply; acknowledged by `RaftNode.applied`.
        messages: messages to send at once.
        soft_state: leader and role, if changed.
        read_states: reads that may be served once their index is applied.
        awaited_snapshot: as in `Ready`.
    """

    append: StorageAppend | None
    committed_entries: list[Entry]
    messages: Sequence[Message]
    soft_state: SoftState | None
    read_states: Sequence[ReadState]
    awaited_snapshot: Message | None


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


def append_message(node_id: int, append: StorageAppend) -> Message:
    """A write as a message to the append thread."""
    responses = append.responses
    done = append_response(node_id, append)
    if done is not None:
        responses = [*responses, done]
    state = append.hard_state or HardState()
    return Message(
        MessageType.STORAGE_APPEND,
        APPEND_THREAD,
        node_id,
        term=state.term,
        vote=state.vote,
        commit=state.commit,
        entries=append.entries,
        snapshot=append.snapshot,
        responses=responses,
    )


def append_response(node_id: int, append: StorageAppend) -> Message | None:
    """Response that tells this node what is stored once a write is done, None if nothing is
    unstable.
    """
    if append.last is None and append.snapshot is None:
        return None
    response = Message(
        MessageType.STORAGE_APPEND_RESP, node_id, APPEND_THREAD, append.term, snapshot=append.snapshot
    )
    if append.last is not None:
        response.log_term, response.index = append.last
    return response


def apply_message(node_id: int, entries: list[Entry]) -> Message:
    """Entries to apply as a message to the apply thread."""
    return Message(
        MessageType.STORAGE_APPLY,
        APPLY_THREAD,
        node_id,
        entries=entries,
        responses=[apply_response(node_id, entries)],
    )


def apply_response(node_id: int, entries: list[Entry]) -> Message:
    """Response that tells this node that entries were applied.

    It has no term: committed entries are committed in all of them.
    """
    return Message(MessageType.STORAGE_APPLY_RESP, node_id, APPLY_THREAD, entries=entries)

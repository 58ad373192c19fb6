"""Pending work for the driver.

    Work.append               one atomic write; acknowledged by `RaftNode.stored` when it is durable
    Work.committed_entries    to be applied in their order; acknowledged by `RaftNode.applied`
    Work.messages             may be sent at once

Writes are done in the order in which they are handed out, and so are entries applied, but neither
waits for the other (thesis §10.2.1, §10.2.2). Work is no message, as it is in etcd's raft: with two
objects for each write and each apply, messages cost more than all the rest of a proposal. The road
not taken in etcd's other form, `Ready` and `advance`, is to wait for the disk before anything else
happens. `tests/raft/etcd` makes both of this one, for etcd's traces.

The responses of a `StorageAppend` are promises to other nodes, and this node's vote for itself. A
leader's acknowledgement of its own entries follows from `StorageAppend.last`, the log's last entry.
While entries are being stored, another leader may replace them by others of the same indexes, and
the storage passes through outdated states: so the end of a write of an earlier term says nothing
about the current log. The last entry is named whenever there is unstable state, even without new
entries, so that a write of the current term always ends.

A `StorageAppend` that `is_empty` stores nothing, and needs no write: it is done as soon as
everything before it is durable.

What a leader appends by `RaftNode.append_payload` is handed out by itself, and acknowledged by
`RaftNode.own_stored`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pixy.entry_ids import LogPosition
from pixy.raft.messages import Entry, HardState, Message, ReadState, Snapshot, SoftState


@dataclass(slots=True)
class StorageAppend:
    """One atomic write to stable storage, and what it promises once it is durable.

    Args:
        term: term of the node at the time.
        entries: entries to store; they replace all stored ones from the first one's index on.
        hard_state: state to store, if term or vote have changed. The commit index alone is no
            change: a driver stores the one that it finds with the entries.
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
    """Work for a driver.

    Args:
        append: the next write, None if there is none; acknowledged by `RaftNode.stored`. Writes are
            acknowledged in their order.
        committed_entries: entries to apply; acknowledged by `RaftNode.applied`.
        messages: messages to send at once.
        soft_state: leader and role, if changed.
        read_states: reads that may be served once their index is applied.
        awaited_snapshot: snapshot message whose data has to be fetched from its sender or any other
            member that has it, followed by `RaftNode.snapshot_arrived` or `snapshot_failed`. Not
            repeated. Only with `defer_snapshots`.
    """

    append: StorageAppend | None
    committed_entries: list[Entry]
    messages: Sequence[Message]
    soft_state: SoftState | None
    read_states: Sequence[ReadState]
    awaited_snapshot: Message | None

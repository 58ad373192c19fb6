"""Work for a driver in etcd's form.

synchronous     1. store hard state, entries and snapshot; durably if `must_sync`
                2. send the messages
                3. apply the snapshot, then the committed entries
                4. call `advance`
asynchronous    messages to the append thread and to the apply thread are work for them, in the
                order given; all other messages may be sent at once. A thread delivers the
                `responses` of a message when its work is done.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pixy.raft import NONE, Entry, HardState, Message, ReadState, Snapshot, SoftState

APPEND_THREAD = 2**64 - 1
"""Target of `STORAGE_APPEND`: stores entries, hard states and snapshots."""
APPLY_THREAD = 2**64 - 2
"""Target of `STORAGE_APPLY`: applies committed entries."""


@dataclass(slots=True)
class StorageMessage(Message):
    """A message between a node and its storage threads.

    Args:
        vote: STORAGE_APPEND: the vote to store, beside `term`, `commit`, `entries` and `snapshot`.
        responses: messages that the thread delivers when its work is done.
    """

    vote: int = NONE
    responses: Sequence[Message] = ()


@dataclass(slots=True)
class Ready:
    """Work for a driver.

    Args:
        soft_state: leader and role, if changed.
        hard_state: state to store, if changed.
        read_states: reads that may be served once their index is applied.
        entries: entries to store; they replace all stored ones from the first one's index on.
        snapshot: snapshot to store in place of the log.
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

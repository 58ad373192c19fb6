"""A driver in memory: what it stores is durable at once."""

from typing import NamedTuple

from pixy.raft import Message, RaftNode, ReadState
from tests.raft.memory_storage import MemoryStorage


class Done(NamedTuple):
    """Results of a node's work.

    Attributes:
        messages: those to send.
        applied: indexes of the entries that were applied.
        reads: those that may be served.
        awaited: snapshots whose data has to be fetched.
    """

    messages: list[Message]
    applied: list[int]
    reads: list[ReadState]
    awaited: list[Message]


def work_off(node: RaftNode, storage: MemoryStorage) -> Done:
    """Do all work that there is."""
    done = Done([], [], [], [])
    while (work := node.work()) is not None:
        done.messages.extend(work.messages)
        done.reads.extend(work.read_states)
        if work.awaited_snapshot is not None:
            done.awaited.append(work.awaited_snapshot)
        append, committed = work.append, node.raft.log.committed
        if append is not None:
            state = append.hard_state
            if append.entries and state is None:
                state = storage.initial_state().hard_state
            if state is not None:
                storage.set_hard_state(state._replace(commit=committed))
            if append.snapshot is not None:
                storage.apply_snapshot(append.snapshot)
            storage.append(append.entries)
            done.messages.extend(node.stored(append))
        if work.committed_entries:
            done.applied.extend([entry.index for entry in work.committed_entries])
            node.applied(work.committed_entries)
    return done

"""The short way of heartbeats does what the long way does, wherever it is taken."""

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import pytest

from pixy.raft import ConfState, Entry, HardState, Message, MessageType, RaftConfig, RaftNode
from pixy.raft.plausibility import why_impossible
from tests.raft.memory_storage import MemoryStorage

CONFIG = RaftConfig(election_tick=10, heartbeat_tick=1)
HEARTBEAT, HEARTBEAT_RESP = MessageType.HEARTBEAT, MessageType.HEARTBEAT_RESP


def new_node(voters: tuple[int, ...] = (1, 2, 3)) -> RaftNode:
    """Node 1 with four entries, of which two are committed."""
    storage = MemoryStorage()
    storage.append([Entry(1, 1), Entry(2, 2), Entry(3, 3), Entry(3, 4)])
    storage.set_conf_state(ConfState(voters, () if len(voters) > 1 else (2,)), 0)
    storage.set_hard_state(HardState(3, 0, 2))
    return RaftNode(1, storage, CONFIG, Random(1))


def drained(node: RaftNode) -> RaftNode:
    while (work := node.work()) is not None:
        if work.append is not None:
            storage = node.raft.log.storage
            assert isinstance(storage, MemoryStorage)
            storage.append(list(work.append.entries))
            node.stored(work.append)
        if work.committed_entries:
            node.applied(work.committed_entries)
    return node


def without_leader() -> RaftNode:
    return drained(new_node())


def follower() -> RaftNode:
    node = new_node()
    node.step(Message(HEARTBEAT, 1, 2, 3))
    for _ in range(4):
        node.tick()
    return drained(node)


def only_voter() -> RaftNode:
    return drained(new_node((1,)))


def candidate() -> RaftNode:
    node = new_node()
    node.campaign()
    return drained(node)


def leader() -> RaftNode:
    node = candidate()
    node.step(Message(MessageType.VOTE_RESP, 1, 2, node.raft.term))
    return drained(node)


def followed_leader() -> RaftNode:
    """A leader that node 2 has all entries of, and node 3 some."""
    node = leader()
    node.step(Message(MessageType.APP_RESP, 1, 2, node.raft.term, index=5))
    node.step(Message(MessageType.APP_RESP, 1, 3, node.raft.term, index=4))
    for progress in node.raft.tracker.progress.values():
        progress.recently_active = False
    return drained(node)


def reading_leader() -> RaftNode:
    node = followed_leader()
    node.read_index(b"read")
    return drained(node)


NODES = [without_leader, follower, only_voter, candidate, leader, followed_leader, reading_leader]


def state_of(node: RaftNode) -> dict[str, Any]:
    raft = node.raft
    return {
        "raft": (raft.term, raft.vote, raft.state, raft.lead, raft.election_elapsed, raft.heartbeat_elapsed),
        "log": str(raft.log),
        "progress": {id: (str(each), each.paused) for id, each in raft.tracker.progress.items()},
        "reads": (raft.read_states, raft.pending_reads, raft.read_only.context()),
        "awaits": (raft.awaiting_campaign, raft.commit_message_due),
    }


def messages(term: int) -> list[Message]:
    contexts = (b"", b"\0\0\0\0\0\0\0\1")
    return [
        Message(kind, 1, sender, term + later, commit=commit, context=context)
        for kind, sender, later, commit, context in product(
            (HEARTBEAT, HEARTBEAT_RESP), (0, 1, 2, 3, 4), (-1, 0, 1), (0, 2, 3, 9), contexts
        )
    ]


@pytest.mark.slow
@pytest.mark.parametrize("make", NODES)
def test_both_ways_end_in_the_same_state_with_the_same_answers(make: Callable[[], RaftNode]) -> None:
    taken = 0
    for message in messages(make().raft.term):
        short, long = make(), make()
        before = state_of(short)
        answers = short.take_idle_heartbeat(message)
        if answers is None:
            assert state_of(short) == before
            continue
        taken += 1
        assert not why_impossible(long.raft, message)
        long.step(message)
        work = long.work()
        if work is None:
            assert not answers
        else:
            assert list(answers) == list(work.messages)
            others = (
                work.append,
                work.committed_entries,
                work.soft_state,
                work.read_states,
                work.awaited_snapshot,
            )
            assert not any(others)
        assert short.work() is None
        assert state_of(short) == state_of(long)
    expected = {follower: 2, followed_leader: 4, reading_leader: 4}
    assert taken == expected.get(make, 0)

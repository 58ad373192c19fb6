"""Entries that the storage does not have in memory: everything that reads them waits until they are
loaded.
"""

from dataclasses import replace
from random import Random

import pytest

from pixy.raft import (
    ConfChangeSingle,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    EntriesNotLoaded,
    Entry,
    HardState,
    Message,
    MessageType,
    RaftConfig,
    RaftEntryType,
    RaftNode,
    Snapshot,
    StateType,
)
from pixy.raft.wire import encode_conf_change
from tests.raft.driver import work_off
from tests.raft.memory_storage import MemoryStorage

CONFIG = RaftConfig(election_tick=3, heartbeat_tick=1)


class ColdStorage(MemoryStorage):
    """Has a range of entries in memory, `end` excluded."""

    def __init__(self) -> None:
        super().__init__()
        self.begin, self.end = 0, 0
        self.asked: list[int] = []

    def entries(self, lo: int, hi: int, max_size: int) -> list[Entry]:
        if not self.begin <= lo < self.end:
            self.asked.append(lo)
            raise EntriesNotLoaded
        return super().entries(lo, min(hi, self.end), max_size)


def cold_storage(last: int, commit: int, *voters: int) -> ColdStorage:
    """Entries from 3 to `last`, of term 1."""
    stored = ColdStorage()
    stored.apply_snapshot(Snapshot(2, 1, ConfState(voters)))
    stored.append([Entry(1, index, data=b"%d" % index) for index in range(3, last + 1)])
    stored.set_hard_state(HardState(1, 0, commit))
    return stored


def work(one: RaftNode, stored: MemoryStorage) -> tuple[list[Message], list[int]]:
    """Do all pending work; returns the messages to send and the applied indexes."""
    done = work_off(one, stored)
    return done.messages, done.applied


def load(one: RaftNode, stored: ColdStorage, begin: int, end: int) -> None:
    stored.begin, stored.end = begin, end
    one.entries_loaded()


def cold_leader(**options: int) -> tuple[RaftNode, ColdStorage]:
    """A leader of three in term 2 with entries 3 to 10, of which none is in memory."""
    stored = cold_storage(9, 2, 1, 2, 3)
    one = RaftNode(1, stored, replace(CONFIG, **options), Random(1), applied=2)  # type: ignore[arg-type]  # numbers
    one.campaign()
    work(one, stored)
    one.step(Message(MessageType.VOTE_RESP, 1, 2, 2))
    work(one, stored)
    assert one.raft.state is StateType.LEADER
    return one, stored


def reject(one: RaftNode, node_id: int, stored: ColdStorage) -> list[Message]:
    """The follower lacks everything after entry 4."""
    one.step(Message(MessageType.APP_RESP, 1, node_id, 2, index=9, reject=True, reject_hint=4, log_term=1))
    return work(one, stored)[0]


def appends(sent: list[Message]) -> list[tuple[int, list[int]]]:
    return [(m.to, [entry.index for entry in m.entries]) for m in sent if m.type is MessageType.APP]


def test_a_follower_whose_entries_are_not_in_memory_is_paused_until_they_are_loaded() -> None:
    one, stored = cold_leader()
    assert appends(reject(one, 2, stored)) == []
    assert stored.asked == [5]
    assert str(one.raft.tracker.progress[2]) == "StateProbe match=0 next=5 paused"
    one.propose(b"data")
    assert appends(work(one, stored)[0]) == []
    assert stored.asked == [5]
    load(one, stored, 5, 8)
    assert appends(work(one, stored)[0]) == [(2, [5, 6, 7])]
    one.step(Message(MessageType.APP_RESP, 1, 2, 2, index=7))
    assert appends(work(one, stored)[0]) == []
    assert stored.asked == [5, 8]
    load(one, stored, 8, 12)
    assert appends(work(one, stored)[0]) == [(2, [8, 9, 10, 11])]


def test_each_paused_follower_gets_what_it_waits_for() -> None:
    one, stored = cold_leader(max_size_per_message=0)
    reject(one, 2, stored)
    reject(one, 3, stored)
    one.step(Message(MessageType.APP_RESP, 1, 3, 2, index=7))
    work(one, stored)
    assert stored.asked == [5, 5, 8]
    load(one, stored, 8, 12)
    assert appends(work(one, stored)[0]) == [(3, [8]), (3, [9]), (3, [10])]
    load(one, stored, 5, 6)
    assert appends(work(one, stored)[0]) == [(2, [5])]


def test_a_heartbeat_response_asks_for_the_entries_again() -> None:
    one, stored = cold_leader()
    reject(one, 2, stored)
    one.step(Message(MessageType.HEARTBEAT_RESP, 1, 2, 2))
    assert stored.asked == [5, 5]
    stored.begin, stored.end = 5, 12
    one.step(Message(MessageType.HEARTBEAT_RESP, 1, 2, 2))
    assert appends(work(one, stored)[0]) == [(2, [5, 6, 7, 8, 9, 10])]
    one.entries_loaded()


def test_a_leader_that_steps_down_waits_for_nothing() -> None:
    one, stored = cold_leader()
    reject(one, 2, stored)
    one.step(Message(MessageType.HEARTBEAT, 1, 3, 3))
    work(one, stored)
    load(one, stored, 3, 99)
    assert work(one, stored) == ([], [])


def test_entries_compacted_while_they_were_to_be_loaded_need_a_snapshot() -> None:
    one, stored = cold_leader()
    one.step(Message(MessageType.APP_RESP, 1, 3, 2, index=10))
    stored.begin, stored.end = 3, 99
    work(one, stored)
    stored.end = 0
    reject(one, 2, stored)
    stored.create_snapshot(10, None, b"")
    stored.compact(10)
    one.entries_loaded()
    assert [m.type for m in work(one, stored)[0]] == [MessageType.SNAP]


def test_committed_entries_are_handed_out_when_they_are_loaded() -> None:
    stored = cold_storage(9, 8, 1, 2)
    one = RaftNode(1, stored, CONFIG, Random(1), applied=2)
    assert one.work() is None
    assert one.work() is None
    assert stored.asked == [3]
    load(one, stored, 3, 6)
    assert work(one, stored)[1] == [3, 4, 5]
    assert stored.asked == [3, 6]


def test_a_snapshot_ends_the_wait_of_entries_to_be_handed_out() -> None:
    stored = cold_storage(9, 8, 1, 2)
    one = RaftNode(1, stored, CONFIG, Random(1), applied=2)
    work(one, stored)
    snapshot = Snapshot(12, 1, ConfState((1, 2)))
    one.step(Message(MessageType.SNAP, 1, 2, 1, snapshot=snapshot))
    work(one, stored)
    one.step(Message(MessageType.APP, 1, 2, 1, 1, 12, [Entry(1, 13)], 13))
    stored.begin, stored.end = 13, 14
    assert work(one, stored)[1] == [13]


def waiting() -> tuple[RaftNode, ColdStorage]:
    """A node that wants to campaign and has entries 3 to 8 to look through."""
    stored = cold_storage(9, 8, 1, 2)
    one = RaftNode(1, stored, CONFIG, Random(1), applied=2)
    one.campaign()
    assert (one.raft.state, stored.asked) == (StateType.FOLLOWER, [3])
    return one, stored


def test_a_campaign_waits_until_all_unapplied_entries_were_loaded_each_once() -> None:
    one, stored = waiting()
    for begin in (3, 5, 7):
        assert one.raft.state is StateType.FOLLOWER
        load(one, stored, begin, begin + 2)
    assert one.raft.state is StateType.CANDIDATE
    assert stored.asked == [3, 5, 7]


def test_a_loaded_configuration_change_prevents_the_campaign() -> None:
    one, stored = waiting()
    change = ConfChangeV2((ConfChangeSingle(ConfChangeType.ADD_NODE, 3),))
    stored._entries[3] = Entry(1, 5, RaftEntryType.CONF_CHANGE_V2, encode_conf_change(change))
    load(one, stored, 3, 9)
    assert (one.raft.state, one.raft.awaiting_campaign) == (StateType.FOLLOWER, None)


@pytest.mark.parametrize(
    "message",
    [
        Message(MessageType.HEARTBEAT, 1, 2, 1),
        Message(MessageType.VOTE, 1, 2, 2, 1, 9),
    ],
    ids=["leader", "later term"],
)
def test_a_waiting_campaign_ends_with_a_leader_or_a_later_term(message: Message) -> None:
    one, stored = waiting()
    one.step(message)
    load(one, stored, 3, 9)
    assert one.raft.state is StateType.FOLLOWER

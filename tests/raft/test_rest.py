"""Rest of a Raft group in the core: who asks, who agrees, and what wakes a node."""

from collections.abc import Callable
from random import Random

import pytest

from pixy.raft import ConfState, Entry, HardState, Message, MessageType, RaftConfig, RaftNode
from pixy.raft.rest import agrees
from tests.raft.driver import work_off
from tests.raft.memory_storage import MemoryStorage

CONFIG = RaftConfig(
    election_tick=10,
    heartbeat_tick=2,
    pre_vote=True,
    check_quorum=True,
)
TERM, LAST = 3, 4
HEARTBEAT, HEARTBEAT_RESP = MessageType.HEARTBEAT, MessageType.HEARTBEAT_RESP


def new_node(committed: int = LAST) -> RaftNode:
    """Node 1 of three, with four entries."""
    storage = MemoryStorage()
    storage.append([Entry(1, 1), Entry(2, 2), Entry(3, 3), Entry(3, 4)])
    storage.set_conf_state(ConfState((1, 2), (3,)), 0)
    storage.set_hard_state(HardState(TERM, 0, committed))
    return RaftNode(1, storage, CONFIG, Random(1))


def sent(node: RaftNode) -> list[Message]:
    """The messages of all work that there is; everything is stored and applied."""
    storage = node.raft.log.storage
    assert isinstance(storage, MemoryStorage)
    return work_off(node, storage).messages


def follower() -> RaftNode:
    """A follower of node 2 that has everything."""
    node = new_node()
    node.step(Message(HEARTBEAT, 1, 2, TERM, commit=LAST))
    sent(node)
    return node


def leader() -> RaftNode:
    """A leader whose followers have everything."""
    node = new_node()
    node.campaign()
    for kind in (MessageType.PRE_VOTE_RESP, MessageType.VOTE_RESP):
        sent(node)
        node.step(Message(kind, 1, 2, TERM + 1))
    sent(node)
    for other in (2, 3):
        node.step(Message(MessageType.APP_RESP, 1, other, TERM + 1, index=LAST + 1))
    sent(node)
    return node


def ask(term: int = TERM, log_term: int = TERM, index: int = LAST, commit: int = LAST) -> Message:
    return Message(HEARTBEAT, 1, 2, term, log_term, index, commit=commit)


def yes(other: int, index: int = LAST + 1) -> Message:
    return Message(HEARTBEAT_RESP, 1, other, TERM + 1, index=index)


def asking() -> RaftNode:
    """A leader that has asked."""
    node = leader()
    assert node.ask_to_rest()
    for _ in range(CONFIG.heartbeat_tick):
        node.tick()
    asked = [(m.type, m.to, m.log_term, m.index, m.commit) for m in sent(node)]
    assert asked == [(HEARTBEAT, other, TERM + 1, LAST + 1, LAST + 1) for other in (2, 3)]
    return node


def resting_leader() -> RaftNode:
    node = asking()
    for other in (2, 3):
        node.step(yes(other))
    node.rest()
    return node


# --- the leader asks ------------------------------------------------------------------------------


def test_a_leader_rests_once_all_others_do() -> None:
    node = asking()
    node.step(yes(2))
    assert not node.may_rest(), "a learner counts"
    node.step(yes(3))
    assert node.may_rest()
    node.rest()
    assert [node.tick() for _ in range(50)] == [False] * 50
    assert sent(node) == []


@pytest.mark.parametrize("answer", [yes(3, 0), yes(3, LAST)])
def test_an_answer_that_names_another_entry_or_none_ends_the_asking(answer: Message) -> None:
    node = asking()
    node.step(yes(2))
    node.step(answer)
    node.step(yes(3))
    assert not node.may_rest()
    node.tick()
    assert [(m.type, m.index) for m in sent(node)] == [(HEARTBEAT, 0)] * 2, "which wakes those that agreed"


def test_a_new_entry_ends_the_asking() -> None:
    node = asking()
    node.step(yes(2))
    node.propose(b"more")
    node.step(yes(3))
    assert not node.may_rest()


def test_answers_to_earlier_heartbeats_are_none() -> None:
    node = leader()
    assert node.ask_to_rest()
    node.step(yes(2, 0))
    for _ in range(CONFIG.heartbeat_tick):
        node.tick()
    assert [m.index for m in sent(node)] == [LAST + 1] * 2


def proposes(node: RaftNode) -> None:
    node.propose(b"new")


def reads(node: RaftNode) -> None:
    node.read_index(b"read")


def transfers(node: RaftNode) -> None:
    node.transfer_leader(2)


def lacks_a_follower(node: RaftNode) -> None:
    node.raft.tracker.progress[3].become_probe()


@pytest.mark.parametrize("busy", [proposes, reads, transfers, lacks_a_follower])
def test_a_leader_with_something_to_do_does_not_ask(busy: Callable[[RaftNode], None]) -> None:
    node = leader()
    busy(node)
    assert not node.ask_to_rest()


# --- a follower agrees ----------------------------------------------------------------------------


def test_a_follower_agrees_to_its_last_entry_and_rests() -> None:
    node = follower()
    for _ in range(2):
        node.step(ask())
        assert [(m.type, m.to, m.index) for m in sent(node)] == [(HEARTBEAT_RESP, 2, LAST)]
        assert node.raft.resting
    assert [node.tick() for _ in range(50)] == [False] * 50


@pytest.mark.parametrize(
    "asked",
    [ask(index=0), ask(index=LAST - 1), ask(log_term=TERM - 1), ask(commit=LAST - 1), ask(index=LAST + 1)],
)
def test_a_follower_agrees_to_nothing_else(asked: Message) -> None:
    node = follower()
    assert not agrees(node.raft, asked)
    node.step(asked)
    assert [(m.type, m.index) for m in sent(node)] == [(HEARTBEAT_RESP, 0)]
    assert not node.raft.resting


def test_a_follower_that_has_not_applied_everything_does_not_agree() -> None:
    node = new_node(committed=LAST - 1)
    node.step(ask())
    assert [m.index for m in sent(node)] == [0]


# --- awake ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wakes", [proposes, reads, transfers])
def test_a_request_wakes_a_leader(wakes: Callable[[RaftNode], None]) -> None:
    node = resting_leader()
    wakes(node)
    assert not node.raft.resting
    sent(node)
    node.tick()
    assert {m.to for m in sent(node) if m.type is HEARTBEAT} == {2, 3}


def test_a_late_answer_does_not_wake_a_leader() -> None:
    node = resting_leader()
    node.step(yes(2))
    assert node.raft.resting


def test_a_follower_that_something_else_wakes_answers_its_leader() -> None:
    node = follower()
    node.step(ask())
    sent(node)
    node.step(Message(MessageType.PRE_VOTE, 1, 3, TERM + 1, TERM, LAST))
    assert [(m.type, m.to, m.index) for m in sent(node)] == [(HEARTBEAT_RESP, 2, 0)]
    assert not node.raft.resting


def test_ticks_without_a_proof_of_the_leader_count_for_the_timeout() -> None:
    node = follower()
    node.step(ask())
    sent(node)
    node.report_silence(CONFIG.election_tick)
    node.step(Message(MessageType.PRE_VOTE, 1, 3, TERM + 1, TERM, LAST))
    assert MessageType.PRE_VOTE_RESP in {m.type for m in sent(node)}, "it may depose its leader"


def test_a_leader_that_a_silent_follower_has_woken_steps_down_without_a_majority() -> None:
    node = resting_leader()
    node.wake(2)
    for _ in range(CONFIG.election_tick):
        node.tick()
    assert node.raft.lead == 0


def test_a_leader_that_was_woken_waits_for_answers_before_it_steps_down() -> None:
    node = resting_leader()
    node.wake()
    for _ in range(CONFIG.election_tick):
        node.tick()
    assert node.raft.lead == 1

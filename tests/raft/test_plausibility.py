"""Messages that no correct node sends, at each role of the receiver."""

from random import Random

import pytest

from pixy.entry_ids import TERM_JUMP_MAX, TERM_MAX
from pixy.raft import ConfState, Entry, HardState, Message, MessageType, RaftNode, Snapshot
from pixy.raft.config import RaftConfig
from pixy.raft.plausibility import why_impossible
from tests.raft.driver import work_off
from tests.raft.memory_storage import MemoryStorage

ENTRIES = [Entry(1, 1), Entry(2, 2), Entry(3, 3), Entry(3, 4)]
MEMBERS = ConfState((1, 2, 3))


def node_at(term: int = 3, *, leads: bool = False) -> RaftNode:
    """Node 1 of three with `ENTRIES`, of which two are committed; node 2 leads in term 3."""
    storage = MemoryStorage()
    storage.append(list(ENTRIES))
    storage.set_conf_state(MEMBERS, 0)
    storage.set_hard_state(HardState(term, 0, 2))
    node = RaftNode(1, storage, RaftConfig(election_tick=10, heartbeat_tick=1), Random(1))
    if leads:
        node.campaign()
        work_off(node, storage)
        node.step(Message(MessageType.VOTE_RESP, 1, 2, node.raft.term))
    else:
        node.step(Message(MessageType.HEARTBEAT, 1, 2, 3))
    return node


def message(kind: MessageType, sender: int = 2, term: int = 3, **fields: object) -> Message:
    return Message(kind, 1, sender, term, **fields)  # type: ignore[arg-type]  # as the test says


POSSIBLE = [
    message(MessageType.HEARTBEAT, commit=4),
    message(MessageType.HEARTBEAT, sender=3, term=4),
    message(MessageType.HEARTBEAT, term=3 + TERM_JUMP_MAX),
    message(MessageType.HEARTBEAT, sender=3, term=2, commit=99),
    message(MessageType.APP, log_term=3, index=3, entries=[Entry(3, 4), Entry(3, 5)], commit=99),
    message(MessageType.APP, sender=3, term=4, log_term=2, index=2, entries=[Entry(4, 3)]),
    message(MessageType.APP, log_term=1, index=99),
    message(MessageType.SNAP, log_term=1, snapshot=Snapshot(2**40, 3, MEMBERS)),
    message(MessageType.VOTE, sender=3, term=4, log_term=3, index=99),
    message(MessageType.PRE_VOTE, sender=3, term=2, log_term=2),
    message(MessageType.APP_RESP, index=99),
    message(MessageType.READ_INDEX, term=0, entries=[Entry()]),
]

IMPOSSIBLE = [
    (message(MessageType.HEARTBEAT, sender=1), "it comes from node 1"),
    (message(MessageType.HEARTBEAT, sender=0), "it comes from node 0"),
    (message(MessageType.HEARTBEAT, sender=2**64 - 1), "it comes from node"),
    (message(MessageType.HEARTBEAT, term=4 + TERM_JUMP_MAX), "is too far above 3"),
    (message(MessageType.HEARTBEAT, commit=5), "it commits up to entry 5, the log ends at 4"),
    (message(MessageType.HEARTBEAT, term=9, commit=5), "it commits up to entry 5"),
    *[
        (message(kind, sender=3), "node 2 leads in term 3")
        for kind in (
            MessageType.HEARTBEAT,
            MessageType.APP,
            MessageType.TIMEOUT_NOW,
            MessageType.READ_INDEX_RESP,
        )
    ],
    (message(MessageType.SNAP, sender=3, snapshot=Snapshot(9, 3, MEMBERS)), "node 2 leads in term 3"),
    (message(MessageType.SNAP), "it has a snapshot at entry None"),
    (message(MessageType.SNAP, snapshot=Snapshot(2**50, 3, MEMBERS)), "the log ends at 4"),
    (
        message(MessageType.APP, log_term=1, index=1, entries=[Entry(2, 2), Entry(2, 3)]),
        "it replaces entry 3 of its own term 3",
    ),
    (message(MessageType.VOTE, term=4, log_term=4), "it campaigns for term 4 with an entry of term 4"),
    (message(MessageType.PRE_VOTE, term=4, log_term=9), "it campaigns for term 4"),
    (message(MessageType.READ_INDEX, entries=[Entry()]), "a request to read has term 3"),
]


@pytest.mark.parametrize("possible", POSSIBLE, ids=lambda each: f"{each.type.name}-{each.term}")
def test_a_follower_takes_what_a_correct_node_may_send(possible: Message) -> None:
    assert why_impossible(node_at().raft, possible) == ""


@pytest.mark.parametrize(("impossible", "reason"), IMPOSSIBLE)
def test_a_follower_is_told_why_a_message_is_impossible(impossible: Message, reason: str) -> None:
    assert reason in why_impossible(node_at().raft, impossible)


def test_no_term_is_above_the_bound() -> None:
    node = node_at(TERM_MAX - 1)
    assert "too far" in why_impossible(node.raft, message(MessageType.HEARTBEAT, term=TERM_MAX + 1))
    assert why_impossible(node.raft, message(MessageType.HEARTBEAT, term=TERM_MAX)) == ""


def test_nobody_campaigns_for_a_term_above_the_bound() -> None:
    node = node_at(TERM_MAX)
    node.campaign()
    assert node.raft.term == TERM_MAX


def test_a_follower_confirms_no_more_than_the_leader_has() -> None:
    leader = node_at(leads=True)
    assert leader.raft.lead == 1
    last = leader.raft.log.last_index()
    confirms = message(MessageType.APP_RESP, term=4, index=last)
    assert why_impossible(leader.raft, confirms) == ""
    confirms.index = last + 1
    assert why_impossible(leader.raft, confirms) == f"it confirms entry {last + 1}, the log ends at {last}"
    confirms.reject = True
    assert why_impossible(leader.raft, confirms) == "", "it names the entry that it does not have"


def test_a_leader_hears_of_no_other_one_in_its_term() -> None:
    leader = node_at(leads=True)
    assert why_impossible(leader.raft, message(MessageType.HEARTBEAT, term=4)) == "node 1 leads in term 4"

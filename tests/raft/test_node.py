"""The driver's view of a node: message checks, restarts, reads, and the contract of `Work`."""

import subprocess
import sys
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pixy.raft import (
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    HardState,
    LogPosition,
    Message,
    MessageType,
    NotAppended,
    ProposalDropped,
    RaftBug,
    RaftConfig,
    RaftConfigError,
    RaftEntryType,
    RaftNode,
    ReadOnlyOption,
    ReadState,
    Snapshot,
    SnapshotTemporarilyUnavailable,
    SoftState,
    StateType,
    StepLocalMessage,
    StepPeerNotFound,
    StorageAppend,
    Work,
)
from pixy.raft.messages import COMMIT_ONLY
from tests.raft.driver import work_off
from tests.raft.memory_storage import MemoryStorage

CONFIG = RaftConfig(election_tick=3, heartbeat_tick=1)


def storage(*voters: int) -> MemoryStorage:
    result = MemoryStorage()
    result.apply_snapshot(Snapshot(2, 1, ConfState(voters)))
    return result


def node(stored: MemoryStorage, node_id: int = 1, config: RaftConfig = CONFIG) -> RaftNode:
    return RaftNode(node_id, stored, config, Random(1), applied=2)


def work(one: RaftNode, stored: MemoryStorage) -> list[Message]:
    """Do all pending work; returns the messages to send."""
    return work_off(one, stored).messages


def take(one: RaftNode) -> Work:
    """The pending work."""
    taken = one.work()
    assert taken is not None
    return taken


def take_append(one: RaftNode) -> StorageAppend:
    """The pending write."""
    append = take(one).append
    assert append is not None
    return append


def leader_of_three(config: RaftConfig = CONFIG) -> tuple[RaftNode, MemoryStorage]:
    stored = storage(1, 2, 3)
    one = node(stored, config=config)
    one.campaign()
    work(one, stored)
    one.step(Message(MessageType.VOTE_RESP, 1, 2, 1))
    work(one, stored)
    assert one.raft.state is StateType.LEADER
    return one, stored


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"heartbeat_tick": 0}, "heartbeat tick must be greater than 0"),
        ({"election_tick": 1}, "election tick must be greater than heartbeat tick"),
        ({"max_inflight_messages": 0}, "max inflight messages must be greater than 0"),
        (
            {"max_inflight_bytes": 9, "max_size_per_message": 10},
            "max inflight bytes must be >= max message size",
        ),
        (
            {"read_only": ReadOnlyOption.LEASE_BASED},
            "CheckQuorum must be enabled when ReadOnlyOption is ReadOnlyLeaseBased",
        ),
    ],
)
def test_options_that_contradict_each_other_are_rejected(options: dict[str, Any], text: str) -> None:
    with pytest.raises(RaftConfigError) as raised:
        RaftConfig(**options)
    assert str(raised.value) == text


def test_reserved_ids_are_rejected() -> None:
    with pytest.raises(RaftConfigError, match="cannot use none as id"):
        node(storage(1), 0)
    with pytest.raises(RaftConfigError, match="node 4294967296, at most 4294967295 is possible"):
        node(storage(1), 2**32)


def test_only_the_node_itself_may_send_local_messages() -> None:
    one = node(storage(1, 2))
    for kind in (MessageType.HUP, MessageType.BEAT, MessageType.STORAGE_APPEND_RESP, MessageType.UNREACHABLE):
        with pytest.raises(StepLocalMessage):
            one.step(Message(kind, 1, 2))


def test_only_members_may_send_responses() -> None:
    one = node(storage(1, 2))
    for kind in (
        MessageType.APP_RESP,
        MessageType.VOTE_RESP,
        MessageType.HEARTBEAT_RESP,
        MessageType.PRE_VOTE_RESP,
    ):
        with pytest.raises(StepPeerNotFound):
            one.step(Message(kind, 1, 9, 1))
    one.step(Message(MessageType.APP, 1, 9, 1, index=2, log_term=1))
    assert one.raft.lead == 9


def test_a_single_voter_becomes_leader_only_after_its_vote_is_stored() -> None:
    stored = storage(1)
    one = node(stored)
    one.campaign()
    taken = take(one)
    assert taken.soft_state == SoftState(0, StateType.CANDIDATE)
    assert taken.append is not None
    assert taken.append.hard_state == HardState(1, 1, 2)
    one.stored(taken.append)
    assert one.raft.soft_state() == SoftState(1, StateType.LEADER)


def test_votes_are_requested_after_the_own_one_is_stored() -> None:
    one = node(storage(1, 2))
    one.campaign()
    taken = take(one)
    assert taken.messages == []
    append = taken.append
    assert append is not None
    assert [(m.type, m.to) for m in append.responses] == [(MessageType.VOTE_RESP, 1), (MessageType.VOTE, 2)]


def test_a_restart_continues_from_the_stored_state() -> None:
    one, stored = leader_of_three()
    one.propose(b"data")
    work(one, stored)
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=4))
    one.propose(b"more")
    work(one, stored)
    again = node(stored)
    assert again.raft.hard_state() == HardState(1, 1, 4)
    assert again.raft.soft_state() == SoftState(0, StateType.FOLLOWER)
    assert [entry.data for entry in take(again).committed_entries] == [b"", b"data"]


def test_a_storage_without_all_committed_entries_is_a_bug() -> None:
    stored = storage(1)
    stored.set_hard_state(HardState(1, 0, 3))
    with pytest.raises(RaftBug, match=r"1 state.commit 3 is out of range \[2, 2\]"):
        node(stored)


def test_applied_entries_that_the_storage_does_not_have_are_a_bug() -> None:
    stored = storage(1)
    with pytest.raises(RaftBug, match=r"tocommit\(3\) is out of range \[lastIndex\(2\)\]"):
        RaftNode(1, stored, CONFIG, Random(1), applied=3)


def test_a_restart_takes_the_larger_of_the_stored_and_the_applied_index_as_committed() -> None:
    stored = storage(1, 2)
    stored.append([Entry(1, index) for index in range(3, 7)])
    stored.set_hard_state(HardState(1, 0, 3))
    for applied, committed in ((2, 3), (3, 3), (5, 5)):
        one = RaftNode(1, stored, CONFIG, Random(1), applied=applied)
        assert (one.raft.log.committed, one.raft.log.applied, one.raft.term) == (committed, applied, 1)
        assert one.raft.hard_state() == HardState(1, 0, committed)
    stored.compact(5)
    assert RaftNode(1, stored, CONFIG, Random(1), applied=5).raft.log.committed == 5


def test_a_commit_index_from_the_leader_is_no_work_for_the_storage() -> None:
    stored = storage(1, 2)
    stored.append([Entry(1, 3)])
    one = node(stored)
    one.step(Message(MessageType.HEARTBEAT, 1, 2, 1, commit=2))
    one.work()
    one.step(Message(MessageType.HEARTBEAT, 1, 2, 1, commit=3))
    taken = take(one)
    assert (taken.append, [entry.index for entry in taken.committed_entries]) == (None, [3])
    one.step(Message(MessageType.APP, 1, 2, 1, 1, 3, commit=3))
    append = take_append(one)
    assert append.is_empty
    assert [(m.type, m.index) for m in append.responses] == [(MessageType.APP_RESP, 3)]


def test_a_payload_is_never_copied() -> None:
    payload = b"x" * 100
    one, stored = leader_of_three()
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=3))
    one.propose(payload, kind=7)
    one.propose(payload)
    sent = [m for m in work(one, stored) if m.entries]
    assert len(sent) == 2
    seen = stored.entries(4, 6, 2**64)
    other = node(storage(1, 2, 3), 2)
    other.step(Message(MessageType.APP, 2, 1, 1, 1, 2, [Entry(1, 3)], 2))
    for message in sent:
        seen += message.entries
        other.step(replace(message, commit=5))
    append = take_append(other)
    seen += append.entries[1:]
    other.raft.log.storage.append(append.entries)  # type: ignore[attr-defined]  # it is in memory
    other.stored(append)
    seen += take(other).committed_entries[1:]
    assert {entry.index: entry.kind for entry in seen} == {4: 7, 5: 0}
    assert len(seen) == 8
    assert all(entry.data is payload for entry in seen)


def test_the_kind_of_a_payload_is_forwarded_and_appended() -> None:
    one = node(storage(1, 2))
    one.step(Message(MessageType.HEARTBEAT, 1, 2, 1))
    one.propose(b"data", kind=3)
    (forwarded,) = [m for m in take(one).messages if m.type is MessageType.PROP]
    other, stored = leader_of_three()
    other.step(replace(forwarded, to=1, sender=2))
    work(other, stored)
    assert stored.entries(4, 5, 2**64) == [Entry(1, 4, data=b"data", kind=3)]


def test_a_read_is_answered_once_a_quorum_has_confirmed_the_leader() -> None:
    one, stored = leader_of_three()
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=3))
    work(one, stored)
    one.read_index(b"first")
    one.read_index(b"second")
    heartbeats = [m for m in work(one, stored) if m.type is MessageType.HEARTBEAT and m.to == 2]
    assert [m.context for m in heartbeats] == [(1).to_bytes(8, "little"), (2).to_bytes(8, "little")]
    assert one.raft.read_states == []
    one.step(Message(MessageType.HEARTBEAT_RESP, 1, 2, 1, context=heartbeats[1].context))
    assert take(one).read_states == [ReadState(3, b"first"), ReadState(3, b"second")]


def test_a_read_waits_for_the_first_commit_of_the_term() -> None:
    stored = storage(1, 2, 3)
    stored.set_hard_state(HardState(1, 0, 2))
    one = node(stored)
    one.campaign()
    work(one, stored)
    one.step(Message(MessageType.VOTE_RESP, 1, 2, 2))
    work(one, stored)
    one.read_index(b"early")
    assert [m for m in work(one, stored) if m.context] == []
    one.step(Message(MessageType.APP_RESP, 1, 2, 2, index=3))
    assert [m.context for m in work(one, stored) if m.type is MessageType.HEARTBEAT] == [
        (1).to_bytes(8, "little")
    ] * 2


def test_a_restarted_single_voter_does_not_answer_reads_from_an_old_commit_index() -> None:
    stored = storage(1)
    stored.append([Entry(1, 3), Entry(1, 4)])
    stored.set_hard_state(HardState(1, 1, 3))  # the commit of entry 4 was not stored
    one = RaftNode(1, stored, CONFIG, Random(1), applied=3)
    one.campaign()
    one.stored(take_append(one))
    assert one.raft.state is StateType.LEADER
    one.read_index(b"read")
    assert one.raft.read_states == []
    append = take_append(one)
    stored.append(append.entries)
    one.stored(append)
    assert one.raft.read_states == [ReadState(5, b"read")]


def test_a_leader_that_removed_itself_does_not_answer_reads_alone() -> None:
    stored = storage(1, 2)
    one = node(stored)
    one.campaign()
    work(one, stored)
    one.step(Message(MessageType.VOTE_RESP, 1, 2, 1))
    work(one, stored)
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=3))
    work(one, stored)
    one.apply_conf_change(ConfChangeV2((ConfChangeSingle(ConfChangeType.REMOVE_NODE, 1),)), 4)
    assert (one.raft.state, one.raft.tracker.config) == (StateType.LEADER, ConfState((2,)))
    one.read_index(b"read")
    assert one.raft.read_states == []


def test_a_lease_answers_reads_at_once() -> None:
    one, stored = leader_of_three()
    config = replace(CONFIG, check_quorum=True, read_only=ReadOnlyOption.LEASE_BASED)
    one.raft.config = config
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=3))
    work(one, stored)
    one.read_index(b"read")
    assert one.raft.read_states == [ReadState(3, b"read")]


def test_a_follower_forwards_reads_to_the_leader() -> None:
    stored = storage(1, 2)
    one = node(stored)
    one.step(Message(MessageType.HEARTBEAT, 1, 2, 1))
    work(one, stored)
    one.read_index(b"read")
    (request,) = work(one, stored)
    assert (request.type, request.to, request.term) == (MessageType.READ_INDEX, 2, 0)
    one.step(Message(MessageType.READ_INDEX_RESP, 1, 2, 1, index=7, entries=request.entries))
    assert one.raft.read_states == [ReadState(7, b"read")]
    one.step(Message(MessageType.READ_INDEX_RESP, 1, 2, 1, index=8, entries=[]))
    assert len(one.raft.read_states) == 1


def test_an_outdated_configuration_change_has_no_effect() -> None:
    stored = storage(1, 2)
    one = node(stored)
    state = ConfState((1, 2, 3))
    one.step(Message(MessageType.SNAP, 1, 2, 1, snapshot=Snapshot(9, 1, state)))
    restoring = [one.restoring]
    remove = ConfChangeV2((ConfChangeSingle(ConfChangeType.REMOVE_NODE, 2),))
    assert one.apply_conf_change(remove, 3) == state
    work(one, stored)
    assert [*restoring, one.restoring] == [True, False]
    assert one.apply_conf_change(remove, 9) == state
    assert one.apply_conf_change(remove, 10) == ConfState((1, 3))


JOINT = ConfChangeV2(
    (
        ConfChangeSingle(ConfChangeType.ADD_NODE, 3),
        ConfChangeSingle(ConfChangeType.REMOVE_NODE, 2),
    ),
    ConfChangeTransition.JOINT_EXPLICIT,
)


@pytest.mark.parametrize("joint", [True, False], ids=["joint", "left"])
def test_configuration_changes_that_a_restart_applies_again_have_no_effect(joint: bool) -> None:
    stored = storage(1, 2)
    one = node(stored)
    state = one.apply_conf_change(JOINT, 3)
    if not joint:
        state = one.apply_conf_change(ConfChangeV2(), 4)
    stored.set_conf_state(state, one.raft.conf_index)
    again = node(stored)
    assert again.raft.tracker.config == state
    assert again.apply_conf_change(JOINT, 3) == state
    assert again.apply_conf_change(ConfChangeV2(), 4) == ConfState((1, 3))


@pytest.mark.parametrize(("conf_index", "campaigns"), [(3, True), (2, False)])
def test_a_campaign_waits_only_for_changes_that_the_configuration_does_not_include(
    conf_index: int, campaigns: bool
) -> None:
    stored = storage(1)
    stored.append([Entry(1, 3, RaftEntryType.CONF_CHANGE_V2), Entry(1, 4)])
    stored.set_conf_state(ConfState((1,)), conf_index)
    stored.set_hard_state(HardState(1, 1, 4))
    one = node(stored)
    one.campaign()
    assert (one.raft.state is not StateType.FOLLOWER) == campaigns


def test_the_position_of_a_proposal_is_that_of_its_first_entry() -> None:
    one, stored = leader_of_three()
    assert one.propose(b"a", b"b") == LogPosition(1, 4)
    assert one.propose(b"c") == LogPosition(1, 6)
    work(one, stored)
    assert [(entry.term, entry.index, entry.data) for entry in stored.entries(4, 7, 2**64)] == [
        (1, 4, b"a"),
        (1, 5, b"b"),
        (1, 6, b"c"),
    ]


def test_a_node_that_does_not_lead_says_why_it_appends_nothing() -> None:
    stored = storage(1, 2)
    one = node(stored)
    assert one.propose(b"data") is NotAppended.NO_LEADER
    one.campaign()
    assert one.propose(b"data") is NotAppended.NO_LEADER
    one.step(Message(MessageType.HEARTBEAT, 1, 2, 1))
    work(one, stored)
    assert one.propose(b"data", b"more") is NotAppended.FORWARDED
    (forwarded,) = work(one, stored)
    assert (forwarded.to, forwarded.sender, [entry.data for entry in forwarded.entries]) == (
        2,
        1,
        [b"data", b"more"],
    )
    one.raft.config = replace(CONFIG, disable_proposal_forwarding=True)
    assert one.propose(b"data") is NotAppended.NOT_LEADER
    with pytest.raises(ProposalDropped, match="raft proposal dropped") as raised:
        one.step(Message(MessageType.PROP, 1, 2, entries=[Entry(data=b"data")]))
    assert raised.value.reason is NotAppended.NOT_LEADER


def test_a_leader_that_removed_itself_takes_no_proposals() -> None:
    one, _ = leader_of_three()
    remove = ConfChangeV2((ConfChangeSingle(ConfChangeType.REMOVE_NODE, 1),))
    one.apply_conf_change(remove, 4)
    assert one.propose(b"data") is NotAppended.NOT_MEMBER


@pytest.mark.parametrize("end", ["timeout", "transfer to itself"])
def test_a_joint_configuration_is_left_after_a_transfer_that_dropped_the_proposal(end: str) -> None:
    one, stored = leader_of_three()
    implicit = replace(JOINT, transition=ConfChangeTransition.JOINT_IMPLICIT)
    assert one.propose_conf_change(implicit) == LogPosition(1, 4)
    work(one, stored)
    one.transfer_leader(3)
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=4))
    committed = take(one).committed_entries
    one.apply_conf_change(implicit, 4)
    one.applied(committed)
    assert one.raft.tracker.config.auto_leave
    assert one.raft.log.last_index() == 4
    if end == "timeout":
        for _ in range(CONFIG.election_tick):
            one.tick()
    else:
        one.transfer_leader(1)
    work(one, stored)
    assert committed[-1].index == 4
    assert stored.entries(5, 6, 2**64)[0].type is RaftEntryType.CONF_CHANGE_V2


def test_a_failed_snapshot_is_retried_after_a_heartbeat_response() -> None:
    one, stored = leader_of_three()
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=3))
    work(one, stored)
    stored.create_snapshot(3, None, b"")
    stored.compact(3)
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=2, reject=True))
    assert any(m.type is MessageType.SNAP for m in work(one, stored))
    one.report_snapshot(3, failed=True)
    assert str(one.raft.tracker.progress[3]) == "StateProbe match=0 next=1 paused"
    one.step(Message(MessageType.HEARTBEAT_RESP, 1, 3, 1))
    assert any(m.type is MessageType.SNAP for m in work(one, stored))
    one.report_snapshot(3, failed=False)
    assert str(one.raft.tracker.progress[3]) == "StateProbe match=0 next=4 paused"


def append(one: RaftNode, stored: MemoryStorage) -> int:
    """Append an entry that node 2 acknowledges, and drop the log up to it; returns its index."""
    one.propose(b"")
    work(one, stored)
    index = one.raft.log.last_index()
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=index))
    work(one, stored)
    stored.create_snapshot(index, None, b"")
    stored.compact(index)
    return index


def snapshots(sent: list[Message]) -> list[int]:
    return [message.snapshot.index for message in sent if message.snapshot is not None]


def test_a_follower_with_a_snapshot_behind_which_the_log_was_dropped_gets_a_later_one() -> None:
    one, stored = leader_of_three()
    first = append(one, stored)
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=2, reject=True))
    assert snapshots(work(one, stored)) == [first]
    later = append(one, stored)
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=first))
    assert snapshots(work(one, stored)) == [later]


def test_a_follower_that_has_the_snapshot_already_gets_what_follows() -> None:
    one, stored = leader_of_three()
    index = append(one, stored)
    progress = one.raft.tracker.progress[3]
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=index))
    progress.become_snapshot(index)
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=index))
    assert str(progress) == f"StateReplicate match={index} next={index + 1}"


def test_a_late_answer_to_a_message_of_a_lower_term_leaves_a_probe_where_it_is() -> None:
    one, stored = leader_of_three()
    work(one, stored)
    before = str(one.raft.tracker.progress[3])
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=0))
    assert str(one.raft.tracker.progress[3]) == before.replace(" inactive", "")
    assert work(one, stored) == []


# --- messages of a commit index -------------------------------------------------------------------


def leader_that_defers() -> tuple[RaftNode, MemoryStorage]:
    """A leader that has committed entry 4 with node 2, and has told nobody."""
    one, stored = leader_of_three(replace(CONFIG, defer_commit_messages=True))
    for follower in (2, 3):
        one.step(Message(MessageType.APP_RESP, 1, follower, 1, index=3))
    one.pass_commit_on()
    one.propose(b"4")
    work(one, stored)
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=4))
    return one, stored


def commits(sent: list[Message]) -> list[tuple[int, int, int]]:
    """Receiver, number of entries and commit index of each append."""
    return [(m.to, len(m.entries), m.commit) for m in sent if m.type is MessageType.APP]


def test_a_commit_index_is_told_at_once_unless_that_is_deferred() -> None:
    one, stored = leader_of_three()
    for follower in (2, 3):
        one.step(Message(MessageType.APP_RESP, 1, follower, 1, index=3))
    assert commits(work(one, stored)) == [(2, 0, 3), (3, 0, 3)]
    assert not one.raft.commit_message_due


def test_a_deferred_commit_index_comes_with_the_next_entries() -> None:
    one, stored = leader_that_defers()
    assert (commits(work(one, stored)), one.raft.log.committed) == ([], 4)
    assert one.raft.commit_message_due
    one.propose(b"5")
    assert commits(work(one, stored)) == [(2, 1, 4), (3, 1, 4)]
    one.pass_commit_on()
    assert commits(work(one, stored)) == []
    assert not one.raft.commit_message_due


def test_a_deferred_commit_index_comes_without_entries_when_the_driver_asks_for_it() -> None:
    one, stored = leader_that_defers()
    one.pass_commit_on()
    assert commits(work(one, stored)) == [(2, 0, 4), (3, 0, 4)]
    one.pass_commit_on()
    assert commits(work(one, stored)) == []
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=4))
    assert (commits(work(one, stored)), one.raft.commit_message_due) == ([], False)


def test_a_follower_that_acknowledges_late_hears_of_a_deferred_commit_index() -> None:
    one, stored = leader_that_defers()
    one.raft.tracker.progress[3].become_probe()
    one.raft.tracker.progress[3].paused = True
    one.pass_commit_on()
    assert commits(work(one, stored)) == [(2, 0, 4)]
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=4))
    assert (commits(work(one, stored)), one.raft.commit_message_due) == ([], True)
    one.pass_commit_on()
    assert commits(work(one, stored)) == [(3, 0, 4)]


def follower_of_two() -> tuple[RaftNode, MemoryStorage]:
    """A follower of node 2 with entry 4 of term 1, of which it knows no commit index."""
    stored = storage(1, 2, 3)
    one = node(stored, config=replace(CONFIG, defer_commit_messages=True))
    one.step(Message(MessageType.APP, 1, 2, 1, 1, 2, [Entry(1, 3), Entry(1, 4, data=b"4")], commit=3))
    work(one, stored)
    return one, stored


def test_a_follower_does_not_answer_a_commit_index_alone() -> None:
    one, stored = follower_of_two()
    for index in (4, 3):  # the second one is stale
        one.step(Message(MessageType.APP, 1, 2, 1, 1, index, commit=4, context=COMMIT_ONLY))
        assert (work(one, stored), one.raft.log.committed) == ([], 4)
    one.step(Message(MessageType.APP, 1, 2, 1, 1, 4, commit=4))
    assert [(m.type, m.index) for m in work(one, stored)] == [(MessageType.APP_RESP, 4)]


def test_a_follower_that_lacks_entries_says_so_when_a_commit_index_comes() -> None:
    one, stored = follower_of_two()
    one.step(Message(MessageType.APP, 1, 2, 1, 1, 5, commit=5, context=COMMIT_ONLY))
    assert [(m.reject, m.index, m.reject_hint) for m in work(one, stored)] == [(True, 5, 4)]
    assert one.raft.log.committed == 3


def test_a_follower_that_is_probed_answers_a_deferred_commit_index() -> None:
    one, stored = leader_that_defers()
    one.raft.tracker.progress[3].sent_commit = 0
    one.raft.tracker.progress[3].become_probe()
    one.pass_commit_on()
    contexts = {m.to: m.context for m in work(one, stored) if m.type is MessageType.APP}
    assert contexts == {2: COMMIT_ONLY, 3: b""}


def test_the_heartbeat_has_a_commit_index_whose_message_was_lost() -> None:
    one, stored = leader_that_defers()
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=4))
    one.pass_commit_on()
    work(one, stored)
    one.tick()
    beats = [(m.to, m.commit) for m in work(one, stored) if m.type is MessageType.HEARTBEAT]
    assert beats == [(2, 4), (3, 4)]


def test_who_leads_no_more_tells_nobody_of_a_commit_index() -> None:
    one, stored = leader_that_defers()
    one.step(Message(MessageType.HEARTBEAT, 1, 2, 2))
    one.pass_commit_on()
    assert commits(work(one, stored)) == []
    assert not one.raft.commit_message_due


def test_a_group_without_ticks_stays_unchanged() -> None:
    one, stored = leader_of_three()
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=3))
    work(one, stored)
    assert one.work() is None


SNAPSHOT = Snapshot(9, 1, ConfState((1, 2)))
HOLDING = replace(CONFIG, defer_snapshots=True)


def awaiting() -> tuple[RaftNode, MemoryStorage]:
    """A node that has received a snapshot whose data is missing."""
    stored = storage(1, 2)
    one = node(stored, config=HOLDING)
    one.step(Message(MessageType.SNAP, 1, 2, 1, snapshot=SNAPSHOT))
    done = work_off(one, stored)
    assert (one.restoring, done.messages) == (False, [])
    assert [message.snapshot for message in done.awaited] == [SNAPSHOT]
    return one, stored


def test_a_node_may_campaign_while_it_awaits_the_data_of_a_snapshot() -> None:
    one, stored = awaiting()
    assert one.work() is None
    assert one.raft.promotable()
    for _ in range(5):
        one.tick()
    (request,) = work(one, stored)
    assert (request.type, request.index, request.log_term) == (MessageType.VOTE, 2, 1)


def test_a_snapshot_whose_data_has_arrived_is_stored_and_then_acknowledged() -> None:
    one, stored = awaiting()
    assert one.snapshot_arrived(SNAPSHOT)
    append = take_append(one)
    assert append.snapshot == SNAPSHOT
    stored.apply_snapshot(SNAPSHOT)
    assert [(m.type, m.to, m.index) for m in one.stored(append)] == [(MessageType.APP_RESP, 2, 9)]
    assert (one.raft.log.last_index(), one.raft.log.applied) == (9, 9)
    assert not one.snapshot_arrived(SNAPSHOT)


def test_the_response_goes_to_the_leader_at_the_time_the_data_arrives() -> None:
    one, _ = awaiting()
    one.step(Message(MessageType.HEARTBEAT, 1, 3, 2))
    assert one.snapshot_arrived(SNAPSHOT)
    assert one.raft.messages_after_append == [Message(MessageType.APP_RESP, 3, 1, 2, index=9)]


LATER = replace(SNAPSHOT, index=12)


def test_the_data_on_the_way_is_awaited_whatever_is_sent_meanwhile() -> None:
    one, stored = awaiting()
    one.step(Message(MessageType.SNAP, 1, 2, 1, snapshot=SNAPSHOT))
    assert one.work() is None
    one.step(Message(MessageType.SNAP, 1, 2, 1, snapshot=LATER))
    assert [(m.type, m.index, m.reject, m.reject_hint) for m in work(one, stored)] == [
        (MessageType.APP_RESP, 12, True, 2)
    ]
    assert one.snapshot_arrived(SNAPSHOT)


def test_a_later_snapshot_is_awaited_once_the_data_cannot_be_fetched() -> None:
    one, stored = awaiting()
    one.step(Message(MessageType.HEARTBEAT, 1, 3, 2))
    work(one, stored)
    one.snapshot_failed(LATER)
    assert one.work() is None
    one.snapshot_failed(SNAPSHOT)
    assert [(m.to, m.index, m.reject) for m in work(one, stored)] == [(3, 9, True)]
    assert not one.snapshot_arrived(SNAPSHOT)
    one.step(Message(MessageType.SNAP, 1, 3, 2, snapshot=LATER))
    assert [message.snapshot for message in work_off(one, stored).awaited] == [LATER]


def test_a_leader_that_is_not_told_that_a_snapshot_failed_hears_what_the_node_has() -> None:
    one, stored = awaiting()
    one.snapshot_failed(SNAPSHOT, silently=True)
    assert [(m.to, m.index, m.reject) for m in work(one, stored)] == [(2, 2, False)]
    assert not one.snapshot_arrived(SNAPSHOT)
    one.step(Message(MessageType.SNAP, 1, 2, 1, snapshot=SNAPSHOT))
    assert [message.snapshot for message in work_off(one, stored).awaited] == [SNAPSHOT]


@pytest.mark.parametrize(("term", "shared"), [(1, 4), (2, 2)])
def test_entries_of_an_earlier_term_may_be_others_than_those_of_the_leader(term: int, shared: int) -> None:
    stored = storage(1, 2)
    stored.append([Entry(1, 3), Entry(1, 4)])
    one = node(stored, config=HOLDING)
    one.step(Message(MessageType.SNAP, 1, 2, term, snapshot=SNAPSHOT))
    work(one, stored)
    one.snapshot_failed(SNAPSHOT, silently=True)
    assert [(m.to, m.index, m.reject) for m in work(one, stored)] == [(2, shared, False)]


def test_a_snapshot_is_awaited_until_it_arrives_or_fails_or_its_entries_come() -> None:
    one, _ = awaiting()
    assert one.awaits_snapshot(SNAPSHOT)
    assert not one.awaits_snapshot(LATER)
    one.snapshot_failed(SNAPSHOT)
    assert not one.awaits_snapshot(SNAPSHOT)
    one, _ = awaiting()
    one.snapshot_arrived(SNAPSHOT)
    assert not one.awaits_snapshot(SNAPSHOT)
    one, stored = awaiting()
    entries = [Entry(1, index) for index in range(3, 10)]
    one.step(Message(MessageType.APP, 1, 2, 1, 1, 2, entries, 9))
    work(one, stored)
    assert not one.awaits_snapshot(SNAPSHOT)


def test_a_sign_of_life_counts_for_the_quorum() -> None:
    one, stored = leader_of_three()
    one.raft.config = replace(one.raft.config, check_quorum=True)
    for alive in (2, 3, 2, 99):
        assert one.raft.state is StateType.LEADER
        one.report_active(alive)
        for _ in range(one.raft.config.election_tick):
            one.tick()
        work(one, stored)
    assert one.raft.state is StateType.FOLLOWER


def test_a_later_snapshot_is_awaited_once_the_first_is_not_needed() -> None:
    one, stored = awaiting()
    entries = [Entry(1, index) for index in range(3, 10)]
    one.step(Message(MessageType.APP, 1, 2, 1, 1, 2, entries, 9))
    work(one, stored)
    one.step(Message(MessageType.SNAP, 1, 2, 1, snapshot=LATER))
    assert [message.snapshot for message in work_off(one, stored).awaited] == [LATER]


@pytest.mark.parametrize("pre_vote", [False, True])
def test_a_candidate_restores_the_snapshot_whose_data_arrives(pre_vote: bool) -> None:
    one, stored = awaiting()
    one.raft.config = replace(HOLDING, pre_vote=pre_vote)
    one.campaign()
    work(one, stored)
    term, vote = one.raft.term, one.raft.vote
    assert one.snapshot_arrived(SNAPSHOT)
    assert (one.raft.state, one.raft.term, one.raft.vote) == (StateType.FOLLOWER, term, vote)
    assert take_append(one).snapshot == SNAPSHOT


def leader_with_a_snapshot_in_flight() -> tuple[RaftNode, MemoryStorage]:
    one, stored = leader_of_three()
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=3))
    work(one, stored)
    stored.create_snapshot(3, None, b"")
    stored.compact(3)
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=2, reject=True))
    assert any(m.type is MessageType.SNAP for m in work(one, stored))
    return one, stored


def test_a_follower_whose_acknowledgement_was_lost_gets_entries_and_needs_no_snapshot() -> None:
    one, stored = leader_of_three()
    one.propose(b"4")
    one.propose(b"5")
    work(one, stored)
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=5))
    work(one, stored)
    stored.create_snapshot(5, None, b"")
    stored.compact(3)
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=2, reject=True))
    (offer,) = [m for m in work(one, stored) if m.type is MessageType.SNAP]
    # It has entries of this term that the leader does not know of, and none are committed there.
    stored_there = storage(1, 2, 3)
    stored_there.append([Entry(1, 3), Entry(1, 4)])
    three = node(stored_there, 3, HOLDING)
    three.step(offer)
    assert work(three, stored_there) == []
    three.snapshot_failed(offer.snapshot or SNAPSHOT, silently=True)
    for answer in work(three, stored_there):
        one.step(answer)
    sent = [m for m in work(one, stored) if m.to == 3 and m.entries]
    assert [[entry.index for entry in m.entries] for m in sent] == [[5]]


def test_a_refused_snapshot_is_followed_by_another_after_a_heartbeat_response() -> None:
    one, stored = leader_with_a_snapshot_in_flight()
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=2, reject=True))
    assert one.raft.tracker.progress[3].pending_snapshot == 3
    one.step(Message(MessageType.APP_RESP, 1, 3, 1, index=3, reject=True))
    assert str(one.raft.tracker.progress[3]) == "StateProbe match=0 next=1 paused"
    assert work(one, stored) == []
    one.step(Message(MessageType.HEARTBEAT_RESP, 1, 3, 1))
    assert [m.type for m in work(one, stored)] == [MessageType.SNAP]


def test_a_snapshot_is_sent_as_soon_as_it_is_ready() -> None:
    class Storage(MemoryStorage):
        ready = False

        def snapshot(self) -> Snapshot:
            if not self.ready:
                raise SnapshotTemporarilyUnavailable
            return super().snapshot()

    stored = Storage()
    stored.apply_snapshot(Snapshot(2, 1, ConfState((1, 2))))
    one = node(stored)
    one.campaign()
    work(one, stored)
    one.step(Message(MessageType.VOTE_RESP, 1, 2, 1))
    work(one, stored)
    one.step(Message(MessageType.APP_RESP, 1, 2, 1, index=2, reject=True))
    assert work(one, stored) == []
    assert str(one.raft.tracker.progress[2]) == "StateProbe match=0 next=1 paused"
    stored.ready = True
    one.snapshot_ready()
    assert [m.type for m in work(one, stored)] == [MessageType.SNAP]


def test_data_that_arrives_too_late_is_not_needed() -> None:
    one, stored = awaiting()
    entries = [Entry(1, index) for index in range(3, 10)]
    one.step(Message(MessageType.APP, 1, 2, 1, 1, 2, entries, 9))
    work(one, stored)
    assert not one.snapshot_arrived(SNAPSHOT)
    assert (one.restoring, one.raft.log.first_index()) == (False, 3)


def test_a_leader_needs_no_snapshot() -> None:
    one, stored = awaiting()
    one.campaign()
    work(one, stored)
    one.step(Message(MessageType.VOTE_RESP, 1, 2, 2))
    assert one.raft.state is StateType.LEADER
    assert not one.awaits_snapshot(SNAPSHOT)
    assert not one.snapshot_arrived(SNAPSHOT)
    assert one.raft.state is StateType.LEADER


def test_an_unneeded_snapshot_is_acknowledged_at_once() -> None:
    one, stored = awaiting()
    one.step(Message(MessageType.SNAP, 1, 2, 1, snapshot=Snapshot(2, 1, ConfState((1, 2)))))
    assert [(m.type, m.index) for m in work(one, stored)] == [(MessageType.APP_RESP, 2)]


def test_a_follower_without_ticks_ignores_vote_requests_until_it_forgets_its_leader() -> None:
    stored = storage(1, 2, 3)
    one = node(stored, config=replace(CONFIG, check_quorum=True, pre_vote=True))
    one.step(Message(MessageType.HEARTBEAT, 1, 2, 1))
    work(one, stored)
    vote = Message(MessageType.PRE_VOTE, 1, 3, 2, 1, 2)
    for _ in range(2):
        one.step(replace(vote))
        assert work(one, stored) == []
    one.forget_leader()
    one.step(replace(vote))
    assert [(m.type, m.reject) for m in work(one, stored)] == [(MessageType.PRE_VOTE_RESP, False)]


def test_a_lease_outlives_its_quorum_by_nearly_two_election_timeouts_without_clock_drift() -> None:
    timeout = 10
    config = RaftConfig(
        election_tick=timeout, check_quorum=True, pre_vote=True, read_only=ReadOnlyOption.LEASE_BASED
    )
    stores = {node_id: storage(1, 2, 3) for node_id in (1, 2, 3)}
    nodes = {
        node_id: RaftNode(node_id, stores[node_id], config, Random(node_id), applied=2) for node_id in stores
    }

    def exchange(*connected: int) -> None:
        while sent := [m for node_id in connected for m in work(nodes[node_id], stores[node_id])]:
            for m in sent:
                if m.to in connected:
                    nodes[m.to].step(m)

    nodes[1].campaign()
    exchange(1, 2, 3)
    old = nodes[1].raft
    assert old.soft_state().state is StateType.LEADER
    while old.election_elapsed:  # until it has just checked its quorum
        nodes[1].tick()
    exchange(1, 2, 3)  # the last contact with the others
    ticks = 0
    while nodes[2].raft.state is not StateType.LEADER and nodes[3].raft.state is not StateType.LEADER:
        ticks += 1
        for one in nodes.values():
            one.tick()
        work(nodes[1], stores[1])
        exchange(2, 3)
    new = nodes[2] if nodes[2].raft.state is StateType.LEADER else nodes[3]
    new.propose(b"written")
    exchange(2, 3)
    assert timeout <= ticks < 2 * timeout
    nodes[1].read_index(b"read")
    assert old.read_states[0].read_index < new.raft.log.committed, "the lease answers a stale read"
    while old.soft_state().state is StateType.LEADER:
        ticks += 1
        nodes[1].tick()
    assert ticks == 2 * timeout


@pytest.mark.slow
def test_the_core_depends_on_protobuf_and_the_types_of_positions_and_proposals_only() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import pixy.raft\n"
        "new = set(sys.modules) - before - set(sys.stdlib_module_names)\n"
        "print(*sorted({name.split('.')[0] for name in new} - set(sys.stdlib_module_names)))\n"
        "print(*sorted(name for name in new if name.startswith('pixy.') and not name.startswith('pixy.raft.')))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == [
        "google pixy",
        "pixy.entry_ids pixy.proto pixy.proto.raft_pb2 pixy.raft",
    ]


def test_a_follower_without_a_leader_campaigns_between_one_and_two_election_timeouts() -> None:
    for seed in range(20):
        one = RaftNode(1, storage(1, 2), CONFIG, Random(seed), applied=2)
        ticks = 0
        while one.raft.state is StateType.FOLLOWER:
            one.tick()
            ticks += 1
        assert 3 <= ticks <= 5


def test_a_write_that_was_handed_out_gets_no_further_entries() -> None:
    one = node(storage(1, 2, 3))
    one.step(Message(MessageType.HEARTBEAT, 1, 2, 5))
    append = take_append(one)
    assert (append.hard_state, append.entries) == (HardState(5, 0, 2), [])
    one.step(Message(MessageType.APP, 1, 2, 5, 1, 2, [Entry(5, 3)]))
    assert append.entries == [], "the next write has it"
    assert [entry.index for entry in take_append(one).entries] == [3]

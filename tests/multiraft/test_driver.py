"""The driver of a node's raft groups: campaigns, units of the journal, the order of storing,
sending and applying, and groups that come and go.
"""

from pathlib import Path

import pytest

from pixy.errors import UnknownPartition
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import (
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    Message,
    MessageType,
    RaftEntryType,
    Snapshot,
    StateType,
)
from pixy.raft.wire import encode_conf_change
from pixy.storage import EntryType, RecordKind
from tests.cluster.drivers import BATCH, COMMAND, GROUP, DriverNode, PayloadLog, kinds_of

HARD_STATE, ENTRY, LOG_RESET = RecordKind.HARD_STATE, RecordKind.ENTRY, RecordKind.LOG_RESET


def append(
    *entries: Entry, term: int = 1, after: tuple[int, int] = (0, 0), commit: int = 0, sender: int = 2
) -> Message:
    """An append of a leader, behind the entry of this term and index."""
    log_term, index = after
    return Message(MessageType.APP, 1, sender, term, log_term, index, list(entries), commit)


def command(term: int, index: int, payload: bytes = b"command") -> Entry:
    return Entry(term, index, data=payload, kind=COMMAND)


def change(term: int, index: int, kind: ConfChangeType, node_id: int) -> Entry:
    """A change of the configuration."""
    data = encode_conf_change(ConfChange(kind, node_id))
    return Entry(term, index, RaftEntryType.CONF_CHANGE, data)


def written(node: DriverNode) -> list[list[RecordKind]]:
    return [kinds_of(unit) for unit in node.journal.units]


# --- campaigns of a sole voter --------------------------------------------------------------------


async def test_a_sole_voter_campaigns_at_its_first_proposal_and_not_before(node: DriverNode) -> None:
    await node.settle()
    assert (node.group.node, node.journal.units) == (None, [])
    node.propose(b"first")
    await node.settle()
    assert written(node) == [[HARD_STATE], [ENTRY], [ENTRY]]
    assert node.results == {b"first": None}


async def test_a_sole_voter_that_leads_does_not_campaign_again(node: DriverNode) -> None:
    for name in (b"first", b"second"):
        node.propose(name)
        await node.settle()
    assert node.group.term == 1
    assert node.application.applied == [b"first", b"second"]


async def test_proposals_during_the_campaign_of_a_sole_voter_wait_for_it(node: DriverNode) -> None:
    for name in (b"first", b"second"):
        node.propose(name)
    await node.settle()
    assert written(node).count([HARD_STATE]) == 1
    assert node.application.applied == [b"first", b"second"]


async def test_one_of_several_voters_does_not_campaign_for_a_proposal(follower: DriverNode) -> None:
    follower.propose(b"command")
    await follower.settle()
    assert (follower.journal.units, follower.setup.wire) == ([], [])


# --- applications ---------------------------------------------------------------------------------


def recovered(node: DriverNode, *entries: Entry, raft_group: int = 2000) -> RaftGroup:
    """A group that a start has found, with an unapplied tail."""
    storage = RaftStorage(ConfState(node.setup.voters))
    storage.append(entries)
    group = RaftGroup(raft_group, storage, node.node_id)
    node.driver.add(group)
    return group


async def test_entries_committed_before_the_application_is_known_are_applied_in_order_after_bind(
    node: DriverNode,
) -> None:
    group = recovered(node, *[command(1, index, b"%d" % index) for index in (1, 2, 3)])
    node.driver.seek_leader(group)
    await node.settle()
    assert (group.applied_index, group.leads) == (0, False)
    application = PayloadLog()
    node.driver.bind(group, application, PayloadLog.apply)
    assert application.applied == [b"1", b"2", b"3"]
    node.propose(b"4", group=group)
    await node.settle()
    assert application.applied == [b"1", b"2", b"3", b"4"]


async def test_further_entries_are_held_behind_those_that_are_held_already(follower: DriverNode) -> None:
    group = follower.driver.group(2000, ConfState((1, 2, 3)))
    follower.driver.step(2000, append(command(1, 1, b"1"), commit=1))
    await follower.settle()
    follower.driver.step(2000, append(command(1, 2, b"2"), after=(1, 1), commit=2))
    await follower.settle()
    application = PayloadLog()
    follower.driver.bind(group, application, PayloadLog.apply)
    assert application.applied == [b"1", b"2"]


async def test_a_group_whose_application_is_not_known_takes_proposals_once_it_is(tmp_path: Path) -> None:
    node = DriverNode(tmp_path)
    node.propose(b"early")
    await node.settle()
    assert node.results == {}
    node.bind()
    await node.settle()
    assert node.results == {b"early": None}
    node.close()


async def test_a_leader_that_leaves_a_joint_configuration_in_bind_takes_what_waited(tmp_path: Path) -> None:
    node = DriverNode(tmp_path)
    node.propose(b"early")
    await node.settle()
    assert node.group.node is not None
    learner = ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, 2)
    node.group.node.propose_conf_change(ConfChangeV2((learner,), ConfChangeTransition.JOINT_IMPLICIT))
    node.driver.drive(node.group)
    await node.settle()
    node.bind()
    await node.settle()
    assert (node.faults, node.results) == ([], {b"early": None})
    assert node.group.storage.conf_state == ConfState((1,), (2,))
    node.close()


async def test_an_exception_of_an_application_is_a_fault_of_the_node(node: DriverNode) -> None:
    def broken(_: PayloadLog, __: Entry) -> None:
        raise ZeroDivisionError

    await node.lead()
    node.driver.bind(node.group, node.application, broken)
    node.propose(b"command")
    await node.settle()
    assert [type(fault) for fault in node.faults] == [ZeroDivisionError]
    assert node.results == {}


async def test_an_exception_while_messages_are_processed_is_a_fault_of_the_node(follower: DriverNode) -> None:
    def broken(_: PayloadLog, __: Entry) -> None:
        raise ZeroDivisionError

    follower.driver.step(GROUP, append(command(1, 1)))
    await follower.settle()
    follower.driver.bind(follower.group, follower.application, broken)
    with pytest.raises(ZeroDivisionError):
        follower.driver.step(GROUP, append(after=(1, 1), commit=1))
    assert [type(fault) for fault in follower.faults] == [ZeroDivisionError]


# --- units of the journal -------------------------------------------------------------------------


async def test_a_write_of_the_core_is_one_unit(follower: DriverNode) -> None:
    follower.driver.step(GROUP, append(command(1, 1), command(1, 2)))
    assert written(follower) == [[HARD_STATE, ENTRY, ENTRY]]


async def test_a_log_reset_is_in_one_unit_with_its_hard_state(follower: DriverNode) -> None:
    snapshot = Snapshot(9, 4, ConfState((1, 2, 3)))
    follower.driver.step(GROUP, Message(MessageType.SNAP, 1, 2, 4, snapshot=snapshot))
    assert written(follower) == [[HARD_STATE]]
    assert follower.driver.snapshots.arrived(follower.group, snapshot)
    assert written(follower)[1:] == [[LOG_RESET, HARD_STATE]]


async def test_an_entry_is_stored_with_its_kind_its_proposal_and_the_commit_index(node: DriverNode) -> None:
    await node.lead()
    node.propose(b"command")
    [(kind, entry_type, group, index, term, commit, proposal, payload)] = node.journal.units[-1]
    assert (kind, entry_type, group, index, term, commit) == (ENTRY, COMMAND, GROUP, 2, 1, 1)
    assert (proposal, payload) == ((1, 1, 1), b"command")


async def test_entries_of_a_leader_elsewhere_are_stored_as_they_came(follower: DriverNode) -> None:
    joins = change(1, 2, ConfChangeType.ADD_LEARNER_NODE, 4)
    follower.driver.step(GROUP, append(Entry(1, 1, kind=COMMAND, data=b"x", proposal=None), joins, commit=1))
    [[_, first, second]] = follower.journal.units
    assert first == (ENTRY, COMMAND, GROUP, 1, 1, 1, None, b"x")
    assert second == (ENTRY, EntryType.CONF_CHANGE, GROUP, 2, 1, 1, None, joins.data)


async def test_a_write_without_content_needs_no_unit_if_everything_before_it_is_durable(
    node: DriverNode,
) -> None:
    # The answer to its own pre-vote.
    node.driver.seek_leader(node.group)
    assert written(node) == [[HARD_STATE]], "the vote, as the pre-vote is won"


async def test_a_write_without_content_waits_for_those_before_it(follower: DriverNode) -> None:
    follower.driver.step(GROUP, append(command(1, 1)))
    follower.driver.step(GROUP, append(command(1, 1)))
    assert written(follower) == [[HARD_STATE, ENTRY], []]
    await follower.settle()
    assert [each.message.type for each in follower.setup.wire] == [MessageType.APP_RESP] * 2


# --- order ----------------------------------------------------------------------------------------


async def test_an_acknowledgement_is_sent_when_the_entries_are_durable(follower: DriverNode) -> None:
    follower.holds_writes = True
    follower.driver.step(GROUP, append(command(1, 1)))
    await follower.settle()
    assert follower.setup.wire == []
    follower.holds_writes = False
    await follower.settle()
    [letter] = follower.setup.wire
    assert (letter.to, letter.message.type, letter.message.index) == (2, MessageType.APP_RESP, 1)


async def test_a_vote_is_sent_when_it_is_durable(follower: DriverNode) -> None:
    follower.holds_writes = True
    follower.driver.step(GROUP, Message(MessageType.VOTE, 1, 3, 5, 0, 0))
    await follower.settle()
    assert follower.setup.wire == []
    follower.holds_writes = False
    await follower.settle()
    [letter] = follower.setup.wire
    assert (letter.to, letter.message.type, letter.message.reject) == (3, MessageType.VOTE_RESP, False)
    assert follower.group.storage.hard_state[:2] == (5, 3)


async def test_nothing_is_applied_or_answered_before_it_is_durable(node: DriverNode) -> None:
    await node.lead()
    node.holds_writes = True
    node.propose(b"command")
    await node.settle()
    assert (node.application.applied, node.results) == ([], {})
    node.holds_writes = False
    await node.settle()
    assert (node.application.applied, node.results) == ([b"command"], {b"command": None})


async def test_a_leader_replaces_entries_of_another_one(follower: DriverNode) -> None:
    follower.driver.step(GROUP, append(command(1, 1, b"lost"), command(1, 2, b"lost too")))
    follower.driver.step(GROUP, append(command(2, 1, b"new"), term=2, commit=1, sender=3))
    await follower.settle()
    assert follower.application.applied == [b"new"]
    assert follower.driver.unapplied_bytes == 0


# --- groups that go -------------------------------------------------------------------------------


async def test_a_removed_group_answers_its_proposals_now_and_later(node: DriverNode) -> None:
    node.propose(b"in flight")
    node.driver.remove(node.group, UnknownPartition("deleted"))
    assert isinstance(node.results[b"in flight"], UnknownPartition)
    node.propose(b"later")
    assert isinstance(node.results[b"later"], UnknownPartition)
    await node.settle()
    assert node.application.applied == []
    assert GROUP not in node.driver.groups


async def test_the_bytes_of_a_removed_group_are_unapplied_no_longer(node: DriverNode) -> None:
    await node.lead()
    node.holds_writes = True
    node.propose(b"in the journal")
    await node.settle()
    assert node.driver.unapplied_bytes == len(b"in the journal")
    node.driver.remove(node.group, UnknownPartition("deleted"))
    node.holds_writes = False
    await node.settle()
    assert node.driver.unapplied_bytes == 0


async def test_the_tail_of_a_removed_group_is_unapplied_no_longer(follower: DriverNode) -> None:
    follower.driver.step(GROUP, append(command(1, 1, b"stored")))
    await follower.settle()
    follower.driver.step(GROUP, append(command(1, 2, b"in flight"), after=(1, 1)))
    assert follower.driver.unapplied_bytes == len(b"stored") + len(b"in flight")
    follower.driver.remove(follower.group, UnknownPartition("deleted"))
    await follower.settle()
    assert follower.driver.unapplied_bytes == 0


async def test_the_tail_that_a_start_has_found_counts_as_unapplied(node: DriverNode) -> None:
    group = recovered(node, command(1, 1, b"found"))
    assert node.driver.unapplied_bytes == len(b"found")
    node.driver.bind(group, PayloadLog(), PayloadLog.apply)
    node.driver.seek_leader(group)
    await node.settle()
    assert node.driver.unapplied_bytes == 0


# --- messages -------------------------------------------------------------------------------------


async def test_a_message_to_an_unknown_group_is_ignored(node: DriverNode) -> None:
    node.driver.step(77, append(command(1, 1)))
    assert list(node.driver.groups) == [GROUP]


async def test_an_answer_of_a_node_that_is_no_member_is_ignored(follower: DriverNode) -> None:
    follower.driver.step(GROUP, Message(MessageType.APP_RESP, 1, 9, 1, index=1))
    assert follower.faults == []


async def test_a_stopped_driver_takes_no_message_and_sends_none(follower: DriverNode) -> None:
    follower.driver.step(GROUP, append(command(1, 1)))
    follower.driver.stop()
    follower.driver.step(GROUP, append(command(1, 2), after=(1, 1)))
    await follower.settle()
    assert len(follower.journal.units) == 1
    assert follower.setup.wire == []


# --- configurations -------------------------------------------------------------------------------


async def test_a_change_of_the_configuration_is_applied_and_stored_with_its_index(
    follower: DriverNode,
) -> None:
    follower.driver.step(GROUP, append(change(1, 1, ConfChangeType.ADD_LEARNER_NODE, 4), commit=1))
    await follower.settle()
    storage = follower.group.storage
    assert (storage.conf_state, storage.conf_index) == (ConfState((1, 2, 3), (4,)), 1)
    assert written(follower) == [[HARD_STATE, ENTRY], [HARD_STATE]]
    again = follower.restarted()
    assert (again.group.storage.conf_state, again.group.storage.conf_index) == (ConfState((1, 2, 3), (4,)), 1)
    again.close()


async def test_a_restart_does_not_apply_a_change_of_the_configuration_twice(follower: DriverNode) -> None:
    enters = change(1, 1, ConfChangeType.ADD_NODE, 4)
    leaves = change(1, 2, ConfChangeType.REMOVE_NODE, 4)
    follower.driver.step(GROUP, append(enters, leaves, commit=2))
    await follower.settle()
    again = follower.restarted().bind()
    again.driver.step(GROUP, append(term=1, after=(1, 2), commit=2))
    await again.settle()
    assert again.application.conf_changes == 2
    assert again.group.storage.conf_state == ConfState((1, 2, 3))
    assert again.group.storage.conf_index == 2
    assert again.faults == []
    again.close()


async def test_a_group_has_peers_from_the_change_on_that_adds_one(node: DriverNode) -> None:
    await node.lead()
    assert node.group.node is not None
    node.group.node.propose_conf_change(ConfChange(ConfChangeType.ADD_LEARNER_NODE, 2))
    node.driver.drive(node.group)
    await node.settle()
    assert node.group.has_peers
    assert {each.to for each in node.setup.wire} == {2}


# --- memory ---------------------------------------------------------------------------------------


async def test_applied_entries_of_a_sole_member_leave_the_memory(node: DriverNode) -> None:
    node.propose(b"batch", BATCH)
    await node.settle()
    assert node.group.storage.in_memory(node.group.applied_index) is None


async def test_applied_entries_stay_in_memory_for_peers(follower: DriverNode) -> None:
    follower.driver.step(GROUP, append(command(1, 1), commit=1))
    await follower.settle()
    assert follower.group.applied_index == 1
    assert follower.group.storage.in_memory(1) is not None


async def test_the_core_of_a_group_with_peers_is_made_at_the_start(follower: DriverNode) -> None:
    group = recovered(follower, command(1, 1))
    assert group.node is not None
    assert group.node.raft.state is StateType.FOLLOWER


async def test_the_core_of_a_sole_member_is_made_at_the_first_use(node: DriverNode) -> None:
    assert recovered(node, command(1, 1)).node is None

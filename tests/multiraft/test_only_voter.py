"""A node with the only vote of a group is deposed by nobody."""

import asyncio
from pathlib import Path

import pytest

from pixy.raft import (
    ConfChangeSingle,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    Message,
    MessageType,
    Snapshot,
    StateType,
)
from pixy.raft.messages import CAMPAIGN_TRANSFER
from tests.cluster.drivers import BATCH, GROUP, DriverNode

LEARNER, STRANGER = 2, 77

DEPOSING = [
    Message(MessageType.VOTE, 1, term=9, log_term=8, index=99, context=CAMPAIGN_TRANSFER),
    Message(MessageType.PRE_VOTE, 1, term=9, log_term=8, index=99),
    Message(MessageType.APP, 1, term=9, log_term=1, index=1, entries=[Entry(9, 2)], commit=2),
    Message(MessageType.APP, 1, term=1, log_term=1, index=1, entries=[Entry(1, 2)], commit=2),
    Message(MessageType.HEARTBEAT, 1, term=9),
    Message(MessageType.SNAP, 1, term=9, snapshot=Snapshot(99, 8, ConfState((1,)))),
    Message(MessageType.TIMEOUT_NOW, 1, term=9),
    Message(MessageType.VOTE_RESP, 1, term=9, reject=True),
    Message(MessageType.PRE_VOTE_RESP, 1, term=9, reject=True),
    Message(MessageType.HEARTBEAT_RESP, 1, term=9),
    Message(MessageType.READ_INDEX_RESP, 1, term=9, entries=[Entry(data=b"context")]),
]


def change(kind: ConfChangeType, node_id: int) -> ConfChangeV2:
    return ConfChangeV2((ConfChangeSingle(kind, node_id),))


async def with_learner(node: DriverNode) -> None:
    await node.lead()
    assert node.driver.change_configuration(node.group, change(ConfChangeType.ADD_LEARNER_NODE, LEARNER))
    await node.settle()
    assert node.group.has_peers


def state_of(node: DriverNode) -> tuple[StateType, int]:
    assert node.group.node is not None
    raft = node.group.node.raft
    return raft.state, raft.term


@pytest.mark.parametrize("sender", [LEARNER, STRANGER])
@pytest.mark.parametrize("message", DEPOSING, ids=lambda each: f"{each.type.name}-{each.term}")
async def test_the_only_voter_is_deposed_by_no_message(
    node: DriverNode, sender: int, message: Message
) -> None:
    await with_learner(node)
    before = state_of(node)
    message.sender = sender
    node.driver.step(GROUP, message)
    assert state_of(node) == before == (StateType.LEADER, 1)
    node.propose(b"batch", BATCH)
    await node.settle()
    assert node.results == {b"batch": 0}


@pytest.mark.parametrize("message", DEPOSING, ids=lambda each: f"{each.type.name}-{each.term}")
async def test_before_it_leads_it_takes_none_of_them_either(node: DriverNode, message: Message) -> None:
    message.sender = STRANGER
    node.driver.step(GROUP, message)
    assert state_of(node) == (StateType.FOLLOWER, 0)
    await node.lead()


async def test_a_learner_that_is_ahead_in_the_term_gets_a_leader_of_a_later_one(node: DriverNode) -> None:
    await with_learner(node)
    node.driver.step(GROUP, Message(MessageType.APP_RESP, 1, LEARNER, 9))
    await node.settle()
    assert state_of(node) == (StateType.LEADER, 10), "it was a voter before, and campaigned"
    assert node.group.leads


async def test_a_stranger_that_is_ahead_in_the_term_changes_nothing(node: DriverNode) -> None:
    await with_learner(node)
    node.driver.step(GROUP, Message(MessageType.APP_RESP, 1, STRANGER, 9))
    assert state_of(node) == (StateType.LEADER, 1)


async def test_a_node_that_is_to_be_a_voter_may_be_elected(node: DriverNode) -> None:
    await with_learner(node)
    node.holds_writes = True
    assert node.driver.change_configuration(node.group, change(ConfChangeType.ADD_NODE, LEARNER))
    vote = Message(MessageType.VOTE, 1, LEARNER, 9, 1, 99, context=CAMPAIGN_TRANSFER)
    node.driver.step(GROUP, vote)
    assert state_of(node) == (StateType.FOLLOWER, 9), "the change is in its log"


async def test_a_restarted_voter_with_an_unapplied_change_may_be_deposed(tmp_path: Path) -> None:
    node = DriverNode(tmp_path / "node").bind()
    await node.lead()
    node.propose(b"batch", BATCH)
    await node.settle()
    assert node.driver.change_configuration(node.group, change(ConfChangeType.ADD_NODE, 2))
    await asyncio.sleep(0)
    node.write()
    again = node.restarted()
    try:
        assert again.group.storage.conf_state.voters == (1,), "the change is durable, and not applied"
        vote = Message(MessageType.VOTE, 1, 2, 9, 1, 99, context=CAMPAIGN_TRANSFER)
        again.driver.step(GROUP, vote)
        assert state_of(again) == (StateType.FOLLOWER, 9)
    finally:
        again.close()


async def test_a_restarted_voter_has_applied_the_change_after_which_others_vote_with_it(
    tmp_path: Path,
) -> None:
    node = DriverNode(tmp_path / "node").bind()
    await node.lead()
    assert node.driver.change_configuration(node.group, change(ConfChangeType.ADD_NODE, 2))
    await node.settle()
    index = node.group.storage.conf_index
    again = node.restarted().bind()
    try:
        assert again.group.storage.conf_state.voters == (1, 2)
        again.driver.campaign(again.group)
        assert again.group.applied_index == index, "nobody else has to confirm it, or may have it"
    finally:
        again.close()

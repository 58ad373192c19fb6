"""A single message, whatever is in it, from whichever node: no node of three has a fault, no term
on a disk is impossible, and the group goes on.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pixy.cluster.peering.peer_messages import decode_raft, encode_raft
from pixy.entry_ids import INDEX_MAX, TERM_JUMP_MAX, TERM_MAX, ProposalId
from pixy.raft import (
    ConfState,
    Entry,
    MalformedMessage,
    Message,
    MessageType,
    RaftEntryType,
    RaftNode,
    Snapshot,
)
from pixy.raft.messages import CAMPAIGN_TRANSFER, ConfChangeSingle, ConfChangeType, ConfChangeV2
from pixy.raft.wire import encode_conf_change
from pixy.storage import EntryType
from tests.cluster.drivers import BATCH, GROUP, DriverNetwork, batch_of

pytestmark = pytest.mark.slow

TICKS_MAX = 200
STRANGER = 77

NUMBERS = st.one_of(
    st.integers(0, 8),
    st.integers(0, 2**64 - 1),
    st.sampled_from([TERM_JUMP_MAX, TERM_MAX, TERM_MAX + 1, INDEX_MAX, INDEX_MAX + 1, 2**63, 2**64 - 1]),
)
TERMS = st.integers(0, 4) | NUMBERS
IDS = st.lists(st.integers(0, 4) | NUMBERS, max_size=4).map(tuple)
CONFIGURATIONS = st.just(ConfState((1, 2, 3))) | st.builds(ConfState, IDS, IDS, IDS, IDS, st.booleans())
CHANGE = encode_conf_change(ConfChangeV2((ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, 4),)))
ENTRIES = st.builds(
    Entry,
    TERMS,
    st.just(0),
    st.sampled_from(RaftEntryType),
    st.binary(max_size=8) | st.sampled_from([CHANGE, bytes(batch_of(b"x")), b""]),
    st.sampled_from([0, *map(int, EntryType), 7]),
    st.none()
    | st.builds(ProposalId, st.sampled_from([1, 2, 3, STRANGER]), st.integers(0, 2**32 - 1), NUMBERS),
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(MessageType),
    st.just(0),
    st.just(0),
    TERMS,
    TERMS,
    NUMBERS,
    st.lists(ENTRIES, max_size=3),
    NUMBERS,
    st.none() | st.builds(Snapshot, NUMBERS, TERMS, CONFIGURATIONS, st.binary(max_size=4)),
    st.booleans(),
    NUMBERS,
    st.binary(max_size=9) | st.sampled_from([CAMPAIGN_TRANSFER, b"commit"]),
)


def step(network: DriverNetwork, to: int, sender: int, message: Message) -> None:
    payload = b"".join(encode_raft([(GROUP, message)], 1))
    try:
        for raft_group, decoded in decode_raft(payload, sender, to):
            network[to].driver.step(raft_group, decoded)
    except MalformedMessage:
        pass  # the connection ends


async def written(network: DriverNetwork, name: bytes) -> None:
    """Write a batch by whoever leads, and wait until all have it."""
    for _ in range(TICKS_MAX):
        leader = next((node for node in network.nodes.values() if node.group.leads), None)
        if leader is not None and name not in leader.results:
            leader.propose(name, BATCH)
        await network.tick()
        if all(name in node.application.applied for node in network.nodes.values()):
            return
    raise AssertionError([node.application.applied for node in network.nodes.values()])


async def survives(directory: Path, to: int, sender: int, message: Message) -> None:
    network = DriverNetwork(directory, 1, 2, 3)
    network.lost = lambda message: message.to == STRANGER
    try:
        await network.elect(1)
        await written(network, b"before")
        step(network, to, sender, message)
        await network.run()
        await written(network, b"after")
        for node in network.nodes.values():
            assert node.faults == []
            assert node.application.applied[0] == b"before"
            assert node.group.storage.hard_state.term <= TERM_JUMP_MAX + 100
    finally:
        network.close()


@settings(max_examples=200)
@example(2, 3, Message(MessageType.HEARTBEAT, 0, term=1 + TERM_JUMP_MAX))
@given(st.sampled_from([1, 2]), st.sampled_from([1, 2, 3, STRANGER]), MESSAGES)
def test_no_message_stops_a_node_or_the_group(to: int, sender: int, message: Message) -> None:
    with TemporaryDirectory() as directory:
        asyncio.run(survives(Path(directory), to, sender, message))


IMPOSSIBLE = [
    Message(MessageType.HEARTBEAT, 0, term=TERM_MAX),
    Message(MessageType.HEARTBEAT, 0, term=TERM_JUMP_MAX + 2),
    Message(MessageType.HEARTBEAT, 0, term=1, commit=99),
    Message(MessageType.HEARTBEAT, 0, term=9, commit=99),
    Message(MessageType.APP_RESP, 0, term=1, index=99),
    Message(MessageType.APP, 0, term=1, log_term=1, index=2, entries=[Entry(1, 3)], commit=3),
    Message(MessageType.TIMEOUT_NOW, 0, term=1),
    Message(MessageType.VOTE, 0, term=2, log_term=2, index=99, context=CAMPAIGN_TRANSFER),
    Message(MessageType.SNAP, 0, term=1, snapshot=Snapshot(99, 1, ConfState((1, 2, 3)))),
    Message(MessageType.SNAP, 0, term=2, snapshot=Snapshot(2**50, 1, ConfState((1, 2, 3)))),
    Message(MessageType.READ_INDEX_RESP, 0, term=1, index=99, entries=[Entry(data=b"context")]),
    Message(MessageType.READ_INDEX, 0, term=9, entries=[Entry(data=b"context")]),
]


def state_of(node: RaftNode) -> tuple[object, ...]:
    raft = node.raft
    progress = {each: (pr.match, pr.next, pr.state) for each, pr in raft.tracker.progress.items()}
    return raft.hard_state(), raft.soft_state(), str(raft.log), raft.tracker.config, progress


@pytest.mark.parametrize("message", IMPOSSIBLE, ids=lambda each: f"{each.type.name}-{each.term}")
async def test_what_is_impossible_changes_nothing(network: DriverNetwork, message: Message) -> None:
    await network.elect(1)
    await written(network, b"before")
    to = 1 if message.type is MessageType.APP_RESP else 2
    sender = 2 if to == 1 else 3
    node = network[to].group.node
    assert node is not None
    before = state_of(node)
    step(network, to, sender, replace(message))
    assert state_of(node) == before
    assert network.wire == []

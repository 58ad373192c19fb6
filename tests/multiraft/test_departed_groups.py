"""Raft groups that a node has departed from: their votes, in the journal and after a return."""

from pathlib import Path

import pytest

from pixy.errors import Unavailable
from pixy.raft import ConfState, Entry, HardState, Message, MessageType, Snapshot
from pixy.storage import RecordKind
from tests.cluster.drivers import COMMAND, GROUP, DriverNetwork, DriverNode, NodeSetup, kinds_of

VOTE, VOTE_RESP, APP, APP_RESP = (
    MessageType.VOTE,
    MessageType.VOTE_RESP,
    MessageType.APP,
    MessageType.APP_RESP,
)
GONE = Unavailable("gone")


async def voter(directory: Path) -> DriverNode:
    """Node 1 of three, which has voted for node 2 in term 7 and has an entry of it."""
    node = DriverNode(directory, 1, NodeSetup(voters=(1, 2, 3))).bind()
    node.driver.step(GROUP, Message(VOTE, 1, 2, 7))
    await node.settle()
    entry = Entry(7, 1, data=b"command", kind=COMMAND)
    node.driver.step(GROUP, Message(APP, 1, 2, 7, entries=[entry], commit=1))
    await node.settle()
    assert node.group.applied_index == 1
    node.setup.wire.clear()
    return node


def depart(node: DriverNode) -> list[str]:
    """Begin a departure; the list gets an item when it is durable."""
    gone: list[str] = []
    node.driver.mute(node.group)
    node.driver.depart(node.group, GONE, lambda: gone.append("gone"))
    return gone


async def test_a_departure_is_over_once_it_is_durable(tmp_path: Path) -> None:
    node = await voter(tmp_path)
    node.holds_writes = True
    gone = depart(node)
    await node.settle()
    assert (gone, GROUP in node.driver.groups, GROUP in node.driver.departed) == ([], False, True)
    assert node.journal.files[0].spans.keys() == {GROUP}
    node.holds_writes = False
    await node.settle()
    assert gone == ["gone"]
    assert kinds_of(node.journal.units[-1]) == [RecordKind.REPLICA_GONE]
    assert node.journal.files[0].spans == {}, "no file stays for its entries"
    node.close()


async def test_what_is_written_when_a_group_is_muted_is_never_confirmed(tmp_path: Path) -> None:
    node = await voter(tmp_path)
    node.holds_writes = True
    node.driver.step(GROUP, Message(APP, 1, 2, 7, 7, 1, [Entry(7, 2, data=b"next", kind=COMMAND)], 1))
    await node.settle()
    node.driver.mute(node.group)
    node.holds_writes = False
    await node.settle()
    node.driver.step(GROUP, Message(APP, 1, 2, 7, 7, 2, [Entry(7, 3, data=b"third", kind=COMMAND)], 1))
    node.driver.step(GROUP, Message(VOTE, 1, 3, 9, 7, 9))
    await node.settle()
    assert (node.setup.wire, node.group.storage.last_index()) == ([], 2)
    node.driver.unmute(node.group)
    node.driver.step(GROUP, Message(APP, 1, 2, 7, 7, 2, [Entry(7, 3, data=b"third", kind=COMMAND)], 3))
    await node.settle()
    assert [each.message.index for each in node.setup.wire if each.message.type is APP_RESP] == [3]
    assert node.application.applied == [b"command", b"next", b"third"]
    node.close()


async def test_a_muted_leader_takes_no_proposals_and_goes_on_when_it_is_called_back(
    network: DriverNetwork,
) -> None:
    leader = await network.elect(1)
    leader.driver.mute(leader.group)
    assert not leader.group.leads
    leader.propose(b"command")
    await network.run()
    assert leader.results == {}
    leader.driver.unmute(leader.group)
    await network.run()
    assert leader.results == {b"command": None}


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_replica_that_is_back_votes_once_a_snapshot_has_told_it_all_and_once_in_a_term(
    tmp_path: Path, restarts: bool
) -> None:
    node = await voter(tmp_path)
    depart(node)
    await node.settle()
    if restarts:
        node = node.restarted().bind()
        assert node.group.is_blank, "the start has found no more"
    else:
        node.group = node.driver.group(GROUP, ConfState((1, 2, 3)))
        node.bind()
    assert (node.group.storage.conf_state, node.group.storage.last_index()) == (ConfState(), 0)
    assert node.group.storage.hard_state == HardState(7, 2, 0)
    assert GROUP not in node.driver.departed
    # Node 3 was down when the others have decided that node 1 goes.
    node.driver.step(GROUP, Message(VOTE, 1, 3, 8, 6, 9))
    await node.settle()
    assert (node.setup.wire, node.group.storage.hard_state.term) == ([], 7)
    snapshot = Snapshot(20, 7, ConfState((2, 3), (1,)))
    node.driver.step(GROUP, Message(MessageType.SNAP, 1, 2, 7, snapshot=snapshot))
    assert node.driver.snapshots.arrived(node.group, snapshot)
    await node.settle()
    node.setup.wire.clear()
    assert node.group.node is not None
    node.group.node.forget_leader()
    node.driver.step(GROUP, Message(VOTE, 1, 3, 7, 6, 29))
    await node.settle()
    assert [each.message.reject for each in node.setup.wire] == [True], "it has voted for node 2"
    node.setup.wire.clear()
    node.driver.step(GROUP, Message(VOTE, 1, 3, 8, 7, 29))
    await node.settle()
    assert [each.message.reject for each in node.setup.wire] == [False]
    node.close()


async def test_the_vote_of_a_departed_group_is_carried_over_until_it_is_back_or_deleted(
    tmp_path: Path,
) -> None:
    node = await voter(tmp_path)
    depart(node)
    await node.settle()
    departed, number = node.driver.departed, node.journal.files[-1].number
    units = len(node.journal.units)
    departed.carry_over(number + 1)
    assert len(node.journal.units) == units
    departed.carry_over(number)
    await node.settle()
    assert kinds_of(node.journal.units[-1]) == [RecordKind.REPLICA_GONE]
    node.driver.group(GROUP, ConfState())
    await node.settle()
    assert kinds_of(node.journal.units[-1]) == [RecordKind.HARD_STATE], "it has a file of its own"
    units = len(node.journal.units)
    departed.carry_over(number)
    assert len(node.journal.units) == units
    node.driver.mute(node.driver.groups[GROUP])
    node.driver.depart(node.driver.groups[GROUP], GONE, lambda: None)
    await node.settle()
    units = len(node.journal.units)
    departed.forget([GROUP])
    departed.carry_over(node.journal.files[-1].number)
    assert len(node.journal.units) == units
    node.close()


async def test_sequences_go_on_where_a_departed_group_had_them(tmp_path: Path) -> None:
    node = await voter(tmp_path)
    node.propose(b"first")
    node.propose(b"second")
    assert node.group.proposals is not None
    next_sequence = node.driver.sequences[GROUP].next
    assert next_sequence == 3
    depart(node)
    assert node.driver.sequences[GROUP].next == next_sequence
    group = node.driver.group(GROUP, ConfState())
    node.driver.remove(group, GONE)
    assert GROUP not in node.driver.sequences, "a deleted group has no further ones"
    node.close()

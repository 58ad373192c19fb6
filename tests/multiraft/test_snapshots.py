"""Snapshots of raft groups: sent when there is one, and followed by the log of a follower once
their data is in its place.
"""

from functools import partial

import pytest

from pixy.cluster.log.partition_snapshots import describe
from pixy.entry_ids import LogPosition
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfState, Entry, Message, MessageType, Snapshot
from pixy.storage import RecordKind
from tests.cluster.drivers import COMMAND, GROUP, DriverNetwork, DriverNode, kinds_of

SNAP, APP = MessageType.SNAP, MessageType.APP
ALL = ConfState((1, 2, 3))


# --- leader ---------------------------------------------------------------------------------------


async def behind_the_log(network: DriverNetwork) -> DriverNode:
    """Leader with a log that node 3 cannot be served from any more, and without a snapshot."""
    leader = await network.elect(1)
    network.cut.add(3)
    for number in range(3):
        leader.propose(b"%d" % number)
    await network.run()
    leader.group.storage.compact(leader.group.applied_index)
    network.cut.clear()
    await network.tick()
    return leader


def snapshot_of(leader: DriverNode) -> Snapshot:
    applied = leader.group.applied
    return Snapshot(applied.index, applied.term, ALL)


async def test_a_follower_that_waits_for_a_snapshot_gets_it_when_there_is_one(network: DriverNetwork) -> None:
    leader = await behind_the_log(network)
    assert network[3].fetches == []
    leader.group.storage.make_snapshot = lambda: snapshot_of(leader)
    leader.driver.snapshots.ready(leader.group)
    await network.run()
    assert [snapshot for _, snapshot in network[3].fetches] == [snapshot_of(leader)]


async def test_a_follower_that_has_taken_a_snapshot_gets_what_is_behind_it(network: DriverNetwork) -> None:
    leader = await behind_the_log(network)
    snapshot = snapshot_of(leader)
    leader.group.storage.make_snapshot = lambda: snapshot
    leader.driver.snapshots.ready(leader.group)
    leader.propose(b"behind")
    await network.run()
    assert network[3].group.applied_index < snapshot.index
    assert network[3].driver.snapshots.arrived(network[3].group, snapshot)
    await network.run()
    await network.tick()
    assert network[3].restored == [snapshot]
    assert network[3].application.applied == [b"behind"]


@pytest.mark.parametrize("failed", [True, False])
async def test_a_leader_goes_on_when_it_hears_of_the_end_of_a_snapshot(
    network: DriverNetwork, failed: bool
) -> None:
    leader = await behind_the_log(network)
    leader.group.storage.make_snapshot = lambda: snapshot_of(leader)
    leader.driver.snapshots.ready(leader.group)
    await network.run()
    sent: list[MessageType] = []

    def count(message: Message) -> bool:
        sent.extend([message.type] * (message.to == 3 and message.type in (SNAP, APP)))
        return False

    network.lost = count
    await network.tick()
    assert sent == [], "the follower is fetching"
    leader.driver.snapshots.report(leader.group, 3, failed=failed)
    await network.tick()
    # As the follower does not have it, the snapshot is sent again, or the entry behind it.
    assert sent[:1] == [SNAP if failed else APP]


async def test_a_leader_knows_who_waits_for_a_snapshot(network: DriverNetwork) -> None:
    leader = await behind_the_log(network)
    snapshots, snapshot = leader.driver.snapshots, snapshot_of(leader)
    snapshots.offer(leader.group, lambda: snapshot)
    assert (snapshots.waiting(leader.group), list(snapshots.offered)) == ({}, [])
    snapshots.ready(leader.group)
    assert (snapshots.waiting(leader.group), list(snapshots.offered)) == ({3: snapshot.index}, [leader.group])
    assert network[2].driver.snapshots.waiting(network[2].group) == {}


async def test_a_snapshot_that_is_not_made_yet_is_offered_to_nobody(network: DriverNetwork) -> None:
    leader = await behind_the_log(network)
    snapshots = leader.driver.snapshots
    snapshots.offer(leader.group, lambda: None)
    await network.tick(5)
    assert (snapshots.waiting(leader.group), list(snapshots.offered), network[3].fetches) == ({}, [], [])


async def test_a_group_without_data_tells_the_begin_of_its_log(network: DriverNetwork) -> None:
    leader = await behind_the_log(network)
    leader.driver.snapshots.offer(leader.group, partial(describe, leader.group))
    leader.driver.snapshots.ready(leader.group)
    await network.run()
    start = leader.group.storage.start
    assert [snapshot for _, snapshot in network[3].fetches] == [Snapshot(start.index, start.term, ALL)]


@pytest.mark.parametrize("silently", [True, False])
async def test_a_leader_tries_again_at_once_only_if_it_is_told(
    network: DriverNetwork, silently: bool
) -> None:
    leader = await behind_the_log(network)
    snapshot = snapshot_of(leader)
    leader.driver.snapshots.offer(leader.group, lambda: snapshot)
    leader.driver.snapshots.ready(leader.group)
    await network.run()
    follower = network[3]
    assert follower.driver.snapshots.awaits(follower.group, snapshot)
    follower.driver.snapshots.failed(follower.group, snapshot, silently=silently)
    assert not follower.driver.snapshots.awaits(follower.group, snapshot)
    await network.run()
    await network.tick(3)
    assert len(follower.fetches) == (1 if silently else 2)
    assert leader.driver.snapshots.waiting(leader.group) == {3: snapshot.index}


# --- follower -------------------------------------------------------------------------------------


def offer(follower: DriverNode, snapshot: Snapshot) -> None:
    follower.driver.step(GROUP, Message(SNAP, 1, 2, snapshot.term, snapshot=snapshot))


async def test_the_data_of_a_snapshot_is_fetched_before_anything_is_written(follower: DriverNode) -> None:
    snapshot = Snapshot(9, 2, ALL)
    offer(follower, snapshot)
    await follower.settle()
    assert follower.fetches == [(follower.group, snapshot)]
    assert not any(RecordKind.LOG_RESET in kinds_of(unit) for unit in follower.journal.units)
    assert follower.restored == []


async def test_the_state_is_replaced_once_the_reset_of_the_log_is_durable(follower: DriverNode) -> None:
    snapshot = Snapshot(9, 2, ConfState((1, 2, 3), (4,)))
    offer(follower, snapshot)
    await follower.settle()
    assert follower.driver.snapshots.arrived(follower.group, snapshot)
    assert follower.restored == []
    await follower.settle()
    group = follower.group
    assert follower.restored == [snapshot]
    assert group.applied == group.reset == group.storage.start == LogPosition(2, 9)
    assert (group.durable_index, group.storage.conf_state) == (9, snapshot.conf_state)
    assert group.reset_file == group.hard_state_file == follower.journal.files[-1].number


async def test_what_a_snapshot_is_about_to_replace_is_not_the_tail_any_more(follower: DriverNode) -> None:
    follower.driver.step(GROUP, Message(APP, 1, 2, 2, entries=[Entry(1, 1, data=b"x", kind=COMMAND)]))
    await follower.settle()
    assert [entry.index for entry in follower.group.unapplied()] == [1]
    snapshot = Snapshot(9, 2, ALL)
    offer(follower, snapshot)
    await follower.settle()
    assert follower.driver.snapshots.arrived(follower.group, snapshot)
    assert (follower.group.applied_index, follower.group.unapplied()) == (0, [])


async def test_a_snapshot_that_cannot_be_fetched_is_asked_for_again(follower: DriverNode) -> None:
    snapshot = Snapshot(9, 2, ALL)
    offer(follower, snapshot)
    follower.driver.snapshots.failed(follower.group, snapshot)
    await follower.settle()
    assert not follower.driver.snapshots.arrived(follower.group, snapshot)
    assert len(follower.fetches) == 1
    offer(follower, snapshot)
    assert len(follower.fetches) == 2
    assert follower.driver.snapshots.arrived(follower.group, snapshot)


async def test_a_snapshot_is_not_needed_when_its_entries_have_come(follower: DriverNode) -> None:
    snapshot = Snapshot(1, 2, ALL)
    offer(follower, snapshot)
    entry = Entry(2, 1, data=b"command", kind=COMMAND)
    follower.driver.step(GROUP, Message(APP, 1, 2, 2, entries=[entry], commit=1))
    await follower.settle()
    assert follower.application.applied == [b"command"]
    assert not follower.driver.snapshots.arrived(follower.group, snapshot)
    await follower.settle()
    assert follower.restored == []


async def test_committed_entries_without_an_application_are_replaced_too(follower: DriverNode) -> None:
    group = follower.driver.group(2000, ALL)
    entry = Entry(1, 1, data=b"held", kind=COMMAND)
    follower.driver.step(2000, Message(APP, 1, 2, 1, entries=[entry], commit=1))
    await follower.settle()
    assert list(group.held or ()) == [entry]
    snapshot = Snapshot(9, 2, ALL)
    follower.driver.step(2000, Message(SNAP, 1, 2, 2, snapshot=snapshot))
    assert follower.driver.snapshots.arrived(group, snapshot)
    await follower.settle()
    assert list(group.held or ()) == []
    assert follower.driver.unapplied_bytes == 0


async def test_a_group_that_was_removed_meanwhile_needs_no_snapshot(follower: DriverNode) -> None:
    snapshot = Snapshot(9, 2, ALL)
    offer(follower, snapshot)
    group = follower.group
    group.node = None
    snapshots = follower.driver.snapshots
    assert not snapshots.arrived(group, snapshot)
    snapshots.failed(group, snapshot)
    snapshots.ready(group)
    snapshots.report(group, 2, failed=False)
    assert not snapshots.awaits(group, snapshot)
    assert snapshots.waiting(group) == {}
    await follower.settle()
    assert follower.restored == []


# --- start ----------------------------------------------------------------------------------------


async def test_a_start_writes_the_reset_that_a_crash_has_prevented(follower: DriverNode) -> None:
    group = RaftGroup(2, RaftStorage(ConfState((1, 2, 3), (4,)), 7), 1)
    group.storage.append([Entry(2, index) for index in range(1, 16)])
    group.applied_term, group.applied_index = 3, 12
    follower.driver.snapshots.finish_install(group)
    assert [kinds_of(unit) for unit in follower.journal.units] == [
        [RecordKind.LOG_RESET, RecordKind.HARD_STATE]
    ]
    assert follower.journal.units[0][0][2:5] == (2, 12, 3)
    assert (group.storage.start, group.storage.last_index()) == (LogPosition(3, 12), 12)
    assert (group.reset, group.reset_file) == (None, 0)
    await follower.settle()
    number = follower.journal.files[-1].number
    assert (group.reset, group.reset_file, group.hard_state_file) == (LogPosition(3, 12), number, number)

"""Partition replicas behind the journal of their leader: marked, told once, and no trouble to the
leader.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from pixy.cluster.log.partition_snapshots import describe
from pixy.cluster.log.replica import Mark, PartitionReplica
from pixy.cluster.snapshots.missing_copies import MissingCopies
from pixy.errors import UnknownPartition
from pixy.multiraft.raft_group import RaftGroup
from pixy.proto.state_pb2 import AppliedPosition
from pixy.raft import ConfState, Entry, Message, MessageType, Snapshot
from pixy.raft.progress import ProgressState
from pixy.records import TopicPartition
from pixy.storage import SyncedLog
from pixy.storage.partition.partition_log import SyncedPosition
from tests.cluster.drivers import BATCH, batch_of
from tests.cluster.state_nodes import StateNetwork, StateNode
from tests.fakes.disk import RecordingDisk
from tests.sim.loop import VirtualLoop
from tests.storage.logs import partition_log

PARTITION = 1000
ALL = ConfState((1, 2, 3))
SNAP = MessageType.SNAP
WARNING, CAUGHT_UP = "a replica waits for a copy", "a replica needs no copy any more"


def replica_on(node: StateNode) -> PartitionReplica:
    """A replica of a partition on all nodes."""
    log = partition_log(RecordingDisk(), node.directory / "topics" / "topic-0")
    replica = PartitionReplica(PARTITION, TopicPartition("topic", 0), log)
    group = replica.group = node.log.driver.group(PARTITION, ALL)
    node.log.driver.snapshots.offer(group, partial(describe, group))
    node.log.driver.bind(group, replica, applied)
    return replica


def applied(replica: PartitionReplica, entry: Entry) -> None:
    if entry.kind == BATCH:
        replica.log.append(entry.data)


class Partitioned:
    """Nodes with a partition that node 1 leads.

    Attributes:
        snaps: nodes that were sent a snapshot.
    """

    def __init__(self, network: StateNetwork) -> None:
        self.network = network
        self.replicas = {node_id: replica_on(node) for node_id, node in network.nodes.items()}
        self.snaps: list[int] = []

    def group(self, node_id: int) -> RaftGroup:
        group = self.replicas[node_id].group
        assert group is not None
        return group

    async def elect(self, node_id: int) -> None:
        driver, group = self.network[node_id].log.driver, self.group(node_id)
        for each in self.replicas.values():
            if each.group is not None and each.group.node is not None:
                each.group.node.forget_leader()
        driver.open(group).campaign()
        driver.drive(group)
        await self.network.run()
        assert group.leads

    async def append(self, node_id: int, count: int) -> None:
        for number in range(count):
            self.network[node_id].log.driver.propose(
                self.group(node_id), BATCH, batch_of(b"%d" % number), lambda _: None
            )
        await self.network.run()

    async def tick(self, count: int) -> None:
        for _ in range(count):
            await self.network.tick()
            self.snaps += [node_id for node_id, _ in self.network.offers]
            self.network.offers.clear()

    def state(self, peer: int = 3) -> ProgressState:
        node = self.group(1).node
        assert node is not None
        return node.raft.tracker.progress[peer].state


async def behind(directory: Path) -> Partitioned:
    """Nodes 1, 2 and 3; node 3 lacks entries that the journal of node 1, which leads, has lost."""
    network = StateNetwork(directory, 1, 2, 3)
    await network.start(1, 2, 3)
    three = Partitioned(network)
    await three.elect(1)
    network.cut.add(3)
    await three.append(1, 5)
    three.group(1).storage.compact(4)
    network.cut.clear()
    return three


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Partitioned]:
    """Nodes as of `behind`."""
    made = await behind(tmp_path)
    yield made
    await made.network.end()


@pytest.mark.slow
async def test_a_replica_behind_the_journal_is_marked_and_told_once(
    three: Partitioned, capsys: pytest.CaptureFixture[str]
) -> None:
    await three.tick(20)
    assert [replica.needs_copy for replica in three.replicas.values()] == [False, False, True]
    output = capsys.readouterr().out
    assert output.count(WARNING) == 1
    for operand in ("topic=topic", "partition=0", "leader=1", "lacks_up_to_entry=6"):
        assert operand in output


@pytest.mark.slow
async def test_whoever_waits_for_its_records_is_woken(three: Partitioned) -> None:
    replica = three.replicas[3]
    waiter = asyncio.get_running_loop().create_future()
    replica.waiters = {waiter: None}
    await three.tick(20)
    assert replica.needs_copy
    assert waiter.done()


@pytest.mark.slow
async def test_its_leader_knows_and_sends_one_message(three: Partitioned) -> None:
    await three.tick(50)
    assert three.state() is ProgressState.SNAPSHOT
    assert three.snaps == [3]
    await three.append(1, 5)
    three.group(1).storage.compact(9)
    await three.tick(50)
    assert three.snaps == [3]


async def test_its_leader_tells_it_again_after_a_while(
    three: Partitioned, capsys: pytest.CaptureFixture[str]
) -> None:
    await three.tick(2)
    serving = three.network[1].serving
    for now in (1e6, 1e6 + 29.9, 1e6 + 30.0):
        assert three.snaps == [3]
        serving.sweep(now)
        await three.tick(2)
    assert three.snaps == [3, 3]
    assert capsys.readouterr().out.count(WARNING) == 1


@pytest.mark.slow
async def test_it_votes_and_its_leader_keeps_its_majority(three: Partitioned) -> None:
    await three.tick(2)
    three.network.cut.add(2)
    await three.tick(30)
    assert three.group(1).leads, "heartbeats are answered"
    three.network.cut = {1}
    three.group(2).storage.compact(4)
    await three.elect(2)
    await three.tick(30)
    assert three.group(2).leads
    assert three.replicas[3].needs_copy


async def test_a_leader_with_a_longer_journal_ends_it(
    three: Partitioned, capsys: pytest.CaptureFixture[str]
) -> None:
    await three.tick(2)
    await three.elect(2)
    await three.tick(2)
    assert three.replicas[3].log.end_offset == three.replicas[2].log.end_offset == 5
    copies = MissingCopies()
    copies.add(three.replicas[3], Message(SNAP, 3, 1, 1, snapshot=Snapshot(4, 1, ALL)))
    assert (len(copies), three.replicas[3].needs_copy) == (1, True)
    copies.sweep()
    assert (len(copies), three.replicas[3].needs_copy) == (0, False)
    assert capsys.readouterr().out.count(CAUGHT_UP) == 1
    copies.stop()


def test_a_timer_removes_marks(tmp_path: Path) -> None:
    async def live() -> None:
        three = await behind(tmp_path)
        marks = []
        await three.tick(2)
        for pause_s in (60.0, 0.0, 5.0):
            await asyncio.sleep(pause_s)
            marks.append(three.replicas[3].needs_copy)
            await three.elect(2)
            await three.tick(2)
        assert marks == [True, True, False]
        await three.network.end()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(live())


async def test_it_stays_marked_while_it_is_behind(three: Partitioned) -> None:
    await three.tick(2)
    copies = MissingCopies()
    copies.add(three.replicas[3], Message(SNAP, 3, 1, 1, snapshot=Snapshot(4, 1, ALL)))
    copies.sweep()
    assert (len(copies), three.replicas[3].needs_copy) == (1, True)
    copies.stop()
    copies.stop()


@pytest.mark.parametrize("how", ["deleted", "removed", "no group"])
async def test_a_partition_that_is_gone_is_forgotten(three: Partitioned, how: str) -> None:
    await three.tick(2)
    replica = three.replicas[3]
    copies = MissingCopies()
    copies.add(replica, Message(SNAP, 3, 1, 1, snapshot=Snapshot(4, 1, ALL)))
    if how == "deleted":
        replica.log.topic.deleted = True
    elif how == "removed":
        three.network[3].log.driver.remove(three.group(3), UnknownPartition("gone"))
    else:
        replica.group = None
    copies.sweep()
    assert len(copies) == 0
    copies.stop()


async def test_a_replica_takes_over_a_position_once_its_records_are_in_synced_segments(
    tmp_path: Path,
) -> None:
    network = StateNetwork(tmp_path, 1, 2, 3)
    await network.start(1, 2, 3)
    three = Partitioned(network)
    await three.elect(1)
    await three.append(1, 2)
    await three.tick(2)
    network.cut.add(3)
    for leader, next_leader in ((1, 2), (2, 1)):
        network[leader].log.driver.transfer(three.group(leader), next_leader)
        await network.run()
    index = three.group(1).applied_index
    three.group(1).storage.compact(index - 1)
    network.cut.clear()
    await three.tick(3)
    replica, group, log = three.replicas[3], three.group(3), network[3].log
    assert (replica.log.end_offset, group.applied_index < index, replica.needs_copy) == (2, True, False)
    applied = group.applied
    log._positions.write([AppliedPosition(raft_group=PARTITION, index=applied.index, end_offset=2)])
    await network.run()
    assert (group.applied_index, group.position_file, group.reset) == (index, 1, group.applied)
    # A sync that began before does not bring back the position of that time.
    assert group.position is not None
    mark = Mark(replica, applied, 0, replica.rows.snapshot(), False)
    log._positions.synced([SyncedLog(replica.log, mark, 2, SyncedPosition(0, 0, 0))])
    assert group.position.index == index
    await network.end()


async def test_a_log_that_was_never_cut_has_no_begin_to_tell_of(three: Partitioned) -> None:
    make = three.group(2).storage.make_snapshot
    assert make is not None
    assert make() is None
    make = three.group(1).storage.make_snapshot
    assert make is not None
    made = make()
    assert made is not None
    assert (made.index, made.term, made.conf_state) == (6, 1, ALL)

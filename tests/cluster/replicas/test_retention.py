"""Expiry: records by age and size, offsets of consumer groups without members; on a whole node."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from pixy.classic_groups import GroupJoin, MemberProtocol
from pixy.cluster import PartitionReplica, Topic
from pixy.cluster.log.replica import Replica
from pixy.cluster.replicas import retention as retention_module
from pixy.cluster.replicas.state_groups import GROUPS_COUNT
from pixy.cluster.state.groups import groups_index
from pixy.errors import CorruptData
from pixy.multiraft.proposals import Done
from pixy.multiraft.raft_group import RaftGroup
from pixy.proto.state_pb2 import GroupsCommand
from pixy.records import TopicPartition
from pixy.storage import EntryType
from tests.cluster.nodes import Cluster, Sizes, copy_of
from tests.fakes.disk import full
from tests.fakes.waiting import until

DAY = 86_400
VALUE = b"v" * 550  # three per segment


def replica(cluster: Cluster, topic: str = "topic", partition: int = 0) -> PartitionReplica:
    found = cluster.node.partition(TopicPartition(topic, partition))
    assert found is not None
    return found


def bases(cluster: Cluster, partition: str = "topic-0") -> list[int]:
    return [int(path.stem) for path in sorted((cluster.directory / "topics" / partition).glob("*.log"))]


async def look(cluster: Cluster) -> None:
    """Run one check, and make its outcome durable."""
    cluster.node._retention.stop()
    cluster.node._retention._check()
    await cluster.settle()
    await cluster.sync()


async def create(cluster: Cluster, name: str = "topic", partitions: int = 1, **config: str) -> Topic:
    return await cluster.node.commands.create_topic(name, partitions, config)


# --- records --------------------------------------------------------------------------------------


async def test_old_records_are_deleted_and_stay_deleted_after_a_kill(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await create(cluster, retention_ms=str(DAY * 1000))
        for _ in range(3):
            await cluster.append(*[VALUE] * 3)
            cluster.clock.advance(DAY / 2)
        await cluster.sync()
        assert bases(cluster) == [0, 3, 6]
        await look(cluster)
        assert (replica(cluster).log.begin_offset, bases(cluster)) == (3, [3, 6])
        copy = copy_of(cluster.directory, "killed")
    async with Cluster(copy, clock=cluster.clock).running() as again:
        log = replica(again).log
        assert (log.begin_offset, log.end_offset, bases(again)) == (3, 9, [3, 6])
        again.clock.advance(9 * DAY)
        await look(again)
        assert (log.begin_offset, log.end_offset, bases(again)) == (9, 9, [])
        await again.append(b"next")
        await again.sync()
        assert (bases(again), log.read(9, 1).next_offset) == ([9], 10)


async def test_a_kill_between_the_decision_and_the_removal_changes_nothing(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await create(cluster, retention_bytes="0")
        await cluster.append(*[VALUE] * 9)
        await cluster.sync()
        cluster.node._retention._check()
        await cluster.node._log.journal.drained()
        assert (replica(cluster).log.begin_offset, bases(cluster)) == (6, [0, 3, 6])
        copy = copy_of(cluster.directory, "killed")
    async with Cluster(copy).running() as again:
        assert (replica(again).log.begin_offset, replica(again).log.end_offset) == (6, 9)
        await again.sync()
        assert bases(again) == [6]


async def test_the_retention_of_a_topic_overrides_that_of_the_cluster(
    tmp_path: Path,
) -> None:
    storage = {"retention": 0, "retention_bytes": 2000}
    async with Cluster(tmp_path / "data", storage=storage).running() as cluster:
        await create(cluster)
        await create(cluster, "all", retention_bytes="-1")
        await create(cluster, "least", retention_bytes="0")
        for topic in ("topic", "all", "least"):
            await cluster.append(*[VALUE] * 9, topic=topic)
        await cluster.sync()
        await look(cluster)
        assert [replica(cluster, topic).log.begin_offset for topic in ("topic", "all", "least")] == [3, 0, 6]
        await cluster.node.commands.alter_topic("all", None, {"retention_bytes": None})
        await look(cluster)
        assert replica(cluster, "all").log.begin_offset == 3


async def test_records_without_a_retention_bound_stay(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", storage={"retention": 0}).running() as cluster:
        await create(cluster)
        await cluster.append(*[VALUE] * 9)
        await cluster.sync()
        cluster.clock.advance(100 * 365 * DAY)
        await look(cluster)
        assert (replica(cluster).log.begin_offset, bases(cluster)) == (0, [0, 3, 6])


async def test_a_wall_clock_set_forward_for_a_moment_deletes_nothing(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await create(cluster)
        await cluster.append(*[VALUE] * 9)
        await cluster.sync()
        cluster.clock.step_wall(1000 * DAY * 1000)
        await look(cluster)
        cluster.clock.advance(60)
        await look(cluster)
        assert replica(cluster).log.begin_offset == 0


async def test_a_damaged_partition_is_left_alone_and_the_others_are_not(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await create(cluster, partitions=2, retention_bytes="0")
        for partition in (0, 1):
            await cluster.append(*[VALUE] * 9, partition=partition)
        await cluster.sync()
        cluster.node.partitions.set_fault(replica(cluster), CorruptData("damaged"))
        await look(cluster)
        assert (bases(cluster), bases(cluster, "topic-1")) == ([0, 3, 6], [6])


async def test_checks_repeat_until_the_node_stops(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", storage={"retention_check": 0}).running() as cluster:
        await create(cluster, retention_bytes="0")
        for _ in range(2):
            await cluster.append(*[VALUE] * 3)
            await cluster.sync()
            end = replica(cluster).log.end_offset
            await until(lambda end=end: replica(cluster).log.begin_offset == end - 3)  # type: ignore[misc]
        timer = cluster.node._retention._timer
    assert timer is not None
    await asyncio.sleep(0)
    assert cluster.node._retention._timer is not None
    assert cluster.node._retention._timer.cancelled()


@pytest.mark.slow
async def test_ten_thousand_partitions_are_checked_over_many_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "_PARTITIONS_PER_ITERATION", 4)
    async with Cluster(tmp_path / "data").running() as cluster:
        await create(cluster, partitions=30, retention_bytes="0")
        for partition in range(30):
            await cluster.append(*[VALUE] * 4, partition=partition)
        await cluster.sync()
        turn, looked = 0, Counter[int]()
        propose = cluster.node._retention._propose

        def counting(to: Replica, payload: bytes) -> None:
            looked[turn] += 1
            propose(to, payload)

        monkeypatch.setattr(cluster.node._retention, "_propose", counting)
        cluster.node._retention.stop()
        cluster.node._retention._check()
        for turn in range(1, 12):  # noqa: B007  # `counting` reads it
            await asyncio.sleep(0)
        assert [count for _, count in sorted(looked.items())] == [4] * 7 + [2]
        await cluster.sync()
        assert {replica(cluster, partition=number).log.begin_offset for number in range(30)} == {3}


@pytest.mark.slow
async def test_nothing_is_proposed_while_the_journal_has_no_room(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", Sizes(file_bytes=30_000)).running() as cluster:
        await create(cluster, retention_bytes="0")
        await cluster.append(*[VALUE] * 9)
        await cluster.sync()
        full(cluster.disk, "allocate", ".journal")
        waiting = cluster.append_nowait(b"x" * 40_000)
        await until(lambda: cluster.node._log.journal.blocked is not None)
        group = cluster.node.partitions.group_of(replica(cluster))
        proposals = group.proposals
        assert proposals is not None
        assert len(proposals) == 1
        cluster.node._retention._check()
        assert len(proposals) == 1
        cluster.disk.heal()
        await waiting


# --- consumer groups ------------------------------------------------------------------------------


async def test_offsets_expire_when_nobody_consumes_for_long(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", storage={"offsets_retention": 7 * DAY}).running() as cluster:
        await create(cluster)
        await cluster.commit(1, "old")
        cluster.clock.advance(DAY)
        await cluster.commit(2, "new")
        cluster.clock.advance(6 * DAY)
        await look(cluster)
        assert (cluster.committed("old"), cluster.committed("new")) == ({0: 1}, {0: 2})
        cluster.clock.advance(1)
        await look(cluster)
        assert (cluster.committed("old"), cluster.committed("new")) == ({}, {0: 2})
    async with Cluster(tmp_path / "data", clock=cluster.clock).running() as again:
        assert (again.committed("old"), again.committed("new")) == ({}, {0: 2})


async def test_offsets_of_a_group_with_members_stay_over_restarts(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await create(cluster)
        for group in ("living", "dead"):
            await cluster.commit(1, group)
        await cluster.join("living")
        for _ in range(20):
            cluster.clock.advance(DAY)
            await look(cluster)
        assert (cluster.committed("living"), cluster.committed("dead")) == ({0: 1}, {})
        copy = copy_of(cluster.directory, "killed")
    async with Cluster(copy, clock=cluster.clock).running() as again:
        await again.settle()  # members of the killed process are put out
        again.clock.advance(6 * DAY)
        await look(again)
        assert again.committed("living") == {0: 1}
        again.clock.advance(2 * DAY)
        await look(again)
        assert again.committed("living") == {}


@pytest.mark.slow
async def test_the_activity_of_a_group_is_recorded_only_occasionally(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", storage={"offsets_retention": 8 * 3600}).running() as cluster:
        await create(cluster)
        await cluster.commit(1, "living")
        await cluster.join("living")
        storage = cluster.node.state_groups.groups[0].group.storage
        before = storage.last_index()
        for _ in range(24 * 60):  # a day, minute by minute
            cluster.clock.advance(60)
            cluster.node._retention.stop()
            cluster.node._retention._check()
            await cluster.node._log.journal.drained()
        assert 20 <= storage.last_index() - before <= 24
        assert cluster.committed("living") == {0: 1}


async def test_offsets_stay_while_a_kafka_client_is_joining(tmp_path: Path) -> None:
    """KAFKA-4682: nothing of its members is stored yet."""
    join = GroupJoin("", "one", "client", "host", "consumer", [MemberProtocol("range", b"t")], 10_000, 60_000)
    async with Cluster(tmp_path / "data", storage={"offsets_retention": 7 * DAY}).running() as cluster:
        await create(cluster)
        for group in ("joining", "quiet"):
            await cluster.commit(1, group)
        cluster.clock.advance(8 * DAY)
        joining = asyncio.create_task(cluster.node.classic_groups.join("joining", join))
        await until(lambda: cluster.node.classic_groups.is_joined("joining"))
        await look(cluster)
        assert (cluster.committed("joining"), cluster.committed("quiet")) == ({0: 1}, {})
        joining.cancel()
        await asyncio.wait({joining})


async def test_offsets_without_a_retention_bound_stay(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", storage={"offsets_retention": 0}).running() as cluster:
        await create(cluster)
        await cluster.commit(1)
        cluster.clock.advance(1000 * DAY)
        await look(cluster)
        assert cluster.committed() == {0: 1}


async def test_a_turn_checks_a_bounded_number_of_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "_GROUPS_PER_ITERATION", 3)
    async with Cluster(tmp_path / "data").running() as cluster:
        await create(cluster)
        # Of one state group.
        names = [name for name in map("g{}".format, range(1000)) if not groups_index(name, GROUPS_COUNT)][:16]
        for name in names:
            await cluster.commit(1, name)
        for name in names[:4]:
            await cluster.join(name)
        cluster.clock.advance(8 * DAY)
        named: list[tuple[int, int]] = []
        propose = cluster.node._log.driver.propose

        def watched(group: RaftGroup, kind: EntryType, payload: bytes, done: Done) -> None:
            command = GroupsCommand.FromString(payload)
            named.append((len(command.touch_groups.groups), len(command.expire_groups.groups)))
            propose(group, kind, payload, done)

        monkeypatch.setattr(cluster.node._log.driver, "propose", watched)
        cluster.node._retention._check()
        turns = []
        for _ in range(7):
            turns.append(list(named))
            named.clear()
            await asyncio.sleep(0)
        assert turns == [[(0, 3)], [(0, 3)], [(0, 3)], [(0, 3)], [(3, 0)], [(1, 0)], []]
        await cluster.settle()
        assert [name for name in names if cluster.committed(name)] == names[:4]

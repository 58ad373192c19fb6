"""The partitions of a node: growth and deletion of topics, their files on disk, and partitions that
are not ready.
"""

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from pixy.cluster import NodeObserver, PartitionReplica
from pixy.cluster.log.partition_condition import PartitionCondition
from pixy.errors import CorruptData, DataDirectoryError, TopicExists, UnknownPartition, UnknownTopic
from pixy.proto.state_pb2 import PartitionDescriptor
from pixy.raft import ConfState, Snapshot
from pixy.records import TopicPartition
from pixy.storage import DamagedLog, read_partition_identity
from tests.cluster.nodes import Cluster, Sizes, copy_of
from tests.fakes.disk import RecordingDisk
from tests.fakes.waiting import until

LARGE = b"x" * 900  # two per segment
LARGEST = b"x" * 70_000  # one in the smallest segment of a topic


class Told(NodeObserver):
    """Records its notifications."""

    def __init__(self) -> None:
        self.of: list[tuple[str, str]] = []

    def topic_changed(self, name: str) -> None:
        self.of.append(("changed", name))

    def topic_deleted(self, name: str) -> None:
        self.of.append(("deleted", name))


def replica(cluster: Cluster, topic: str = "topic", partition: int = 0) -> PartitionReplica:
    found = cluster.node.partition(TopicPartition(topic, partition))
    assert found is not None
    return found


def directories(cluster: Cluster) -> list[str]:
    return sorted(path.name for path in (cluster.directory / "topics").iterdir())


@pytest.mark.parametrize("max_unapplied_bytes", [1 << 20, 2])
async def test_an_applied_position_has_the_result_of_its_last_entry(
    tmp_path: Path, max_unapplied_bytes: int
) -> None:
    # With little room, each entry begins a write of its own.
    sizes = Sizes(max_unapplied_bytes=max_unapplied_bytes)
    async with Cluster(tmp_path / "data", sizes).running() as cluster:
        await cluster.create_topic()
        await cluster.append(b"a", b"b", b"c")
        await cluster.sync()
        group = replica(cluster).group
        assert group is not None
        assert group.position is not None
        [row] = group.position.rows
        assert (group.position.index, group.position.end_offset) == (4, 3)
        assert (list(row.sequences), list(row.values)) == ([1, 2, 3], [0, 1, 2])


async def test_replicas_behind_the_journal_get_the_state_of_a_partition(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await cluster.append(b"a", b"b")
        group = replica(cluster).group
        assert group is not None
        group.storage.compact(2)
        assert described(group.storage.snapshot()) == (3, 2)
        await cluster.sync()
    async with Cluster(tmp_path / "data").running() as cluster:
        group = replica(cluster).group
        assert group is not None
        group.storage.compact(3)
        assert described(group.storage.snapshot()) == (3, 2)
        assert not replica(cluster).needs_copy


def described(snapshot: Snapshot) -> tuple[int, int]:
    """Index of a snapshot, and the end of the log there."""
    assert (snapshot.term, snapshot.conf_state) == (1, ConfState((1,)))
    return snapshot.index, PartitionDescriptor.FromString(snapshot.data).end_offset


async def test_a_start_campaigns_for_partitions_with_unapplied_entries_only(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic(partitions=2)
        for partition in (0, 1):
            await cluster.append(b"synced", partition=partition)
        await cluster.sync()
        await cluster.append(b"unsynced", partition=1)
        copy = copy_of(cluster.directory, "killed")
    async with Cluster(copy).running() as again:
        idle, used = replica(again).group, replica(again, partition=1).group
        assert idle is not None
        assert used is not None
        assert (idle.node, idle.leads, used.leads) == (None, False, True)
        assert again.values(partition=1) == [b"synced", b"unsynced"]
        await again.append(b"first use")
        assert idle.leads


# --- topics that go -------------------------------------------------------------------------------


async def test_a_deleted_topic_is_unknown_at_once_and_its_files_and_offsets_are_removed(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        await cluster.create_topic("other")
        for topic in ("topic", "other"):
            await cluster.append(*[LARGE] * 5, topic=topic)
            await cluster.commit(3, topic=topic)
        await cluster.sync()
        topic_id = cluster.node.metadata.topics["topic"].topic_id
        await cluster.node.commands.delete_topic("topic")
        assert cluster.node.partition(TopicPartition("topic", 0)) is None
        await cluster.settle()
        await cluster.sync()
        assert directories(cluster) == ["other-0"]
        assert cluster.node.state_groups.offsets_of("group").committed("group", topic_id) == {}
        assert (cluster.values("other"), cluster.committed(topic="other")) == ([LARGE] * 5, {0: 3})
        with pytest.raises(UnknownTopic):
            await cluster.node.commands.delete_topic("topic")
    async with Cluster(tmp_path / "data").running() as again:
        assert list(again.node.metadata.topics) == ["other"]
        assert again.values("other") == [LARGE] * 5


@pytest.mark.slow
async def test_a_recreated_topic_begins_empty(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        for turn in range(3):
            await cluster.create_topic("topic", 2)
            assert (replica(cluster).log.end_offset, cluster.committed()) == (0, {})
            await cluster.append(b"%d" % turn, b"more", LARGE, LARGE, LARGE)
            await cluster.commit(4)
            if turn != 1:
                await cluster.sync()
            if turn < 2:
                await cluster.node.commands.delete_topic("topic")
        await cluster.sync()
        copy = copy_of(cluster.directory, "killed")
    for directory in (copy, tmp_path / "data"):
        async with Cluster(directory).running() as again:
            assert again.values()[:2] == [b"2", b"more"]
            assert again.committed() == {0: 4}
            assert directories(again) == ["topic-0"]


async def test_a_kill_between_deletion_and_removal_leaves_nothing_of_the_old_topic(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await cluster.append(*[LARGE] * 5)
        await cluster.commit(3)
        await cluster.sync()
        old = cluster.node.metadata.topics["topic"].topic_id
        before = copy_of(cluster.directory, "before")
        await cluster.node.commands.delete_topic("topic")
        await cluster.create_topic()
        await cluster.append(b"new")
        copy = copy_of(cluster.directory, "killed")
        shutil.rmtree(copy / "topics")
        shutil.copytree(before / "topics", copy / "topics")
    async with Cluster(copy).running() as again:
        assert again.values() == [b"new"]
        assert again.node.state_groups.offsets_of("group").committed("group", old) == {}
        await again.sync()
        identity = read_partition_identity(RecordingDisk(), copy / "topics" / "topic-0" / "identity")
        assert identity.raft_group == replica(again).raft_group


async def test_offsets_that_a_crash_left_of_a_deleted_topic_are_forgotten_by_the_next_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await cluster.commit(3)
        old = cluster.node.metadata.topics["topic"].topic_id
        monkeypatch.setattr(cluster.node._reactions, "forget_offsets", lambda: None)  # the process ends here
        await cluster.node.commands.delete_topic("topic")
        assert cluster.node.state_groups.offsets_of("group").committed("group", old)
        copy = copy_of(cluster.directory, "killed")
    async with Cluster(copy).running() as again:
        await again.settle()
        assert again.node.state_groups.offsets_of("group").topic_ids() == set()


async def test_proposals_in_progress_to_a_deleted_topic_are_refused_and_waiters_woken(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        gone = replica(cluster)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.waiters = {waiter: None}
        deleting = asyncio.create_task(cluster.node.commands.delete_topic("topic"))
        await asyncio.sleep(0)
        behind = cluster.append_nowait(b"behind the deletion")
        await deleting
        with pytest.raises(UnknownPartition, match="topic topic was deleted"):
            await behind
        assert waiter.done()
        assert gone.log.end_offset == 0


async def test_a_deletion_during_a_write_of_the_partition_is_safe(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await cluster.create_topic("other")
        for _ in range(5):
            await cluster.append(LARGE)
            await cluster.append(LARGE, topic="other")
        cluster.node._log.writer._begin()  # a job is queued on the worker
        await cluster.node.commands.delete_topic("topic")
        await cluster.create_topic("topic", 3)
        await cluster.append(b"new")
        await cluster.sync()
        assert directories(cluster) == ["other-0", "topic-0"]
        assert (cluster.values(), cluster.values("other")) == ([b"new"], [LARGE] * 5)


async def test_the_journal_retains_nothing_for_a_deleted_topic(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await cluster.create_topic("other")
        await cluster.append(b"never synced")
        for _ in range(60):
            await cluster.append(LARGE, topic="other")
        await cluster.node.commands.delete_topic("topic")
        await cluster.sync()
        await cluster.settle()
        assert cluster.journal_files()[0] > "00000000000000000005.journal"


async def test_files_that_cannot_be_renamed_are_a_fault(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data")
    await cluster.node.start()
    await cluster.create_topic()
    await cluster.append(b"value")
    await cluster.sync()
    cluster.disk.fail("rename", "-deleted", errno.EIO)
    await cluster.node.commands.delete_topic("topic")
    await until(lambda: bool(cluster.faults))
    await cluster.node.stop()
    async with Cluster(tmp_path / "data").running() as again:
        assert again.node.metadata.topics == {}
        await until(lambda: not directories(again))


# --- topics that change ---------------------------------------------------------------------------


async def test_a_topic_keeps_its_added_partitions_after_a_kill(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        told = cluster.node.observer = Told()
        await cluster.create_topic("topic", 1)
        await cluster.append(b"old")
        old = replica(cluster)
        topic = await cluster.node.commands.alter_topic("topic", 3, {})
        assert replica(cluster) is old
        assert topic.raft_groups == tuple(
            replica(cluster, partition=number).raft_group for number in range(3)
        )
        await cluster.append(b"new", partition=2)
        await cluster.settle()
        assert told.of == [("changed", "topic")] * 2
        copy = copy_of(cluster.directory, "killed")
    async with Cluster(copy).running() as again:
        assert (again.values(), again.values(partition=1), again.values(partition=2)) == (
            [b"old"],
            [],
            [b"new"],
        )


async def test_new_options_reach_the_logs_also_of_an_active_segment(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", Sizes(segment_bytes=1 << 20)).running() as cluster:
        await cluster.create_topic()
        await cluster.append(*[LARGEST] * 3)
        await cluster.sync()
        changes = {"segment_bytes": "65536", "retention_bytes": "5"}
        await cluster.node.commands.alter_topic("topic", None, changes)
        options = replica(cluster).log.topic.options
        assert (options.segment_bytes, options.retention_bytes) == (65536, 5)
        await cluster.append(*[LARGEST] * 2)
        await cluster.sync()
        assert [
            int(path.stem) for path in sorted((cluster.directory / "topics" / "topic-0").glob("*.log"))
        ] == [0, 3, 4]
        await cluster.node.commands.alter_topic("topic", None, {"segment_bytes": None})
        assert replica(cluster).log.topic.options.segment_bytes == 1 << 20
    async with Cluster(tmp_path / "data").running() as again:
        assert replica(again).log.topic.options.retention_bytes == 5


async def test_a_deletion_is_notified_before_later_changes(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        told = cluster.node.observer = Told()
        await cluster.create_topic()
        await cluster.node.commands.delete_topic("topic")
        await cluster.create_topic()
        with pytest.raises(TopicExists):
            await cluster.create_topic()
        await cluster.settle()
        assert told.of == [("changed", "topic"), ("deleted", "topic"), ("changed", "topic")]


async def test_the_answer_to_a_deletion_comes_when_all_raft_groups_are_gone(tmp_path: Path) -> None:
    """A thousand, which are removed in several iterations of the loop."""
    async with Cluster(tmp_path / "data", Sizes(file_bytes=1 << 20)).running() as cluster:
        await cluster.create_topic("topic", 1000)
        topic = cluster.node.metadata.topics["topic"]
        for number in range(1000):
            replica = cluster.node.partition(TopicPartition("topic", number))
            assert replica is not None
            cluster.node.partitions.group_of(replica)
        groups = cluster.node._log.driver.groups
        assert groups.keys() >= {*topic.raft_groups}
        await cluster.node.commands.delete_topic("topic")
        assert not groups.keys() & {*topic.raft_groups}


@pytest.mark.slow
@pytest.mark.no_debug
async def test_a_topic_of_ten_thousand_partitions_can_be_created_used_and_deleted(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", Sizes(file_bytes=1 << 20)).running() as cluster:
        await cluster.create_topic("topic", 1)
        await cluster.node.commands.alter_topic("topic", 10_000, {})
        await cluster.append(b"last", partition=9999)
        await cluster.settle()
        await cluster.sync()
        assert directories(cluster) == ["topic-9999"]
        copy = copy_of(cluster.directory, "killed")
    async with Cluster(copy, Sizes(file_bytes=1 << 20)).running() as again:
        assert again.values(partition=9999) == [b"last"]
        await again.node.commands.delete_topic("topic")
        await until(lambda: not directories(again))


# --- partitions that are not ready ----------------------------------------------------------------


async def damaged(tmp_path: Path) -> Path:
    """Two partitions with several segments and entries after the position; the last segment of the
    first is missing.
    """
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        for partition in (0, 1):
            await cluster.append(*[LARGE] * 5, partition=partition)
        await cluster.sync()
        for partition in (0, 1):
            await cluster.append(b"unsynced", partition=partition)
        copy = copy_of(cluster.directory, "killed")
    sorted((copy / "topics" / "topic-0").glob("*.log"))[-1].unlink()
    return copy


async def test_a_damaged_partition_is_not_ready_and_the_others_are(tmp_path: Path) -> None:
    directory = await damaged(tmp_path)
    files = sorted((directory / "topics" / "topic-0").iterdir())
    for _ in range(2):
        cluster = Cluster(directory)
        told = cluster.node.observer = Told()
        async with cluster.running():
            assert "4.log is missing, it was synced" in str(replica(cluster).fault)
            assert replica(cluster).condition is PartitionCondition.UNWRITABLE
            assert cluster.values(partition=1) == [LARGE] * 5 + [b"unsynced"]
            await cluster.sync()
            assert told.of == [("changed", "topic")]
        assert sorted((directory / "topics" / "topic-0").iterdir()) == files


@pytest.mark.slow
async def test_the_journal_keeps_entries_of_a_damaged_partition_until_it_is_repaired(tmp_path: Path) -> None:
    directory = await damaged(tmp_path)
    async with Cluster(directory).running() as cluster:
        for _ in range(60):
            await cluster.append(LARGE, partition=1)
        await cluster.sync()
        await cluster.settle()
    shutil.copytree(
        tmp_path / "data" / "topics" / "topic-0", directory / "topics" / "topic-0", dirs_exist_ok=True
    )
    async with Cluster(directory).running() as again:
        assert again.values() == [LARGE] * 5 + [b"unsynced"]
        await again.append(b"next")
        assert again.values()[-1] == b"next"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["segment", "identity"])
async def test_a_damaged_partition_can_be_deleted_and_recreated(tmp_path: Path, how: str) -> None:
    directory = await damaged(tmp_path)
    if how == "identity":
        (directory / "topics" / "topic-0" / "identity").write_bytes(b"damaged")
    async with Cluster(directory).running() as cluster:
        assert replica(cluster).fault is not None
        await cluster.node.commands.delete_topic("topic")
        await cluster.create_topic("topic", 2)
        await cluster.append(b"new")
        await cluster.sync()
        assert (replica(cluster).fault, cluster.values()) == (None, [b"new"])
    async with Cluster(directory).running() as again:
        assert (replica(again).fault, again.values()) == (None, [b"new"])


async def test_swapped_directories_are_both_not_ready_and_repaired_by_swapping_back(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        for partition in (0, 1):
            await cluster.append(b"%d" % partition, partition=partition)
        await cluster.sync()
    topics = tmp_path / "data" / "topics"

    def swap() -> None:
        (topics / "topic-0").rename(topics / "aside")
        (topics / "topic-1").rename(topics / "topic-0")
        (topics / "aside").rename(topics / "topic-1")

    swap()
    async with Cluster(tmp_path / "data").running() as again:
        for partition in (0, 1):
            assert "which is not its partition's" in str(replica(again, partition=partition).fault)
    swap()
    async with Cluster(tmp_path / "data").running() as again:
        assert (again.values(), again.values(partition=1)) == ([b"0"], [b"1"])


async def test_the_first_reason_counts_and_is_logged_once(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await cluster.settle()
        told = cluster.node.observer = Told()
        for reason in ("first", "second"):
            cluster.node.partitions.set_fault(replica(cluster), CorruptData(reason))
        await asyncio.sleep(0)
        assert (str(replica(cluster).fault), told.of) == ("first", [("changed", "topic")])


async def test_the_condition_of_a_partition_only_becomes_worse(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await cluster.append(b"value")
        damaged = replica(cluster)
        conditions = [damaged.condition]
        cluster.node.partitions.set_fault(damaged, CorruptData("read"))
        conditions.append(damaged.condition)
        given_up = DamagedLog(damaged.mark(), CorruptData("written"), 0)
        cluster.node.partitions.log_damaged(given_up)
        conditions.append(damaged.condition)
        cluster.node.partitions.set_fault(damaged, CorruptData("read"))
        conditions.append(damaged.condition)
        assert conditions == [
            PartitionCondition.READY,
            PartitionCondition.UNREADABLE,
            PartitionCondition.UNWRITABLE,
            PartitionCondition.UNWRITABLE,
        ]
        assert str(damaged.fault) == "read"


async def test_a_disk_that_cannot_be_read_refuses_the_start_with_the_reason(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await cluster.append(b"value")
        await cluster.sync()
    path = tmp_path / "data" / "topics" / "topic-0" / "identity"
    whole = path.read_bytes()
    path.unlink()
    path.mkdir()
    with pytest.raises(DataDirectoryError, match=r"topics cannot be used: .*identity"):
        await Cluster(tmp_path / "data").node.start()
    path.rmdir()
    path.write_bytes(whole)
    async with Cluster(tmp_path / "data").running() as again:
        assert again.values() == [b"value"]

"""Removal of journal files that no raft group needs."""

from pathlib import Path

import pytest

from pixy.cluster import journal_retention
from pixy.cluster.node_log import LogHooks, NodeLog
from pixy.cluster.node_options import NodeOptions
from pixy.cluster.recovery import recover_node
from pixy.cluster.replica import StateReplica
from pixy.cluster.state_groups import StateGroups
from pixy.config import JournalConfig, StorageConfig
from tests.cluster.damage import damaged, work
from tests.cluster.nodes import Cluster, Sizes, copy_of
from tests.fakes.clock import FakeClock
from tests.fakes.disk import RecordingDisk, full
from tests.fakes.waiting import until
from tests.fakes.worker import InlineWorker


async def test_a_deleted_topic_retains_no_journal_file(tmp_path: Path) -> None:
    directory, _, _ = await damaged(tmp_path)
    async with Cluster(directory).running() as cluster:
        await cluster.node.delete_topic("bad")
        bad = {raft_group for file in cluster.node._log.journal.files for raft_group in file.spans}
        await work(cluster, 150)
        left = {raft_group for file in cluster.node._log.journal.files for raft_group in file.spans}
        assert bad - left
        assert not (directory / "topics" / "bad-0").exists()


async def test_journal_files_needed_by_one_topic_only_are_removed_with_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path, Sizes(max_unapplied_bytes=1 << 20)).running() as cluster:
        await cluster.create_topic()
        await cluster.append(*[b"x" * 1000] * 60)
        files = len(cluster.journal_files())
        assert files > 10
        await cluster.node.delete_topic("topic")
        # Before its segments were ever synced. State groups may keep a few files until they write
        # checkpoints.
        await cluster.settle()
        assert len(cluster.journal_files()) < 8


async def test_a_checkpoint_without_room_is_retried_on_an_idle_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_retention, "_FULL_DISK_RETRY_S", 0)
    async with Cluster(tmp_path).running() as cluster:
        await cluster.create_topic()
        full(cluster.disk, "create", ".checkpoint.part")
        await cluster.append(*[b"x" * 1000] * 60)
        await cluster.sync()
        files = len(cluster.journal_files())
        assert files > 10
        cluster.disk.heal()
        await until(lambda: len(cluster.journal_files()) < 8)


async def test_no_file_is_removed_before_a_start_has_opened_every_raft_group(tmp_path: Path) -> None:
    async with Cluster(tmp_path).running() as cluster:
        await cluster.create_topic()
        await cluster.append(*[b"x" * 1000] * 20)
        copy = copy_of(tmp_path, f"{tmp_path.name}-copy")
    disk = RecordingDisk()
    recovered = recover_node(disk, copy, bytes)
    hooks = LogHooks(_unused, lambda: None, _unused, lambda: None, _unused)
    options = NodeOptions(copy, JournalConfig(), StorageConfig(), bytes, InlineWorker)
    log = NodeLog(disk, FakeClock(), options, recovered, InlineWorker(), hooks)
    await StateGroups().restore(recovered, log, StateReplica.apply)
    files = len(log.journal.files)
    for replica in [group.application for group in log.driver.groups.values()]:
        assert isinstance(replica, StateReplica)
        log.checkpoints.write(replica)
        await log.journal.drained()
    log.retention.maybe_remove()
    assert len(log.journal.files) == files > 5
    # Its partition is not open: nothing says that its entries are needed.
    log.retention.start()
    await until(lambda: len(log.journal.files) < files)
    log.abandon()
    recovered.lock.close()


def _unused(*_: object) -> None:
    raise AssertionError("nothing is written to partitions")

"""Removal of journal files that no raft group needs."""

from pathlib import Path

import pytest

from pixy.cluster import journal_retention
from tests.cluster.damage import damaged, work
from tests.cluster.nodes import Cluster, Sizes
from tests.fakes.disk import full
from tests.fakes.waiting import until


async def test_a_deleted_topic_retains_no_journal_file(tmp_path: Path) -> None:
    directory, _, _ = await damaged(tmp_path)
    async with Cluster(directory).running() as cluster:
        await cluster.node.delete_topic("bad")
        bad = {raft_group for file in cluster.node._journal.files for raft_group in file.spans}
        await work(cluster, 150)
        left = {raft_group for file in cluster.node._journal.files for raft_group in file.spans}
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

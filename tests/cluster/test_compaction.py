"""Removal of journal files while a partition is damaged: its entries are relocated, and nothing
else is kept for it.
"""

from pathlib import Path
from typing import Any

import pytest

from pixy.cluster import compaction
from pixy.cluster.compaction import Compaction
from pixy.storage import JournalRecord
from tests.cluster.nodes import Cluster, copy_of
from tests.cluster.staging import piece_of, publish, stage
from tests.fakes.disk import full
from tests.fakes.waiting import until

VALUES = [b"%d" % number for number in range(30)]


async def damaged(tmp_path: Path) -> tuple[Path, Path, bytes]:
    """Directory of a killed node with a truncated segment, that segment, and its former content."""
    async with Cluster(tmp_path / "data").running() as cluster:
        for topic in ("bad", "good"):
            await cluster.create_topic(topic)
        await cluster.append(*VALUES[:20], topic="bad")
        await cluster.sync()
        await cluster.append(*VALUES[20:], topic="bad")
        directory = copy_of(tmp_path / "data", "crashed")
    (segment,) = (directory / "topics" / "bad-0").glob("*.log")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:100])
    return directory, segment, whole


async def work(cluster: Cluster, count: int) -> None:
    for number in range(count):
        await cluster.append(b"x" * 100, topic="good")
        if number % 10 == 0:
            await cluster.sync()
    await cluster.settle()


async def test_entries_of_a_damaged_partition_outlive_their_journal_files(tmp_path: Path) -> None:
    directory, segment, whole = await damaged(tmp_path)
    for _ in range(3):
        async with Cluster(directory).running() as cluster:
            first = cluster.journal_files()[0]
            await work(cluster, 150)
            assert cluster.journal_files()[0] > first
            assert len(cluster.journal_files()) < 12
        assert segment.read_bytes() == whole[:100]
    segment.write_bytes(whole)
    async with Cluster(directory).running() as cluster:
        assert cluster.values("bad") == VALUES
        assert len(cluster.values("good")) == 450
        await cluster.append(b"more", topic="bad")


async def test_relocation_for_a_damaged_partition_is_bounded_by_the_growth_of_the_journal(
    tmp_path: Path,
) -> None:
    directory, _, _ = await damaged(tmp_path)
    async with Cluster(directory).running() as cluster:
        await work(cluster, 300)
        files = cluster.journal_files()
        await work(cluster, 0)
        assert cluster.journal_files() == files


async def test_unwritten_entries_of_an_abandoned_log_outlive_their_journal_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"%d" % number + b"x" * 500 for number in range(60)]
    relocated: list[int] = []
    relocate = Compaction._relocate

    def count_and_relocate(
        compaction: Compaction, oldest: Any, entries: list[JournalRecord], error: BaseException | None
    ) -> None:
        relocated.append(len(entries))
        relocate(compaction, oldest, entries, error)

    monkeypatch.setattr(Compaction, "_relocate", count_and_relocate)
    async with Cluster(tmp_path / "data").running() as cluster:
        for topic in ("bad", "good"):
            await cluster.create_topic(topic)
        await stage(cluster, "stage", piece_of(cluster, *values[:10], topic="bad"))
        (part,) = (cluster.directory / "staging").rglob("*.batches")
        whole = part.read_bytes()
        part.write_bytes(whole[:-1] + b"?")
        await publish(cluster, 0, "stage")
        await cluster.append(*values[10:], topic="bad")
        first = cluster.journal_files()[0]
        await work(cluster, 700)
        assert cluster.journal_files()[0] > first
        assert len(cluster.journal_files()) < 30
        # At most half of what is written to the journal are relocated entries.
        assert 50 <= sum(relocated) <= 250
    part.write_bytes(whole)
    async with Cluster(tmp_path / "data").running() as cluster:
        assert cluster.values("bad") == values
        assert len(cluster.values("good")) == 700


async def test_a_deleted_topic_retains_no_journal_file(tmp_path: Path) -> None:
    directory, _, _ = await damaged(tmp_path)
    async with Cluster(directory).running() as cluster:
        await cluster.node.delete_topic("bad")
        bad = {raft_group for file in cluster.node._journal.files for raft_group in file.last_index}
        await work(cluster, 150)
        left = {raft_group for file in cluster.node._journal.files for raft_group in file.last_index}
        assert bad - left
        assert not (directory / "topics" / "bad-0").exists()


async def test_journal_files_needed_by_one_topic_only_are_removed_with_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path, max_unapplied_bytes=1 << 20).running() as cluster:
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
    monkeypatch.setattr(compaction, "_FULL_DISK_RETRY_S", 0)
    async with Cluster(tmp_path).running() as cluster:
        await cluster.create_topic()
        full(cluster.disk, "create", ".checkpoint.part")
        await cluster.append(*[b"x" * 1000] * 60)
        await cluster.sync()
        files = len(cluster.journal_files())
        assert files > 10
        cluster.disk.heal()
        await until(lambda: len(cluster.journal_files()) < 8)

"""Relocation of a damaged partition's entries: journal files go, and the entries outlive them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.cluster.relocation import Relocation
from pixy.storage import JournalRecord
from tests.cluster.damage import VALUES, damaged, work
from tests.cluster.nodes import Cluster
from tests.cluster.staging import piece_of, publish, stage


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
    append = Relocation._append

    def count_and_append(
        relocation: Relocation,
        then: Callable[[bool], None],
        entries: list[JournalRecord],
        error: BaseException | None,
    ) -> None:
        relocated.append(len(entries))
        append(relocation, then, entries, error)

    monkeypatch.setattr(Relocation, "_append", count_and_append)
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
        assert 50 <= sum(relocated) <= 350
    part.write_bytes(whole)
    async with Cluster(tmp_path / "data").running() as cluster:
        assert cluster.values("bad") == values
        assert len(cluster.values("good")) == 700

"""pixy/backup/restore.py: backups become nodes that start, and half of one becomes none."""

import asyncio
import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pixy.backup import Backup, BackupOptions, BackupProgress, Manifest, Restore, RestoreOptions, open_target
from pixy.backup.restore import Restored
from pixy.backup.target import Target, put
from pixy.cluster import FEATURE_LEVEL
from pixy.cluster.log import RESTORING
from pixy.errors import CorruptData, DataDirectoryError, NotFound
from pixy.records import ProducerBatch, TopicPartition, patch_producer
from tests.backup.logs import LogSource, values_in
from tests.cluster.nodes import Cluster
from tests.fakes.disk import Call, RecordingDisk
from tests.fakes.worker import InlineWorker

pytestmark = pytest.mark.slow

PARTITIONS = 3


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return open_target(str(tmp_path / "target"))


def filled() -> LogSource:
    """Two partitions with records, and one that never had any."""
    source = LogSource(PARTITIONS)
    for number in range(20):
        for partition in (0, 1):
            source.append(partition, b"%d" % number, b"x", epoch=1 + number // 4)
    source.offsets = {0: 7, 1: 40}
    return source


def backed_up(source: LogSource, target: Target) -> Manifest:
    options = BackupOptions(object_bytes=1000, bytes_per_second=0)
    return Backup(source, target, options, lambda: 1, BackupProgress()).run()


def restore(
    target: Target,
    manifest: Manifest,
    directory: Path,
    disk: RecordingDisk | None = None,
    *,
    topics: tuple[str, ...] = (),
    before_ms: int | None = None,
) -> Restored:
    options = RestoreOptions("1.0", 5000, topics, before_ms)
    work = Restore(target, manifest, disk or RecordingDisk(), directory, options, Random(1).randbytes)
    return work.run(InlineWorker)


def contents(cluster: Cluster) -> list[list[bytes]]:
    return [cluster.values(partition=number) for number in range(PARTITIONS)]


def started(directory: Path) -> tuple[list[list[bytes]], dict[int, int]]:
    """Records and offsets of a node that is started there, writes, and starts again."""

    async def run() -> tuple[list[list[bytes]], dict[int, int]]:
        async with Cluster(directory).running() as cluster:
            before = contents(cluster), cluster.committed()
            for number in range(PARTITIONS):
                await cluster.append(b"new", partition=number)
            await cluster.commit(1)
        async with Cluster(directory).running() as cluster:
            assert contents(cluster) == [[*values, b"new"] for values in before[0]]
            assert cluster.committed() == before[1] | {0: 1}
        return before

    return asyncio.run(run())


ALL = [value for number in range(20) for value in (b"%d" % number, b"x")]


def test_a_node_starts_with_every_record_and_offset(target: Target, tmp_path: Path) -> None:
    manifest = backed_up(filled(), target)
    restored = restore(target, manifest, tmp_path / "node")
    assert (restored.topics, restored.partitions, restored.records, restored.groups) == (1, 3, 80, 1)
    assert restored.cluster_id != manifest.cluster_id
    assert started(tmp_path / "node") == ([ALL, ALL, []], {0: 7, 1: 40})


def test_a_log_may_begin_within_a_batch(target: Target, tmp_path: Path) -> None:
    source = filled()
    source.remove(0, 13)
    source.remove(1, 40)
    restored = restore(target, backed_up(source, target), tmp_path / "node")
    assert restored.records == 27

    async def run() -> None:
        async with Cluster(tmp_path / "node").running() as cluster:
            replicas = [cluster.node.partition(TopicPartition("topic", number)) for number in (0, 1)]
            first, second = [replica.log for replica in replicas if replica is not None]
            assert (first.begin_offset, first.end_offset) == (13, 40)
            assert (second.begin_offset, second.end_offset) == (40, 40)
            assert values_in(first.read(13, 10_000).batches) == ALL[12:]
            await cluster.append(b"new", partition=1)
            chunk = second.read_memory(40, 1000)
            assert chunk is not None
            assert values_in(chunk.batches) == [b"new"]

    asyncio.run(run())


def test_producers_are_known_by_their_records_and_no_id_comes_again(target: Target, tmp_path: Path) -> None:
    source = filled()
    for number in (3, 4):
        batch = bytearray(source.logs[0][number])
        patch_producer(batch, 5, 0, 2 * (number - 3))
        source.logs[0][number] = bytes(batch)
    restore(target, backed_up(source, target), tmp_path / "node")

    async def run() -> None:
        for _ in range(2):
            async with Cluster(tmp_path / "node").running() as cluster:
                assert await cluster.node.commands.allocate_producer_ids(1) >= 2**31
                replica = cluster.node.partition(TopicPartition("topic", 0))
                assert replica is not None
                assert replica.producers is not None
                judged = [replica.producers.judge([ProducerBatch(0, 1, 5, 0, each)]) for each in (0, 2)]
                assert judged == [6, 8]
                assert replica.producers.judge([ProducerBatch(0, 0, 9, 0, 70)]) is None

    asyncio.run(run())


@pytest.mark.parametrize("before_ms", [0, 1000, 1001, 1012, 1013, 1039, 1040, 2000])
def test_a_time_cuts_records_and_offsets(target: Target, tmp_path: Path, before_ms: int) -> None:
    manifest = backed_up(filled(), target)
    restore(target, manifest, tmp_path / "node", before_ms=before_ms)
    count = min(40, max(0, before_ms - 1000))
    values = ALL[:count]
    assert started(tmp_path / "node") == ([values, values, []], {0: min(7, count), 1: count})


def test_offsets_beyond_the_records_are_cut(target: Target, tmp_path: Path) -> None:
    source = filled()
    source.offsets = {0: 1000, 2: 5}
    restore(target, backed_up(source, target), tmp_path / "node")
    assert started(tmp_path / "node")[1] == {0: 40, 2: 0}


def test_only_an_empty_directory_is_taken(target: Target, tmp_path: Path) -> None:
    manifest = backed_up(filled(), target)
    node = tmp_path / "node"
    node.mkdir()
    restore(target, manifest, node)
    with pytest.raises(DataDirectoryError, match="is not empty"):
        restore(target, manifest, node)
    assert started(node)[0][0] == ALL


def test_a_topic_alone_and_unknown_ones(target: Target, tmp_path: Path) -> None:
    manifest = backed_up(filled(), target)
    with pytest.raises(NotFound, match="has no topic other"):
        restore(target, manifest, tmp_path / "node", topics=("other",))
    assert not (tmp_path / "node").exists()
    assert restore(target, manifest, tmp_path / "node", topics=("topic",)).topics == 1


def test_damage_of_any_object_ends_it_and_no_start_takes_the_rest(target: Target, tmp_path: Path) -> None:
    manifest = backed_up(filled(), target)
    node = tmp_path / "node"
    for path in manifest.paths():
        data = target.get(path)
        put(target, path, [data[:-1] + bytes([data[-1] ^ 1])])
        with pytest.raises(CorruptData):
            restore(target, manifest, node)
        if (node / "identity").exists():
            with pytest.raises(DataDirectoryError, match="run `pixy restore` once more"):
                started(node)
        put(target, path, [data])
    restore(target, manifest, node)
    assert started(node)[0] == [ALL, ALL, []]


class EndedError(Exception):
    """The process has ended."""


def test_a_crash_at_any_call_of_the_disk_leaves_no_node_that_starts(target: Target, tmp_path: Path) -> None:
    manifest = backed_up(filled(), target)
    whole = RecordingDisk()
    restore(target, manifest, tmp_path / "whole", whole)
    calls = len(whole.calls)
    for last in [*range(1, calls - 5, 5), *range(calls - 5, calls)]:
        node, disk = tmp_path / f"node-{last}", RecordingDisk()
        left = last

        def ends(_: Call) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise EndedError

        disk.before = ends
        with suppress(EndedError, DataDirectoryError):  # the journal reports what its thread meets
            restore(target, manifest, node, disk)
        names = {path.name for path in node.iterdir()} if node.exists() else set()
        if RESTORING in names:
            with pytest.raises(DataDirectoryError, match="run `pixy restore` once more"):
                started(node)
        if RESTORING in names or not names:
            restore(target, manifest, node)
        assert started(node)[0] == [ALL, ALL, []]


def test_everything_is_durable_before_the_marker_goes_and_the_marker_before_anything_else(
    target: Target, tmp_path: Path
) -> None:
    disk = RecordingDisk()
    restore(target, backed_up(filled(), target), tmp_path / "node", disk)
    begun, ended = disk.calls.index(Call("create", RESTORING)), disk.calls.index(Call("unlink", RESTORING))
    at_the_node = Call("sync_directory", "node")
    assert disk.calls[begun + 1] == at_the_node
    assert disk.calls[ended + 1 :] == [at_the_node]
    last = {(call.what, call.name): at for at, call in enumerate(disk.calls[:ended])}
    written = {name: at for (what, name), at in last.items() if what == "write"}
    assert any(name.endswith(".log") for name in written)
    assert [name for name, at in written.items() if last.get(("sync", name), -1) < at] == []
    made = [at for (what, name), at in last.items() if what == "make_directory" and name.startswith("topic-")]
    assert len(made) == 2  # those with records
    assert last["sync_directory", "topics"] > max(made)


def test_a_full_disk_is_told_and_leaves_the_marker(target: Target, tmp_path: Path) -> None:
    manifest = backed_up(filled(), target)
    disk = RecordingDisk()
    disk.fail("write", ".log", errno.ENOSPC)
    with pytest.raises(DataDirectoryError, match="No space left"):
        restore(target, manifest, tmp_path / "node", disk)
    assert (tmp_path / "node" / RESTORING).exists()
    restore(target, manifest, tmp_path / "node")
    assert started(tmp_path / "node")[0] == [ALL, ALL, []]


def test_a_backup_of_a_newer_release_is_refused(target: Target, tmp_path: Path) -> None:
    manifest = replace(backed_up(filled(), target), feature_level=FEATURE_LEVEL + 1, version="9.9")
    with pytest.raises(DataDirectoryError, match=r"restore it with pixy 9\.9"):
        restore(target, manifest, tmp_path / "node")


def test_a_topic_that_is_no_name_is_no_directory(target: Target, tmp_path: Path) -> None:
    manifest = backed_up(filled(), target)
    topic = replace(manifest.topics[0], topic="../../topic")
    with pytest.raises(CorruptData, match="topic name"):
        restore(target, replace(manifest, topics=(topic,)), tmp_path / "node")
    assert not (tmp_path / "node").exists()

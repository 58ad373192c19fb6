"""Topics with many partitions: the work of their creation, growth and deletion per turn of the
event loop, and per job of a thread.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pixy.backend import EmbeddedBackend
from pixy.cluster.publications import lone_publisher as publisher_module
from pixy.records import OffsetCommit, OffsetRange, TopicPartition
from pixy.staging import Sink, expiry
from pixy.storage.disk.removal import FILES_PER_STEP
from pixy.storage.disk.worker import Done
from tests.cluster.nodes import Cluster, Sizes, copy_of
from tests.fakes.disk import Call, RecordingDisk
from tests.fakes.waiting import until
from tests.fakes.worker import InlineWorker

pytestmark = pytest.mark.slow

PER_ITERATION_MAX = 200
MANY = 4000
"""Far more than an iteration of the event loop does."""
SEGMENTS = 130
"""More than one step removes."""


class Jobs:
    """Disk operations of each job of each thread."""

    def __init__(self) -> None:
        self.disk = RecordingDisk()
        self.of: dict[str, list[list[Call]]] = {}

    def worker(self, name: str, *, background: bool) -> InlineWorker:
        jobs = self.of.setdefault(name, [])

        class Watched(InlineWorker):
            def submit(watched, work: Callable[[], Any], done: Done) -> None:
                def run() -> Any:
                    before = len(self.disk.calls)
                    try:
                        return work()
                    finally:
                        jobs.append(self.disk.calls[before:])

                super().submit(run, done)

        return Watched(name, background=background)

    def clear(self) -> None:
        for jobs in self.of.values():
            jobs.clear()

    def did(self, thread: str, what: str) -> list[int]:
        """Number of operations of each job of a thread."""
        return [sum(call.what == what for call in job) for job in self.of[thread]]


async def filled(cluster: Cluster, partitions: int, topic: str = "topic") -> None:
    await cluster.create_topic(topic, partitions)
    for number in range(partitions):
        cluster.append_nowait(b"value", topic, number)
    await cluster.settle()
    await cluster.sync()


def directories(cluster: Cluster) -> list[str]:
    return sorted(path.name for path in (cluster.directory / "topics").iterdir())


def is_tidy(cluster: Cluster) -> bool:
    """True when nothing of a deletion is left."""
    return not any(name.endswith("-deleted") for name in directories(cluster))


async def counts(count: Callable[[], int], end: int) -> list[int]:
    """Values of a counter in each iteration of the loop, until it reaches a target."""
    counted = [count()]
    while counted[-1] != end:
        await asyncio.sleep(0)
        counted.append(count())
    return counted


# --- deletion -------------------------------------------------------------------------------------


async def test_a_deleted_topic_is_removed_in_pieces_off_the_writer_thread(tmp_path: Path) -> None:
    jobs = Jobs()
    async with Cluster(tmp_path / "data", disk=jobs.disk, worker=jobs.worker).running() as cluster:
        await filled(cluster, SEGMENTS)
        await filled(cluster, 1, "kept")
        jobs.clear()
        await cluster.node.commands.delete_topic("topic")
        await until(lambda: directories(cluster) == ["kept-0"])
        await cluster.append(b"more", topic="kept")
        await cluster.sync()
    assert sum(jobs.did("pixy-writer", "unlink")) == sum(jobs.did("pixy-writer", "sync_directory")) == 0
    assert max(jobs.did("pixy-writer", "rename")) <= 100
    assert sum(jobs.did("pixy-writer", "rename")) == SEGMENTS
    assert max(jobs.did("pixy-upkeep", "unlink")) <= FILES_PER_STEP
    assert sum(jobs.did("pixy-upkeep", "remove_directory")) == SEGMENTS
    assert sum(jobs.did("pixy-upkeep", "sync_directory")) <= 3


async def test_segments_are_removed_off_the_writer_thread(tmp_path: Path) -> None:
    jobs = Jobs()
    async with Cluster(tmp_path / "data", disk=jobs.disk, worker=jobs.worker).running() as cluster:
        await cluster.create_topic("topic", 1)
        await cluster.append(*[bytes(1500)] * 100)
        await cluster.sync()
        await cluster.node.commands.alter_topic("topic", None, {"retention_bytes": "1"})
        jobs.clear()
        cluster.node._retention._check()
        await cluster.settle()
        await cluster.sync()
        await until(lambda: len(list((cluster.directory / "topics" / "topic-0").iterdir())) == 2)
    assert sum(jobs.did("pixy-writer", "unlink")) == 0
    assert sum(jobs.did("pixy-upkeep", "unlink")) == 99
    assert max(jobs.did("pixy-upkeep", "unlink")) <= FILES_PER_STEP


async def test_a_recreated_topic_is_written_while_the_old_one_is_removed(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        for round in range(2):
            await filled(cluster, SEGMENTS)
            deleting = asyncio.ensure_future(cluster.node.commands.delete_topic("topic"))
            creating = asyncio.ensure_future(cluster.node.commands.create_topic("topic", SEGMENTS, {}))
            await asyncio.gather(deleting, creating)
            for number in reversed(range(SEGMENTS)):
                cluster.append_nowait(b"new %d" % round, "topic", number)
            await cluster.settle()
            await cluster.sync()
            assert all(cluster.values(partition=number) == [b"new %d" % round] for number in range(SEGMENTS))
            copy = copy_of(cluster.directory, f"killed {round}")
            async with Cluster(copy).running() as again:
                assert all(
                    again.values(partition=number) == [b"new %d" % round] for number in range(SEGMENTS)
                )
                await until(partial(is_tidy, again))
            await cluster.node.commands.delete_topic("topic")
        await until(lambda: directories(cluster) == [])


@pytest.mark.parametrize("turns", [0, 3, 20])
async def test_a_deletion_killed_anywhere_is_finished_in_the_background_of_the_next_start(
    tmp_path: Path, turns: int
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await filled(cluster, SEGMENTS)
        await cluster.node.commands.delete_topic("topic")
        for _ in range(turns):
            await asyncio.sleep(0)
        copy = copy_of(cluster.directory, "killed")
    jobs = Jobs()
    async with Cluster(copy, disk=jobs.disk, worker=jobs.worker).running() as again:
        assert again.node.metadata.topics == {}
        # The start itself has removed nothing.
        assert sum(jobs.did("pixy-files", "unlink")) == sum(jobs.did("pixy-files", "remove_directory")) == 0
        await until(lambda: directories(again) == [])
    assert sum(jobs.did("pixy-upkeep", "sync_directory")) <= 1


@pytest.mark.no_debug
async def test_each_turn_of_a_deletion_drops_few_partitions(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", Sizes(file_bytes=1 << 20)).running() as cluster:
        await cluster.create_topic("topic", MANY)
        groups = cluster.node._log.driver.groups
        state_groups = len(groups)
        for number in range(MANY):
            replica = cluster.node.partition(TopicPartition("topic", number))
            assert replica is not None
            cluster.node.partitions.group_of(replica)
        assert len(groups) == MANY + state_groups
        deleting = asyncio.ensure_future(cluster.node.commands.delete_topic("topic"))
        counted = await counts(lambda: len(groups), state_groups)
        assert max(before - after for before, after in pairwise(counted)) <= PER_ITERATION_MAX
        await deleting


# --- growth ---------------------------------------------------------------------------------------


@pytest.mark.no_debug
async def test_a_growth_makes_no_partitions_and_all_appear_at_once(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", Sizes(file_bytes=1 << 20)).running() as cluster:
        backend = EmbeddedBackend(cluster.node)
        await cluster.create_topic("topic", 1)
        described = await backend.alter_topic("topic", partitions=MANY)
        assert len(described.partitions) == MANY
        assert list(cluster.node.partitions) == [], "each is made at its first use"
        last = TopicPartition("topic", MANY - 1)
        await backend.commit_offsets("group", {last: OffsetCommit(0, "")})
        await cluster.append(b"last", partition=MANY - 1)
        assert cluster.values(partition=MANY - 1) == [b"last"]
        assert len(list(cluster.node.partitions)) == 1
        copy = copy_of(cluster.directory, "killed")
    async with Cluster(copy, Sizes(file_bytes=1 << 20)).running() as again:
        assert again.values(partition=MANY - 1) == [b"last"]


@pytest.mark.no_debug
async def test_requests_to_all_partitions_are_answered_over_many_turns(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", Sizes(file_bytes=1 << 20)).running() as cluster:
        backend = EmbeddedBackend(cluster.node)
        await cluster.create_topic("topic", MANY)
        ranges = asyncio.ensure_future(backend.offset_ranges("topic"))
        counted = [0]
        while not ranges.done():
            await asyncio.sleep(0)
            counted.append(len(list(cluster.node.partitions)))
        assert max(after - before for before, after in pairwise(counted)) <= 2 * PER_ITERATION_MAX
        assert await ranges == dict.fromkeys(range(MANY), OffsetRange(0, 0))


async def test_many_partitions_are_described_over_many_turns_before_they_appear(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        backend = EmbeddedBackend(cluster.node)
        creating = asyncio.ensure_future(backend.create_topic("topic", MANY))
        counted = await counts(lambda: len(backend._descriptions._whole), MANY)
        assert max(after - before for before, after in pairwise(counted)) <= 1000
        assert backend.topic("topic") is None
        assert [each.partition for each in (await creating).partitions] == list(range(MANY))


async def test_a_topic_deleted_while_it_grows_leaves_nothing(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        groups = cluster.node._log.driver.groups
        before = set(groups)
        creating = asyncio.ensure_future(cluster.node.commands.create_topic("topic", 1000, {}))
        deleting = asyncio.ensure_future(cluster.node.commands.delete_topic("topic"))
        await asyncio.gather(creating, deleting)
        await cluster.settle()
        assert set(groups) == before
        assert cluster.node.partition(TopicPartition("topic", 0)) is None
        await cluster.create_topic("topic", 2)
        await cluster.append(b"new", partition=1)
        assert cluster.values(partition=1) == [b"new"]


# --- sinks ----------------------------------------------------------------------------------------


async def test_a_turn_checks_few_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "_SINKS_PER_ITERATION", 10)
    monkeypatch.setattr(expiry, "_SINKS_PER_ITERATION", 10)
    async with Cluster(tmp_path / "data").running() as cluster:
        sinks = cluster.node.state_groups.sinks
        looked = 0
        is_inactive = sinks.is_inactive_since

        def watched(sink_id: str, before_ms: int) -> bool:
            nonlocal looked
            looked += 1
            return is_inactive(sink_id, before_ms)

        monkeypatch.setattr(sinks, "is_inactive_since", watched)
        for number in range(100):
            sinks.sinks[f"sink-{number}"] = Sink("query", 1, cluster.node.now_ms())
        cluster.node.publisher.expire(cluster.node.now_ms())
        counted = await counts(lambda: looked, 100)
        assert max(after - before for before, after in pairwise([0, *counted])) <= 10

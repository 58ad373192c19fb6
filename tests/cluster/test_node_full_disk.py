"""A node with a full disk: accepted entries are written, consumer groups continue, retention makes
room, messages wait.
"""

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pixy.cluster.log import disk_reserve as reserve_module
from pixy.cluster.log.node_log import NodeLog
from pixy.cluster.status.status_problems import problems
from pixy.errors import StorageFault, Unavailable
from pixy.storage.journal import journal as journal_module
from tests.cluster.nodes import Cluster, Sizes, prompt_writer
from tests.cluster.staging import piece_of, stage
from tests.fakes.disk import Call, RecordingDisk, full
from tests.fakes.waiting import until

RESERVE = 1 << 16
PATIENCE = 10


class SmallDisk(RecordingDisk):
    """A disk that, while full, has room for one kind of file only after the reserve was removed,
    and never for the reserve.
    """

    def __init__(self, directory: Path, what: str, ending: str) -> None:
        super().__init__()
        self.full = False
        self._reserve = directory / "reserve"
        self._what = what
        self._ending = ending
        self.before = self._check

    def _check(self, call: Call) -> None:
        needs = call.what == self._what and call.name.endswith(self._ending)
        if self.full and (
            (needs and self._reserve.exists()) or (call.what, call.name) == ("allocate", "reserve")
        ):
            full(self, call.what, "")
            try:
                self.before(call)
            finally:
                self.before = self._check


@pytest.fixture(autouse=True)
def constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve_module, "_RETRY_S", 0)
    monkeypatch.setattr(journal_module, "_FULL_DISK_RETRY_S", 0)
    monkeypatch.setattr(Cluster, "pace", replace(Cluster.pace, full_disk_retry_s=0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "ending"),
    [("allocate", ".journal"), ("create", ".log"), ("write", ".log"), ("write", ".checkpoint.part")],
)
async def test_without_room_the_reserve_is_released_and_accepted_data_is_written(
    tmp_path: Path, what: str, ending: str
) -> None:
    directory = tmp_path / "data"
    disk = SmallDisk(directory, what, ending)
    cluster = Cluster(directory, Sizes(reserve_bytes=RESERVE, checkpoint_entries=5), disk=disk)
    async with cluster.running():
        await cluster.create_topic()
        await cluster.settle()
        assert (directory / "reserve").stat().st_size == RESERVE
        disk.full = True
        async with asyncio.timeout(PATIENCE):
            accepted = cluster.append_nowait(b"x" * 5000)
            for number in range(6):
                cluster.node._log.journal.blocked = (
                    None  # a commit that arrives while the journal waits is refused, temporarily
                )
                await cluster.commit(number)
            await cluster.sync()
            await until(lambda: cluster.node.blocked is not None and not (directory / "reserve").exists())
            assert "the disk is full" in str(cluster.node.blocked)
            assert await accepted == 0
            await cluster.commit(7)
            assert cluster.committed() == {0: 7}
            disk.full = False
            await until(lambda: cluster.node.blocked is None)
            assert (directory / "reserve").stat().st_size == RESERVE
    async with Cluster(directory).running() as again:
        assert (again.values(), again.committed()) == ([b"x" * 5000], {0: 7})


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize(
    ("what", "ending"),
    [
        ("sync", ".journal"),
        ("sync_directory", "journal"),
        ("sync", "identity.part"),
        ("sync_directory", "topic-0"),
        ("sync", ".log"),
        ("sync", ".checkpoint.part"),
        ("sync_directory", "metadata"),
    ],
)
async def test_a_sync_that_fails_for_lack_of_room_is_not_retried(
    tmp_path: Path, what: str, ending: str, error: int
) -> None:
    disk = RecordingDisk()
    cluster = Cluster(tmp_path / "data", Sizes(checkpoint_entries=5, file_bytes=3000), disk=disk)
    await cluster.node.start()
    await cluster.create_topic()
    failed: list[Call] = []

    def fail(call: Call) -> None:
        if call.what == what and call.name.endswith(ending):
            failed.append(call)
            raise OSError(error, os.strerror(error), call.name)

    disk.before = fail
    with prompt_writer():
        for _ in range(6):
            cluster.append_nowait(b"x" * 1000)
        more = [asyncio.create_task(cluster.create_topic(f"more-{number}")) for number in range(6)]
        await until(lambda: bool(cluster.faults))
        assert (len(failed), len(cluster.faults)) == (1, 1)
        await cluster.node.stop()
    for task in more:
        task.cancel()
    await asyncio.wait(more)


@pytest.mark.parametrize("ending", [".batches", "stage.part"])
async def test_a_sync_of_a_stage_without_room_is_a_storage_fault(tmp_path: Path, ending: str) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        full(cluster.disk, "sync", ending)
        with pytest.raises(StorageFault, match="cannot be synced"):
            await stage(cluster, "a", piece_of(cluster, b"1"))


async def test_while_messages_wait_for_segments_commits_pass_and_a_stop_ends(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    cluster = Cluster(directory, Sizes(max_unapplied_bytes=300))
    async with cluster.running():
        await cluster.create_topic()
        full(cluster.disk, "create", ".log")
        async with asyncio.timeout(PATIENCE):
            accepted = [cluster.append_nowait(b"x" * 400)]
            await until(lambda: cluster.node._log.writer.blocked is not None)
            accepted.append(cluster.append_nowait(b"y"))
            await cluster.commit(1)
            assert not accepted[1].done()
            await cluster.node.stop()
        assert [each.result() for each in accepted] == [0, 1]
    async with Cluster(directory).running() as again:
        assert again.values() == [b"x" * 400, b"y"]
        assert again.committed() == {0: 1}


@pytest.mark.slow
async def test_retention_continues_to_make_room(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    disk = SmallDisk(directory, "create", ".log")
    cluster = Cluster(directory, Sizes(reserve_bytes=RESERVE), disk=disk, storage={"retention_bytes": 1})
    async with cluster.running():
        await cluster.create_topic()
        await cluster.settle()
        disk.full = True
        for _ in range(5):
            await cluster.append(b"x" * 1500)
        await cluster.sync()
        assert cluster.node.blocked is not None
        cluster.node._retention.stop()
        cluster.node._retention._check()
        await cluster.settle()
        await cluster.sync()
        assert [path.name for path in (directory / "topics" / "topic-0").glob("*.log")] == [f"{4:020d}.log"]
        disk.full = False
        await until(lambda: cluster.node.blocked is None)


async def test_offsets_in_a_deleted_topic_are_forgotten_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await cluster.commit(1)
        deleted = asyncio.ensure_future(cluster.node.commands.delete_topic("topic"))
        await asyncio.sleep(0)  # it is proposed
        with monkeypatch.context() as full_disk:
            full_disk.setattr(NodeLog, "stalled", Unavailable("the disk is full"))
            await deleted
            await cluster.settle()
        assert cluster.node.state_groups.offsets_of("group").topic_ids()
        cluster.node._retention.stop()
        cluster.node._retention._check()
        await cluster.settle()
        assert not cluster.node.state_groups.offsets_of("group").topic_ids()


async def test_a_start_on_a_full_disk_refuses_messages_until_there_is_room(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    async with Cluster(directory).running() as cluster:
        await cluster.create_topic()
        await cluster.append(b"value")
    disk = SmallDisk(directory, "create", ".log")
    disk.full = True
    async with Cluster(directory, Sizes(reserve_bytes=RESERVE), disk=disk).running() as again:
        await until(lambda: again.node.blocked is not None)
        assert problems(await again.node.status()) == (
            f"node 1: it writes no messages: the disk is full: the rest of {RESERVE} bytes (storage.reserve_bytes) is "
            "reserved for offset commits",
        )
        assert again.values() == [b"value"]
        await again.commit(1)
        disk.full = False
        await until(lambda: again.node.blocked is None)
        await again.append(b"next")


async def test_a_stopped_node_keeps_its_reserve_and_a_broken_one_retries_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    async with Cluster(directory, Sizes(reserve_bytes=RESERVE)).running() as cluster:
        await cluster.settle()
    assert (directory / "reserve").stat().st_size == RESERVE
    async with Cluster(directory, Sizes(reserve_bytes=0)).running() as cluster:
        await cluster.settle()
    assert not (directory / "reserve").exists()


def no_room(call: Call) -> None:
    """Refuse what takes space, for anything."""
    if call.what in ("create", "allocate", "make_directory", "rename", "link"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.name)


async def test_topics_are_deleted_when_the_reserve_was_taken_too(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    sizes = Sizes(file_bytes=1 << 16)
    async with Cluster(directory, sizes).running() as cluster:
        for name in ("topic", "old", "older"):
            await cluster.create_topic(name)
            await cluster.append(b"value", topic=name)
        await cluster.sync()
        cluster.disk.before = no_room
        waiting = cluster.append_nowait(b"x" * 2000)
        while cluster.node.blocked is None:
            await asyncio.wait([waiting], timeout=0)
            waiting = cluster.append_nowait(b"x" * 2000) if waiting.done() else waiting
        with pytest.raises(Unavailable, match="the disk is full"):
            await cluster.commit(1)
        async with asyncio.timeout(PATIENCE):
            for name in ("old", "older"):
                await cluster.node.commands.delete_topic(name)
            assert await waiting > 0
            await until(lambda: [path.name for path in (directory / "topics").iterdir()] == ["topic-0"])
            cluster.disk.heal()
            await cluster.append(b"next")
        written = cluster.values()
    async with Cluster(directory, sizes).running() as again:
        assert sorted(again.node.metadata.topics) == ["topic"]
        assert again.values() == written


async def test_a_deletion_that_finds_no_room_is_refused_and_says_how_much_to_make(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", Sizes(file_bytes=1 << 12)).running() as cluster:
        await cluster.create_topic()
        cluster.disk.before = no_room
        cluster.append_nowait(b"x" * 5000)
        await until(lambda: cluster.node.blocked is not None)
        with pytest.raises(Unavailable, match=r"the disk is full: .*make room for \d+ bytes by other means"):
            await cluster.node.commands.delete_topic("topic")
        cluster.disk.heal()
        await until(lambda: cluster.node.blocked is None)
        assert list(cluster.node.metadata.topics) == ["topic"]
        await cluster.node.commands.delete_topic("topic")

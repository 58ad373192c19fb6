"""A node: start, restarts, kills, removal of journal files, checkpoints, faults, a full disk."""

import asyncio
import errno
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster import bootstrap
from pixy.cluster.log.recovery import RecoveredNode, read_directory
from pixy.errors import (
    CorruptData,
    DataDirectoryError,
    InvalidArgument,
    InvalidTopic,
    TopicExists,
    Unavailable,
)
from pixy.proto.state_pb2 import HardState
from pixy.records import TopicPartition, read_header
from pixy.storage import RealDisk, RecoveredJournal, recover_journal
from pixy.storage.journal import journal as journal_module
from tests.cluster.nodes import Cluster, Sizes, copy_of, prompt_writer
from tests.fakes.disk import RecordingDisk, full
from tests.fakes.waiting import until

PATIENCE = 10


def journal_of(cluster: Cluster) -> RecoveredJournal:
    """Contents of the journal, recovered from a copy of it."""
    copy = copy_of(cluster.directory, cluster.directory.name + "-journal")
    identity = cluster.node._log.journal._owner
    try:
        return recover_journal(RealDisk(), copy / "journal", identity)
    finally:
        shutil.rmtree(copy)


def hard_states(journal: RecoveredJournal) -> dict[int, HardState]:
    groups = journal.groups.items()
    return {number: HardState.FromString(group.hard_state) for number, group in groups if group.hard_state}


# --- the first start ------------------------------------------------------------------------------


async def test_the_first_use_of_a_group_writes_its_hard_state_and_configuration(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        await cluster.settle()
        assert (tmp_path / "data" / "identity").exists()
        assert (cluster.node.node_id, cluster.node.metadata.groups_count) == (1, 8)
        assert set(hard_states(journal_of(cluster))) == {1}
        await cluster.append(b"value", partition=1)
        await cluster.commit(1)
        states = hard_states(journal_of(cluster))
        assert set(states) == {1, 2, 1001}
        for state in states.values():
            assert (state.term, state.vote, list(state.voters)) == (1, 1, [1])


async def test_only_created_files_topics_and_partitions_exist(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        assert sorted(path.name for path in cluster.directory.iterdir()) == ["identity", "journal", "lock"]
        await cluster.create_topic("topic", 2)
        with pytest.raises(TopicExists):
            await cluster.create_topic("topic")
        with pytest.raises(InvalidTopic):
            await cluster.create_topic("a/b")
        with pytest.raises(InvalidArgument):
            await cluster.create_topic("none", 0)
        assert list(cluster.node.metadata.topics) == ["topic"]
        assert cluster.node.partition(TopicPartition("topic", 2)) is None


async def test_stop_without_start_and_a_second_stop_do_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data")
    await cluster.node.stop()
    async with cluster.running():
        pass
    await cluster.node.stop()


# --- restarts -------------------------------------------------------------------------------------


async def fill(cluster: Cluster) -> None:
    await cluster.create_topic("topic", 2)
    await cluster.append(*(b"%d" % number for number in range(20)))
    await cluster.append(b"other", partition=1)
    await cluster.commit(7)
    await cluster.commit(9, group="second")


def check_filled(cluster: Cluster) -> None:
    assert cluster.values() == [b"%d" % number for number in range(20)]
    assert cluster.values(partition=1) == [b"other"]
    assert (cluster.committed(), cluster.committed("second")) == ({0: 7}, {0: 9})


async def test_a_restart_finds_everything(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await fill(cluster)
        topic = cluster.node.metadata.topics["topic"]
    async with Cluster(tmp_path / "data", seed=2).running() as again:
        check_filled(again)
        assert again.node.metadata.topics["topic"] == topic
        assert again.disk.did("create", "identity.part") == []


@pytest.mark.slow
@pytest.mark.parametrize("synced", [False, True])
async def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path, synced: bool) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await fill(cluster)
        if synced:
            await cluster.sync()
            await cluster.append(b"tail", partition=1)
        copy = copy_of(cluster.directory, "killed")
    async with Cluster(copy).running() as again:
        if synced:
            assert again.values(partition=1).pop() == b"tail"
        else:
            check_filled(again)
        await again.append(b"more")
        assert again.values()[19:] == [b"19", b"more"]


@pytest.mark.slow
async def test_many_restarts_change_nothing(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await fill(cluster)
    for turn in range(15):
        async with Cluster(tmp_path / "data", Sizes(checkpoint_entries=5)).running() as again:
            check_filled(again)
            await again.commit(7 if turn % 2 else 8)
            await again.commit(7)
            if turn % 3 == 0:
                await again.sync()


async def test_a_topic_whose_creation_was_not_answered_can_be_used_after_a_crash(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.settle()
        creating = asyncio.create_task(cluster.create_topic("topic", 3))
        await until(lambda: "topic" in cluster.node.metadata.topics)
        copy = copy_of(cluster.directory, "killed")
        await creating
    async with Cluster(copy).running() as again:
        await again.append(b"value", partition=2)
        assert again.values(partition=2) == [b"value"]


@pytest.mark.slow
async def test_each_start_raises_incarnation_and_the_terms_of_used_groups(tmp_path: Path) -> None:
    for start in range(1, 4):
        async with Cluster(tmp_path / "data").running() as cluster:
            if start == 1:
                await cluster.create_topic()
            await cluster.append(b"%d" % start)
            journal = journal_of(cluster)
            assert journal.incarnation == start
            assert hard_states(journal)[1000].term == start
            replica = cluster.node.partition(TopicPartition("topic", 0))
            assert replica is not None
            [batch] = (replica.log.read_memory(start - 1, 1) or replica.log.read(start - 1, 1)).batches
            assert read_header(batch).leader_epoch == start


@pytest.mark.slow
async def test_a_clock_that_steps_backwards_changes_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data", Sizes(checkpoint_entries=2))
    async with cluster.running():
        await cluster.create_topic()
        for number in range(8):
            await cluster.append(b"%d" % number)
            await cluster.commit(number)
            cluster.clock.step_wall(-3_600_000)
        await cluster.settle()
    async with Cluster(tmp_path / "data").running() as again:
        assert again.values() == [b"%d" % number for number in range(8)]
        assert again.committed() == {0: 7}


# --- the directory --------------------------------------------------------------------------------


async def test_a_data_directory_in_use_is_refused_and_the_owner_undisturbed(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        other = Cluster(tmp_path / "data")
        with pytest.raises(DataDirectoryError, match="is in use by another process"):
            await other.node.start()
        await other.node.stop()
        await cluster.create_topic()
    async with Cluster(tmp_path / "data").running() as again:
        assert "topic" in again.node.metadata.topics


async def test_a_data_directory_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirectoryError, match=r"data directory .*file/data cannot be used"):
        await Cluster(tmp_path / "file" / "data").node.start()


async def test_the_journal_of_another_cluster_is_refused_and_the_directory_is_released(
    tmp_path: Path,
) -> None:
    for seed in (1, 2):
        async with Cluster(tmp_path / str(seed), seed=seed).running():
            pass
    shutil.copy(tmp_path / "1" / "identity", tmp_path / "2" / "identity")
    for _ in range(2):
        with pytest.raises(DataDirectoryError, match="belongs to node 1 of cluster"):
            await Cluster(tmp_path / "2").node.start()


async def test_a_missing_journal_is_refused_and_the_segments_stay(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await fill(cluster)
        await cluster.sync()
    shutil.rmtree(tmp_path / "data" / "journal")
    segments = sorted((tmp_path / "data" / "topics").rglob("*.log"))
    with pytest.raises(DataDirectoryError, match=r"has no journal files, although .* has 'topics'"):
        await Cluster(tmp_path / "data").node.start()
    assert sorted((tmp_path / "data" / "topics").rglob("*.log")) == segments


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoint_entries", "reason"),
    [
        (1, "checkpoint of metadata goes up to entry 3, but the journal ends at entry 0"),
        (100, "the journal has records of raft group 1000, but the entry that created it is missing"),
    ],
)
async def test_missing_entries_are_reported_before_anything_is_truncated(
    tmp_path: Path, checkpoint_entries: int, reason: str
) -> None:
    async with Cluster(
        tmp_path / "data", Sizes(file_bytes=1500, checkpoint_entries=checkpoint_entries)
    ).running() as cluster:
        await fill(cluster)
        cluster.node._log.writer._begin()
        await cluster.settle()
        assert sorted((cluster.directory / "topics").rglob("*.log"))
        copy = copy_of(cluster.directory, "killed")
        oldest = cluster.journal_files()[0]
    (copy / "journal" / oldest).unlink()
    before = {path: path.read_bytes() for path in sorted((copy / "topics").rglob("*.log"))}
    for _ in range(2):
        with pytest.raises(CorruptData, match=reason):
            await Cluster(copy).node.start()
    assert {path: path.read_bytes() for path in sorted((copy / "topics").rglob("*.log"))} == before


@pytest.mark.slow
async def test_missing_entries_of_a_partition_are_reported_before_anything_is_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await fill(cluster)
        cluster.node._log.writer._begin()
        await cluster.settle()
        copy = copy_of(cluster.directory, "killed")

    def recover_and_lose(*arguments: Any) -> RecoveredNode:
        recovered = read_directory(*arguments)
        del recovered.journal.groups[1000].entries[0]
        return recovered

    monkeypatch.setattr(bootstrap, "read_directory", recover_and_lose)
    before = {path: path.read_bytes() for path in sorted((copy / "topics").rglob("*.log"))}
    assert before
    reason = "raft group 1000 is applied up to entry 0, but the journal goes on with entry 2"
    with pytest.raises(CorruptData, match=reason):
        await Cluster(copy).node.start()
    assert {path: path.read_bytes() for path in before} == before


async def test_a_failed_start_leaves_nothing_running(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await fill(cluster)
        await cluster.sync()
    stray = tmp_path / "data" / "topics" / "notes.txt"
    stray.write_text("mine")
    with pytest.raises(DataDirectoryError, match=r"notes\.txt is not a directory; move it out of the way"):
        await Cluster(tmp_path / "data").node.start()
    stray.unlink()
    async with Cluster(tmp_path / "data").running() as again:
        check_filled(again)


async def test_a_disk_fault_ends_the_first_start_with_the_reason(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data")
    cluster.disk.fail("create", ".journal", errno.EROFS)
    with pytest.raises(DataDirectoryError, match=r"cannot be used: .*Read-only file system"):
        await asyncio.wait_for(cluster.node.start(), PATIENCE)
    assert len(cluster.faults) == 1
    async with Cluster(tmp_path / "data").running():
        pass


# --- what the journal may forget ------------------------------------------------------------------


@pytest.mark.slow
async def test_journal_files_are_removed_once_everything_in_them_is_durable_elsewhere(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        await cluster.append(b"idle", partition=1)
        for number in range(300):
            await cluster.append(b"%3d" % number + b"x" * 100)
            if number % 20 == 0:
                await cluster.sync()
        await cluster.sync()
        await cluster.settle()
        await cluster.sync()
        assert len(cluster.journal_files()) <= 6
        assert cluster.journal_files()[0] > "00000000000000000005.journal"
        journal = journal_of(cluster)
        # Positions that only the removed files had were carried over.
        assert set(hard_states(journal)) == {1, 1000, 1001}
        assert journal.incarnation == 1
        idle = journal.groups[1001].applied
        assert idle is not None
        assert (idle.index, idle.end_offset) == (2, 1)
        copy = copy_of(cluster.directory, "killed")
    for directory in (copy, tmp_path / "data"):
        async with Cluster(directory).running() as again:
            assert again.values() == [b"%3d" % number + b"x" * 100 for number in range(300)]
            assert again.values(partition=1) == [b"idle"]
            await again.append(b"next", partition=1)
            assert again.values(partition=1) == [b"idle", b"next"]


@pytest.mark.slow
async def test_a_file_is_removed_only_after_records_that_only_it_has_are_durable_again(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 3)
        for number in range(3):
            await cluster.append(b"idle", partition=number)
        kept: list[Path] = []
        for number in range(200):
            await cluster.append(b"x" * 100)
            if number % 20 == 0:
                await cluster.sync()
            if number % 10 == 0:
                kept.append(copy_of(cluster.directory, f"killed-{number}"))
    for copy in kept:
        async with Cluster(copy).running() as again:
            assert again.values(partition=1) == again.values(partition=2) == [b"idle"]
            assert len(again.values()) == int(copy.name.split("-")[1]) + 2


@pytest.mark.slow
async def test_an_unsynced_partition_retains_the_journal(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        for _ in range(150):
            await cluster.append(b"x" * 100)
        await cluster.settle()
        assert cluster.journal_files()[0] == "00000000000000000001.journal"


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_checkpoint_is_written_every_so_many_entries_and_two_are_kept(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", Sizes(checkpoint_entries=10)).running() as cluster:
        await cluster.create_topic()
        for number in range(35):
            await cluster.commit(number)
            await cluster.settle()
        ends = [int(path.name[:20]) for path in cluster.checkpoints("groups-0")]
        assert ends == [20, 30]
        copy = copy_of(cluster.directory, "killed")
    async with Cluster(copy).running() as again:
        assert again.committed() == {0: 34}


@pytest.mark.slow
async def test_an_idle_state_group_that_pins_the_journal_gets_two_checkpoints_by_an_empty_entry(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await cluster.commit(5)
        for _ in range(400):
            await cluster.append(b"x" * 100)
        await cluster.sync()
        await cluster.settle()
        await cluster.sync()
        for name, ends in (("metadata", [3, 4]), ("groups-0", [2, 3])):
            assert [int(path.name[:20]) for path in cluster.checkpoints(name)] == ends
        assert cluster.journal_files()[0] > "00000000000000000005.journal"
        copy = copy_of(cluster.directory, "killed")
    async with Cluster(copy).running() as again:
        assert again.committed() == {0: 5}
        assert len(again.values()) == 400
        await again.commit(6)
        await again.create_topic("second")
    async with Cluster(copy).running() as again:
        assert (again.committed(), set(again.node.metadata.topics)) == ({0: 6}, {"topic", "second"})


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "gone", "scribbled"])
async def test_with_a_damaged_newest_checkpoint_the_older_one_and_the_journal_are_used(
    tmp_path: Path, damage: str
) -> None:
    async with Cluster(tmp_path / "data", Sizes(checkpoint_entries=10, file_bytes=1000)).running() as cluster:
        await cluster.create_topic()
        for number in range(57):
            await cluster.commit(number)
            await cluster.commit(number, group=f"group-{number}")
            await cluster.append(b"x" * 50)
            if number % 10 == 9:
                await cluster.sync()
        assert cluster.journal_files()[0] > "00000000000000000003.journal"
        copy = copy_of(cluster.directory, "killed")
    newest = sorted((copy / "state" / "groups-0").glob("*.checkpoint"))[-1]
    if damage == "gone":
        newest.unlink()
    else:
        whole = newest.read_bytes()
        newest.write_bytes(whole[:-5] if damage == "cut" else whole[:200] + b"?" + whole[201:])
    async with Cluster(copy, Sizes(checkpoint_entries=10, file_bytes=1000)).running() as again:
        assert again.committed() == {0: 56}
        assert all(again.committed(f"group-{number}") == {0: number} for number in range(57))
        for number in range(30):
            await again.commit(number)
        await again.sync()
    async with Cluster(copy).running() as again:
        assert again.committed() == {0: 29}


@pytest.mark.parametrize(("call", "ending"), [("sync", ".part"), ("sync_directory", "metadata")])
async def test_a_failed_sync_of_a_checkpoint_or_its_directory_is_a_fault(
    tmp_path: Path, call: str, ending: str
) -> None:
    cluster = Cluster(tmp_path / "data", Sizes(checkpoint_entries=4))
    await cluster.node.start()  # the first two entries
    cluster.disk.fail(call, ending, errno.EIO)
    await cluster.create_topic("third")
    await cluster.create_topic("fourth")
    await until(lambda: bool(cluster.faults))
    assert [type(fault) for fault in cluster.faults] == [OSError]
    await cluster.node.stop()


async def test_a_checkpoint_without_room_is_retried_and_the_journal_stays(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", Sizes(checkpoint_entries=5)).running() as cluster:
        await cluster.create_topic()
        full(cluster.disk, "write", ".part")
        for number in range(12):
            await cluster.commit(number)
            await cluster.settle()
        assert cluster.checkpoints("groups-0") == []
        assert list((cluster.directory / "state" / "groups-0").iterdir()) == []
        cluster.disk.heal()
        for number in range(12, 20):
            await cluster.commit(number)
            await cluster.settle()
        assert [int(path.name[:20]) for path in cluster.checkpoints("groups-0")] == [15, 20]


# --- a full disk, faults --------------------------------------------------------------------------


async def test_a_full_disk_refuses_commands_with_the_reason_and_service_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_FULL_DISK_RETRY_S", 0)
    async with Cluster(tmp_path / "data", Sizes(file_bytes=1000)).running() as cluster:
        await cluster.create_topic()
        full(cluster.disk, "allocate", ".journal")
        waiting = cluster.append_nowait(b"x" * 2000)
        await until(lambda: cluster.node.blocked is not None)
        for _ in range(2):
            with pytest.raises(Unavailable, match="the disk is full") as caught:
                await cluster.commit(1)
            # Each caller gets an error of its own: one raised repeatedly accumulates tracebacks.
            assert len(caught.traceback) <= 4
        assert not waiting.done()
        cluster.disk.heal()
        assert await waiting == 0
        assert cluster.node.blocked is None
        await cluster.commit(1)


async def test_segments_without_room_are_reported_and_offsets_can_still_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "pace", replace(Cluster.pace, full_disk_retry_s=0))
    with prompt_writer():
        async with Cluster(tmp_path / "data").running() as cluster:
            await cluster.create_topic()
            full(cluster.disk, "create", ".log")
            await cluster.append(b"value")
            await until(lambda: cluster.node.blocked is not None)
            assert "the disk is full" in str(cluster.node.blocked)
            await cluster.commit(1)
            cluster.disk.heal()
            await until(lambda: cluster.node.blocked is None)
            assert cluster.values() == [b"value"]


async def test_a_stop_on_a_full_disk_ends_and_the_next_start_has_all_acknowledged_data(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path / "data", Sizes(file_bytes=1000)).running() as cluster:
        await cluster.create_topic()
        await cluster.append(b"value")
        cluster.disk.before = _no_room
        waiting = cluster.append_nowait(b"x" * 2000)
        await asyncio.wait_for(cluster.node.stop(), PATIENCE)
        assert not waiting.done()
    async with Cluster(tmp_path / "data").running() as again:
        assert again.values() == [b"value"]


def _no_room(call: object) -> None:
    if getattr(call, "what", "") in ("create", "allocate", "make_directory"):
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_after_a_fault_nothing_is_answered_and_stop_releases_the_directory(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data")
    await cluster.node.start()
    await cluster.create_topic()
    await cluster.append(b"value")
    cluster.disk.fail("sync", ".journal", errno.EIO)
    waiting = cluster.append_nowait(b"lost")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await cluster.node.stop()
    assert not waiting.done()
    assert len(cluster.faults) == 1
    async with Cluster(tmp_path / "data").running() as again:
        assert again.values() in ([b"value"], [b"value", b"lost"])


@pytest.mark.slow
async def test_after_a_fault_of_a_segment_nothing_is_answered_either(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data")
    await cluster.node.start()
    await cluster.create_topic()
    cluster.disk.fail("write", ".log", errno.EIO)
    with prompt_writer():
        await cluster.append(b"first")
        await until(lambda: bool(cluster.faults))
        waiting = cluster.append_nowait(b"second")
        for _ in range(10):
            await asyncio.sleep(0)
    assert not waiting.done()
    await cluster.node.stop()


async def test_a_bug_in_the_answer_of_one_caller_stops_the_node_before_anything_else_is_applied(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path / "data")
    await cluster.node.start()
    await cluster.create_topic()
    broken = cluster.append_nowait(b"first")
    behind = cluster.append_nowait(b"second")
    broken.set_result(-1)  # so that the answer raises
    for _ in range(5):
        await asyncio.sleep(0)
    assert [type(fault) for fault in cluster.faults] == [asyncio.InvalidStateError]
    assert not behind.done()
    await cluster.node.stop()
    async with Cluster(tmp_path / "data").running() as again:
        assert again.values() == [b"first", b"second"]


@pytest.mark.parametrize(("limit", "logs"), [(100_000, 2000), (1024, 256)])
async def test_unsynced_logs_use_a_quarter_of_the_open_file_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, logs: int
) -> None:
    monkeypatch.setattr(RecordingDisk, "open_file_limit", lambda _: limit)
    async with Cluster(tmp_path).running() as cluster:
        assert cluster.node._log.writer._sync_logs == logs


@pytest.mark.slow
async def test_batches_wait_while_too_much_is_in_no_segment(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", Sizes(max_unapplied_bytes=2000)).running() as cluster:
        await cluster.create_topic()
        full(cluster.disk, "create", ".log")
        answers = []
        for _ in range(10):
            answers.append(cluster.append_nowait(b"x" * 500))
            for _ in range(4):
                await asyncio.sleep(0)
        assert [answer.done() for answer in answers] == [True] * 4 + [False] * 6
        cluster.disk.heal()
        await asyncio.wait_for(asyncio.gather(*answers), PATIENCE)
        assert [answer.result() for answer in answers] == list(range(10))


async def test_batches_that_wait_for_room_are_written_before_a_stop(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", Sizes(max_unapplied_bytes=1000)).running() as cluster:
        await cluster.create_topic()
        answers = [cluster.append_nowait(b"x" * 2000)]
        await until(answers[0].done)
        answers += [cluster.append_nowait(b"y") for _ in range(3)]
        await cluster.node.stop()
        assert [answer.result() for answer in answers] == [0, 1, 2, 3]

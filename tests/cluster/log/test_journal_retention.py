"""Removal of journal files that no raft group needs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.cluster.log import journal_retention
from pixy.cluster.log.peer_starts import PeerStart, StartClaim
from pixy.cluster.log.relocation import Relocation
from pixy.cluster.log.replica import StateReplica
from pixy.cluster.replicas.state_groups import StateGroups
from pixy.config import JournalConfig
from pixy.entry_ids import LogPosition
from pixy.errors import Unavailable, UnknownPartition
from pixy.multiraft.hard_states import write_hard_state
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.state_pb2 import HardState
from pixy.raft import ConfState, Entry, Message, MessageType
from pixy.raft import HardState as Voted
from pixy.storage import EntryType, JournalFile
from tests.cluster.damage import damaged, work
from tests.cluster.drivers import GROUP, PayloadLog
from tests.cluster.node_logs import open_log
from tests.cluster.nodes import Cluster, Sizes, copy_of
from tests.fakes.disk import full
from tests.fakes.waiting import settle, until


@pytest.mark.slow
async def test_a_deleted_topic_retains_no_journal_file(tmp_path: Path) -> None:
    directory, _, _ = await damaged(tmp_path)
    async with Cluster(directory).running() as cluster:
        await cluster.node.commands.delete_topic("bad")
        bad = {raft_group for file in cluster.node._log.journal.files for raft_group in file.spans}
        await work(cluster, 150)
        left = {raft_group for file in cluster.node._log.journal.files for raft_group in file.spans}
        assert bad - left
        assert not (directory / "topics" / "bad-0").exists()


@pytest.mark.slow
async def test_journal_files_needed_by_one_topic_only_are_removed_with_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path, Sizes(max_unapplied_bytes=1 << 20)).running() as cluster:
        await cluster.create_topic()
        await cluster.append(*[b"x" * 1000] * 60)
        files = len(cluster.journal_files())
        assert files > 10
        await cluster.node.commands.delete_topic("topic")
        # Before its segments were ever synced. State groups may keep a few files until they write
        # checkpoints.
        await cluster.settle()
        assert len(cluster.journal_files()) < 8


@pytest.mark.slow
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


@pytest.mark.slow
async def test_no_file_is_removed_before_a_start_has_opened_every_raft_group(tmp_path: Path) -> None:
    async with Cluster(tmp_path).running() as cluster:
        await cluster.create_topic()
        await cluster.append(*[b"x" * 1000] * 20)
        copy = copy_of(tmp_path, f"{tmp_path.name}-copy")
    log, recovered, *_ = open_log(copy)
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


# --- with members on other nodes ------------------------------------------------------------------

FILE_BYTES = 4096


class Filling:
    """A log with small files, which the entries of one raft group fill. All of them are applied,
    and needed by followers only.
    """

    def __init__(self, directory: Path, voters: tuple[int, ...], retain_bytes: int = 0) -> None:
        journal = JournalConfig(file_bytes=FILE_BYTES, retain_bytes=retain_bytes)
        self.log = open_log(directory, journal).log
        self.group = self.log.driver.group(GROUP, ConfState(voters))
        self.log.driver.bind(self.group, PayloadLog(), PayloadLog.apply)

    @property
    def files(self) -> list[JournalFile]:
        return self.log.journal.files

    async def fill(self, count: int) -> None:
        """Add so many entries, four of which are in a file."""
        for _ in range(count):
            if self.group.has_peers:
                self._take_entry()
            else:
                self.log.driver.propose(self.group, EntryType.COMMAND, bytes(900), lambda _: None)
            await self.log.journal.drained()

    def _take_entry(self) -> None:
        last = self.group.storage.last_index()
        entry = Entry(1, last + 1, data=bytes(900), kind=EntryType.COMMAND)
        message = Message(MessageType.APP, 1, 2, 1, min(1, last), last, [entry], last + 1)
        self.log.driver.step(GROUP, message)

    async def remove(self) -> None:
        """Remove the files that nobody needs."""
        self.group.durable_index = self.group.applied_index
        self.log.retention.start()
        for _ in range(30):
            await settle()
            await self.log.journal.drained()


async def test_without_peers_only_the_newest_file_stays(tmp_path: Path) -> None:
    filling = Filling(tmp_path, (1,), retain_bytes=3 * FILE_BYTES)
    await filling.fill(40)
    assert len(filling.files) > 8
    await filling.remove()
    assert len(filling.files) == 1
    filling.log.abandon()


@pytest.mark.parametrize("files", [1, 3, 6])
async def test_with_peers_the_newest_files_stay_up_to_retain_bytes(tmp_path: Path, files: int) -> None:
    filling = Filling(tmp_path, (1, 2, 3), retain_bytes=files * FILE_BYTES)
    await filling.fill(40)
    await filling.remove()
    assert len(filling.files) == files
    filling.log.abandon()


async def test_files_without_entries_of_groups_with_peers_are_not_retained(tmp_path: Path) -> None:
    filling = Filling(tmp_path, (1,), retain_bytes=1 << 20)
    idle = filling.log.driver.group(GROUP + 1, ConfState((1, 2, 3)))
    await filling.fill(40)
    await filling.remove()
    assert idle.has_peers
    assert len(filling.files) == 1
    filling.log.abandon()


async def test_the_log_for_followers_begins_with_the_oldest_file(tmp_path: Path) -> None:
    filling = Filling(tmp_path, (1, 2, 3), retain_bytes=3 * FILE_BYTES)
    await filling.fill(40)
    assert filling.group.storage.start == LogPosition(0, 0)
    await filling.remove()
    first, _, _ = filling.files[0].spans[GROUP]
    assert filling.group.storage.first_index() == first > 20
    filling.log.abandon()


async def test_what_only_a_removed_file_had_is_written_again(tmp_path: Path) -> None:
    filling = Filling(tmp_path, (1,))
    idle = RaftGroup(GROUP + 1, RaftStorage(ConfState((1, 2, 3))), 1)
    idle.applied_term, idle.applied_index = 3, 12
    filling.log.driver.snapshots.finish_install(idle)
    filling.log.driver.add(idle)
    assert filling.log.peer_starts.admit(StartClaim(2, PeerStart(7, 99))) is None
    gone = filling.log.driver.group(GROUP + 2, ConfState((1, 2, 3)))
    gone.storage.hard_state = Voted(7, 2, 0)
    filling.log.driver.mute(gone)
    filling.log.driver.depart(gone, Unavailable("gone"), lambda: None)
    await filling.fill(40)
    before = len(filling.files)
    await filling.remove()
    filling.log.abandon()
    assert before > 8
    assert [path.name for path in (tmp_path / "journal").iterdir()] == [f"{before:020d}.journal"]
    log, recovered, *_ = open_log(tmp_path)
    log.abandon()
    found = recovered.group(GROUP + 1)
    assert found.reset is not None
    assert found.reset.position == LogPosition(3, 12)
    assert HardState.FromString(found.hard_state or b"").voters == [1, 2, 3]
    assert HardState.FromString(recovered.group(GROUP).hard_state or b"").term == 1
    assert HardState.FromString(recovered.group(GROUP + 2).hard_state or b"") == HardState(term=7, vote=2)
    assert recovered.journal.incarnation == 1
    assert log.peer_starts.starts.newest(2) == PeerStart(7, 99)


async def with_others(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Filling, list[RaftGroup]]:
    """A log whose oldest file has hard states of seven other groups, for two of which records are
    written in each iteration.
    """
    monkeypatch.setattr(journal_retention, "_GROUPS_PER_ITERATION", 2)
    filling = Filling(directory, (1,))
    others = [filling.log.driver.group(GROUP + number, ConfState((1,))) for number in range(1, 8)]
    for other in others:
        write_hard_state(filling.log.journal, other)
    await filling.fill(8)
    filling.group.durable_index = filling.group.applied_index
    filling.log.retention.start()
    return filling, others


async def test_records_for_many_groups_are_written_again_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling, others = await with_others(tmp_path, monkeypatch)
    await filling.remove()
    assert {other.hard_state_file for other in others} == {filling.files[0].number}
    filling.log.abandon()


async def test_nothing_is_written_for_a_group_that_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling, others = await with_others(tmp_path, monkeypatch)
    filling.log.driver.remove(others[-1], UnknownPartition("gone"))
    await filling.remove()
    assert others[-1].hard_state_file == 1 < others[0].hard_state_file
    filling.log.abandon()


async def test_a_stop_between_the_steps_keeps_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling, others = await with_others(tmp_path, monkeypatch)
    filling.log.retention.stop()
    await filling.remove()
    assert (filling.files[0].number, others[-1].hard_state_file) == (1, 1)
    filling.log.abandon()


async def test_a_file_that_relocation_needs_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def begin(_: Relocation, oldest: JournalFile, __: list[RaftGroup], then: Callable[[bool], None]) -> None:
        tried.append(oldest.number)
        then(False)

    monkeypatch.setattr(Relocation, "begin", begin)
    filling = Filling(tmp_path, (1,))
    await filling.fill(40)
    filling.log.retention.start()
    filling.log.retention.maybe_remove()
    assert tried == [1, 1]
    assert filling.files[0].number == 1
    filling.log.abandon()


@pytest.mark.parametrize("files", [6, 1 << 20])
async def test_files_that_followers_may_need_stay_although_groups_are_stuck(
    tmp_path: Path, files: int
) -> None:
    filling = Filling(tmp_path, (1, 2, 3), retain_bytes=files * FILE_BYTES)
    # Entries of a group without a quorum, in the oldest file: they are never applied.
    stuck = filling.log.driver.group(GROUP + 1, ConfState((1, 2, 3)))
    filling.log.driver.bind(stuck, PayloadLog(), PayloadLog.apply)
    entry = Entry(1, 1, data=b"x", kind=EntryType.COMMAND)
    filling.log.driver.step(GROUP + 1, Message(MessageType.APP, 1, 2, 1, 0, 0, [entry], 0))
    await filling.fill(40)
    before = len(filling.files)
    await filling.remove()
    assert len(filling.files) >= min(files, before)
    assert (filling.files[0].number > 1) == (files < before)
    assert filling.group.storage.first_index() <= filling.files[0].spans[GROUP][0]
    filling.log.abandon()


async def test_nothing_is_removed_after_a_stop(tmp_path: Path) -> None:
    filling = Filling(tmp_path, (1,))
    await filling.fill(40)
    files = list(filling.files)
    filling.log.retention.stop()
    await filling.remove()
    assert filling.files == files
    filling.log.abandon()

"""Relocation of entries of groups that cannot go on: they outlive their journal files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from pixy.cluster.log.partition_condition import PartitionCondition
from pixy.cluster.log.relocation import Relocation, is_stuck
from pixy.cluster.log.replica import PartitionReplica, StateReplica
from pixy.cluster.state.groups import GroupsState
from pixy.config import JournalConfig
from pixy.entry_ids import LogPosition
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfState, Entry, Message, MessageType
from pixy.records import TopicPartition
from pixy.storage import (
    CheckpointId,
    CheckpointStore,
    EntryRange,
    EntryType,
    FilePart,
    JournalFile,
    JournalReader,
    JournalRecord,
    RecordKind,
)
from tests.cluster.damage import VALUES, damaged, work
from tests.cluster.drivers import COMMAND, GROUP, PayloadLog
from tests.cluster.held_journal import HeldJournal
from tests.cluster.node_logs import OpenedLog, open_log
from tests.cluster.nodes import Cluster
from tests.cluster.staging import piece_of, publish, stage
from tests.fakes.disk import RecordingDisk
from tests.fakes.waiting import settle
from tests.fakes.worker import StepWorker
from tests.storage.logs import partition_log

BATCH = EntryType.RECORD_BATCH

# --- damaged partitions ---------------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.slow
async def test_relocation_for_a_damaged_partition_is_bounded_by_the_growth_of_the_journal(
    tmp_path: Path,
) -> None:
    directory, _, _ = await damaged(tmp_path)
    async with Cluster(directory).running() as cluster:
        await work(cluster, 300)
        files = cluster.journal_files()
        await work(cluster, 0)
        assert cluster.journal_files() == files


@pytest.mark.slow
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


# --- groups without a quorum ----------------------------------------------------------------------

STUCK, BUSY = GROUP, GROUP + 1


def take(log: OpenedLog, term: int, first: int, count: int, before: int) -> None:
    """Take entries of a leader that nobody has committed, behind one of term `before`."""
    indexes = range(first, first + count)
    entries = [Entry(term, index, data=b"%d of %d" % (index, term), kind=COMMAND) for index in indexes]
    message = Message(MessageType.APP, 1, 2, term, before, first - 1, entries)
    log.log.driver.step(STUCK, message)


async def fill(log: OpenedLog, count: int) -> None:
    """Add entries of a group of which the journal needs none, four to a file."""
    group = log.log.driver.groups[BUSY]
    for _ in range(count):
        log.log.driver.propose(group, COMMAND, bytes(900), lambda _: None)
        await log.log.journal.drained()
    group.durable_index = group.applied_index


async def stuck_log(directory: Path) -> OpenedLog:
    """A log with six entries of a group without a quorum in the first of many files."""
    log = open_log(directory, JournalConfig(file_bytes=4096, retain_bytes=0))
    log.log.driver.group(STUCK, ConfState((1, 2, 3)))
    log.log.driver.bind(log.log.driver.group(BUSY, ConfState((1,))), PayloadLog(), PayloadLog.apply)
    take(log, 1, 1, 6, before=0)
    await fill(log, 40)
    return log


async def ended(log: OpenedLog) -> None:
    """Let retention do all that it can, and end the node."""
    for _ in range(100):
        await settle()
        await log.log.journal.drained()
    assert log.faults == []
    log.log.abandon()


def entries_after_a_start(directory: Path) -> list[tuple[int, int, bytes]]:
    """Entries of the group without a quorum, as a start finds them."""
    log = open_log(directory)
    log.log.abandon()
    return [
        (each.index, each.term, bytes(each.payload)) for each in log.recovered.group(STUCK).entries_after(0)
    ]


async def test_entries_that_no_quorum_commits_outlive_their_journal_files(tmp_path: Path) -> None:
    log = await stuck_log(tmp_path)
    before = len(log.log.journal.files)
    log.log.retention.start()
    await ended(log)
    assert len(log.log.journal.files) <= 6 < before
    assert log.log.driver.groups[STUCK].storage.start == LogPosition(0, 0)
    assert entries_after_a_start(tmp_path) == [(index, 1, b"%d of 1" % index) for index in range(1, 7)]


async def test_entries_that_another_leader_replaces_meanwhile_are_not_relocated(tmp_path: Path) -> None:
    log = await stuck_log(tmp_path)
    log.log.retention.start()
    # They are read, and not yet written again.
    take(log, 2, 4, 2, before=1)
    await ended(log)
    assert entries_after_a_start(tmp_path) == [
        *[(index, 1, b"%d of 1" % index) for index in (1, 2, 3)],
        *[(index, 2, b"%d of 2" % index) for index in (4, 5)],
    ]


# --- what is written again ------------------------------------------------------------------------


class Found:
    """Relocation of one group, with a reader that finds what the test gives it."""

    def __init__(self, *records: JournalRecord) -> None:
        self.records = list(records)
        self.wanted: list[EntryRange] = []
        self.error: OSError | None = None
        self.group = RaftGroup(STUCK, RaftStorage(ConfState((1, 2, 3))), 1)
        self.group.storage.append([Entry(1, index, data=b"memory", kind=BATCH) for index in (1, 2, 3)])
        self.group.durable_index = 1
        self.journal = HeldJournal()
        self.files = StepWorker()
        self.faults: list[BaseException] = []
        self.outcomes: list[bool] = []
        groups = {STUCK: self.group}
        reader = cast(JournalReader, self)
        journal = self.journal.as_journal()
        self.relocation = Relocation(journal, groups, 4096, self.files, reader, self.faults.append)

    def entries_of_file(self, _: FilePart, wanted: Sequence[EntryRange]) -> list[JournalRecord]:
        if self.error is not None:
            raise self.error
        self.wanted += wanted
        return self.records

    def relocate(self) -> None:
        oldest = JournalFile(1, spans={STUCK: (1, 3, 64)})
        self.relocation.begin(oldest, [self.group], self.outcomes.append)
        self.files.step()

    @property
    def written(self) -> list[tuple[int, int, bytes]]:
        """Kind, index and payload of what was written."""
        return [(record[0], record[3], bytes(record[-1])) for unit in self.journal.units for record in unit]


def record_of(index: int, *, term: int = 1, version: int = 2) -> JournalRecord:
    return JournalRecord(RecordKind.ENTRY, BATCH, STUCK, index, term, b"file", version)


async def test_what_segments_lack_is_relocated() -> None:
    found = Found(record_of(2), record_of(3))
    found.group.storage.release(2)
    found.relocate()
    assert [(each.lo, each.hi) for each in found.wanted] == [(2, 4)]
    kind = RecordKind.RELOCATED_ENTRY
    assert found.written == [(kind, 2, b"file"), (kind, 3, b"memory")]
    assert found.outcomes == [True]


async def test_many_entries_are_relocated_in_steps() -> None:
    found = Found(*[record_of(index) for index in range(2, 502)])
    found.group.storage.append([Entry(1, index, kind=BATCH) for index in range(4, 502)])
    found.relocate()
    assert len(found.written) < 500
    assert found.outcomes == []
    await settle()
    assert [index for _, index, _ in found.written] == list(range(2, 502))
    assert found.outcomes == [True]


async def test_an_entry_of_another_term_is_not_relocated() -> None:
    found = Found(record_of(2, term=2), record_of(3))
    found.relocate()
    assert [index for _, index, _ in found.written] == [3]


async def test_a_batch_of_version_1_is_relocated_with_the_offset_that_it_has_in_memory() -> None:
    found = Found(record_of(2, version=1))
    found.relocate()
    assert (found.written, found.outcomes) == ([(RecordKind.RELOCATED_ENTRY, 2, b"memory")], [True])


async def test_a_batch_without_an_offset_keeps_its_file() -> None:
    found = Found(record_of(2, version=1), record_of(3))
    found.group.storage.release(2)
    found.relocate()
    assert (found.written, found.outcomes) == ([], [False])


async def test_entries_of_a_group_that_is_removed_meanwhile_are_not_relocated() -> None:
    found = Found(record_of(2))
    found.records.append(JournalRecord(RecordKind.ENTRY, BATCH, 9, 1, 1, b"other"))
    found.relocate()
    assert [index for _, index, _ in found.written] == [2]


async def test_a_file_that_cannot_be_read_is_a_fault() -> None:
    found = Found()
    found.error = OSError("bad sector")
    found.relocate()
    assert (found.faults, found.outcomes) == ([found.error], [])


async def test_nothing_is_relocated_after_a_stop() -> None:
    found = Found(record_of(2))
    found.relocation.stop()
    found.relocate()
    assert (found.written, found.outcomes) == ([], [])


# --- who cannot go on -----------------------------------------------------------------------------


def applied_group(voters: tuple[int, ...] = (1, 2, 3)) -> RaftGroup:
    group = RaftGroup(STUCK, RaftStorage(ConfState(voters)), 1)
    group.applied_index = 5
    return group


def test_a_group_of_an_unknown_application_is_stuck() -> None:
    assert is_stuck(applied_group())


@pytest.mark.parametrize(
    ("condition", "durable", "stuck"),
    [
        (PartitionCondition.READY, 4, False),
        (PartitionCondition.READY, 5, True),
        (PartitionCondition.UNWRITABLE, 4, True),
    ],
)
def test_a_partition_is_stuck_that_is_damaged_or_has_written_what_is_applied(
    tmp_path: Path, condition: PartitionCondition, durable: int, stuck: bool
) -> None:
    group = applied_group()
    replica = PartitionReplica(STUCK, TopicPartition("topic", 0), partition_log(RecordingDisk(), tmp_path))
    replica.condition, group.application, group.durable_index = condition, replica, durable
    assert is_stuck(group) is stuck


@pytest.mark.parametrize(
    ("newest", "leads", "checkpointing", "stuck"),
    [(5, False, False, True), (4, False, False, False), (5, True, False, False), (5, False, True, False)],
)
def test_a_state_group_is_stuck_with_a_new_checkpoint_and_without_the_lead(
    tmp_path: Path, newest: int, leads: bool, checkpointing: bool, stuck: bool
) -> None:
    group = applied_group()
    store = CheckpointStore(RecordingDisk(), tmp_path)
    replica = group.application = StateReplica(group, "state", GroupsState(), store)
    replica.checkpoints, replica.checkpointing, group.leads = [CheckpointId(1, newest)], checkpointing, leads
    assert is_stuck(group) is stuck


def test_a_state_group_of_one_member_is_never_stuck(tmp_path: Path) -> None:
    group = applied_group((1,))
    store = CheckpointStore(RecordingDisk(), tmp_path)
    replica = group.application = StateReplica(group, "state", GroupsState(), store)
    replica.checkpoints = [CheckpointId(1, 5)]
    assert not is_stuck(group)

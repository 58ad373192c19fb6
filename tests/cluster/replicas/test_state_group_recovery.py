"""State groups at a start: from the newest checkpoint and the journal's entries behind it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster.log.node_log import NodeLog
from pixy.cluster.log.replica import StateReplica
from pixy.cluster.replicas.state_group_recovery import recover_state_group
from pixy.cluster.state.groups import GroupsState
from pixy.entry_ids import LogPosition, ProposalId
from pixy.errors import CorruptData
from pixy.multiraft.dedup_table import DedupTable
from pixy.multiraft.group_states import checkpoint_record
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.state_pb2 import HardState, NodeIdentity
from pixy.raft import ConfState, Entry, Message, MessageType, Snapshot
from pixy.storage import CheckpointId, CheckpointStore, EntryType, RecordKind, ThreadWorker, load_identity
from tests.cluster.large_groups import PARTITIONS, STEP_S, large_records
from tests.cluster.node_logs import open_log
from tests.cluster.nodes import Cluster
from tests.fakes.disk import Call, RecordingDisk
from tests.fakes.steps import measure_steps
from tests.storage.journals import CLUSTER, journal_file, record, reset, write_files

GROUP = 1
NAME = "state"
PEERS, ALONE = (1, 2, 3), (1,)


class Words:
    """A state machine that keeps its commands."""

    def __init__(self) -> None:
        self.words: list[bytes] = []

    def apply(self, payload: bytes, term: int = 0) -> Any:
        self.words.append(payload)

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        return [(b"words", b" ".join(self.words))]

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        self.words = dict(records)[b"words"].split()


@dataclass
class Directory:
    """A data directory with a state group of these voters; each test puts into it what it needs."""

    path: Path
    voters: tuple[int, ...] = PEERS
    records: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        load_identity(RecordingDisk(), self.path, NodeIdentity(cluster_id=CLUSTER, node_id=1))

    def entries(self, term: int, first: int, last: int, commit: int = 0) -> "Directory":
        """Entries in the journal, each with its index as the command."""
        for index in range(first, last + 1):
            self.records.append(
                record(RecordKind.ENTRY, EntryType.COMMAND, GROUP, index, term, b"%d" % index, commit=commit)
            )
        return self

    def hard_state(self, term: int, commit: int = 0) -> "Directory":
        payload = HardState(term=term, commit=commit, voters=self.voters).SerializeToString()
        self.records.append(record(RecordKind.HARD_STATE, 0, GROUP, 0, term, payload))
        return self

    def checkpoint(self, term: int, index: int, conf_index: int = 0) -> "Directory":
        """A checkpoint with the words up to an index, and the result of a proposal."""
        rows = DedupTable()
        rows.record(ProposalId(2, 1, 1), index)
        state = checkpoint_record(rows.snapshot(), RaftStorage(ConfState(self.voters), conf_index))
        words = b" ".join([b"%d" % each for each in range(1, index + 1)])
        store = CheckpointStore(RecordingDisk(), self.path / "state" / NAME)
        store.write(CheckpointId(term, index), [state, (b"words", words)], 0)
        return self

    async def start(self) -> "Start":
        """Write the journal, and recover the group."""
        (self.path / "journal").mkdir(exist_ok=True)
        if self.records:
            write_files(self.path / "journal", journal_file([self.records]))
        return await start(self.path, self.voters)


@dataclass
class Start:
    """A start of the node."""

    log: NodeLog
    replica: StateReplica
    words: list[bytes]

    async def restarted(self) -> "Start":
        """The node after the end of its process, once everything was written."""
        await self.log.journal.drained()
        self.log.abandon()
        return await start(self.log.directory, self.replica.group.storage.conf_state.voters)

    @property
    def applied(self) -> list[int]:
        return [int(word) for word in self.words]


async def start(path: Path, voters: tuple[int, ...]) -> Start:
    log, recovered, *_ = open_log(path)
    machine = Words()
    try:
        replica = await recover_state_group(
            log, recovered, GROUP, NAME, machine, HardState(voters=voters), StateReplica.apply
        )
    except BaseException:
        log.abandon()
        raise
    return Start(log, replica, machine.words)


# --- a journal that goes on -----------------------------------------------------------------------


async def test_a_new_group_has_the_given_configuration(tmp_path: Path) -> None:
    begun = await Directory(tmp_path).start()
    group = begun.replica.group
    assert (group.storage.conf_state, group.applied, group.has_tail) == (
        ConfState(PEERS),
        LogPosition(0, 0),
        False,
    )
    assert (begun.replica.checkpoints, begun.replica.snapshot) == ([], None)
    begun.log.abandon()


async def test_the_state_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    begun = await Directory(tmp_path).entries(2, 1, 4).checkpoint(2, 3, conf_index=1).start()
    assert begun.applied == [1, 2, 3]
    assert begun.replica.group.applied == LogPosition(2, 3)
    assert begun.replica.rows.judge(ProposalId(2, 1, 1)) == 3
    assert begun.replica.snapshot == Snapshot(3, 2, ConfState(PEERS))
    assert begun.replica.group.storage.conf_index == 1
    begun.log.abandon()


async def test_entries_that_are_known_to_be_committed_are_applied_at_once(tmp_path: Path) -> None:
    directory = Directory(tmp_path).entries(2, 1, 6).hard_state(2, commit=5).checkpoint(2, 3)
    begun = await directory.start()
    assert begun.applied == [1, 2, 3, 4, 5]
    assert begun.replica.group.has_tail
    begun.log.abandon()


async def test_a_sole_member_applies_its_tail_once_it_leads(tmp_path: Path) -> None:
    begun = await Directory(tmp_path, ALONE).entries(2, 1, 6).checkpoint(2, 3).start()
    assert begun.applied == [1, 2, 3]
    await begun.log.driver.reads.catch_up([begun.replica.group])
    assert begun.applied == [1, 2, 3, 4, 5, 6]
    begun.log.abandon()


@pytest.mark.parametrize("voters", [ALONE, PEERS])
async def test_a_hole_behind_the_checkpoint_is_refused(tmp_path: Path, voters: tuple[int, ...]) -> None:
    directory = Directory(tmp_path, voters).entries(2, 6, 9).checkpoint(2, 3)
    with pytest.raises(CorruptData, match="raft group 1"):
        await directory.start()


@pytest.mark.parametrize("voters", [ALONE, PEERS])
async def test_a_log_that_begins_behind_the_newest_checkpoint_is_refused(
    tmp_path: Path, voters: tuple[int, ...]
) -> None:
    directory = Directory(tmp_path, voters).checkpoint(2, 3)
    directory.records.append(reset(5, 2, GROUP))
    with pytest.raises(
        CorruptData, match="begins behind entry 5, but its newest checkpoint goes up to entry 3"
    ):
        await directory.start()


# --- a checkpoint ahead of the journal ------------------------------------------------------------


def ahead(path: Path, case: str, voters: tuple[int, ...] = PEERS) -> Directory:
    """A checkpoint up to entry 5 of term 3, that the journal knows nothing of."""
    directory = Directory(path, voters).entries(1, 1, 2).entries(2, 3, 3)
    if case == "other term":
        directory.entries(2, 4, 6).entries(4, 7, 8)
    return directory.hard_state(4).checkpoint(3, 5)


@pytest.mark.parametrize("case", ["shorter", "other term"])
async def test_the_log_begins_anew_behind_a_checkpoint_ahead_of_the_journal(
    tmp_path: Path, case: str
) -> None:
    begun = await ahead(tmp_path, case).start()
    group = begun.replica.group
    assert begun.applied == [1, 2, 3, 4, 5]
    assert (group.storage.start, group.storage.last_index()) == (LogPosition(3, 5), 5)
    assert group.storage.term_runs() == [(5, 3)]
    assert group.storage.hard_state.term == 4
    await begun.log.journal.drained()
    assert (group.reset, group.reset_file) == (LogPosition(3, 5), begun.log.journal.files[-1].number)
    begun.log.abandon()


@pytest.mark.parametrize("case", ["shorter", "other term"])
async def test_it_goes_on_with_the_entries_of_the_leader(tmp_path: Path, case: str) -> None:
    begun = await ahead(tmp_path, case).start()
    entries = [Entry(5, index, data=b"%d" % index, kind=EntryType.COMMAND) for index in (6, 7)]
    begun.log.driver.step(GROUP, Message(MessageType.APP, 1, 2, 5, 3, 5, entries, 7))
    await begun.log.journal.drained()
    assert begun.applied == [1, 2, 3, 4, 5, 6, 7]
    begun.log.abandon()


@pytest.mark.parametrize("case", ["shorter", "other term"])
async def test_the_next_start_finds_the_reset(tmp_path: Path, case: str) -> None:
    again = await (await ahead(tmp_path, case).start()).restarted()
    assert again.applied == [1, 2, 3, 4, 5]
    assert again.replica.group.storage.start == again.replica.group.reset == LogPosition(3, 5)
    again.log.abandon()


async def calls_of(directory: Directory) -> list[Call]:
    """Calls on the disk in a start."""
    begun = await directory.start()
    await begun.log.journal.drained()
    begun.log.abandon()
    assert isinstance(begun.log.disk, RecordingDisk)
    return begun.log.disk.calls


async def test_a_checkpoint_is_durable_before_the_log_reset_is_written(tmp_path: Path) -> None:
    """The process that fetched it may have been killed between the rename and the sync."""
    (tmp_path / "usual").mkdir()
    (tmp_path / "ahead").mkdir()
    sync = Call("sync_directory", NAME)
    usual = await calls_of(Directory(tmp_path / "usual").entries(2, 1, 4).checkpoint(2, 3))
    calls = await calls_of(ahead(tmp_path / "ahead", "shorter"))
    assert calls.count(sync) == usual.count(sync) + 1
    last = len(calls) - 1 - calls[::-1].index(sync)
    assert "write" in [call.what for call in calls[last:]]


async def test_a_node_without_peers_refuses_a_journal_that_is_too_short(tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match="goes up to entry 5, but the journal ends at entry 3"):
        await ahead(tmp_path, "shorter", ALONE).start()


async def test_a_node_without_peers_refuses_a_journal_with_another_term(tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match="ends with entry 5 of term 3, but the journal has that entry with"):
        await ahead(tmp_path, "other term", ALONE).start()


@pytest.mark.slow
async def test_a_start_goes_through_a_large_state_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path).running() as running:
        topic = await running.create_topic("t")
        group = running.node.state_groups.groups[0].group
        term, index = group.applied
    store = CheckpointStore(RecordingDisk(), tmp_path / "state" / "groups-0")
    store.write(CheckpointId(term, index), large_records(topic.topic_id), 0)
    longest = measure_steps(monkeypatch)
    async with Cluster(tmp_path, worker=ThreadWorker).running() as again:
        state = again.node.state_groups.groups[0].machine
        assert isinstance(state, GroupsState)
        assert len(state.committed("group-7", topic.topic_id)) == PARTITIONS
    assert longest() < STEP_S

"""Checkpoints of state groups: when they are written, those that followers get, and those that come
from a leader.
"""

import errno
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster.log.checkpoint_state import restored_state
from pixy.cluster.log.checkpoints import Checkpoints
from pixy.cluster.log.replica import StateMachine, StateReplica
from pixy.cluster.state.groups import GroupsState
from pixy.config import StorageConfig
from pixy.multiraft.group_states import split_checkpoint
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfState, Snapshot
from pixy.storage import Checkpoint, CheckpointDownload, CheckpointId, CheckpointStore
from tests.cluster.large_groups import PARTITIONS, STEP_S, large_records, large_state
from tests.fakes.clock import FakeClock
from tests.fakes.disk import RecordingDisk
from tests.fakes.steps import measure_steps
from tests.fakes.waiting import settle, until
from tests.fakes.worker import StepWorker

ALL = ConfState((1, 2, 3))


class Value:
    """A state machine with one value."""

    def __init__(self) -> None:
        self.value = b""

    def apply(self, payload: bytes, term: int = 0) -> Any:
        self.value = payload

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        return [(b"value", self.value)]

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        self.value = dict(records)[b"value"]


class Bench:
    """Checkpoints of one state group; the test runs the thread for files."""

    def __init__(self, directory: Path, machine: StateMachine | None = None) -> None:
        self.files = StepWorker()
        self.machine = Value()
        self.disk = RecordingDisk()
        store = CheckpointStore(self.disk, directory)
        group = RaftGroup(1, RaftStorage(ALL), 1)
        self.replica = StateReplica(group, "state", machine or self.machine, store)
        # Callbacks of empty entries that were proposed, and what happened.
        self.empties: list[Callable[[bool], None]] = []
        self.events: list[str] = []
        self.checkpoints = Checkpoints(
            StorageConfig(checkpoint_entries=3, checkpoint_bytes=1000),
            FakeClock(),
            self.files,
            lambda _, done: self.empties.append(done),
            on_written=lambda _: self.events.append("written"),
            on_full=lambda: self.events.append("full"),
            on_fault=lambda _: self.events.append("fault"),
        )

    async def step(self) -> None:
        """Let a checkpoint begin, and the thread write it."""
        await settle()
        self.files.step()

    async def write_at(self, index: int) -> None:
        """Write a checkpoint of the state up to an index."""
        self.apply_to(index, b"%d" % index)
        self.checkpoints.write(self.replica)
        await self.step()

    def newest_value(self) -> bytes:
        """The state in the newest checkpoint."""
        loaded, _ = self.replica.store.load()
        assert loaded is not None
        return dict(split_checkpoint(loaded.records)[1])[b"value"]

    def apply_to(self, index: int, value: bytes) -> None:
        self.replica.group.applied_term, self.replica.group.applied_index = 1, index
        self.machine.value = value

    def checkpoint_of(self, index: int, value: bytes) -> Checkpoint:
        """One as a leader makes it."""
        other = StateReplica(RaftGroup(1, RaftStorage(ALL), 1), "state", Value(), self.replica.store)
        other.machine.apply(value)
        return Checkpoint(CheckpointId(1, index), list(other.checkpoint_records()))

    def install(
        self,
        checkpoint: Checkpoint,
        done: Callable[[bool], None] = lambda _: None,
        *,
        downloaded: bool = False,
    ) -> None:
        restored = restored_state("state", Value, list(checkpoint.records))
        records = None if downloaded else checkpoint.records
        self.checkpoints.install(self.replica, checkpoint.id, restored, done, records)


# --- when they are written ------------------------------------------------------------------------


@pytest.mark.parametrize(("entries", "size", "due"), [(2, 999, False), (3, 0, True), (1, 1000, True)])
async def test_a_checkpoint_is_due_after_so_many_entries_or_bytes(
    tmp_path: Path, entries: int, size: int, due: bool
) -> None:
    bench = Bench(tmp_path)
    bench.apply_to(5, b"five")
    bench.replica.entries_since, bench.replica.bytes_since = entries, size
    bench.checkpoints.applied(bench.replica)
    assert bench.replica.checkpointing is due
    await settle()
    assert len(bench.files) == due
    if due:
        assert (bench.replica.entries_since, bench.replica.bytes_since) == (0, 0)


async def test_a_checkpoint_has_the_state_behind_the_entry_that_calls_for_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.apply_to(5, b"not finished")
    bench.checkpoints.write(bench.replica)
    bench.apply_to(5, b"finished")
    await bench.step()
    assert bench.newest_value() == b"finished"


async def test_there_is_one_at_a_time_of_a_group(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for index in (5, 6):
        bench.apply_to(index, b"value")
        bench.checkpoints.write(bench.replica)
    await settle()
    assert len(bench.files) == 1
    bench.files.step()
    await bench.write_at(7)
    assert [id.end_offset for id in bench.replica.checkpoints] == [6, 7]


async def test_without_further_entries_a_leader_makes_the_difference_by_an_empty_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.write_at(5)
    bench.replica.group.leads = True
    for _ in range(2):
        bench.checkpoints.write(bench.replica)
    assert len(bench.empties) == 1
    bench.apply_to(6, b"six")
    bench.empties[0](True)
    await bench.step()
    assert [id.end_offset for id in bench.replica.checkpoints] == [5, 6]


async def test_an_empty_entry_that_does_not_come_through_ends_the_attempt(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.write_at(5)
    bench.replica.group.leads = True
    bench.checkpoints.write(bench.replica)
    bench.empties[0](False)
    bench.checkpoints.write(bench.replica)
    assert len(bench.empties) == 2


async def test_without_further_entries_a_follower_writes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.write_at(5)
    bench.checkpoints.write(bench.replica)
    await settle()
    assert (bench.empties, len(bench.files), bench.replica.checkpointing) == ([], 0, False)


async def test_none_is_written_until_the_changes_in_the_configuration_are_applied(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.replica.group.storage.conf_index = 6
    bench.apply_to(5, b"five")
    bench.checkpoints.write(bench.replica)
    await settle()
    assert len(bench.files) == 0
    await bench.write_at(6)
    assert bench.events == ["written"]


async def test_none_begins_after_a_stop(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.apply_to(5, b"five")
    bench.checkpoints.write(bench.replica)
    bench.checkpoints.stop()
    await settle()
    assert (len(bench.files), bench.replica.checkpointing) == (0, False)


@pytest.mark.parametrize(("error", "event"), [(errno.ENOSPC, "full"), (errno.EIO, "fault")])
async def test_a_failed_write_tells_a_full_disk_from_a_fault(tmp_path: Path, error: int, event: str) -> None:
    bench = Bench(tmp_path)
    bench.disk.fail("create", ".part", error)
    await bench.write_at(5)
    assert bench.events == [event]
    bench.disk.heal()
    await bench.write_at(6)
    assert bench.events == [event, "written"]


async def test_an_error_after_a_stop_is_ignored(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.disk.fail("create", ".part", errno.EIO)
    bench.apply_to(5, b"five")
    bench.checkpoints.write(bench.replica)
    await settle()
    bench.checkpoints.stop()
    bench.files.step()
    assert bench.events == []


# --- for followers --------------------------------------------------------------------------------


async def test_followers_get_the_newest_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.apply_to(5, b"five")
    assert bench.checkpoints.snapshot(bench.replica) is None
    await bench.step()
    assert bench.events == ["written"]
    assert bench.checkpoints.snapshot(bench.replica) == Snapshot(5, 1, ALL)
    bench.apply_to(6, b"six")
    assert bench.checkpoints.snapshot(bench.replica) == Snapshot(5, 1, ALL)


@pytest.mark.parametrize("index", [6, 7])
async def test_a_change_of_the_configuration_makes_a_newer_checkpoint_for_the_new_member(
    tmp_path: Path, index: int
) -> None:
    bench = Bench(tmp_path)
    await bench.write_at(5)
    storage = bench.replica.group.storage
    storage.conf_state, storage.conf_index = ConfState((1, 2, 3), (4,)), 6
    bench.apply_to(index, b"later")
    assert bench.checkpoints.snapshot(bench.replica) is None
    await bench.step()
    assert bench.checkpoints.snapshot(bench.replica) == Snapshot(index, 1, storage.conf_state)


async def test_a_second_checkpoint_may_come_before_the_first_one_is_the_state(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    arrived: list[bool] = []
    for index, value in ((10, b"ten"), (20, b"twenty")):
        bench.install(bench.checkpoint_of(index, value), arrived.append)
        await bench.step()
    assert arrived == [True, True]
    bench.checkpoints.restored(bench.replica, Snapshot(10, 1, ALL))
    assert bench.machine.value == b"ten"
    assert bench.replica.snapshot == Snapshot(10, 1, ALL)
    bench.checkpoints.restored(bench.replica, Snapshot(20, 1, ALL))
    assert bench.machine.value == b"twenty"


async def test_a_checkpoint_that_is_not_needed_changes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.apply_to(10, b"own")
    checkpoint = bench.checkpoint_of(20, b"twenty")
    bench.install(checkpoint)
    await bench.step()
    bench.checkpoints.not_needed(bench.replica, checkpoint.id)
    assert bench.machine.value == b"own"
    assert bench.newest_value() == b"twenty"


async def test_a_checkpoint_that_cannot_be_written_does_not_arrive(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    arrived: list[bool] = []
    bench.disk.fail("create", ".part", errno.ENOSPC)
    bench.install(bench.checkpoint_of(20, b"twenty"), arrived.append)
    await bench.step()
    assert (arrived, bench.events) == ([False], ["full"])


async def test_a_complete_download_is_taken_over_and_not_written_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "state")
    checkpoint = bench.checkpoint_of(20, b"twenty")
    leader = CheckpointStore(RecordingDisk(), tmp_path / "leader")
    leader.write(checkpoint.id, checkpoint.records, 1)
    content = (leader.directory / checkpoint.id.file_name).read_bytes()
    download = CheckpointDownload(bench.replica.store, checkpoint.id)
    download.resume()
    download.write(content, 0, len(content))
    arrived: list[bool] = []
    bench.install(checkpoint, arrived.append, downloaded=True)
    await bench.step()
    assert arrived == [True]
    assert (tmp_path / "state" / checkpoint.id.file_name).read_bytes() == content
    bench.checkpoints.restored(bench.replica, Snapshot(20, 1, ALL))
    assert bench.machine.value == b"twenty"


async def test_a_restored_state_has_nothing_since_its_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.replica.entries_since = bench.replica.bytes_since = 2
    bench.install(bench.checkpoint_of(20, b"twenty"))
    await bench.step()
    assert bench.machine.value == b"", "the log is not reset yet"
    bench.checkpoints.restored(bench.replica, Snapshot(20, 1, ALL))
    assert (bench.replica.entries_since, bench.replica.bytes_since) == (0, 0)
    assert [id.end_offset for id in bench.replica.checkpoints] == [20]


@pytest.mark.slow
async def test_a_large_state_replaces_another_one_in_short_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = large_state()
    bench = Bench(tmp_path, state)
    restored = restored_state("state", GroupsState, large_records(b"other"))
    former = restored.machine
    assert isinstance(former, GroupsState)
    bench.checkpoints.install(bench.replica, CheckpointId(1, 20), restored, lambda _: None, [])
    await bench.step()
    longest = measure_steps(monkeypatch)
    await settle()
    bench.checkpoints.restored(bench.replica, Snapshot(20, 1, ALL))
    assert former.has_offsets("group-7"), "it goes later"
    await until(lambda: not former.has_offsets("group-0"))
    assert longest() < STEP_S / 5
    assert len(state.committed("group-7", b"other")) == PARTITIONS
    assert state.committed("group-7", b"t") == {}

"""Checkpoints of state groups: those that followers get, and those that come from a leader."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster.checkpoints import Checkpoints
from pixy.cluster.group_states import split_checkpoint
from pixy.cluster.raft_group import RaftGroup
from pixy.cluster.raft_storage import RaftStorage
from pixy.cluster.replica import StateReplica
from pixy.config import StorageConfig
from pixy.raft import ConfState, Snapshot
from pixy.storage import Checkpoint, CheckpointId, CheckpointStore
from tests.fakes.clock import FakeClock
from tests.fakes.disk import RecordingDisk
from tests.fakes.waiting import settle
from tests.fakes.worker import StepWorker

ALL = ConfState((1, 2, 3))


class Value:
    """A state machine with one value."""

    def __init__(self) -> None:
        self.value = b""

    def apply(self, payload: bytes) -> Any:
        self.value = payload

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        return [(b"value", self.value)]

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        self.value = dict(records)[b"value"]


class Bench:
    """Checkpoints of one state group; the test runs the thread for files."""

    def __init__(self, directory: Path) -> None:
        self.files = StepWorker()
        self.machine = Value()
        store = CheckpointStore(RecordingDisk(), directory)
        self.replica = StateReplica(RaftGroup(1, RaftStorage(ALL)), "state", self.machine, store)
        self.written = 0
        self.checkpoints = Checkpoints(
            StorageConfig(),
            FakeClock(),
            self.files,
            lambda _, done: done(False),
            on_written=lambda _: self.count(),
            on_full=self.count,
            on_fault=lambda _: self.count(),
        )

    async def step(self) -> None:
        """Let a checkpoint begin, and the thread write it."""
        await settle()
        self.files.step()

    def count(self) -> None:
        self.written += 1

    def apply_to(self, index: int, value: bytes) -> None:
        self.replica.group.applied_term, self.replica.group.applied_index = 1, index
        self.machine.value = value

    def checkpoint_of(self, index: int, value: bytes) -> Checkpoint:
        """One as a leader makes it."""
        other = StateReplica(RaftGroup(1, RaftStorage(ALL)), "state", Value(), self.replica.store)
        other.machine.apply(value)
        return Checkpoint(CheckpointId(1, index), list(other.checkpoint_records()))


async def test_followers_get_the_newest_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.apply_to(5, b"five")
    assert bench.checkpoints.snapshot(bench.replica) is None
    await bench.step()
    assert bench.written == 1
    assert bench.checkpoints.snapshot(bench.replica) == Snapshot(5, 1, ALL)
    bench.apply_to(6, b"six")
    assert bench.checkpoints.snapshot(bench.replica) == Snapshot(5, 1, ALL)


@pytest.mark.parametrize("index", [6, 7])
async def test_a_change_of_the_configuration_makes_a_newer_checkpoint_for_the_new_member(
    tmp_path: Path, index: int
) -> None:
    bench = Bench(tmp_path)
    bench.apply_to(5, b"five")
    bench.checkpoints.write(bench.replica)
    await bench.step()
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
        bench.checkpoints.install(bench.replica, bench.checkpoint_of(index, value), arrived.append)
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
    bench.checkpoints.install(bench.replica, checkpoint, lambda _: None)
    await bench.step()
    bench.checkpoints.not_needed(bench.replica, checkpoint.id)
    assert bench.machine.value == b"own"
    loaded, _ = bench.replica.store.load()
    assert loaded is not None
    assert split_checkpoint(loaded.records)[1] == [(b"value", b"twenty")]

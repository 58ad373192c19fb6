"""A follower that fetches a checkpoint and is killed at any operation on its disk, with or without
a loss of power; the next start finishes the install, or the leader offers the snapshot again.

Random lives meet each of these moments too seldom: every operation is tried here.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest

from pixy.cluster.log.node_log import LogHooks, LogPeers, NodeLog
from pixy.cluster.log.node_options import NodeOptions
from pixy.cluster.log.recovery import recover_node
from pixy.cluster.log.replica import StateReplica
from pixy.cluster.replicas.state_group_recovery import recover_state_group
from pixy.cluster.snapshots.fetch_snapshot import cut_slice
from pixy.cluster.snapshots.fetch_snapshot_codec import (
    CurrentLeader,
    SliceAnswer,
    decode_request,
    encode_answer,
)
from pixy.cluster.snapshots.snapshot_fetching import FetchingOptions, SnapshotFetching
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import PixyError, Unavailable
from pixy.multiraft.dedup_table import DedupTable
from pixy.multiraft.group_states import checkpoint_record
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.state_pb2 import HardState, NodeIdentity
from pixy.raft import ConfState, Entry, Message, MessageType, Snapshot
from pixy.storage import CheckpointId, CheckpointStore, EntryType, load_identity, run_on
from tests.cluster.state_nodes import GROUP, NAME, Pairs, no_copies
from tests.fakes.clock import FakeClock
from tests.sim.disk import SimulatedDisk
from tests.sim.model import Model
from tests.sim.worker import SimulatedWorker
from tests.sim.world import DIRECTORY, World, run_process
from tests.storage.journals import CLUSTER

VOTERS = (1, 2)
ID = CheckpointId(1, 2000)
SNAPSHOT = Snapshot(ID.end_offset, ID.epoch, ConfState(VOTERS))
OLD = {b"old %d" % number: b"x" for number in range(3)}
NEW = {b"new %d" % number: number.to_bytes(8, "big") for number in range(900)}
SLICE_BYTES = 4000
PHASES = ("before", "middle", "after")


def leaders_file() -> bytes:
    """The checkpoint of the leader."""
    disk = SimulatedDisk(Random(1))
    store = CheckpointStore(disk, DIRECTORY)
    state = checkpoint_record(DedupTable().snapshot(), RaftStorage(SNAPSHOT.conf_state, 1))
    store.write(ID, [state, *NEW.items()], 7)
    return bytes(disk.inode(DIRECTORY / ID.file_name).data)


CONTENT = leaders_file()


class Follower:
    """Node 1, one process after the other on one disk; node 2 leads.

    Attributes:
        positions: of the slices that it has asked for.
        acknowledged: it has told the leader that it has the snapshot.
        found: the state that the last start has found.
        pairs: the state of the last process.
        slices: that the leader answers; it is gone afterwards.
    """

    def __init__(self, disk: SimulatedDisk) -> None:
        clock = FakeClock(monotonic=0.0)
        self.world = World(Random(1), disk, clock, Model(clock))
        self.positions: list[int] = []
        self.acknowledged = False
        self.found: dict[bytes, bytes] = {}
        self.pairs: dict[bytes, bytes] = {}
        self.slices = 1 << 30
        self._log: NodeLog

    @property
    def disk(self) -> SimulatedDisk:
        return self.world.disk

    def names(self) -> list[str]:
        return self.disk.names(DIRECTORY / "state" / NAME)

    def begin(self) -> None:
        """A process that gets entries of the leader, and ends in order."""
        self.disk.make_directory(DIRECTORY)
        load_identity(self.disk, DIRECTORY, NodeIdentity(cluster_id=CLUSTER, node_id=1))
        self.disk.restart()
        run_process(self.world, self._follow)

    def fetch(self) -> None:
        """A process that is offered the snapshot."""
        run_process(self.world, self._fetch)

    def look(self) -> None:
        """A process that only starts."""
        run_process(self.world, self._look)

    async def _open(self) -> StateReplica:
        disk, random_bytes = self.disk, self.world.rng.randbytes
        options = NodeOptions(
            DIRECTORY,
            JournalConfig(file_bytes=4000),
            StorageConfig(),
            random_bytes,
            lambda *_, **__: SimulatedWorker(disk, None),
        )
        files = SimulatedWorker(disk, None)
        recovered = await run_on(files, lambda: recover_node(disk, DIRECTORY, random_bytes))
        fetching = SnapshotFetching(
            self._call, FetchingOptions(CLUSTER.hex(), 1, SLICE_BYTES, attempts_max=2), self._fault
        )
        nothing = lambda *_: None  # noqa: E731  # the same for all
        hooks = LogHooks(nothing, nothing, nothing, nothing, nothing, self._fault)
        peers = LogPeers(send=self._send, fetch=fetching.fetch, random=Random(1))
        self._log = NodeLog(disk, self.world.clock, options, recovered, files, hooks, peers)
        fetching.attach(self._log, no_copies(self._log, self._fault))
        machine = Pairs()
        replica = await recover_state_group(
            self._log, recovered, GROUP, NAME, machine, HardState(voters=VOTERS), StateReplica.apply
        )
        self.found = dict(machine.pairs)
        return replica

    def _fault(self, error: BaseException) -> None:
        if not self.disk.ended:
            raise AssertionError("a disk without failures has one") from error

    def _send(self, _: int, messages: Sequence[tuple[int, Message]]) -> None:
        for _, message in messages:
            if message.type is MessageType.APP_RESP and not message.reject and message.index >= ID.end_offset:
                self.acknowledged = True

    async def _call(self, _: int, payload: bytes, timeout: float) -> bytes:
        header, request = decode_request(payload)
        wanted = request.wanted
        assert wanted is not None
        if self.slices == 0:
            raise Unavailable("the leader is gone")
        self.slices -= 1
        self.positions.append(wanted.position)
        cut = cut_slice(wanted, len(CONTENT), request.max_bytes)
        assert cut is not None
        part = CONTENT[cut.position : cut.position + cut.length]
        leader = CurrentLeader(2, 1)
        answer = SliceAnswer(0, wanted, ID, leader, len(CONTENT), cut.position, part)
        return encode_answer(header, answer)

    async def _follow(self) -> None:
        replica = await self._open()
        entries = [
            Entry(1, index, data=key + b"=" + value, kind=EntryType.COMMAND)
            for index, (key, value) in enumerate(OLD.items(), 1)
        ]
        self._step(MessageType.APP, entries=entries, commit=len(entries))
        await self._log.journal.drained()
        await asyncio.sleep(0.1)
        self._log.checkpoints.write(replica)
        await asyncio.sleep(0.1)
        await self._end(replica)

    async def _fetch(self) -> None:
        replica = await self._open()
        self._step(MessageType.SNAP, snapshot=SNAPSHOT)
        await asyncio.sleep(60.0)
        await self._end(replica)

    async def _look(self) -> None:
        await self._end(await self._open())

    def _step(self, kind: MessageType, **fields: Any) -> None:
        self._log.driver.step(GROUP, Message(kind, 1, 2, 1, **fields))

    async def _end(self, replica: StateReplica) -> None:
        assert isinstance(replica.machine, Pairs)
        self.pairs = dict(replica.machine.pairs)
        await self._log.stop()
        self._log.abandon()


@pytest.fixture(scope="module")
def before() -> SimulatedDisk:
    """The disk of a follower with an old state."""
    follower = Follower(SimulatedDisk(Random(1)))
    follower.begin()
    assert follower.pairs == OLD
    return follower.disk


@pytest.fixture(scope="module")
def new() -> SimulatedDisk:
    """The disk of a follower without any state."""
    disk = SimulatedDisk(Random(1))
    disk.make_directory(DIRECTORY)
    load_identity(disk, DIRECTORY, NodeIdentity(cluster_id=CLUSTER, node_id=1))
    return disk


class Attempt(NamedTuple):
    """A follower whose process ended at an operation, or after the last one.

    Attributes:
        power: 0 if the machine keeps its power, else the seed of what is lost.
        ignored: sites whose syncs do nothing.
    """

    operation: int
    phase: str
    power: int
    ignored: frozenset[str] = frozenset()

    def run(self, disk: SimulatedDisk) -> tuple[Follower, bool]:
        """The follower, and whether its process was killed."""
        follower = Follower(disk.copy())
        follower.disk.restart()
        follower.disk.ignored = self.ignored
        follower.disk.die_at, follower.disk.die_phase = self.operation, self.phase
        follower.fetch()
        was_killed = follower.disk.ended
        if self.power:
            follower.world.disk = follower.disk.crashed(Random(self.power))
        follower.disk.restart()
        return follower, was_killed


def attempts(
    disk: SimulatedDisk, powers: Iterable[int], ignored: frozenset[str] = frozenset()
) -> Iterator[tuple[Attempt, Follower]]:
    """A follower for every operation, phase and loss of power."""
    for phase in PHASES:
        for power in powers:
            was_killed, operation = True, 0
            while was_killed:
                operation += 1
                attempt = Attempt(operation, phase, power, ignored)
                follower, was_killed = attempt.run(disk)
                yield attempt, follower
            assert operation > 20


def check(follower: Follower, old: dict[bytes, bytes]) -> None:
    """Have the leader offer the snapshot again, and look at what the follower has in the end."""
    acknowledged = follower.acknowledged
    follower.positions.clear()
    follower.fetch()
    assert follower.found == NEW or (follower.found == old and not acknowledged)
    assert follower.pairs == NEW
    assert follower.acknowledged
    follower.disk.restart()
    follower.look()
    assert follower.pairs == NEW
    assert not any(name.endswith(".part") for name in follower.names())


def check_all(disk: SimulatedDisk, powers: Iterable[int], old: dict[bytes, bytes]) -> tuple[int, int]:
    """Check every attempt.

    Returns:
        Downloads that went on, and installs that a start finished.
    """
    resumed = finished = 0
    for attempt, follower in attempts(disk, powers):
        acknowledged = follower.acknowledged
        try:
            check(follower, old)
        except (AssertionError, PixyError) as error:
            raise AssertionError(f"{attempt}: {error}") from error
        resumed += bool(follower.positions) and follower.positions[0] > 0
        finished += follower.found == NEW and not acknowledged
    return resumed, finished


@pytest.mark.slow
def test_a_follower_that_is_killed_at_any_moment_gets_the_state(before: SimulatedDisk) -> None:
    resumed, finished = check_all(before, range(1), OLD)
    assert resumed > 10
    assert finished > 3


@pytest.mark.slow
@pytest.mark.parametrize("powers", [[4], pytest.param([1, 2, 3, 5], marks=pytest.mark.long)], ids=str)
def test_a_follower_that_loses_its_power_at_any_moment_gets_the_state(
    before: SimulatedDisk, powers: Sequence[int]
) -> None:
    resumed, finished = check_all(before, powers, OLD)
    assert resumed
    assert finished


@pytest.mark.slow
@pytest.mark.parametrize("powers", [[1], pytest.param([2, 3], marks=pytest.mark.long)], ids=str)
def test_a_new_follower_that_loses_its_power_at_any_moment_gets_the_state(
    new: SimulatedDisk, powers: Sequence[int]
) -> None:
    check_all(new, powers, {})


@pytest.mark.parametrize(
    "sites",
    [
        ["storage/checkpoints/checkpoint.py:CheckpointStore.adopt sync"],
        ["storage/checkpoints/checkpoint_download.py:CheckpointDownload.resume make_directory"],
        [
            "storage/checkpoints/checkpoint.py:CheckpointStore._complete sync_directory",
            "storage/checkpoints/checkpoint.py:CheckpointStore._remove_old sync_directory",
        ],
    ],
)
def test_without_a_sync_a_state_that_was_acknowledged_is_lost(new: SimulatedDisk, sites: list[str]) -> None:
    for power in range(1, 200):
        # After the last operation.
        follower, was_killed = Attempt(10**6, "after", power, frozenset(sites)).run(new)
        assert follower.acknowledged
        assert not was_killed
        try:
            check(follower, {})
        except (AssertionError, PixyError):
            return
    pytest.fail("nothing is lost")


@pytest.mark.parametrize("slices", range(len(CONTENT) // SLICE_BYTES + 1))
def test_a_download_goes_on_after_each_slice(before: SimulatedDisk, slices: int) -> None:
    follower = Follower(before.copy())
    follower.disk.restart()
    follower.slices = slices
    follower.fetch()
    assert (follower.pairs, follower.acknowledged) == (OLD, False)
    follower.disk.restart()
    follower.slices = 1 << 30
    follower.positions.clear()
    follower.fetch()
    assert follower.pairs == NEW
    assert follower.positions[0] <= slices * SLICE_BYTES
    assert (follower.positions[0] > 0) == (slices > 0)

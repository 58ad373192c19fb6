"""Checkpoints fetched from leaders: what a follower has in the end, whatever happens on the way."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pixy.cluster.log.replica import StateReplica
from pixy.cluster.snapshots.fetch_snapshot_codec import (
    CurrentLeader,
    SliceAnswer,
    WantedSlice,
    decode_request,
    encode_answer,
)
from pixy.errors import DeadlineExceeded, Unavailable
from pixy.kafka_protocol import RequestHeader
from pixy.kafka_protocol.snapshot_messages import FETCH_SNAPSHOT_V1
from pixy.multiraft.dedup_table import DedupTable
from pixy.multiraft.group_states import checkpoint_record
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfState, Message, MessageType, Snapshot
from pixy.raft.progress import ProgressState
from pixy.records import build_control_batch, patch_batch
from pixy.storage import CheckpointStore
from tests.cluster.state_nodes import NAME, Pairs, StateNetwork, StateNode, value_of
from tests.fakes.disk import RecordingDisk, full
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

LAST = 700
PATIENCE_S = 11.0


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[StateNetwork]:
    """Nodes 1, 2 and 3; the first leads."""
    made = StateNetwork(tmp_path, 1, 2, 3)
    await made.start(1, 2, 3)
    await made.elect(1)
    yield made
    await made.end()


async def fetched(network: StateNetwork, follower: int = 3) -> None:
    """Run until a follower has the state of the others."""
    leader, node = network[1], network[follower]

    async def same() -> bool:
        await network.tick()
        return node.group.applied_index == leader.group.applied_index

    await until(same)
    assert node.pairs.pairs == leader.pairs.pairs
    assert node.faults == []


def positions(network: StateNetwork) -> list[int]:
    return [position for _, position in network.asked]


def progress(leader: StateNode, follower: int = 3) -> ProgressState:
    assert leader.group.node is not None
    return leader.group.node.raft.tracker.progress[follower].state


def answer_of(network: StateNetwork, answer: SliceAnswer) -> bytes:
    """An answer to the request that was sent last."""
    return encode_answer(RequestHeader(FETCH_SNAPSHOT_V1, len(network.asked), ""), answer)


class Failing:
    """Answers instead of the leader, from the slice at a position on.

    Attributes:
        times: how often.
    """

    def __init__(
        self, network: StateNetwork, answer: Callable[[WantedSlice], object], times: int = 1
    ) -> None:
        self.times = times
        self._answer = answer
        network.intercept = self.intercept  # type: ignore[assignment]

    def intercept(self, _: int, wanted: WantedSlice) -> object:
        if wanted.position < 3000 or not self.times:
            return None
        self.times -= 1
        return self._answer(wanted)


# --- success --------------------------------------------------------------------------------------


async def test_a_follower_behind_the_journal_gets_the_state_slice_by_slice(network: StateNetwork) -> None:
    id = await network.leave_behind(3, network[1], LAST)
    await fetched(network)
    size = (network[1].replica.store.directory / id.file_name).stat().st_size
    assert network.asked == [(1, position) for position in range(0, size, network.slice_bytes)]
    assert network.offers == [(3, id.end_offset)]
    serving, fetching = network[1].serving, network[3].fetching
    assert (serving.sent, serving.sent_bytes) == (fetching.fetched, fetching.fetched_bytes) == (1, size)
    assert fetching.failed == 0
    assert network[3].checkpoints() == [id.file_name]
    assert network[3].replica.checkpoints == [id]


async def test_a_slice_of_more_bytes_than_were_asked_for_is_not_taken(network: StateNetwork) -> None:
    id = await network.leave_behind(3, network[1], LAST)
    content = (network[1].replica.store.directory / id.file_name).read_bytes()

    def answer(wanted: WantedSlice) -> bytes:
        rest = content[wanted.position :]
        assert len(rest) > network.slice_bytes
        whole = SliceAnswer(0, wanted, id, size=len(content), position=wanted.position, content=rest)
        return answer_of(network, whole)

    Failing(network, answer, times=3)
    await fetched(network)
    assert positions(network).count(3000) == 4


async def test_the_state_is_replaced_and_not_merged(network: StateNetwork) -> None:
    await network.write(network[1], 1, 3)
    assert b"2" in network[3].pairs.pairs
    network.cut.add(3)
    network[1].propose(b"2", b"")
    await network.leave_behind(3, network[1], 1)
    await fetched(network)
    assert sorted(network[3].pairs.pairs) == [b"1", b"3"]


async def test_what_follows_the_checkpoint_comes_from_the_journal(network: StateNetwork) -> None:
    await network.leave_behind(3, network[1], LAST)
    network.cut.add(3)
    await network.write(network[1], LAST + 1, LAST + 5)
    network.cut.clear()
    await fetched(network)
    assert len(network[3].pairs.pairs) == LAST + 5


async def test_a_restarted_follower_has_the_fetched_state(network: StateNetwork) -> None:
    id = await network.leave_behind(3, network[1], LAST)
    await fetched(network)
    before = network[3].pairs.pairs
    network.cut.add(3)
    again = await network.restart(3)
    assert again.pairs.pairs == before
    assert again.group.storage.start == (id.epoch, id.end_offset)


async def test_the_core_waits_until_the_data_is_durable(network: StateNetwork) -> None:
    id = await network.leave_behind(3, network[1], LAST)
    follower = network[3]
    before = follower.group.applied_index
    follower.disk.calls.clear()
    reset: list[int] = []

    def look(wanted: WantedSlice) -> None:
        reset.append(follower.group.applied_index)

    Failing(network, look, times=1000)
    await fetched(network)
    assert set(reset) == {before}
    calls = [call.what for call in follower.disk.calls if id.file_name in call.name or NAME in call.name]
    assert calls[-4:] == ["sync", "rename", "sync_directory", "sync_directory"]


async def test_a_snapshot_that_is_not_needed_any_more_is_not_fetched(network: StateNetwork) -> None:
    await network.leave_behind(3, network[1], LAST)
    follower = network[3]

    def meanwhile(wanted: WantedSlice) -> None:
        # Its entries come from a leader with a longer journal.
        node = follower.group.node
        assert node is not None
        node.raft.log.committed = wanted.id.end_offset

    before, committed = follower.group.applied_index, follower.group.node
    assert committed is not None
    kept = committed.raft.log.committed
    Failing(network, meanwhile)
    await network.tick(2)
    await until(lambda: follower.checkpoints() == [])
    assert positions(network) == [0, 1000, 2000, 3000]
    assert follower.group.applied_index == before
    committed.raft.log.committed = kept


# --- connection and process -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [Unavailable("lost"), DeadlineExceeded("late"), ConnectionResetError("reset")]
)
async def test_a_lost_connection_costs_one_slice(network: StateNetwork, error: Exception) -> None:
    await network.leave_behind(3, network[1], LAST)
    Failing(network, lambda _: error, times=2)
    await fetched(network)
    assert positions(network)[:7] == [0, 1000, 2000, 3000, 3000, 3000, 4000]
    assert len(network.offers) == 1


async def test_a_follower_without_a_connection_goes_on_when_the_leader_offers_again(
    network: StateNetwork,
) -> None:
    await network.leave_behind(3, network[1], LAST)
    Failing(network, lambda _: Unavailable("lost"), times=5)
    await network.tick(2)
    await until(lambda: positions(network)[-5:] == [3000] * 5)
    await network.tick(3)
    assert progress(network[1]) is ProgressState.SNAPSHOT
    assert len(network.offers) == 1, "it does not ask without pause"
    network.asked.clear()
    look_after(network[1])
    await fetched(network)
    assert 0 < positions(network)[0] <= 3000, "behind the last whole batch"
    assert len(network.offers) == 2


def look_after(leader: StateNode) -> None:
    """Let the leader run out of patience."""
    now = 0.0
    for later in (0.0, PATIENCE_S):
        leader.serving.sweep(1e6 + now + later)


async def test_a_restarted_follower_goes_on_behind_the_last_whole_batch(network: StateNetwork) -> None:
    id = await network.leave_behind(3, network[1], 2000)
    Failing(network, lambda _: Unavailable("lost"), times=1000)
    network.slice_bytes = 20000
    await network.restart(3)
    network[1].serving.lost(3)
    await network.tick(2)
    await until(lambda: 20000 in positions(network))
    assert network[3].checkpoints() == [id.part_name]
    await network.restart(3)
    assert network[3].checkpoints() == [id.part_name]
    network.intercept = lambda *_: None
    network.asked.clear()
    network[1].serving.lost(3)
    await fetched(network)
    assert 10000 < positions(network)[0] < 20000
    assert network[3].checkpoints() == [id.file_name]


async def test_a_complete_download_is_installed_after_a_restart_without_a_request(
    network: StateNetwork,
) -> None:
    id = await network.leave_behind(3, network[1], LAST)
    content = (network[1].replica.store.directory / id.file_name).read_bytes()
    directory = network[3].replica.store.directory
    network.cut.add(3)
    await network.restart(3)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / id.part_name).write_bytes(content)
    network.cut.clear()
    await fetched(network)
    assert network.asked == []


async def test_a_stop_keeps_what_has_arrived(network: StateNetwork) -> None:
    id = await network.leave_behind(3, network[1], LAST)
    Failing(network, lambda _: Unavailable("lost"), times=1000)
    await network.tick(2)
    await until(lambda: 3000 in positions(network))
    await network[3].fetching.stop()
    assert network[3].checkpoints() == [id.part_name]
    network.asked.clear()
    look_after(network[1])
    await network.tick(2)
    assert network.asked == []


# --- change of the leader -------------------------------------------------------------------------


def other_leader(network: StateNetwork, records: Callable[[list[tuple[bytes, bytes]]], None]) -> bytes:
    """A checkpoint of the same id as another leader may have written it."""
    replica = network[1].replica
    id = replica.checkpoints[-1]
    changed = list(network[1].pairs.snapshot())
    records(changed)
    state = checkpoint_record(replica.rows.snapshot(), replica.group.storage)
    store = CheckpointStore(RecordingDisk(), network.directory / "other")
    store.write(id, [state, *changed], 5)
    return (store.directory / id.file_name).read_bytes()


def switch(network: StateNetwork, content: bytes) -> None:
    """From the fourth slice on another leader answers."""

    def answer(wanted: WantedSlice) -> bytes:
        part = content[wanted.position : wanted.position + network.slice_bytes]
        leader = CurrentLeader(2, 1)
        return answer_of(
            network, SliceAnswer(0, wanted, wanted.id, leader, len(content), wanted.position, part)
        )

    switched = False

    def intercept(_: int, wanted: WantedSlice) -> bytes | None:
        nonlocal switched
        switched = switched or wanted.position >= 3000
        return answer(wanted) if switched else None

    network.intercept = intercept


async def test_a_file_of_the_same_size_is_gone_on_with_at_another_leader(network: StateNetwork) -> None:
    await network.leave_behind(3, network[1], LAST)
    switch(network, other_leader(network, lambda _: None))
    await fetched(network)
    assert positions(network) == sorted(set(positions(network)))


async def test_a_file_of_another_size_is_begun_anew(network: StateNetwork) -> None:
    await network.leave_behind(3, network[1], LAST)

    def longer(records: list[tuple[bytes, bytes]]) -> None:
        records.sort(reverse=True)
        records += [(b"more %d" % at, value_of(at * 977)) for at in range(20)]

    content = other_leader(network, longer)
    switch(network, content)
    await network.tick(2)
    await until(lambda: network[3].group.applied_index == network[1].group.applied_index)
    assert positions(network)[:6] == [0, 1000, 2000, 3000, 0, 1000]
    assert len(network[3].pairs.pairs) == LAST + 20


async def test_a_mixture_of_two_files_is_noticed_and_fetched_again(network: StateNetwork) -> None:
    network.cut.add(3)
    for number in range(1500):
        network[1].propose(b"%04d" % number, b"same")
    await network.run()
    await network.leave_behind(3, network[1], 0)
    own = (network[1].replica.store.directory / network[1].replica.checkpoints[-1].file_name).read_bytes()
    content = other_leader(network, lambda records: records.reverse())
    assert len(own) == len(content)
    switch(network, content)
    await fetched(network)
    assert positions(network).count(0) == 2


async def test_a_checkpoint_that_the_leader_does_not_have_is_replaced_by_its_newest(
    network: StateNetwork,
) -> None:
    await network.leave_behind(3, network[1], LAST)
    Failing(network, lambda wanted: answer_of(network, SliceAnswer(98, wanted)))
    await network.tick()
    network.cut.add(3)
    await network.write(network[1], LAST + 1, LAST + 3)
    newest = await network.compact(network[1])
    network.cut.clear()
    await fetched(network)
    assert network.offers[-1] == (3, newest.end_offset)
    assert network[3].checkpoints() == [newest.file_name]


async def test_a_leader_that_offers_what_it_does_not_have_is_not_asked_without_pause(
    network: StateNetwork,
) -> None:
    await network.leave_behind(3, network[1], LAST)
    network.intercept = lambda _, wanted: answer_of(network, SliceAnswer(98, wanted))
    await network.tick(20)
    assert len(network.offers) == 2, "again at once, and then when the leader loses its patience"
    network.intercept = lambda *_: None
    look_after(network[1])
    await fetched(network)


async def test_a_new_leader_is_asked_for_the_rest(network: StateNetwork) -> None:
    await network.leave_behind(3, network[1], LAST)
    await network.compact(network[2])
    lost = Failing(network, lambda _: Unavailable("lost"), times=2)
    await network.tick()
    await until(lambda: lost.times < 2)
    network.cut.add(1)
    await network.elect(2)
    await network.tick(2)
    await until(lambda: network[3].pairs.pairs == network[2].pairs.pairs)
    assert {node for node, _ in network.asked} == {1, 2}


# --- damage ---------------------------------------------------------------------------------------


def damage(network: StateNetwork, times: int) -> None:
    """A flipped bit in the fourth slice."""
    left = times

    async def call(sender: int, peer: int, payload: bytes) -> bytes:
        nonlocal left
        answer = bytearray(await passed(sender, peer, payload))
        if network.asked[-1][1] == 3000 and left:
            left -= 1
            answer[500] ^= 1
        return bytes(answer)

    passed, network.call = network.call, call


async def test_a_damaged_download_is_begun_anew(network: StateNetwork) -> None:
    await network.leave_behind(3, network[1], LAST)
    damage(network, 1)
    await fetched(network)
    assert positions(network).count(0) == 2


async def test_a_checkpoint_that_stays_damaged_is_not_installed(network: StateNetwork) -> None:
    id = await network.leave_behind(3, network[1], LAST)
    damage(network, 2)
    await network.tick(2)
    await until(lambda: positions(network).count(3000) == 2 and network[3].checkpoints() == [])
    await network.tick(20)
    assert network.offers == [(3, id.end_offset)]
    assert progress(network[1]) is ProgressState.SNAPSHOT
    assert network[3].pairs.pairs == {}
    look_after(network[1])
    await fetched(network)


class Choosy(Pairs):
    """A state machine whose commands never make the key `7`."""

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        super().restore(records)
        if b"7" in self.pairs:
            raise ValueError("key 7")


async def test_a_checkpoint_that_no_node_writes_is_not_installed(network: StateNetwork) -> None:
    follower = network[3]
    follower.replica.machine = follower.pairs = Choosy()
    await network.leave_behind(3, network[1], LAST)
    with capture_logs() as logs:
        await network.tick(2)
        await until(lambda: any(each["event"] == "a checkpoint cannot be fetched" for each in logs))
    [reason] = [each["reason"] for each in logs if each["event"] == "a checkpoint cannot be fetched"]
    assert "the checkpoint of metadata has records that no node writes: key 7" in reason
    assert (follower.faults, follower.unexpected, follower.pairs.pairs) == ([], [], {})


async def test_a_checkpoint_of_a_newer_release_is_not_installed(network: StateNetwork) -> None:
    await network.leave_behind(3, network[1], LAST)
    newer = build_control_batch(3, b"\0\1" + bytes(9), 0)
    patch_batch(newer, 0, 1)
    network.intercept = lambda _, wanted: answer_of(
        network, SliceAnswer(0, wanted, wanted.id, None, len(newer), 0, bytes(newer))
    )
    await network.tick(2)
    await until(lambda: network.asked != [] and network[3].checkpoints() == [])
    await network.tick(5)
    assert (network[3].pairs.pairs, network[3].faults) == ({}, [])


async def test_a_checkpoint_with_other_members_is_not_installed(network: StateNetwork) -> None:
    id = await network.leave_behind(3, network[1], LAST)
    store = CheckpointStore(RecordingDisk(), network.directory / "other")
    state = checkpoint_record(DedupTable().snapshot(), RaftStorage(ConfState((1, 2)), 1))
    store.write(id, [state], 0)
    content = (store.directory / id.file_name).read_bytes()
    network.intercept = lambda _, wanted: answer_of(
        network, SliceAnswer(0, wanted, wanted.id, None, len(content), 0, content)
    )
    await network.tick(2)
    await until(lambda: network.asked != [] and network[3].checkpoints() == [])
    assert network[3].group.applied_index < id.end_offset


# --- the disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["create", "allocate", "write", "make_directory"])
async def test_a_full_disk_ends_the_download_and_it_is_repeated(network: StateNetwork, what: str) -> None:
    await network.leave_behind(3, network[1], LAST)
    follower = network[3]
    full(follower.disk, what, NAME if what == "make_directory" else ".part")
    await network.tick(10)
    assert len(network.offers) == 1
    assert follower.checkpoints() == []
    follower.disk.heal()
    look_after(network[1])
    await fetched(network)


async def test_a_full_disk_at_the_end_is_no_end_of_the_node(network: StateNetwork) -> None:
    await network.leave_behind(3, network[1], LAST)
    full(network[3].disk, "rename", ".checkpoint")
    await network.tick(10)
    assert network[3].group.applied_index < network[1].group.applied_index
    network[3].disk.heal()
    look_after(network[1])
    await fetched(network)
    assert positions(network).count(0) == 1, "the file was complete"


@pytest.mark.parametrize(
    ("what", "ending"), [("write", ".part"), ("sync", ".part"), ("sync_directory", NAME)]
)
async def test_any_other_error_of_the_disk_is_a_fault(network: StateNetwork, what: str, ending: str) -> None:
    await network.leave_behind(3, network[1], LAST)
    network[3].disk.fail(what, ending, errno.EIO)
    await network.tick(2)
    await until(lambda: network[3].faults)
    assert network[3].pairs.pairs == {}


# --- several --------------------------------------------------------------------------------------


class Held:
    """Calls that wait until they are let go."""

    def __init__(self, network: StateNetwork) -> None:
        self.go = asyncio.Event()
        self.topics: list[str] = []
        self._passed, network.call = network.call, self._call

    async def _call(self, sender: int, peer: int, payload: bytes) -> bytes:
        wanted = decode_request(payload)[1].wanted
        assert wanted is not None
        self.topics.append(wanted.topic)
        await self.go.wait()
        return await self._passed(sender, peer, payload)


async def test_a_later_snapshot_replaces_the_download_of_a_group(network: StateNetwork) -> None:
    """The core needs another one: here it was told that the first has failed."""
    await network.leave_behind(3, network[1], LAST)
    follower = network[3]
    held = Held(network)
    await network.tick()
    await until(lambda: held.topics)
    network.cut.add(3)
    await network.write(network[1], LAST + 1, LAST + 3)
    newest = await network.compact(network[1])
    network.cut.clear()
    node = follower.group.node
    assert node is not None
    assert node.raft.awaited_snapshot is not None
    assert node.raft.awaited_snapshot.snapshot is not None
    follower.log.driver.snapshots.failed(follower.group, node.raft.awaited_snapshot.snapshot)
    await network.tick(2)
    await until(lambda: len(held.topics) == 2)
    held.go.set()
    await fetched(network)
    assert follower.checkpoints() == [newest.file_name]
    assert len(network.offers) == 2


async def test_downloads_at_a_time_are_limited(network: StateNetwork) -> None:
    follower, held = network[3], Held(network)
    names = [f"groups-{number}" for number in range(4)]
    for number, name in enumerate(names, 2):
        group = follower.log.driver.group(number, ConfState((1, 2, 3)))
        store = CheckpointStore(follower.disk, follower.directory / "state" / name)
        follower.log.bind(StateReplica(group, name, Pairs(), store), StateReplica.apply)
        message = Message(MessageType.SNAP, 3, 1, 1, snapshot=Snapshot(9, 1, ConfState((1, 2, 3))))
        follower.log.driver.step(number, message)
    await until(lambda: len(held.topics) == 2)
    await network.run()
    assert held.topics == names[:2]
    held.go.set()
    await until(lambda: set(held.topics) == set(names))


async def test_a_group_that_nobody_knows_yet_is_asked_about_later(network: StateNetwork) -> None:
    await network.leave_behind(3, network[1], LAST)
    follower = network[3]
    application, follower.group.application = follower.group.application, None
    await network.tick(10)
    assert (network.asked, len(network.offers)) == ([], 1)
    follower.group.application = application
    look_after(network[1])
    await fetched(network)


async def test_a_new_leader_needs_no_snapshot(network: StateNetwork) -> None:
    await network.leave_behind(3, network[1], LAST)
    follower, held = network[3], Held(network)
    await network.tick()
    await until(lambda: held.topics)
    node = follower.group.node
    assert node is not None
    node.raft.become_candidate()
    node.raft.become_leader()
    held.go.set()
    await until(lambda: network.asked and follower.checkpoints() == [])
    await network.run()
    assert (len(network.asked), follower.checkpoints()) == (1, [])
    node.raft.become_follower(node.raft.term, 0)


async def test_an_unexpected_exception_is_a_fault(network: StateNetwork) -> None:
    await network.leave_behind(3, network[1], LAST)

    async def call(*_: object) -> bytes:
        raise ZeroDivisionError

    passed, network.call = network.call, call
    await network.tick(2)
    await until(lambda: network[3].unexpected)
    assert isinstance(network[3].unexpected[0], ZeroDivisionError)
    network.call = passed
    look_after(network[1])
    await fetched(network)

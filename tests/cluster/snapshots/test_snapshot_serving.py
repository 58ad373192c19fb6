"""Checkpoints for followers: files on the disk, signs of life, and followers that are silent."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pixy.cluster.snapshots.fetch_snapshot import FetchSnapshotError
from pixy.cluster.snapshots.fetch_snapshot_codec import (
    CurrentLeader,
    SliceAnswer,
    SliceRequest,
    WantedSlice,
    decode_answer,
    encode_request,
)
from pixy.cluster.snapshots.snapshot_serving import ServingOptions
from pixy.errors import InvalidArgument
from pixy.raft.progress import Progress, ProgressState
from pixy.storage import CheckpointId, File
from tests.cluster.state_nodes import NAME, StateNetwork, StateNode
from tests.fakes.waiting import settle
from tests.sim.loop import VirtualLoop
from tests.storage.journals import CLUSTER

pytestmark = pytest.mark.slow

Error = FetchSnapshotError
SNAPSHOT, PROBE = ProgressState.SNAPSHOT, ProgressState.PROBE


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[StateNetwork]:
    """Nodes 1, 2 and 3; the first leads, and the last one is behind its journal."""
    made = StateNetwork(tmp_path, 1, 2, 3)
    made.serving = ServingOptions(slice_bytes=5000, open_files=2)
    await made.start(1, 2, 3)
    await made.elect(1)
    await made.leave_behind(3, made[1], 400)
    yield made
    await made.end()


async def ask(
    node: StateNode, position: int = 0, id: CheckpointId | None = None, **changes: object
) -> SliceAnswer:
    """The answer of a node to node 3."""
    id = id or node.replica.checkpoints[-1]
    wanted = WantedSlice(NAME, 0, 1, id, position)._replace(**changes)  # type: ignore[arg-type]
    request = SliceRequest(CLUSTER.hex(), 3, 1 << 20, wanted)
    return decode_answer(await node.serving.answer(3, encode_request(request, 1)), wanted, 1)


def content(node: StateNode, id: CheckpointId | None = None) -> bytes:
    id = id or node.replica.checkpoints[-1]
    return (node.replica.store.directory / id.file_name).read_bytes()


def progress(leader: StateNode, peer: int = 3) -> Progress:
    assert leader.group.node is not None
    return leader.group.node.raft.tracker.progress[peer]


async def overtake(network: StateNetwork) -> CheckpointId:
    """Two newer checkpoints replace the one that a follower fetches."""
    leader = network[1]
    id = leader.replica.checkpoints[-1]
    for number in (1001, 1002):
        await network.write(leader, number, number)
        await network.compact(leader)
    assert id.file_name not in leader.checkpoints()
    return id


# --- answers --------------------------------------------------------------------------------------


async def test_slices_make_the_file(network: StateNetwork) -> None:
    leader, whole = network[1], content(network[1])
    got = bytearray()
    while len(got) < len(whole):
        answer = await ask(leader, len(got))
        assert (answer.error, answer.id, answer.size) == (0, leader.replica.checkpoints[-1], len(whole))
        assert (answer.position, answer.leader) == (len(got), CurrentLeader(1, 1))
        assert len(answer.content) == min(5000, len(whole) - len(got))
        got += answer.content
    assert got == whole


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topic": "groups-9"}, Error.UNKNOWN_TOPIC_OR_PARTITION),
        ({"epoch": 0}, Error.FENCED_LEADER_EPOCH),
        ({"epoch": 2}, Error.UNKNOWN_LEADER_EPOCH),
        ({"id": CheckpointId(1, 399)}, Error.SNAPSHOT_NOT_FOUND),
        ({"position": -1}, Error.POSITION_OUT_OF_RANGE),
        ({"position": 1 << 40}, Error.POSITION_OUT_OF_RANGE),
    ],
)
async def test_errors_name_the_leader(
    network: StateNetwork, changes: dict[str, object], error: Error
) -> None:
    answer = await ask(network[1], **changes)  # type: ignore[arg-type]
    assert (answer.error, answer.content) == (error, b"")
    assert answer.leader == (None if "topic" in changes else CurrentLeader(1, 1))


async def test_a_follower_names_its_leader(network: StateNetwork) -> None:
    answer = await ask(network[2], id=CheckpointId(1, 5))
    assert (answer.error, answer.leader) == (Error.NOT_LEADER_OR_FOLLOWER, CurrentLeader(1, 1))


async def test_a_node_that_has_not_used_the_group_yet_knows_the_term(network: StateNetwork) -> None:
    node = network[2]
    node.group.node, kept = None, node.group.node
    answer = await ask(node, id=CheckpointId(1, 5))
    assert (answer.error, answer.leader) == (Error.NOT_LEADER_OR_FOLLOWER, CurrentLeader(-1, 1))
    node.group.node = kept


async def test_a_node_that_stops_serves_nothing(network: StateNetwork) -> None:
    network[1].serving.start()
    network[1].serving.stop()
    assert (await ask(network[1])).error == Error.BROKER_NOT_AVAILABLE


async def test_another_cluster_is_refused(network: StateNetwork) -> None:
    wanted = WantedSlice(NAME, 0, 1, network[1].replica.checkpoints[-1], 0)
    payload = encode_request(SliceRequest("other", 3, 100, wanted), 1)
    answer = decode_answer(await network[1].serving.answer(3, payload), wanted, 1)
    assert answer == SliceAnswer(Error.INCONSISTENT_CLUSTER_ID)


async def test_malformed_bytes_are_an_error_of_the_call(network: StateNetwork) -> None:
    with pytest.raises(InvalidArgument, match="a malformed FetchSnapshot request"):
        await network[1].serving.answer(3, b"what is this")


# --- files ----------------------------------------------------------------------------------------


async def test_a_checkpoint_that_is_being_fetched_outlives_its_removal(network: StateNetwork) -> None:
    whole = content(network[1])
    await ask(network[1])
    id = await overtake(network)
    answer = await ask(network[1], 5000, id)
    assert (answer.error, answer.content) == (0, whole[5000:10000])
    assert (await ask(network[1])).id > id


async def test_a_checkpoint_that_nobody_fetched_is_gone(network: StateNetwork) -> None:
    id = await overtake(network)
    assert (await ask(network[1], id=id)).error == Error.SNAPSHOT_NOT_FOUND


async def test_a_file_that_vanished_is_not_found(network: StateNetwork) -> None:
    id = network[1].replica.checkpoints[-1]
    (network[1].replica.store.directory / id.file_name).unlink()
    assert (await ask(network[1])).error == Error.SNAPSHOT_NOT_FOUND


@pytest.mark.parametrize("fault", ["vanished", "damaged", "unreadable"])
async def test_a_checkpoint_that_cannot_be_served_is_written_again(network: StateNetwork, fault: str) -> None:
    leader = network[1]
    id = leader.replica.checkpoints[-1]
    path = leader.replica.store.directory / id.file_name
    if fault == "vanished":
        path.unlink()
    elif fault == "damaged":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    else:
        leader.disk.unreadable.add(path)
    await network.tick(3)
    assert network[3].group.applied == leader.group.applied
    assert leader.replica.checkpoints == [id], "written again"


async def test_a_file_that_cannot_be_read_is_logged_and_tried_again(
    network: StateNetwork, capsys: pytest.CaptureFixture[str]
) -> None:
    leader = network[1]

    class Broken:
        def open(self, id: CheckpointId) -> File:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    store, leader.replica.store.open = leader.replica.store.open, Broken().open  # type: ignore[method-assign]
    assert (await ask(leader)).error == Error.UNKNOWN_SERVER_ERROR
    output = capsys.readouterr().out
    assert "a checkpoint cannot be read for a follower" in output
    assert leader.replica.checkpoints[-1].file_name in output
    leader.replica.store.open = store  # type: ignore[method-assign]
    assert (await ask(leader)).error == 0
    assert leader.faults == []


async def test_files_that_nobody_reads_are_closed(network: StateNetwork) -> None:
    await ask(network[1])
    id = await overtake(network)
    network[1].serving.sweep(0.0)
    assert (await ask(network[1], id=id)).error == 0
    network[1].serving.sweep(1e9)
    await settle()
    assert (await ask(network[1], id=id)).error == Error.SNAPSHOT_NOT_FOUND


async def test_few_files_are_open_at_a_time(network: StateNetwork) -> None:
    leader = network[1]
    ids = []
    for number in (1001, 1002, 1003):
        await network.write(leader, number, number)
        ids.append(await network.compact(leader))
        await ask(leader)
    await overtake(network)
    assert [(await ask(leader, id=id)).error for id in ids] == [Error.SNAPSHOT_NOT_FOUND, 0, 0]


# --- followers ------------------------------------------------------------------------------------


async def test_a_slice_is_a_sign_of_life(network: StateNetwork) -> None:
    leader = network[1]
    progress(leader).recently_active = False
    await ask(leader, id=CheckpointId(1, 1))
    assert not progress(leader).recently_active
    await ask(leader)
    assert progress(leader).recently_active
    wanted = WantedSlice(NAME, 0, 1, leader.replica.checkpoints[-1], 0)
    await leader.serving.answer(99, encode_request(SliceRequest(None, 99, 10, wanted), 1))


async def test_a_slice_is_a_sign_of_life_of_the_node_that_asks_whoever_it_says_it_is(
    network: StateNetwork,
) -> None:
    leader = network[1]
    progress(leader).recently_active = progress(leader, 2).recently_active = False
    wanted = WantedSlice(NAME, 0, 1, leader.replica.checkpoints[-1], 0)
    await leader.serving.answer(2, encode_request(SliceRequest(None, 3, 10, wanted), 1))
    assert (progress(leader).recently_active, progress(leader, 2).recently_active) == (False, True)


async def offer(network: StateNetwork) -> None:
    """The leader sends node 3 a snapshot; node 3 says nothing."""
    network[3].fetching.fetch = lambda *_: None  # type: ignore[method-assign]
    await network.tick()
    assert progress(network[1]).state is SNAPSHOT
    network[1].serving.sweep(0.0)


async def test_a_silent_follower_is_sent_a_snapshot_again(network: StateNetwork) -> None:
    await offer(network)
    network[1].serving.sweep(9.9)
    assert progress(network[1]).state is SNAPSHOT
    network[1].serving.sweep(10.0)
    assert (progress(network[1]).state, progress(network[1]).next) == (PROBE, progress(network[1]).match + 1)
    await network.tick()
    assert progress(network[1]).state is SNAPSHOT


async def test_a_follower_that_got_everything_is_probed_behind_it(network: StateNetwork) -> None:
    await offer(network)
    leader = network[1]
    for position in range(0, len(content(leader)), 5000):
        await ask(leader, position)
    leader.serving.sweep(1e9)
    assert (progress(leader).state, progress(leader).next) == (
        PROBE,
        leader.replica.checkpoints[-1].end_offset + 1,
    )


def test_a_timer_looks_after_followers(tmp_path: Path) -> None:
    async def live() -> None:
        network = StateNetwork(tmp_path, 1, 2, 3)
        await network.start(1, 2, 3)
        await network.elect(1)
        await network.leave_behind(3, network[1], 10)
        await offer(network)
        leader = network[1]
        leader.serving.start()
        await asyncio.sleep(9.5)
        assert progress(leader).state is SNAPSHOT
        await asyncio.sleep(2.5)
        assert progress(leader).state is PROBE
        await network.tick()
        leader.serving.stop()
        await asyncio.sleep(100.0)
        assert progress(leader).state is SNAPSHOT
        await network.end()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(live())


async def test_a_lost_connection_is_reported_at_once(network: StateNetwork) -> None:
    await offer(network)
    network[1].serving.lost(2)
    assert progress(network[1]).state is SNAPSHOT
    network[1].serving.lost(3)
    assert progress(network[1]).state is PROBE


async def test_a_group_is_looked_after_while_a_follower_waits(network: StateNetwork) -> None:
    await offer(network)
    leader = network[1]
    offered = leader.log.driver.snapshots.offered
    assert list(offered) == [leader.group]
    progress(leader).become_probe()
    leader.serving.sweep(1.0)
    assert list(offered) == []


async def test_a_leader_that_was_deposed_reports_nobody(network: StateNetwork) -> None:
    await offer(network)
    await network.elect(2)
    network[1].serving.sweep(1e9)
    assert list(network[1].log.driver.snapshots.offered) == []

"""Pieces of stages that a replica lacks when it gets an entry that needs them."""

import asyncio
import errno
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from pixy.backend import TopicPartition
from pixy.cluster import PartitionReplica
from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.cluster.publications.sideloading import PieceRef, Sideloading
from pixy.cluster.state.piece_checks import PIECE_BYTES_MAX
from pixy.multiraft.driver import Driver
from pixy.proto.node_calls_pb2 import GetPieceRequest, GetPieceResponse
from pixy.proto.state_pb2 import StagedPiece
from pixy.raft import Message, MessageType
from pixy.records import NewRecord, build_batch, crc32c, read_header
from pixy.staging import PieceKey
from pixy.storage import EntryType
from tests.cluster.node_clusters import ClusterNode, NodeCluster, leaders, run_cluster
from tests.cluster.peering.test_forwarded_proposals import large
from tests.conformance.staged import publish_values, stage_values
from tests.fakes.batches import BROKEN_RECORD, raw_batch, raw_record
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)


def replica_of(node: ClusterNode) -> PartitionReplica:
    replica = node.node.partition(TOPIC)
    assert replica is not None
    return replica


def files_of(node: ClusterNode) -> list[Path]:
    """Files with pieces; a write that has failed leaves an empty one."""
    directory = node.cluster.directory / str(node.number) / "pieces"
    return sorted(path for path in directory.glob("*") if path.stat().st_size)


async def leader_and_followers(cluster: NodeCluster) -> list[ClusterNode]:
    """The leader of the partition and the others."""
    await cluster[1].backend.create_topic("topic", 1)
    await cluster[1].append(b"first")
    await until(lambda: leaders([cluster[1]])[0] - {0})
    (leader_id,) = leaders([cluster[1]])[0]
    return sorted(cluster.nodes.values(), key=lambda node: node.id != leader_id)


def is_applied(node: ClusterNode, like: ClusterNode) -> bool:
    """True if a node has applied everything that another one has."""
    return replica_of(node).log.end_offset == replica_of(like).log.end_offset


def test_a_follower_confirms_an_entry_once_it_has_fetched_its_data(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, one, two = await leader_and_followers(cluster)
        two.disk.fail("write", ".pieces", errno.ENOSPC)
        await stage_values(one.backend, "sink", "stage", {TOPIC: [b"a"]})
        await leader.append(b"behind")
        assert (await one.backend.publish("sink", 1, "query", ["stage"])).published
        await until(lambda: is_applied(one, leader))
        await asyncio.sleep(3)
        assert not is_applied(two, leader), "neither the entry, nor those behind it"
        assert [len(files_of(node)) for node in (leader, one, two)] == [1, 1, 0]
        two.disk.heal()
        await until(lambda: is_applied(two, leader))
        assert files_of(two)
        for node in cluster.nodes.values():
            assert await node.values() == [b"first", b"behind", b"a"]

    run_cluster(scenario, tmp_path)


def test_a_leader_fetches_the_data_of_an_entry_before_it_appends_it(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, one, _ = await leader_and_followers(cluster)
        leader.disk.fail("write", ".pieces", errno.ENOSPC)
        staging = asyncio.create_task(stage_values(one.backend, "sink", "stage", {TOPIC: [b"a"]}))
        await asyncio.sleep(1.5)
        assert not staging.done()
        assert not files_of(leader)
        leader.disk.heal()
        await staging
        assert files_of(leader)
        assert (await leader.backend.publish("sink", 1, "query", ["stage"])).published
        for node in cluster.nodes.values():
            assert await node.values() == [b"first", b"a"]

    run_cluster(scenario, tmp_path)


def test_data_with_a_wrong_checksum_is_fetched_from_another_replica(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, one, two = await leader_and_followers(cluster)
        await two.kill()
        await stage_values(one.backend, "sink", "stage", {TOPIC: [b"a value to be damaged"]})
        path = files_of(leader)[0]
        path.write_bytes(path.read_bytes().replace(b"to be damaged", b"that is wrong"))
        await two.start()
        await until(lambda: files_of(two))
        assert b"a value to be damaged" in files_of(two)[0].read_bytes()
        # The leader has found its copy damaged as soon as it reads it: another one serves.
        assert (await two.backend.publish("sink", 1, "query", ["stage"])).published
        await until(lambda: replica_of(two).log.end_offset == 2)
        assert await two.values() == [b"first", b"a value to be damaged"]

    run_cluster(scenario, tmp_path)


def test_large_data_is_fetched_in_slices(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, one, two = await leader_and_followers(cluster)
        await two.kill()
        large = bytes(range(256)) * (9 << 12)
        await publish_values(one.backend, 1, {TOPIC: [large]})
        await two.start()
        await until(lambda: is_applied(two, leader))
        assert (await two.values())[1] == large

    run_cluster(scenario, tmp_path)


class AnsweringReplicas:
    """Nodes that answer questions for pieces as they like.

    Args:
        answer: bytes of the piece for a request.

    Attributes:
        asked: number of questions.
    """

    def __init__(
        self,
        nodes: Iterable[ClusterNode],
        answer: Callable[[GetPieceRequest], bytes],
        delay_s: float = 0.0,
    ) -> None:
        self._answer = answer
        self._delay_s = delay_s
        self.asked = 0
        for node in nodes:
            assert node.node.peers is not None
            node.node.peers._duties.methods[PeerMethod.GET_PIECE] = self._get  # type: ignore[index]  # a dict

    async def _get(self, _: int, payload: bytes) -> bytes:
        self.asked += 1
        assert self.asked < 100, "it asks on and on"
        await asyncio.sleep(self._delay_s)
        batches = self._answer(GetPieceRequest.FromString(payload))
        return GetPieceResponse(found=True, batches=batches).SerializeToString()


def sideloading_of(node: ClusterNode) -> Sideloading:
    assert node.node._sideloading is not None
    return node.node._sideloading


@pytest.mark.parametrize(
    ("size", "answers"),
    [
        (2**60, 2**20),
        (PIECE_BYTES_MAX + 1, 2**20),
        (1000, 1001),
        (1000, 2**20),
        (1000, 1),
        (5 << 20, 1),
        (1000, 0),
    ],
)
def test_a_replica_that_answers_with_other_bytes_than_were_asked_for_is_not_asked_again(
    tmp_path: Path, size: int, answers: int
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, *others = await leader_and_followers(cluster)
        hostile = AnsweringReplicas(others, lambda _: bytes(answers))
        group = replica_of(leader).group
        assert group is not None
        ref = PieceRef(PieceKey(1, group.raft_group, 0, 1), size, 1)
        assert not await sideloading_of(leader).fetch(group, [ref])
        assert hostile.asked == (len(others) if size <= PIECE_BYTES_MAX else 0)

    run_cluster(scenario, tmp_path)


def test_a_replica_that_answers_slowly_does_not_keep_others_from_fetching(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, *others = await leader_and_followers(cluster)
        batch = bytes(build_batch([NewRecord(None, bytes(20 << 20), (), 1)]))
        AnsweringReplicas(others, lambda asked: batch[asked.position : asked.position + asked.max_bytes], 4.9)
        group, loop = replica_of(leader).group, asyncio.get_running_loop()
        assert group is not None
        keys = [PieceKey(1, group.raft_group, number, crc32c(batch)) for number in range(3)]
        missing = [PieceRef(key, len(batch), 1) for key in keys]
        began = loop.time()
        assert not await sideloading_of(leader).fetch(group, missing)
        assert loop.time() - began < 61, "the one that was begun, at most"
        assert [leader.node._storage.pieces.has(key) for key in keys] == [True, True, False]
        assert await sideloading_of(leader).fetch(group, missing[2:])

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize(
    "batch",
    [raw_batch([raw_record(7, b"x")]), raw_batch([BROKEN_RECORD], codec=2), large(7), large(7, codec=1)],
    ids=["a record", "compressed", "the last of many", "the last of many, compressed"],
)
def test_data_with_records_that_are_none_is_not_taken(tmp_path: Path, batch: bytes) -> None:
    records = read_header(batch).records

    async def scenario(cluster: NodeCluster) -> None:
        leader, *others = await leader_and_followers(cluster)
        hostile = AnsweringReplicas(others, lambda asked: batch[asked.position :][: asked.max_bytes])
        group = replica_of(leader).group
        assert group is not None
        key = PieceKey(1, group.raft_group, 0, crc32c(batch))
        assert not await sideloading_of(leader).fetch(group, [PieceRef(key, len(batch), records)])
        assert hostile.asked == len(others)
        assert not files_of(leader)

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("opened", [False, True])
def test_what_a_leader_fetches_for_a_proposal_is_of_an_opened_stage_and_within_the_limit(
    tmp_path: Path, opened: bool
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, *others = await leader_and_followers(cluster)
        group = replica_of(leader).group
        assert group is not None
        if opened:
            await stage_values(leader.backend, "sink", "stage", {TOPIC: [b"a"]})
        staged = leader.node._storage.pieces.bytes
        leader.node._storage.pieces._bytes_max = staged
        batch = bytes(build_batch([NewRecord(None, b"hostile", (), 1)]))
        hostile = AnsweringReplicas(others, lambda _: batch)
        entry = StagedPiece(
            number=7, length=len(batch), crc=crc32c(batch), stage_number=1, records=1
        ).SerializeToString()
        for _ in range(5):
            assert not sideloading_of(leader).may_propose(group, EntryType.STAGED_PIECE, entry)
            await asyncio.sleep(3)
        assert (hostile.asked > 0) == opened
        assert leader.node._storage.pieces.bytes == staged

    run_cluster(scenario, tmp_path)


def test_what_nobody_has_any_more_is_not_served_and_the_follower_needs_a_copy(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        cluster.journal = replace(cluster.journal, retain_bytes=0)
        await cluster.start()
        leader, one, two = await leader_and_followers(cluster)
        await two.kill()
        await publish_values(one.backend, 1, {TOPIC: [b"a"]})
        await until(lambda: not files_of(leader) and not files_of(one))
        await two.start()
        await until(lambda: replica_of(two).needs_copy)
        for node in cluster.nodes.values():
            assert await node.values() == [b"first", b"a"], "by another replica"
        await stage_values(two.backend, "sink", "later", {TOPIC: [b"b"]})
        assert (await two.backend.publish("sink", 2, "query", ["later"])).published
        for node in cluster.nodes.values():
            assert await node.values() == [b"first", b"a", b"b"]

    run_cluster(scenario, tmp_path, starts=False)


def test_a_follower_whose_log_ends_earlier_says_so_whatever_data_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    step = Driver.step

    def spy(self: Driver, raft_group: int, message: Message) -> None:
        if message.type is MessageType.APP_RESP and message.reject:
            refused.append(message.index)
        step(self, raft_group, message)

    monkeypatch.setattr(Driver, "step", spy)

    async def scenario(cluster: NodeCluster) -> None:
        leader, one, two = await leader_and_followers(cluster)
        two.disk.fail("write", ".pieces", errno.ENOSPC)
        await stage_values(one.backend, "sink", "stage", {TOPIC: [b"a"]})
        group = replica_of(leader).group
        assert group is not None
        assert group.node is not None
        raft = group.node.raft
        last = raft.log.last_index()
        (piece,) = raft.log.entries(last, 1)
        # As from a leader that was elected with a longer log.
        later = last + 1000
        message = Message(
            MessageType.APP,
            two.id,
            leader.id,
            raft.term,
            log_term=raft.term,
            index=later,
            entries=[replace(piece, index=later + 1)],
        )

        def has_refused() -> bool:
            two.node._log.driver.step(group.raft_group, message)
            return later in refused

        await until(has_refused)

    run_cluster(scenario, tmp_path)


def test_a_leader_that_has_started_again_does_not_serve_what_is_gone(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        cluster.journal = replace(cluster.journal, retain_bytes=0)
        await cluster.start()
        leader, one, two = await leader_and_followers(cluster)
        await two.kill()
        await publish_values(one.backend, 1, {TOPIC: [b"a"]})
        await until(lambda: not files_of(leader) and not files_of(one))
        for node in (leader, one):
            await node.stop()
        await asyncio.gather(leader.start(), one.start())
        await two.start()
        await until(lambda: replica_of(two).needs_copy)
        for node in cluster.nodes.values():
            assert await node.values() == [b"first", b"a"]

    run_cluster(scenario, tmp_path, starts=False)


def test_entries_of_stages_that_are_gone_need_no_data(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, one, two = await leader_and_followers(cluster)
        await two.kill()
        await stage_values(one.backend, "sink", "stage", {TOPIC: [b"a"]})
        await one.backend.discard("sink", ["stage"])
        await until(lambda: not files_of(leader) and not files_of(one))
        await one.append(b"second")
        await two.start()
        await until(lambda: is_applied(two, leader))
        assert await two.values() == [b"first", b"second"]

    run_cluster(scenario, tmp_path)

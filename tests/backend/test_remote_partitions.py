"""Partitions that a node has no replica of: records and offsets by calls to other nodes."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pixy.api.grpc.large_answers import AT_ONCE
from pixy.backend import TopicPartition
from pixy.cluster import PeerMethod
from pixy.errors import DeadlineExceeded, OffsetOutOfRange, Unavailable, UnknownPartition
from pixy.proto.node_calls_pb2 import FetchResponse
from tests.cluster.drivers import batch_of
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)


async def with_a_stranger(cluster: NodeCluster, partitions: int = 1) -> ClusterNode:
    """A topic with replicas on nodes 1 to 3, and a fourth node that joins."""
    await cluster[1].backend.create_topic("topic", partitions)
    await cluster[1].append(b"first")
    return await cluster.add()


def run(directory: Path, scenario: Callable[[NodeCluster, ClusterNode], Awaitable[None]]) -> None:
    async def with_four(cluster: NodeCluster) -> None:
        await scenario(cluster, await with_a_stranger(cluster))

    run_cluster(with_four, directory)


async def led(node: ClusterNode) -> int:
    """Leader of the partition, as a node describes it."""
    description = await node.backend.describe_topic("topic")
    return description.partitions[0].leader


def test_a_node_without_a_replica_writes_and_reads(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        assert await stranger.append(b"second", b"third") == 1
        assert await stranger.values() == [b"first", b"second", b"third"]
        assert await cluster[2].values() == [b"first", b"second", b"third"]
        replica = stranger.node.partition(TOPIC)
        assert replica is not None
        assert replica.group is None

    run(tmp_path, scenario)


def test_a_node_without_a_replica_removes_records(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        await stranger.append(b"second", b"third")
        with pytest.raises(OffsetOutOfRange):
            await stranger.backend.delete_records("topic", {0: 4})
        assert await stranger.backend.delete_records("topic", {0: 2}) == {0: 2}
        for node in (stranger, cluster[2]):
            assert await node.backend.offset_ranges("topic") == {0: (2, 3)}
        assert await stranger.backend.delete_records("topic", {0: -1}) == {0: 3}

    run(tmp_path, scenario)


def test_records_beyond_what_was_asked_for_are_not_taken(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        batch = bytes(batch_of(b"value"))
        response = FetchResponse(batches=[batch] * 100, next_offset=100, high_watermark=100)

        async def answer(*_: object) -> bytes:
            return response.SerializeToString()

        for number in (1, 2, 3):
            peers = cluster[number].node.peers
            assert peers is not None
            peers._duties.methods[PeerMethod.FETCH] = answer  # type: ignore[index]  # a dict
        with pytest.raises(Unavailable, match=f"{100 * len(batch)} bytes, {len(batch)} were asked for"):
            await stranger.backend.fetch(TOPIC, 0, max_bytes=len(batch), max_wait=0)

    run(tmp_path, scenario)


def test_a_fetch_waits_at_the_replica(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await stranger.fetch(1, max_wait=3.0)
        assert (found.batches, found.next_offset, found.high_watermark) == ([], 1, 1)
        assert 3.0 <= loop.time() - began < 3.1
        waiting = asyncio.create_task(stranger.fetch(1, max_wait=None))
        await asyncio.sleep(50)
        assert not waiting.done()
        await cluster[1].append(b"second")
        assert (await waiting).next_offset == 2

    run(tmp_path, scenario)


def test_readers_that_wait_for_the_same_record_share_a_call(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        peers = stranger.node.peers
        assert peers is not None
        first = asyncio.create_task(stranger.fetch(1, max_wait=None))
        await asyncio.sleep(1)
        others = [asyncio.create_task(stranger.fetch(1, max_wait=None)) for _ in range(100)]
        short = asyncio.create_task(stranger.fetch(1, max_wait=3.0))
        await asyncio.sleep(1)
        calls = [kept.current.calls for kept in peers.channel._bulk.values() if kept.current is not None]
        assert sum(map(len, calls)) == 1
        assert (await short).next_offset == 1
        first.cancel()
        await asyncio.sleep(1)
        assert sum(map(len, calls)) == 1, "another one goes on"
        assert not any(each.done() for each in others)
        began = asyncio.get_running_loop().time()
        await cluster[1].append(b"second")
        assert {(await each).next_offset for each in others} == {2}
        assert asyncio.get_running_loop().time() - began < 1

    run(tmp_path, scenario)


def test_a_fetch_that_waits_goes_on_at_another_replica(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        leader = cluster.by_id(await led(stranger))
        waiting = asyncio.create_task(stranger.fetch(1, max_wait=None))
        await asyncio.sleep(1)
        others = [node for node in cluster.nodes.values() if node not in (leader, stranger)]
        killing = asyncio.create_task(leader.kill())
        await asyncio.sleep(1)
        assert not waiting.done()
        await others[0].append(b"second")
        assert (await waiting).next_offset == 2
        await killing

    run(tmp_path, scenario)


def test_offsets_come_from_a_replica(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        await asyncio.sleep(1)
        now = stranger.clock.wall_ms()
        await asyncio.sleep(0.01)  # clocks of nodes differ by a millisecond
        await cluster[2].append(b"second")
        assert (await stranger.backend.offset_ranges("topic"))[0].end == 2
        assert await stranger.backend.offset_for_timestamp(TOPIC, now) == 1
        assert await stranger.backend.offset_for_timestamp(TOPIC, now + 1000) is None
        with pytest.raises(OffsetOutOfRange, match="0 to 2 are served") as raised:
            await stranger.fetch(3)
        assert (raised.value.begin, raised.value.end) == (0, 2)

    run(tmp_path, scenario)


def test_offsets_of_partitions_on_many_nodes_are_listed_in_their_order(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster.add()
        await cluster.add()
        await cluster[1].backend.create_topic("topic", 10)
        for partition in range(10):
            await cluster[4].append(*[b"x"] * (partition + 1), partition=partition)
        for node in cluster.nodes.values():
            ranges = await node.backend.offset_ranges("topic")
            assert list(ranges) == list(range(10))
            assert [each.end for each in ranges.values()] == list(range(1, 11))

    run_cluster(scenario, tmp_path)


def test_writes_survive_the_end_of_the_leader_without_a_second_copy(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        leader = cluster.by_id(await led(stranger))
        answers: list[asyncio.Future[int]] = []
        killing = None
        for number in range(60):
            answers.append(stranger.append_nowait(b"%d" % number))
            if number == 20:
                killing = asyncio.create_task(leader.kill())
            await asyncio.sleep(0.003)
        offsets = await asyncio.gather(*answers)
        assert sorted(offsets) == list(range(1, 61))
        values = await stranger.values()
        assert [values[offset] for offset in offsets] == [b"%d" % number for number in range(60)]
        assert killing is not None
        await killing

    run(tmp_path, scenario)


def test_a_lost_answer_is_asked_for_again_and_found(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        leader = cluster.by_id(await led(stranger))
        await stranger.append(b"second")
        cluster.network.cut(leader.host, stranger.host)
        answer = stranger.append_nowait(b"third")
        await until(lambda: leader.node.partition(TOPIC).log.end_offset == 3)  # type: ignore[union-attr]
        assert not answer.done()
        cluster.network.reset(leader.host, stranger.host)
        cluster.network.heal()
        assert await answer == 2
        assert await cluster[2].values() == [b"first", b"second", b"third"]

    run(tmp_path, scenario)


def test_the_order_of_the_calls_is_that_of_the_offsets(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        answers = [stranger.append_nowait(b"%d" % number) for number in range(100)]
        assert await asyncio.gather(*answers) == list(range(1, 101))

    run(tmp_path, scenario)


def test_a_write_that_no_replica_answers_ends_at_its_limit(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        cluster.split(4)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(DeadlineExceeded):
            await stranger.append(b"value")
        assert 10 <= loop.time() - began < 10.3
        with pytest.raises(Unavailable, match="no replica of partition 0 of topic topic answers"):
            await stranger.fetch(0)
        with pytest.raises(Unavailable, match="no replica of partition 0"):
            await stranger.backend.offset_for_timestamp(TOPIC, 0)
        with pytest.raises(Unavailable, match="no majority: nodes 1, 2 and 3 cannot be reached"):
            await stranger.backend.offset_ranges("topic")
        cluster.network.heal()
        await until(lambda: stranger.node.peers is not None and stranger.node.peers.members.is_connected)
        assert await stranger.append(b"value") == 1

    run(tmp_path, scenario)


def test_requests_end_when_the_topic_is_deleted(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        waiting = asyncio.create_task(stranger.fetch(1, max_wait=None))
        await asyncio.sleep(1)
        await cluster[2].backend.delete_topic("topic")
        with pytest.raises(UnknownPartition):
            await waiting
        with pytest.raises(UnknownPartition):
            await stranger.append(b"value")
        await stranger.backend.create_topic("topic", 1)
        assert await stranger.append(b"value") == 0

    run(tmp_path, scenario)


def hold_offsets(cluster: NodeCluster, end: asyncio.Event) -> Counter[int]:
    """Let calls for offsets wait at the nodes; returns how many have waited at once at each."""
    asked: Counter[int] = Counter()
    waiting: Counter[int] = Counter()

    def hold(number: int) -> None:
        peers = cluster[number].node.peers
        assert peers is not None
        methods: Any = peers._duties.methods
        whole = methods[PeerMethod.OFFSETS]

        async def answer(asker: int, request: bytes) -> bytes:
            waiting[number] += 1
            asked[number] = max(asked[number], waiting[number])
            try:
                await end.wait()
                return bytes(await whole(asker, request))
            finally:
                waiting[number] -= 1

        methods[PeerMethod.OFFSETS] = answer

    for number in (1, 2, 3):
        hold(number)
    return asked


def test_removals_of_records_of_an_address_leave_calls_for_offsets_to_others(tmp_path: Path) -> None:
    """It has `AT_ONCE` requests at a time, here for more partitions than there are calls."""

    async def scenario(cluster: NodeCluster) -> None:
        stranger = await with_a_stranger(cluster, 20)
        end = asyncio.Event()
        asked = hold_offsets(cluster, end)
        removals = [
            asyncio.create_task(stranger.backend.delete_records("topic", dict.fromkeys(range(20), 0)))
            for _ in range(AT_ONCE)
        ]
        await until(lambda: asked.total() >= 8 * AT_ONCE)
        # Sent behind the calls.
        await stranger.append(b"second")
        assert asked.total() == 8 * AT_ONCE == 512 // 2
        end.set()
        begins = dict.fromkeys(range(20), 0)
        assert await asyncio.gather(*removals) == [begins] * AT_ONCE

    run_cluster(scenario, tmp_path)


def test_questions_for_offsets_leave_calls_to_others(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        end = asyncio.Event()
        asked = hold_offsets(cluster, end)
        questions = [
            asyncio.create_task(stranger.backend.offset_for_timestamp(TOPIC, 0)) for _ in range(1600)
        ]
        await until(lambda: asked.total() >= 3 * 512)
        await stranger.append(b"second")
        assert set(asked.values()) == {512}
        end.set()
        answers = await asyncio.gather(*questions, return_exceptions=True)
        late = [answer for answer in answers if isinstance(answer, BaseException)]
        assert all(isinstance(each, Unavailable) for each in late)
        assert len(late) <= 1600 - 3 * 512
        assert set(asked.values()) == {512}
        await stranger.backend.offset_for_timestamp(TOPIC, 0)

    run(tmp_path, scenario)


def test_the_leader_of_a_partition_elsewhere_is_asked_for(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, stranger: ClusterNode) -> None:
        def leader() -> int:
            description = stranger.backend.topic("topic")
            assert description is not None
            return description.partitions[0].leader

        await until(lambda: leader() > 0)
        gone = cluster.by_id(leader())
        gone_id = gone.id
        killing = asyncio.create_task(gone.kill())
        await until(lambda: leader() not in (-1, gone_id))
        assert leader() == await led(stranger)
        await killing

    run(tmp_path, scenario)


def test_a_partition_that_was_never_used_has_its_only_replica_as_leader(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].stop()
        await cluster[1].start()
        assert await led(await cluster.add()) == cluster[1].id

    run_cluster(scenario, tmp_path, 1)


def test_a_replica_that_cannot_be_read_hides_no_ends_of_others_on_its_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        described = await cluster[1].backend.create_topic("topic", 6, {"replication": "1"})
        await asyncio.gather(*(cluster[1].append(b"value", partition=each) for each in range(6)))
        owner = cluster.by_id(described.partitions[0].replicas[0])
        replica = owner.node.partition(TopicPartition("topic", 0))
        assert replica is not None
        replica.needs_copy = True
        stranger = next(node for node in cluster.nodes.values() if node is not owner)
        ranges, unknown = await stranger.backend.known_ranges("topic", patience_s=0.5)
        assert ranges == dict.fromkeys(range(1, 6), (0, 1))
        assert list(unknown) == [0]
        assert f"node {owner.id} has no replica that can be read" in str(unknown[0])
        replica.needs_copy = False
        assert (await stranger.backend.known_ranges("topic")).unknown == {}

    run_cluster(scenario, tmp_path)

"""Several nodes: any of them takes any request."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pixy.backend import OffsetCommit, TopicPartition
from pixy.cluster import PeerMethod, problems, safe_to_stop
from pixy.cluster.log.node_log import LogPeers
from pixy.cluster.peering import node_peers
from pixy.cluster.peering.relays import Relays
from pixy.cluster.snapshots.missing_copies import MissingCopies
from pixy.cluster.state import MOVES_LEVEL
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import (
    DataDirectoryError,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    OffsetOutOfRange,
    PixyError,
    TopicExists,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from pixy.multiraft.driver_options import RAFT_CONFIG
from pixy.peers import Hello
from pixy.proto.pixy_cluster_pb2 import StatusResponse
from pixy.proto.state_pb2 import MetadataCommand
from pixy.raft import ConfState, Message, MessageType, Snapshot
from pixy.raft.progress import ProgressState
from tests.cluster.moving import set_level
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.disk import full
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)
CUT_OFF = "no majority: nodes 1 and 2 cannot be reached"


def leader_of(cluster: NodeCluster, partition: int = 0, topic: str = "topic") -> ClusterNode:
    """The node that leads a partition, as node 1 describes it."""
    description = cluster[1].backend.topic(topic)
    assert description is not None
    return cluster.by_id(description.partitions[partition].leader)


async def led(cluster: NodeCluster, topic: str = "topic") -> None:
    """Wait until all nodes know of all leaders."""

    def knows_all(node: ClusterNode) -> bool:
        description = node.backend.topic(topic)
        return description is not None and all(each.leader > 0 for each in description.partitions)

    await until(lambda: all(map(knows_all, cluster.nodes.values())))


async def with_a_follower_behind(cluster: NodeCluster) -> tuple[ClusterNode, ClusterNode]:
    """The leader of a new topic's partition, and a follower that hears of its records late."""
    await cluster[1].backend.create_topic("topic", 1)
    await led(cluster)
    leader = leader_of(cluster)
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    cluster.network.way(leader.host, follower.host).delays_s = (0.5, 0.5)
    return leader, follower


# --- records --------------------------------------------------------------------------------------


def test_a_record_is_written_and_read_at_any_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3)
        for number in (1, 2, 3):
            for partition in range(3):
                await cluster[number].append(b"%d" % number, partition=partition)
        for number in (1, 2, 3):
            for partition in range(3):
                assert await cluster[number].values(partition=partition) == [b"1", b"2", b"3"]

    run_cluster(scenario, tmp_path)


def test_what_a_node_takes_while_it_starts_and_afterwards_is_written_once_each(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        # Raft groups that one of them led have no leader at first: the start takes its time.
        await cluster[2].kill()
        await cluster[3].kill()
        await cluster[3].begin()
        written: dict[int, bytes] = {}
        number = 0
        while len(written) < 20:
            number += 1
            try:
                written[await cluster[3].append(b"%d" % number)] = b"%d" % number
            except Unavailable:
                await asyncio.sleep(0.01)
        values = await cluster[1].values()
        assert {offset: values[offset] for offset in written} == written

    run_cluster(scenario, tmp_path)


def test_a_node_that_waits_for_others_takes_nothing_and_says_why(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].begin()
        await until(lambda: cluster[1].backend.fault.startswith("2 of"))
        with pytest.raises(Unavailable, match="of the join list do not answer"):
            await cluster[1].append(b"value")

    run_cluster(scenario, tmp_path, starts=False)


def test_a_partition_whose_replica_waits_for_a_copy_is_served_by_the_others(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        node = next(node for node in cluster.nodes.values() if node is not leader_of(cluster))
        replica = node.node.partition(TOPIC)
        assert replica is not None
        written: list[bytes] = []
        for needs_copy in (False, True, False, True):
            replica.needs_copy = needs_copy
            for _ in range(10):
                written.append(b"%d" % len(written))
                assert await node.append(written[-1]) == len(written) - 1
            assert await node.values() == written

    run_cluster(scenario, tmp_path)


def test_a_leader_writes_while_its_replica_is_yet_marked_as_waiting_for_a_copy(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        leader = leader_of(cluster)
        replica = leader.node.partition(TOPIC)
        assert replica is not None
        values = [b"%d" % number for number in range(12)]
        for number, needs_copy in enumerate((False, True, False)):
            replica.needs_copy = needs_copy
            some = values[4 * number : 4 * number + 4]
            assert await asyncio.gather(*map(leader.append, some)) == list(range(4 * number, 4 * number + 4))
        assert await leader.values() == values

    run_cluster(scenario, tmp_path)


def test_a_fetch_that_waits_at_a_replica_goes_on_when_it_comes_to_need_a_copy(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        node = next(node for node in cluster.nodes.values() if node is not leader_of(cluster))
        replica = node.node.partition(TOPIC)
        assert replica is not None
        assert replica.group is not None
        fetch = asyncio.create_task(node.backend.fetch(TOPIC, 0, max_bytes=1000))
        await asyncio.sleep(1)
        told = Message(
            MessageType.SNAP, replica.group.leader, node.node.node_id, 1, snapshot=Snapshot(9, 1, ConfState())
        )
        MissingCopies().add(replica, told)
        assert not (await asyncio.wait_for(fetch, 1)).batches
        await leader_of(cluster).append(b"value")
        assert (await node.backend.fetch(TOPIC, 0, max_bytes=1000)).batches

    run_cluster(scenario, tmp_path)


def test_offsets_are_read_at_a_node_that_does_not_know_of_the_topic_yet(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await asyncio.sleep(5)  # each state group has its preferred leader
        nodes = list(cluster.nodes.values())
        controller = cluster.by_id(nodes[0].node.state_groups.metadata_replica.group.leader)
        behind = next(node for node in nodes if node is not controller)
        group = next(
            name
            for name in map(str, range(100))
            if controller.node.state_groups.group_of(name).group.leader not in (controller.id, behind.id)
        )
        third = cluster.by_id(controller.node.state_groups.group_of(group).group.leader)
        cluster.network.way(controller.host, behind.host).delays_s = (0.5, 0.5)
        await third.backend.create_topic("topic", 1)
        await third.backend.commit_offsets(group, {TOPIC: OffsetCommit(5, "")})
        assert behind.backend.topic("topic") is None
        assert await behind.backend.committed_offsets(group, "topic") == {0: OffsetCommit(5, "")}

    run_cluster(scenario, tmp_path)


def test_a_fetch_at_a_follower_waits_for_the_records_of_the_leader(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        waiting = [asyncio.create_task(node.fetch(0, max_wait=None)) for node in cluster.nodes.values()]
        await asyncio.sleep(1)
        await cluster[2].append(b"value")
        found = await asyncio.gather(*waiting)
        assert [(each.next_offset, each.high_watermark) for each in found] == [(1, 1)] * 3

    run_cluster(scenario, tmp_path)


def test_a_follower_that_is_behind_does_not_say_beyond_the_end(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, follower = await with_a_follower_behind(cluster)
        for number in range(5):
            await leader.append(b"%d" % number)
        replica = follower.node.partition(TOPIC)
        assert replica is not None
        assert replica.log.end_offset < 5
        found = await follower.fetch(4)
        assert found.next_offset == 5
        with pytest.raises(OffsetOutOfRange, match="0 to 5 are served"):
            await follower.fetch(6)

    run_cluster(scenario, tmp_path)


def test_a_fetch_that_does_not_wait_has_everything_that_was_answered(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, follower = await with_a_follower_behind(cluster)
        await leader.append(b"value")
        replica = follower.node.partition(TOPIC)
        assert replica is not None
        assert replica.log.end_offset == 0
        found = await follower.fetch(0, max_wait=0)
        assert (found.next_offset, found.is_confirmed) == (1, True)
        # What is read below the end of a replica says nothing of the end of the log.
        assert not (await follower.fetch(0, max_wait=0)).is_confirmed

    run_cluster(scenario, tmp_path)


def test_offset_ranges_have_everything_that_was_answered(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3)
        await led(cluster)
        for source in cluster.nodes.values():
            for target in cluster.nodes.values():
                if source is not target:
                    cluster.network.way(source.host, target.host).delays_s = (0.0, 0.3)
        for number in range(10):
            writer, reader = cluster[number % 3 + 1], cluster[(number + 1) % 3 + 1]
            partition = number % 3
            offset = await writer.append(b"value", partition=partition)
            ranges = await reader.backend.offset_ranges("topic")
            assert ranges[partition].end == offset + 1

    run_cluster(scenario, tmp_path)


def test_the_offset_for_a_timestamp_is_found_at_any_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        times = []
        for number in range(5):
            times.append(cluster[1].clock.wall_ms())
            await cluster[1].append(b"%d" % number)
            await asyncio.sleep(1)
        # Stamps and the clock may be rounded to different milliseconds.
        for node in cluster.nodes.values():
            assert await node.backend.offset_for_timestamp(TOPIC, times[3] - 2) == 3
            assert await node.backend.offset_for_timestamp(TOPIC, times[4] + 2) is None

    run_cluster(scenario, tmp_path)


def test_writes_survive_the_end_of_the_leader_without_a_second_copy(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        leader = leader_of(cluster)
        others = [node for node in cluster.nodes.values() if node is not leader]
        answers: list[asyncio.Future[int]] = []
        killing = None
        for number in range(60):
            answers.append(others[number % 2].append_nowait(b"%d" % number))
            if number == 20:
                killing = asyncio.create_task(leader.kill())
            await asyncio.sleep(0.01)
        offsets = await asyncio.gather(*answers)
        assert sorted(offsets) == list(range(60))
        values = await others[0].values()
        assert [values[offset] for offset in offsets] == [b"%d" % number for number in range(60)]
        assert killing is not None
        await killing

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("at", ["a follower", "a node without a replica"])
@pytest.mark.parametrize("how", ["killed", "stopped", "given away", "cut off", "reset"])
def test_writes_of_a_node_keep_their_order_over_changes_of_the_leader(
    tmp_path: Path, how: str, at: str
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        if at == "a node without a replica":
            await cluster.add()
        await led(cluster)
        await asyncio.sleep(5)  # each raft group has its preferred leader
        leader = leader_of(cluster)
        writer = (
            cluster[4]
            if 4 in cluster.nodes
            else next(node for node in cluster.nodes.values() if node is not leader)
        )
        answers: list[asyncio.Future[int]] = []
        ending: asyncio.Task[None] | None = None
        for number in range(100):
            if number == 20:
                if how == "killed":
                    ending = asyncio.create_task(leader.kill())
                elif how == "stopped":
                    ending = asyncio.create_task(leader.stop())
                elif how == "given away":
                    replica = leader.node.partition(TOPIC)
                    assert replica is not None
                    assert replica.group is not None
                    leader.node._log.driver.hand_over(replica.group)
                elif how == "cut off":
                    cluster.split(leader.number)
                else:
                    cluster.network.cut(writer.host, leader.host)
            if number == 30 and how == "reset":
                cluster.network.reset(writer.host, leader.host)
                cluster.network.heal()
            # Of different sizes: the larger ones may be late.
            answers.append(writer.append_nowait(b"%d" % number + bytes(100_000 * (number % 3))))
            await asyncio.sleep(0.001)
        assert await asyncio.gather(*answers) == list(range(100))
        cluster.network.heal()
        if ending is not None:
            await ending

    run_cluster(scenario, tmp_path)


def test_a_write_that_the_leader_did_not_take_is_not_overtaken(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        leader = leader_of(cluster)
        writer, other = (node for node in cluster.nodes.values() if node is not leader)
        replica = leader.node.partition(TOPIC)
        assert replica is not None
        group = replica.group
        assert group is not None
        # It takes nothing while it gives its leadership away, which fails.
        cluster.network.cut(leader.host, other.host)
        leader.node._log.driver.transfer(group, other.id)
        first = writer.append_nowait(b"first")
        await until(lambda: not group.leads)
        await until(lambda: group.leads)
        assert await writer.append(b"second") == 1
        assert await first == 0

    run_cluster(scenario, tmp_path)


def test_a_write_without_a_majority_ends_at_its_limit(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        leader = leader_of(cluster)
        cluster.split(leader.number)
        loop = asyncio.get_running_loop()
        began = loop.time()
        in_flight = leader.append_nowait(b"in flight")
        await asyncio.sleep(5)
        late = leader.append_nowait(b"late")
        with pytest.raises(DeadlineExceeded):
            await in_flight
        assert 10 <= loop.time() - began < 10.5
        with pytest.raises(Unavailable, match="not written"):
            await late
        cluster.network.heal()
        assert await leader.append(b"value") in (0, 1)

    run_cluster(scenario, tmp_path)


def test_a_fetch_that_waits_ends_when_the_partition_has_no_leader(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"value")
        await led(cluster)
        alone = cluster[2]
        waiting = asyncio.create_task(alone.fetch(1, max_wait=None))
        await asyncio.sleep(0.1)
        cluster.split(2)
        with pytest.raises(Unavailable, match="partition 0 of topic topic has no leader"):
            await waiting
        assert (await alone.fetch(0)).next_offset == 1, "what is known to be committed is served"
        with pytest.raises(Unavailable, match="has no leader"):
            await alone.fetch(1, max_wait=None)
        cluster.network.heal()
        await led(cluster)
        waiting = asyncio.create_task(alone.fetch(1, max_wait=None))
        await cluster[1].append(b"value")
        assert (await waiting).next_offset == 2

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("level", [MOVES_LEVEL, MOVES_LEVEL - 1])
def test_a_number_of_replicas_that_a_topic_cannot_get_is_refused(
    tmp_path: Path, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the level of moves also any other one than it has."""
    set_level(monkeypatch, level)
    refused = {"5": "3 nodes"}
    if level < MOVES_LEVEL:
        refused["3"] = "the partitions of topic topic have 1 replica, which"

    async def scenario(cluster: NodeCluster) -> None:
        backend = cluster[2].backend
        with pytest.raises(
            InvalidArgument, match="replication is 5, and the cluster has 3 nodes: ask for no"
        ):
            await backend.create_topic("topic", 1, {"replication": "5"})
        with pytest.raises(UnknownTopic):
            await backend.describe_topic("topic")
        await backend.create_topic("topic", 1, {"replication": "1"})
        for replication, reason in refused.items():
            for partitions in (None, 4):
                with pytest.raises(InvalidArgument, match=reason):
                    await backend.alter_topic(
                        "topic", partitions=partitions, config={"replication": replication}
                    )
        described = await backend.describe_topic("topic")
        assert (described.config, len(described.partitions)) == ({"replication": "1"}, 1)
        await backend.alter_topic("topic", config={"replication": "1", "segment_ms": "60000"})
        await backend.alter_topic("topic", config={"replication": None})

    run_cluster(scenario, tmp_path)


def test_a_partition_without_a_quorum_leaves_room_for_others_of_its_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        leader = leader_of(cluster)
        lone = await leader.backend.create_topic("lone", 3, {"replication": "1"})
        here = next(each.partition for each in lone.partitions if each.replicas == (leader.id,))
        await leader.append(b"value", topic="lone", partition=here)
        cluster.split(leader.number)
        waiting = [leader.append_nowait(bytes(200_000)) for _ in range(10)]
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await leader.append(bytes(100_000), topic="lone", partition=here) == 1
        assert loop.time() - began < 0.1
        cluster.network.heal()
        assert sorted(await asyncio.gather(*waiting)) == list(range(10))

    journal = JournalConfig(file_bytes=1 << 20, max_unapplied_bytes=1 << 20)
    run_cluster(scenario, tmp_path, journal=journal)


# --- a link that is cut ---------------------------------------------------------------------------


async def without_a_link(cluster: NodeCluster) -> tuple[ClusterNode, ClusterNode, ClusterNode]:
    """The leader of a partition and a node whose link is cut, as both have found out, and the node
    that both reach.
    """
    await cluster[1].backend.create_topic("topic", 3)
    await asyncio.sleep(5)  # each raft group has its preferred leader
    await led(cluster)
    leader = leader_of(cluster)
    metadata = cluster.by_id(cluster[1].node.state_groups.metadata_replica.group.leader)
    far = (
        metadata
        if metadata is not leader
        else next(each for each in cluster.nodes.values() if each is not leader)
    )
    near = next(each for each in cluster.nodes.values() if each not in (leader, far))
    cluster.network.split([leader.host], [far.host])
    await until(lambda: bool(leader.node.unreachable() and far.node.unreachable()))
    return leader, far, near


def test_two_nodes_whose_link_is_cut_serve_everything(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        ends = await without_a_link(cluster)
        leader, far, near = ends
        terms = [each.term for each in (await near.backend.cluster_status()).groups]
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(9):
            for node in (leader, far):
                await node.append(b"%d" % number, partition=number % 3)
        for node in ends:
            ranges = await node.backend.offset_ranges("topic")
            assert [each.end for each in ranges.values()] == [6, 6, 6]
            assert await node.values() == [b"0", b"0", b"3", b"3", b"6", b"6"]
            await node.backend.create_topic(f"topic-{node.id}", 3)
            for group in map(str, range(20)):
                at = TopicPartition(f"topic-{node.id}", 0)
                await node.backend.commit_offsets(f"{node.id} {group}", {at: OffsetCommit(5, "")})
        for node in ends:
            assert len(await node.backend.list_topics()) == 4
            for other in ends:
                committed = await node.backend.committed_offsets(f"{other.id} 0", f"topic-{other.id}")
                assert committed == {0: OffsetCommit(5, "")}
        assert loop.time() - began < 5
        await asyncio.sleep(30)
        groups = (await near.backend.cluster_status()).groups
        assert [each.term for each in groups][: len(terms)] == terms, "no leader has changed"

    run_cluster(scenario, tmp_path)


def test_a_node_that_is_heard_by_way_of_another_stays_in_its_consumer_groups(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, far, _ = await without_a_link(cluster)
        told: list[Mapping[str, Sequence[int]]] = []
        for number in range(8):
            await far.backend.join_consumer_group(f"g{number}", "far", ["topic"], told.append)
        await asyncio.sleep(8)
        assert told
        assert {} not in told
        assert leader.node.peers is not None
        heard_at = leader.node.peers.relays.heard_at[far.id]
        assert asyncio.get_running_loop().time() - heard_at < 1

    run_cluster(scenario, tmp_path)


def test_a_node_starts_while_its_link_to_the_leader_is_cut(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, far, _ = await without_a_link(cluster)
        await far.kill()
        await leader.append(b"value")
        await far.start()
        assert await far.append(b"next") == 1
        assert await far.values() == [b"value", b"next"]

    run_cluster(scenario, tmp_path)


def test_the_status_has_links_that_are_cut_at_every_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, far, near = await without_a_link(cluster)
        await asyncio.sleep(2)
        pair = tuple(sorted((leader.id, far.id)))
        for node in (leader, far, near):
            status = await node.backend.cluster_status()
            assert [each.up for each in status.nodes] == [True] * 3
            assert status.cut_links == (pair,)
            assert problems(status) == (
                f"nodes {pair[0]} and {pair[1]} have no connection to each other, and go through other nodes",
            )
            assert safe_to_stop(status, leader.id) == ()
            assert safe_to_stop(status, near.id) == (
                f"nodes {pair[0]} and {pair[1]} have no connection to each other, and may need it",
            )
        with pytest.raises(FailedPrecondition, match="is running"):
            await far.backend.forget_node(leader.id)
        cluster.network.heal()
        await until(lambda: not leader.node.unreachable() and not far.node.unreachable())
        assert (await near.backend.cluster_status()).cut_links == ()

    run_cluster(scenario, tmp_path)


def test_a_node_without_replicas_writes_and_reads_behind_a_link_that_is_cut(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        leader = leader_of(cluster)
        stranger = await cluster.add()
        cluster.network.split([leader.host], [stranger.host])
        await until(lambda: leader.id in stranger.node.unreachable())
        assert await stranger.append(b"value") == 0
        assert await stranger.values() == [b"value"]

    run_cluster(scenario, tmp_path)


def test_what_comes_by_way_of_another_node_is_admitted_as_in_a_handshake(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader, far, near = await without_a_link(cluster)
        assert far.node.peers is not None
        record, address = far.node.peers.own_record(), f"{far.host}:19094"
        cluster_id = (await near.backend.cluster_status()).cluster_id
        number, process = record.incarnation, record.process

        def hello(start: int) -> Hello:
            return Hello("default", cluster_id, far.id, b"", start, 1, process, b"", address, "1.0")

        for start, refused in ((number, False), (number - 1, True)):
            relays = Relays(far.node.peers.channel, partial(hello, start))
            relays.heard(near.id, (leader.id,))
            call = relays.call(leader.id, PeerMethod.STATUS, b"", 1.0)
            if refused:
                with pytest.raises(Unavailable, match=f"node {far.id} comes with start {number - 1}"):
                    await call
            else:
                assert StatusResponse.FromString(await call).node_id == leader.id

    run_cluster(scenario, tmp_path)


# --- topics ---------------------------------------------------------------------------------------


def test_topics_are_created_altered_and_deleted_at_any_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[2].backend.create_topic("topic", 1)
        with pytest.raises(TopicExists):
            await cluster[3].backend.create_topic("topic", 1)
        described = await cluster[1].backend.alter_topic("topic", partitions=4)
        assert (len(described.partitions), described.version) == (4, 2)
        for node in cluster.nodes.values():
            (listed,) = await node.backend.list_topics()
            assert (listed.name, listed.version, len(listed.partitions)) == ("topic", 2, 4)
        await cluster[3].backend.delete_topic("topic")
        for node in cluster.nodes.values():
            with pytest.raises(UnknownTopic):
                await node.backend.describe_topic("topic")
            assert await node.backend.list_topics() == []

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("change", ["delete", "alter"])
def test_a_command_that_comes_late_leaves_the_next_topic_of_the_name(tmp_path: Path, change: str) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        late = cluster[2]
        begun, go_on = asyncio.Event(), asyncio.Event()
        run = late.node.commands._run

        async def run_late(
            command: MetadataCommand, timeout_s: float = 0.0, *, frees_space: bool = False
        ) -> Any:
            begun.set()
            await go_on.wait()
            return await run(command, timeout_s, frees_space=frees_space)

        late.node.commands._run = run_late  # type: ignore[method-assign]
        changing = asyncio.create_task(
            late.backend.delete_topic("topic")
            if change == "delete"
            else late.backend.alter_topic("topic", config={"retention_ms": "1"})
        )
        await begun.wait()
        await cluster[1].backend.delete_topic("topic")
        made = await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"acknowledged")
        go_on.set()
        with pytest.raises(UnknownTopic, match="topic topic was deleted meanwhile, and made anew"):
            await changing
        assert await cluster[1].values() == [b"acknowledged"]
        assert (await cluster[3].backend.describe_topic("topic")).config == made.config

    run_cluster(scenario, tmp_path)


def test_a_node_that_is_behind_does_not_say_unknown(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        controller = cluster.by_id(cluster[1].node.state_groups.metadata_replica.group.leader)
        behind = next(node for node in cluster.nodes.values() if node is not controller)
        cluster.network.way(controller.host, behind.host).delays_s = (0.5, 0.5)
        for number in range(3):
            name = f"topic-{number}"
            # Without a wait for the leader, which may be the one that is behind.
            await controller.node.commands.create_topic(name, 1, {})
            assert behind.backend.topic(name) is None
            if number == 0:
                await behind.backend.describe_topic(name)
            elif number == 1:
                assert await behind.append(b"value", topic=name) == 0
            else:
                assert (await behind.fetch(0, topic=name)).batches == []

    run_cluster(scenario, tmp_path)


def test_what_is_unknown_is_unknown_at_every_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        for node in cluster.nodes.values():
            with pytest.raises(UnknownTopic):
                await node.backend.delete_topic("topic")
            with pytest.raises(UnknownTopic):
                await node.backend.offset_ranges("topic")
            with pytest.raises(UnknownPartition):
                await node.append(b"value")
            with pytest.raises(UnknownPartition):
                await node.fetch(0)
            with pytest.raises(UnknownPartition):
                await node.backend.commit_offsets("group", {TOPIC: OffsetCommit(0, "")})

    run_cluster(scenario, tmp_path)


def test_a_node_without_a_majority_cannot_describe_a_topic(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        cluster.split(3)
        for topic in ("topic", "other"):
            with pytest.raises(Unavailable, match=CUT_OFF):
                await cluster[3].backend.describe_topic(topic)
        with pytest.raises(Unavailable, match=CUT_OFF):
            await cluster[3].append(b"value", topic="other")
        cluster.network.heal()
        await until(lambda: not cluster[3].backend.fault)
        with pytest.raises(UnknownTopic):
            await cluster[3].backend.describe_topic("other")

    run_cluster(scenario, tmp_path)


def test_a_node_without_a_majority_says_so_to_each_command(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await led(cluster)
        backend, loop = cluster[3].backend, asyncio.get_running_loop()

        async def answer_to(command: Awaitable[object]) -> str:
            with pytest.raises(PixyError) as raised:
                await command
            return str(raised.value)

        cluster.split(3)
        caught = asyncio.create_task(answer_to(backend.create_topic("caught", 1)))
        await until(lambda: backend.fault == CUT_OFF)
        began = loop.time()
        for command in (
            backend.create_topic("other", 1),
            backend.alter_topic("topic", partitions=2),
            backend.delete_topic("topic"),
            backend.list_groups(),
            backend.committed_offsets("group", "topic"),
            backend.offset_ranges("topic"),
        ):
            assert await answer_to(command) == CUT_OFF
        setting = backend.commit_offsets("group", {TOPIC: OffsetCommit(0, "")}, set=True)
        assert (await answer_to(setting)).startswith("no majority: this node reaches 1 of the 3 nodes")
        assert loop.time() == began, "at once"
        assert (await caught).endswith(f"may be written: {CUT_OFF}")

    run_cluster(scenario, tmp_path)


def test_a_description_names_leaders_and_replicas_in_sync(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3)
        await led(cluster)
        before = {number: node.backend.topic("topic") for number, node in cluster.nodes.items()}
        assert all(before.values())
        for description in before.values():
            assert description is not None
            assert [sorted(each.replicas) for each in description.partitions] == [[1, 2, 3]] * 3
            assert [sorted(each.isr) for each in description.partitions] == [[1, 2, 3]] * 3
            assert [each.leader for each in description.partitions] == [
                each.replicas[0] for each in description.partitions
            ]
        assert all(cluster[number].backend.topic("topic") is before[number] for number in before), "cached"
        gone = cluster[3]
        gone_id = gone.id
        killing = asyncio.create_task(gone.kill())
        del cluster.nodes[3]
        await until(lambda: (node := cluster[1].backend.topic("topic")) and node is not before[1])

        def moved() -> bool:
            described = cluster[1].backend.topic("topic")
            assert described is not None
            return all(
                each.leader not in (-1, gone_id) and gone_id not in each.isr for each in described.partitions
            )

        await until(moved)
        await killing

    run_cluster(scenario, tmp_path)


def test_records_without_a_key_prefer_partitions_that_the_node_leads(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3)
        await led(cluster)
        for node in cluster.nodes.values():
            description = node.backend.topic("topic")
            assert description is not None
            here = [each.partition for each in description.partitions if each.leader == node.id]
            assert list(description.led_here) == here
            assert len(here) == 1

    run_cluster(scenario, tmp_path)


# --- stops ----------------------------------------------------------------------------------------


def test_nodes_that_stop_together_give_each_leadership_away_once(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3)
        await led(cluster)
        await asyncio.sleep(5)
        nodes = list(cluster.nodes.values())
        groups = [node.node.state_groups.metadata_replica.group for node in nodes]
        term = max(group.storage.hard_state.term for group in groups)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(node.stop() for node in nodes))
        assert loop.time() - began < 1.5
        assert max(group.storage.hard_state.term for group in groups) <= term + len(nodes)

    run_cluster(scenario, tmp_path)


# --- a disk that is full --------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "ending"), [("write", ".journal"), ("write", ".log")])
def test_the_status_has_a_full_disk_at_every_node(tmp_path: Path, what: str, ending: str) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"value")
        await asyncio.sleep(5.0)  # members and leaders of all groups are settled, and written
        full(cluster[3].disk, what, ending)
        await cluster[1].append(bytes(1 << 20))
        await until(lambda: cluster[3].node.blocked is not None)
        with pytest.raises(Unavailable, match="the disk is full"):
            await cluster[3].append(b"value")
        assert cluster[3].backend.fault == "", "reads and consumer groups are served"
        for node in cluster.nodes.values():
            (problem,) = problems(await node.backend.cluster_status())[:1]
            name = f"node {cluster[3].id} (127.0.0.3:19094)"
            assert problem.startswith(f"{name}: it writes no messages: the disk is full: ")
        cluster[3].disk.heal()
        await until(lambda: cluster[3].node.blocked is None)
        assert problems(await cluster[1].backend.cluster_status()) == ()

    run_cluster(scenario, tmp_path)


# --- checkpoints ----------------------------------------------------------------------------------


def test_a_follower_that_dies_over_a_checkpoint_is_offered_one_at_its_next_start(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await asyncio.sleep(5)  # each state group has its preferred leader
        controller = cluster.by_id(cluster[1].node.state_groups.metadata_replica.group.leader)
        behind = next(node for node in cluster.nodes.values() if node is not controller)
        await behind.kill()
        for number in range(60):
            await controller.backend.create_topic(f"topic-{number}", 1, {"replication": "1"})
        await asyncio.sleep(2)
        group = controller.node.state_groups.metadata_replica.group
        assert group.node is not None
        progress = group.node.raft.tracker.progress[behind.id]
        # It is offered a checkpoint, and does not get a byte of it.
        cluster.network.way(controller.host, behind.host).delays_s = (0.3, 0.3)
        await behind.begin()
        await until(lambda: progress.state is ProgressState.SNAPSHOT)
        await behind.kill()
        cluster.network.way(controller.host, behind.host).delays_s = (0.001, 0.002)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await behind.start()
        assert loop.time() - began < 5
        assert "topic-59" in behind.node.metadata.topics

    journal = JournalConfig(file_bytes=3000, retain_bytes=0)
    run_cluster(
        scenario, tmp_path, journal=journal, storage=StorageConfig(reserve_bytes=0, checkpoint_entries=10)
    )


# --- nodes ----------------------------------------------------------------------------------------


def test_a_node_that_joins_dials_nobody_who_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The node hears of both ends one after the other.
    config = replace(RAFT_CONFIG, max_size_per_message=0)
    monkeypatch.setattr(node_peers, "LogPeers", partial(LogPeers, config=config))

    async def scenario(cluster: NodeCluster) -> None:
        left, address = cluster[2].id, f"{cluster[2].host}:19094"
        await cluster[2].kill()
        await until(lambda: not cluster[1].node.peers.members.is_reachable(left))  # type: ignore[union-attr]
        for number in range(20):
            await cluster[1].backend.create_topic(f"topic-{number}", 1)
        await cluster[1].backend.forget_node(left)
        with capture_logs() as logs:
            joined = await cluster.add()
            await asyncio.sleep(5)
        assert [each for each in logs if address in str(each)] == []
        assert joined.node.metadata.nodes[left].lost

    run_cluster(scenario, tmp_path)


def test_a_node_of_several_does_not_start_without_an_address_for_the_others(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        for number in (1, 2):
            await cluster[number].stop()
            with pytest.raises(DataDirectoryError, match="set peer_addr, which is empty or used by another"):
                await cluster[number].begin(has_peers=False)
            await cluster[number].stop()
        await asyncio.gather(*(cluster[number].start() for number in (1, 2)))
        assert await cluster[1].append(b"value") == 0

    run_cluster(scenario, tmp_path)


def test_a_node_that_is_alone_needs_no_address_for_others(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].stop()
        await cluster[1].begin(has_peers=False)
        assert await cluster[1].append(b"value") == 0

    run_cluster(scenario, tmp_path, 1)


def test_a_topic_that_was_created_again_is_not_taken_for_the_first_one(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leader = cluster.by_id(cluster[1].node.state_groups.metadata_replica.group.leader)
        far, near = (node for node in cluster.nodes.values() if node is not leader)
        for node in (leader, near):
            cluster.network.cut(node.host, far.host)
        created = asyncio.create_task(far.backend.create_topic("topic", 1))
        await until(lambda: "topic" in leader.node.metadata.topics)
        await leader.backend.delete_topic("topic")
        await leader.backend.create_topic("topic", 3)
        for number in range(100):
            await leader.backend.alter_topic("topic", config={"retention_ms": str(1000 + number)})
            await asyncio.sleep(0.05)
        # What is on its way is lost, and the journal has it no more: a checkpoint is fetched.
        for node in (leader, near):
            cluster.network.reset(node.host, far.host)
        cluster.network.heal()
        with pytest.raises(UnknownTopic, match="topic topic was deleted meanwhile"):
            await created
        found = await far.backend.describe_topic("topic")
        assert len(found.partitions) == 3

    journal = JournalConfig(file_bytes=2000, retain_bytes=0)
    storage = StorageConfig(reserve_bytes=0, checkpoint_entries=5)
    run_cluster(scenario, tmp_path, journal=journal, storage=storage)


def test_named_topics_are_described_with_one_linearizable_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        for name in ("b", "a", "c"):
            await cluster[1].backend.create_topic(name, 1)
        node, reads = cluster[2].node, 0
        confirm = node.confirm_metadata

        async def counted(seconds: float) -> None:
            nonlocal reads
            reads += 1
            await confirm(seconds)

        monkeypatch.setattr(node, "confirm_metadata", counted)
        names = ["b", *(f"unknown-{number}" for number in range(500)), "a"]
        found = await cluster[2].backend.list_topics(names)
        assert [topic.name for topic in found] == ["a", "b"]
        assert reads == 1
        assert await cluster[2].backend.list_topics([]) == []
        assert [topic.name for topic in await cluster[2].backend.list_topics()] == ["a", "b", "c"]

    run_cluster(scenario, tmp_path)

"""pixy/backup/source.py: records come from one node after the other, whatever each of them has."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc
import pytest

from pixy.backup.source import BegunLater, ClusterSource, Stopped, TopicGone, WantedRange, replica_addresses
from pixy.errors import CorruptData, FailedPrecondition, Unavailable
from pixy.proto import pixy_cluster_pb2 as pb
from pixy.records import OffsetRange, TopicPartition
from tests.fakes.batches import batch_of, values_in
from tests.fakes.server import FakeServer, serve_cluster

pytestmark = pytest.mark.slow

T = TypeVar("T")
PARTITION = TopicPartition("topic", 0)
VALUES = [b"%d" % number for number in range(10)]
NOBODY = "127.0.0.1:1"


def status(*leaders: int, down: Sequence[int] = (), damaged: Sequence[int] = ()) -> pb.StatusResponse:
    nodes = [
        pb.NodeStatus(node_id=number, grpc_address=f"node{number}", up=number not in down)
        for number in (1, 2, 3)
    ]
    groups = [
        pb.RaftGroupStatus(
            name=f"topic-{number}",
            leader=leader,
            voters=[1, 2, 3],
            is_partition=True,
            damaged=[pb.DamagedReplica(node_id=each) for each in damaged],
        )
        for number, leader in enumerate(leaders)
    ]
    state_group = pb.RaftGroupStatus(name="metadata", leader=1, voters=[1, 2, 3])
    return pb.StatusResponse(nodes=nodes, groups=[state_group, *groups])


def test_followers_come_first_in_turn() -> None:
    assert replica_addresses(status(1, 1, 3)) == {
        "topic-0": ["node2", "node3", "node1"],
        "topic-1": ["node3", "node2", "node1"],
        "topic-2": ["node1", "node2", "node3"],
    }


def test_nodes_that_are_down_or_damaged_are_left_out() -> None:
    assert replica_addresses(status(1, down=[2]))["topic-0"] == ["node3", "node1"]
    assert replica_addresses(status(1, damaged=[3]))["topic-0"] == ["node2", "node1"]
    assert replica_addresses(status(1, down=[1, 2, 3]))["topic-0"] == []


@asynccontextmanager
async def served(*values: bytes) -> AsyncIterator[FakeServer]:
    """A server with one topic and records of a partition, each in its batch."""
    async with serve_cluster() as server:
        server.backend.create("topic", 1)
        for value in values:
            await append(server, value)
        yield server


async def append(server: FakeServer, value: bytes) -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(offset: int, _: object) -> None:
        answer.set_result(offset)

    server.backend.append(PARTITION, bytearray(batch_of(value)), 1, done)
    await answer


class Opened:
    """Opens channels, of which "" is one of these addresses."""

    def __init__(self, given: str) -> None:
        self._given = given
        self.addresses: list[str] = []

    def __call__(self, address: str) -> grpc.Channel:
        self.addresses.append(address)
        return grpc.insecure_channel(address or self._given)


async def of_source(
    opened: Opened, run: Callable[[ClusterSource], T], replicas: Sequence[str] = (), give_up_s: float = 0.5
) -> T:
    """Run something with a source on another thread; the nodes with replicas are at `replicas`."""
    source = ClusterSource(opened, give_up_s=give_up_s, lag_s=0.05)
    source.addresses = {"topic-0": replicas}
    try:
        return await asyncio.to_thread(run, source)
    finally:
        source.close()


def wanted(server: FakeServer, begin: int = 0, end: int = 10) -> WantedRange:
    return WantedRange(PARTITION, server.backend.topic_id("topic"), begin, end)


def fetched(
    server: FakeServer, begin: int = 0, end: int = 10
) -> Callable[[ClusterSource], list[bytes | None]]:
    return lambda source: values_in(
        b"".join(each.batches for each in source.fetch(wanted(server, begin, end)))
    )


async def test_a_node_with_a_replica_gives_all() -> None:
    async with served(*VALUES) as server:
        opened = Opened(NOBODY)
        found = await of_source(opened, fetched(server, 3, 8), [server.address])
        assert (found, opened.addresses) == (VALUES[3:8], [server.address])


async def test_a_node_that_is_not_reached_is_left() -> None:
    async with served(*VALUES) as server:
        assert await of_source(Opened(server.address), fetched(server), [NOBODY]) == VALUES


async def test_what_a_node_lacks_comes_from_the_next() -> None:
    async with served(*VALUES[:4]) as behind, served(*VALUES) as server:
        server.backend.create("other", 1)
        # The topics of both have one id, as replicas of one topic have.
        assert behind.backend.topic_id("topic") == server.backend.topic_id("topic")
        opened = Opened(server.address)
        assert await of_source(opened, fetched(server), [behind.address]) == VALUES
        assert opened.addresses == [behind.address, ""]
        with pytest.raises(Unavailable, match="from offset 4 on: it does not have the records yet"):
            await of_source(Opened(behind.address), fetched(server))


async def test_a_damaged_replica_is_left() -> None:
    async with served(*VALUES) as damaged, served(*VALUES) as server:
        damaged.backend.fail_fetches(CorruptData("byte 7"), 100)
        assert await of_source(Opened(server.address), fetched(server), [damaged.address]) == VALUES


async def test_records_that_are_removed_are_told() -> None:
    async with served(*VALUES) as server:
        server.backend.move_log_begin(PARTITION, 4)
        with pytest.raises(BegunLater) as later:
            await of_source(Opened(server.address), fetched(server))
        assert later.value.offset == 4


async def test_a_topic_that_is_gone_is_told() -> None:
    async with served(*VALUES) as server:
        of_topic = wanted(server)
        server.backend.delete("topic")
        with pytest.raises(TopicGone):
            await of_source(Opened(server.address), lambda source: list(source.fetch(of_topic)))


async def test_a_later_topic_of_the_name_is_another_one() -> None:
    async with served(*VALUES) as server:
        other = wanted(server)._replace(topic_id=b"another topic...")
        with pytest.raises(TopicGone):
            await of_source(Opened(server.address), lambda source: list(source.fetch(other)))


async def test_begins_and_ends_are_asked_for() -> None:
    async with served(*VALUES) as server:
        server.backend.move_log_begin(PARTITION, 2)
        unknown = [TopicPartition("topic", 1), TopicPartition("none", 0)]
        found = await of_source(Opened(server.address), lambda source: source.ends([PARTITION, *unknown]))
        assert found == {PARTITION: OffsetRange(2, 10)}
        ids = await of_source(Opened(server.address), lambda source: source.topic_ids())
        assert ids == {"topic": server.backend.topic_id("topic")}


async def test_a_refusal_is_not_repeated() -> None:
    async with served() as server:
        server.backend.failures["export_state"] = FailedPrecondition("this is a Kafka cluster")
        with pytest.raises(FailedPrecondition, match="this is a Kafka cluster"):
            await of_source(Opened(server.address), lambda source: source.state(), give_up_s=60)


async def test_nobody_answers() -> None:
    with pytest.raises(Unavailable, match="UNAVAILABLE"):
        await of_source(Opened(NOBODY), lambda source: source.state(), give_up_s=0.1)


async def test_a_stopped_source_ends_soon() -> None:
    async with served(*VALUES) as server:

        def stopped(source: ClusterSource) -> None:
            source.stopped.set()
            list(source.fetch(wanted(server)))

        with pytest.raises(Stopped):
            await of_source(Opened(server.address), stopped, give_up_s=60)

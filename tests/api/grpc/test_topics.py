"""pixy/api/grpc/topics.py: topics are created, altered and deleted over a real gRPC server, and
every error has its status.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from structlog.testing import capture_logs

from pixy.backend import OffsetCommit, OffsetRange, TopicPartition
from pixy.proto import kafkapixy_pb2 as kafkapixy
from pixy.proto import pixy_topics_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from tests.conformance.support import append
from tests.fakes.backend import FakeBackend
from tests.fakes.server import FakeServer, serve_cluster

if TYPE_CHECKING:
    # For type checkers only.
    from pixy.proto.pixy_topics_pb2_grpc import TopicsAsyncStub

CODE = grpc.StatusCode


@pytest.fixture
async def fake_server() -> AsyncIterator[FakeServer]:
    async with serve_cluster() as served:
        yield served


@pytest.fixture
async def channel(fake_server: FakeServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(fake_server.address) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> TopicsAsyncStub:
    return TopicsStub(channel)


async def describe(stub: TopicsAsyncStub, topic: str = "t") -> pb.TopicDescription:
    return await stub.DescribeTopic(pb.DescribeTopicRequest(topic=topic))


def ranges(topic: pb.TopicDescription) -> list[tuple[int, int]]:
    return [(each.offsets.begin, each.offsets.end) for each in topic.partitions]


async def fails(call: Any, code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert (caught.value.code(), text in (caught.value.details() or "")) == (code, True), (
        caught.value.details()
    )


async def test_a_created_topic_has_the_requested_partitions_and_options(
    stub: TopicsAsyncStub,
) -> None:
    request = pb.CreateTopicRequest(topic="t", partitions=2, config={"retention_ms": "1000"})
    created = await stub.CreateTopic(request)
    assert (created.topic, len(created.topic_id), dict(created.config)) == ("t", 16, {"retention_ms": "1000"})
    assert list(created.partitions) == [
        pb.PartitionDescription(partition=number, leader=1, replicas=[1], isr=[1]) for number in range(2)
    ]
    described = await describe(stub)
    assert (described.topic, described.topic_id) == ("t", created.topic_id)
    assert (described.version, dict(described.config)) == (created.version, {"retention_ms": "1000"})


async def test_a_topic_without_a_number_of_partitions_gets_the_clusters_default(
    stub: TopicsAsyncStub,
) -> None:
    assert len((await stub.CreateTopic(pb.CreateTopicRequest(topic="t"))).partitions) == 3


async def test_options_may_have_kafkas_names_and_responses_have_pixys(stub: TopicsAsyncStub) -> None:
    config = {"retention.ms": "1", "segment.bytes": "2", "retention_bytes": "3"}
    created = await stub.CreateTopic(pb.CreateTopicRequest(topic="t", config=config))
    assert dict(created.config) == {"retention_ms": "1", "segment_bytes": "2", "retention_bytes": "3"}
    changes = pb.AlterTopicRequest(topic="t", set={"segment.ms": "4"}, unset=["retention.ms"])
    altered = await stub.AlterTopic(changes)
    assert dict(altered.config) == {"segment_ms": "4", "segment_bytes": "2", "retention_bytes": "3"}


async def test_an_option_named_twice_is_rejected(stub: TopicsAsyncStub) -> None:
    text = "option retention_ms is named more than once"
    twice = {"retention_ms": "1", "retention.ms": "2"}
    await fails(stub.CreateTopic(pb.CreateTopicRequest(topic="t", config=twice)), CODE.INVALID_ARGUMENT, text)
    await stub.CreateTopic(pb.CreateTopicRequest(topic="t"))
    for request in (
        pb.AlterTopicRequest(topic="t", set=twice),
        pb.AlterTopicRequest(topic="t", set={"retention_ms": "1"}, unset=["retention.ms"]),
        pb.AlterTopicRequest(topic="t", unset=["retention_ms", "retention.ms"]),
    ):
        await fails(stub.AlterTopic(request), CODE.INVALID_ARGUMENT, text)


async def test_partitions_and_options_change_together_and_the_version_grows(stub: TopicsAsyncStub) -> None:
    config = {"retention_ms": "1", "segment_ms": "2"}
    created = await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=1, config=config))
    changes = pb.AlterTopicRequest(topic="t", partitions=4, set={"segment_ms": "3"}, unset=["retention_ms"])
    altered = await stub.AlterTopic(changes)
    assert [each.partition for each in altered.partitions] == [0, 1, 2, 3]
    assert (dict(altered.config), altered.topic_id) == ({"segment_ms": "3"}, created.topic_id)
    assert altered.version > created.version
    assert (await describe(stub)).version == altered.version


async def test_a_change_of_options_keeps_the_partitions(stub: TopicsAsyncStub) -> None:
    await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=2))
    altered = await stub.AlterTopic(pb.AlterTopicRequest(topic="t", set={"retention_ms": "1"}))
    assert len(altered.partitions) == 2


async def test_an_empty_change_succeeds(stub: TopicsAsyncStub) -> None:
    created = await stub.CreateTopic(pb.CreateTopicRequest(topic="t", config={"retention_ms": "1"}))
    assert await stub.AlterTopic(pb.AlterTopicRequest(topic="t")) == created


async def test_a_description_has_the_offsets_of_each_partition(
    fake_server: FakeServer, channel: grpc.aio.Channel, stub: TopicsAsyncStub
) -> None:
    await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=2))
    where = [
        (await KafkaPixyStub(channel).Produce(kafkapixy.ProdRq(topic="t", key_value=b"k"))).partition
        for _ in range(3)
    ]
    fake_server.backend.move_log_begin(TopicPartition("t", where[0]), 1)
    expected = [(0, 0), (0, 0)]
    expected[where[0]] = (1, 3)
    described = await describe(stub)
    assert ranges(described) == expected
    assert all(each.HasField("offsets") for each in described.partitions)


async def test_a_partition_without_a_leader_has_no_offsets_in_a_description(
    fake_server: FakeServer, stub: TopicsAsyncStub
) -> None:
    await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=3))
    fake_server.backend.silent.add(TopicPartition("t", 1))
    described = await describe(stub)
    assert [each.HasField("offsets") for each in described.partitions] == [True, False, True]


async def test_a_deleted_topic_is_unknown_and_a_recreated_one_is_empty(
    channel: grpc.aio.Channel, stub: TopicsAsyncStub
) -> None:
    first = await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=1))
    await KafkaPixyStub(channel).Produce(kafkapixy.ProdRq(topic="t", message=b"m"))
    assert ranges(await describe(stub)) == [(0, 1)]
    await stub.DeleteTopic(pb.DeleteTopicRequest(topic="t"))
    await fails(describe(stub), CODE.NOT_FOUND, "unknown topic t")
    second = await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=1))
    assert second.topic_id != first.topic_id
    assert ranges(await describe(stub)) == [(0, 0)]


async def test_every_change_of_topics_is_logged_with_who_has_asked(stub: TopicsAsyncStub) -> None:
    with capture_logs() as logs:
        await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=1))
        await stub.AlterTopic(pb.AlterTopicRequest(topic="t", partitions=2, set={"retention.ms": "1000"}))
        await stub.DeleteTopic(pb.DeleteTopicRequest(topic="t"))
        await fails(stub.DeleteTopic(pb.DeleteTopicRequest(topic="t")), CODE.NOT_FOUND, "unknown topic t")
    told = [each for each in logs if each["event"].startswith("a topic was")]
    assert [each["event"] for each in told] == [
        "a topic was made",
        "a topic was changed",
        "a topic was deleted",
    ]
    assert [each.get("partitions") for each in told] == [1, 2, None]
    assert told[1]["options"] == "retention_ms"
    assert all(each["topic"] == "t" and each["asked_by"].startswith("127.0.0.1:") for each in told)


async def test_a_cluster_can_be_named(stub: TopicsAsyncStub) -> None:
    await stub.CreateTopic(pb.CreateTopicRequest(cluster="first", topic="t"))
    await stub.AlterTopic(pb.AlterTopicRequest(cluster="first", topic="t", partitions=5))
    described = await stub.DescribeTopic(pb.DescribeTopicRequest(cluster="first", topic="t"))
    assert len(described.partitions) == 5
    await stub.DeleteTopic(pb.DeleteTopicRequest(cluster="first", topic="t"))


async def test_every_error_has_its_status_and_reason(stub: TopicsAsyncStub) -> None:
    await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=2))
    bad, missing = CODE.INVALID_ARGUMENT, CODE.NOT_FOUND
    for call, code, text in [
        (stub.CreateTopic(pb.CreateTopicRequest(cluster="x", topic="new")), bad, "proxy `x` does not exist"),
        (stub.AlterTopic(pb.AlterTopicRequest(cluster="x", topic="t")), bad, "proxy `x` does not exist"),
        (stub.DeleteTopic(pb.DeleteTopicRequest(cluster="x", topic="t")), bad, "proxy `x` does not exist"),
        (
            stub.DescribeTopic(pb.DescribeTopicRequest(cluster="x", topic="t")),
            bad,
            "proxy `x` does not exist",
        ),
        (stub.CreateTopic(pb.CreateTopicRequest(topic="a b")), bad, "invalid topic name 'a b'"),
        (stub.AlterTopic(pb.AlterTopicRequest(topic="..")), bad, "invalid topic name '..'"),
        (stub.DeleteTopic(pb.DeleteTopicRequest()), bad, "invalid topic name ''"),
        (stub.DescribeTopic(pb.DescribeTopicRequest(topic="a/b")), bad, "invalid topic name 'a/b'"),
        (stub.CreateTopic(pb.CreateTopicRequest(topic="t")), CODE.ALREADY_EXISTS, "topic t exists already"),
        (stub.CreateTopic(pb.CreateTopicRequest(topic="new", partitions=-1)), bad, "-1"),
        (stub.CreateTopic(pb.CreateTopicRequest(topic="new", config={"a.b": "1"})), bad, "option a_b"),
        (stub.CreateTopic(pb.CreateTopicRequest(topic="new", config={"segment_ms": "x"})), bad, "'x'"),
        (stub.AlterTopic(pb.AlterTopicRequest(topic="t", unset=["a.b"])), bad, "option a_b"),
        (stub.AlterTopic(pb.AlterTopicRequest(topic="t", partitions=1)), bad, "topic t"),
        (stub.AlterTopic(pb.AlterTopicRequest(topic="none", partitions=9)), missing, "unknown topic none"),
        (stub.DeleteTopic(pb.DeleteTopicRequest(topic="none")), missing, "unknown topic none"),
        (describe(stub, "none"), missing, "unknown topic none"),
    ]:
        await fails(call, code, text)
    assert len((await describe(stub)).partitions) == 2
    await fails(describe(stub, "new"), missing, "unknown topic new")


async def test_while_draining_topics_are_described_and_not_changed(
    fake_server: FakeServer, stub: TopicsAsyncStub
) -> None:
    await stub.CreateTopic(pb.CreateTopicRequest(topic="t"))
    fake_server.proxy.begin_drain()
    for call in (
        stub.CreateTopic(pb.CreateTopicRequest(topic="new")),
        stub.AlterTopic(pb.AlterTopicRequest(topic="t", partitions=9)),
        stub.DeleteTopic(pb.DeleteTopicRequest(topic="t")),
    ):
        await fails(call, CODE.UNAVAILABLE, "service is shutting down")
    assert len((await describe(stub)).partitions) == 3


async def test_groups_are_listed_also_those_that_only_committed(
    fake_server: FakeServer, stub: TopicsAsyncStub
) -> None:
    await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=1))
    await fake_server.backend.commit_offsets("g", {TopicPartition("t", 0): OffsetCommit(1)})
    assert list((await stub.ListGroups(pb.ListGroupsRequest())).groups) == ["g"]
    unknown = stub.ListGroups(pb.ListGroupsRequest(cluster="unknown"))
    await fails(unknown, CODE.INVALID_ARGUMENT, "unknown")


async def test_an_ack_beyond_the_end_makes_no_group(channel: grpc.aio.Channel, stub: TopicsAsyncStub) -> None:
    await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=1))
    ack: Any = KafkaPixyStub(channel).Ack(kafkapixy.AckRq(topic="t", group="typo", offset=99))
    await fails(ack, CODE.INVALID_ARGUMENT, "bad offset: 99: t/0 ends at 0")
    assert list((await stub.ListGroups(pb.ListGroupsRequest())).groups) == []


async def test_records_are_removed_by_partition(fake_server: FakeServer, stub: TopicsAsyncStub) -> None:
    await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=3))
    for number in range(3):
        await append(fake_server.backend, TopicPartition("t", number), b"0", b"1")

    def delete(*removed: tuple[int, int], topic: str = "t") -> Any:
        partitions = [pb.RecordsToDelete(partition=each[0], before_offset=each[1]) for each in removed]
        return stub.DeleteRecords(pb.DeleteRecordsRequest(topic=topic, partitions=partitions))

    answer = await delete((2, -1), (0, 1))
    assert [(each.partition, each.begin) for each in answer.partitions] == [(2, 2), (0, 1)]
    assert ranges(await describe(stub)) == [(1, 2), (0, 2), (2, 2)]
    await fails(delete((1, 0), (1, 1)), CODE.INVALID_ARGUMENT, "listed more than once")
    await fails(delete((1, -2)), CODE.INVALID_ARGUMENT, "offset -2 of partition 1")
    await fails(delete((3, 0)), CODE.INVALID_ARGUMENT, "unknown partition 3")
    await fails(delete((1, 3)), CODE.OUT_OF_RANGE, "offset 3 of t-1")
    await fails(delete((0, 0), topic="missing"), CODE.NOT_FOUND, "unknown topic missing")
    assert ranges(await describe(stub)) == [(1, 2), (0, 2), (2, 2)]


async def test_a_group_is_deleted_unless_it_has_consumers(
    fake_server: FakeServer, stub: TopicsAsyncStub
) -> None:
    await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=1))
    backend = fake_server.backend
    for group in ("g", "h"):
        await backend.commit_offsets(group, {TopicPartition("t", 0): OffsetCommit(1)})
    await stub.DeleteGroup(pb.DeleteGroupRequest(group="g", topic="t"))
    await fails(stub.DeleteGroup(pb.DeleteGroupRequest(group="g")), CODE.NOT_FOUND, "consumer group g has no")
    await fails(stub.DeleteGroup(pb.DeleteGroupRequest()), CODE.INVALID_ARGUMENT, "group must not be empty")
    await backend.join_consumer_group("h", "me", ["t"], lambda _: None)
    refused = stub.DeleteGroup(pb.DeleteGroupRequest(group="h"))
    await fails(refused, CODE.FAILED_PRECONDITION, "consumer group h has consumers: me")
    assert list((await stub.ListGroups(pb.ListGroupsRequest())).groups) == ["h"]


class _Odd(FakeBackend):
    """A cluster with a bug, whose topics change while they are described."""

    async def offset_ranges(
        self, topic: str, partitions: Collection[int] | None = None
    ) -> Mapping[int, OffsetRange]:
        return {0: OffsetRange(5, 7), 9: OffsetRange(0, 0)}

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        raise ZeroDivisionError("a bug")


async def test_a_partition_created_or_deleted_meanwhile_has_no_offsets() -> None:
    async with serve_cluster(_Odd()) as served, grpc.aio.insecure_channel(served.address) as channel:
        stub: TopicsAsyncStub = TopicsStub(channel)
        await stub.CreateTopic(pb.CreateTopicRequest(topic="t", partitions=2))
        described = await describe(stub)
        assert [each.HasField("offsets") for each in described.partitions] == [True, False]
        assert described.partitions[0].offsets == pb.OffsetRange(begin=5, end=7)


async def test_a_bug_is_answered_internal_without_details_and_reported_to_the_daemon() -> None:
    async with serve_cluster(_Odd()) as served, grpc.aio.insecure_channel(served.address) as channel:
        stub: TopicsAsyncStub = TopicsStub(channel)
        await fails(stub.DeleteTopic(pb.DeleteTopicRequest(topic="t")), CODE.INTERNAL, "internal error")
        assert [str(fault) for fault in served.faults] == ["a bug"]

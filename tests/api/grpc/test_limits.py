"""Limits as clients meet them: the answer names limit and option, and the log has who and how
often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from structlog.testing import capture_logs

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from tests.api.quick_polls import QUICK_POLLS
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyAsyncStub
    from tests.api.grpc.conftest import ServedNode

pytestmark = pytest.mark.slow

Call = Callable[[grpc.aio.Channel, "KafkaPixyAsyncStub", int], Coroutine[Any, Any, object]]


async def create(channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub, number: int) -> object:
    return await TopicsStub(channel).CreateTopic(
        topics_pb.CreateTopicRequest(topic=f"t{number}", partitions=1)
    )


async def create_large(channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub, number: int) -> object:
    return await TopicsStub(channel).CreateTopic(
        topics_pb.CreateTopicRequest(topic=f"t{number}", partitions=30)
    )


async def describe(channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub, number: int) -> object:
    names = [f"t{number}-{each}" for each in range(10)]
    request = log_pb.DescribeTopicsRequest(topics=names, create_missing=True)
    return await LogStub(channel).DescribeTopics(request)


async def produce(channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub, number: int) -> object:
    return await stub.Produce(pb.ProdRq(topic=f"t{number}", key_undefined=True, message=b"x"))


async def set_offsets(channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub, number: int) -> object:
    if not number:
        await create(channel, stub, 0)
    offsets = [pb.PartitionOffset(partition=0, offset=0)]
    return await stub.SetOffsets(pb.SetOffsetsRq(topic="t0", group=f"g{number}", offsets=offsets))


async def set_metadata(channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub, number: int) -> object:
    if not number:
        await create_large(channel, stub, 0)
    offsets = [pb.PartitionOffset(partition=each, offset=0, metadata="m" * 4000) for each in range(30)]
    return await stub.SetOffsets(pb.SetOffsetsRq(topic="t0", group=f"g{number}", offsets=offsets))


LIMITED: list[tuple[str, Call]] = [
    ("limits.max_topics", create),
    ("limits.max_topics", describe),
    ("limits.max_topics", produce),
    ("limits.max_partitions", create_large),
    ("limits.max_groups", set_offsets),
    ("limits.max_offsets_bytes", set_metadata),
]


@pytest.mark.parametrize(("limit", "call"), LIMITED)
async def test_a_limit_is_answered_and_logged_by_its_name(
    served: ServedNode, channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub, limit: str, call: Call
) -> None:
    refusals: list[grpc.aio.AioRpcError] = []
    with capture_logs() as logs:
        for number in range(100):
            try:
                await call(channel, stub, number)
            except grpc.aio.AioRpcError as error:
                refusals.append(error)
        await served.server.stop(0)
    assert refusals
    assert {error.code() for error in refusals} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert all(f"{limit} allows" in (error.details() or "") for error in refusals)
    lines = [each for each in logs if each["event"] == "a limit is reached"]
    # One line at once, and one with all that came within a minute.
    assert [(each["limit"], each["clients"].split()[0]) for each in lines] == [(limit, "127.0.0.1")] * 2
    assert sum(each["times"] for each in lines) == len(refusals)


@QUICK_POLLS
async def test_a_group_beyond_the_limit_gets_no_messages_and_hears_why(
    served: ServedNode, channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub
) -> None:
    await produce(channel, stub, 0)
    refused: set[int] = set()
    for number in range(100):
        try:
            await set_offsets(channel, stub, number + 1)
        except grpc.aio.AioRpcError:
            refused.add(number + 1)
    request = pb.ConsNAckRq(topic="t0", group=f"g{min(refused)}", no_ack=True)
    with pytest.raises(grpc.aio.AioRpcError, match=r"limits\.max_groups allows 8") as caught:
        await stub.ConsumeNAck(request)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    # A group that is there consumes as ever.
    answer = await stub.ConsumeNAck(pb.ConsNAckRq(topic="t0", group="g1", auto_ack=True, no_ack=True))
    assert answer.message == b"x"


@QUICK_POLLS
async def test_a_group_cannot_begin_beyond_the_limit_of_offsets_and_others_go_on(
    served: ServedNode, channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub
) -> None:
    await TopicsStub(channel).CreateTopic(topics_pb.CreateTopicRequest(topic="t0", partitions=95))
    await produce(channel, stub, 0)
    begun = await stub.ConsumeNAck(pb.ConsNAckRq(topic="t0", group="there", no_ack=True))
    refused = ""
    for number in range(1, 100):
        try:
            await set_metadata(channel, stub, number)
        except grpc.aio.AioRpcError as error:
            if "limits.max_offsets_bytes" in (error.details() or ""):
                refused = f"g{number}"
                break
    with pytest.raises(grpc.aio.AioRpcError, match=r"limits\.max_offsets_bytes allows") as caught:
        await stub.ConsumeNAck(pb.ConsNAckRq(topic="t0", group=refused, no_ack=True))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    ack = pb.AckRq(topic="t0", group="there", partition=begun.partition, offset=begun.offset)
    await stub.Ack(ack)
    await produce(channel, stub, 0)
    answer = await stub.ConsumeNAck(pb.ConsNAckRq(topic="t0", group="there", auto_ack=True, no_ack=True))
    assert answer.message == b"x"


@QUICK_POLLS
async def test_one_address_cannot_take_all_subscriptions_by_consuming_or_acking(
    served: ServedNode, channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub
) -> None:
    for number in range(11):
        await create(channel, stub, number)
    refused: list[str] = []
    for number in range(22):
        topic, group = f"t{number % 11}", f"g{number // 11}"
        call: Any
        if number < 20:
            call = stub.ConsumeNAck(pb.ConsNAckRq(topic=topic, group=group, no_ack=True), timeout=0.05)
        else:
            await produce(channel, stub, number % 11)
            call = stub.Ack(pb.AckRq(topic=topic, group=group, partition=0, offset=0))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        if caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            refused.append(caught.value.details() or "")
    assert len(refused) == 2
    assert all("Clients of this address consume 20 topics at this node already" in each for each in refused)
    # A client of another address, here of the unix socket, gets what it asks for.
    async with grpc.aio.insecure_channel(served.addresses["grpc-unix"]) as other:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await KafkaPixyStub(other).ConsumeNAck(pb.ConsNAckRq(topic="t0", group="g7", no_ack=True))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_one_address_cannot_take_all_waiting_acks(
    served: ServedNode,
    channel: grpc.aio.Channel,
    stub: KafkaPixyAsyncStub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await produce(channel, stub, 0)
    joins = asyncio.Event()
    join = served.backend.join_consumer_group

    async def late(*args: Any) -> Any:
        await joins.wait()
        return await join(*args)

    monkeypatch.setattr(served.backend, "join_consumer_group", late)
    acks = [log_pb.MessagePosition(partition=0, offset=0)] * 40

    def batch(at: grpc.aio.Channel, group: int) -> Any:
        request = log_pb.ConsumeBatchRequest(topic="t0", group=f"g{group}", max_messages=1, acks=acks)
        return LogStub(at).ConsumeBatch(request)

    with capture_logs() as logs:
        first = batch(channel, 0)
        await until(lambda: served.proxy.counts()["waiting_acks"] == 40)
        second = batch(channel, 1)
        await until(lambda: served.proxy.counts()["waiting_acks"] == 50)
        async with grpc.aio.insecure_channel(served.addresses["grpc-unix"]) as other:
            third = batch(other, 2)
            await until(lambda: served.proxy.counts()["waiting_acks"] == 90)
            joins.set()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await second
            for call in (first, third):
                assert len((await call).messages) == 1
        assert served.proxy.counts()["waiting_acks"] == 0
    limit = "client_share_percent of consumer.max_waiting_acks"
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "50 acks of clients of this address wait" in (refused.value.details() or "")
    [line] = [each for each in logs if each["event"] == "a limit is reached"]
    assert (line["limit"], line["times"]) == (limit, 1)

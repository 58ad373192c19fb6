"""Calls whose answers or requests may be large: an address has a few of each method at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from pixy.api.grpc.batch_acks import BatchAcks
from pixy.api.grpc.large_answers import AT_ONCE
from pixy.api.grpc.maxima import REPEATED_MAX
from pixy.config import GrpcConfig
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_cluster_pb2 as cluster_pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_cluster_pb2_grpc import ClusterStub
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from tests.api.grpc.conftest import ServedNode

METHODS: dict[str, tuple[Any, Any, str]] = {
    "GetOffsets": (KafkaPixyStub, pb.GetOffsetsRq(topic="t", group="g"), "get_offsets"),
    "SetOffsets": (KafkaPixyStub, pb.SetOffsetsRq(topic="t", group="g"), "set_offsets"),
    "ListTopics": (KafkaPixyStub, pb.ListTopicRq(), "list_topics"),
    "ListConsumers": (KafkaPixyStub, pb.ListConsumersRq(topic="t"), "describe_topic"),
    "GetTopicMetadata": (KafkaPixyStub, pb.GetTopicMetadataRq(topic="t"), "describe_topic"),
    "DescribeTopics": (LogStub, log_pb.DescribeTopicsRequest(), "log.describe_topics"),
    "ListOffsets": (LogStub, log_pb.ListOffsetsRequest(), "log.list_offsets"),
    "CreateTopic": (TopicsStub, topics_pb.CreateTopicRequest(topic="t"), "create_topic"),
    "AlterTopic": (TopicsStub, topics_pb.AlterTopicRequest(topic="t"), "alter_topic"),
    "DescribeTopic": (TopicsStub, topics_pb.DescribeTopicRequest(topic="t"), "describe_topic"),
    "ListGroups": (TopicsStub, topics_pb.ListGroupsRequest(), "list_groups"),
    "Status": (ClusterStub, cluster_pb.StatusRequest(), "cluster_status"),
}
"""The service of each, a request, and the first method of the proxy that it calls."""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
async def test_an_address_has_a_few_calls_at_a_time_and_others_do_not_wait(
    served: ServedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    stub, request, path = METHODS[method]
    begun, go_on = 0, asyncio.Event()

    async def blocked(*_: object, **__: object) -> None:
        nonlocal begun
        begun += 1
        await go_on.wait()
        raise ZeroDivisionError("a bug, so the call ends")

    *parts, name = path.split(".")
    monkeypatch.setattr(getattr(served.proxy, parts[0]) if parts else served.proxy, name, blocked)
    async with (
        grpc.aio.insecure_channel(served.addresses["grpc"]) as many,
        grpc.aio.insecure_channel(f"unix:{tmp_path / 'pixy.sock'}") as one,
    ):
        calls = [getattr(stub(many), method)(request) for _ in range(AT_ONCE + 8)]
        await until(lambda: begun == AT_ONCE)
        calls.append(getattr(stub(one), method)(request))
        await until(lambda: begun == AT_ONCE + 1)
        go_on.set()
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call
            assert ended.value.code() is grpc.StatusCode.INTERNAL
    assert begun == len(calls)


OPTION = b"\x22\x22\x0a\x20" + b"x" * 32
MANY: dict[str, tuple[str, bytes, int, str]] = {
    "SetOffsets": ("KafkaPixy", b"\x22\x00", 2000, "set_offsets"),
    "CreateTopic": ("pixy.topics.v1.Topics", OPTION, 1000, "create_topic"),
    "AlterTopic": ("pixy.topics.v1.Topics", OPTION, 1000, "alter_topic"),
    "DeleteRecords": ("pixy.topics.v1.Topics", b"\x1a\x00", 2000, "delete_records"),
    "DescribeTopics": ("pixy.log.v1.Log", b"\x12\x00", 2000, "log.describe_topics"),
    "ListOffsets": ("pixy.log.v1.Log", b"\x12\x02\x20\x01", 2000, "log.list_offsets"),
    "Append": ("pixy.log.v1.Log", b"\x1a\x00", 1000, "log.append"),
    "Stage": ("pixy.log.v1.Log", b"\x32\x00", 1000, "staging.stage"),
    "Publish": ("pixy.log.v1.Log", b"\x32\x00", 2000, "staging.publish"),
    "Discard": ("pixy.log.v1.Log", b"\x1a\x00", 2000, "staging.discard"),
    "BeginMoves": ("pixy.cluster.v1.Cluster", b"\x1a\x00", 1000, "begin_moves"),
}
"""The service of each, an element of its request, their number, and the method of the proxy that it
calls.
"""
COUNTED_ELSEWHERE = {"Produce", "ConsumeBatch", "Fetch"}
"""Records of producers, acks and ranges have limits of their own."""


def test_every_method_with_many_elements_is_tried() -> None:
    repeats = {name for maxima in REPEATED_MAX.values() for name in maxima}
    assert repeats == MANY.keys() | COUNTED_ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize("method", MANY)
async def test_what_waits_with_many_elements_is_held_in_bytes(
    served: ServedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    service, element, count, path = MANY[method]
    begun, go_on = 0, asyncio.Event()

    async def blocked(*_: object, **__: object) -> None:
        nonlocal begun
        begun += 1
        await go_on.wait()
        raise ZeroDivisionError("a bug, so the call ends")

    *parts, name = path.split(".")
    monkeypatch.setattr(getattr(served.proxy, parts[0]) if parts else served.proxy, name, blocked)
    body = element * count
    share = GrpcConfig().buffer_bytes // 16 // 2
    most = share // (len(body) + 256 * count)

    def begin(channel: grpc.aio.Channel, request: bytes) -> Any:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{service}/{method}")
        return call(request)

    def held() -> int:
        return sum(each.request_bytes for each in served.server.server.connection_counters)

    async with (
        grpc.aio.insecure_channel(served.addresses["grpc"]) as many,
        grpc.aio.insecure_channel(f"unix:{tmp_path / 'pixy.sock'}") as one,
    ):
        calls = [begin(many, body) for _ in range(most)]
        await until(lambda: begun == most)
        calls += [begin(many, body) for _ in range(9)]
        await until(lambda: held() == 9 * len(body))
        assert begun == most
        calls.pop().cancel()
        await until(lambda: held() == 8 * len(body))
        # Neither other clients nor small requests wait.
        calls += [begin(one, body), begin(many, element)]
        await until(lambda: begun == most + 2)
        go_on.set()
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call
            assert ended.value.code() is grpc.StatusCode.INTERNAL
    assert begun == len(calls)


async def test_consume_batches_with_many_acks_wait_in_bytes_until_those_of_others_are_done(
    served: ServedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of those whose client has gone: their acks are carried out."""
    begun: list[BatchAcks] = []
    begin = BatchAcks.begin

    def stop(acks: BatchAcks) -> None:
        begun.append(acks)

    monkeypatch.setattr(BatchAcks, "begin", stop)
    await served.proxy.create_topic("t", 1, {})
    request = log_pb.ConsumeBatchRequest(
        topic="t", group="g", max_messages=1, acks=[log_pb.MessagePosition()] * 2000
    )
    body = request.SerializeToString()
    most = GrpcConfig().buffer_bytes // 16 // 2 // (len(body) + 256 * 2000)

    def held() -> int:
        return sum(each.request_bytes for each in served.server.server.connection_counters)

    async with grpc.aio.insecure_channel(served.addresses["grpc"]) as channel:
        method: Any = channel.unary_unary("/pixy.log.v1.Log/ConsumeBatch")
        calls = [method(body, timeout=20) for _ in range(most + 5)]
        await until(lambda: len(begun) == most and held() >= 5 * len(body))
        for call in calls:
            call.cancel()
        await until(lambda: not held())
        late = method(body, timeout=20)
        await until(held)
        assert len(begun) == most
        for acks in begun[:1]:
            begin(acks)
        await until(lambda: len(begun) == most + 1)
        begin(begun[-1])
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await late
        assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT, "nothing was written yet"
        for acks in begun[1:-1]:
            begin(acks)

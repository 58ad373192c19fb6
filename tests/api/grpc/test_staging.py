"""pixy/api/grpc/staging.py: staged writes over a real gRPC server, on a real embedded log and on
one in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from pixy.backend import TopicPartition
from pixy.proto import pixy_log_pb2 as pb
from pixy.proto import pixy_topics_pb2
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from pixy.records import crc32c
from tests.fakes.backend import FakeBackend
from tests.fakes.batches import batch_of, values_in
from tests.fakes.node import make_embedded
from tests.fakes.server import serve_backend

if TYPE_CHECKING:
    # For type checkers only.
    from pixy.backend import Backend
    from pixy.proto.pixy_log_pb2_grpc import LogAsyncStub
    from pixy.proto.pixy_topics_pb2_grpc import TopicsAsyncStub

CODE = grpc.StatusCode


class Client:
    """A client that stages records."""

    def __init__(self, channel: grpc.aio.Channel, backend: Backend, proxy: Any) -> None:
        self.log: LogAsyncStub = LogStub(channel)
        self.topics: TopicsAsyncStub = TopicsStub(channel)
        self.backend = backend
        self.proxy = proxy

    async def values(self, partition: int = 0) -> list[bytes | None]:
        result = await self.backend.fetch(TopicPartition("t", partition), 0, max_bytes=1 << 20, max_wait=0)
        return [value for batch in result.batches for value in values_in(bytes(batch))]


@pytest.fixture(params=["fake", "embedded"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    backend = FakeBackend() if request.param == "fake" else make_embedded(tmp_path / "data")
    async with serve_backend(backend) as served, grpc.aio.insecure_channel(served.address) as channel:
        await backend.create_topic("t", 2)
        yield Client(channel, backend, served.proxy)
        assert not served.faults


def batches_of(*values: bytes, partition: int = 0, topic: str = "t") -> pb.PartitionBatches:
    return pb.PartitionBatches(topic=topic, partition=partition, batches=batch_of(*values))


def stage_of(
    *partitions: pb.PartitionBatches, stage: str = "stage", sink: str = "sink", **fields: Any
) -> pb.StageRequest:
    """A stage of one piece, sealed at once."""
    crc = crc32c(b"".join(each.batches for each in partitions))
    seal = pb.Seal(pieces=1, crc=crc32c(crc.to_bytes(4, "big")))
    return pb.StageRequest(sink_id=sink, stage_id=stage, partitions=partitions, seal=seal, **fields)


def publish_of(epoch: int, *stages: str, sink: str = "sink", query: str = "query") -> pb.PublishRequest:
    return pb.PublishRequest(sink_id=sink, epoch=epoch, query_id=query, stage_ids=stages)


async def fails(call: Any, code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert (caught.value.code(), text in (caught.value.details() or "")) == (code, True), (
        caught.value.details()
    )


@pytest.mark.slow
async def test_a_stage_is_published_as_specified_in_the_proto(client: Client) -> None:
    request = stage_of(batches_of(b"1", b"2"), batches_of(b"3", partition=1))
    answer = await client.log.Stage(request)
    assert answer.staged_bytes == sum(len(each.batches) for each in request.partitions)
    assert await client.values() == []
    assert await client.log.Publish(publish_of(4, "stage")) == pb.PublishResponse(
        published=True, last_epoch=4
    )
    assert (await client.values(), await client.values(1)) == ([b"1", b"2"], [b"3"])
    assert await client.log.Publish(publish_of(4, "stage")) == pb.PublishResponse(
        published=False, last_epoch=4
    )


async def test_a_sink_is_taken_over_only_by_a_reset(client: Client) -> None:
    await client.log.Publish(publish_of(4))
    await fails(client.log.Publish(publish_of(0, query="other")), CODE.FAILED_PRECONDITION, "query")
    request = publish_of(0, query="other")
    request.reset_sink = True
    assert (await client.log.Publish(request)).published


@pytest.mark.slow
async def test_a_sink_is_taken_over_from_the_named_query(client: Client) -> None:
    await client.log.Publish(publish_of(4))
    request = publish_of(0, query="other")
    request.replaces_query_id = "a third"
    await fails(client.log.Publish(request), CODE.INVALID_ARGUMENT, "replaces_query_id is 'a third'")
    request.replaces_query_id = "another"
    await fails(client.log.Publish(request), CODE.FAILED_PRECONDITION, "belongs to query")
    request.replaces_query_id = "query"
    assert (await client.log.Publish(request)).published


@pytest.mark.slow
async def test_a_discarded_stage_cannot_be_published(client: Client) -> None:
    await client.log.Stage(stage_of(batches_of(b"1")))
    await client.log.Discard(pb.DiscardRequest(sink_id="sink", stage_ids=["stage", "unknown"]))
    await fails(client.log.Publish(publish_of(0, "stage")), CODE.FAILED_PRECONDITION, "stage")
    assert await client.values() == []


@pytest.mark.slow
async def test_a_stale_version_of_a_topic_is_rejected_and_a_new_one_accepted(client: Client) -> None:
    request = stage_of(batches_of(b"1"), versions=[pb.TopicVersion(topic="t", version=1)])
    await client.backend.alter_topic("t", partitions=3)
    await fails(client.log.Stage(request), CODE.FAILED_PRECONDITION, "version")
    request.versions[0].version = 2
    await client.log.Stage(request)


async def test_a_piece_for_a_deleted_topic_of_the_same_name_and_version_is_rejected(client: Client) -> None:
    old = await client.backend.describe_topic("t")
    await client.backend.delete_topic("t")
    new = await client.backend.create_topic("t", 2)
    assert new.version == old.version
    request = stage_of(
        batches_of(b"1"), versions=[pb.TopicVersion(topic="t", version=old.version, topic_id=old.topic_id)]
    )
    text = f"topic t has id {new.topic_id.hex()}, the request was made for {old.topic_id.hex()}"
    await fails(client.log.Stage(request), CODE.FAILED_PRECONDITION, text)
    request.versions[0].topic_id = new.topic_id
    await client.log.Stage(request)


async def test_missing_stages_are_not_found(client: Client) -> None:
    await fails(client.log.Stage(stage_of(batches_of(b"1", partition=2))), CODE.NOT_FOUND, "2")
    await fails(client.log.Stage(stage_of(batches_of(b"1", topic="unknown"))), CODE.NOT_FOUND, "unknown")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (pb.StageRequest(sink_id="", stage_id="a"), "sink_id"),
        (pb.StageRequest(sink_id="a/b", stage_id="a"), "sink_id"),
        (pb.StageRequest(sink_id="a", stage_id="x" * 250), "stage_id"),
        (pb.StageRequest(sink_id="a", stage_id="a"), "nothing to do"),
        (pb.StageRequest(sink_id="a", stage_id="a", piece=-1), "piece"),
        (pb.StageRequest(sink_id="a", stage_id="a", seal=pb.Seal(pieces=-1)), "pieces"),
        (stage_of(batches_of(b"1"), batches_of(b"2")), "more than once"),
        (stage_of(pb.PartitionBatches(topic="t", batches=b"x" * 100)), "magic"),
        (stage_of(pb.PartitionBatches(topic="t")), "no record batch"),
        (stage_of(batches_of(b"1", topic="a/b")), "invalid topic"),
        (pb.PublishRequest(sink_id="a", epoch=-1), "epoch"),
        (pb.PublishRequest(sink_id="a", query_id="a b"), "query_id"),
        (pb.PublishRequest(sink_id="a", stage_ids=["b", "b"]), "more than once"),
        (pb.PublishRequest(sink_id="a", stage_ids=["/"]), "stage_ids"),
        (pb.DiscardRequest(sink_id="/"), "sink_id"),
        (pb.DiscardRequest(sink_id="a", cluster="unknown"), "unknown"),
    ],
)
async def test_bad_input_is_rejected_by_name(client: Client, request_: Any, text: str) -> None:
    method: Any = getattr(client.log, type(request_).__name__.removesuffix("Request"))
    await fails(method(request_), CODE.INVALID_ARGUMENT, text)


async def test_too_many_stages_in_one_call_are_rejected(client: Client) -> None:
    await fails(
        client.log.Publish(publish_of(0, *(f"s{number}" for number in range(2001)))),
        CODE.INVALID_ARGUMENT,
        "2001 elements of stage_ids or more, at most 2000 are allowed",
    )


@pytest.mark.slow
async def test_a_topic_with_staged_records_is_deleted_only_by_force(client: Client) -> None:
    await client.log.Stage(stage_of(batches_of(b"1")))
    request = pixy_topics_pb2.DeleteTopicRequest(topic="t")
    await fails(client.topics.DeleteTopic(request), CODE.FAILED_PRECONDITION, "sink")
    request.force = True
    await client.topics.DeleteTopic(request)
    await fails(client.log.Publish(publish_of(0, "stage")), CODE.FAILED_PRECONDITION, "deleted")


async def test_a_drain_accepts_no_more_stages(client: Client) -> None:
    client.proxy.begin_drain()
    await fails(client.log.Stage(stage_of(batches_of(b"1"))), CODE.UNAVAILABLE, "shutting down")
    await fails(client.log.Publish(publish_of(0)), CODE.UNAVAILABLE, "shutting down")
    await fails(client.log.Discard(pb.DiscardRequest(sink_id="a")), CODE.UNAVAILABLE, "shutting down")

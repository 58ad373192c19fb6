"""Shared parts of the bulk log tests: a server for any cluster, ranges, and results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest

from pixy.backend import Backend, TopicPartition
from pixy.config import Config
from pixy.proto import pixy_log_pb2 as pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from tests.fakes.batches import batch_of, offsets_in
from tests.fakes.server import CONFIG, serve_backend

if TYPE_CHECKING:
    # For type checkers only.
    from pixy.proto.pixy_log_pb2_grpc import LogAsyncStub

T0 = TopicPartition("t", 0)
PATIENCE = 60.0
"""Timeout of waits for required events, in seconds."""


class ServedBulk(NamedTuple):
    """A bulk log server, its backend, and the bugs reported."""

    address: str
    log: LogAsyncStub
    channel: grpc.aio.Channel
    backend: Backend
    proxy: Any
    faults: list[BaseException]

    async def append(self, *values: bytes, partition: int = 0, timestamp_ms: int = 1000) -> int:
        """Append one batch to the topic; returns its first offset."""
        batches = pb.PartitionBatches(
            topic="t", partition=partition, batches=batch_of(*values, timestamp_ms=timestamp_ms)
        )
        (result,) = (await self.log.Append(pb.AppendRequest(partitions=[batches]))).results
        assert result.code == 0, result.message
        return result.base_offset

    async def fetch(self, *ranges: pb.FetchRange, **fields: Any) -> list[pb.FetchResponse]:
        """All responses of a fetch."""
        async with asyncio.timeout(PATIENCE):
            return [answer async for answer in self.log.Fetch(pb.FetchRequest(ranges=ranges, **fields))]


@asynccontextmanager
async def serve(backend: Backend, config: Config = CONFIG) -> AsyncIterator[ServedBulk]:
    """A server for a cluster with a topic `t` of two partitions. It must report no bugs."""
    async with serve_backend(backend, config) as served, grpc.aio.insecure_channel(served.address) as channel:
        await backend.create_topic("t", 2)
        yield ServedBulk(served.address, LogStub(channel), channel, backend, served.proxy, served.faults)
        assert not served.faults


def range_of(begin: int = 0, end: int = -1, partition: int = 0, topic: str = "t") -> pb.FetchRange:
    """A range to fetch; by default the whole first partition."""
    return pb.FetchRange(topic=topic, partition=partition, from_offset=begin, to_offset=end)


def offsets(answers: Sequence[pb.FetchResponse]) -> list[int]:
    """Offsets of all records received."""
    return [offset for answer in answers for offset in offsets_in(answer.batches)]


async def fails(call: Any, code: grpc.StatusCode, text: str) -> None:
    """Check that a call fails with a status and a text."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert (caught.value.code(), text in (caught.value.details() or "")) == (code, True), (
        caught.value.details()
    )

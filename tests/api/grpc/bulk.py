"""What the tests of the log in bulk share: a server for any cluster, ranges, and what came."""

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
    # Exists for type checkers only.
    from pixy.proto.pixy_log_pb2_grpc import LogAsyncStub

__all__ = ["PATIENCE", "T0", "ServedBulk", "fails", "offsets", "range_of", "serve"]

T0 = TopicPartition("t", 0)
PATIENCE = 60.0
"""Seconds until a test gives up waiting for what must happen."""


class ServedBulk(NamedTuple):
    """A log in bulk, what stands behind it, and the bugs that it met."""

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
        """Everything that a fetch answers."""
        async with asyncio.timeout(PATIENCE):
            return [answer async for answer in self.log.Fetch(pb.FetchRequest(ranges=ranges, **fields))]


@asynccontextmanager
async def serve(backend: Backend, config: Config = CONFIG) -> AsyncIterator[ServedBulk]:
    """A server for a cluster that has a topic `t` of two partitions. It must meet no bugs."""
    async with serve_backend(backend, config) as served, grpc.aio.insecure_channel(served.address) as channel:
        await backend.create_topic("t", 2)
        yield ServedBulk(served.address, LogStub(channel), channel, backend, served.proxy, served.faults)
        assert not served.faults


def range_of(begin: int = 0, end: int = -1, partition: int = 0, topic: str = "t") -> pb.FetchRange:
    """Offsets to fetch; all of the first partition unless a test says otherwise."""
    return pb.FetchRange(topic=topic, partition=partition, from_offset=begin, to_offset=end)


def offsets(answers: Sequence[pb.FetchResponse]) -> list[int]:
    """The offsets of all records that came."""
    return [offset for answer in answers for offset in offsets_in(answer.batches)]


async def fails(call: Any, code: grpc.StatusCode, text: str) -> None:
    """A call is refused with that status, and the reason says so."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert (caught.value.code(), text in (caught.value.details() or "")) == (code, True), (
        caught.value.details()
    )

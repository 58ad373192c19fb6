"""Compressed batches over a real gRPC server: their memory has one bound for all consumer groups,
and no group misses a message for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import grpc
import pytest

from pixy.consume.memory.memory_turns import MemoryPlace, MemoryTurns, Turn
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.records import COMPRESSION
from tests.fakes.batches import batch_of
from tests.fakes.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyAsyncStub
    from tests.api.grpc.conftest import ServedNode

pytestmark = pytest.mark.slow

PARTITIONS = 12
BATCHES = 2
RECORDS = 4
RECORD_BYTES = 250_000
BYTES_MAX = 2 << 20
"""`consumer.max_unpacked_bytes`: two batches."""


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that were held whenever a batch was decompressed."""
    held: list[int] = []
    decide = MemoryTurns.filled

    def noting(bound: MemoryTurns, batch: MemoryPlace, size: int, now: float) -> Turn:
        turn = decide(bound, batch, size, now)
        bound.check_invariants()
        held.append(bound.held_bytes)
        return turn

    monkeypatch.setattr(MemoryTurns, "filled", noting)
    return held


async def fill(served: ServedNode, channel: grpc.aio.Channel) -> None:
    """A topic `t` whose partitions have batches of 1 MB each, in a few hundred bytes."""
    await served.backend.create_topic("t", PARTITIONS)
    batch = batch_of(
        *(bytes([number]) * RECORD_BYTES for number in range(RECORDS)), compression=COMPRESSION["zstd"]
    )
    assert len(batch) < 2000
    for _ in range(BATCHES):
        partitions = [
            log_pb.PartitionBatches(topic="t", partition=number, batches=batch)
            for number in range(PARTITIONS)
        ]
        answer = await LogStub(channel).Append(log_pb.AppendRequest(partitions=partitions))
        assert [result.code for result in answer.results] == [0] * PARTITIONS


async def consume_all(stub: KafkaPixyAsyncStub, group: str) -> Counter[tuple[int, int]]:
    """Positions of all messages, from one request after the other; each acks the one before."""
    got: Counter[tuple[int, int]] = Counter()
    request = pb.ConsNAckRq(topic="t", group=group, no_ack=True)
    while len(got) < PARTITIONS * BATCHES * RECORDS:
        try:
            message = await stub.ConsumeNAck(request)
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE):
                raise
            continue
        assert len(message.message) == RECORD_BYTES
        got[message.partition, message.offset] += 1
        request = pb.ConsNAckRq(
            topic="t", group=group, ack_partition=message.partition, ack_offset=message.offset
        )
    await stub.Ack(
        pb.AckRq(topic="t", group=group, partition=request.ack_partition, offset=request.ack_offset)
    )
    return got


def unpacked_bytes(served: ServedNode) -> int:
    return served.proxy.counts()["unpacked_bytes"]


async def test_all_groups_share_a_bound_and_each_gets_every_message_once(
    served: ServedNode, channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub, held: list[int]
) -> None:
    await fill(served, channel)
    groups = [f"g{number}" for number in range(3)]
    async with asyncio.timeout(PATIENCE_S):
        consumed = await asyncio.gather(*(consume_all(stub, group) for group in groups))
    every = Counter(
        (partition, offset) for partition in range(PARTITIONS) for offset in range(BATCHES * RECORDS)
    )
    assert consumed == [every] * len(groups)
    assert RECORDS * RECORD_BYTES < max(held) <= BYTES_MAX
    await until(lambda: unpacked_bytes(served) == 0)


async def test_messages_that_are_out_keep_no_batch(
    served: ServedNode, channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub, held: list[int]
) -> None:
    await fill(served, channel)
    out = {}
    for group in (f"g{number}" for number in range(4)):
        for _ in range(2):
            message = await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group=group, no_ack=True))
            out[group] = message
    assert max(held) <= BYTES_MAX
    for group, message in out.items():
        await stub.Ack(pb.AckRq(topic="t", group=group, partition=message.partition, offset=message.offset))
    await served.backend.delete_topic("t", force=True)
    await until(lambda: unpacked_bytes(served) == 0)

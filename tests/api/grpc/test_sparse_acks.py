"""Sparse acks over a real gRPC server: what a commit cannot have is refused and not forgotten, and
what an earlier release has stored is no burden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.consume.core import AckRange, encode
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from tests.api.grpc.bulk import fails
from tests.fakes.batches import batch_of
from tests.fakes.steps import measure_steps
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyAsyncStub
    from tests.api.grpc.conftest import ServedNode

pytestmark = pytest.mark.slow

CODE = grpc.StatusCode
RECORDS = 4400
FULL = 2048
"""Ranges of one acked message each that fill a commit."""
STEP_S = 0.05


async def fill(served: ServedNode, channel: grpc.aio.Channel) -> None:
    """A topic `t` with one partition of records."""
    await served.backend.create_topic("t", 1)
    batches = batch_of(*(b"%d" % number for number in range(RECORDS)))
    request = log_pb.AppendRequest(
        partitions=[log_pb.PartitionBatches(topic="t", partition=0, batches=bytes(batches))]
    )
    assert (await LogStub(channel).Append(request)).results[0].code == 0


async def ack(stub: KafkaPixyAsyncStub, offset: int) -> grpc.StatusCode:
    try:
        await stub.Ack(pb.AckRq(topic="t", group="g", offset=offset))
    except grpc.aio.AioRpcError as error:
        return error.code()
    return CODE.OK


async def stored(stub: KafkaPixyAsyncStub) -> pb.PartitionOffset:
    return (await stub.GetOffsets(pb.GetOffsetsRq(topic="t", group="g"))).offsets[0]


async def test_acks_that_do_not_fit_are_refused_and_no_message_is_lost(
    served: ServedNode, channel: grpc.aio.Channel, stub: KafkaPixyAsyncStub
) -> None:
    await fill(served, channel)
    acked = range(301, 4395, 2)
    metadata = encode(0, [AckRange(offset, offset + 1) for offset in acked])
    assert len(metadata) == 4095
    start = pb.PartitionOffset(offset=0, metadata=metadata)
    await stub.SetOffsets(pb.SetOffsetsRq(topic="t", group="g", offsets=[start]))
    request = pb.ConsNAckRq(topic="t", group="g", no_ack=True)
    assert [(await stub.ConsumeNAck(request)).offset for _ in range(3)] == [0, 1, 2]
    text = (
        "ack not accepted: offset 2 of t/0: acks of 2047 ranges above offset 0, the first that is not acked"
    )
    await fails(stub.Ack(pb.AckRq(topic="t", group="g", offset=2)), CODE.RESOURCE_EXHAUSTED, text)
    riding = pb.ConsNAckRq(topic="t", group="g", ack_offset=2)
    await fails(stub.ConsumeNAck(riding), CODE.RESOURCE_EXHAUSTED, text)
    assert len((await stored(stub)).metadata) <= 4096
    assert [await ack(stub, offset) for offset in range(3)] == [CODE.OK] * 3
    consumed: list[int] = []
    while len(consumed) < RECORDS - 3 - len(acked):
        message = await stub.ConsumeNAck(request)
        consumed.append(message.offset)
        assert await ack(stub, message.offset) is CODE.OK
    assert consumed == [offset for offset in range(3, RECORDS) if offset not in acked]

    async def is_all() -> bool:
        return ((await stored(stub)).offset, (await stored(stub)).metadata) == (RECORDS, "")

    await until(is_all)


async def test_metadata_of_an_earlier_release_opens_in_steps_and_shrinks(
    served: ServedNode,
    channel: grpc.aio.Channel,
    stub: KafkaPixyAsyncStub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await fill(served, channel)
    metadata = "BB" * 400_000
    await served.backend.commit_offsets("g", {TopicPartition("t", 0): OffsetCommit(0, metadata)}, set=True)
    longest = measure_steps(monkeypatch)
    found = await stored(stub)
    assert (found.offset, found.metadata) == (0, "BB" * FULL)
    assert found.sparse_acks.startswith("1-2,3-4,5-6,")
    assert await ack(stub, 4) is CODE.OK  # without an effect; the partition is live then
    for offset in (0, 2, 4):
        message = await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", no_ack=True))
        assert message.offset == offset, "all its acks count"
    assert await ack(stub, 0) is CODE.OK
    committed = (await served.backend.committed_offsets("g", "t"))[0]
    assert len(committed.metadata) <= 4096, "the start of the partition commits what fits"
    assert longest() < STEP_S

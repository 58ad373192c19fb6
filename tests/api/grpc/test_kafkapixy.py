"""pixy/api/grpc/kafkapixy.py: every field there and back, every status, and what becomes of an answer that nobody gets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from pixy.consume import Offer
from pixy.errors import PixyError
from pixy.proto import kafkapixy_pb2 as pb
from tests.api.grpc.conftest import Door

if TYPE_CHECKING:
    # Exists for type checkers only.
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyAsyncStub

CODE = grpc.StatusCode


async def fails(call: Any, code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert (caught.value.code(), text in (caught.value.details() or "")) == (code, True), (
        caught.value.details()
    )


async def test_key_value_and_headers_come_back_as_they_were_sent(stub: KafkaPixyAsyncStub) -> None:
    headers = [
        pb.RecordHeader(key="a", value=b"1"),
        pb.RecordHeader(key="a", value=b"\xff"),
        pb.RecordHeader(key="é", value=b""),
    ]
    produced = await stub.Produce(pb.ProdRq(topic="t", key_value=b"k", message=b"m", headers=headers))
    consumed = await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", no_ack=True))
    assert (produced.partition, produced.offset) == (0, 0)
    assert consumed == pb.ConsRs(partition=0, offset=0, key_value=b"k", message=b"m", headers=headers)


async def test_an_undefined_key_and_an_empty_key_are_told_apart(stub: KafkaPixyAsyncStub) -> None:
    await stub.Produce(pb.ProdRq(topic="t", key_undefined=True, key_value=b"ignored"))
    await stub.Produce(pb.ProdRq(topic="t"))
    answers = [await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", auto_ack=True)) for _ in range(2)]
    assert [(answer.key_undefined, answer.key_value) for answer in answers] == [(True, b""), (False, b"")]


async def test_async_mode_answers_minus_one(stub: KafkaPixyAsyncStub) -> None:
    produced = await stub.Produce(pb.ProdRq(topic="t", message=b"m", async_mode=True))
    assert (produced.partition, produced.offset) == (-1, -1)


async def test_an_ack_rides_on_the_next_request(stub: KafkaPixyAsyncStub) -> None:
    for body in (b"1", b"2"):
        await stub.Produce(pb.ProdRq(topic="t", message=body))
    first = await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", no_ack=True))
    second = await stub.ConsumeNAck(
        pb.ConsNAckRq(topic="t", group="g", ack_partition=first.partition, ack_offset=first.offset)
    )
    await stub.Ack(pb.AckRq(topic="t", group="g", partition=second.partition, offset=second.offset))
    assert (first.message, second.message) == (b"1", b"2")
    assert (await committed(stub, 2)).lag == 0


async def committed(stub: KafkaPixyAsyncStub, offset: int) -> pb.PartitionOffset:
    async with asyncio.timeout(5):
        while True:
            (of_partition,) = (await stub.GetOffsets(pb.GetOffsetsRq(topic="t", group="g"))).offsets
            if of_partition.offset == offset:
                return of_partition
            await asyncio.sleep(0.01)


async def test_a_request_with_every_ack_field_at_its_default_does_not_ack_what_nobody_was_offered(
    stub: KafkaPixyAsyncStub,
) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"first"))
    assert (await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g"))).message == b"first"


async def test_get_offsets_of_a_group_that_never_committed(stub: KafkaPixyAsyncStub) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    answer = await stub.GetOffsets(pb.GetOffsetsRq(topic="t", group="nobody"))
    assert list(answer.offsets) == [
        pb.PartitionOffset(partition=0, begin=0, end=1, count=1, offset=-1, lag=0)
    ]


async def test_topics_are_listed_with_and_without_partitions(stub: KafkaPixyAsyncStub) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    partition = pb.PartitionMetadata(partition=0, leader=1, replicas=[1], isr=[1])
    assert (await stub.ListTopics(pb.ListTopicRq())).topics["t"].partitions == []
    assert list((await stub.ListTopics(pb.ListTopicRq(with_partitions=True))).topics["t"].partitions) == [
        partition
    ]
    described = await stub.GetTopicMetadata(pb.GetTopicMetadataRq(topic="t", with_partitions=True))
    assert list(described.partitions) == [partition]


async def test_consumers_are_listed_by_group_and_client(stub: KafkaPixyAsyncStub) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", auto_ack=True))
    answer = await stub.ListConsumers(pb.ListConsumersRq(topic="t"))
    assert list(answer.groups["g"].consumers["me"].partitions) == [0]


async def test_every_error_has_the_status_that_the_proto_promises(stub: KafkaPixyAsyncStub) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    bad, missing = CODE.INVALID_ARGUMENT, CODE.NOT_FOUND
    for call, code, text in [
        (stub.Produce(pb.ProdRq(cluster="x", topic="t")), bad, "proxy `x` does not exist"),
        (stub.Produce(pb.ProdRq(topic="a b")), bad, "invalid topic name"),
        (stub.Produce(pb.ProdRq(topic="t", message=b"x" * 1_000_001)), bad, "producer.max_message_bytes"),
        (stub.ConsumeNAck(pb.ConsNAckRq(topic="t")), bad, "consumer group"),
        (stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", ack_partition=-1)), bad, "bad partition"),
        (stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", ack_offset=99)), bad, "bad offset"),
        (stub.ConsumeNAck(pb.ConsNAckRq(topic="empty", group="g")), missing, "long polling timeout"),
        (stub.Ack(pb.AckRq(topic="t", group="g", offset=99)), bad, "bad offset"),
        (stub.Ack(pb.AckRq(topic="none", group="g")), missing, "unknown topic none"),
        (stub.GetOffsets(pb.GetOffsetsRq(topic="none", group="g")), missing, "unknown topic none"),
        (stub.SetOffsets(pb.SetOffsetsRq(topic="none", group="g")), missing, "unknown topic none"),
        (stub.GetTopicMetadata(pb.GetTopicMetadataRq(topic="none")), missing, "unknown topic none"),
        (stub.ListConsumers(pb.ListConsumersRq(topic="t", group="h")), missing, "unknown consumer group h"),
    ]:
        await fails(call, code, text)


async def test_a_caller_that_goes_away_while_it_waits_takes_no_message(
    door: Door, stub: KafkaPixyAsyncStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, gone = asyncio.Event(), asyncio.Event()
    consume = door.proxy.consume

    class Watched:
        def __init__(self, waiter: Any) -> None:
            self._waiter = waiter
            waiting.set()

        def cancel(self) -> None:
            self._waiter.cancel()
            gone.set()

    monkeypatch.setattr(door.proxy, "consume", lambda *args, **options: Watched(consume(*args, **options)))
    request = pb.ConsNAckRq(topic="t", group="g", auto_ack=True)
    call = asyncio.ensure_future(stub.ConsumeNAck(request))
    await waiting.wait()
    call.cancel()
    await gone.wait()
    monkeypatch.undo()
    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    assert (await stub.ConsumeNAck(request)).message == b"m"


async def test_the_callers_deadline_ends_a_long_poll(stub: KafkaPixyAsyncStub) -> None:
    request = pb.ConsNAckRq(topic="t", group="g")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ConsumeNAck(request, timeout=0.05)
    assert caught.value.code() in (CODE.DEADLINE_EXCEEDED, CODE.NOT_FOUND)


class FakeContext:
    """A call whose answer cannot be written."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def time_remaining(self) -> None:
        return None

    async def write(self, _: pb.ConsRs) -> None:
        raise self._error


@pytest.mark.parametrize("error", [asyncio.CancelledError(), RuntimeError("the connection is gone")])
async def test_an_answer_that_cannot_be_written_puts_the_message_back_even_with_auto_ack(
    door: Door, stub: KafkaPixyAsyncStub, error: BaseException
) -> None:
    from pixy.api.grpc.kafkapixy import KafkaPixyService
    from pixy.clock import SystemClock

    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    service = KafkaPixyService({"": door.proxy}, SystemClock())
    request = pb.ConsNAckRq(topic="t", group="g", auto_ack=True)
    with pytest.raises(type(error)):
        await service.consume_n_ack(request, FakeContext(error))  # type: ignore[arg-type]  # all that is used
    assert (await stub.ConsumeNAck(request)).message == b"m"


async def test_a_message_that_arrives_as_the_caller_goes_away_is_put_back(
    door: Door, stub: KafkaPixyAsyncStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offer and the cancellation meet in one turn of the loop: the offer is taken, the caller is gone."""
    from pixy.api.grpc.kafkapixy import KafkaPixyService
    from pixy.clock import SystemClock

    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    service = KafkaPixyService({"": door.proxy}, SystemClock())
    request = pb.ConsNAckRq(topic="t", group="g", auto_ack=True)
    offered = asyncio.Event()
    consume = door.proxy.consume

    def watched(group: str, topic: str, done: Any, **options: Any) -> Any:
        def notice(offer: Offer | None, error: PixyError | None) -> None:
            done(offer, error)
            offered.set()
            task.cancel()

        return consume(group, topic, notice, **options)

    monkeypatch.setattr(door.proxy, "consume", watched)
    context = FakeContext(AssertionError("nothing is written"))
    task = asyncio.create_task(service.consume_n_ack(request, context))  # type: ignore[arg-type]  # all that is used
    await offered.wait()
    with pytest.raises(asyncio.CancelledError):
        await task
    monkeypatch.undo()
    assert (await stub.ConsumeNAck(request)).message == b"m"

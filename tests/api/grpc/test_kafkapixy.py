"""pixy/api/grpc/kafkapixy.py: round trips of all fields, every status, undeliverable answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from pixy.consume import ConsumeRequest, Offer
from pixy.errors import PixyError
from pixy.faults import internal_error
from pixy.proto import kafkapixy_pb2 as pb
from tests.api.grpc.conftest import ServedNode
from tests.api.quick_polls import QUICK_POLLS
from tests.fakes.grpc_client import open_client
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    # For type checkers only.
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyAsyncStub

CODE = grpc.StatusCode


async def fails(call: Any, code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert (caught.value.code(), text in (caught.value.details() or "")) == (code, True), (
        caught.value.details()
    )


async def test_key_value_and_headers_are_consumed_as_they_were_sent(stub: KafkaPixyAsyncStub) -> None:
    headers = [
        pb.RecordHeader(key="a", value=b"1"),
        pb.RecordHeader(key="a", value=b"\xff"),
        pb.RecordHeader(key="é", value=b""),
    ]
    produced = await stub.Produce(pb.ProdRq(topic="t", key_value=b"k", message=b"m", headers=headers))
    consumed = await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", no_ack=True))
    assert (produced.partition, produced.offset) == (0, 0)
    assert consumed == pb.ConsRs(partition=0, offset=0, key_value=b"k", message=b"m", headers=headers)


async def test_an_undefined_key_and_an_empty_key_are_distinct(stub: KafkaPixyAsyncStub) -> None:
    await stub.Produce(pb.ProdRq(topic="t", key_undefined=True, key_value=b"ignored"))
    await stub.Produce(pb.ProdRq(topic="t"))
    answers = [await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", auto_ack=True)) for _ in range(2)]
    assert [(answer.key_undefined, answer.key_value) for answer in answers] == [(True, b""), (False, b"")]


async def test_a_null_value_and_an_empty_value_are_distinct(stub: KafkaPixyAsyncStub) -> None:
    await stub.Produce(pb.ProdRq(topic="t", key_value=b"k", value_undefined=True, message=b"ignored"))
    await stub.Produce(pb.ProdRq(topic="t", key_value=b"k"))
    answers = [await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", auto_ack=True)) for _ in range(2)]
    assert [(each.key_value, each.value_undefined, each.message) for each in answers] == [
        (b"k", True, b""),
        (b"k", False, b""),
    ]


async def test_async_mode_answers_minus_one(stub: KafkaPixyAsyncStub) -> None:
    produced = await stub.Produce(pb.ProdRq(topic="t", message=b"m", async_mode=True))
    assert (produced.partition, produced.offset) == (-1, -1)


async def test_an_ack_is_sent_with_the_next_request(stub: KafkaPixyAsyncStub) -> None:
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
    found = pb.PartitionOffset()

    async def is_committed() -> bool:
        nonlocal found
        (found,) = (await stub.GetOffsets(pb.GetOffsetsRq(topic="t", group="g"))).offsets
        return found.offset == offset

    await until(is_committed)
    return found


async def test_a_request_with_default_ack_fields_does_not_ack_a_record_that_was_not_offered(
    stub: KafkaPixyAsyncStub,
) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"first"))
    assert (await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g"))).message == b"first"


async def test_an_ack_of_a_message_that_was_never_handed_out_has_no_effect(stub: KafkaPixyAsyncStub) -> None:
    for number in range(4):
        await stub.Produce(pb.ProdRq(topic="t", message=b"%d" % number))
    request = pb.ConsNAckRq(topic="t", group="g", no_ack=True)
    assert (await stub.ConsumeNAck(request)).offset == 0
    await stub.Ack(pb.AckRq(topic="t", group="g", partition=0, offset=2))
    riding = pb.ConsNAckRq(topic="t", group="g", ack_partition=0, ack_offset=3)
    assert (await stub.ConsumeNAck(riding)).offset == 1
    assert [(await stub.ConsumeNAck(request)).offset for _ in range(2)] == [2, 3]
    for offset in range(4):
        await stub.Ack(pb.AckRq(topic="t", group="g", partition=0, offset=offset))
    await committed(stub, 4)


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


@QUICK_POLLS
async def test_every_error_has_the_status_in_the_proto(stub: KafkaPixyAsyncStub) -> None:
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
        (set_offset(stub, partition=7), bad, "no partition 7"),
        (set_offset(stub, offset=-3), bad, "offset -3"),
        (set_offset(stub, metadata="x" * 4097), bad, "metadata of t/0 has 4097 bytes, 4096 are allowed"),
        (set_offset(stub, metadata="\u00e9" * 2049), bad, "has 4098 bytes, 4096 are allowed"),
        (stub.GetTopicMetadata(pb.GetTopicMetadataRq(topic="none")), missing, "unknown topic none"),
        (stub.ListConsumers(pb.ListConsumersRq(topic="t", group="h")), missing, "unknown consumer group h"),
        (stub.ListConsumers(pb.ListConsumersRq(topic="none")), missing, "unknown topic none"),
    ]:
        await fails(call, code, text)


def set_offset(stub: KafkaPixyAsyncStub, **fields: Any) -> Any:
    return stub.SetOffsets(pb.SetOffsetsRq(topic="t", group="g", offsets=[pb.PartitionOffset(**fields)]))


async def test_the_largest_metadata_is_stored_and_larger_one_changes_nothing(
    stub: KafkaPixyAsyncStub,
) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    await set_offset(stub, offset=1, metadata="x" * 4096)
    await fails(set_offset(stub, metadata="x" * 4097), CODE.INVALID_ARGUMENT, "4097 bytes")
    (stored,) = (await stub.GetOffsets(pb.GetOffsetsRq(topic="t", group="g"))).offsets
    assert (stored.offset, stored.metadata) == (1, "x" * 4096)


@QUICK_POLLS
async def test_too_many_waiting_consumers_are_resource_exhausted(stub: KafkaPixyAsyncStub) -> None:
    request = pb.ConsNAckRq(topic="t", group="g")
    calls = [stub.ConsumeNAck(request) for _ in range(4)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    codes = sorted(str(answer.code()) for answer in answers if isinstance(answer, grpc.aio.AioRpcError))
    assert codes == [str(CODE.NOT_FOUND)] * 2 + [str(CODE.RESOURCE_EXHAUSTED)] * 2


async def test_while_draining_new_work_is_unavailable_and_acks_are_accepted(
    served: ServedNode, stub: KafkaPixyAsyncStub
) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", no_ack=True))
    served.proxy.begin_drain()
    await fails(stub.Produce(pb.ProdRq(topic="t")), CODE.UNAVAILABLE, "shutting down")
    await fails(stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g")), CODE.UNAVAILABLE, "shutting down")
    await stub.Ack(pb.AckRq(topic="t", group="g"))


async def test_no_ack_wins_over_auto_ack(stub: KafkaPixyAsyncStub) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g", no_ack=True, auto_ack=True))
    await stub.Ack(pb.AckRq(topic="t", group="g"))
    await committed(stub, 1)
    await stub.SetOffsets(pb.SetOffsetsRq(topic="t", group="h", offsets=[pb.PartitionOffset()]))
    await stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="h", no_ack=True, auto_ack=True))
    consumers = await stub.GetOffsets(pb.GetOffsetsRq(topic="t", group="h"))
    assert consumers.offsets[0].offset == 0


async def test_the_callers_deadline_ends_a_produce_and_a_queued_one_is_not_written(
    served: ServedNode, stub: KafkaPixyAsyncStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"before"))
    append, held, gone = served.backend.append, asyncio.Event(), asyncio.Event()
    batches: list[Any] = []

    def hold(*batch: Any) -> None:
        batches.append(batch)
        held.set()

    def give_up(waiting: Any, real: Any = served.proxy._accumulators._give_up) -> None:
        real(waiting)
        gone.set()

    monkeypatch.setattr(served.backend, "append", hold)
    monkeypatch.setattr(served.proxy._accumulators, "_give_up", give_up)
    first = asyncio.ensure_future(stub.Produce(pb.ProdRq(topic="t", message=b"in the buffer")))
    await held.wait()
    late = stub.Produce(pb.ProdRq(topic="t", message=b"waits for room"), timeout=0.1)
    await fails(late, CODE.DEADLINE_EXCEEDED, "")
    await gone.wait()
    monkeypatch.undo()
    append(*batches[0])
    assert (await first).offset == 1
    assert (await stub.GetOffsets(pb.GetOffsetsRq(topic="t", group="g"))).offsets[0].end == 2


async def test_a_bug_is_internal_without_details_and_a_fault(
    served: ServedNode, stub: KafkaPixyAsyncStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise KeyError("secret")

    monkeypatch.setattr(served.proxy, "list_topics", broken)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListTopics(pb.ListTopicRq())
    assert caught.value.code() == CODE.INTERNAL
    (fault,) = served.faults
    assert isinstance(fault, KeyError)
    assert caught.value.details() == str(internal_error(fault))


@QUICK_POLLS
async def test_a_damaged_segment_is_internal_with_file_and_byte(
    served: ServedNode, stub: KafkaPixyAsyncStub, tmp_path: Path
) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"x" * 1000))
    await served.backend._node._log.writer.flush()
    (segment,) = (tmp_path / "data" / "topics" / "t-0").glob("*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[500] ^= 1
    segment.write_bytes(damaged)
    await fails(
        stub.ConsumeNAck(pb.ConsNAckRq(topic="t", group="g")),
        CODE.INTERNAL,
        f"{segment} is corrupt at byte 0",
    )


async def test_a_caller_that_disconnects_while_waiting_takes_no_message(
    served: ServedNode, stub: KafkaPixyAsyncStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, gone = asyncio.Event(), asyncio.Event()
    consume = served.proxy.consume

    class Watched:
        def __init__(self, waiter: Any) -> None:
            self._waiter = waiter
            waiting.set()

        def cancel(self) -> None:
            self._waiter.cancel()
            gone.set()

    monkeypatch.setattr(served.proxy, "consume", lambda *args, **options: Watched(consume(*args, **options)))
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


CONSUME = "/KafkaPixy/ConsumeNAck"
AUTO_ACK = pb.ConsNAckRq(topic="t", group="g", auto_ack=True)


async def test_a_response_blocked_by_flow_control_is_delivered_when_the_window_opens(
    served: ServedNode, stub: KafkaPixyAsyncStub
) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    async with open_client(served.addresses["grpc"], window=0) as client:
        stream_id = client.request(CONSUME, AUTO_ACK.SerializeToString())
        await client.until(lambda: bool(client.answers[stream_id].headers))
        assert (await stub.GetOffsets(pb.GetOffsetsRq(topic="t", group="g"))).offsets[0].offset == 0
        client.open_window(stream_id, 1000)
        answer = await client.answer(stream_id)
    assert pb.ConsRs.FromString(bytes(answer.body[5:])).message == b"m"
    await committed(stub, 1)


@pytest.mark.parametrize("gone", ["reset", "disconnected"])
async def test_an_unsent_response_returns_the_message_even_with_auto_ack(
    served: ServedNode, stub: KafkaPixyAsyncStub, gone: str
) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    async with open_client(served.addresses["grpc"], window=0) as client:
        stream_id = client.request(CONSUME, AUTO_ACK.SerializeToString())
        await client.until(lambda: bool(client.answers[stream_id].headers))
        if gone == "reset":
            client.reset(stream_id)
            assert (await stub.ConsumeNAck(AUTO_ACK)).message == b"m"
    if gone == "disconnected":
        assert (await stub.ConsumeNAck(AUTO_ACK)).message == b"m"


async def test_a_message_that_arrives_after_the_caller_has_gone_is_returned(
    served: ServedNode, stub: KafkaPixyAsyncStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stub.Produce(pb.ProdRq(topic="t", message=b"m"))
    waiting, gone = asyncio.Event(), asyncio.Event()
    consume = served.proxy.consume
    answers: list[Any] = []

    class Waiting:
        def cancel(self) -> None:
            gone.set()

    def hold(request: Any, done: Any, *options: Any) -> Waiting:
        answers.append(done)
        waiting.set()
        return Waiting()

    monkeypatch.setattr(served.proxy, "consume", hold)
    call = asyncio.ensure_future(stub.ConsumeNAck(AUTO_ACK))
    await waiting.wait()
    call.cancel()
    await gone.wait()
    monkeypatch.undo()
    offered = asyncio.Event()

    def late(offer: Offer | None, error: PixyError | None) -> None:
        answers[0](offer, error)
        offered.set()

    consume(ConsumeRequest("g", "t", True), late)
    await offered.wait()
    assert (await stub.ConsumeNAck(AUTO_ACK)).message == b"m"

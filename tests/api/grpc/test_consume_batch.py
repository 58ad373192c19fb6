"""pixy/api/grpc/consume_batch.py: messages and acks of many calls in one."""

import asyncio
from collections.abc import Collection, Mapping

import grpc
import pytest

from pixy.backend import OffsetRange
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.records import NewRecord, build_batch
from tests.api.grpc.bulk import ServedBulk, fails
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

CODE = grpc.StatusCode
COUNT = 250


async def append(bulk: ServedBulk) -> None:
    """Messages with every kind of key, value and header, in two partitions."""
    records = [
        NewRecord(b"k", None, [("h", None), ("h", b"\xff")], 1000),
        NewRecord(None, b"", [], 1001),
        *(NewRecord(b"", b"%d" % number, [], 1002) for number in range(2, COUNT)),
    ]
    batch = bytes(build_batch(records))
    await bulk.log.Append(
        log_pb.AppendRequest(
            partitions=[
                log_pb.PartitionBatches(topic="t", partition=each, batches=batch) for each in range(2)
            ]
        )
    )


def request(*acks: tuple[int, int], most: int = 1000, auto_ack: bool = False) -> log_pb.ConsumeBatchRequest:
    positions = [log_pb.MessagePosition(partition=partition, offset=offset) for partition, offset in acks]
    return log_pb.ConsumeBatchRequest(
        topic="t", group="g", max_messages=most, acks=positions, auto_ack=auto_ack
    )


async def drain(bulk: ServedBulk, count: int) -> list[list[log_pb.ConsumedMessage]]:
    """Answers until so many messages have come, each acked with the next call."""
    answers: list[list[log_pb.ConsumedMessage]] = []
    acks: list[tuple[int, int]] = []
    while sum(map(len, answers)) < count:
        answer = await bulk.log.ConsumeBatch(request(*acks), timeout=20)
        answers.append(list(answer.messages))
        acks = [(each.partition, each.offset) for each in answer.messages]
    return answers


async def test_messages_at_hand_come_together_and_are_acknowledged_with_the_next_call(
    bulk: ServedBulk,
) -> None:
    await append(bulk)
    answers = await drain(bulk, 2 * COUNT)
    assert len(answers) < COUNT / 5
    messages = [message for answer in answers for message in answer]
    for partition in range(2):
        mine = [each for each in messages if each.partition == partition]
        assert [each.offset for each in mine] == list(range(COUNT))
        assert mine[0] == log_pb.ConsumedMessage(
            partition=partition,
            key=b"k",
            headers=[log_pb.MessageHeader(key="h"), log_pb.MessageHeader(key="h", value=b"\xff")],
            timestamp_ms=1000,
        )
        assert (mine[1].HasField("key"), mine[1].HasField("value"), mine[1].value) == (False, True, b"")
    last = [(each.partition, each.offset) for each in answers[-1]]
    waiting = bulk.log.ConsumeBatch(request(*last), timeout=20)
    await until(lambda: bulk.proxy.counts()["offers"] == 0)
    waiting.cancel()


async def test_a_call_takes_no_more_than_it_asks_for(bulk: ServedBulk) -> None:
    await append(bulk)
    counts = [
        len((await bulk.log.ConsumeBatch(request(most=most, auto_ack=True), timeout=20)).messages)
        for most in (1, 7, 150)
    ]
    assert counts[0] == 1
    assert counts[1] <= 7
    assert counts[2] <= 150


async def test_messages_that_are_not_acknowledged_are_not_handed_out_to_others(bulk: ServedBulk) -> None:
    await append(bulk)
    first, second = await asyncio.gather(
        *(bulk.log.ConsumeBatch(request(most=50), timeout=20) for _ in range(2))
    )
    positions = [(each.partition, each.offset) for each in (*first.messages, *second.messages)]
    assert len(set(positions)) == len(positions)


async def test_what_a_cancelled_call_was_to_get_goes_to_the_next(bulk: ServedBulk) -> None:
    waiting = bulk.log.ConsumeBatch(request(auto_ack=True), timeout=20)
    await until(lambda: bulk.proxy.counts()["waiting_consumers"] == 1)
    waiting.cancel()
    await append(bulk)
    got = 0
    while got < 2 * COUNT:
        got += len((await bulk.log.ConsumeBatch(request(auto_ack=True), timeout=20)).messages)
    assert got == 2 * COUNT


async def test_an_ack_that_is_refused_is_the_answer(bulk: ServedBulk) -> None:
    await append(bulk)
    text = "bad partition: 2: t has 0 to 1"
    await fails(bulk.log.ConsumeBatch(request((0, 0), (2, 0)), timeout=20), CODE.INVALID_ARGUMENT, text)


async def test_two_thousand_acks_beyond_the_end_ask_for_it_a_few_times(
    bulk: ServedBulk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(bulk)
    await bulk.log.ConsumeBatch(request(), timeout=20)
    asked = 0
    offset_ranges = bulk.backend.offset_ranges

    async def count(topic: str, partitions: Collection[int] | None = None) -> Mapping[int, OffsetRange]:
        nonlocal asked
        asked += 1
        return await offset_ranges(topic, partitions)

    monkeypatch.setattr(bulk.backend, "offset_ranges", count)
    calls = [bulk.log.ConsumeBatch(request(*[(0, COUNT)] * 2000), timeout=50) for _ in range(3)]
    for call in calls:
        await fails(call, CODE.INVALID_ARGUMENT, f"ends at {COUNT}")
    assert 1 <= asked <= 6


@pytest.mark.parametrize("most", [0, -1, 1001])
async def test_a_number_that_is_not_allowed_is_refused(bulk: ServedBulk, most: int) -> None:
    text = f"max_messages is {most}, expected a number from 1 to 1000"
    await fails(bulk.log.ConsumeBatch(request(most=most)), CODE.INVALID_ARGUMENT, text)


async def test_a_topic_that_must_exist_is_not_created_again_when_it_is_deleted(bulk: ServedBulk) -> None:
    wanted = request()
    wanted.must_exist = True
    waiting = bulk.log.ConsumeBatch(wanted, timeout=20)
    await until(lambda: bulk.proxy.counts()["waiting_consumers"] == 1)
    await bulk.backend.delete_topic("t")
    await fails(waiting, CODE.INVALID_ARGUMENT, "topic t was deleted")
    wanted.group = "typo"
    await fails(bulk.log.ConsumeBatch(wanted, timeout=20), CODE.INVALID_ARGUMENT, "topic t does not exist")
    assert await bulk.backend.list_topics() == []
    assert "typo" not in await bulk.backend.list_groups()


async def test_a_topic_is_created_again_for_those_that_want_it(bulk: ServedBulk) -> None:
    wanted = request()
    wanted.must_exist = True
    waiting = bulk.log.ConsumeBatch(wanted, timeout=20)
    other = bulk.log.ConsumeBatch(request(auto_ack=True), timeout=20)
    await until(lambda: bulk.proxy.counts()["waiting_consumers"] == 2)
    await bulk.backend.delete_topic("t")
    await fails(waiting, CODE.INVALID_ARGUMENT, "topic t was deleted")
    await until(lambda: bulk.backend.topic("t") is not None)
    await bulk.append(b"new")
    assert [each.value for each in (await other).messages] == [b"new"]

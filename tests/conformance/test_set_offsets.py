"""SetOffsets and later acks, in a consumer group of this process."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pixy.backend import Backend, OffsetCommit, TopicPartition
from pixy.clock import Clock
from pixy.config import ConsumerConfig
from pixy.consume import ConsumeRequest, Consumers, Offer, Timers
from pixy.errors import PixyError
from tests.conformance.support import PATIENCE, append

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
async def consumers(backend: Backend, clock: Clock) -> AsyncIterator[Consumers]:
    await backend.create_topic("orders", 1)
    await append(backend, ORDERS, b"0", b"1", b"2", b"3")
    faults: list[BaseException] = []
    options = ConsumerConfig(long_polling_timeout=PATIENCE)
    consumers = Consumers(
        backend,
        options,
        "me",
        Timers(clock),
        on_missing=lambda topic, fail: None,
        on_fault=faults.append,
    )
    yield consumers
    await consumers.drain(0)
    assert faults == []


async def consume(consumers: Consumers) -> int:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(offer: Offer | None, error: PixyError | None) -> None:
        assert offer is not None, error
        offer.delivered()
        answer.set_result(offer.record.offset)

    consumers.consume(ConsumeRequest("group", "orders"), done)
    async with asyncio.timeout(PATIENCE):
        return await answer


async def ack(consumers: Consumers, offset: int) -> None:
    answer: asyncio.Future[PixyError | None] = asyncio.get_running_loop().create_future()
    consumers.ack("group", "orders", 0, offset, answer.set_result)
    async with asyncio.timeout(PATIENCE):
        assert await answer is None


async def committed(backend: Backend, consumers: Consumers) -> OffsetCommit:
    """The group's commit once everything is committed."""
    await consumers.drain(0)
    return (await backend.committed_offsets("group", "orders"))[0]


async def test_outstanding_offers_are_void_until_offered_again_and_other_acks_count(
    backend: Backend, consumers: Consumers
) -> None:
    assert [await consume(consumers) for _ in range(3)] == [0, 1, 2]
    await ack(consumers, 2)
    await consumers.set_offsets("group", "orders", {0: OffsetCommit(0)})
    for offset in (0, 1, 2, 3):  # 3 was never handed out
        await ack(consumers, offset)
    assert [await consume(consumers) for _ in range(3)] == [0, 1, 3]
    await ack(consumers, 1)
    assert await committed(backend, consumers) == OffsetCommit(0, "BC")


async def test_acks_of_what_was_never_handed_out_do_not_count(backend: Backend, consumers: Consumers) -> None:
    assert await consume(consumers) == 0
    for offset in (1, 3):
        await ack(consumers, offset)
    assert [await consume(consumers) for _ in range(3)] == [1, 2, 3]
    assert await committed(backend, consumers) == OffsetCommit(0)


async def test_acks_of_a_group_that_never_consumed_do_not_count(
    backend: Backend, consumers: Consumers
) -> None:
    await consumers.set_offsets("group", "orders", {0: OffsetCommit(1)})
    await ack(consumers, 1)
    await ack(consumers, 3)
    assert [await consume(consumers) for _ in range(3)] == [1, 2, 3]
    assert await committed(backend, consumers) == OffsetCommit(1)


async def test_marks_of_what_was_handed_out_are_kept_with_the_offsets(backend: Backend) -> None:
    await backend.create_topic("orders", 2)
    first, second = ORDERS, TopicPartition("orders", 1)
    assert backend.handed_out("group", "orders") == {}
    offsets = {first: OffsetCommit(1), second: OffsetCommit(2)}
    await backend.commit_offsets("group", offsets, handed_out={first: 5})
    await backend.commit_offsets("group", offsets, handed_out={first: 3})
    await backend.commit_offsets("group", offsets)
    assert await backend.committed_offsets("group", "orders") == {0: OffsetCommit(1), 1: OffsetCommit(2)}
    assert backend.handed_out("group", "orders") == ({0: 5} if backend.keeps_handed_out else {})
    await backend.delete_topic("orders")
    await backend.create_topic("orders", 2)
    assert await backend.committed_offsets("group", "orders") == {}
    assert backend.handed_out("group", "orders") == {}


async def test_an_offset_beyond_the_end_with_any_metadata_continues_at_the_end(
    backend: Backend, consumers: Consumers
) -> None:
    assert await consume(consumers) == 0
    await consumers.set_offsets("group", "orders", {0: OffsetCommit(1100, "A100")})
    assert await backend.committed_offsets("group", "orders") == {0: OffsetCommit(1100, "A100")}
    await append(backend, ORDERS, b"4")
    assert await consume(consumers) == 4
    await ack(consumers, 4)
    assert await committed(backend, consumers) == OffsetCommit(5)

"""Appends: offsets, order of the answers, and changes to the batch."""

import asyncio

import pytest

from pixy.backend import Backend, Batch, TopicPartition
from pixy.errors import UnknownPartition
from pixy.records import check_batch, read_header
from tests.conformance.implementations import Capability
from tests.conformance.support import (
    PATIENCE,
    append,
    append_nowait,
    fetch_now,
    make_batch,
    offsets,
    values,
)

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(autouse=True)
async def _topic(backend: Backend) -> None:
    await backend.create_topic("orders", 2)


async def test_offsets_start_at_zero_and_have_no_holes(backend: Backend) -> None:
    assert await append(backend, ORDERS, b"0", b"1", b"2") == 0
    assert await append(backend, ORDERS, b"3") == 3
    assert await append(backend, ORDERS, b"4", b"5") == 4
    result = await fetch_now(backend, ORDERS, 0)
    assert offsets(result) == [0, 1, 2, 3, 4, 5]
    assert values(result) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.slow
async def test_every_partition_has_its_own_offsets(backend: Backend) -> None:
    assert await append(backend, ORDERS, b"0", b"1") == 0
    assert await append(backend, TopicPartition("orders", 1), b"0") == 0
    assert await append(backend, ORDERS, b"2") == 2


@pytest.mark.slow
async def test_answers_are_in_the_order_of_the_calls(backend: Backend) -> None:
    answered: list[int] = []
    appends = [append_nowait(backend, ORDERS, b"%d" % at) for at in range(200)]
    for at, each in enumerate(appends):
        each.add_done_callback(lambda _, at=at: answered.append(at))  # type: ignore[misc]  # a default binds it
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*appends) == list(range(200))
    assert answered == list(range(200))
    assert values(await fetch_now(backend, ORDERS, 0)) == [b"%d" % at for at in range(200)]


async def test_answered_records_can_be_fetched_at_once(backend: Backend) -> None:
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[asyncio.Task[list[bytes | None]]] = loop.create_future()

    async def read() -> list[bytes | None]:
        return values(await fetch_now(backend, ORDERS, 0))

    backend.append(ORDERS, make_batch(b"v"), 1, lambda *_: seen.set_result(loop.create_task(read())))
    async with asyncio.timeout(PATIENCE):
        assert await (await seen) == [b"v"]


@pytest.mark.slow
async def test_base_offset_and_epoch_are_patched_and_the_checksum_still_holds(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1")
    await append(backend, ORDERS, b"2")
    first, second = (await fetch_now(backend, ORDERS, 0)).batches
    for batch, base_offset in ((first, 0), (second, 2)):
        check_batch(batch)
        assert read_header(batch).base_offset == base_offset
        assert read_header(batch).leader_epoch >= 0


def body(batch: Batch) -> bytes:
    """A batch without the fields that a backend writes: offset, epoch, producer, and checksum."""
    return bytes(batch[8:12]) + bytes(batch[16:17]) + bytes(batch[21:43]) + bytes(batch[57:])


async def test_the_bytes_of_a_batch_are_stored_as_they_are(backend: Backend) -> None:
    batch = make_batch(b"\xff" * 1000, b"", timestamp_ms=5)
    before = body(batch)
    answer = asyncio.get_running_loop().create_future()
    backend.append(ORDERS, batch, 2, lambda offset, _: answer.set_result(offset))
    async with asyncio.timeout(PATIENCE):
        await answer
    (stored,) = (await fetch_now(backend, ORDERS, 0)).batches
    assert body(stored) == before


UNKNOWN = pytest.mark.parametrize(
    "partition", [TopicPartition("orders", 2), TopicPartition("orders", -1), TopicPartition("other", 0)]
)


@UNKNOWN
async def test_an_unknown_partition_is_rejected(backend: Backend, partition: TopicPartition) -> None:
    """One of several nodes asks others first."""
    with pytest.raises(UnknownPartition):
        await append(backend, partition, b"v")
    assert backend.topic("other") is None


@pytest.mark.slow
@UNKNOWN
@pytest.mark.needs(Capability.ONE_PROCESS)
async def test_an_unknown_partition_is_rejected_without_an_answer(
    backend: Backend, partition: TopicPartition
) -> None:
    answers: list[object] = []
    with pytest.raises(UnknownPartition):
        backend.append(partition, make_batch(b"v"), 1, lambda *answer: answers.append(answer))
    # Answers are in order, so this one would follow a wrong one.
    await append(backend, ORDERS, b"v")
    assert answers == []
    assert backend.topic("other") is None


async def test_each_append_is_answered_once(backend: Backend) -> None:
    answers: list[int] = []
    for _ in range(3):
        backend.append(ORDERS, make_batch(b"v"), 1, lambda offset, _: answers.append(offset))
    await append(backend, ORDERS, b"v")
    await append(backend, ORDERS, b"v")
    assert answers == [0, 1, 2]

"""Fetches: whole batches, waiting without polling, and the bounds of the log."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from pixy.backend import Backend, FetchResult, TopicPartition
from pixy.errors import CorruptData, OffsetOutOfRange, ShuttingDown, UnknownPartition
from pixy.records import read_header
from tests.conformance.implementations import Capability, Controls
from tests.conformance.support import (
    PATIENCE,
    append,
    append_nowait,
    error_of,
    fetch_now,
    make_batch,
    offsets,
    values,
)

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


@pytest.fixture(autouse=True)
async def _topic(backend: Backend) -> None:
    await backend.create_topic("orders", 2)


async def started(waiting: Coroutine[Any, Any, FetchResult]) -> asyncio.Task[FetchResult]:
    """The fetch as a task that has run until it waits."""
    task = asyncio.create_task(waiting)
    await asyncio.sleep(0)
    return task


async def result_of(task: asyncio.Task[FetchResult]) -> FetchResult:
    async with asyncio.timeout(PATIENCE):
        return await task


# --- results --------------------------------------------------------------------------------------


async def test_a_fetch_returns_the_next_offset_and_the_range_of_the_log(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1")
    await append(backend, ORDERS, b"2")
    result = await fetch_now(backend, ORDERS, 0)
    assert values(result) == [b"0", b"1", b"2"]
    assert (result.next_offset, result.log_begin_offset, result.high_watermark) == (3, 0, 3)


async def test_a_fetch_from_inside_a_batch_gets_the_whole_batch(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1", b"2")
    await append(backend, ORDERS, b"3")
    result = await fetch_now(backend, ORDERS, 2)
    assert offsets(result) == [0, 1, 2, 3]
    assert result.next_offset == 4


async def test_a_fetch_from_the_start_of_a_batch_gets_nothing_before_it(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1")
    await append(backend, ORDERS, b"2", b"3")
    assert offsets(await fetch_now(backend, ORDERS, 2)) == [2, 3]


@pytest.mark.slow
async def test_following_next_offset_reads_every_record_once(backend: Backend) -> None:
    expected = []
    for at in range(30):
        batch = [b"%d.%d" % (at, inner) for inner in range(at % 4 + 1)]
        expected += batch
        await append(backend, ORDERS, *batch)
    found: list[bytes | None] = []
    offset = 0
    while offset < len(expected):
        result = await fetch_now(backend, ORDERS, offset, max_bytes=300)
        assert result.next_offset > offset
        found += values(result)
        offset = result.next_offset
    assert found == expected


async def test_batches_are_never_split(backend: Backend) -> None:
    size = len(make_batch(b"v" * 100))
    for _ in range(5):
        await append(backend, ORDERS, b"v" * 100)
    for max_bytes in range(size, 5 * size + 1, 13):
        result = await fetch_now(backend, ORDERS, 0, max_bytes)
        assert [len(batch) for batch in result.batches] == [size] * (max_bytes // size)
        assert result.next_offset == max_bytes // size


@pytest.mark.slow
async def test_at_least_one_whole_batch_is_returned_however_large_it_is(backend: Backend) -> None:
    await append(backend, ORDERS, b"v" * 3_000_000)
    await append(backend, ORDERS, b"next")
    for max_bytes in (0, 1, 61, 1000):
        result = await fetch_now(backend, ORDERS, 0, max_bytes)
        assert [len(batch) for batch in result.batches] == [len(make_batch(b"v" * 3_000_000))]
        assert result.next_offset == 1


async def test_batches_cannot_be_changed_through_a_fetch_result(backend: Backend) -> None:
    await append(backend, ORDERS, b"v")
    (batch,) = (await fetch_now(backend, ORDERS, 0)).batches
    copy = bytearray(batch)
    copy[-1] ^= 0xFF
    assert values(await fetch_now(backend, ORDERS, 0)) == [b"v"]


async def test_a_fetch_changes_nothing(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1")
    assert (
        offsets(await fetch_now(backend, ORDERS, 0)) == offsets(await fetch_now(backend, ORDERS, 0)) == [0, 1]
    )


# --- waiting --------------------------------------------------------------------------------------


async def test_a_waiting_fetch_is_woken_by_an_append(backend: Backend) -> None:
    await append(backend, ORDERS, b"0")
    waiting = await started(backend.fetch(ORDERS, 1, max_bytes=1000))
    assert not waiting.done()
    await append(backend, ORDERS, b"1")
    result = await result_of(waiting)
    assert values(result) == [b"1"]
    assert (result.next_offset, result.high_watermark) == (2, 2)


async def test_a_waiting_fetch_is_not_woken_by_other_partitions(backend: Backend) -> None:
    waiting = await started(backend.fetch(ORDERS, 0, max_bytes=1000))
    for _ in range(3):
        await append(backend, OTHER, b"other")
    assert not waiting.done()
    await append(backend, ORDERS, b"mine")
    assert values(await result_of(waiting)) == [b"mine"]


async def test_one_append_wakes_every_waiting_fetch(backend: Backend) -> None:
    waiting = [await started(backend.fetch(ORDERS, 0, max_bytes=1000)) for _ in range(10)]
    await append(backend, ORDERS, b"v")
    assert [values(await result_of(each)) for each in waiting] == [[b"v"]] * 10


@pytest.mark.slow
async def test_no_append_is_missed_between_two_fetches(backend: Backend) -> None:
    async def read() -> list[bytes | None]:
        found: list[bytes | None] = []
        offset = 0
        while offset < 100:
            result = await backend.fetch(ORDERS, offset, max_bytes=1000)
            found += values(result)
            offset = result.next_offset
        return found

    reader = asyncio.create_task(read())
    for at in range(100):
        await append(backend, ORDERS, b"%d" % at)
    async with asyncio.timeout(PATIENCE):
        assert await reader == [b"%d" % at for at in range(100)]


async def test_an_empty_result_means_a_timeout(backend: Backend) -> None:
    await append(backend, ORDERS, b"0")
    async with asyncio.timeout(PATIENCE):
        result = await backend.fetch(ORDERS, 1, max_bytes=1000, max_wait=0.01)
    assert (list(result.batches), result.next_offset) == ([], 1)
    assert (result.log_begin_offset, result.high_watermark) == (0, 1)


async def test_a_fetch_without_a_wait_returns_at_once(backend: Backend) -> None:
    result = await fetch_now(backend, ORDERS, 0)
    assert (list(result.batches), result.next_offset) == ([], 0)


async def test_existing_records_are_returned_without_waiting(backend: Backend) -> None:
    await append(backend, ORDERS, b"v")
    async with asyncio.timeout(PATIENCE):
        assert values(await backend.fetch(ORDERS, 0, max_bytes=1000, max_wait=None)) == [b"v"]


async def test_a_fetch_after_a_timeout_gets_newer_records(backend: Backend) -> None:
    await fetch_now(backend, ORDERS, 0)
    await append(backend, ORDERS, b"v")
    assert values(await fetch_now(backend, ORDERS, 0)) == [b"v"]


async def test_a_cancelled_waiting_fetch_leaves_nothing_behind(backend: Backend) -> None:
    cancelled = [await started(backend.fetch(ORDERS, 0, max_bytes=1000)) for _ in range(10)]
    staying = await started(backend.fetch(ORDERS, 0, max_bytes=1000))
    for task in cancelled:
        task.cancel()
    assert all(
        isinstance(each, asyncio.CancelledError)
        for each in await asyncio.gather(*cancelled, return_exceptions=True)
    )
    await append(backend, ORDERS, b"v")
    assert values(await result_of(staying)) == [b"v"]


async def test_a_fetch_cancelled_at_the_moment_of_its_append_loses_nothing(backend: Backend) -> None:
    waiting = await started(backend.fetch(ORDERS, 0, max_bytes=1000))
    answer = append_nowait(backend, ORDERS, b"v")
    answer.add_done_callback(lambda _: waiting.cancel())
    async with asyncio.timeout(PATIENCE):
        await answer
        await asyncio.gather(waiting, return_exceptions=True)
    assert values(await fetch_now(backend, ORDERS, 0)) == [b"v"]


async def test_stop_ends_a_waiting_fetch(backend: Backend) -> None:
    waiting = await started(backend.fetch(ORDERS, 0, max_bytes=1000))
    await backend.stop()
    with pytest.raises(ShuttingDown):
        await result_of(waiting)


# --- bounds of the log ----------------------------------------------------------------------------


async def test_an_offset_outside_the_log_is_rejected_with_the_range(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1")
    for offset in (-1, 3, 2**62):
        error = await error_of(fetch_now(backend, ORDERS, offset))
        assert isinstance(error, OffsetOutOfRange), offset
        assert (error.begin, error.end) == (0, 2)


async def test_an_offset_outside_the_log_is_rejected_at_once_by_a_waiting_fetch(
    backend: Backend,
) -> None:
    with pytest.raises(OffsetOutOfRange):
        await result_of(await started(backend.fetch(ORDERS, 1, max_bytes=1000)))


async def test_an_unknown_partition_is_reported(backend: Backend) -> None:
    for partition in (TopicPartition("orders", 2), TopicPartition("orders", -1), TopicPartition("other", 0)):
        for call in (fetch_now(backend, partition, 0), backend.offset_for_timestamp(partition, 0)):
            assert isinstance(await error_of(call), UnknownPartition), partition
    assert backend.topic("other") is None


@pytest.mark.needs(Capability.RETENTION)
async def test_below_the_log_begin_offset_nothing_is_served(backend: Backend, controls: Controls) -> None:
    for at in range(5):
        await append(backend, ORDERS, b"%d" % at)
    await controls.move_log_begin(backend, ORDERS, 3)
    with pytest.raises(OffsetOutOfRange) as caught:
        await fetch_now(backend, ORDERS, 2)
    assert (caught.value.begin, caught.value.end) == (3, 5)
    result = await fetch_now(backend, ORDERS, 3)
    assert (result.log_begin_offset, result.high_watermark) == (3, 5)
    assert values(result)[-2:] == [b"3", b"4"]
    assert await backend.offset_ranges("orders") == {0: (3, 5), 1: (0, 0)}


@pytest.mark.needs(Capability.RETENTION)
async def test_offsets_continue_after_all_records_are_deleted(backend: Backend, controls: Controls) -> None:
    await append(backend, ORDERS, b"0", b"1")
    await controls.move_log_begin(backend, ORDERS, 2)
    assert await append(backend, ORDERS, b"2") == 2
    assert offsets(await fetch_now(backend, ORDERS, 2)) == [2]


@pytest.mark.needs(Capability.GAPS)
async def test_a_gap_before_a_batch_is_skipped(backend: Backend, controls: Controls) -> None:
    await append(backend, ORDERS, b"0")
    await controls.add_gap(backend, ORDERS, 10)
    assert await append(backend, ORDERS, b"11") == 11
    assert offsets(await fetch_now(backend, ORDERS, 5)) == [11]
    found, offset = [], 0
    while offset < 12:
        result = await fetch_now(backend, ORDERS, offset, max_bytes=1)
        assert result.next_offset > offset
        found += offsets(result)
        offset = result.next_offset
    assert found == [0, 11]


@pytest.mark.needs(Capability.GAPS)
async def test_a_gap_at_the_end_is_skipped_without_a_batch_and_without_waiting(
    backend: Backend, controls: Controls
) -> None:
    await append(backend, ORDERS, b"0")
    await controls.add_gap(backend, ORDERS, 10)
    async with asyncio.timeout(PATIENCE):
        result = await backend.fetch(ORDERS, 1, max_bytes=1000)
    assert (list(result.batches), result.next_offset, result.high_watermark) == ([], 11, 11)


@pytest.mark.needs(Capability.GAPS)
async def test_a_control_batch_has_an_offset_and_no_message(backend: Backend, controls: Controls) -> None:
    await append(backend, ORDERS, b"0")
    await controls.add_control_batch(backend, ORDERS)
    await append(backend, ORDERS, b"2")
    result = await fetch_now(backend, ORDERS, 0)
    assert (offsets(result), result.next_offset) == ([0, 2], 3)
    result = await fetch_now(backend, ORDERS, 1, max_bytes=1)
    assert (offsets(result), result.next_offset) == ([], 2)
    assert all(read_header(batch).is_control for batch in result.batches)


@pytest.mark.needs(Capability.CORRUPTION)
async def test_damaged_batches_are_reported_and_never_returned(backend: Backend, controls: Controls) -> None:
    await append(backend, ORDERS, b"0")
    await append(backend, ORDERS, b"1")
    await controls.corrupt(backend, ORDERS, 1)
    with pytest.raises(CorruptData):
        await fetch_now(backend, ORDERS, 1)
    found: list[bytes | None] = []
    with pytest.raises(CorruptData):
        await read_into(found, backend, upto=2)
    assert found == [b"0"]


async def read_into(found: list[bytes | None], backend: Backend, upto: int) -> None:
    offset = 0
    while offset < upto:
        result = await fetch_now(backend, ORDERS, offset)
        found += values(result)
        offset = result.next_offset


# --- one wait for many partitions -----------------------------------------------------------------


async def test_a_wait_ends_with_a_record_of_any_partition(backend: Backend) -> None:
    await append(backend, ORDERS, b"0")
    waiting = asyncio.create_task(backend.wait_records({ORDERS: 1, OTHER: 0}, PATIENCE))
    await asyncio.sleep(0)
    assert not waiting.done()
    await append(backend, OTHER, b"1")
    async with asyncio.timeout(PATIENCE):
        await waiting


async def test_a_wait_for_records_that_are_there_ends_at_once(backend: Backend) -> None:
    await append(backend, ORDERS, b"0")
    async with asyncio.timeout(PATIENCE / 2):
        await backend.wait_records({ORDERS: 0, OTHER: 0}, PATIENCE)


async def test_a_wait_ends_after_its_time(backend: Backend) -> None:
    async with asyncio.timeout(PATIENCE):
        await backend.wait_records({ORDERS: 0, OTHER: 0}, 0.01)


async def test_a_fetch_without_a_wait_is_as_any_other_or_none(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1")
    found = backend.fetch_nowait(ORDERS, 0, 1 << 20)
    # A replica may be behind its leader.
    assert found is None or values(found) == [b"0", b"1"][: found.high_watermark]
    unknown = TopicPartition("orders", 99)
    assert backend.fetch_nowait(unknown, 0, 1 << 20) is None
    assert backend.fetch_nowait(ORDERS, 3, 1 << 20) is None

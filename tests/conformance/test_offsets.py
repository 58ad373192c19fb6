"""Offset ranges of partitions, and lookup of offsets by timestamp."""

import asyncio

import pytest

from pixy.backend import Backend, TopicPartition
from pixy.errors import OffsetOutOfRange, UnknownPartition, UnknownTopic
from tests.conformance.implementations import Capability, Controls
from tests.conformance.support import PATIENCE, append

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(autouse=True)
async def _topic(backend: Backend) -> None:
    await backend.create_topic("orders", 3)


async def test_an_empty_partition_has_the_range_zero_to_zero(backend: Backend) -> None:
    assert await backend.offset_ranges("orders") == {0: (0, 0), 1: (0, 0), 2: (0, 0)}


async def test_the_end_is_one_past_the_last_offset_of_each_partition(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1")
    await append(backend, TopicPartition("orders", 2), b"0")
    ranges = await backend.offset_ranges("orders")
    assert ranges == {0: (0, 2), 1: (0, 0), 2: (0, 1)}
    assert (ranges[0].begin, ranges[0].end) == (0, 2)


async def test_ranges_without_a_question_to_leaders_are_the_same_soon(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1")
    ranges = await backend.offset_ranges("orders")
    async with asyncio.timeout(PATIENCE):
        while await backend.log_ranges("orders") != ranges:
            assert await backend.offset_ranges("orders") == ranges
    with pytest.raises(UnknownTopic):
        await backend.log_ranges("bills")


async def test_a_timestamp_is_found_inside_a_batch_and_between_batches(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1", b"2", timestamp_ms=1000)
    await append(backend, ORDERS, b"3", b"4", timestamp_ms=2000)
    found = [
        await backend.offset_for_timestamp(ORDERS, at) for at in (0, 1000, 1001, 1002, 1003, 2000, 2001, 2002)
    ]
    assert found == [0, 0, 1, 2, 3, 3, 4, None]


async def test_the_first_offset_counts_even_if_timestamps_run_backwards(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", timestamp_ms=5000)
    await append(backend, ORDERS, b"1", timestamp_ms=1000)
    await append(backend, ORDERS, b"2", timestamp_ms=9000)
    assert [await backend.offset_for_timestamp(ORDERS, at) for at in (500, 1000, 5000, 5001)] == [0, 0, 0, 2]


@pytest.mark.slow
async def test_a_timestamp_is_found_to_the_record_among_many_batches(backend: Backend) -> None:
    for at in range(100):
        await append(backend, ORDERS, b"0", b"1", timestamp_ms=10 * at)
    assert [await backend.offset_for_timestamp(ORDERS, 10 * at + 1) for at in range(100)] == [
        2 * at + 1 for at in range(100)
    ]


async def test_an_empty_partition_has_no_offset_for_any_timestamp(backend: Backend) -> None:
    assert await backend.offset_for_timestamp(ORDERS, 0) is None


@pytest.mark.needs(Capability.RETENTION)
async def test_a_timestamp_is_not_found_below_the_log_begin_offset(
    backend: Backend, controls: Controls
) -> None:
    await append(backend, ORDERS, b"0", b"1", b"2", timestamp_ms=1000)
    await controls.move_log_begin(backend, ORDERS, 2)
    assert await backend.offset_for_timestamp(ORDERS, 0) == 2


@pytest.mark.needs(Capability.GAPS)
async def test_a_timestamp_is_found_after_gaps_and_control_batches(
    backend: Backend, controls: Controls
) -> None:
    await append(backend, ORDERS, b"0", timestamp_ms=1000)
    await controls.add_control_batch(backend, ORDERS)
    await controls.add_gap(backend, ORDERS, 5)
    await append(backend, ORDERS, b"7", timestamp_ms=2000)
    assert await backend.offset_for_timestamp(ORDERS, 1001) == 7


# --- removal --------------------------------------------------------------------------------------


async def test_records_below_an_offset_are_removed(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1", b"2", timestamp_ms=1000)
    await append(backend, TopicPartition("orders", 2), b"0", b"1")
    assert await backend.delete_records("orders", {0: 2, 2: -1}) == {0: 2, 2: 2}
    assert await backend.offset_ranges("orders") == {0: (2, 3), 1: (0, 0), 2: (2, 2)}
    with pytest.raises(OffsetOutOfRange):
        await backend.fetch(ORDERS, 1, max_bytes=1000, max_wait=0)
    assert await backend.offset_for_timestamp(ORDERS, 0) == 2
    await append(backend, TopicPartition("orders", 2), b"2")
    assert (await backend.offset_ranges("orders"))[2] == (2, 3)


async def test_nothing_is_removed_below_the_begin_or_beyond_the_end(backend: Backend) -> None:
    await append(backend, ORDERS, b"0", b"1", b"2")
    await backend.delete_records("orders", {0: 2})
    assert await backend.delete_records("orders", {0: 1}) == {0: 2}
    with pytest.raises(OffsetOutOfRange):
        await backend.delete_records("orders", {0: 4})
    assert (await backend.offset_ranges("orders"))[0] == (2, 3)


async def test_nothing_is_removed_of_what_does_not_exist(backend: Backend) -> None:
    with pytest.raises(UnknownTopic):
        await backend.delete_records("missing", {0: 0})
    with pytest.raises(UnknownPartition):
        await backend.delete_records("orders", {3: 0})

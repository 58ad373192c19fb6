"""Fetches from a real Kafka: gaps of transactions and compaction, many fetches in few requests."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable

import pytest

from pixy.backend import Backend, TopicPartition
from pixy.backend.kafka import KafkaBackend
from pixy.backend.kafka.fetch import read_batches
from pixy.errors import CorruptData, Unavailable
from pixy.records import (
    NewRecord,
    build_batch,
    build_control_batch,
    patch_batch,
    patch_producer,
    read_records,
)
from pixy.records.batch import mark_control
from tests.conformance.support import append, append_nowait, fetch_now, make_batch, offsets, values
from tests.fakes.waiting import until
from tests.kafka.backends import open_kafka
from tests.kafka.cluster import KafkaCluster
from tests.kafka.controls import transaction
from tests.kafka.relay import Relay

PATIENCE_S = 60.0
COMMIT, ABORT = 1, 0


# --- decoding of responses ------------------------------------------------------------------------


def at(offset: int, batch: bytearray, producer_id: int = -1, *, transactional: bool = False) -> bytes:
    """A batch as stored in a log."""
    if transactional:
        batch[22] |= 0x10
    patch_producer(batch, producer_id, 0, 0)
    patch_batch(batch, offset, 3)
    return bytes(batch)


def written(offset: int, *contents: bytes, producer_id: int = -1) -> bytes:
    """A batch of these values; transactional if it has a producer."""
    return at(offset, make_batch(*contents), producer_id, transactional=producer_id >= 0)


def marker(offset: int, kind: int, producer_id: int) -> bytes:
    """A transaction marker."""
    return at(offset, build_control_batch(kind, bytes(6), 1000), producer_id, transactional=True)


def read(
    records: bytes, offset: int = 0, max_bytes: int = 1 << 20, *aborted: tuple[int, int]
) -> tuple[list[int], int]:
    """Offsets of the returned records, and the next fetch offset."""
    found = read_batches(records, offset, max_bytes, [(*each, {}) for each in aborted])
    return [record.offset for batch in found.batches for record in read_records(batch)], found.next_offset


def test_an_empty_response_keeps_the_offset() -> None:
    assert read(b"", 7) == ([], 7)


def test_a_truncated_batch_is_left_for_the_next_fetch() -> None:
    first, second = written(0, b"0", b"1"), written(2, b"2")
    for cut in range(len(second)):
        assert read(first + second[:cut]) == ([0, 1], 2)
    assert read(first + second) == ([0, 1, 2], 3)


def test_a_batch_beyond_the_limit_is_left_for_the_next_fetch_except_the_first_one() -> None:
    first, second = written(0, b"0"), written(1, b"1")
    assert read(first + second, 0, len(first) + len(second)) == ([0, 1], 2)
    assert read(first + second, 0, len(first) + len(second) - 1) == ([0], 1)
    assert read(first + second, 0, 1) == ([0], 1)


def test_offsets_removed_by_compaction_are_skipped() -> None:
    assert read(written(5, b"5") + written(9, b"9"), 2) == ([5, 9], 10)


def test_transaction_markers_are_skipped() -> None:
    records = written(0, b"0", producer_id=7) + marker(1, COMMIT, 7) + written(2, b"2")
    assert read(records) == ([0, 2], 3)
    assert read(marker(1, COMMIT, 7), 1) == ([], 2)


def test_only_records_of_aborted_transactions_are_skipped_up_to_their_end() -> None:
    records = b"".join(
        [
            written(0, b"of 8", producer_id=8),
            written(1, b"of 7, aborted", producer_id=7),
            written(2, b"plain"),
            written(3, b"of 7, aborted too", producer_id=7),
            marker(4, ABORT, 7),
            written(5, b"of 7, the next one", producer_id=7),
            marker(6, COMMIT, 8),
            marker(7, COMMIT, 7),
        ]
    )
    assert read(records, 0, 1 << 20, (7, 1)) == ([0, 2, 5], 8)


def test_a_batch_keeps_nothing_of_its_response() -> None:
    """It may be out for minutes, and counts as itself."""
    records = written(0, bytes(100_000), producer_id=7) + marker(1, ABORT, 7) + written(2, b"2") + b"cut"
    (batch,) = read_batches(records, 0, 1 << 20, [(7, 0, {})]).batches
    assert isinstance(batch, memoryview)
    assert memoryview(batch.obj).nbytes == len(batch)


def test_one_producer_may_abort_twice() -> None:
    records = b"".join(
        [
            written(0, b"0", producer_id=7),
            marker(1, ABORT, 7),
            written(2, b"2", producer_id=7),
            marker(3, COMMIT, 7),
            written(4, b"4", producer_id=7),
            marker(5, ABORT, 7),
        ]
    )
    assert read(records, 0, 1 << 20, (7, 4), (7, 0)) == ([2], 6)


def test_a_fetch_from_inside_an_aborted_transaction_skips_the_rest_of_it() -> None:
    assert read(written(5, b"5", producer_id=7) + marker(6, ABORT, 7), 5, 1 << 20, (7, 2)) == ([], 7)


def test_a_damaged_batch_is_never_returned() -> None:
    first, second = written(0, b"0"), bytearray(written(1, b"1"))
    second[-1] ^= 1
    assert read(first + second) == ([0], 1)
    with pytest.raises(CorruptData, match="CRC"):
        read(bytes(second), 1)


@pytest.mark.parametrize("length", [-13, -12, -1, 0, 48])
def test_an_impossible_batch_length_is_corrupt_data(length: int) -> None:
    batch = bytearray(written(0, b"0"))
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptData):
        read(bytes(batch))


def test_a_control_batch_that_is_not_transactional_is_skipped_too() -> None:
    assert read(at(0, mark_control(build_control_batch(COMMIT, b"", 0)))) == ([], 1)


# --- a real Kafka ---------------------------------------------------------------------------------


@pytest.fixture
async def backend(kafka: KafkaCluster, relay: Relay) -> AsyncIterator[KafkaBackend]:
    async with open_kafka(kafka, relay.dial) as opened:
        yield opened


@pytest.fixture
async def topic(backend: KafkaBackend, kafka_name: Callable[[str], str]) -> str:
    name = kafka_name("fetch")
    await backend.create_topic(name, 20)
    return name


@pytest.mark.process
async def test_only_committed_records_are_read(
    kafka: KafkaCluster, backend: KafkaBackend, topic: str
) -> None:
    partition = TopicPartition(topic, 0)
    await append(backend, partition, b"before")
    async with transaction(kafka, commit=True) as committed:
        await committed.send_and_wait(topic, b"committed", partition=0)
        async with transaction(kafka, commit=False) as aborted:
            await aborted.send_and_wait(topic, b"aborted", partition=0)
        await append(backend, partition, b"after")
        open_end = await fetch_now(backend, partition, 1)
        assert (offsets(open_end), open_end.high_watermark) == ([], 1)
        assert (await backend.offset_ranges(topic))[0] == (0, 1)
        waiting = asyncio.create_task(backend.fetch(partition, 1, max_bytes=1 << 20))
    async with asyncio.timeout(PATIENCE_S):
        first = await waiting
        found = dict(zip(offsets(first), values(first), strict=True))
        while len(found) < 2:
            more = await backend.fetch(partition, first.next_offset, max_bytes=1 << 20)
            found |= dict(zip(offsets(more), values(more), strict=True))
    assert [value for _, value in sorted(found.items())] == [b"committed", b"after"]


@pytest.mark.process
async def test_compacted_records_leave_a_gap(backend: KafkaBackend, kafka_name: Callable[[str], str]) -> None:
    partition = TopicPartition(kafka_name("compacted"), 0)
    options = {"cleanup_policy": "compact", "segment_ms": "1", "min_cleanable_dirty_ratio": "0.01"}
    await backend.create_topic(partition.topic, 1, options)
    now = time.time_ns() // 1_000_000
    for number in range(20):
        # each record in a segment of its own
        record = NewRecord(b"key", b"%d" % number, (), now + 10 * number)
        await append_batch(backend, partition, build_batch([record]))

    async def is_compacted() -> bool:
        return offsets(await fetch_now(backend, partition, 0)) != [0]

    await until(is_compacted)
    assert (await fetch_now(backend, partition, 0)).next_offset > 1
    found, offset = [], 0
    while offset < 20:
        result = await fetch_now(backend, partition, offset)
        assert result.next_offset > offset
        found += values(result)
        offset = result.next_offset
    assert found[-1] == b"19"
    assert len(found) < 20


async def append_batch(backend: Backend, partition: TopicPartition, batch: bytearray) -> None:
    answer = asyncio.get_running_loop().create_future()
    backend.append(partition, batch, 1, lambda *outcome: answer.set_result(outcome))
    async with asyncio.timeout(PATIENCE_S):
        assert (await answer)[1] is None


@pytest.mark.process
async def test_many_partitions_need_few_connections(backend: KafkaBackend, topic: str, relay: Relay) -> None:
    waiting = [
        asyncio.create_task(backend.fetch(TopicPartition(topic, number), 0, max_bytes=1000))
        for number in range(20)
    ]
    for number in range(20):
        await append(backend, TopicPartition(topic, number), b"%d" % number)
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(*waiting)
    assert [values(each) for each in results] == [[b"%d" % number] for number in range(20)]
    # To the seed, for metadata, for other questions, for writing, and for reading.
    assert relay.connections <= 4 + 4


@pytest.mark.process
async def test_concurrent_fetches_of_one_partition_from_many_offsets_are_answered(
    backend: KafkaBackend, topic: str
) -> None:
    partition = TopicPartition(topic, 0)
    for number in range(30):
        await append(backend, partition, b"%d" % number)
    waiting = [
        asyncio.create_task(backend.fetch(partition, offset, max_bytes=1 << 20)) for offset in range(31)
    ]
    await append(backend, partition, b"30")
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(*waiting)
    assert [offsets(each)[0] for each in results] == list(range(31))


@pytest.mark.process
async def test_an_idle_partition_does_not_delay_another_one(kafka: KafkaCluster, topic: str) -> None:
    """The broker holds fetches for a minute, so a fetch that waits for another one would not end in
    time.
    """
    async with open_kafka(kafka, fetch_max_wait_s=60.0) as backend:
        idle = asyncio.create_task(backend.fetch(TopicPartition(topic, 1), 0, max_bytes=1000))
        busy = TopicPartition(topic, 0)
        offset = 0
        async with asyncio.timeout(PATIENCE_S):
            for number in range(50):
                fetch = asyncio.create_task(backend.fetch(busy, offset, max_bytes=1 << 20))
                await append_nowait(backend, busy, b"%d" % number)
                offset = (await fetch).next_offset
        assert not idle.done()
        idle.cancel()
        await asyncio.gather(idle, return_exceptions=True)


@pytest.mark.process
async def test_fetches_beyond_the_size_of_a_response_get_existing_records_without_waiting(
    backend: KafkaBackend, topic: str
) -> None:
    partitions = [TopicPartition(topic, number) for number in range(20)]
    for partition in partitions:
        for _ in range(2):
            await append(backend, partition, os.urandom(900_000))
    async with asyncio.timeout(PATIENCE_S):
        found = await asyncio.gather(
            *(backend.fetch(each, 0, max_bytes=4 << 20, max_wait=0) for each in partitions)
        )
    assert all(offsets(each) for each in found)


@pytest.mark.process
async def test_a_fetch_at_its_timeout_reports_why_it_is_empty(
    kafka: KafkaCluster, topic: str, backend: KafkaBackend
) -> None:
    partition = TopicPartition(topic, 0)
    await append(backend, partition, b"v")
    # Shorter than the session of the broker, which is fenced for a moment if it was paused longer.
    async with open_kafka(kafka, request_timeout_s=2.0) as impatient:
        assert values(await fetch_now(impatient, partition, 0)) == [b"v"]
        with kafka.paused(1):
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(
                    Unavailable, match=r"fetch-\d+-0 cannot be read: broker 1 has not answered"
                ):
                    await impatient.fetch(partition, 1, max_bytes=1000, max_wait=1.0)
    assert values(await fetch_now(backend, partition, 0)) == [b"v"]

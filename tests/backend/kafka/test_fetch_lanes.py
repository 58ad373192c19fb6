"""pixy/backend/kafka/fetch.py: which of the waiting fetches share a request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pixy.backend import TopicPartition
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.fetch import KafkaFetcher, OutOfRange, _Lane, _Waiter
from pixy.backend.protocol import FetchResult
from pixy.records import patch_batch, read_records
from tests.conformance.support import make_batch
from tests.fakes.brokers import FETCH, Brokers
from tests.fakes.waiting import until

_OUT_OF_RANGE = 1
_T0 = TopicPartition("t", 0)


class OpenTransaction(Brokers):
    """Partition 0 of the topic `t`: records up to `stable`, and those of a transaction behind it.

    Requests without data are held.
    """

    def __init__(self) -> None:
        super().__init__({"t": [0]})
        self.stable, self.end = 1, 100
        self.on(FETCH, self._fetch)

    async def _fetch(self, request: Any) -> tuple[Any, ...]:
        ((topic_id, ((number, _, offset, *_),), *_),) = request.topics
        if self.stable <= offset <= self.end:
            await asyncio.sleep(request.max_wait_ms / 1000)
        records = b""
        if offset < self.stable:
            batch = make_batch(b"%d" % offset)
            patch_batch(batch, offset, -1)
            records = bytes(batch)
        code = _OUT_OF_RANGE if offset > self.end else 0
        partition: Any = number, code, self.end, self.stable, 0, [], -1, records, {}
        return 0, 0, 0, [(topic_id, [partition], {})], {}


@asynccontextmanager
async def fetcher_of(brokers: Brokers) -> AsyncIterator[KafkaFetcher]:
    options = brokers.options(fetch_max_wait_s=0.02)
    client = KafkaClient(options, brokers.dial)
    await client.start()
    fetcher = KafkaFetcher(client, options, print)
    try:
        yield fetcher
    finally:
        await fetcher.stop()
        await client.stop()


def add(lane: _Lane, partition: int, offset: int, *, is_idle: bool = False, max_bytes: int = 9) -> _Waiter:
    waiter = _Waiter(TopicPartition("t", partition), b"", offset, max_bytes, None)
    lane.add(waiter, is_idle=is_idle)
    return waiter


def take(lane: _Lane) -> dict[int, list[_Waiter]]:
    return {number: entry.waiters for (_, number), entry in lane.take().items()}


async def test_fetches_of_one_offset_go_together_and_the_offsets_of_a_partition_one_by_one() -> None:
    lane = _Lane()
    first, other, second = add(lane, 0, 5), add(lane, 0, 3), add(lane, 0, 5, max_bytes=4)
    elsewhere = add(lane, 1, 7)
    (entry, _) = lane.take().values()
    assert (entry.offset, entry.max_bytes, entry.waiters) == (5, 4, [first, second])
    # What returned without data is behind the others.
    lane.add(first, is_idle=True)
    lane.add(elsewhere, is_idle=True)
    assert take(lane) == {0: [other], 1: [elsewhere]}
    assert take(lane) == {0: [first]}
    assert not lane.waiting


async def test_fetches_that_returned_without_data_go_together_whatever_their_offsets() -> None:
    lane = _Lane()
    idle = [add(lane, 0, offset, is_idle=True, max_bytes=offset) for offset in (7, 5, 9)]
    (entry,) = lane.take().values()
    assert (entry.offset, entry.max_bytes, entry.waiters) == (5, 5, idle)
    assert not lane.waiting


async def test_fetches_that_have_ended_are_left_out() -> None:
    lane = _Lane()
    for offset in (1, 2, 3):
        ended = add(lane, 0, offset)
        ended.result.cancel()
    waiting = add(lane, 0, 3)
    assert take(lane) == {0: [waiting]}
    add(lane, 0, 1).result.cancel()
    assert take(lane) == {}
    assert not lane.waiting


async def test_a_request_looks_at_no_fetch_that_it_leaves() -> None:
    """Thousands of them may wait at offsets of their own."""
    lane = _Lane()
    first = add(lane, 0, 0)
    nobody_looks_at: Any = object()
    lane.waiting[b"", 0][1] = [nobody_looks_at]
    assert take(lane) == {0: [first]}
    assert list(lane.waiting[b"", 0]) == [1]


@pytest.mark.slow
async def test_readers_ahead_of_the_end_hold_up_no_others_of_their_partition() -> None:
    """They return without data for as long as the transaction is open."""
    brokers = OpenTransaction()
    async with fetcher_of(brokers) as fetcher, asyncio.TaskGroup() as tasks:
        ahead = [tasks.create_task(fetcher.fetch(_T0, offset, 1, None)) for offset in range(2, 12)]
        await until(lambda: brokers.count(FETCH) >= 20)
        fetch = tasks.create_task(fetcher.fetch(_T0, 0, 1, None))
        asked = brokers.count(FETCH)
        await until(lambda: fetch.done() or brokers.count(FETCH) >= asked + 60)
        assert fetch.done()
        with pytest.raises(OutOfRange):
            await fetcher.fetch(_T0, 101, 1, None)
        # Each is answered as if it were asked for by itself.
        assert await fetcher.fetch(_T0, 50, 1, 0.1) == FetchResult([], 50, 0, 1, is_confirmed=False)
        brokers.stable = 5
        await until(lambda: [each.done() for each in ahead] == [True] * 3 + [False] * 7)
        brokers.stable = 100
        for offset, each in enumerate(ahead, 2):
            (batch,) = (await each).batches
            assert [record.offset for record in read_records(batch)] == [offset]


@pytest.mark.slow
async def test_a_reader_ahead_of_the_end_of_a_log_that_became_shorter_is_told() -> None:
    brokers = OpenTransaction()
    async with fetcher_of(brokers) as fetcher, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(fetcher.fetch(_T0, 2, 1, None))

        async def shorten() -> None:
            await until(lambda: brokers.count(FETCH) >= 8)
            brokers.end = 60

        tasks.create_task(shorten())
        with pytest.raises(OutOfRange):
            await fetcher.fetch(_T0, 70, 1, None)
        waiting.cancel()

"""pixy/backend/kafka: a partition without a leader is reported, and its new leader is found."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from pixy.backend import TopicPartition
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.fetch import KafkaFetcher
from pixy.errors import Unavailable
from tests.fakes.brokers import FETCH, METADATA, Brokers

T0 = TopicPartition("t", 0)
MINUTE_S = 60.0


@asynccontextmanager
async def open_fetcher(brokers: Brokers) -> AsyncIterator[tuple[KafkaFetcher, KafkaClient]]:
    faults: list[BaseException] = []
    options = brokers.options(metadata_max_age_s=10 * MINUTE_S)
    client = KafkaClient(options, brokers.dial)
    await client.start()
    fetcher = KafkaFetcher(client, options, faults.append)
    try:
        yield fetcher, client
    finally:
        await fetcher.stop()
        await client.stop()
    assert not faults


def empty(request: Any) -> tuple[Any, ...]:
    """An immediate end-of-log response."""
    topics: list[Any] = [
        (topic_id, [(number, 0, 0, 0, 0, [], -1, b"", {}) for number, *_ in partitions], {})
        for topic_id, partitions, _ in request.topics
    ]
    return 0, 0, 0, topics, {}


async def fetch_for(fetcher: KafkaFetcher, seconds: float) -> list[str]:
    """Read as a consumer for some time; returns the errors."""
    loop = asyncio.get_running_loop()
    until, errors = loop.time() + seconds, []
    async with asyncio.timeout(2 * seconds):
        while loop.time() < until:
            try:
                await fetcher.fetch(T0, 0, 1000, None)
            except Unavailable as error:
                errors.append(str(error))
    return errors


def test_a_fetch_reports_that_the_partition_has_no_leader(virtual: asyncio.Runner) -> None:
    virtual.run(_no_leader())


async def _no_leader() -> None:
    brokers = Brokers({"t": [-1]})
    with capture_logs() as logs:
        async with open_fetcher(brokers) as (fetcher, _):
            asked = brokers.count(METADATA)
            errors = await fetch_for(fetcher, MINUTE_S)
            asked = brokers.count(METADATA) - asked
    assert set(errors) == {"t-0 cannot be read: the partition has no leader"}
    assert [each["partition"] for each in logs if each["event"] == "a partition has no leader"] == [0]
    assert 55 <= asked <= 75, "once a second, after a few quick ones"


@pytest.mark.slow
def test_a_new_leader_is_found_and_logged(virtual: asyncio.Runner) -> None:
    virtual.run(_leader_comes())


async def _leader_comes() -> None:
    brokers = Brokers({"t": [-1]})
    brokers.on(FETCH, empty)
    with capture_logs() as logs:
        async with open_fetcher(brokers) as (fetcher, _):
            await fetch_for(fetcher, 10.0)
            brokers.topics["t"] = [0]
            result = await fetcher.fetch(T0, 0, 1000, 1.5)
    assert (result.next_offset, result.high_watermark) == (0, 0)
    assert [each["event"] for each in logs].count("a partition has a leader again") == 1


def test_metadata_that_was_valid_for_a_while_is_refreshed_at_once(
    virtual: asyncio.Runner,
) -> None:
    virtual.run(_rested())


async def _rested() -> None:
    brokers = Brokers({"t": [-1]})
    async with open_fetcher(brokers) as (fetcher, client):
        await fetch_for(fetcher, 10.0)
        await asyncio.sleep(5.0)
        brokers.topics["t"] = [0]
        client.request_refresh(["t"])
        await asyncio.sleep(0.01)
        assert client.metadata.leader("t", 0) == 0

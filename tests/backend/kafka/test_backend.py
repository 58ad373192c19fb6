"""The backend itself: the search by timestamp."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from pixy.backend import TopicPartition, timestamps
from pixy.backend.kafka import KafkaBackend
from pixy.errors import ShuttingDown
from pixy.records import Record, read_records
from tests.conformance.support import append, fetch_now, values
from tests.kafka.backends import open_kafka
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process

PATIENCE_S = 60.0


@pytest.fixture
async def backend(kafka: KafkaCluster) -> AsyncIterator[KafkaBackend]:
    async with open_kafka(kafka) as opened:
        yield opened


@pytest.fixture
async def partition(backend: KafkaBackend, kafka_name: Callable[[str], str]) -> TopicPartition:
    name = kafka_name("since")
    await backend.create_topic(name, 1)
    return TopicPartition(name, 0)


class SlowDecoding:
    """A decoder that blocks its thread until released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Event()
        self._go_on = threading.Event()
        monkeypatch.setattr(timestamps, "read_records", self._read)

    def _read(self, batch: bytes) -> Iterator[Record]:
        self._loop.call_soon_threadsafe(self._begun.set)
        assert self._go_on.wait(PATIENCE_S)
        return read_records(batch)

    async def wait_begun(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._begun.wait()

    def go_on(self) -> None:
        self._go_on.set()


async def test_the_event_loop_runs_while_records_are_searched(
    backend: KafkaBackend, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(backend, partition, b"0", b"1", timestamp_ms=10)
    decoding = SlowDecoding(monkeypatch)
    searching = asyncio.create_task(backend.offset_for_timestamp(partition, 11))
    await decoding.wait_begun()
    assert await append(backend, partition, b"meanwhile", timestamp_ms=20) == 2
    assert values(await fetch_now(backend, partition, 2)) == [b"meanwhile"]
    assert not searching.done()
    decoding.go_on()
    assert await searching == 1


async def test_a_search_is_not_answered_after_stop(
    backend: KafkaBackend, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(backend, partition, b"0", timestamp_ms=10)
    decoding = SlowDecoding(monkeypatch)
    searching = asyncio.create_task(backend.offset_for_timestamp(partition, 5))
    await decoding.wait_begun()
    await backend.stop()
    decoding.go_on()
    with pytest.raises(ShuttingDown):
        await searching

"""pixy/backend/kafka/produce.py: a batch times out while its request is being prepared."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pixy.backend import TopicPartition
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.produce import Producer
from pixy.errors import DeadlineExceeded, PixyError, Unavailable
from pixy.records import read_records
from tests.conformance.support import make_batch
from tests.fakes.brokers import INIT_PRODUCER_ID, PRODUCE, Brokers

T0 = TopicPartition("t", 0)
LIMIT_S = 2.0


class Log(Brokers):
    """One partition with a leader that writes all requests."""

    def __init__(self) -> None:
        super().__init__({"t": [0]})
        self.values: list[bytes | None] = []
        self.on(PRODUCE, self._write)
        self.on(INIT_PRODUCER_ID, lambda _: (0, 0, 7, 0))

    def _write(self, request: Any) -> tuple[Any, ...]:
        ((topic, ((number, batch),)),) = request.topics
        offset = len(self.values)
        self.values += [record.value for record in read_records(batch)]
        return [(topic, [(number, 0, offset, -1, 0, [], None)])], 0


class Writer:
    """A producer, and the answers of its batches by value."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.answers: dict[bytes, int | PixyError] = {}

    def write(self, value: bytes) -> None:
        def done(offset: int, error: PixyError | None) -> None:
            self.answers[value] = error or offset

        self.producer.append(T0, make_batch(value), 1, done)


@asynccontextmanager
async def open_writer(log: Log) -> AsyncIterator[Writer]:
    faults: list[BaseException] = []
    options = log.options(delivery_timeout_s=LIMIT_S, dial_timeout_s=60.0, request_timeout_s=60.0)
    client = KafkaClient(options, log.dial)
    await client.start()
    producer = Producer(client, options, faults.append)
    try:
        yield Writer(producer)
    finally:
        await producer.stop()
        await client.stop()
    assert not faults
    assert producer.buffered_bytes == 0


def test_a_batch_that_times_out_during_the_producer_id_request_is_not_written(
    virtual: asyncio.Runner,
) -> None:
    virtual.run(_end_while_waiting_for_an_id())


async def _end_while_waiting_for_an_id() -> None:
    log, go_on = Log(), asyncio.Event()

    async def slow_id(_: Any) -> tuple[Any, ...]:
        await go_on.wait()
        return 0, 0, 7, 0

    log.on(INIT_PRODUCER_ID, slow_id)
    async with open_writer(log) as writer:
        writer.write(b"late")
        await asyncio.sleep(LIMIT_S - 0.1)
        writer.write(b"in time")
        await asyncio.sleep(0.2)
        assert isinstance(writer.answers[b"late"], Unavailable)
        go_on.set()
        await asyncio.sleep(LIMIT_S / 2)
        assert log.values == [b"in time"]
        assert writer.answers[b"in time"] == 0


def test_a_batch_that_times_out_during_the_connect_is_not_written(
    virtual: asyncio.Runner,
) -> None:
    virtual.run(_end_while_connecting())


async def _end_while_connecting() -> None:
    log, go_on = Log(), asyncio.Event()
    async with open_writer(log) as writer:
        writer.write(b"first")
        await asyncio.sleep(0.1)
        log.cut()
        log.before_dial = lambda _: go_on.wait()
        writer.write(b"late")
        await asyncio.sleep(LIMIT_S + 0.1)
        assert isinstance(writer.answers[b"late"], Unavailable)
        log.before_dial = lambda _: None
        go_on.set()
        await asyncio.sleep(0.5)
        writer.write(b"next")
        await asyncio.sleep(LIMIT_S / 2)
        assert log.values == [b"first", b"next"]
        assert writer.answers[b"next"] == 1


def test_a_batch_sent_before_its_timeout_is_in_doubt(virtual: asyncio.Runner) -> None:
    virtual.run(_end_while_sent())


async def _end_while_sent() -> None:
    log = Log()
    async with open_writer(log) as writer:
        writer.write(b"first")
        await asyncio.sleep(0.1)
        log.on(PRODUCE, lambda _: asyncio.Event().wait())
        writer.write(b"in doubt")
        await asyncio.sleep(LIMIT_S + 0.1)
        assert isinstance(writer.answers[b"in doubt"], DeadlineExceeded)

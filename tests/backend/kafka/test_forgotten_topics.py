"""Metadata lack a topic for a moment. If only those of one broker do, messages wait as before. If
all do, what is produced to it afterwards is written, and not taken for a repeat of what was
produced before. The same holds if another topic has its place.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka.conn import CloseReason

from pixy.backend.kafka import KafkaBackend
from pixy.backend.kafka.client import KafkaClient
from pixy.errors import Unavailable
from pixy.kafka_protocol.messages import METADATA
from tests.backend.kafka.test_divided_batches import Clients, open_clients
from tests.fakes.brokers import INIT_PRODUCER_ID, PRODUCE
from tests.fakes.idempotent_log import IdempotentLog
from tests.fakes.waiting import settle

_NOT_ENOUGH_REPLICAS = 19


def test_messages_wait_though_a_broker_lacks_their_topic(virtual: asyncio.Runner, tmp_path: Path) -> None:
    virtual.run(_lag(tmp_path))


async def _lag(directory: Path) -> None:
    log = IdempotentLog()
    log.nodes = range(3)
    async with open_clients(log, directory) as clients:
        log.judge = lambda _: (_NOT_ENOUGH_REPLICAS, {})
        clients.send(b"sync")
        clients.send(b"async", sync=False)
        await asyncio.sleep(1)
        for node_id in range(3):
            log.behind = {node_id: {}}
            for _ in range(20):
                await _client(clients).refresh(["t"])
        log.judge = lambda _: (0, {})
        await clients.answered()
        assert clients.answers == {b"sync": 0, b"async": None}
    assert log.values == [b"sync", b"async"]


def test_messages_behind_a_moment_without_the_topic_are_written(
    virtual: asyncio.Runner, tmp_path: Path
) -> None:
    virtual.run(_forget_the_topic(tmp_path))


async def _forget_the_topic(directory: Path) -> None:
    log = IdempotentLog()
    async with open_clients(log, directory) as clients:
        for number in range(3):
            value = b"%d" % number
            clients.send(value)
            await clients.answered()
            assert clients.answers[value] == number
            await _forget(clients, log)
    assert log.values == [b"0", b"1", b"2"]


async def _forget(clients: Clients, log: IdempotentLog) -> None:
    client = _client(clients)
    topics, log.topics = log.topics, {}
    await client.refresh(["t"])
    assert "t" not in client.metadata.topics
    log.topics = topics
    await client.refresh(["t"])
    assert "t" in client.metadata.topics


@pytest.mark.parametrize("step", ["producer id", "connection"])
def test_a_topic_that_is_replaced_while_its_first_batch_is_prepared_gets_what_is_sent_to_it_alone(
    virtual: asyncio.Runner, tmp_path: Path, step: str
) -> None:
    virtual.run(_replace_the_topic(tmp_path, step))


async def _replace_the_topic(directory: Path, step: str) -> None:
    log, go_on = IdempotentLog(), asyncio.Event()
    async with open_clients(log, directory) as clients:
        if step == "producer id":
            _hold_producer_ids(log, go_on)
        else:
            await _client(clients).send(0, METADATA([], False, False, {}), "metadata")
            clients.send(b"first")
            await clients.answered()
            log.connections[-1].close(CloseReason.CONNECTION_BROKEN)
            log.before_dial = lambda _: go_on.wait()
        before = list(log.values)
        clients.send(b"old")
        await settle()
        log.topic_ids["t"] = b"another"
        await _client(clients).refresh(["t"])
        clients.send(b"new")
        await settle()
        assert log.count(PRODUCE) == len(before)
        go_on.set()
        await clients.answered()
        clients.send(b"next")
        await clients.answered()
        assert isinstance(clients.answers[b"old"], Unavailable)
        assert clients.answers[b"new"] == len(before)
    assert log.values == [*before, b"new", b"next"]


def _hold_producer_ids(log: IdempotentLog, go_on: asyncio.Event) -> None:
    new_producer = log._new_producer

    async def held(request: Any) -> tuple[int, int, int, int]:
        await go_on.wait()
        return new_producer(request)

    log.on(INIT_PRODUCER_ID, held)


def _client(clients: Clients) -> KafkaClient:
    backend = clients._backend
    assert isinstance(backend, KafkaBackend)
    return backend._client

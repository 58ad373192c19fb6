"""Metadata lack a topic for a moment, as those of a broker that lags behind: what is produced to it
afterwards is written, and not taken for a repeat of what was produced before.
"""

import asyncio
from pathlib import Path

from pixy.backend.kafka import KafkaBackend
from tests.backend.kafka.test_divided_batches import Clients, open_clients
from tests.fakes.idempotent_log import IdempotentLog


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
    backend = clients._backend
    assert isinstance(backend, KafkaBackend)
    topics, log.topics = log.topics, {}
    await backend._client.refresh(["t"])
    assert backend.topic("t") is None
    log.topics = topics
    await backend._client.refresh(["t"])
    assert backend.topic("t") is not None

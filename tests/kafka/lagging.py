"""Brokers that lag behind: a Metadata response lacks a topic that is there."""

import asyncio
from types import SimpleNamespace
from typing import Any

from aiokafka.conn import create_conn

from pixy.backend.kafka import KafkaBackend
from pixy.kafka_protocol.messages import METADATA

_UNKNOWN_TOPIC = 3


class LaggingBroker:
    """Dials brokers of which one lags behind at times."""

    def __init__(self) -> None:
        # The topic that the next response lacks.
        self._lacking: str | None = None

    async def dial(self, host: str, port: int, **options: Any) -> Any:
        """aiokafka's `create_conn`."""
        connection = await create_conn(host, port, **options)
        send = connection.send

        def maybe_lag(request: Any) -> Any:
            answer = send(request)
            if request.api is not METADATA or self._lacking is None:
                return answer
            topic, self._lacking = self._lacking, None
            return asyncio.ensure_future(_without(topic, answer))

        connection.send = maybe_lag
        return connection

    async def lack(self, backend: KafkaBackend, topic: str) -> None:
        """Let the backend refresh its metadata, and the response lack a topic that is there."""
        assert backend.topic(topic) is not None
        self._lacking = topic
        await backend._client.refresh([topic])
        assert self._lacking is None


async def _without(topic: str, answer: Any) -> Any:
    found = await answer
    topics = [each for each in found.topics if each[1] != topic]
    missing: Any = (_UNKNOWN_TOPIC, topic, bytes(16), False, [], 0, {})
    return SimpleNamespace(brokers=found.brokers, topics=[*topics, missing])

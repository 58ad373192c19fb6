"""Limits of the record batches of topics: Kafka's `max.message.bytes`.

A broker that refuses a batch for its size does not tell the limit. It is asked for then, and
believed for a few seconds: others may alter it at any time.
"""

import asyncio
from collections.abc import Collection

from pixy.backend.kafka.client import KafkaClient
from pixy.errors import PixyError
from pixy.kafka_protocol.messages import DESCRIBE_CONFIGS, TOPIC_RESOURCE

_BELIEVED_S = 5.0
_ASK_S = 3.0
_OPTION = "max.message.bytes"
_TOPICS_AT_ONCE = 100


async def ask_batch_bytes(client: KafkaClient, topics: Collection[str]) -> dict[str, int]:
    """The size of the largest batch of each topic, as far as the brokers tell it."""
    names, found = sorted(topics), {}
    for at in range(0, len(names), _TOPICS_AT_ONCE):
        resources = [(TOPIC_RESOURCE, name, [_OPTION]) for name in names[at : at + _TOPICS_AT_ONCE]]
        try:
            answer = await client.send_any(
                DESCRIBE_CONFIGS(resources, False), timeout_s=_ASK_S, repeatable=True
            )
        except PixyError:
            break
        for code, _, _, name, entries in answer.resources:
            for option, value, *_ in entries:
                if code == 0 and option == _OPTION and (value or "").isdecimal():
                    found[name] = max(1, int(value))
    return found


class TopicLimits:
    """The known limits of one cluster."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        # By topic: its id, its limit, and the time until which that is believed. Invariant: these
        # times ascend.
        self._limits: dict[str, tuple[bytes, int, float]] = {}
        # Number of `forget`s: answers to questions from before one do not count.
        self._forgotten = 0

    def batch_bytes_max(self, topic: str) -> int | None:
        """As `Backend.batch_bytes_max`."""
        limit = self._limits.get(topic)
        if limit is None:
            return None
        topic_id, size, until = limit
        known = self._client.metadata.topics.get(topic)
        if known is None or known.topic_id != topic_id or until <= self._loop.time():
            return None
        return size

    async def ask(self, topic: str) -> int | None:
        """Ask for the limit of a topic; None if the brokers do not tell it."""
        known, forgotten = self._client.metadata.topics.get(topic), self._forgotten
        limit = (await ask_batch_bytes(self._client, [topic])).get(topic)
        now = self._loop.time()
        while self._limits and (oldest := next(iter(self._limits))) and self._limits[oldest][2] <= now:
            del self._limits[oldest]
        if known is not None and limit is not None and forgotten == self._forgotten:
            self._limits.pop(topic, None)
            self._limits[topic] = known.topic_id, limit, now + _BELIEVED_S
        return limit

    def forget(self, topic: str) -> None:
        """The options of a topic are changed."""
        self._forgotten += 1
        self._limits.pop(topic, None)

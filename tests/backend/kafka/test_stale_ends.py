"""pixy/backend/kafka: the end of a log that a newly elected leader tells too early."""

import asyncio
from typing import Any

import pytest

from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.list_offsets import list_ranges
from tests.fakes.brokers import LIST_OFFSETS, Brokers

END = -1
OFFSET = {-2: 3, END: 10}
"""Timestamp of a request -> the offset that is right."""


@pytest.mark.parametrize("stale", [0, 3, 9])
def test_one_end_that_is_told_too_early_is_not_believed(virtual: asyncio.Runner, stale: int) -> None:
    brokers = Brokers({"t": [0]})
    asked: list[int] = []

    def answer(request: Any) -> tuple[Any, ...]:
        (topic, partitions), *_ = request.topics
        ((number, timestamp),) = partitions
        asked.append(timestamp)
        offset = stale if timestamp == END and asked.count(END) == 1 else OFFSET[timestamp]
        return 0, [(topic, [(number, 0, -1, offset)])]

    brokers.on(LIST_OFFSETS, answer)

    async def run() -> None:
        client = KafkaClient(brokers.options(), brokers.dial)
        await client.start()
        try:
            await client.refresh(["t"])
            assert await list_ranges(client, "t") == {0: (3, 10)}
        finally:
            await client.stop()

    virtual.run(run())

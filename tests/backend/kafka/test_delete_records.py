"""pixy/backend/kafka: a removal of records leaves those of transactions that are being written."""

import asyncio
from typing import Any

import pytest

from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.delete_records import delete_records
from pixy.errors import OffsetOutOfRange
from tests.fakes.brokers import LIST_OFFSETS, Brokers

DELETE_RECORDS = 21
SHOWN_END = 2
"""Behind it lie the records of a transaction that is not committed yet."""


def list_offsets(request: Any) -> tuple[Any, ...]:
    assert request.isolation_level == 1, "read committed"
    ((topic, partitions),) = request.topics
    return 0, [
        (topic, [(number, 0, -1, SHOWN_END if timestamp == -1 else 0) for number, timestamp in partitions])
    ]


def removed(request: Any) -> tuple[Any, ...]:
    ((topic, partitions),) = request.topics
    return 0, [(topic, [(number, offset, 0) for number, offset in partitions])]


def test_the_end_is_that_which_is_shown(virtual: asyncio.Runner) -> None:
    brokers = Brokers({"t": [0, 0]})
    brokers.on(LIST_OFFSETS, list_offsets)
    brokers.on(DELETE_RECORDS, removed)

    async def run() -> None:
        client = KafkaClient(brokers.options(), brokers.dial)
        await client.start()
        try:
            await client.refresh(["t"])
            assert await delete_records(client, "t", {0: -1, 1: 1}) == {0: SHOWN_END, 1: 1}
            assert brokers.count(DELETE_RECORDS) == 1
            with pytest.raises(OffsetOutOfRange, match=r"offset 3 of t-1 is out of range: 0 to 2 are served"):
                await delete_records(client, "t", {0: -1, 1: SHOWN_END + 1})
            assert brokers.count(DELETE_RECORDS) == 1
        finally:
            await client.stop()

    virtual.run(run())

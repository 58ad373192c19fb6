"""A wait for records of many partitions, by a fetch of each: where there is no better way."""

import asyncio
from collections.abc import Mapping

from pixy.aio.futures import failure_of
from pixy.backend.protocol import Backend
from pixy.records import TopicPartition


async def wait_by_fetches(backend: Backend, offsets: Mapping[TopicPartition, int], max_wait: float) -> None:
    """As `Backend.wait_records`."""
    fetches = [
        asyncio.ensure_future(backend.fetch(partition, offset, max_bytes=1, max_wait=max_wait))
        for partition, offset in offsets.items()
    ]
    try:
        await asyncio.wait(fetches, timeout=max_wait, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in fetches:
            each.cancel()
        await asyncio.wait(fetches)
        for each in fetches:
            failure_of(each)

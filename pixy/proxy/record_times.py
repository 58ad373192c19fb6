"""Records by their timestamps: offset and time of the first one since a time, and of the newest."""

import asyncio
from typing import NamedTuple

from pixy.aio.address_quota import AddressSemaphore
from pixy.backend import Backend, Batch, TopicPartition
from pixy.client_address import client_address
from pixy.errors import OffsetOutOfRange, UnknownPartition
from pixy.records import read_header, read_records


class TimedPlace(NamedTuple):
    """A record: its timestamp in milliseconds since the Unix epoch, and its offset."""

    timestamp_ms: int
    offset: int


class RecordTimes:
    """Searches in the partitions of one cluster.

    Args:
        backend: the cluster.
        searches: a search of one address at a time holds 1.
    """

    def __init__(self, backend: Backend, searches: AddressSemaphore) -> None:
        self._backend = backend
        self._searches = searches

    async def since(self, partition: TopicPartition, timestamp_ms: int, peer: str) -> TimedPlace | None:
        """The first record with at least a timestamp, None if there is none.

        Raises:
            PixyError: as `Backend.offset_for_timestamp`.
        """
        async with self._searches.holding(client_address(peer), 1):
            return await self._since(partition, timestamp_ms)

    async def newest(self, partition: TopicPartition, peer: str) -> TimedPlace | None:
        """The first record with the largest timestamp, None if the partition is empty.

        The last batch almost always has it. If an earlier one has a larger one, the search goes on
        from there: each step finds a larger one.

        Raises:
            PixyError: as `Backend.offset_for_timestamp`.
        """
        async with self._searches.holding(client_address(peer), 1):
            ranges = await self._backend.offset_ranges(partition.topic, [partition.partition])
            served = ranges.get(partition.partition)
            if served is None:
                raise UnknownPartition(f"unknown partition {partition.partition} of topic {partition.topic}")
            if served.begin >= served.end:
                return None
            batch = await self._batch(partition, served.end - 1)
            if batch is None:
                return None
            largest = read_header(batch).max_timestamp
            newest = await self._since(partition, largest)
            while (larger := await self._since(partition, largest + 1)) is not None:
                newest, largest = larger, larger.timestamp_ms
            return newest

    async def _since(self, partition: TopicPartition, timestamp_ms: int) -> TimedPlace | None:
        offset = await self._backend.offset_for_timestamp(partition, timestamp_ms)
        if offset is None:
            return None
        batch = await self._batch(partition, offset)
        if batch is None:
            return None
        found_ms = await asyncio.to_thread(_timestamp_at, batch, offset)
        return TimedPlace(timestamp_ms if found_ms is None else found_ms, offset)

    async def _batch(self, partition: TopicPartition, offset: int) -> Batch | None:
        """The batch with an offset, None if it was removed meanwhile."""
        try:
            found = await self._backend.fetch(partition, offset, max_bytes=1, max_wait=0)
        except OffsetOutOfRange:
            return None
        return found.batches[0] if found.batches else None


def _timestamp_at(batch: Batch, offset: int) -> int | None:
    """The timestamp of the record at an offset."""
    for record in read_records(batch):
        if record.offset >= offset:
            return record.timestamp
    return None

"""Unpacks large batches while the event loop goes on: on another thread, one at a time.

One at a time, because one that is being unpacked takes up to three times `UNPACKED_BYTES_MAX` of memory, and any number of partitions may
have such batches.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from pixy.backend import Batch
from pixy.records import Record, unpack_records

__all__ = ["BatchUnpacker", "Unpack"]

Unpack = Callable[[Batch], Awaitable[Iterator[Record]]]
"""Gives the records of a batch, unpacked.

Raises:
    CorruptData: they cannot be, or are too many.
"""


class BatchUnpacker:
    """An `Unpack` for all consumer groups of a cluster. Cancelling ends the wait, not the work."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def __call__(self, batch: Batch) -> Iterator[Record]:
        async with self._turn:
            return await asyncio.to_thread(unpack_records, batch)

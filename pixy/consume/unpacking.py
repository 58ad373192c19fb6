"""Decompression of large batches on another thread, one at a time.

One batch takes up to three times `UNPACKED_BYTES_MAX` of memory while it is decompressed, and any
number of partitions may have such batches.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from pixy.backend import Batch
from pixy.records import Record, unpack_records

__all__ = ["BatchUnpacker", "Unpack"]

Unpack = Callable[[Batch], Awaitable[Iterator[Record]]]
"""Decompresses the records of a batch.

Raises:
    CorruptData: the batch is damaged, or its records are too large.
"""


class BatchUnpacker:
    """The `Unpack` of all consumer groups of a cluster.

    Cancelling ends the wait, not the decompression.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def __call__(self, batch: Batch) -> Iterator[Record]:
        async with self._turn:
            return await asyncio.to_thread(unpack_records, batch)

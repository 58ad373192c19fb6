"""Decompression of large batches on another thread, one at a time.

One batch takes up to three times `UNPACKED_BYTES_MAX` of memory while it is decompressed, and any
number of partitions may have such batches.
"""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from pixy.backend import Batch
from pixy.one_thread import OneThread
from pixy.records import Record, unpack_records

__all__ = ["BatchUnpacker", "Unpack"]

Unpack = Callable[[Batch, int], Awaitable[Iterator[Record]]]
"""Decompresses the records of a batch; those below an offset that cannot be decoded are left out.

Raises:
    CorruptData: the batch is damaged, or its records are too large.
"""


class BatchUnpacker:
    """The `Unpack` of all consumer groups of a cluster."""

    def __init__(self) -> None:
        self._thread = OneThread()

    async def __call__(self, batch: Batch, first_offset: int = 0) -> Iterator[Record]:
        return await self._thread.run(partial(unpack_records, batch, first_offset=first_offset))

"""Decompression of large batches on another thread, one at a time, within a bound of memory.

Owns the thread; `bounded_memory` says which batch is next, and who gives back for it: a partition
that does keeps its position and the compressed batch. While one batch is decompressed it takes up
to three times `UNPACKED_BYTES_MAX` besides.

Small batches have a bound and a thread of their own, so that partitions with large ones, which
take turns of a second, are not in front of them.
"""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Protocol

from pixy.aio.one_thread import OneThread
from pixy.backend import Batch
from pixy.consume.core import Timers
from pixy.consume.memory.bounded_memory import BoundedMemory
from pixy.consume.memory.memory_turns import MemoryHolder, MemoryPlace
from pixy.errors import UnpackedTooLarge
from pixy.records import UNPACKED_BYTES_MAX, Record, UnpackedRecords, unpack_records

Unpack = Callable[[Batch, int, int], Awaitable[UnpackedRecords]]
"""Decompresses the records of a batch, up to a number of bytes; those below an offset are left out.

Raises:
    CorruptData: the batch is damaged, or its records are too large.
"""

_SMALL_PACKED_BYTES = 64 << 10
_SMALL_BYTES = 256 << 10
"""Limits of a small batch, compressed and decompressed."""
_SMALL_SHARE = 4
"""Part of the bound that small batches have besides, as a divisor."""
_OBJECTS_BYTES = 128 << 10
"""Records that are decoded ahead of a small batch; those of others are a little of their size."""
_LIMIT = "consumer.max_unpacked_bytes"


class UnpackingPartition(MemoryHolder, Protocol):
    """A partition of a consumer group whose batch is decompressed."""

    def unpacks(self, *, running: bool) -> None:
        """The turn of the batch has come, or is over."""

    def is_large(self) -> None:
        """The batch takes turns with large ones, although it seemed small."""


class BatchUnpacker:
    """Decompresses batches on a thread, one at a time."""

    def __init__(self) -> None:
        self._thread = OneThread()

    async def __call__(
        self, batch: Batch, first_offset: int = 0, unpacked_bytes_max: int = UNPACKED_BYTES_MAX
    ) -> UnpackedRecords:
        return await self._thread.run(
            partial(unpack_records, batch, unpacked_bytes_max, first_offset=first_offset)
        )


class HeldRecords:
    """Decompressed records of one batch of a partition, which counts them until `release`."""

    __slots__ = ("_memory", "_place", "records")

    def __init__(self, memory: BoundedMemory, place: MemoryPlace, records: Iterator[Record]) -> None:
        self._memory = memory
        self._place = place
        self.records = records

    @property
    def size(self) -> int:
        """Bytes of memory that they take."""
        return self._place.size

    def release(self) -> None:
        """The partition has dropped the records."""
        self._memory.release(self._place)


class BoundedUnpacking:
    """Decompressed batches of all consumer groups of a cluster.

    Args:
        bytes_max: bytes of them that may be held.
        timers: clock and timers.
        unpack: decompresses.
        batch_bytes_max: larger batches are not decompressed.
        objects_bytes: counted for each batch besides.
    """

    def __init__(
        self,
        bytes_max: int,
        timers: Timers,
        unpack: Unpack,
        batch_bytes_max: int = UNPACKED_BYTES_MAX,
        objects_bytes: int = 0,
    ) -> None:
        self._memory = BoundedMemory("decompressed batches", _LIMIT, bytes_max, timers)
        self._batch_bytes_max = batch_bytes_max
        self._objects_bytes = objects_bytes
        self._unpack = unpack

    @property
    def held_bytes(self) -> int:
        """Bytes of decompressed batches that partitions hold."""
        return self._memory.held_bytes

    async def unpack(
        self, partition: UnpackingPartition, batch: Batch, first_offset: int, size: int
    ) -> HeldRecords:
        """Decompress a batch when there is memory for it.

        Args:
            partition: its partition, which holds the records until it releases them.
            batch: the batch.
            first_offset: records below are left out.
            size: decompressed bytes, 0 if they are not known.

        Raises:
            CorruptData: the batch is damaged, or its records are too large.
        """
        place = self._memory.ask(partition, size)
        try:
            while True:
                await self._memory.turn(place)
                partition.unpacks(running=True)
                try:
                    records, size = await self._unpack(batch, first_offset, self._batch_bytes_max)
                finally:
                    partition.unpacks(running=False)
                if self._memory.filled(place, size + self._objects_bytes):
                    return HeldRecords(self._memory, place, records)
                del records
        except BaseException:
            self._memory.release(place)
            raise


class Unpacking:
    """Decompressed batches of all consumer groups of a cluster, small and large.

    Args:
        bytes_max: bytes of large batches that may be held; small ones may have a quarter of that
            besides.
        timers: clock and timers.
        unpack: decompresses; None means on threads.
    """

    def __init__(self, bytes_max: int, timers: Timers, unpack: Unpack | None = None) -> None:
        self._large = BoundedUnpacking(bytes_max, timers, unpack or BatchUnpacker())
        self._small = BoundedUnpacking(
            bytes_max // _SMALL_SHARE, timers, unpack or BatchUnpacker(), _SMALL_BYTES, _OBJECTS_BYTES
        )

    @property
    def held_bytes(self) -> int:
        """Bytes of decompressed batches that partitions hold."""
        return self._small.held_bytes + self._large.held_bytes

    @staticmethod
    def is_small(batch: Batch, size: int) -> bool:
        """True if a batch takes turns with small ones at first; `size` as in `unpack`."""
        return len(batch) <= _SMALL_PACKED_BYTES and size <= _SMALL_BYTES + _OBJECTS_BYTES

    async def unpack(
        self, partition: UnpackingPartition, batch: Batch, first_offset: int, size: int
    ) -> HeldRecords:
        """As `BoundedUnpacking.unpack`, under the bound for the size of the batch."""
        if self.is_small(batch, size):
            try:
                return await self._small.unpack(partition, batch, first_offset, size)
            except UnpackedTooLarge:
                partition.is_large()
        return await self._large.unpack(partition, batch, first_offset, size)

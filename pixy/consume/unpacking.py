"""Decompression of large batches on another thread, one at a time, within a bound of memory.

The shell of `unpacked_bytes`, which decides. Owns the thread, the timer, and the calls that wait.
While one batch is decompressed it takes up to three times `UNPACKED_BYTES_MAX` besides.

Small batches have a bound and a thread of their own, so that partitions with large ones, which
take turns of a second, are not in front of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Protocol

from pixy.backend import Batch
from pixy.consume.timers import Alarm, Timers
from pixy.consume.unpacked_bytes import TURN_S, Turn, UnpackedBatch, UnpackedBytes, UnpackedHolder
from pixy.errors import Unavailable, UnpackedTooLarge
from pixy.futures import resolve
from pixy.one_thread import OneThread
from pixy.records import UNPACKED_BYTES_MAX, Record, UnpackedRecords, unpack_records

__all__ = ["BatchUnpacker", "BoundedUnpacking", "HeldRecords", "Unpack", "Unpacking", "UnpackingPartition"]

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
_LOOK_S = 0.1
"""Pause between two looks for batches to give back, while others wait."""


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


class UnpackingPartition(UnpackedHolder, Protocol):
    """A partition of a consumer group that decompresses batches."""

    def give_back(self) -> None:
        """Drop the decompressed records; the bytes are released already."""

    def unpacking_waits(self, error: Unavailable) -> None:
        """There is no memory for the batch yet."""


class HeldRecords:
    """Decompressed records of one batch of a partition, which counts them until `release`."""

    __slots__ = ("_batch", "_bound", "records")

    def __init__(self, bound: "BoundedUnpacking", batch: UnpackedBatch, records: Iterator[Record]) -> None:
        self._bound = bound
        self._batch = batch
        self.records = records

    @property
    def size(self) -> int:
        """Bytes of memory that they take."""
        return self._batch.size

    def release(self) -> None:
        """The partition has dropped the records."""
        self._bound.release(self._batch)


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
        self._bound = UnpackedBytes(bytes_max)
        self._batch_bytes_max = batch_bytes_max
        self._objects_bytes = objects_bytes
        self._monotonic = timers.monotonic
        self._unpack = unpack
        self._alarm = Alarm(timers, self._look)
        # Partitions whose batches wait or are held.
        self._partitions: dict[UnpackedBatch, UnpackingPartition] = {}
        # Calls that wait for their turn.
        self._turns: dict[UnpackedBatch, asyncio.Future[None]] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of decompressed batches that partitions hold."""
        return self._bound.held_bytes

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
        place = self._bound.ask(partition, size, self._monotonic())
        self._partitions[place] = partition
        try:
            while True:
                await self._turn(place)
                records, size = await self._unpack(batch, first_offset, self._batch_bytes_max)
                size += self._objects_bytes
                held = self._bound.unpacked(place, size, self._monotonic())
                if held is not None:
                    self._give_back(held)
                    self._look(self._monotonic())
                    return HeldRecords(self, place, records)
                del records
        except BaseException:
            self.release(place)
            raise

    def release(self, place: UnpackedBatch) -> None:
        """The records of a batch are dropped, or nobody waits for them any more."""
        if self._partitions.pop(place, None) is not None:
            self._turns.pop(place, None)
            self._bound.release(place)
            self._look(self._monotonic())

    async def _turn(self, place: UnpackedBatch) -> None:
        turn = self._turns[place] = asyncio.get_running_loop().create_future()
        self._look(self._monotonic())
        await turn

    def _look(self, now: float) -> None:
        """Have the next batch decompressed, if there is memory."""
        turn = self._bound.begin(now)
        if turn is not None:
            self._give_back(turn)
            resolve(self._turns.pop(turn.batch), None)
        waiting = self._bound.waiting
        if not waiting:
            self._alarm.cancel()
            return
        self._alarm.at(now + _LOOK_S)
        # While one is decompressed the others may still fit.
        patience = TURN_S if self._bound.unpacking else 0.0
        self._tell([place for place in waiting if now - place.asked_at >= patience], now)

    def _give_back(self, turn: Turn) -> None:
        for place in turn.given_back:
            self._partitions.pop(place).give_back()

    def _tell(self, waiting: list[UnpackedBatch], now: float) -> None:
        for place in waiting:
            if not place.told and place.in_demand(now):
                place.told = True
                self._partitions[place].unpacking_waits(
                    Unavailable(
                        f"decompressed batches have {self._bound.held_bytes} bytes, of {self._bound.bytes_max} "
                        "(`consumer.max_unpacked_bytes`; small ones have a quarter of it), and others are consumed; try again"
                    ).at_limit("consumer.max_unpacked_bytes")
                )


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

    async def unpack(
        self, partition: UnpackingPartition, batch: Batch, first_offset: int, size: int
    ) -> HeldRecords:
        """As `BoundedUnpacking.unpack`, under the bound for the size of the batch."""
        if len(batch) <= _SMALL_PACKED_BYTES and size <= _SMALL_BYTES + _OBJECTS_BYTES:
            with suppress(UnpackedTooLarge):
                return await self._small.unpack(partition, batch, first_offset, size)
        return await self._large.unpack(partition, batch, first_offset, size)

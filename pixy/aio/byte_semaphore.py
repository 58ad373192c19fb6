"""A semaphore that counts bytes: bounds the data that several callers hold at a time.

Owns a count and a FIFO queue, no bytes. The road not taken is asyncio's semaphore, which counts one
unit at a time.

Invariant: a queued caller waits for one that has acquired, or for one ahead of it in the queue;
nobody overtakes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pixy.aio.futures import resolve


class ByteSemaphore:
    """Allows `size` bytes to be acquired at a time, and any number by a caller that is alone.

    Attributes:
        acquired: bytes that callers have acquired.
        queued: bytes that queued callers ask for.
    """

    __slots__ = ("_queue", "_size", "acquired", "queued")

    def __init__(self, size: int) -> None:
        self._size = size
        # Bytes of each queued caller, in the order of arrival.
        self._queue: dict[asyncio.Future[None], int] = {}
        self.acquired = 0
        self.queued = 0

    def available(self, size: int) -> bool:
        """True if `acquire` would not suspend.

        More than the semaphore's size is available while nothing is acquired.
        """
        return not self._queue and self._fits(size)

    @asynccontextmanager
    async def holding(self, size: int) -> AsyncIterator[None]:
        """Acquire bytes, and release them at the end of the `with` block."""
        await self.acquire(size)
        try:
            yield
        finally:
            self.release(size)

    async def acquire(self, size: int) -> None:
        """Acquire bytes, in FIFO order."""
        if self.available(size):
            self.acquired += size
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[waiter] = size
        self.queued += size
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._queue:
                del self._queue[waiter]
                self.queued -= size
                self._admit()
            elif not waiter.cancelled():  # it was admitted in the same iteration of the loop
                self.release(size)
            raise

    def release(self, size: int) -> None:
        """Release bytes that were acquired."""
        self.acquired -= size
        self._admit()

    def _fits(self, size: int) -> bool:
        return not self.acquired or self.acquired + size <= self._size

    def _admit(self) -> None:
        while self._queue:
            waiter, size = next(iter(self._queue.items()))
            if not self._fits(size):
                return
            del self._queue[waiter]
            self.queued -= size
            if not waiter.cancelled():  # its task has not run since
                self.acquired += size
                resolve(waiter, None)

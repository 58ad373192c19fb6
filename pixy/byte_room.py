"""Room for so many bytes, given out in the order in which it is asked for: what bounds data that several callers hold at a time.

Owns a count and a line, no bytes. The road not taken is asyncio's semaphore, which gives out one unit at a time.

Invariants: who waits, waits for somebody who has room, or for somebody further ahead in the line; nobody overtakes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pixy.futures import resolve

__all__ = ["ByteRoom"]


class ByteRoom:
    """Room for `size` bytes.

    Attributes:
        taken: bytes that callers have.
        waiting: bytes that callers wait for.
    """

    __slots__ = ("_line", "_size", "taken", "waiting")

    def __init__(self, size: int) -> None:
        self._size = size
        # Who waits for how much, in the order of asking.
        self._line: dict[asyncio.Future[None], int] = {}
        self.taken = 0
        self.waiting = 0

    def has(self, size: int) -> bool:
        """Whether `size` bytes can be had without waiting. More than there is in all can be had while nobody has any."""
        return not self._line and self._fits(size)

    @asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[None]:
        """Have room for `size` bytes for the time of the `with` block; waits for it."""
        await self.take(size)
        try:
            yield
        finally:
            self.give_back(size)

    async def take(self, size: int) -> None:
        """Return with room for `size` bytes, which the caller has until it gives it back."""
        if self.has(size):
            self.taken += size
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[waiter] = size
        self.waiting += size
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._line:
                del self._line[waiter]
                self.waiting -= size
                self._admit()
            elif not waiter.cancelled():  # it was given room in the same turn of the loop
                self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        """What `take` gave is free again."""
        self.taken -= size
        self._admit()

    def _fits(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self._size

    def _admit(self) -> None:
        while self._line:
            waiter, size = next(iter(self._line.items()))
            if not self._fits(size):
                return
            del self._line[waiter]
            self.waiting -= size
            if not waiter.cancelled():  # whose task has not run since
                self.taken += size
                resolve(waiter, None)

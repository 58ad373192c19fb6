"""Bytes that callers hold at a time, shared fairly by client addresses.

One address has a share of the quota. Callers of one address are admitted in FIFO order, and
addresses take turns. Nobody overtakes the first whose address has some of its share left: so a
large request is admitted, however many small ones come.

Owns counts and queues, no bytes.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from pixy.aio.futures import SmallEvent


class Queued(Protocol):
    """A caller in the queue."""

    @property
    def client(self) -> str:
        """The client's address."""

    @property
    def next_size(self) -> int:
        """Bytes that it asks for, 0 if it does not any more."""

    def admit_next(self, *, admitted: bool) -> None:
        """Leave the queue; if `admitted`, with the bytes."""


class QueuedCaller:
    """A coroutine in the queue.

    Attributes:
        turn: set when it leaves the queue.
        is_admitted: True once it has what it asks for.
    """

    __slots__ = ("client", "is_admitted", "next_size", "turn")

    def __init__(self, client: str, size: int) -> None:
        self.client = client
        self.next_size = size
        self.is_admitted = False
        self.turn = SmallEvent()

    def admit_next(self, *, admitted: bool) -> None:
        """See `Queued`."""
        self.is_admitted = admitted
        self.turn.set()


class AddressQuota:
    """Bounds the bytes of all callers.

    Args:
        size: bytes that are acquired. More are acquired by a caller that is alone.
        share: bytes of one client address, likewise.

    Attributes:
        acquired: bytes that callers have acquired.
    """

    __slots__ = ("_acquired_by", "_full", "_queues", "_share", "_size", "acquired")

    def __init__(self, size: int, share: int) -> None:
        self._size = size
        self._share = share
        # Invariant: acquired is the sum of the values; none is 0.
        self.acquired = 0
        self._acquired_by: Counter[str] = Counter()
        # Callers by address in the order of its turns; none is empty.
        self._queues: dict[str, OrderedDict[Queued, None]] = {}
        # The first caller whose address has a share left does not fit. Nobody overtakes it.
        self._full = False

    def available(self, client: str, size: int) -> bool:
        """True if `maybe_acquire` would acquire bytes."""
        return (
            client not in self._queues
            and not self._full
            and self._fits_share(client, size)
            and self._fits(size)
        )

    def maybe_acquire(self, caller: Queued, size: int) -> bool:
        """Acquire bytes; False if the caller has to queue, and `Queued.admit_next` follows."""
        client = caller.client
        if client not in self._queues and not self._full and self._fits_share(client, size):
            if self._fits(size):
                self._acquire(client, size)
                return True
            self._full = True
        self._queues.setdefault(client, OrderedDict())[caller] = None
        return False

    def withdraw(self, caller: Queued) -> None:
        """Have a caller leave the queue, if it is there, and admit those that waited behind it."""
        queue = self._queues.get(caller.client)
        if queue is None or caller not in queue:
            return
        was_first = next(iter(queue)) is caller
        del queue[caller]
        if not queue:
            del self._queues[caller.client]
        if was_first:
            self._admit()

    def release(self, client: str, size: int) -> None:
        """Release bytes of an address, and admit callers that fit now."""
        self.acquired -= size
        self._acquired_by[client] -= size
        if not self._acquired_by[client]:
            del self._acquired_by[client]
        self._admit()

    def is_wanted(self, client: str) -> bool:
        """True if callers wait for what a client address has acquired."""
        return self._full or client in self._queues

    def _admit(self) -> None:
        self._full = False
        while (admitted := self._take_next()) is not None:
            caller, next_size = admitted
            caller.admit_next(admitted=bool(next_size))

    def _take_next(self) -> tuple[Queued, int] | None:
        """The next caller to leave the queue, with its acquired bytes; 0 if it asks for none any
        more.
        """
        for client, queue in self._queues.items():
            size = next(iter(queue)).next_size
            if size and not self._fits_share(client, size):
                continue
            if size and not self._fits(size):
                self._full = True
                return None
            caller, _ = queue.popitem(last=False)
            # The address has its next turn after all others.
            del self._queues[client]
            if queue:
                self._queues[client] = queue
            if size:
                self._acquire(client, size)
            return caller, size
        return None

    def _acquire(self, client: str, size: int) -> None:
        self.acquired += size
        self._acquired_by[client] += size

    def _fits(self, size: int) -> bool:
        return not self.acquired or self.acquired + size <= self._size

    def _fits_share(self, client: str, size: int) -> bool:
        acquired = self._acquired_by.get(client, 0)
        return not acquired or acquired + size <= self._share


class AddressSemaphore:
    """A quota for coroutines.

    Attributes:
        queued: bytes that queued callers ask for.
    """

    __slots__ = ("_queued_by", "_quota", "queued")

    def __init__(self, size: int, share: int) -> None:
        self._quota = AddressQuota(size, share)
        self.queued = 0
        # Invariant: queued is the sum of the values; none is 0.
        self._queued_by: Counter[str] = Counter()

    @property
    def acquired(self) -> int:
        """Bytes that callers have acquired."""
        return self._quota.acquired

    def queued_by(self, client: str) -> int:
        """Bytes that queued callers of an address ask for."""
        return self._queued_by.get(client, 0)

    def available(self, client: str, size: int) -> bool:
        """True if `acquire` would not suspend."""
        return self._quota.available(client, size)

    def acquire_nowait(self, client: str, size: int) -> None:
        """Acquire bytes that are `available`."""
        admitted = self._quota.maybe_acquire(QueuedCaller(client, size), size)
        assert admitted, f"{size} bytes for {client} are not available"

    @asynccontextmanager
    async def holding(self, client: str, size: int) -> AsyncIterator[None]:
        """Acquire bytes, and release them at the end of the `with` block."""
        await self.acquire(client, size)
        try:
            yield
        finally:
            self.release(client, size)

    async def acquire(self, client: str, size: int) -> None:
        """Acquire bytes; 0 is acquired at once."""
        if not size:
            return
        waiting = QueuedCaller(client, size)
        if self._quota.maybe_acquire(waiting, size):
            return
        self._count(client, size)
        try:
            await waiting.turn.wait()
        except asyncio.CancelledError:
            if waiting.is_admitted:
                self._quota.release(client, size)
            else:
                self._quota.withdraw(waiting)
            raise
        finally:
            self._count(client, -size)

    def release(self, client: str, size: int) -> None:
        """Release bytes that were acquired."""
        self._quota.release(client, size)

    def _count(self, client: str, size: int) -> None:
        self.queued += size
        self._queued_by[client] += size
        if not self._queued_by[client]:
            del self._queued_by[client]

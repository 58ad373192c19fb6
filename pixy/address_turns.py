"""One piece of work at a time for each client address, in the order of its calls.

So the clients of one address have one piece in front of those of others, however many they ask for,
and one that nobody waits for any more is never begun.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pixy.byte_semaphore import ByteSemaphore

__all__ = ["AddressTurns"]


class AddressTurns:
    """The turns of each address."""

    def __init__(self) -> None:
        # Those of addresses that have a turn.
        self._turns: dict[str, ByteSemaphore] = {}

    @asynccontextmanager
    async def holding(self, address: str) -> AsyncIterator[None]:
        """Wait for the turn, and end it at the end of the `with` block."""
        turn = self._turns.setdefault(address, ByteSemaphore(1))
        try:
            async with turn.holding(1):
                yield
        finally:
            if turn.available(1):
                del self._turns[address]

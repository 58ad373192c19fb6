"""What tests of several parts of the gRPC layer need."""

import asyncio
from typing import Any

__all__ = ["NotedReceipt", "wait_until"]


class NotedReceipt:
    """A receipt that keeps what it is told.

    Attributes:
        said: names of the methods that were called, in order.
        spoken: set by the first one.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self.spoken = asyncio.Event()

    def delivered(self) -> None:
        """See `Receipt`."""
        self.said.append("delivered")
        self.spoken.set()

    def undelivered(self) -> None:
        """See `Receipt`."""
        self.said.append("undelivered")
        self.spoken.set()


async def wait_until(condition: Any) -> None:
    """Wait for what nobody tells; the condition takes no arguments."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - these things have no event
            await asyncio.sleep(0.001)

"""What tests of several parts of the gRPC layer need."""

import asyncio

__all__ = ["NotedReceipt"]


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

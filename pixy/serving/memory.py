"""Bound on the memory that all connections hold together: incomplete requests and unread answers.

Each connection is bounded by itself, and large requests are admitted within a quota (`uploads`);
here is the bound on their sum. A connection notes its bytes when they change by some
kilobytes. While all together exceed the limit, those that hold most are evicted: the last resort,
so that an honest client beside them does not pay for them.
"""

import asyncio
from typing import Protocol

from pixy.serving.limit_log import LimitLog

NOTED_BYTES = 4096
"""Smaller changes need not be noted."""
_REMAINING = 15 / 16
"""Part of the limit that remains after evictions, so that each is worth a sort of all holders."""


class Holder(Protocol):
    """A connection."""

    @property
    def peer(self) -> str:
        """The client's address."""

    def evict(self) -> None:
        """End, and hold nothing any more: the server's limit is exceeded, and few hold more."""


class Memory:
    """Bytes that connections hold, in the running event loop.

    Args:
        limit: of all connections together.
        limits: told of evictions.
    """

    __slots__ = ("_held", "_limit", "_limits", "_scheduled", "total")

    def __init__(self, limit: int, limits: LimitLog) -> None:
        self._limit = limit
        self._limits = limits
        # By connection; none is 0. Invariant: total is their sum; evictions are scheduled while it
        # exceeds the limit.
        self._held: dict[Holder, int] = {}
        self.total = 0
        self._scheduled = False

    def note(self, holder: Holder, held: int) -> None:
        """Set the bytes that a connection holds."""
        self.total += held - self._held.pop(holder, 0)
        if held:
            self._held[holder] = held
        if self.total > self._limit and not self._scheduled:
            self._scheduled = True
            # Not inside the work of the connection.
            asyncio.get_running_loop().call_soon(self._evict)

    def _evict(self) -> None:
        self._scheduled = False
        if self.total <= self._limit:
            return
        largest = sorted(self._held.items(), key=lambda entry: entry[1], reverse=True)
        for holder, _ in largest:
            if self.total <= self._limit * _REMAINING:
                break
            self.note(holder, 0)
            holder.evict()
            self._limits.hit("grpc.buffer_bytes", holder.peer)

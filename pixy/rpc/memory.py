"""The bound on what all connections together make the server hold: requests that are not complete, and answers that are not read.

Each connection is bounded by itself, and large requests are admitted only as far as there is room (`uploads`); here is the bound on their
sum. A connection notes what it holds when that changes by some kilobytes. While all together hold more than the limit, those that hold
most are ended: the last resort, because an honest client beside them must not pay for them.
"""

import asyncio
from typing import Protocol

import structlog

__all__ = ["NOTED_BYTES", "Holder", "Memory"]

log = structlog.get_logger(__name__)

NOTED_BYTES = 4096
"""Changes that are smaller need not be noted."""
_RELIEF = 15 / 16
"""Part of the limit to come down to, so that each relief is worth the look at all holders."""


class Holder(Protocol):
    """A connection."""

    @property
    def peer(self) -> str:
        """The client's address."""

    def give_up(self) -> None:
        """End, and hold nothing any more, because the server's limit is reached and few hold more."""


class Memory:
    """Bytes that connections hold, in the running event loop.

    Args:
        limit: bytes of all together.
    """

    __slots__ = ("_held", "_limit", "_scheduled", "total")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # By connection; none is 0. Invariant: total is their sum, and while it exceeds the limit, a relief is scheduled.
        self._held: dict[Holder, int] = {}
        self.total = 0
        self._scheduled = False

    def note(self, holder: Holder, held: int) -> None:
        """A connection holds so many bytes."""
        self.total += held - self._held.pop(holder, 0)
        if held:
            self._held[holder] = held
        if self.total > self._limit and not self._scheduled:
            self._scheduled = True
            # Not inside whatever the connection is at.
            asyncio.get_running_loop().call_soon(self._relieve)

    def _relieve(self) -> None:
        self._scheduled = False
        if self.total <= self._limit:
            return
        largest = sorted(self._held.items(), key=lambda entry: entry[1], reverse=True)
        ended, before = 0, self.total
        for holder, _ in largest:
            if self.total <= self._limit * _RELIEF:
                break
            self.note(holder, 0)
            holder.give_up()
            ended += 1
        log.warning(
            "connections were ended that held most: all together held more than grpc.buffer_bytes",
            ended=ended,
            largest=largest[0][0].peer,
            largest_bytes=largest[0][1],
            held_bytes=before,
            limit_bytes=self._limit,
        )

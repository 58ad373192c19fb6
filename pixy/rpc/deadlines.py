"""When calls end that have a deadline: a heap and two timers for all connections.

Most calls are over in a few milliseconds, long before their deadline. So nothing is noted of a call when it begins but that its
connection has one. Every `GRAIN_S` such connections are asked which calls of theirs are still running, and those go into the heap. Nobody
takes a call out when it ends.

A deadline is never early. It is late by what the event loop is, by a millisecond of its timers, and by `GRAIN_S` if it comes before its
connection is asked.

The roads not taken: a heap for every call costs as much as the decoding of its header block, and a list of all that have begun a third of
that.
"""

import asyncio
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from pixy.clock import Clock

__all__ = ["GRAIN_S", "Deadlines", "HasCalls", "HasDeadline"]

GRAIN_S = 0.004
_TIMER_S_MIN = 0.001
"""The loop's timers count milliseconds: one that fired early and was set for less would fire again and again."""
_STALE_MAX = 64


class HasDeadline(Protocol):
    """A call. `running` until it has ended; `deadline` in seconds on the clock, which never changes."""

    running: bool
    deadline: float | None

    def deadline_exceeded(self) -> None: ...


class HasCalls(Protocol):
    """A connection."""

    def take_fresh(self) -> Iterable[HasDeadline]:
        """The running calls with a deadline that have begun since this was last asked."""


class Deadlines:
    """The deadlines of all calls of a server.

    Args:
        clock: what they are measured on.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._loop = asyncio.get_running_loop()
        # Connections with calls that are not in the heap. Invariant: while there are any, a timer is set for them.
        self._watched: list[HasCalls] = []
        self._ask_timer: asyncio.TimerHandle | None = None
        # Ascending: deadline, arrival, call. Invariant: every running call with a deadline is here, or of a connection in `_watched`; there
        # are at most `_heap_max`, which is twice as many as were running when those that are over were last thrown out, and some.
        self._heap: list[tuple[float, int, HasDeadline]] = []
        self._heap_max = _STALE_MAX
        self._arrivals = count()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many calls are remembered, running or not."""
        return len(self._heap)

    def watch(self, connection: HasCalls) -> None:
        """`deadline_exceeded` is called at the deadlines of the calls that begin there, or at most `GRAIN_S` later, unless they have ended.

        This holds until the connection is asked for them, once; then it says it anew with the next call.
        """
        self._watched.append(connection)
        if self._ask_timer is None:
            self._ask_timer = self._loop.call_later(GRAIN_S, self._ask)

    def close(self) -> None:
        """Forget everything."""
        self._watched.clear()
        self._heap.clear()
        for timer in (self._ask_timer, self._timer):
            if timer is not None:
                timer.cancel()

    def _ask(self) -> None:
        watched, self._watched = self._watched, []
        self._ask_timer = None
        heap = self._heap
        for connection in watched:
            for call in connection.take_fresh():
                assert call.deadline is not None
                heappush(heap, (call.deadline, next(self._arrivals), call))
        if len(heap) > self._heap_max:
            heap[:] = [entry for entry in heap if entry[2].running]
            heapify(heap)
            self._heap_max = 2 * len(heap) + _STALE_MAX
        self._fire()

    def _fire(self) -> None:
        """End the calls whose deadline has come, and wait for the next one."""
        heap, now = self._heap, self._monotonic()
        while heap and (heap[0][0] <= now or not heap[0][2].running):
            call = heappop(heap)[2]
            if call.running:
                call.deadline_exceeded()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if heap:
            self._timer = self._loop.call_later(max(heap[0][0] - now, _TIMER_S_MIN), self._fire)

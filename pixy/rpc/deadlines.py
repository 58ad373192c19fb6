"""Deadlines of calls: one heap and two timers for all connections.

Most calls are over in a few milliseconds, long before their deadline. So the beginning of a call
only notes that its connection has one. Every `GRAIN_S` such connections are asked for the calls
that still run, and those go into the heap. A call that ends is not taken out.

A deadline is never early. It is late by the delay of the event loop, by a millisecond of its
timers, and by `GRAIN_S` if it comes before its connection is asked.

The roads not taken: to put every call into the heap costs as much as decoding its header block, and
to list all that have begun a third of that.
"""

import asyncio
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from pixy.clock import Clock

GRAIN_S = 0.004
_TIMER_S_MIN = 0.001
"""The loop's timers count milliseconds: one that fired early would spin if set again for less."""
_STALE_MAX = 64


class HasDeadline(Protocol):
    """A call: `running` until its end, with a constant `deadline` in seconds on the clock."""

    running: bool

    @property
    def deadline(self) -> float | None: ...

    def deadline_exceeded(self) -> None: ...


class HasCalls(Protocol):
    """A connection."""

    def take_new_calls(self) -> Iterable[HasDeadline]:
        """Running calls with a deadline that have begun since the last call of this."""


class Deadlines:
    """Deadlines of all calls of a server.

    Args:
        clock: on which they are measured.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._loop = asyncio.get_running_loop()
        # Connections with calls that are not in the heap. Invariant: a timer is set while there are
        # any.
        self._watched: list[HasCalls] = []
        self._ask_timer: asyncio.TimerHandle | None = None
        # Heap of (deadline, arrival, call). Invariant: every running call with a deadline is in it,
        # or of a connection in `_watched`. It has at most `_heap_max` members: twice as many as
        # were running when ended calls were last removed, and `_STALE_MAX`.
        self._heap: list[tuple[float, int, HasDeadline]] = []
        self._heap_max = _STALE_MAX
        self._arrivals = count()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Number of calls in the heap, running or not."""
        return len(self._heap)

    def watch(self, connection: HasCalls) -> None:
        """Ask a connection for new calls within `GRAIN_S`, and end those that reach their deadline.

        The connection is asked once, and calls this again with its next call.
        """
        self._watched.append(connection)
        if self._ask_timer is None:
            self._ask_timer = self._loop.call_later(GRAIN_S, self._ask)

    def close(self) -> None:
        """Forget all calls."""
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
            for call in connection.take_new_calls():
                assert call.deadline is not None
                heappush(heap, (call.deadline, next(self._arrivals), call))
        if len(heap) > self._heap_max:
            heap[:] = [entry for entry in heap if entry[2].running]
            heapify(heap)
            self._heap_max = 2 * len(heap) + _STALE_MAX
        self._fire()

    def _fire(self) -> None:
        """End the calls whose deadline has come, and set the timer for the next one."""
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

"""When calls end that have a deadline: one list, one heap and two timers for all connections.

Most calls are over in a few milliseconds, long before their deadline. So a call is noted in a list, which costs next to nothing, and the
list is looked through every `GRAIN_S`: calls that are over are dropped, the others go into the heap of those that take longer. Nobody
takes a call out when it ends.

A deadline is never early. It is late by what the event loop is, by a millisecond of its timers, and by `GRAIN_S` if it comes while its call
is still in the list.

The road not taken: a heap for every call costs as much as the decoding of its header block.
"""

import asyncio
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from pixy.clock import Clock

__all__ = ["GRAIN_S", "Deadlines", "HasDeadline"]

GRAIN_S = 0.004
_TIMER_S_MIN = 0.001
"""The loop's timers count milliseconds: one that fired early and was set for less would fire again and again."""
_STALE_MAX = 64


class HasDeadline(Protocol):
    """A call. `running` until it has ended; `deadline` in seconds on the clock, which never changes."""

    running: bool
    deadline: float | None

    def deadline_exceeded(self) -> None: ...


class Deadlines:
    """The deadlines of all calls of a server.

    Args:
        clock: what they are measured on.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._loop = asyncio.get_running_loop()
        # Calls that came since the list was last looked through. Invariant: while there are any, a timer is set for that.
        self._fresh: list[HasDeadline] = []
        self._sift_timer: asyncio.TimerHandle | None = None
        # Ascending: deadline, arrival, call. Invariant: every running call that was added is here or in `_fresh`; there are at most
        # `_heap_max`, which is twice as many as were running when those that are over were last thrown out, and some.
        self._heap: list[tuple[float, int, HasDeadline]] = []
        self._heap_max = _STALE_MAX
        self._arrivals = count()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many calls are remembered, running or not."""
        return len(self._fresh) + len(self._heap)

    def add(self, call: HasDeadline) -> None:
        """`call.deadline_exceeded` is called at its deadline, or at most `GRAIN_S` later, unless it has ended by then."""
        self._fresh.append(call)
        if self._sift_timer is None:
            self._sift_timer = self._loop.call_later(GRAIN_S, self._sift)

    def close(self) -> None:
        """Forget everything."""
        self._fresh.clear()
        self._heap.clear()
        for timer in (self._sift_timer, self._timer):
            if timer is not None:
                timer.cancel()

    def _sift(self) -> None:
        fresh, self._fresh = self._fresh, []
        self._sift_timer = None
        heap = self._heap
        for call in fresh:
            if call.running:
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

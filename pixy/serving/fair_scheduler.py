"""Fair scheduler: how the connections of one server share the event loop.

A connection that uses less than its share is served as soon as its bytes arrive. Connections that
have used up their share have a quantum of one millisecond together in each iteration of the loop.
While it lasts, they too are served on arrival; afterwards they queue, and the queue is served round
robin, one slice of work each. So a client with an occasional call waits for at most one quantum of
the others, however much these have sent, and busy clients share the rest evenly.

A share is a credit in seconds that accrues with time, at `SHARE` of the loop, up to `CREDIT_S`.
Charges are measured time, so they cover whatever a connection makes the server do: frames, header
blocks, handlers, decompression. Debt is bounded too, because the clock does not stop while the
machine does something else. A new connection starts in debt: otherwise a client that opens one
connection after another would never queue.

The road not taken: one queue for everybody. It would put a step between each read and its answers,
which connections within their share do not need.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

SHARE = 0.1
"""Part of the event loop that a connection may use without ever queueing."""
CREDIT_S = 0.001
"""Largest credit, and largest debt, of a connection."""
QUANTUM_S = 0.001
"""Time of the queue in one iteration of the loop; the last slice may exceed it."""


class Schedulable(Protocol):
    """A connection with work to do."""

    def run_slice(self) -> bool:
        """Do one slice of work; returns True if more can be done."""

    def hold_back(self) -> None:
        """The work continues in a later iteration: accept no more input."""


class FairScheduler:
    """The queue of a server's connections, in the running event loop.

    Args:
        monotonic: seconds of a clock.
    """

    __slots__ = ("_fresh", "_loop", "_monotonic", "_queue", "_scheduled", "_spent_s", "has_time")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        # An iteration is scheduled. Invariant: true while the queue has members, or time was
        # charged.
        self._scheduled = False
        # Time charged in this iteration; while it is below the quantum, connections without credit
        # are served on arrival.
        self._spent_s = 0.0
        self.has_time = True
        # Invariant: no member is in it twice.
        self._queue: deque[Schedulable] = deque()
        # Members that have joined since the last iteration.
        self._fresh: list[Schedulable] = []

    def charge(self, seconds: float) -> None:
        """Charge work that a connection without credit has done outside the queue."""
        self._spent_s += seconds
        if self._spent_s >= QUANTUM_S:
            self.has_time = False
        self._schedule()

    def enqueue(self, member: Schedulable) -> None:
        """Append a member that is not in the queue."""
        self.has_time = False
        self._queue.append(member)
        self._fresh.append(member)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._iterate)

    def _iterate(self) -> None:
        queue = self._queue
        # The head is served even if charges have used up the quantum.
        until = self._monotonic() + QUANTUM_S - self._spent_s
        self._scheduled, self._spent_s = False, 0.0
        while queue:
            member = queue[0]
            more = member.run_slice()
            # It stays at the head meanwhile, so that new members queue behind it.
            queue.popleft()
            if more:
                queue.append(member)
            if self._monotonic() >= until:
                break
        self.has_time = not queue
        if queue:
            self._schedule()
            for member in self._fresh:
                member.hold_back()
        self._fresh.clear()

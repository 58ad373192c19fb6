"""Whose turn it is: how the connections of a server share the event loop.

Who uses little of it is served when its bytes come. Those who have used up their share have a millisecond in each turn of the loop
together. As long as it lasts they are served when their bytes come, too; then they wait in line, which is served a slice of work each,
round and round. So a client with a call now and then waits for one millisecond of the others, however much these have sent, and those
who send much share what is left evenly.

A share is a credit in seconds that fills with time, at `SHARE` of the loop, up to `CREDIT_S`. What is charged is time that was measured,
so it holds for whatever a connection makes the server do: frames, header blocks, handlers, unpacking. A debt is bounded too, because
the clock does not stop when the machine does something else. A new connection begins in debt, or who opens one after the other would
never stand in line.

The road not taken: a line for everybody. It would put a step between each read and its answers, and calm clients have no use for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

__all__ = ["CREDIT_S", "SHARE", "TURN_S", "Turns", "Worker"]

SHARE = 0.1
"""Of the event loop: who uses less never waits in line."""
CREDIT_S = 0.001
"""The most that a connection can have used less or more than its share."""
TURN_S = 0.001
"""What the line gets in one turn of the loop, besides the slice that goes beyond it."""


class Worker(Protocol):
    """A connection with work to do."""

    def work(self) -> bool:
        """Do a slice of it; returns whether there is more and nothing keeps it from that."""

    def hold_back(self) -> None:
        """Its work goes on in a later turn: bring no more of it."""


class Turns:
    """The line of a server's connections, in the running event loop.

    Args:
        monotonic: seconds of a clock.
    """

    __slots__ = ("_fresh", "_line", "_loop", "_monotonic", "_scheduled", "_spent_s", "free")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        # Whether a turn is sure to come. Invariant: it is as long as somebody is in line, or something was charged.
        self._scheduled = False
        # What was charged in this turn of the loop, and whether somebody without credit may be served in it when its bytes come.
        self._spent_s = 0.0
        self.free = True
        # Nobody is in it twice.
        self._line: deque[Worker] = deque()
        # Who came since the last turn.
        self._fresh: list[Worker] = []

    def charge(self, seconds: float) -> None:
        """Somebody without credit was served out of line."""
        self._spent_s += seconds
        if self._spent_s >= TURN_S:
            self.free = False
        self._schedule()

    def wait(self, worker: Worker) -> None:
        """Stand in line."""
        self.free = False
        self._line.append(worker)
        self._fresh.append(worker)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        line = self._line
        # Of the millisecond, what was charged before is gone. Whoever is in front is served in any case.
        until = self._monotonic() + TURN_S - self._spent_s
        self._scheduled, self._spent_s = False, 0.0
        while line:
            worker = line[0]
            more = worker.work()
            # It was in front meanwhile, and who came is behind it.
            line.popleft()
            if more:
                line.append(worker)
            if self._monotonic() >= until:
                break
        self.free = not line
        if line:
            self._schedule()
            for worker in self._fresh:
                worker.hold_back()
        self._fresh.clear()

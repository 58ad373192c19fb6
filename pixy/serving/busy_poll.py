"""Busy polling: the event loop looks for the next request of a client that sends one after the
other, instead of waiting for it.

An idle core is halted, and to wake it takes longer than to serve a lone request, above all in a
virtual machine. The time that is spent on it is bounded: the more polls find nothing, the fewer
answers are followed by one.
"""

import asyncio

POLLS = 64
"""Iterations of the loop, about 0.1 ms: the time from an answer to the next request of a client
whose core was halted.
"""
PAUSE_MAX = 255
"""Most answers in a row that no poll follows."""


class BusyPoll:
    """Polls of one server in the running event loop.

    Attributes:
        active: the loop polls now.
    """

    __slots__ = ("_left", "_loop", "_pause", "_skipped", "active")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.active = False
        # Iterations left.
        self._left = 0
        # Answers that no poll follows: after the last vain poll, and still.
        self._pause = 0
        self._skipped = 0

    def answered(self) -> None:
        """Poll, now that a lone connection was answered."""
        if self._skipped:
            self._skipped -= 1
            return
        self._left = POLLS
        if not self.active:
            self.active = True
            self._loop.call_soon(self._poll)

    def found(self) -> None:
        """End a poll, because input has come."""
        self._left = 0
        self._pause //= 2

    def _poll(self) -> None:
        # Whatever is scheduled keeps the loop from waiting.
        if self._left > 1:
            self._left -= 1
            self._loop.call_soon(self._poll)
            return
        self.active = False
        if self._left:
            self._left = 0
            self._skipped = self._pause = min(2 * self._pause + 1, PAUSE_MAX)

"""Time for the shells of this package: a clock, one-shot timers, and a way to sleep on them.

A timer says "not before"; what is due is decided by the clock alone. Tests pass a clock and a `call_later` of their own and
move both by hand.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Protocol

from pixy.clock import Clock

__all__ = ["Alarm", "CallLater", "TimerHandle", "Timers"]


class TimerHandle(Protocol):
    """A timer that was set."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], object]], TimerHandle]
"""Calls back once after so many seconds, as `asyncio.AbstractEventLoop.call_later` does."""


class Timers:
    """The clock, and timers that go with it.

    Args:
        clock: tells the time.
        call_later: None means the running event loop's.
    """

    __slots__ = ("_call_later", "monotonic")

    def __init__(self, clock: Clock, call_later: CallLater | None = None) -> None:
        self.monotonic = clock.monotonic
        self._call_later = call_later

    def call_later(self, seconds: float, callback: Callable[[], object]) -> TimerHandle:
        """Call back once, not before `seconds` have passed."""
        if self._call_later is None:
            return asyncio.get_running_loop().call_later(seconds, callback)
        return self._call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        """Suspend for `seconds`."""
        await self.wait(asyncio.Event(), seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Suspend until `event` is set; after `seconds` this sets it."""
        handle = self.call_later(max(seconds, 0.0), event.set)
        try:
            await event.wait()
        finally:
            handle.cancel()


class Alarm:
    """One timer that is set to the earliest of the times asked for, and calls back when that comes."""

    __slots__ = ("_callback", "_handle", "_timers", "when")

    def __init__(self, timers: Timers, callback: Callable[[float], None]) -> None:
        self._timers = timers
        self._callback = callback
        self._handle: TimerHandle | None = None
        # When it goes off. Invariant: infinite exactly while it is not set.
        self.when = inf

    def at(self, when: float) -> None:
        """Go off at `when`, unless it is set to go off before that."""
        if when >= self.when:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.when = when
        self._handle = self._timers.call_later(max(when - self._timers.monotonic(), 0.0), self._go_off)

    def cancel(self) -> None:
        """Do not go off."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None
        self.when = inf

    def _go_off(self) -> None:
        self._handle = None
        self.when = inf
        self._callback(self._timers.monotonic())

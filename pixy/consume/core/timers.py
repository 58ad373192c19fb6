"""Clock, one-shot timers and sleeping, as a constructor argument of this package.

A timer fires no earlier than its time; the clock alone decides what is due. Tests pass a clock and
a `call_later` that they advance themselves.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from math import inf
from types import MethodType
from typing import Any, Protocol

from pixy.aio.futures import SmallEvent
from pixy.clock import Clock


class TimerHandle(Protocol):
    """A scheduled timer."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], object]], TimerHandle]
"""Calls back once after a number of seconds, like `asyncio.AbstractEventLoop.call_later`."""


class Timers:
    """A clock and its timers.

    Args:
        clock: the time.
        call_later: schedules a timer; None means the running event loop's.

    Attributes:
        context: of all timers, and of callbacks of which thousands wait.
    """

    __slots__ = ("_call_later", "context", "monotonic")

    def __init__(self, clock: Clock, call_later: CallLater | None = None) -> None:
        self.monotonic = clock.monotonic
        self._call_later = call_later
        # One for all: each would have a copy of its own.
        self.context = copy_context()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> TimerHandle:
        """Call back once, not before `seconds` have passed."""
        if self._call_later is None:
            return asyncio.get_running_loop().call_later(seconds, callback, context=self.context)
        return self._call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        """Suspend for `seconds`."""
        await self.wait(SmallEvent(), seconds)

    def wait(self, event: SmallEvent, seconds: float) -> Coroutine[Any, Any, None]:
        """Suspend until `event` is set, which this does itself after `seconds`."""
        return event.wait(self.call_later(max(seconds, 0.0), event.set))


class Alarm:
    """A timer that fires at the earliest of the requested times."""

    __slots__ = ("_function", "_handle", "_owner", "_timers", "when")

    def __init__(self, timers: Timers, callback: Callable[[float], None]) -> None:
        self._timers = timers
        # A method is kept in parts: the whole takes as much memory as the alarm.
        self._owner: object = None
        self._function: Callable[..., object] = callback
        if isinstance(callback, MethodType):
            self._owner, self._function = callback.__self__, callback.__func__
        self._handle: TimerHandle | None = None
        # The time it fires. Invariant: infinite exactly while it is not set.
        self.when = inf

    def at(self, when: float) -> None:
        """Fire at `when`, unless it is set to an earlier time."""
        if when >= self.when:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.when = when
        self._handle = self._timers.call_later(max(when - self._timers.monotonic(), 0.0), self._fire)

    def cancel(self) -> None:
        """Unset the timer."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None
        self.when = inf

    def _fire(self) -> None:
        self._handle = None
        self.when = inf
        now = self._timers.monotonic()
        if self._owner is None:
            self._function(now)
        else:
            self._function(self._owner, now)

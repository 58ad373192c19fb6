"""Time as a constructor argument.

Deadlines, timeouts and ages are measured on the monotonic clock, so that a wall clock that is set back or forward
changes nothing but the timestamps of records. Tests and simulations pass a clock that they move themselves.
"""

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Where the time comes from."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never runs backwards."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump either way."""

    def wall_ns(self) -> int:
        """The same in nanoseconds."""


class SystemClock:
    """The clock of the machine."""

    # Asked for every message: without a function of our own around them, these take half the time.
    monotonic = staticmethod(time.monotonic)
    wall_ns = staticmethod(time.time_ns)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

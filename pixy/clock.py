"""Time as a constructor argument.

Deadlines, timeouts and ages are measured on the monotonic clock, so changes of the wall clock
affect only the timestamps of records. Tests and simulations pass a clock that they advance
themselves.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never runs backwards."""

    def monotonic_ns(self) -> int:
        """The same in nanoseconds."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump either way."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may jump either way."""


class SystemClock:
    """The system's clock."""

    # Called for every message: without a wrapper function these take half the time.
    monotonic = staticmethod(time.monotonic)
    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

"""Simulated time: it advances when a test says so, or with a simulated event loop, and its wall
clock may be wrong.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf, nextafter

EPOCH_MS = 1_700_000_000_000
"""True time when simulated time begins."""


class FakeTimer:
    """A timer of `FakeClock`."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Cancel the timer."""
        self.callback = None


class FakeClock:
    """Monotonic clock, wall clock and timers of a machine.

    The wall clock shows the true time plus an error.
    """

    def __init__(self, *, monotonic: float = 1000.0, wall_ms: int = EPOCH_MS) -> None:
        self._passed = monotonic
        self._loop: asyncio.AbstractEventLoop | None = None
        self._epoch_ms = wall_ms - round(monotonic * 1000)
        # Error of the wall clock from a true time on, oldest first.
        self._errors: list[tuple[int, int]] = [(0, 0)]
        # A heap of due time, number, timer.
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._timers_made = 0

    def follow(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Follow the time of a loop that has just started; None: follow nothing, and advance only
        by `advance`.
        """
        self._passed = self.monotonic()
        self._loop = loop

    def advance(self, seconds: float) -> None:
        """Advance both clocks by `seconds` >= 0, and run the timers that become due."""
        assert seconds >= 0, f"the monotonic clock cannot run backwards by {seconds} s"
        end = self._passed + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heappop(self._timers)
            self._passed = max(self._passed, when)
            if timer.callback is not None:
                timer.callback()
        self._passed = end

    def monotonic(self) -> float:
        """See `Clock`."""
        return self._passed if self._loop is None else self._passed + self._loop.time()

    def monotonic_ns(self) -> int:
        """See `Clock`."""
        return round(self.monotonic() * 1_000_000_000)

    # --- the wall clock --------------------------------------------------------------------------

    def wall_ms(self) -> int:
        """See `Clock`."""
        return self.true_ms() + self._errors[-1][1]

    def wall_ns(self) -> int:
        """See `Clock`."""
        return self.wall_ms() * 1_000_000

    def true_ms(self) -> int:
        """Time that a correct wall clock would show."""
        return self._epoch_ms + round(self.monotonic() * 1000)

    def step_wall(self, ms: int) -> None:
        """Step the wall clock forward, or back if `ms` is negative. No time passes."""
        self.set_wall(self._errors[-1][1] + ms)

    def set_wall(self, error_ms: int) -> None:
        """Set the wall clock to the true time plus an error."""
        self._errors.append((self.true_ms(), error_ms))

    def latest_ms(self, since_ms: int) -> int:
        """Latest time shown by the wall clock since a true time, limited to the true time."""
        ends = [at for at, _ in self._errors[1:]] + [self.true_ms()]
        return max(
            end + min(0, error) for (_, error), end in zip(self._errors, ends, strict=True) if end >= since_ms
        )

    def ahead_ms(self, since_ms: int) -> int:
        """The most that the wall clock was ahead since a true time."""
        ends = [at for at, _ in self._errors[1:]] + [self.true_ms()]
        return max(0, *(error for (_, error), end in zip(self._errors, ends, strict=True) if end >= since_ms))

    # --- timers ----------------------------------------------------------------------------------

    def call_later(self, seconds: float, callback: Callable[[], object]) -> FakeTimer:
        """Schedule a callback; never called before the next `advance`, even without delay."""
        assert self._loop is None, "a loop has timers of its own"
        timer = FakeTimer(callback)
        self._timers_made += 1
        now = self._passed
        when = max(now + seconds, nextafter(now, inf)) if seconds > 0 else now
        heappush(self._timers, (when, self._timers_made, timer))
        return timer

    def drop_timers(self) -> None:
        """Cancel all timers, as the end of their process does."""
        for _, _, timer in self._timers:
            timer.cancel()

    @property
    def timers(self) -> int:
        """Number of pending timers."""
        return sum(timer.callback is not None for _, _, timer in self._timers)

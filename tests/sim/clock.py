"""Time of a simulated machine: it passes with the event loop's, and its wall clock may be wrong."""

import asyncio

__all__ = ["SimulatedClock"]

_EPOCH_MS = 1_700_000_000_000


class SimulatedClock:
    """Both clocks of a machine that outlives its processes.

    `wall_ms` is the true time plus an error, which `step_wall` changes.
    """

    def __init__(self) -> None:
        self._past = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        # The error of the wall clock from a time on, oldest first.
        self._errors: list[tuple[int, int]] = [(0, 0)]

    def follow(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Pass with the time of a loop that has just begun; None: with nothing, and only by `advance`."""
        self._past = self.monotonic()
        self._loop = loop

    def advance(self, seconds: float) -> None:
        """Let time pass in which nobody runs."""
        self._past += seconds

    def step_wall(self, error_ms: int) -> None:
        """Set the wall clock to the true time plus an error."""
        self._errors.append((self.true_ms(), error_ms))

    def monotonic(self) -> float:
        return self._past + (0.0 if self._loop is None else self._loop.time())

    def wall_ms(self) -> int:
        return self.true_ms() + self.error_ms

    def true_ms(self) -> int:
        """What a right wall clock would show."""
        return _EPOCH_MS + round(self.monotonic() * 1000)

    @property
    def error_ms(self) -> int:
        """How far the wall clock is ahead of the true time."""
        return self._errors[-1][1]

    def latest_ms(self, since_ms: int) -> int:
        """The latest time that the wall clock has shown since a true time, never more than was true."""
        ends = [at for at, _ in self._errors[1:]] + [self.true_ms()]
        return max(
            end + min(0, error) for (_, error), end in zip(self._errors, ends, strict=True) if end >= since_ms
        )

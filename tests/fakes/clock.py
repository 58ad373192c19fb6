"""Time that stands still until a test moves it."""

__all__ = ["FakeClock"]


class FakeClock:
    """Both clocks, moved by hand; the wall clock also jumps, either way, as that of a machine does."""

    def __init__(self, *, monotonic: float = 1000.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic = monotonic
        self._wall_ms = wall_ms

    def monotonic(self) -> float:
        return self._monotonic

    def wall_ms(self) -> int:
        return self._wall_ms

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks; `seconds` >= 0."""
        assert seconds >= 0, f"the monotonic clock cannot run backwards by {seconds} s"
        self._monotonic += seconds
        self._wall_ms += round(seconds * 1000)

    def step_wall(self, ms: int) -> None:
        """Set the wall clock forward, or back if `ms` is negative. No time passes."""
        self._wall_ms += ms

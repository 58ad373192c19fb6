"""A node's clock for the age of records: moves forward only when it is sure.

A wall clock that is set forward by mistake for a moment would make every record too old at once. So
the node's time is the wall clock's at its start, advanced by monotonic time; a wall clock that is
ahead of it counts once it has been ahead for an hour.

A wall clock that is behind takes effect at once for records, because new records are stamped with
it and would otherwise look old from the moment they are written. Older records are then kept
longer, and none is lost.
"""

from collections.abc import Callable

import structlog

from pixy.clock import Clock

__all__ = ["NodeTime"]

log = structlog.get_logger(__name__)

_AHEAD_MS = 60_000
_TRUSTED_AFTER_S = 3600.0


class NodeTime:
    """Milliseconds since the Unix epoch.

    Attributes:
        is_certain: False while the clock is far from those of the peers: nothing is to expire.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.is_certain: Callable[[], bool] = _yes
        self._wall_ms = clock.wall_ms()
        self._monotonic = clock.monotonic()
        # Monotonic time since which the wall clock has been ahead, None while it is not.
        self._ahead_since: float | None = None

    def now_ms(self) -> int:
        """Current time; ascending."""
        monotonic, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        now_ms = self._wall_ms + round((monotonic - self._monotonic) * 1000)
        if wall_ms - now_ms < _AHEAD_MS:
            self._ahead_since = None
        elif self._ahead_since is None:
            self._ahead_since = monotonic
            log.warning(
                "the clock of this machine was set forward; if it stays so for an hour, the age of records follows it",
                ahead_s=(wall_ms - now_ms) // 1000,
            )
        elif monotonic - self._ahead_since >= _TRUSTED_AFTER_S:
            self._wall_ms, self._monotonic, self._ahead_since = wall_ms, monotonic, None
            return wall_ms
        return now_ms

    def record_ms(self) -> int:
        """Current time to measure the age of records by: as `now_ms`, but never ahead of the wall
        clock.
        """
        return min(self.now_ms(), self._clock.wall_ms())


def _yes() -> bool:
    """Without peers there is nothing to compare a clock with."""
    return True

"""The delay of the event loop: how late a timer is that is set twice a second."""

import asyncio
from time import monotonic

from pixy.metrics import TIME_BOUNDS, Histogram

_INTERVAL_S = 0.5


class LoopLag:
    """Delays of the running event loop.

    Attributes:
        seconds: the delays.
    """

    def __init__(self) -> None:
        self.seconds = Histogram(TIME_BOUNDS)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_INTERVAL_S, self._look, monotonic() + _INTERVAL_S)

    def stop(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def _look(self, due: float) -> None:
        now = monotonic()
        self.seconds.observe(max(0.0, now - due))
        self._timer = self._loop.call_later(_INTERVAL_S, self._look, now + _INTERVAL_S)

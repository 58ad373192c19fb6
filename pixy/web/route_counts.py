"""Counts of the answers of a route."""

from collections.abc import Callable

from pixy.metrics import TIME_BOUNDS, Histogram

GONE = 499
"""Status of requests whose client has gone before the answer, as nginx counts them."""
_ERRORS = 400
_TIMED = 16
"""One answer of so many is timed, and each of the first ones."""


class RouteCounts:
    """Answers of a route.

    Attributes:
        ended: by status.
        durations: from the request to its answer, of statuses below 400.
    """

    __slots__ = ("durations", "ended")

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}
        self.durations = Histogram(TIME_BOUNDS)

    def count(self, status: int, began: float, monotonic: Callable[[], float]) -> None:
        """Count an answer to a request that began at a time."""
        ended = self.ended
        count = ended[status] = ended.get(status, 0) + 1
        if count % _TIMED and count > _TIMED:
            return
        if status < _ERRORS:
            self.durations.observe(monotonic() - began, 1 if count <= _TIMED else _TIMED)

"""A histogram for the hot path."""

from bisect import bisect_left
from collections.abc import Sequence

TIME_BOUNDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
"""Seconds, of work that should take milliseconds."""
LONG_BOUNDS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
"""Seconds, of work of a client."""
BYTE_BOUNDS = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0)


class Histogram:
    """Counts by bucket, and the sum.

    Args:
        bounds: upper limits of the buckets, ascending, each inclusive; a last one has all beyond.

    Attributes:
        counts: of each bucket, not cumulative.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value; `times` for one that stands for so many."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

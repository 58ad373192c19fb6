"""Metrics: what is counted, its names, and its text for Prometheus.

    buckets       a histogram on the hot path: integers in a list
    families      every metric with its type, unit, labels and help
    registry      where the samples of each family come from
    text          the exposition, in pieces
    top           the names that have series of their own; the rest is `other`

Parts of the daemon count with plain integers and with `Histogram`; nobody calls a library, takes a
lock or makes an object for an event. A scrape reads these numbers. The road not taken: the client
library of Prometheus. An increment of it takes ten times as long, and it makes the text of a scrape
in one piece, which holds the event loop for a third of a second where there are many partitions.
"""

from pixy.metrics.buckets import BYTE_BOUNDS, LONG_BOUNDS, TIME_BOUNDS, Histogram
from pixy.metrics.registry import Registry, Sample
from pixy.metrics.text import CONTENT_TYPES, Exposition, Format, accepts_gzip, accepts_openmetrics
from pixy.metrics.top import OTHER, TopCounts, largest

__all__ = [
    "BYTE_BOUNDS",
    "CONTENT_TYPES",
    "LONG_BOUNDS",
    "OTHER",
    "TIME_BOUNDS",
    "Exposition",
    "Format",
    "Histogram",
    "Registry",
    "Sample",
    "TopCounts",
    "accepts_gzip",
    "accepts_openmetrics",
    "largest",
]

"""Consumer groups of this process: subscriptions, rebalances, and the calls of other nodes."""

from pixy.consume.group.consumers import NEWEST, OLDEST, Consumers

__all__ = [
    "NEWEST",
    "OLDEST",
    "Consumers",
]

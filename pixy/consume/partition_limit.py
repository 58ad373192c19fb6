"""The limit of partitions that the consumer groups of one proxy consume at a time. Pure.

A subscription counts with the partitions that its topic has when it begins, so one that does not
fit is refused at once. A topic may grow, or be made again with more partitions, while it is
consumed. So a partition counts when it becomes live too, and waits if it does not fit: what is live
already goes on.

A lone subscription may have any number: what is in the log can be read.
"""

from collections.abc import Hashable

from pixy.errors import TooManyRequests

__all__ = ["PartitionLimit"]


class PartitionLimit:
    """Counts of partitions by subscription.

    Args:
        allowed: partitions of all subscriptions together.
    """

    __slots__ = ("_allowed", "_counts", "_sum")

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        # Invariant: `_sum` is their sum.
        self._counts: dict[Hashable, int] = {}
        self._sum = 0

    def check(self, topic: str, partitions: int) -> None:
        """Check that a further subscription fits.

        Raises:
            TooManyRequests: it has too many partitions.
        """
        if self._sum and self._sum + partitions > self._allowed:
            raise self.exceeded(topic, partitions)

    def count(self, subscription: Hashable, wanted: int) -> int:
        """Count a subscription with so many partitions, or as many as are allowed; never fewer than
        before.

        Returns:
            The number that it is counted with, which is below `wanted` if no more are allowed.
        """
        before = self._counts.get(subscription, 0)
        others = self._sum - before
        counted = wanted if not others else min(wanted, self._allowed - others)
        counted = max(counted, before)
        self._counts[subscription] = counted
        self._sum = others + counted
        return counted

    def release(self, subscription: Hashable) -> None:
        """A subscription has ended."""
        self._sum -= self._counts.pop(subscription, 0)

    def exceeded(self, topic: str, partitions: int) -> TooManyRequests:
        """The error of a topic with too many partitions."""
        return TooManyRequests(
            f"Too many requests. Consider increasing `consumer.max_partitions`: {topic} has {partitions} partitions, and "
            f"{self._sum} of at most {self._allowed} are consumed here, each counted per consumer group, already"
        ).at_limit("consumer.max_partitions")

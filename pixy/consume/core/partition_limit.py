"""The limit of partitions that the consumer groups of one proxy consume at a time. Pure.

A subscription counts with the partitions that its topic has when it begins, so one that does not
fit is refused at once. A topic may grow, or be made again with more partitions, while it is
consumed. So a partition counts when it becomes live too, and waits if it does not fit: what is live
already goes on.

A lone subscription may have any number: what is in the log can be read. Clients of one address have
a share of the limit, in which a subscription counts for the address that began it; its lone
subscription may have more than the share.
"""

from collections import Counter
from collections.abc import Hashable

from pixy.client_address import share_of
from pixy.errors import TooManyRequests


class PartitionLimit:
    """Counts of partitions by subscription.

    Args:
        allowed: partitions of all subscriptions together.
        percent: part of them that the clients of one address may have.
    """

    __slots__ = ("_allowed", "_counts", "_holders", "_share", "_sum", "_sums")

    def __init__(self, allowed: int, percent: int = 100) -> None:
        self._allowed = allowed
        self._share = share_of(allowed, percent)
        # Invariant: `_sum` is their sum, and `_sums` has those of the holders; none is 0.
        self._counts: dict[Hashable, int] = {}
        self._sum = 0
        # The addresses that have begun subscriptions; others have none.
        self._holders: dict[Hashable, str] = {}
        self._sums: Counter[str] = Counter()

    def check(self, topic: str, partitions: int, address: str = "") -> None:
        """Check that a further subscription fits.

        Raises:
            TooManyRequests: it has too many partitions.
        """
        if self._sum and self._sum + partitions > self._allowed:
            raise self._too_many(topic, partitions)
        if self._sums[address] and self._sums[address] + partitions > self._share:
            raise self._share_used_up(topic, partitions, address)

    def begin(self, subscription: Hashable, partitions: int, address: str) -> None:
        """Count a subscription that fits, for the address that begins it, if it has one."""
        if address:
            self._holders[subscription] = address
        self.count(subscription, partitions)

    def count(self, subscription: Hashable, wanted: int) -> int:
        """Count a subscription with so many partitions, or as many as are allowed; never fewer than
        before.

        Returns:
            The number that it is counted with, which is below `wanted` if no more are allowed.
        """
        before = self._counts.get(subscription, 0)
        address = self._holders.get(subscription, "")
        others, counted = self._sum - before, wanted
        if others:
            counted = min(counted, self._allowed - others)
        others_of_address = self._sums[address] - before
        if address and others_of_address:
            counted = min(counted, self._share - others_of_address)
        counted = max(counted, before)
        self._counts[subscription] = counted
        self._sum = others + counted
        if address and counted:
            self._sums[address] = others_of_address + counted
        return counted

    def release(self, subscription: Hashable) -> None:
        """A subscription has ended."""
        counted = self._counts.pop(subscription, 0)
        self._sum -= counted
        address = self._holders.pop(subscription, "")
        if address and counted:
            self._sums[address] -= counted
            if not self._sums[address]:
                del self._sums[address]

    def exceeded(self, subscription: Hashable, topic: str, partitions: int) -> TooManyRequests:
        """The error of a subscription whose topic has more partitions than it is counted with."""
        if self._sum < self._allowed:
            return self._share_used_up(topic, partitions, self._holders.get(subscription, ""))
        return self._too_many(topic, partitions)

    def _too_many(self, topic: str, partitions: int) -> TooManyRequests:
        return TooManyRequests(
            f"Too many requests. Consider increasing `consumer.max_partitions`: {topic} has {partitions} partitions, and "
            f"{self._sum} of at most {self._allowed} are consumed here, each counted per consumer group, already"
        ).at_limit("consumer.max_partitions")

    def _share_used_up(self, topic: str, partitions: int, address: str) -> TooManyRequests:
        return TooManyRequests(
            f"Too many requests. {topic} has {partitions} partitions, and clients of this address consume {self._sums[address]} "
            f"at this node, each counted per consumer group, already: {self._share} are their share (`client_share_percent`) of "
            "`consumer.max_partitions`"
        ).at_limit("client_share_percent of consumer.max_partitions")

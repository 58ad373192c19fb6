"""The limit of acks of clients that wait at a time, of all consumer groups of one proxy. Pure.

Clients of one address have a share of it. Acks that other nodes pass on are not counted: they are
in few calls (`PassingTurns` of those nodes), and count for their clients there.
"""

from collections import Counter

from pixy.client_address import share_of
from pixy.errors import TooManyRequests


class WaitingAckLimit:
    """Number of waiting acks by client address.

    Args:
        allowed: acks of all clients together.
        percent: part of them that the clients of one address may have.

    Attributes:
        waiting: acks of all clients.
    """

    __slots__ = ("_allowed", "_counts", "_share", "waiting")

    def __init__(self, allowed: int, percent: int = 100) -> None:
        self._allowed = allowed
        self._share = share_of(allowed, percent)
        # Invariant: waiting is the sum of the values; none is 0.
        self.waiting = 0
        self._counts: Counter[str] = Counter()

    def take(self, address: str) -> None:
        """Count an ack of an address, "" for none, which has no share.

        Raises:
            TooManyRequests: it may not wait.
        """
        if self.waiting >= self._allowed:
            raise TooManyRequests(
                f"Too many requests. Consider increasing `consumer.max_waiting_acks`: {self.waiting} acks wait for their "
                "partitions already"
            ).at_limit("consumer.max_waiting_acks")
        if address and self._counts[address] >= self._share:
            raise TooManyRequests(
                f"Too many requests. {self._share} acks of clients of this address wait for their partitions already, which is "
                "their share (`client_share_percent`) of `consumer.max_waiting_acks`"
            ).at_limit("client_share_percent of consumer.max_waiting_acks")
        self.waiting += 1
        self._counts[address] += 1

    def release(self, address: str) -> None:
        """An ack of an address waits no more."""
        self.waiting -= 1
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

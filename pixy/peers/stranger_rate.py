"""The rate at which addresses that are no node's may connect, as pure decisions.

A connection costs tasks and a buffer before it has said anything. Whoever only connects, as fast as
it can, would keep the connections of nodes waiting behind its own. So of a second's connections
strangers have a bounded number, and one address half of it; the rest is closed as it is accepted.
"""

from collections import Counter

STRANGERS_PER_S = 400
"""Connections of all addresses that are no node's that are taken in a second."""
_ADDRESS_PER_S = STRANGERS_PER_S // 2


class StrangerRate:
    """Connections of one second; times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._began = float("-inf")
        # Connections that were taken in this second, by address, and of all.
        self._taken: Counter[str] = Counter()
        self._count = 0

    def takes(self, host: str, now: float) -> bool:
        """True if one more connection of an address is taken."""
        if now - self._began >= 1.0:
            self._began = now
            self._taken.clear()
            self._count = 0
        if self._count >= STRANGERS_PER_S or self._taken[host] >= _ADDRESS_PER_S:
            return False
        self._taken[host] += 1
        self._count += 1
        return True

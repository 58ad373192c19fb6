"""Bound on the ranges of running Fetch calls, which stay in memory while a call waits for records.

The first range of a call is not counted: it costs no more than the call.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pixy.client_address import client_address, share_of
from pixy.errors import ResourceExhausted

_RANGES_MAX = 200_000
"""About 60 MB with the requests."""
_LIMIT = "ranges of running Fetch calls"


class FetchRanges:
    """Ranges of the running Fetch calls of one cluster.

    Args:
        client_share_percent: part of them that the clients of one address may have.
        limit: of all of them.
    """

    def __init__(self, client_share_percent: int = 100, limit: int = _RANGES_MAX) -> None:
        self._limit = limit
        self._share = share_of(limit, client_share_percent)
        # Invariant: running is the sum of the values; none is 0.
        self.running = 0
        self._by_client: Counter[str] = Counter()

    @contextmanager
    def holding(self, ranges: int, peer: str) -> Iterator[None]:
        """Count the ranges of a call while it runs.

        Args:
            ranges: their number.
            peer: the client's address.

        Raises:
            ResourceExhausted: there are too many.
        """
        if ranges <= 1:
            yield
            return
        more, client = ranges - 1, client_address(peer)
        self._check(more, client)
        self._count(more, client)
        try:
            yield
        finally:
            self._count(-more, client)

    def _check(self, more: int, client: str) -> None:
        advice = "wait for other calls, or ask for fewer ranges in a call"
        if self.running + more > self._limit:
            raise ResourceExhausted(
                f"running Fetch calls have {self.running} ranges behind their first, {more} more exceed {self._limit}: {advice}"
            ).at_limit(_LIMIT)
        running = self._by_client[client]
        if running + more > self._share:
            raise ResourceExhausted(
                f"running Fetch calls of clients of this address have {running} ranges behind their first, {more} more exceed "
                f"{self._share}, their share (`client_share_percent`) of {self._limit}: {advice}"
            ).at_limit(f"client_share_percent of {_LIMIT}")

    def _count(self, more: int, client: str) -> None:
        self.running += more
        self._by_client[client] += more
        if not self._by_client[client]:
            del self._by_client[client]

"""Shares of a limit by client address, so that the clients of one cannot shut out all others."""

from collections import Counter
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from pixy.client_address import client_address, share_of

K = TypeVar("K", bound=Hashable)


class Client(Protocol):
    """The caller of a request, who is asked for its address only when something is counted."""

    @property
    def peer(self) -> str:
        """See `client_address`."""


def address_of(client: Client | None) -> str:
    """The address that a client counts as, "" for a caller without one: another node."""
    return "" if client is None else client_address(client.peer)


class ClientShares(Generic[K]):
    """Counts of one limit by client address.

    Args:
        limit: of all clients together.
        percent: part of it that one address may have.
    """

    def __init__(self, limit: int, percent: int) -> None:
        self.share = share_of(limit, percent)
        # Invariant: the counts are those of the values; none is 0.
        self._holders: dict[K, str] = {}
        self._counts: Counter[str] = Counter()

    def is_used_up(self, address: str) -> bool:
        """True if an address may have no more; callers without one always may."""
        return bool(address) and self._counts[address] >= self.share

    def take(self, key: K, address: str) -> None:
        """Count something for an address."""
        if address:
            self._holders[key] = address
            self._counts[address] += 1

    def release(self, key: K) -> None:
        """Something is gone."""
        address = self._holders.pop(key, "")
        if address:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

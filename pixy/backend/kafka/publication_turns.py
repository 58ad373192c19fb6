"""Publications of the clients of a Kafka cluster, shared by client addresses.

    in progress    `PUBLICATIONS_MAX`; further ones are refused
    prepared       8: they ask Kafka for the sink's epoch, become its publisher, look at the stages
    sending        4: they look at their topics, and their transaction is open

An address has its share of each, and addresses take turns; those of an address are prepared and
send in FIFO order. Two limits, because a publication sends for minutes, and one that was published
before only asks for its epoch. A sink has one publication at a time; the others wait before all
that.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

from pixy.aio.address_quota import AddressSemaphore
from pixy.client_address import share_of
from pixy.errors import Unavailable
from pixy.staging import PUBLICATIONS_MAX

_PREPARED_AT_ONCE = 8
"""Half of the short requests that a broker has at a time: see `client`."""
_SENDING_AT_ONCE = 4


class PublicationTurns:
    """The publications of one cluster.

    Args:
        client_share_percent: part of each limit that the clients of one address may have.
    """

    def __init__(self, client_share_percent: int) -> None:
        self._percent = client_share_percent
        self._in_progress: Counter[str] = Counter()
        self._prepared = self._semaphore(_PREPARED_AT_ONCE)
        self._sending = self._semaphore(_SENDING_AT_ONCE)
        # Sinks with publications, and how many. Invariant: the same keys.
        self._locks: dict[str, asyncio.Lock] = {}
        self._of_sink: Counter[str] = Counter()

    def _semaphore(self, size: int) -> AddressSemaphore:
        return AddressSemaphore(size, share_of(size, self._percent))

    @contextmanager
    def in_progress(self, address: str) -> Iterator[None]:
        """Count a publication.

        Raises:
            Unavailable: there are too many, or the address has its share.
        """
        if self._in_progress.total() >= PUBLICATIONS_MAX:
            raise Unavailable(f"{PUBLICATIONS_MAX} publications are in progress; try again").at_limit(
                "unfinished publications"
            )
        if self._in_progress[address] >= share_of(PUBLICATIONS_MAX, self._percent):
            raise Unavailable(
                f"{self._in_progress[address]} publications of clients of this address are in progress, their share "
                f"(`client_share_percent`) of {PUBLICATIONS_MAX}; try again"
            ).at_limit("client_share_percent of unfinished publications")
        self._in_progress[address] += 1
        try:
            yield
        finally:
            self._in_progress[address] -= 1
            if not self._in_progress[address]:
                del self._in_progress[address]

    @asynccontextmanager
    async def of_sink(self, sink_id: str) -> AsyncIterator[None]:
        """Wait until no other publication of the sink is under way."""
        lock = self._locks.setdefault(sink_id, asyncio.Lock())
        self._of_sink[sink_id] += 1
        try:
            async with lock:
                yield
        finally:
            self._of_sink[sink_id] -= 1
            if not self._of_sink[sink_id]:
                del self._of_sink[sink_id], self._locks[sink_id]

    def preparing(self, address: str) -> AbstractAsyncContextManager[None]:
        """Wait to be prepared; for an `async with` block."""
        return self._prepared.holding(address, 1)

    def sending(self, address: str) -> AbstractAsyncContextManager[None]:
        """Wait to send; for an `async with` block."""
        return self._sending.holding(address, 1)

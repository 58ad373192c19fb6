"""Who gets the next record of a topic: consume requests meet partitions that have something to offer.

Owns, for one (consumer group, topic): the requests that wait, first come first served, and the partitions that are ready, in
turn. Pure: time comes in as `now`; the one thing it calls is a request's own callback.

- A request that finds something ready is answered on the spot. It leaves no trace: no task, no future, no timer.
- Requests wait in an `OrderedDict`, where the first is found and any is removed in constant time (`next(iter(dict))` walks over
  all entries deleted at the front). Each ends at the latest one long polling timeout after it came, so their order is also that
  of their limits. Callers that gave less time are in a heap besides; it is rebuilt when most of it is stale.
- A partition is in `_ready` at most once, and goes to the end when it has given a record: round robin without looking at the
  others. One that was put there and has nothing after all is dropped when its turn comes.
- A callback may ask for more, ack, or cancel others. So there is one loop that serves, and whatever happens inside a callback
  only adds to the queues.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from copy import copy
from heapq import heapify, heappop, heappush
from typing import Protocol

from pixy.consume.offer import Offer
from pixy.consume.offers import PartitionOffers
from pixy.errors import LongPollTimeout, PixyError, TooManyRequests

__all__ = ["ConsumeDone", "Dispatcher", "PendingRequest", "Source", "Waiter"]

ConsumeDone = Callable[[Offer | None, PixyError | None], None]
"""Called once: with an offer, or with what kept it from coming."""

_STALE_MAX = 64


class PendingRequest(Protocol):
    """A consume request that waits."""

    def cancel(self) -> None:
        """The caller is gone: it takes no record, and is not called back. Harmless when it was called back already."""


class Source(Protocol):
    """A partition, as far as the dispatcher is concerned. `queued` belongs to the dispatcher."""

    offers: PartitionOffers
    queued: bool

    def take(self) -> Offer | None: ...


class Waiter:
    """A consume request that waits in a dispatcher."""

    __slots__ = ("_waiters", "auto_ack", "deadline", "done", "limit")

    def __init__(
        self,
        waiters: "OrderedDict[Waiter, None]",
        done: ConsumeDone,
        auto_ack: bool,
        limit: float,
        deadline: float,
    ) -> None:
        self._waiters = waiters
        self.done = done
        self.auto_ack = auto_ack
        # When it is answered at the latest. Invariant: ascends with the order of arrival.
        self.limit = limit
        # When it is answered; before the limit if the caller gave less time.
        self.deadline = deadline

    def cancel(self) -> None:
        """Wait no longer, and do not call back."""
        self._waiters.pop(self, None)

    @property
    def waiting(self) -> bool:
        return self in self._waiters


class Dispatcher:
    """Consume requests of one consumer group for one topic.

    Args:
        waiting_max: how many requests may wait.
        poll_timeout: how long one waits, in seconds.
    """

    __slots__ = (
        "_arrivals",
        "_early",
        "_poll_timeout",
        "_ready",
        "_serving",
        "_waiters",
        "_waiting_max",
        "faults",
        "paused",
    )

    def __init__(self, waiting_max: int, poll_timeout: float) -> None:
        self._waiting_max = waiting_max
        self._poll_timeout = poll_timeout
        # Who waits. Invariant: limits ascend; empty whenever something is ready, except while serving or paused.
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        # Those whose caller gave less time: (deadline, arrival, waiter). May hold some that wait no longer.
        self._early: list[tuple[float, int, Waiter]] = []
        self._arrivals = 0
        # Partitions that had something when they were put here. Invariant: exactly those with `queued`.
        self._ready: deque[Source] = deque()
        self._serving = False
        # What keeps records from coming, by who says so: the answer to those who have waited in vain.
        self.faults: dict[object, PixyError] = {}
        # Nothing is handed out. Whoever sets it back calls `resume`.
        self.paused = False

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiters)

    def consume(self, done: ConsumeDone, auto_ack: bool, deadline: float | None, now: float) -> Waiter | None:
        """Answer a request on the spot, or let it wait until `deadline` or the long polling timeout.

        Returns:
            the request if it waits, None if `done` has been called.
        """
        if self._ready and not self._waiters and not self.paused:
            offer = self._next()
            if offer is not None:
                offer.auto_ack = auto_ack
                done(offer, None)
                return None
        if len(self._waiters) >= self._waiting_max:
            done(None, self._too_many())
            return None
        limit = now + self._poll_timeout
        waiter = Waiter(self._waiters, done, auto_ack, limit, limit)
        if deadline is not None and deadline < limit:
            waiter.deadline = deadline
            self._push_early(waiter)
        self._waiters[waiter] = None
        return waiter

    def wake(self, source: Source) -> None:
        """A partition has something to offer."""
        if not source.queued:
            source.queued = True
            self._ready.append(source)
        if self._waiters and not self._serving:
            self._serve()

    def resume(self) -> None:
        """Hand out again what is ready."""
        self.paused = False
        if self._waiters and not self._serving:
            self._serve()

    def next_deadline(self) -> float | None:
        """When to call `expire` at the latest, None while nobody waits. May be early."""
        if not self._waiters:
            self._early.clear()
            return None
        limit = next(iter(self._waiters)).limit
        return min(limit, self._early[0][0]) if self._early else limit

    def expire(self, now: float) -> None:
        """Answer those who have waited long enough."""
        while self._early and self._early[0][0] <= now:
            waiter = heappop(self._early)[2]
            if waiter.waiting:
                self._time_out(waiter)
        while self._waiters:
            waiter = next(iter(self._waiters))
            if waiter.limit > now:
                break
            self._time_out(waiter)

    def fail_all(self, error: PixyError) -> None:
        """Answer everybody who waits with an error."""
        for _ in range(len(self._waiters)):
            if self._waiters:
                waiter, _ = self._waiters.popitem(last=False)
                waiter.done(None, error)

    def _next(self) -> Offer | None:
        """The next offer, in turn."""
        ready = self._ready
        while ready:
            source = ready[0]
            offer = source.take()
            if source.offers.ready:
                assert offer is not None
                ready.rotate(-1)
                return offer
            ready.popleft()
            source.queued = False
            if offer is not None:
                return offer
        return None

    def _serve(self) -> None:
        self._serving = True
        try:
            while self._waiters and not self.paused:
                offer = self._next()
                if offer is None:
                    break
                waiter, _ = self._waiters.popitem(last=False)
                offer.auto_ack = waiter.auto_ack
                waiter.done(offer, None)
        finally:
            self._serving = False

    def _time_out(self, waiter: Waiter) -> None:
        waiter.cancel()
        for fault in self.faults.values():
            # A copy: an exception that is raised again and again gathers tracebacks.
            waiter.done(None, copy(fault))
            return
        waiter.done(None, LongPollTimeout("long polling timeout"))

    def _push_early(self, waiter: Waiter) -> None:
        early = self._early
        if len(early) > 2 * len(self._waiters) + _STALE_MAX:
            early[:] = [entry for entry in early if entry[2].waiting]
            heapify(early)
        self._arrivals += 1
        heappush(early, (waiter.deadline, self._arrivals, waiter))

    def _too_many(self) -> TooManyRequests:
        return TooManyRequests(
            f"Too many requests. Consider increasing `consumer.channel_buffer_size`: {self._waiting_max} requests of this "
            f"consumer group and topic are waiting already"
        )

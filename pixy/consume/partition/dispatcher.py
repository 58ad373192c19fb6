"""Matching of consume requests with ready partitions, for one topic of one consumer group.

Owns the waiting requests, in FIFO order, and the ready partitions, in round-robin order. Pure: time
comes in as `now`; the only calls out are the requests' own callbacks.

- A request that finds a ready partition is answered at once, without a task, future or timer.
- Requests wait in an `OrderedDict`, where the first is found and any is removed in constant time
  (`next(iter(dict))` walks over all entries deleted at the front). Each ends at the latest one long
  polling timeout after its arrival, so they are in the order of their limits. Those with an earlier
  deadline are in a heap besides, which is rebuilt when most of its entries are stale.
- A partition is in `_ready` at most once, and moves to the end when it has given a record: round
  robin without a look at the others. A partition that turns out to be empty is dropped at its turn.
- A callback may send another request, ack, or cancel. So there is one serving loop, and a callback
  only adds to the queues.
- Nothing is offered once the lease is over: by then the partitions may be another process's.
- Requests of other nodes wait in the same queue, one entry for each, and so are served in turn with
  those of clients here. They do not count against `waiting_max`, which is for clients here.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from copy import copy
from heapq import heapify, heappop, heappush
from typing import Protocol

from pixy.backend import Lease
from pixy.consume.core import Offer
from pixy.consume.partition.partition_offers import PartitionOffers
from pixy.errors import LongPollTimeout, PixyError, TooManyRequests, Unavailable

ConsumeDone = Callable[[Offer | None, PixyError | None], None]
"""Called once, with an offer or an error."""

_STALE_MAX = 64


class PendingRequest(Protocol):
    """A request that has not been answered."""

    def cancel(self) -> None:
        """The caller is gone: the request takes no record and its callback is not called.

        No effect after the callback.
        """


class Source(Protocol):
    """A partition as the dispatcher sees it. The dispatcher owns `queued`."""

    queued: bool

    @property
    def offers(self) -> PartitionOffers: ...

    def look(self) -> None:
        """The offers have become `notable`."""


_NOBODY_READY: deque[Source] = deque(maxlen=0)
"""Ready partitions of all dispatchers that have none, never changed: a deque takes more memory than
the dispatcher.
"""


class Waiter:
    """A consume request in the queue of a dispatcher."""

    __slots__ = ("_waiters", "auto_ack", "deadline", "done", "limit", "must_exist")

    def __init__(
        self,
        waiters: "OrderedDict[Waiter, None]",
        done: ConsumeDone,
        auto_ack: bool,
        limit: float,
        deadline: float,
        must_exist: bool = False,
    ) -> None:
        self._waiters = waiters
        # The topic is not created for it.
        self.must_exist = must_exist
        self.done = done
        self.auto_ack = auto_ack
        # Time of the long polling timeout. Invariant: ascends with the order of arrival.
        self.limit = limit
        # Time of the answer: the caller's deadline if it is before the limit.
        self.deadline = deadline

    def cancel(self) -> None:
        """Leave the queue without calling back."""
        self._waiters.pop(self, None)

    @property
    def waiting(self) -> bool:
        return self in self._waiters


class ForeignWaiter(Waiter):
    """A request of another node in the queue of a dispatcher, into which it puts itself."""

    __slots__ = ("_answer", "_foreign")

    def __init__(
        self,
        waiters: "OrderedDict[Waiter, None]",
        foreign: "dict[Waiter, None]",
        done: ConsumeDone,
        limit: float,
    ) -> None:
        super().__init__(waiters, self._done, False, limit, limit)
        self._answer = done
        self._foreign = foreign
        waiters[self] = foreign[self] = None

    def _done(self, offer: Offer | None, error: PixyError | None) -> None:
        self._foreign.pop(self, None)
        self._answer(offer, error)

    def cancel(self) -> None:
        self._foreign.pop(self, None)
        super().cancel()


class Dispatcher:
    """Consume requests of one consumer group for one topic.

    Args:
        waiting_max: limit of waiting requests.
        poll_timeout: seconds that a request waits.
    """

    __slots__ = (
        "_arrivals",
        "_early",
        "_foreign",
        "_poll_timeout",
        "_ready",
        "_serving",
        "_waiters",
        "_waiting_max",
        "faults",
        "lease",
    )

    def __init__(self, waiting_max: int, poll_timeout: float) -> None:
        self._waiting_max = waiting_max
        self._poll_timeout = poll_timeout
        # Waiting requests. Invariant: limits ascend; empty whenever a record is ready, except while
        # serving or without a lease.
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        # Heap of requests with an earlier deadline: (deadline, arrival, waiter). May hold answered
        # ones.
        self._early: list[tuple[float, int, Waiter]] = []
        self._arrivals = 0
        # Partitions that had a record when they were queued. Invariant: exactly those with
        # `queued`.
        self._ready = _NOBODY_READY
        self._serving = False
        # Waiting requests of other nodes.
        self._foreign: dict[Waiter, None] = {}
        # Invariant: the present membership's.
        self.lease = Lease()
        # Errors that keep records from coming, by reporter: the answer to requests that time out.
        self.faults: dict[object, PixyError] = {}

    @property
    def waiting(self) -> int:
        """Number of waiting requests of clients here."""
        return len(self._waiters) - len(self._foreign)

    @property
    def starving(self) -> bool:
        """True if requests wait, of clients here or of other nodes."""
        return bool(self._waiters)

    def stalled(self, now: float) -> bool:
        """True if records and requests wait for a new lease."""
        return now >= self.lease.until and bool(self._ready and self._waiters)

    def consume(
        self,
        done: ConsumeDone,
        auto_ack: bool,
        deadline: float | None,
        now: float,
        must_exist: bool = False,
    ) -> Waiter | None:
        """Answer a request at once, or queue it until `deadline` or the long polling timeout.

        Args:
            must_exist: see `fail_where_it_must_exist`.

        Returns:
            The queued request, None if `done` has been called.
        """
        if self._ready and not self._waiters and now < self.lease.until:
            offer = self._next()
            if offer is not None:
                offer.auto_ack = auto_ack
                done(offer, None)
                return None
        if self.waiting >= self._waiting_max:
            done(None, self._too_many())
            return None
        limit = now + self._poll_timeout
        waiter = Waiter(self._waiters, done, auto_ack, limit, limit, must_exist)
        if deadline is not None and deadline < limit:
            waiter.deadline = deadline
            self._push_early(waiter)
        self._waiters[waiter] = None
        return waiter

    def consume_elsewhere(self, done: ConsumeDone, now: float) -> Waiter:
        """Queue a request of another node until the long polling timeout.

        Returns:
            The request, which may be answered already.
        """
        limit = now + self._poll_timeout
        waiter = ForeignWaiter(self._waiters, self._foreign, done, limit)
        self.serve(now)
        return waiter

    def give(self, offer: Offer) -> bool:
        """Answer the request that has waited longest with an offer of another node; False if no
        client here waits.
        """
        for waiter in self._waiters:
            if waiter not in self._foreign:
                waiter.cancel()
                offer.auto_ack = waiter.auto_ack
                waiter.done(offer, None)
                return True
        return False

    def oldest(self) -> float | None:
        """The time of arrival of the request of a client here that has waited longest."""
        for waiter in self._waiters:
            if waiter not in self._foreign:
                return waiter.limit - self._poll_timeout
        return None

    def wake(self, source: Source, now: float) -> None:
        """A partition has a record to offer."""
        if not source.queued:
            source.queued = True
            if self._ready is _NOBODY_READY:
                self._ready = deque()
            self._ready.append(source)
        self.serve(now)

    def serve(self, now: float) -> None:
        """Answer waiting requests, if there are records for them and the lease is valid."""
        if self._waiters and not self._serving and now < self.lease.until:
            self._serve()

    def discard(self, source: Source) -> None:
        """Nothing of a partition is offered until the next `wake`."""
        if source.queued:
            source.queued = False
            self._ready.remove(source)
            self._ready = self._ready or _NOBODY_READY

    def next_deadline(self) -> float | None:
        """The latest time for the next `expire`, None without waiting requests. May be early."""
        if not self._waiters:
            self._early.clear()
            return None
        limit = next(iter(self._waiters)).limit
        return min(limit, self._early[0][0]) if self._early else limit

    def expire(self, now: float, reason: str = "") -> None:
        """Answer requests whose time is up.

        Args:
            reason: why nobody can know whether there are records, if that is so.
        """
        while self._early and self._early[0][0] <= now:
            waiter = heappop(self._early)[2]
            if waiter.waiting:
                self._time_out(waiter, reason)
        while self._waiters:
            waiter = next(iter(self._waiters))
            if waiter.limit > now:
                break
            self._time_out(waiter, reason)

    def fail_all(self, error: PixyError) -> None:
        """Answer all waiting requests with an error."""
        for _ in range(len(self._waiters)):
            if self._waiters:
                waiter, _ = self._waiters.popitem(last=False)
                waiter.done(None, error)

    def fail_where_it_must_exist(self, error: PixyError) -> None:
        """Answer those waiting requests for which the topic is not created again."""
        for waiter in [each for each in self._waiters if each.must_exist]:
            if waiter.waiting:
                waiter.cancel()
                waiter.done(None, error)

    def _next(self) -> Offer | None:
        """The next offer, round robin over the ready partitions."""
        ready = self._ready
        while ready:
            source = ready[0]
            offers = source.offers
            offer = offers.take()
            if offers.notable:
                source.look()
            if offers.ready:
                assert offer is not None
                ready.rotate(-1)
                return offer
            ready.popleft()
            source.queued = False
            if not ready:
                self._ready = _NOBODY_READY
            if offer is not None:
                return offer
        return None

    def _serve(self) -> None:
        self._serving = True
        try:
            while self._waiters:
                offer = self._next()
                if offer is None:
                    break
                waiter, _ = self._waiters.popitem(last=False)
                offer.auto_ack = waiter.auto_ack
                waiter.done(offer, None)
        finally:
            self._serving = False

    def _time_out(self, waiter: Waiter, reason: str) -> None:
        error: PixyError = Unavailable(reason) if reason else LongPollTimeout("long polling timeout")
        for fault in self.faults.values():
            # A copy: an exception that is raised repeatedly accumulates tracebacks.
            error = copy(fault)
            break
        waiter.cancel()
        waiter.done(None, error)

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
        ).at_limit("consumer.channel_buffer_size")

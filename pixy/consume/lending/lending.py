"""Offers of one subscription that are lent to one other node, for consume requests that wait there.
Pure: time comes in as `now`; the only calls out are those of the offers, and `on_granted`.

Owns the requests of the node in the queue of the dispatcher, and each offer until it is settled:

    queue -> granted -> sent -> delivered, acked, undelivered

- Each request that waits there has an entry of its own in the queue here, so nodes are served in
  proportion to their clients. Entries keep their places from one question of the node to the next.
- Each question says what the node holds. Whatever was sent and is neither held nor settled got lost
  with an answer, and is offered again at once.
- An offer is known by partition and offset, as an ack is: there is no state to agree on after a
  restart of either side. What is said of an offer that is not lent any more has no effect, but of
  an auto ack: the record is with a client, so it is acked like any other.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from pixy.consume.core import Offer
from pixy.consume.partition import Dispatcher, Waiter
from pixy.errors import PixyError

LENT_BYTES_MAX = 15 << 20
"""Largest record that is lent: a frame between nodes takes 16 MiB. Larger ones go to clients of
their owner only.
"""
_GRANTED_BYTES_MAX = 512 << 10
_QUEUED_MAX = 512
"""Limits of what waits for one answer."""


class RecordPosition(NamedTuple):
    """A record of a topic."""

    partition: int
    offset: int


class _OpenRequest:
    """A request of the other node in the queue of the dispatcher."""

    __slots__ = ("_lending", "waiter")

    def __init__(self, lending: "Lending") -> None:
        self._lending = lending
        # None while it is being queued.
        self.waiter: Waiter | None = None

    def done(self, offer: Offer | None, error: PixyError | None) -> None:
        self._lending.answered(self, offer)


class Lending:
    """Offers that are lent to one node.

    Args:
        dispatcher: of the subscription.
        on_granted: called when there is something to send.
    """

    __slots__ = (
        "_dispatcher",
        "_granted",
        "_granted_bytes",
        "_on_granted",
        "_queue",
        "_sent",
    )

    def __init__(self, dispatcher: Dispatcher, on_granted: Callable[[], None]) -> None:
        self._dispatcher = dispatcher
        self._on_granted = on_granted
        # Oldest first.
        self._queue: dict[_OpenRequest, None] = {}
        # Invariant: no position is in both.
        self._granted: dict[RecordPosition, Offer] = {}
        self._sent: dict[RecordPosition, Offer] = {}
        # Invariant: the size of the granted offers.
        self._granted_bytes = 0

    @property
    def granted(self) -> bool:
        """There is something to send."""
        return bool(self._granted)

    @property
    def idle(self) -> bool:
        """Nothing is asked for or lent."""
        return not (self._queue or self._granted or self._sent)

    def ask(self, wanted: int, held: Collection[RecordPosition], now: float) -> None:
        """The node asks for records.

        Args:
            wanted: number of requests that wait there.
            held: records that it has, and has not settled.
        """
        for position in [each for each in self._sent if each not in held]:
            self._lose(self._sent.pop(position))
        while self._queue and len(self._queue) + len(self._granted) > wanted:
            self._withdraw(self._queue.popitem()[0])
        while len(self._granted) > wanted:
            self._ungrant(next(reversed(self._granted))).undelivered()
        for _ in range(min(wanted, _QUEUED_MAX) - len(self._queue) - len(self._granted)):
            if self._granted_bytes >= _GRANTED_BYTES_MAX:
                break
            request = _OpenRequest(self)
            self._queue[request] = None
            request.waiter = self._dispatcher.consume_elsewhere(request.done, now)
            if request not in self._queue:
                request.waiter.cancel()

    def answered(self, request: _OpenRequest, offer: Offer | None) -> None:
        """The dispatcher has answered a request; an error only ends it."""
        self._queue.pop(request, None)
        if offer is None:
            return
        if offer.size > LENT_BYTES_MAX:
            offer.undelivered()
            return
        position = RecordPosition(offer.partition, offer.record.offset)
        self._sent.pop(position, None)  # of an offer that is void
        self._granted[position] = offer
        self._granted_bytes += offer.size
        if self._granted_bytes >= _GRANTED_BYTES_MAX:
            self.withdraw()
        self._on_granted()

    def take(self) -> list[Offer]:
        """Granted offers, which are sent from here on."""
        offers = list(self._granted.values())
        self._sent.update(self._granted)
        self._granted.clear()
        self._granted_bytes = 0
        return offers

    def delivered(self, positions: Iterable[RecordPosition]) -> None:
        """Records were delivered to clients that are going to ack them."""
        for position in positions:
            if (offer := self._sent.pop(position, None)) is not None:
                offer.delivered()

    def acked(self, positions: Iterable[RecordPosition]) -> list[RecordPosition]:
        """Records were delivered to clients with auto ack.

        Returns:
            Those that are not lent any more.
        """
        others = []
        for position in positions:
            if (offer := self._sent.pop(position, None)) is not None:
                offer.auto_ack = True
                offer.delivered()
            else:
                others.append(position)
        return others

    def undelivered(self, positions: Iterable[RecordPosition]) -> None:
        """Records were not delivered."""
        for position in positions:
            if (offer := self._sent.pop(position, None)) is not None:
                offer.undelivered()

    def withdraw(self) -> None:
        """Take the requests of the node out of the queue."""
        while self._queue:
            self._withdraw(self._queue.popitem()[0])

    def end(self) -> None:
        """The node is lost, or lends no more: put everything back."""
        self.withdraw()
        granted, sent = [*self._granted.values()], [*self._sent.values()]
        self._granted.clear()
        self._sent.clear()
        self._granted_bytes = 0
        for offer in granted:
            offer.undelivered()
        for offer in sent:
            self._lose(offer)

    def settle_acked(self, covers: Callable[[int], bool]) -> None:
        """Settle records of some partitions that are acked, and of whose delivery the node has not
        told yet: their acks are answered, and the partitions are about to go.
        """
        for position in [each for each, offer in self._sent.items() if offer.auto_ack]:
            if covers(position.partition):
                self._lose(self._sent.pop(position))

    def check_invariants(self) -> None:
        """Check the invariants of the fields."""
        assert not self._granted.keys() & self._sent.keys()
        assert self._granted_bytes == sum(offer.size for offer in self._granted.values())

    @staticmethod
    def _lose(offer: Offer) -> None:
        """Put a record back of which the node says nothing any more. A client may have it; it has
        if it has acked it.
        """
        offer.was_out = True
        if offer.auto_ack:
            offer.delivered()
        else:
            offer.undelivered()

    def _withdraw(self, request: _OpenRequest) -> None:
        if request.waiter is not None:
            request.waiter.cancel()

    def _ungrant(self, position: RecordPosition) -> Offer:
        offer = self._granted.pop(position)
        self._granted_bytes -= offer.size
        return offer

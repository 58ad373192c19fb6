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
- The ack of a sent record has been answered, and may have overtaken the news of the delivery. If
  nothing more is heard of the node, a client has the record. If the node says that it still has it,
  none had, and the ack counts at the delivery only. The first question after the ack may have been
  sent before it and before the delivery; the second follows the answer to the first.
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
_QUESTIONS = 2
"""Questions after an ack until the node is known to have said nothing of a delivery before it."""


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
        "_kept",
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
        # Acks that count if nothing more is heard of the node, each with the number of questions
        # after which it does not. Invariant: their records are sent.
        self._kept: dict[RecordPosition, int] = {}

    @property
    def granted(self) -> bool:
        """There is something to send."""
        return bool(self._granted)

    @property
    def keeps_acks(self) -> bool:
        """Acks have come before the news of the delivery, which is expected soon."""
        return bool(self._kept)

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
            self._lose(position)
        if self._kept:
            self._kept = {position: left - 1 for position, left in self._kept.items() if left > 1}
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
        self._take_back(position)  # an offer that is void
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
            if (offer := self._take_back(position)) is not None:
                offer.delivered()

    def acked(self, positions: Iterable[RecordPosition]) -> list[RecordPosition]:
        """Records were delivered to clients with auto ack.

        Returns:
            Those that are not lent any more.
        """
        others = []
        for position in positions:
            if (offer := self._take_back(position)) is not None:
                offer.auto_ack = True
                offer.delivered()
            else:
                others.append(position)
        return others

    def undelivered(self, positions: Iterable[RecordPosition]) -> None:
        """Records were not delivered."""
        for position in positions:
            if (offer := self._take_back(position)) is not None:
                offer.undelivered()

    def keep_ack(self, position: RecordPosition) -> bool:
        """The ack of a record has come before the news of its delivery; False if it is not sent."""
        if position not in self._sent:
            return False
        self._kept[position] = _QUESTIONS
        return True

    def settle_kept(self, covers: Callable[[int], bool]) -> None:
        """Count the kept acks of some partitions: nothing more is heard of the node, or the
        partitions are about to go.
        """
        for position in [each for each in self._kept if covers(each.partition)]:
            self._lose(position)

    def count_as_out(self, covers: Callable[[int], bool]) -> set[int]:
        """Count the sent records of some partitions, which are about to go, as handed out: clients
        may have them, and the news of it may come too late.

        Returns:
            The partitions of these records.
        """
        sent = [offer for offer in self._sent.values() if covers(offer.partition)]
        for offer in sent:
            offer.was_out = True
        return {offer.partition for offer in sent}

    def withdraw(self) -> None:
        """Take the requests of the node out of the queue."""
        while self._queue:
            self._withdraw(self._queue.popitem()[0])

    def end(self) -> None:
        """The node is lost, or lends no more: put everything back."""
        self.withdraw()
        granted = [*self._granted.values()]
        self._granted.clear()
        self._granted_bytes = 0
        for offer in granted:
            offer.undelivered()
        for position in list(self._sent):
            self._lose(position)

    def check_invariants(self) -> None:
        """Check the invariants of the fields."""
        assert not self._granted.keys() & self._sent.keys()
        assert self._kept.keys() <= self._sent.keys()
        assert self._granted_bytes == sum(offer.size for offer in self._granted.values())

    def _take_back(self, position: RecordPosition) -> Offer | None:
        """The offer of a sent record, None if there is none; its ack is kept no more."""
        self._kept.pop(position, None)
        return self._sent.pop(position, None)

    def _lose(self, position: RecordPosition) -> None:
        """Put a record back of which the node says nothing any more. A client may have it; it has
        if its ack is the last that was heard.
        """
        is_acked = position in self._kept
        offer = self._take_back(position)
        if offer is None:
            return  # the one before has ended the subscription
        offer.was_out = True
        if is_acked:
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

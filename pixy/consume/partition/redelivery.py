"""Redelivery of the records of one partition: the ack timeout, retries, and deliveries that fail.
Pure.

- The ack timeout begins at the delivery. Until then an offer is in `sending`, without a deadline: a
  slow reader costs its records no retry. All delivered offers live equally long, so `out`, a dict
  in order of delivery, is also in order of deadline: no heap, no timer per offer. The shell sets
  one timer to `next_deadline()`.
- An offer whose deadline has come is offered again, in offset order, as often as the limits say;
  then its record is dropped, which acks it.
- An offer that was not delivered costs no retry, and is offered before all others. A large record
  whose delivery fails again and again is refused by the clients, or larger than the server's output
  may be. It waits for the ack timeout too, and the other records go on.
"""

from heapq import heappop, heappush

from pixy.consume.core import (
    CROWDED_RANGES,
    METADATA_BYTES_MAX,
    Offer,
    OfferLimits,
    OfferOwner,
    OffsetTracker,
)
from pixy.errors import ResourceExhausted

_UNDELIVERED = 0
_EXPIRED = 1
_WHOLE_BYTES = 32 << 10
"""Records that are with the transport as a whole before a client can refuse them: the windows of
HTTP/2 have 64 KiB at first.
"""
_FAILURES_MAX = 3
"""Deliveries of a larger record that may fail before that is a retry: clients go away at any time,
and the next one may take it.
"""


class Redelivery:
    """Records that are with clients, on their way to one, or to be offered again. `PartitionOffers`
    adds those that were never offered.

    Args:
        owner: the partition of the offers, which they report to.
        limits: the limits.
    """

    __slots__ = (
        "_again",
        "_again_order",
        "_limits",
        "_out",
        "_owner",
        "_pending_bytes",
        "_sending",
        "changed",
        "dropped",
        "expired",
        "notable",
        "offered",
        "ready",
        "redelivered",
        "tracker",
    )

    tracker: OffsetTracker

    def __init__(self, owner: OfferOwner, limits: OfferLimits) -> None:
        self._owner = owner
        self._limits = limits
        self.offered = self.redelivered = self.expired = self.dropped = 0

    def _begin_pending(self) -> None:
        """Begin a generation."""
        # Offers that are not delivered yet, by offset.
        self._sending: dict[int, Offer] = {}
        # Delivered offers, by offset, in order of delivery. Invariant: deadlines ascend.
        self._out: dict[int, Offer] = {}
        # Records to offer again, by offset, and a heap of their order. Invariant: every key of the
        # dict is in the heap; the heap is empty if the dict is.
        self._again: dict[int, Offer] = {}
        self._again_order: list[tuple[int, int]] = []
        # Bytes of sending, out and again.
        self._pending_bytes = 0
        # `take` returns an offer.
        self.ready = False
        # The tracker moved without an ack: a gap was skipped, or a record was dropped.
        self.changed = False
        # The shell should read `wants_more`, `changed`, `fault` and `holding`.
        self.notable = True

    @property
    def outstanding(self) -> int:
        """Number of outstanding offers."""
        return len(self._sending) + len(self._out)

    @property
    def pending(self) -> int:
        """Number of records held in memory until their ack: outstanding, expired or undelivered."""
        return self.outstanding + len(self._again)

    def next_deadline(self) -> float | None:
        """The expiry of the oldest delivered offer, None if there is none."""
        for offer in self._out.values():
            return offer.deadline
        return None

    def _take_again(self) -> Offer:
        while True:
            offset = heappop(self._again_order)[1]
            back = self._again.pop(offset, None)
            if back is not None:
                break
        if not self._again:
            self._again_order.clear()
        offer = Offer(self._owner, back.record, back.size, back.retries, back.failures)
        offer.was_out = back.was_out
        if back.was_out:
            self.redelivered += 1
        self._sending[offset] = offer
        self.offered += 1
        self._refresh()
        return offer

    def delivered(self, offer: Offer, now: float) -> None:
        """The answer is with the transport: start the ack timeout.

        No effect if the offer is void or acked.
        """
        offset = offer.record.offset
        if self._sending.get(offset) is offer:
            del self._sending[offset]
            offer.deadline = now + self._limits.ack_timeout
            self._out[offset] = offer

    def maybe_give_up(self, offer: Offer, now: float) -> bool:
        """Count a failed delivery; True if it was the last one for now, because clients seem to
        refuse the record for its size. Then the offer waits for the ack timeout, which makes it a
        retry, as if it had been delivered.
        """
        offset = offer.record.offset
        offer.failures += 1
        if (
            offer.size <= _WHOLE_BYTES
            or offer.failures < _FAILURES_MAX
            or self._sending.get(offset) is not offer
        ):
            return False
        self.delivered(offer, now)
        return True

    def put_back(self, offer: Offer) -> bool:
        """The offer was not delivered: its record is offered next.

        False if the offer is void or acked.
        """
        offset = offer.record.offset
        if self._sending.get(offset) is not offer:
            return False
        del self._sending[offset]
        self._again[offset] = offer
        heappush(self._again_order, (_UNDELIVERED, offset))
        self.ready = True
        return True

    def expire(self, now: float) -> list[int]:
        """Expire the offers whose deadline has come; returns the offsets that were dropped after
        the last retry.
        """
        late = []
        for offer in self._out.values():
            if offer.deadline > now:
                break
            late.append(offer)
        dropped = []
        retries_max = self._limits.retries_max
        for offer in late:
            offset = offer.record.offset
            if 0 <= retries_max <= offer.retries and self.fits(offset):
                self._forget(offset)
                self.tracker.ack(offset)
                dropped.append(offset)
                continue
            del self._out[offset]
            offer.retries += 1
            offer.failures = 0
            offer.was_out = True
            self._again[offset] = offer
            heappush(self._again_order, (_EXPIRED, offset))
        self.expired += len(late)
        if dropped:
            self.dropped += len(dropped)
            self.changed = self.notable = True
        self._refresh()
        return dropped

    def fits(self, offset: int) -> bool:
        """True if a commit can have the ack of this offset."""
        return len(self.tracker.begins) < CROWDED_RANGES or not self.tracker.refuses(offset)

    def _check_fits(self, offset: int) -> None:
        """Raises ResourceExhausted if a commit cannot have the ack of this offset."""
        if not self.fits(offset):
            owner, tracker = self._owner, self.tracker
            raise ResourceExhausted(
                f"ack not accepted: offset {offset} of {owner.topic}/{owner.partition}: acks of {len(tracker.begins)} ranges "
                f"above offset {tracker.base}, the first that is not acked, fill the {METADATA_BYTES_MAX} bytes of a commit; "
                "ack the messages below first, or try again"
            ).at_limit("sparse acks of a partition")

    def _forget(self, offset: int) -> None:
        """Drop a pending record."""
        offer = self._sending.pop(offset, None) or self._out.pop(offset, None) or self._again.pop(offset)
        self._pending_bytes -= offer.size
        if not self._again:
            self._again_order.clear()

    def _refresh(self) -> None:
        """Find out whether `take` returns an offer."""
        raise NotImplementedError

"""Offers that one other node has lent to a subscription here, and what is to be told of them. Pure.

    held -> settled: delivered, acked or undelivered -> told

A record is held until its answer is with the transport of a client, or could not be. What became of
it is told with the next question or on its own, again and again until an answer confirms it: the
owner knows an offer by its position and takes each settlement once. Until then the record counts as
held, because the owner would take it for lost otherwise.
"""

from collections.abc import Callable
from typing import NamedTuple

from pixy.consume.core import Offer
from pixy.consume.lending.lending import RecordPosition
from pixy.records import Record


class Settlements(NamedTuple):
    """Settlements of records, by kind."""

    delivered: list[RecordPosition]
    acked: list[RecordPosition]
    undelivered: list[RecordPosition]

    def __bool__(self) -> bool:
        return any(self[:])

    def add(self, others: "Settlements") -> None:
        for mine, more in zip(self, others, strict=True):
            mine.extend(more)

    @property
    def positions(self) -> set[RecordPosition]:
        return {*self.delivered, *self.acked, *self.undelivered}


_NOTHING = Settlements([], [], [])
"""Told with all questions that have nothing to tell; never changed."""


class _BorrowedPartition:
    """The owner of borrowed offers of a partition, as their recipients see it."""

    __slots__ = (
        "_borrowing",
        "partition",
        "topic",
    )

    def __init__(self, borrowing: "Borrowing", topic: str, partition: int) -> None:
        self._borrowing = borrowing
        self.topic = topic
        self.partition = partition

    def delivered(self, offer: Offer) -> None:
        self._borrowing.settled(offer, delivered=True)

    def undelivered(self, offer: Offer) -> None:
        self._borrowing.settled(offer, delivered=False)


class Borrowing:
    """Offers that one node has lent.

    Args:
        topic: of the subscription.
        on_settled: called when there is something to tell.
    """

    __slots__ = (
        "_held",
        "_on_settled",
        "_partitions",
        "_told",
        "_topic",
        "_unconfirmed",
        "_untold",
    )

    def __init__(self, topic: str, on_settled: Callable[[], None]) -> None:
        self._topic = topic
        self._on_settled = on_settled
        self._partitions: dict[int, _BorrowedPartition] = {}
        self._held: dict[RecordPosition, Offer] = {}
        self._untold = Settlements([], [], [])
        # Told, and not confirmed.
        self._unconfirmed: dict[int, Settlements] = {}
        self._told = 0

    @property
    def untold(self) -> bool:
        """There is something to tell."""
        return bool(self._untold)

    @property
    def urgent(self) -> bool:
        """Records are to be given back."""
        return bool(self._untold.undelivered)

    @property
    def idle(self) -> bool:
        """Nothing is held, to be told or to be confirmed."""
        return not (self._held or self._untold or self._unconfirmed)

    @property
    def held(self) -> set[RecordPosition]:
        """Records that the owner must not take for lost."""
        return self._held.keys() | {
            position for each in self._unconfirmed.values() for position in each.positions
        }

    def accept(self, partition: int, record: Record) -> Offer:
        """The offer of a lent record."""
        owner = self._partitions.get(partition)
        if owner is None:
            owner = self._partitions[partition] = _BorrowedPartition(self, self._topic, partition)
        offer = Offer(owner, record, 0, 0)
        self._held[RecordPosition(partition, record.offset)] = offer
        return offer

    def settled(self, offer: Offer, *, delivered: bool) -> None:
        """An offer was delivered, or not."""
        position = RecordPosition(offer.partition, offer.record.offset)
        if self._held.get(position) is not offer:
            return  # lent again meanwhile, after a silence
        del self._held[position]
        untold = self._untold
        if not delivered:
            untold.undelivered.append(position)
        elif offer.auto_ack:
            untold.acked.append(position)
        else:
            untold.delivered.append(position)
        self._on_settled()

    def tell(self) -> tuple[int, Settlements]:
        """Settlements to tell, and the number under which it is confirmed."""
        self._told += 1
        if not self._untold:
            return self._told, _NOTHING
        settlements, self._untold = self._untold, Settlements([], [], [])
        self._unconfirmed[self._told] = settlements
        return self._told, settlements

    def confirmed(self, number: int) -> None:
        """The owner has answered what was told."""
        self._unconfirmed.pop(number, None)

    def failed(self, number: int) -> None:
        """No answer: tell it again."""
        settlements = self._unconfirmed.pop(number, None)
        if settlements is not None:
            self._untold.add(settlements)

    def forget(self) -> None:
        """The node owns nothing any more: there is nobody to tell."""
        self._held.clear()
        self._untold = Settlements([], [], [])
        self._unconfirmed.clear()

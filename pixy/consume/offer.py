"""One record handed out, the bounds on how many there may be, and whom it tells what became of it."""

from dataclasses import dataclass
from math import inf
from typing import Protocol

from pixy.records import Record

__all__ = ["Offer", "OfferLimits", "OfferOwner"]


@dataclass(frozen=True, slots=True)
class OfferLimits:
    """The bounds of one partition's offers. `ack_timeout` in seconds; `retries_max` -1 means no limit."""

    ack_timeout: float
    pending_max: int
    pending_bytes_max: int
    retries_max: int
    buffer_bytes_max: int


class OfferOwner(Protocol):
    """Where an offer reports what became of it."""

    topic: str
    partition: int

    def delivered(self, offer: "Offer") -> None: ...
    def undelivered(self, offer: "Offer") -> None: ...


class Offer:
    """A record handed out. Whoever got it calls exactly one of `delivered` and `undelivered`."""

    __slots__ = ("_owner", "auto_ack", "deadline", "generation", "partition", "record", "retries", "size")

    def __init__(self, owner: OfferOwner, record: Record, size: int, generation: int, retries: int) -> None:
        self._owner = owner
        self.partition = owner.partition
        self.record = record
        self.size = size
        # When it expires. Invariant: infinite until it is delivered.
        self.deadline = inf
        self.generation = generation
        self.retries = retries
        self.auto_ack = False

    @property
    def topic(self) -> str:
        return self._owner.topic

    def delivered(self) -> None:
        """The answer is with the transport. Acks the record if the consume asked for auto ack, else the ack timeout begins."""
        self._owner.delivered(self)

    def undelivered(self) -> None:
        """The answer could not be written. The record goes to whoever asks next."""
        self._owner.undelivered(self)

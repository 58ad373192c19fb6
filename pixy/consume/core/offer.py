"""An offer: one record handed to a client, with its limits and its owner."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pixy.records import Record


@dataclass(frozen=True, slots=True)
class OfferLimits:
    """Limits of the offers of one partition.

    Args:
        ack_timeout: seconds.
        pending_max: records that are offered and not acked.
        pending_bytes_max: their size.
        retries_max: retries of a record; -1 means no limit.
        buffer_bytes_max: fetched batches that are not offered yet.
    """

    ack_timeout: float
    pending_max: int
    pending_bytes_max: int
    retries_max: int
    buffer_bytes_max: int


class OfferOwner(Protocol):
    """The partition that an offer reports its delivery to."""

    topic: str
    partition: int

    def delivered(self, offer: "Offer") -> None: ...
    def undelivered(self, offer: "Offer") -> None: ...


class Offer:
    """A record handed to a client.

    Its recipient calls exactly one of `delivered` and `undelivered`.
    """

    __slots__ = (
        "_owner",
        "auto_ack",
        "deadline",
        "failures",
        "partition",
        "record",
        "retries",
        "size",
        "was_out",
    )

    def __init__(self, owner: OfferOwner, record: Record, size: int, retries: int, failures: int = 0) -> None:
        self._owner = owner
        self.partition = owner.partition
        self.record = record
        self.size = size
        # Time of its expiry, once it is delivered.
        self.deadline: float
        self.retries = retries
        # Deliveries that failed since the last retry.
        self.failures = failures
        # Acked at its delivery: by the request, or by an ack that has come before.
        self.auto_ack = False
        # A client has or had the record, as far as is known. False for a delivered offer that has
        # not expired yet.
        self.was_out = False

    @property
    def topic(self) -> str:
        return self._owner.topic

    def delivered(self) -> None:
        """The answer is with the transport: ack the record in case of auto ack, else start the ack
        timeout.
        """
        self._owner.delivered(self)

    def undelivered(self) -> None:
        """The answer could not be written: the record goes to the next request."""
        self._owner.undelivered(self)


class OffersReceipt:
    """The receipt of an answer with several offers: they are delivered together, or none is."""

    __slots__ = ("_offers",)

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = offers

    def delivered(self) -> None:
        """The answer is with the transport."""
        for offer in self._offers:
            offer.delivered()

    def undelivered(self) -> None:
        """The answer could not be written."""
        for offer in self._offers:
            offer.undelivered()

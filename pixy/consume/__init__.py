"""Delivery of records to consumer groups: offers, acks, redelivery and offsets."""

from pixy.consume.acks import AckDone
from pixy.consume.core import (
    METADATA_BYTES_MAX,
    AckRange,
    Client,
    ConsumeRequest,
    Offer,
    OffersReceipt,
    OffsetTracker,
    Timers,
    decode,
    describe,
    encode,
    fitting,
)
from pixy.consume.group import NEWEST, OLDEST, Consumers
from pixy.consume.partition import ConsumeCounters, ConsumeDone, PendingRequest

__all__ = [
    "METADATA_BYTES_MAX",
    "NEWEST",
    "OLDEST",
    "AckDone",
    "AckRange",
    "Client",
    "ConsumeCounters",
    "ConsumeDone",
    "ConsumeRequest",
    "Consumers",
    "Offer",
    "OffersReceipt",
    "OffsetTracker",
    "PendingRequest",
    "Timers",
    "decode",
    "describe",
    "encode",
    "fitting",
]

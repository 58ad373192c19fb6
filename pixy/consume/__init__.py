"""Who gets which record next: consumer groups, their offers, acks and offsets."""

from pixy.consume.consumers import NEWEST, OLDEST, Consumers
from pixy.consume.dispatcher import Cancellable, ConsumeDone
from pixy.consume.environment import Counters
from pixy.consume.offer import Offer
from pixy.consume.offset_tracker import OffsetTracker
from pixy.consume.sparse_acks import AckRange, decode, describe, encode
from pixy.consume.subscription import AckDone

__all__ = [
    "NEWEST",
    "OLDEST",
    "AckDone",
    "AckRange",
    "Cancellable",
    "ConsumeDone",
    "Consumers",
    "Counters",
    "Offer",
    "OffsetTracker",
    "decode",
    "describe",
    "encode",
]

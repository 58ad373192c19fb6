"""Delivery of records to consumer groups: offers, acks, redelivery and offsets."""

from pixy.consume.client_shares import Client
from pixy.consume.consume_request import ConsumeRequest
from pixy.consume.consumers import NEWEST, OLDEST, Consumers
from pixy.consume.dispatcher import ConsumeDone, PendingRequest
from pixy.consume.environment import ConsumeCounters
from pixy.consume.offer import Offer
from pixy.consume.offset_tracker import OffsetTracker
from pixy.consume.sparse_acks import METADATA_BYTES_MAX, AckRange, decode, describe, encode, fitting
from pixy.consume.timers import Timers
from pixy.consume.waiting_acks import AckDone

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
    "OffsetTracker",
    "PendingRequest",
    "Timers",
    "decode",
    "describe",
    "encode",
    "fitting",
]

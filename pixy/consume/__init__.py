"""Delivery of records to consumer groups: offers, acks, redelivery and offsets."""

from pixy.consume.acks import AckDone
from pixy.consume.core import Client, ConsumeRequest, Offer, OffersReceipt, Timers, decode, describe, fitting
from pixy.consume.group import Consumers
from pixy.consume.partition import ConsumeDone, PendingRequest

__all__ = [
    "AckDone",
    "Client",
    "ConsumeDone",
    "ConsumeRequest",
    "Consumers",
    "Offer",
    "OffersReceipt",
    "PendingRequest",
    "Timers",
    "decode",
    "describe",
    "fitting",
]

"""Acks that wait for their partition, or go to the node that owns it."""

from pixy.consume.acks.passed_acks import check_ack, owner_backoff, pass_ack
from pixy.consume.acks.waiting_acks import AckDone, WaitingAcks

__all__ = [
    "AckDone",
    "WaitingAcks",
    "check_ack",
    "owner_backoff",
    "pass_ack",
]

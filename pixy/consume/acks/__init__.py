"""Acks that wait for their partition, or go to the node that owns it."""

from pixy.consume.acks.ack_lane import AckDone
from pixy.consume.acks.passed_acks import check_ack, encode_outcomes
from pixy.consume.acks.unsubscribed_acks import UnsubscribedAcks
from pixy.consume.acks.waiting_acks import WaitingAcks

__all__ = [
    "AckDone",
    "UnsubscribedAcks",
    "WaitingAcks",
    "check_ack",
    "encode_outcomes",
]

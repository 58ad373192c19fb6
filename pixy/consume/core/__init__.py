"""The values and counts of consumer groups: offers, offset trackers, sparse acks, turns.

Nothing here fetches, commits or asks anybody.
"""

from pixy.consume.core.client_shares import Client, ClientShares, address_of
from pixy.consume.core.consume_request import ConsumeRequest
from pixy.consume.core.handed_out import HandedOut
from pixy.consume.core.join_turns import JoinTurns
from pixy.consume.core.offer import Offer, OfferLimits, OfferOwner, OffersReceipt
from pixy.consume.core.offset_tracker import CROWDED_RANGES, OffsetTracker
from pixy.consume.core.partition_limit import PartitionLimit
from pixy.consume.core.passing_turns import UNDECIDED, PassingTurns
from pixy.consume.core.resets import Resets
from pixy.consume.core.sparse_acks import METADATA_BYTES_MAX, AckRange, decode, describe, encode, fitting
from pixy.consume.core.start_position import Remark, first_of_each, first_position, is_long, resume
from pixy.consume.core.subscription_state import SubscriptionEvent, SubscriptionState
from pixy.consume.core.timers import Alarm, TimerHandle, Timers
from pixy.consume.core.voided import NOTHING_VOIDED, VoidedByPartition, VoidedOffsets
from pixy.consume.core.waiting_ack_limit import WaitingAckLimit

__all__ = [
    "CROWDED_RANGES",
    "METADATA_BYTES_MAX",
    "NOTHING_VOIDED",
    "UNDECIDED",
    "AckRange",
    "Alarm",
    "Client",
    "ClientShares",
    "ConsumeRequest",
    "HandedOut",
    "JoinTurns",
    "Offer",
    "OfferLimits",
    "OfferOwner",
    "OffersReceipt",
    "OffsetTracker",
    "PartitionLimit",
    "PassingTurns",
    "Remark",
    "Resets",
    "SubscriptionEvent",
    "SubscriptionState",
    "TimerHandle",
    "Timers",
    "VoidedByPartition",
    "VoidedOffsets",
    "WaitingAckLimit",
    "address_of",
    "decode",
    "describe",
    "encode",
    "first_of_each",
    "first_position",
    "fitting",
    "is_long",
    "resume",
]

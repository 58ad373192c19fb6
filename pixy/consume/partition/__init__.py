"""One partition of a consumer group: fetched, offered, acknowledged, committed.

It knows nothing of other partitions but that they share the environment's bounds.
"""

from pixy.consume.partition.commits import METADATA_PER_COMMIT, GroupCommits
from pixy.consume.partition.dispatcher import ConsumeDone, Dispatcher, PendingRequest, Waiter
from pixy.consume.partition.end_questions import EndQuestions
from pixy.consume.partition.environment import ConsumeCounters, ConsumeEnvironment, OnMissing
from pixy.consume.partition.fetched_memory import bounded_fetches
from pixy.consume.partition.partition import LivePartition

__all__ = [
    "METADATA_PER_COMMIT",
    "ConsumeCounters",
    "ConsumeDone",
    "ConsumeEnvironment",
    "Dispatcher",
    "EndQuestions",
    "GroupCommits",
    "LivePartition",
    "OnMissing",
    "PendingRequest",
    "Waiter",
    "bounded_fetches",
]

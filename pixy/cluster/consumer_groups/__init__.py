"""The coordinator of consumer groups, at the leader of their state group.

It says which member owns which partition, and puts out members that are silent. What is consumed
is none of its business: that is `pixy.consume`. Groups of Kafka's classic protocol have a
coordinator of their own beside it.
"""

from pixy.cluster.consumer_groups.classic_coordinator import ClassicCoordinator, NotServed
from pixy.cluster.consumer_groups.group_coordinator import GroupCoordinator
from pixy.cluster.consumer_groups.group_decisions import why_ended
from pixy.cluster.consumer_groups.group_sessions import LEASE_S

__all__ = [
    "LEASE_S",
    "ClassicCoordinator",
    "GroupCoordinator",
    "NotServed",
    "why_ended",
]

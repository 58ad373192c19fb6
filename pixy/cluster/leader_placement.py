"""Even leadership: each raft group is led by its preferred replica where that can be.

The preferred leader of a partition is its first replica, as in Kafka, and placement spreads these
evenly. State groups spread over their voters by number; `metadata` stays where it is. A leader
hands over to a preferred replica that is connected, has all entries, and has been there for a
while: a node that comes and goes is given nothing. Nor is one that gives a leadership back, because
its disk is slow, more than once in a while.
"""

import asyncio
from collections.abc import Callable

from pixy.cluster.driver import Driver
from pixy.cluster.metadata import METADATA_GROUP
from pixy.cluster.raft_group import RaftGroup
from pixy.cluster.replica import PartitionReplica, StateReplica

__all__ = ["LeaderPlacement", "preferred_leader"]

_LOOK_S = 1.0
_SETTLED_S = 3.0
"""Time that a node must have been connected."""
_PAUSE_S = 30.0
"""Least time between two transfers of a group: proposals wait meanwhile."""
_TRANSFERS_MAX = 50
"""Transfers that begin in one look."""


def preferred_leader(group: RaftGroup) -> int | None:
    """Node that should lead a group, None if any may."""
    application = group.application
    if isinstance(application, PartitionReplica):
        replicas = application.replicas
        return replicas[0] if replicas else None
    if isinstance(application, StateReplica) and group.raft_group != METADATA_GROUP:
        voters = sorted(group.storage.conf_state.voters)
        return voters[group.raft_group % len(voters)] if voters else None
    return None


class LeaderPlacement:
    """Hands leaderships of one node to preferred leaders.

    Args:
        driver: of its groups.
        up_since: loop time since which a node is connected, None while it is not.
    """

    def __init__(self, driver: Driver, up_since: Callable[[int], float | None]) -> None:
        self._driver = driver
        self._up_since = up_since
        self._loop = asyncio.get_running_loop()
        self._next_look = 0.0
        # Groups that were handed over within the pause, with the loop times; the oldest first.
        self._handed_over: dict[RaftGroup, float] = {}

    def tick(self) -> None:
        """Hand over what others should lead, once a second."""
        now = self._loop.time()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        while self._handed_over and now - next(iter(self._handed_over.values())) >= _PAUSE_S:
            del self._handed_over[next(iter(self._handed_over))]
        begun = 0
        for group in list(self._driver.groups.values()):
            if group in self._handed_over:
                continue
            if group.leads and group.has_peers and self._hand_over(group, now):
                self._handed_over[group] = now
                begun += 1
                if begun == _TRANSFERS_MAX:
                    return

    def _hand_over(self, group: RaftGroup, now: float) -> bool:
        preferred = preferred_leader(group)
        if preferred is None or preferred == self._driver.node_id or group.node is None:
            return False
        raft, since = group.node.raft, self._up_since(preferred)
        progress = raft.tracker.progress.get(preferred)
        if (
            since is None
            or now - since < _SETTLED_S
            or progress is None
            or preferred not in raft.tracker.voters
        ):
            return False
        behind = raft.log.last_index() - progress.match
        if not progress.recently_active or behind > raft.log.last_index() - raft.log.committed:
            return False
        self._driver.transfer(group, preferred)
        return True

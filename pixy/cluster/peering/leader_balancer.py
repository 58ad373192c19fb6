"""Even leadership: each raft group is led by its preferred replica where that can be.

The preferred leader of a partition is its first replica, as in Kafka, and placement spreads these
evenly. State groups spread over their voters by number; `metadata` stays where it is. A leader
hands over to a preferred replica that is connected, has all entries, and has been there for a
while: a node that comes and goes is given nothing. Nor is one that gives a leadership back, because
its disk is slow, more than once in a while.

A node whose clock is off is given nothing either, and hands over what it leads to any replica that
could be given it: what is decided about the age of data is decided by a right clock. So does a node
with a damaged replica, which serves nothing; it still votes, and confirms entries. Others do not
know of the damage: the preferred node that gives a leadership back is given it again after a long
pause, or when it was away meanwhile.
"""

import asyncio
from collections.abc import Callable, Container
from typing import NamedTuple

from pixy.cluster.log import PartitionReplica, StateReplica
from pixy.cluster.state import METADATA_GROUP
from pixy.multiraft import Driver, RaftGroup
from pixy.raft import StateType

_LOOK_S = 1.0
_SETTLED_S = 3.0
"""Time that a node must have been connected."""
_PAUSE_S = 30.0
"""Least time between two transfers of a group: proposals wait meanwhile."""
_RETURNED_PAUSE_S = 600.0
"""The same, for the node that has given the leadership back."""
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


class _Transfer(NamedTuple):
    """The last transfer of a group: to whom, and at which loop time."""

    heir: int
    at: float


class LeaderBalancer:
    """Hands leaderships of one node to preferred leaders.

    Args:
        driver: of its groups.
        up_since: loop time since which a node is connected, None while it is not.
        has_wrong_clock: tells whether the clock of a node is off.
        damaged_groups: raft groups whose replicas here serve nothing.
    """

    def __init__(
        self,
        driver: Driver,
        up_since: Callable[[int], float | None],
        has_wrong_clock: Callable[[int], bool],
        damaged_groups: Container[int],
    ) -> None:
        self._driver = driver
        self._up_since = up_since
        self._has_wrong_clock = has_wrong_clock
        self._damaged_groups = damaged_groups
        self._loop = asyncio.get_running_loop()
        self._next_look = 0.0
        # Groups that were handed over within the longer pause; the oldest first.
        self._handed_over: dict[RaftGroup, _Transfer] = {}

    def tick(self) -> None:
        """Hand over what others should lead, once a second."""
        now = self._loop.time()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        while self._handed_over and now - next(iter(self._handed_over.values())).at >= _RETURNED_PAUSE_S:
            del self._handed_over[next(iter(self._handed_over))]
        begun, has_wrong_clock = 0, self._has_wrong_clock(self._driver.node_id)
        for group in list(self._driver.groups.values()):
            is_damaged = group.raft_group in self._damaged_groups
            if not ((group.leads or is_damaged) and group.has_peers):
                continue
            last = self._handed_over.get(group)
            if last is not None and now - last.at < _PAUSE_S:
                continue
            if self._hand_over(group, now, last, gives_up=has_wrong_clock or is_damaged):
                begun += 1
                if begun == _TRANSFERS_MAX:
                    return

    def _hand_over(self, group: RaftGroup, now: float, last: _Transfer | None, *, gives_up: bool) -> bool:
        preferred = preferred_leader(group)
        heirs = [] if preferred is None else [preferred]
        if gives_up:
            heirs += sorted(group.storage.conf_state.voters)
        for heir in heirs:
            if heir == self._driver.node_id or not self._may_lead(heir, group, now, last):
                continue
            self._handed_over.pop(group, None)
            self._handed_over[group] = _Transfer(heir, now)
            self._driver.transfer(group, heir)
            return True
        return False

    def _may_lead(self, node_id: int, group: RaftGroup, now: float, last: _Transfer | None) -> bool:
        if group.node is None or self._has_wrong_clock(node_id):
            return False
        raft, since = group.node.raft, self._up_since(node_id)
        if raft.state is not StateType.LEADER:
            return False
        if last is not None and since is not None and last.heir == node_id and since < last.at:
            return False  # it has given the leadership back
        progress = raft.tracker.progress.get(node_id)
        if (
            since is None
            or now - since < _SETTLED_S
            or progress is None
            or node_id not in raft.tracker.voters
        ):
            return False
        behind = raft.log.last_index() - progress.match
        return progress.recently_active and behind <= raft.log.last_index() - raft.log.committed

"""Clock of the raft groups of one node that have members elsewhere.

Beside the ticks of the core: proposals that have waited until their deadline, requests that are
repeated because they or their answers may be lost, and the leadership that a node with a slow disk
gives away. Its followers still hear from it, so nobody else would notice.
"""

import asyncio
from collections.abc import Iterable

from pixy.multiraft.driver_options import DriverOptions
from pixy.multiraft.group_driver import GroupDriver
from pixy.multiraft.group_rest import GroupRest
from pixy.multiraft.raft_group import RaftGroup
from pixy.storage import Journal


class GroupClock:
    """Ticks of the groups of one driver.

    Args:
        driver: see `Driver.ticked`.
        rest: of the same groups.
        journal: the node's journal.
        options: duration of a tick, ticks of an election timeout.
    """

    def __init__(
        self, driver: GroupDriver, rest: GroupRest, journal: Journal, options: DriverOptions
    ) -> None:
        self._driver = driver
        self._rest = rest
        self._journal = journal
        self._election_tick = options.config.election_tick
        self._timeout_s = options.tick_s * self._election_tick
        self._loop = asyncio.get_running_loop()
        self._ticks = 0

    def tick(self, groups: Iterable[RaftGroup]) -> None:
        """Advance the clock of every group with peers by one tick, but for those at rest, which are
        looked at once in an election timeout.
        """
        now = self._loop.time()
        self._ticks += 1
        slow = self._disk_is_slow(now)
        for group in groups:
            # In another tick for each of them: a thousand at once delay everybody else.
            timed_out = (self._ticks + group.raft_group) % self._election_tick == 0
            if group.resting and not (timed_out and (slow or self._rest.is_awake(group))):
                continue
            has_proposals = group.proposals is not None and len(group.proposals) > 0
            if has_proposals and group.proposals is not None:
                group.proposals.expire(now)
            if group.has_peers and group.node is not None:
                if slow and timed_out and group.leads:
                    # Before the tick, in which the core may begin to count active followers anew.
                    self._driver.hand_over(group)
                if group.node.tick() or group.has_work:
                    self._driver.ticked(group, timed_out=timed_out)
                elif timed_out:
                    if has_proposals or group.reads:
                        self._driver.ticked(group, timed_out=True)
                    else:
                        group.look_at_role()
                if timed_out:
                    self._rest.look(group, group.node)

    def _disk_is_slow(self, now: float) -> bool:
        """True if the oldest write takes longer than followers wait for a leader."""
        since = self._journal.oldest_unsynced_at
        return since is not None and now - since > self._timeout_s

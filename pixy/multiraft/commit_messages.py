"""Messages that tell followers of a new commit index, without an entry to carry it.

A follower learns of a commit with the next entry of its group. Without one it is told: at once if
it waits for the result of its proposal, else in a moment, unless an entry does until then.
"""

import asyncio
from collections.abc import Callable

from pixy.multiraft.raft_group import RaftGroup

_SLACK_S = 0.0005
"""uvloop counts whole milliseconds: a timer for less would fire at once, again and again."""


class CommitMessages:
    """Commit messages of one node's raft groups.

    Args:
        delay_s: see `DriverOptions.commit_delay_s`.
        drive: works off what the core of a group has to do.
    """

    def __init__(self, delay_s: float, drive: Callable[[RaftGroup], None]) -> None:
        self._delay_s = delay_s
        self._drive = drive
        self._loop = asyncio.get_running_loop()
        # Groups whose followers may not know the commit index: those with waiters, and the others
        # with the time at which to tell them, earliest first, and their last index.
        self._awaited: dict[RaftGroup, None] = {}
        self._due: dict[RaftGroup, tuple[float, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def stop(self) -> None:
        """Tell nobody any more."""
        self._stopped = True

    def due(self, group: RaftGroup) -> None:
        """The followers of a group may not know its commit index."""
        if group.is_awaited or not self._delay_s:
            group.is_awaited = False
            self._due.pop(group, None)
            if not self._awaited:
                self._loop.call_soon(self._tell_awaited)
            self._awaited[group] = None
            return
        if group in self._awaited or group.node is None:
            return
        last_index = group.node.raft.log.last_index()
        known = self._due.get(group)
        if known is not None and known[1] == last_index:
            return
        # What was committed before has left with a new entry.
        at = self._loop.time() + self._delay_s
        self._due.pop(group, None)
        self._due[group] = at, last_index
        if self._timer is None:
            self._timer = self._loop.call_at(at, self._tell_due)

    def tell(self, group: RaftGroup) -> None:
        """Tell the followers of a group now, if this node leads it."""
        self._due.pop(group, None)
        self._awaited.pop(group, None)
        self._tell(group)

    def _tell_awaited(self) -> None:
        groups, self._awaited = self._awaited, {}
        for group in groups:
            self._tell(group)

    def _tell_due(self) -> None:
        now = self._loop.time()
        while self._due:
            group, (at, _) = next(iter(self._due.items()))
            if at - now > _SLACK_S:
                self._timer = self._loop.call_at(at, self._tell_due)
                return
            del self._due[group]
            self._tell(group)
        self._timer = None

    def _tell(self, group: RaftGroup) -> None:
        if group.node is not None and not self._stopped:
            group.node.pass_commit_on()
            self._drive(group)

"""Messages that tell followers of a new commit index, without an entry to carry it.

A follower learns of a commit with the next entry of its group. Without one it is told: at once if
it waits for the result of its proposal, else in a moment, unless an entry does until then.
"""

import asyncio
from collections.abc import Callable

from pixy.cluster.raft_group import RaftGroup

__all__ = ["CommitMessages"]


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
        # Groups whose followers may not know the commit index, in the order of their commits.
        self._due: dict[RaftGroup, None] = {}
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._stopped = False

    def stop(self) -> None:
        """Tell nobody any more."""
        self._stopped = True

    def due(self, group: RaftGroup) -> None:
        """The followers of a group may not know its commit index."""
        self._due[group] = None
        if group.is_awaited or not self._delay_s:
            group.is_awaited = False
            if self._soon is None:
                self._soon = self._loop.call_soon(self._tell)
        elif self._later is None:
            self._later = self._loop.call_later(self._delay_s, self._tell)

    def _tell(self) -> None:
        if self._later is not None:
            self._later.cancel()
        self._later = self._soon = None
        groups, self._due = self._due, {}
        for group in groups:
            if group.node is not None and not self._stopped:
                group.node.pass_commit_on()
                self._drive(group)

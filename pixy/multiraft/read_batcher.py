"""Linearizable reads to wait for, shared by their callers.

A caller that comes while a read of its group is under way waits for the next one, which begins when
that one ends: the index of a read must be determined after its caller has come. So a group has one
read under way, however many callers there are.

A group whose only member is this node needs none: nobody else can have committed anything.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial

from pixy.aio.futures import resolve
from pixy.errors import ShuttingDown, Unavailable
from pixy.multiraft.driver import Driver
from pixy.multiraft.raft_group import RaftGroup


class _SharedRead:
    """The read of a group that is under way, and the next one if somebody waits for it."""

    __slots__ = ("next", "running")

    def __init__(self, running: "asyncio.Future[None]") -> None:
        self.running = running
        self.next: asyncio.Future[None] | None = None


class ReadBatcher:
    """Linearizable reads of one node's raft groups.

    Args:
        driver: of the groups.
        name_of: name of a group, for errors.
        why_left: tells why this node is no member of the cluster any more, empty while it may be.
        why_leaderless: tells why no leader of a group will answer, empty while one may.
    """

    def __init__(
        self,
        driver: Driver,
        name_of: Callable[[RaftGroup], str],
        why_left: Callable[[], str] = str,
        why_leaderless: Callable[[RaftGroup], str] = lambda _: "",
    ) -> None:
        self._driver = driver
        self._name_of = name_of
        self._why_left = why_left
        self._why_leaderless = why_leaderless
        self._loop = asyncio.get_running_loop()
        self._shared: dict[RaftGroup, _SharedRead] = {}
        self._stopped = False

    def stop(self) -> None:
        """End all reads with `ShuttingDown`."""
        self._stopped = True
        for group in list(self._shared):
            self._ended(group)

    async def wait(self, groups: Iterable[RaftGroup], timeout: float) -> None:
        """Wait until everything is applied here that was committed in these groups before the call,
        or they are removed.

        Raises:
            Unavailable: no leader has confirmed it within `timeout` s, or none will, or this node
                is behind, or has left the cluster.
            ShuttingDown: this node stops.
        """
        shared = [group for group in groups if not self.is_alone(group)]
        if reason := next(filter(None, map(self._why_leaderless, shared)), ""):
            raise Unavailable(reason)
        late = await self._late(shared, timeout)
        if late:
            reason = self._why_left() or next(filter(None, map(self._why_leaderless, late)), "")
            raise Unavailable(reason or self._why_late(late, timeout))

    async def wait_each(self, groups: Iterable[RaftGroup], timeout: float) -> dict[RaftGroup, str]:
        """As `wait`, for each group on its own: those without a leader hold up no others.

        Returns:
            The groups for which `wait` would have raised Unavailable, with the reason.

        Raises:
            ShuttingDown: this node stops.
        """
        shared = [group for group in groups if not self.is_alone(group)]
        failed = {group: reason for group in shared if (reason := self._why_leaderless(group))}
        for group in await self._late([each for each in shared if each not in failed], timeout):
            reason = self._why_left() or self._why_leaderless(group)
            failed[group] = reason or self._why_late([group], timeout)
        return failed

    async def _late(self, shared: Collection[RaftGroup], timeout: float) -> list[RaftGroup]:
        """The groups whose reads have not ended within `timeout` s."""
        if not shared:
            return []
        waits = {self._read(group): group for group in shared}
        late: Collection[asyncio.Future[None]] = waits
        if not self._stopped:
            _, late = await asyncio.wait(waits, timeout=timeout)
        if self._stopped:
            raise ShuttingDown
        return [waits[each] for each in late]

    def is_behind(self, group: RaftGroup) -> bool:
        """True if this node has not applied what a leader has confirmed for a read."""
        return any(read.index for read in group.reads or ())

    def _why_late(self, groups: Collection[RaftGroup], timeout: float) -> str:
        names = sorted(map(self._name_of, groups))
        count = len(names) - 1
        what = names[0] + (f" and {count} other{'s' * (count > 1)}" if count else "")
        if all(map(self.is_behind, groups)):
            return (
                f"this node has not applied yet what {what} has: its disk is slow or full, or it catches up"
            )
        return f"no leader of {what} has answered within {timeout:g} s"

    def is_alone(self, group: RaftGroup) -> bool:
        """True if this node is the only member of a group."""
        return not group.has_peers

    def _read(self, group: RaftGroup) -> "asyncio.Future[None]":
        """The read that a caller waits for that comes now."""
        shared = self._shared.get(group)
        if shared is None:
            running = self._loop.create_future()
            self._begin(group, running)
            return running
        if shared.next is None:
            shared.next = self._loop.create_future()
        return shared.next

    def _begin(self, group: RaftGroup, running: "asyncio.Future[None]") -> None:
        self._shared[group] = _SharedRead(running)
        self._driver.reads.begin(group, partial(self._ended, group))

    def _ended(self, group: RaftGroup) -> None:
        shared = self._shared.pop(group, None)
        if shared is None:
            return
        resolve(shared.running, None)
        if shared.next is None:
            return
        if self._stopped:
            resolve(shared.next, None)
        else:
            self._begin(group, shared.next)

"""Revocations of one consumer group: partitions that are about to go to another process.

A revocation goes in steps, for its partitions only; all others continue:

    hold      nothing of them is offered; acks are accepted
    drain     until nothing of them is outstanding, or the time is over
    seal      acks for them wait, because nobody knows yet who commits them; those of lent records
              that were answered count, though the other node has not told of the delivery yet
    commit    the acked positions

It is over when its run has ended and the next assignment has come: partitions that are still
assigned are released and continue with their offers, the others are gone. An assignment during the
run, for partitions that come or go otherwise, ends nothing.

A backend that tells what will go can wait for the commit, however long the cluster has no leader
for it: nothing goes meanwhile. One that revokes everything has a time limit of its own.

The road not taken: pausing the whole group, as Kafka's eager protocol does. A backend that cannot
tell what will go revokes everything (`partitions` is None).
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import structlog

from pixy.aio.futures import SmallEvent
from pixy.consume.core import Timers
from pixy.consume.group.subscription import Subscription
from pixy.consume.partition import GroupCommits
from pixy.errors import PixyError

_RETRY_S = 0.1
_LAST_COMMIT_S = 5.0
"""Time for the commit, beyond the time for acks."""

_log = structlog.get_logger()


class _Revocation:
    """One revocation; `partitions` is None for all."""

    def __init__(self, partitions: Mapping[str, Collection[int]] | None) -> None:
        self.partitions = (
            None if partitions is None else {topic: frozenset(each) for topic, each in partitions.items()}
        )
        self.running = True
        self.quiet = SmallEvent()

    def covers(self, topic: str, partition: int) -> bool:
        return self.partitions is None or partition in self.partitions.get(topic, ())

    def outstanding(self, subscriptions: Sequence[Subscription]) -> int:
        """Number of outstanding offers of its partitions, which are held."""
        return sum(subscription.outstanding_held(self.covers) for subscription in subscriptions)


class Revocations:
    """Revocations of one consumer group.

    Args:
        group: its name.
        timers: clock and timers.
        subscriptions: returns the present ones.
        commits: of the group.
    """

    __slots__ = (
        "_commits",
        "_group",
        "_present",
        "_subscriptions",
        "_timers",
    )

    def __init__(
        self,
        group: str,
        timers: Timers,
        subscriptions: Callable[[], Sequence[Subscription]],
        commits: GroupCommits,
    ) -> None:
        self._group = group
        self._timers = timers
        self._subscriptions = subscriptions
        self._commits = commits
        # Invariant: those that are running, or that no assignment has followed yet.
        self._present: dict[_Revocation, None] = {}

    @property
    def cover_everything(self) -> bool:
        """True while every partition may go: then it is not known either who has the others."""
        return any(each.partitions is None for each in self._present)

    def covers(self, topic: str, partition: int) -> bool:
        """True while a partition may go."""
        return any(each.covers(topic, partition) for each in self._present)

    async def run(self, seconds: float, partitions: Mapping[str, Collection[int]] | None) -> None:
        """See `Revocation` of the backend."""
        timers = self._timers
        until = timers.monotonic() + seconds
        revocation = _Revocation(partitions)
        self._present[revocation] = None
        try:
            for subscription in self._subscriptions():
                subscription.hold(revocation.covers)
            while revocation.outstanding(self._subscriptions()) and timers.monotonic() < until:
                revocation.quiet.clear()
                await timers.wait(revocation.quiet, until - timers.monotonic())
            for subscription in self._subscriptions():
                subscription.seal(revocation.covers)
            await self._commit(until + _LAST_COMMIT_S, waits=partitions is not None)
        finally:
            revocation.running = False

    async def _commit(self, until: float, *, waits: bool) -> None:
        """Commit, tried again until a time, and for as long as it takes if the backend `waits`."""
        while True:
            try:
                await self._commits.commit()
            except PixyError as error:
                if self._timers.monotonic() >= until and not (waits and error.retriable):
                    _log.warning("cannot commit before a rebalance", group=self._group, error=str(error))
                    return
                await self._timers.sleep(_RETRY_S)
            else:
                return

    def check_quiet(self) -> None:
        """Offers of a held partition have been settled."""
        for each in self._present:
            if not each.outstanding(self._subscriptions()):
                each.quiet.set()

    def assigned(self) -> None:
        """An assignment has come."""
        self._present = {each: None for each in self._present if each.running}

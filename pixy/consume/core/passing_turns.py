"""Turns in which acks are passed to the owners of their partitions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto

from pixy.aio.address_quota import AddressQuota, QueuedCaller
from pixy.client_address import share_of
from pixy.consume.core.timers import Timers
from pixy.errors import DeadlineExceeded, Unavailable
from pixy.records import TopicPartition

UNDECIDED = (Unavailable, DeadlineExceeded)
"""Errors of an attempt that may succeed a moment later, with the same owner or another one."""

_OUTCOMES_MAX = 10_000
_FAILED_S = 0.2
"""A turn that has failed lasts so long if others wait: thousands of partitions that fail at once,
as their node is down, make few attempts a second.
"""


class _Outcome(Enum):
    """Outcome of the last attempt to pass acks of a consumer group's partition."""

    NONE = auto()
    ANSWERED = auto()
    FAILED = auto()


_TURNS = {_Outcome.NONE: 128, _Outcome.ANSWERED: 320, _Outcome.FAILED: 64}
"""Partitions of which acks are passed at a time."""


class PassingTurns:
    """Turns in which the acks of a partition are passed to its owner.

    Client addresses take turns, and have a share. Each outcome of the last attempt is a kind of its
    own: partitions that have failed do not fill the turns of those that are answered, whoever's
    they are.

    Args:
        timers: clock and timers.
        share_percent: part of the turns that the acks of one client address may have at a time.
    """

    def __init__(self, timers: Timers, share_percent: int = 100) -> None:
        self._timers = timers
        self._quotas = {
            outcome: AddressQuota(turns, share_of(turns, share_percent)) for outcome, turns in _TURNS.items()
        }
        # Outcomes of the last attempts, by group and partition, the oldest first.
        self._outcomes: dict[str, _Outcome] = {}

    @asynccontextmanager
    async def turn(
        self, group: str, partition: TopicPartition, address: str, deadline: float
    ) -> AsyncIterator[None]:
        """Wait for a turn, which ends with the `with` block. The attempt in it has failed if it
        raises one of `UNDECIDED`. A block that is dropped, with the loop, keeps its turn.

        Args:
            group, partition: whose acks are passed, one attempt at a time.
            address: of the client of the first of them.
            deadline: on the monotonic clock.

        Raises:
            DeadlineExceeded: it has not come by then.
        """
        key = f"{group} {partition.topic}/{partition.partition}"
        kind = self._outcomes.get(key, _Outcome.NONE)
        quota = self._quotas[kind]
        await self._acquire(quota, key, address, deadline)
        try:
            yield
        except UNDECIDED:
            self._ended(key, _Outcome.FAILED)
            try:
                if quota.is_wanted(address):
                    await self._timers.sleep(_FAILED_S)
            finally:
                quota.release(address, 1)
            raise
        except (Exception, asyncio.CancelledError):
            quota.release(address, 1)
            raise
        else:
            self._ended(key, _Outcome.ANSWERED)
            quota.release(address, 1)

    async def _acquire(self, quota: AddressQuota, key: str, address: str, deadline: float) -> None:
        caller = QueuedCaller(address, 1)
        if quota.maybe_acquire(caller, 1):
            return
        try:
            await self._timers.wait(caller.turn, deadline - self._timers.monotonic())
        except asyncio.CancelledError:
            if caller.is_admitted:
                quota.release(address, 1)
            else:
                quota.withdraw(caller)
            raise
        if not caller.is_admitted:
            quota.withdraw(caller)
            raise DeadlineExceeded(
                f"the ack of {key} was not passed to its owner in time: earlier acks wait for their answers"
            )

    def _ended(self, key: str, outcome: _Outcome) -> None:
        self._outcomes.pop(key, None)
        self._outcomes[key] = outcome
        if len(self._outcomes) > _OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]

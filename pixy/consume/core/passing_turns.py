"""Turns in which acks are passed to the owners of their partitions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto

from pixy.aio.address_quota import AddressQuota, QueuedCaller
from pixy.consume.core.timers import Timers
from pixy.errors import DeadlineExceeded, Unavailable
from pixy.records import TopicPartition

__all__ = ["UNDECIDED", "PassingTurns"]

UNDECIDED = (Unavailable, DeadlineExceeded)
"""Errors of an attempt that may succeed a moment later, with the same owner or another one."""

_OUTCOMES_MAX = 10_000


class _Outcome(Enum):
    """Outcome of the last attempt to pass an ack of a consumer group's partition."""

    NONE = auto()
    ANSWERED = auto()
    FAILED = auto()


_TURNS = {_Outcome.NONE: (128, 1), _Outcome.ANSWERED: (320, 8), _Outcome.FAILED: (64, 1)}
"""Acks that are passed at a time, in all and of a partition."""


class PassingTurns:
    """Turns in which acks are passed to the owners of their partitions.

    Partitions take turns, and have a number of turns of their own kind, by the outcome of the last
    attempt: one that has failed does not fill the turns of those that are answered, whoever's they
    are.

    Args:
        timers: clock and timers.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._quotas = {outcome: AddressQuota(*turns) for outcome, turns in _TURNS.items()}
        # Outcomes of the last attempts, by group and partition, the oldest first.
        self._outcomes: dict[str, _Outcome] = {}

    @asynccontextmanager
    async def turn(self, group: str, partition: TopicPartition, deadline: float) -> AsyncIterator[None]:
        """Wait for a turn, which ends with the `with` block. The attempt in it has failed if it
        raises one of `UNDECIDED`. A block that is dropped, with the loop, keeps its turn.

        Raises:
            DeadlineExceeded: it has not come by then.
        """
        key = f"{group} {partition.topic}/{partition.partition}"
        kind = await self._acquire(key, deadline)
        try:
            yield
        except UNDECIDED:
            self._ended(key, _Outcome.FAILED)
            self._quotas[kind].release(key, 1)
            raise
        except (Exception, asyncio.CancelledError):
            self._quotas[kind].release(key, 1)
            raise
        else:
            self._ended(key, _Outcome.ANSWERED)
            self._quotas[kind].release(key, 1)

    async def _acquire(self, key: str, deadline: float) -> _Outcome:
        """Wait for a turn of the kind that the partition has then; returns the kind."""
        while True:
            kind = self._kind(key)
            await self._acquire_of(kind, key, deadline)
            if kind is self._kind(key):
                return kind
            self._quotas[kind].release(key, 1)

    async def _acquire_of(self, kind: _Outcome, key: str, deadline: float) -> None:
        quota, caller = self._quotas[kind], QueuedCaller(key, 1)
        if quota.maybe_acquire(caller, 1):
            return
        try:
            await self._timers.wait(caller.turn, deadline - self._timers.monotonic())
        except asyncio.CancelledError:
            if caller.is_admitted:
                quota.release(key, 1)
            else:
                quota.withdraw(caller)
            raise
        if not caller.is_admitted:
            quota.withdraw(caller)
            raise DeadlineExceeded(
                f"the ack of {key} was not passed to its owner in time: earlier acks wait for their answers"
            )

    def _kind(self, key: str) -> _Outcome:
        return self._outcomes.get(key, _Outcome.NONE)

    def _ended(self, key: str, outcome: _Outcome) -> None:
        self._outcomes.pop(key, None)
        self._outcomes[key] = outcome
        if len(self._outcomes) > _OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]

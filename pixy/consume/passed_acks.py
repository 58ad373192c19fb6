"""Acks of records in partitions of other processes: they are passed to the owner, and answered as
the owner answers.

An ack is passed once: the process that is asked either has the partition or refuses. Whoever passes
looks for the owner again, because ownership moves.

Few are under way at a time, and fewer of one partition: an owner that cannot answer, as its
partition does not start, holds up the acks of that partition and of others that fail, and neither
those of partitions that are answered nor other calls between nodes.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING

from pixy.address_quota import AddressQuota, QueuedCaller
from pixy.backend import Backend, TopicPartition
from pixy.consume.timers import Timers
from pixy.errors import AckElsewhere, DeadlineExceeded, InvalidAck, Unavailable
from pixy.proto.consumer_calls_pb2 import ConsumerCall, PassedAck

if TYPE_CHECKING:
    from pixy.consume.environment import ConsumeEnvironment

__all__ = ["UNDECIDED", "PassingTurns", "check_ack", "pass_ack"]

UNDECIDED = (Unavailable, DeadlineExceeded)
"""Errors of an attempt that may succeed a moment later, with the same owner or another one."""

_ATTEMPT_S = 1.0
"""Patience with one owner: a silent one is replaced meanwhile."""

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
        raises one of `UNDECIDED`.

        Raises:
            DeadlineExceeded: it has not come by then.
        """
        key = f"{group} {partition.topic}/{partition.partition}"
        kind = await self._acquire(key, deadline)
        try:
            yield
        except UNDECIDED:
            self._ended(key, _Outcome.FAILED)
            raise
        else:
            self._ended(key, _Outcome.ANSWERED)
        finally:
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
        except BaseException:
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


def check_ack(backend: Backend, topic: str, ack: tuple[int, int]) -> None:
    """Check partition and offset of an ack.

    Raises:
        InvalidAck: partition or offset is negative, or the topic lacks the partition.
    """
    partition, offset = ack
    if partition < 0:
        raise InvalidAck(f"invalid ack: bad partition: {partition}")
    if offset < 0:
        raise InvalidAck(f"invalid ack: bad offset: {offset}")
    description = backend.topic(topic)
    if description is not None and partition >= len(description.partitions):
        count = len(description.partitions)
        raise InvalidAck(f"invalid ack: bad partition: {partition}: {topic} has 0 to {count - 1}")


async def pass_ack(
    environment: "ConsumeEnvironment",
    group: str,
    partition: TopicPartition,
    offset: int,
    only_if_offered: bool,
    deadline: float,
) -> bool:
    """Have the owner of a partition ack a record; False if there is no owner.

    Raises:
        AckElsewhere: the owner cannot be asked.
        Unavailable, DeadlineExceeded: the owner is not known, not any more, or does not answer.
        PixyError: the answer of the owner.
    """
    async with environment.passing.turn(group, partition, deadline):
        return await _pass_ack(environment, group, partition, offset, only_if_offered, deadline)


async def _pass_ack(
    environment: "ConsumeEnvironment",
    group: str,
    partition: TopicPartition,
    offset: int,
    only_if_offered: bool,
    deadline: float,
) -> bool:
    topic, number = partition
    owner = await environment.backend.partition_owner(group, partition)
    if owner is None:
        return False
    if owner.node_id is None:
        raise AckElsewhere(
            f"ack not accepted: {topic}/{number} of {group} is consumed by {owner.client_id}; ack it there"
        )
    ack = PassedAck(
        group=group, topic=topic, partition=number, offset=offset, only_if_offered=only_if_offered
    )
    timeout_s = min(deadline - environment.timers.monotonic(), _ATTEMPT_S)
    if timeout_s <= 0:
        raise DeadlineExceeded(f"the ack of {topic}/{number} was not passed to its owner in time")
    request = ConsumerCall(ack=ack).SerializeToString()
    await environment.backend.ask_node(owner.node_id, request, timeout_s)
    return True

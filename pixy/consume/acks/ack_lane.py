"""Acks of one partition of a consumer group that wait together: one task looks for the partition,
and one question, or one call to the owner, answers many.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from math import inf

from pixy.aio.futures import SmallEvent
from pixy.consume.partition import ConsumeEnvironment
from pixy.errors import PixyError, Unavailable

AckDone = Callable[[PixyError | None], None]
"""Called once: with None if the ack counts or has no effect, else with the error."""


class NotAnswered(Enum):
    """Outcomes of a look at an ack that leave it without an answer."""

    WAITS = auto()
    """It waits on, behind all others."""
    MOVED = auto()
    """It waits elsewhere; the limit counts it as before."""


AckOutcome = PixyError | NotAnswered | None
"""None if an ack counts or has no effect."""

_AT_ONCE = 20
"""Acks that are answered in one piece of work: half a millisecond."""
_SOON_S = 1.0
"""Longer than an attempt, which ends at the deadline: that of an ack that is answered cuts none
short.
"""


class WaitingAck:
    """An ack of a client.

    Attributes:
        offset: of the record.
        done: see `AckDone`.
        address: of the client, see `address_of`.
        deadline: on the monotonic clock.
        with_request: a consume request waits for it.
    """

    __slots__ = ("address", "deadline", "done", "offset", "with_request")

    def __init__(self, offset: int, done: AckDone, address: str, *, with_request: bool = False) -> None:
        self.offset = offset
        self.done = done
        self.address = address
        self.deadline = inf
        self.with_request = with_request


def not_here(group: str, topic: str, partition: int) -> Unavailable:
    """The error of an ack of a partition that another process has, or none."""
    return Unavailable(f"ack not accepted: {topic}/{partition} is not assigned to this process for {group}")


class AckLane:
    """Waiting acks of one partition of a group.

    Args:
        environment: has the limit, which counts all waiting acks, and the time.
        group, topic, partition: names them.
        only_if_offered: the acks count only if their records are outstanding.

    Attributes:
        acks: those that are not answered. Invariant: also those that a coroutine works on.
        changed: there is reason to look again.
        refusal: the error of those whose time is up.
        one_by_one: the owner takes one ack in a call: a node of an earlier release.
    """

    __slots__ = (
        "_environment",
        "acks",
        "changed",
        "deadline",
        "group",
        "one_by_one",
        "only_if_offered",
        "partition",
        "refusal",
        "topic",
    )

    def __init__(
        self,
        environment: ConsumeEnvironment,
        group: str,
        topic: str,
        partition: int,
        *,
        only_if_offered: bool = False,
    ) -> None:
        self._environment = environment
        self.group = group
        self.topic = topic
        self.partition = partition
        self.only_if_offered = only_if_offered
        self.acks: deque[WaitingAck] = deque()
        # No ack has an earlier one.
        self.deadline = inf
        self.changed = SmallEvent()
        self.refusal: PixyError = not_here(group, topic, partition)
        self.one_by_one = False

    def add(self, ack: WaitingAck) -> None:
        """Add an ack that the limit has counted; its patience begins."""
        environment = self._environment
        ack.deadline = environment.timers.monotonic() + environment.owner_patience_s
        self.deadline = min(self.deadline, ack.deadline)
        self.acks.append(ack)

    async def decide(self, outcome: Callable[[WaitingAck], AckOutcome], count: int | None = None) -> int:
        """Look at acks, those in front first, in short steps.

        Args:
            outcome: of an ack, which is answered then, or not.
            count: how many, None for all that are there now.

        Returns:
            Number of those that wait on.
        """
        share = self._environment.acking
        left, waiting = len(self.acks) if count is None else count, 0
        while left:
            await share.begin()
            try:
                for _ in range(min(left, _AT_ONCE)):
                    left -= 1
                    waiting += self._decide_next(outcome)
            finally:
                share.end()
        return waiting

    async def answer(self, error: PixyError | None, count: int | None = None) -> None:
        """Answer acks in the same way."""
        await self.decide(lambda _: error, count)

    async def expire(self, now: float) -> None:
        """Answer acks whose time is up, and look for the next deadline if there may be one soon."""
        if now < self.deadline - _SOON_S:
            return
        if now >= self.deadline:
            await self.decide(lambda ack: self.refusal if now >= ack.deadline else NotAnswered.WAITS)
        self.deadline = min((ack.deadline for ack in self.acks), default=inf)

    def abort(self, error: PixyError) -> None:
        """Answer all acks at once: nobody looks after them any more."""
        while self.acks:
            self._decide_next(lambda _: error)

    def _decide_next(self, outcome: Callable[[WaitingAck], AckOutcome]) -> bool:
        """Look at the first ack; True if it waits on."""
        ack = self.acks[0]
        decided = outcome(ack)
        if decided is NotAnswered.WAITS:
            self.acks.rotate(-1)
            return True
        self.acks.popleft()
        if not isinstance(decided, NotAnswered):
            self._environment.ack_limit.release(ack.address)
            ack.done(decided)
        return False

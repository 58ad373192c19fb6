"""Acks of one subscription that cannot be applied at once, each in a task of its own.

    partition of the ack                     the ack
    assigned here, starting or sealed        waits until the partition is live here or elsewhere
    live here, without a lease               waits for the lease, or until it is elsewhere
    live here, offset beyond the known end   asks the cluster for the end
    at another process that can be asked     is passed to it (`passed_acks`)
    at another process                       is refused, or given up if a consume request brought it
    not known where                          is passed to its present owner, or waits
    at nobody                                waits for an owner

All this while the patience with owners lasts (`ConsumeEnvironment.owner_patience_s`). A consume
request waits for its ack no longer than to its own deadline, and goes on whatever became of it,
unless the ack is invalid or does not fit into a commit; the ack stays. An ack without an effect
costs a repetition of its record.
"""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from pixy.aio.futures import SmallEvent
from pixy.consume.acks.passed_acks import owner_backoff, pass_ack
from pixy.consume.core import UNDECIDED, ConsumeRequest, TimerHandle
from pixy.consume.partition import ConsumeDone, ConsumeEnvironment, LivePartition, PendingRequest, Waiter
from pixy.errors import (
    AckBeyondEnd,
    AckElsewhere,
    InvalidArgument,
    OwnedElsewhere,
    OwnerUndecided,
    PixyError,
    ResourceExhausted,
    ShuttingDown,
    TooManyRequests,
    Unavailable,
    UnknownTopic,
)
from pixy.proto.consumer_calls_pb2 import PassedAck

__all__ = ["AckDone", "AckTarget", "WaitingAcks"]

AckDone = Callable[[PixyError | None], None]
"""Called once: with None if the ack counts or has no effect, else with the error."""

_LEASE_LOOK_S = 0.1
_LONG_S = 1.0
"""Pauses between two looks, without a lease and with one, which may end meanwhile."""

_log = structlog.get_logger()


class AckTarget(Protocol):
    """The subscription, as its waiting acks see it."""

    group_name: str
    topic: str

    def open_partition(self, partition: int) -> LivePartition | None:
        """The partition, if it is live here and accepts acks."""

    def awaits(self, partition: int) -> bool:
        """True if a partition is or may be assigned here, and is not open at this moment."""

    def holds(self, partition: int) -> bool:
        """True if a partition is live here and may go."""

    def is_assigned(self, partition: int) -> bool:
        """True if a partition is assigned here."""

    def is_elsewhere(self, partition: int) -> bool:
        """True if a partition is known not to be assigned here."""

    @property
    def has_lease(self) -> bool:
        """True while no other node can have the partitions that are assigned here."""

    @property
    def has_other_owners(self) -> bool:
        """True if other nodes have partitions of the topic, or had."""

    @property
    def draining(self) -> bool:
        """Nothing is offered any more."""

    def consume_now(self, done: ConsumeDone, auto_ack: bool, deadline: float) -> Waiter | None:
        """Go on with a request whose ack is settled."""


class _RequestWithAck:
    """A consume request that waits for its ack to be settled.

    Attributes:
        over: it waits for its ack no more: it has gone on, or its caller is gone.
        timer: ends the wait at the deadline.
        waiter: the request, once it waits for a record.
    """

    __slots__ = ("ack", "deadline", "done", "over", "request", "timer", "waiter")

    def __init__(
        self, request: ConsumeRequest, ack: tuple[int, int], done: ConsumeDone, deadline: float
    ) -> None:
        self.request = request
        self.ack = ack
        self.done = done
        self.deadline = deadline
        self.over = False
        self.timer: TimerHandle | None = None
        self.waiter: Waiter | None = None

    def cancel(self) -> None:
        """The caller is gone; its ack still counts."""
        self.over = True
        if self.waiter is not None:
            self.waiter.cancel()

    def abort(self, error: PixyError) -> None:
        """The task of the request was cancelled or failed."""
        if not self.over:
            self.over = True
            self.done(None, error)


class WaitingAcks:
    """Acks of one subscription that wait.

    Args:
        environment: the cluster, options, time and tasks.
        target: the subscription.
    """

    __slots__ = (
        "_count",
        "_environment",
        "_monotonic",
        "_passed",
        "_target",
        "_watchers",
    )

    def __init__(self, environment: ConsumeEnvironment, target: AckTarget) -> None:
        self._environment = environment
        self._target = target
        self._monotonic = environment.timers.monotonic
        self._count = 0
        # Of other nodes. They do not keep a subscription, which is for clients here.
        self._passed = 0
        # Set when partitions have come or gone.
        self._watchers: dict[SmallEvent, None] = {}

    def __len__(self) -> int:
        """Number of acks of clients here."""
        return self._count

    def notify(self) -> None:
        """Partitions have come or gone."""
        for event in self._watchers:
            event.set()

    # --- requests of clients ----------------------------------------------------------------------

    def consume(
        self,
        request: ConsumeRequest,
        ack: tuple[int, int],
        done: ConsumeDone,
        deadline: float | None,
        now: float,
    ) -> PendingRequest | None:
        """Settle the ack of a consume request, then consume."""
        if self._is_full():
            done(None, self._too_many())
            return None
        limit = now + self._environment.options.long_polling_timeout
        until = limit if deadline is None else min(deadline, limit)
        waiting = _RequestWithAck(request, ack, done, until)
        waiting.timer = self._environment.timers.call_later(until - now, lambda: self._go_on(waiting, None))
        self._spawn(self._consume(waiting), "consume", waiting.abort)
        return waiting

    async def _consume(self, waiting: _RequestWithAck) -> None:
        refused: PixyError | None = None
        try:
            deadline = self._monotonic() + self._environment.owner_patience_s
            only_if_offered = waiting.request.ack_if_offered
            await self._settle(waiting.ack, only_if_offered, deadline, with_request=True)
        except (InvalidArgument, ShuttingDown) as error:
            refused = error
        except UnknownTopic:
            pass  # the record is gone with its topic
        except TooManyRequests as error:
            self._warn_lost(waiting.ack, error)
        except ResourceExhausted as error:
            refused = error
        except PixyError as error:
            self._warn_lost(waiting.ack, error)
        finally:
            self._count -= 1
            if waiting.timer is not None:
                waiting.timer.cancel()
        if waiting.over and refused is not None:
            self._warn_lost(waiting.ack, refused)
        self._go_on(waiting, refused)

    def _go_on(self, waiting: _RequestWithAck, refused: PixyError | None) -> None:
        """Take a request to the dispatcher, or refuse it: its ack is settled, or its time is up."""
        if waiting.over:
            return
        if refused is None and self._target.draining:
            refused = ShuttingDown()
        if refused is not None:
            waiting.over = True
            waiting.done(None, refused)
            return
        waiting.waiter = self._target.consume_now(waiting.done, waiting.request.auto_ack, waiting.deadline)
        waiting.over = True

    def _warn_lost(self, ack: tuple[int, int], error: PixyError) -> None:
        partition, offset = ack
        _log.warning(
            "ack of a consume request is lost, the record will be offered again",
            group=self._target.group_name,
            topic=self._target.topic,
            partition=partition,
            offset=offset,
            error=str(error),
        )

    def ack(self, ack: tuple[int, int], only_if_offered: bool, done: AckDone) -> None:
        """Settle an ack."""
        if self._is_full():
            done(self._too_many())
            return
        self._spawn(self._ack(ack, only_if_offered, done), "ack", done)

    async def _ack(self, ack: tuple[int, int], only_if_offered: bool, done: AckDone) -> None:
        outcome: PixyError | None = None
        try:
            deadline = self._monotonic() + self._environment.owner_patience_s
            await self._settle(ack, only_if_offered, deadline)
        except PixyError as error:
            outcome = error
        finally:
            self._count -= 1
        done(outcome)

    def _spawn(
        self, work: Coroutine[object, object, None], what: str, abort: Callable[[PixyError], None]
    ) -> None:
        self._count += 1
        name = f"{what} {self._target.topic} for {self._target.group_name}"
        self._environment.tasks.spawn(work, name, abort)

    def _is_full(self) -> bool:
        return self._count + self._passed >= self._environment.options.channel_buffer_size

    def _too_many(self) -> TooManyRequests:
        return TooManyRequests(
            f"Too many requests. Consider increasing `consumer.channel_buffer_size`: {self._count + self._passed} acks of this "
            f"consumer group and topic are waiting already"
        ).at_limit("consumer.channel_buffer_size")

    # --- the way of an ack ------------------------------------------------------------------------

    async def ack_passed(self, partition: int, offset: int, only_if_offered: bool) -> None:
        """Settle an ack that another process passes on, as the owner of its partition.

        Raises:
            OwnedElsewhere: the partition is not here, or not any more.
            InvalidAck, TooManyRequests.
        """
        target = self._target
        while not await self._apply(partition, offset, only_if_offered):
            if not target.awaits(partition):
                raise OwnedElsewhere(f"{target.topic}/{partition} is not consumed by this node")
            if self._is_full():
                raise self._too_many()
            self._passed += 1
            try:
                with self._watching() as changed:
                    await self._environment.timers.wait(changed, self._longest_pause())
            finally:
                self._passed -= 1

    async def _settle(
        self, ack: tuple[int, int], only_if_offered: bool, deadline: float, *, with_request: bool = False
    ) -> None:
        """Apply an ack where its partition is live, here or elsewhere."""
        partition, offset = ack
        passed = PassedAck(
            group=self._target.group_name,
            topic=self._target.topic,
            partition=partition,
            offset=offset,
            only_if_offered=only_if_offered,
        )
        backoff = owner_backoff()
        refusal: PixyError = self._not_here(partition)
        while not await self._apply(partition, offset, only_if_offered):
            self._check(partition, deadline, refusal)
            with self._watching() as changed:
                pause = min(deadline - self._monotonic(), self._longest_pause())
                if self._is_for_others(partition, only_if_offered):
                    has_others = (
                        self._target.has_other_owners or self._environment.backend.may_have_neighbours
                    )
                    if with_request and not has_others:
                        raise self._not_here(partition)
                    try:
                        if (
                            await pass_ack(self._environment, passed, deadline)
                            or only_if_offered  # without an owner nothing is outstanding
                        ):
                            return
                    except UNDECIDED as error:
                        if not (has_others or isinstance(error, OwnerUndecided)):
                            raise
                        refusal = error
                    except AckElsewhere:
                        if not changed.is_set() and self._target.is_elsewhere(partition):
                            raise
                    if has_others:
                        pause = min(pause, backoff.grow())
                elif only_if_offered and not self._target.holds(partition) and self._target.has_lease:
                    return  # it starts: nothing is outstanding
                await self._environment.timers.wait(changed, pause)

    def _longest_pause(self) -> float:
        """Longest pause before the next look: nobody tells of leases."""
        return _LONG_S if self._target.has_lease else _LEASE_LOOK_S

    def _is_for_others(self, partition: int, only_if_offered: bool) -> bool:
        """True if the owner of a partition is to be asked, who may be unknown yet. Not only when it
        is certain that nobody here gets it: while partitions move, their owner waits for acks.
        """
        target = self._target
        return not target.is_assigned(partition) and (
            target.is_elsewhere(partition) or only_if_offered or target.has_other_owners
        )

    async def _apply(self, partition: int, offset: int, only_if_offered: bool) -> bool:
        """Apply an ack if its partition is live here, else return False.

        Before refusing it as beyond the end, ask the cluster for the end.
        """
        live = self._target.open_partition(partition)
        if live is None:
            return False
        try:
            live.ack(offset, only_if_offered)
        except AckBeyondEnd:
            end = await self._environment.ends.ask(self._target.topic, partition)
            live = self._target.open_partition(partition)
            if live is None:
                return False
            if end is not None:
                live.offers.end = max(live.offers.end, end)
            live.ack(offset, only_if_offered)
        return True

    def _check(self, partition: int, deadline: float, refusal: PixyError) -> None:
        """Raise if there is nothing to wait for."""
        target = self._target
        if target.draining and not target.awaits(partition) and not target.has_other_owners:
            raise ShuttingDown
        if self._environment.backend.topic(target.topic) is None:
            raise UnknownTopic(f"unknown topic {target.topic}")
        if self._monotonic() >= deadline:
            raise refusal

    @contextmanager
    def _watching(self) -> Iterator[SmallEvent]:
        """An event that is set when partitions come or go."""
        changed = SmallEvent()
        self._watchers[changed] = None
        try:
            yield changed
        finally:
            self._watchers.pop(changed, None)

    def _not_here(self, partition: int) -> Unavailable:
        topic, group = self._target.topic, self._target.group_name
        return Unavailable(
            f"ack not accepted: {topic}/{partition} is not assigned to this process for {group}"
        )

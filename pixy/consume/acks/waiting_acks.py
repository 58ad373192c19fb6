"""Acks of one subscription that cannot be applied at once.

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

The acks of a partition wait together, in a lane with one task (`ack_lane`). A lane that waits has
no timer but that of its earliest deadline or its next attempt. It looks again when partitions come
or go, of which the subscription tells, and when the alarm of the subscription sees a change of
which nobody tells.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from typing import NamedTuple, Protocol

import structlog

from pixy.aio.futures import SmallEvent
from pixy.aio.retries import Backoff
from pixy.aio.steps import in_steps
from pixy.backend import TopicPartition
from pixy.consume.acks.ack_lane import AckDone, AckLane, AckOutcome, NotAnswered, WaitingAck, not_here
from pixy.consume.acks.passed_acks import owner_backoff, pass_acks
from pixy.consume.core import UNDECIDED, Alarm, Client, ConsumeRequest, TimerHandle, address_of
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
    UnknownTopic,
)

_LEASE_LOOK_S = 0.1
_LONG_S = 1.0
"""Pauses between two looks of a subscription, without a lease and with one, which may end
meanwhile.
"""
_LOOK_S = 0.00005
"""Further pause for each ack that waits, of any subscription: those of thousands of subscriptions
take a part of the time.
"""
_WOKEN_AT_ONCE = 20

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


class _Seen(NamedTuple):
    """A part of the state of a subscription, of whose changes nobody tells."""

    has_lease: bool
    has_topic: bool
    has_other_owners: bool


class WaitingAcks:
    """Acks of one subscription that wait.

    Args:
        environment: the cluster, options, time and tasks.
        target: the subscription.
    """

    __slots__ = (
        "_alarm",
        "_changes",
        "_environment",
        "_lanes",
        "_monotonic",
        "_passed",
        "_seen",
        "_target",
    )

    def __init__(self, environment: ConsumeEnvironment, target: AckTarget) -> None:
        self._environment = environment
        self._target = target
        self._monotonic = environment.timers.monotonic
        # By partition, and by whether they count only if the record is outstanding; none is empty.
        self._lanes: dict[tuple[int, bool], AckLane] = {}
        # Calls of other nodes that wait. They do not keep a subscription, which is for clients
        # here.
        self._passed: dict[SmallEvent, None] = {}
        # Number of times that partitions have come or gone.
        self._changes = 0
        # Seen by the last that began to wait, or by the alarm.
        self._seen: _Seen | None = None
        # Invariant: set while somebody waits.
        self._alarm: Alarm | None = None

    def __bool__(self) -> bool:
        """True while acks of clients here wait."""
        return bool(self._lanes)

    def notify(self) -> None:
        """Partitions have come or gone."""
        self._changes += 1
        if self._lanes or self._passed:
            self._environment.waking.run(self._wake())

    def _wake(self) -> Iterator[None]:
        """Wake all that wait, some in each step."""
        events = [*self._passed, *(lane.changed for lane in self._lanes.values())]
        for number, event in enumerate(events, 1):
            event.set()
            if not number % _WOKEN_AT_ONCE:
                yield

    # --- requests of clients ----------------------------------------------------------------------

    def consume(
        self,
        request: ConsumeRequest,
        ack: tuple[int, int],
        done: ConsumeDone,
        deadline: float | None,
        client: Client | None,
    ) -> PendingRequest | None:
        """Settle the ack of a consume request, then consume."""
        now = self._monotonic()
        limit = now + self._environment.options.long_polling_timeout
        until = limit if deadline is None else min(deadline, limit)
        waiting = _RequestWithAck(request, ack, done, until)
        settled, partition = partial(self._settled, waiting), ack[0]
        if not self._has_others and self._is_for_others(partition, request.ack_if_offered):
            settled(not_here(self._target.group_name, self._target.topic, partition))
            return waiting.waiter
        try:
            self._add(ack, request.ack_if_offered, settled, client, with_request=True)
        except TooManyRequests as error:
            done(None, error)
            return None
        waiting.timer = self._environment.timers.call_later(until - now, lambda: self._go_on(waiting, None))
        return waiting

    def _settled(self, waiting: _RequestWithAck, error: PixyError | None) -> None:
        """The ack of a request is answered."""
        if waiting.timer is not None:
            waiting.timer.cancel()
        does_not_fit = isinstance(error, ResourceExhausted) and not isinstance(error, TooManyRequests)
        refused = error if does_not_fit or isinstance(error, InvalidArgument | ShuttingDown) else None
        # A record is gone with its topic.
        if error is not None and not isinstance(error, UnknownTopic) and (refused is None or waiting.over):
            self._warn_lost(waiting.ack, error)
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

    def ack(
        self, ack: tuple[int, int], only_if_offered: bool, done: AckDone, client: Client | None = None
    ) -> None:
        """Settle an ack."""
        try:
            self._add(ack, only_if_offered, done, client)
        except TooManyRequests as error:
            done(error)

    def _add(
        self,
        ack: tuple[int, int],
        only_if_offered: bool,
        done: AckDone,
        client: Client | None,
        *,
        with_request: bool = False,
    ) -> None:
        partition, offset = ack
        address = address_of(client)
        self._environment.ack_limit.take(address)
        self.adopt(partition, WaitingAck(offset, done, address, with_request=with_request), only_if_offered)

    def adopt(self, partition: int, ack: WaitingAck, only_if_offered: bool = False) -> None:
        """Settle an ack that the limit has counted."""
        lane = self._lanes.get((partition, only_if_offered))
        if lane is None:
            target, environment = self._target, self._environment
            lane = AckLane(
                environment, target.group_name, target.topic, partition, only_if_offered=only_if_offered
            )
            self._lanes[partition, only_if_offered] = lane
            name = f"acks of {lane.topic}/{partition} for {lane.group}"
            environment.tasks.spawn(self._run(lane), name, partial(self._abort, lane))
        lane.add(ack)

    # --- lanes ------------------------------------------------------------------------------------

    async def _run(self, lane: AckLane) -> None:
        """Apply the acks of a partition where it is live, here or elsewhere."""
        backoff = owner_backoff()
        while lane.acks:
            lane.changed.clear()
            seen = self._see()
            await self._apply(lane)
            await self._give_up(lane)
            pause = await self._look_elsewhere(lane, backoff) if lane.acks else 0.0
            if pause:
                self._watch(seen)
                pause = min(pause, lane.deadline - self._monotonic())
                await self._environment.timers.wait(lane.changed, pause)
        self._ended(lane)

    def _ended(self, lane: AckLane) -> None:
        self._lanes.pop((lane.partition, lane.only_if_offered), None)
        self._unwatch()

    def _abort(self, lane: AckLane, error: PixyError) -> None:
        self._ended(lane)
        lane.abort(error)

    async def _apply(self, lane: AckLane) -> None:
        """Apply acks while the partition is live here. Before refusing those that are beyond the
        end, ask the cluster for it.
        """
        partition = lane.partition
        while lane.acks and (live := self._target.open_partition(partition)) is not None:
            known = live.offers.end
            if not await lane.decide(lambda ack: self._outcome(lane, ack, beyond=NotAnswered.WAITS)):
                continue
            asking = len(lane.acks)
            try:
                await self._ask_end(partition)
            except PixyError as error:
                failed = error
                await lane.decide(
                    lambda ack: failed if ack.offset >= known else NotAnswered.WAITS,  # noqa: B023 - in this iteration
                    asking,
                )
            else:
                await lane.decide(partial(self._outcome, lane), asking)

    async def _ask_end(self, partition: int) -> None:
        """Ask the cluster for the end of a partition that may be live here."""
        end = await self._environment.ends.ask(self._target.topic, partition)
        live = self._target.open_partition(partition)
        if live is not None and end is not None:
            live.offers.end = max(live.offers.end, end)

    def _outcome(self, lane: AckLane, ack: WaitingAck, beyond: NotAnswered | None = None) -> AckOutcome:
        """Apply an ack. One that is beyond the end has the outcome `beyond`, if there is one."""
        live = self._target.open_partition(lane.partition)
        if live is None:
            return NotAnswered.WAITS
        try:
            live.ack(ack.offset, lane.only_if_offered)
        except AckBeyondEnd as error:
            return beyond or error
        except PixyError as error:
            return error
        return None

    async def _give_up(self, lane: AckLane) -> None:
        """Answer acks that have nothing to wait for."""
        target = self._target
        if target.draining and not target.awaits(lane.partition) and not target.has_other_owners:
            await lane.answer(ShuttingDown())
        elif self._environment.backend.topic(target.topic) is None:
            await lane.answer(UnknownTopic(f"unknown topic {target.topic}"))
        else:
            await lane.expire(self._monotonic())

    async def _look_elsewhere(self, lane: AckLane, backoff: Backoff) -> float:
        """Have another owner apply acks.

        Returns:
            Seconds until the next look at the latest, 0 if some were answered.
        """
        target, partition = self._target, lane.partition
        if not self._is_for_others(partition, lane.only_if_offered):
            if not lane.only_if_offered or target.holds(partition) or not target.has_lease:
                return inf
            await lane.answer(None)  # it starts: nothing is outstanding
            return 0.0
        has_others = self._has_others
        if not has_others:
            refusal = not_here(lane.group, lane.topic, partition)
            await lane.decide(lambda ack: refusal if ack.with_request else NotAnswered.WAITS)
        if not lane.acks or await self._are_passed(lane, has_others):
            backoff.reset()
            return 0.0
        return backoff.grow() if has_others else inf

    async def _are_passed(self, lane: AckLane, has_others: bool) -> bool:
        """Pass acks to the owner; False if none was answered."""
        changes = self._changes
        try:
            if await self._pass(lane):
                return True
            if not lane.only_if_offered:
                return False
            await lane.answer(None)  # without an owner nothing is outstanding
        except UNDECIDED as error:
            lane.refusal = error
            if has_others or isinstance(error, OwnerUndecided):
                return False
            await lane.answer(error)
        except AckElsewhere as error:
            if changes != self._changes or not self._target.is_elsewhere(lane.partition):
                return False
            await lane.answer(error)
        return True

    async def _pass(self, lane: AckLane) -> bool:
        """Pass acks to the owner, see `pass_acks`, unless the partition may be here by now."""
        partition, first = TopicPartition(lane.topic, lane.partition), lane.acks[0]
        passing = self._environment.passing
        async with passing.turn(lane.group, partition, first.address, lane.deadline):
            if not self._is_for_others(lane.partition, lane.only_if_offered):
                return True
            return await pass_acks(self._environment, lane)

    @property
    def _has_others(self) -> bool:
        """True if other processes that can be asked may own partitions."""
        return self._target.has_other_owners or self._environment.backend.may_have_neighbours

    def _is_for_others(self, partition: int, only_if_offered: bool) -> bool:
        """True if the owner of a partition is to be asked, who may be unknown yet. Not only when it
        is certain that nobody here gets it: while partitions move, their owner waits for acks.
        """
        target = self._target
        return not target.is_assigned(partition) and (
            target.is_elsewhere(partition) or only_if_offered or target.has_other_owners
        )

    # --- acks that other nodes pass ---------------------------------------------------------------

    async def ack_passed(
        self, partition: int, offsets: Sequence[int], only_if_offered: bool
    ) -> dict[int, PixyError | None]:
        """Settle acks that another process passes on, as the owner of their partition.

        Returns:
            Outcomes of acks by their positions, of one at least. None if an ack counts or has no
            effect. The others are to be passed again.

        Raises:
            OwnedElsewhere: the partition is not here, or not any more.
            PixyError: the cluster cannot be asked for the end of the partition.
        """
        while True:
            seen = self._see()
            outcomes = await self._ack_here(partition, offsets, only_if_offered)
            if outcomes:
                return outcomes
            if not self._target.awaits(partition):
                raise OwnedElsewhere(f"{self._target.topic}/{partition} is not consumed by this node")
            changed = SmallEvent()
            self._passed[changed] = None
            try:
                self._watch(seen)
                await changed.wait()
            finally:
                del self._passed[changed]
                self._unwatch()

    async def _ack_here(
        self, partition: int, offsets: Sequence[int], only_if_offered: bool
    ) -> dict[int, PixyError | None]:
        """Apply acks while the partition is live here. If all are beyond its end, ask the cluster
        for it.
        """
        outcomes = await self._ack_all(partition, offsets, only_if_offered)
        beyond = {at: error for at, error in outcomes.items() if isinstance(error, AckBeyondEnd)}
        if not beyond or len(beyond) < len(outcomes):
            return {at: error for at, error in outcomes.items() if at not in beyond}
        await self._ask_end(partition)
        return await self._ack_all(partition, offsets, only_if_offered)

    async def _ack_all(
        self, partition: int, offsets: Sequence[int], only_if_offered: bool
    ) -> dict[int, PixyError | None]:
        outcomes: dict[int, PixyError | None] = {}
        async for at, offset in in_steps(enumerate(offsets)):
            live = self._target.open_partition(partition)
            if live is None:
                break
            try:
                live.ack(offset, only_if_offered)
                outcomes[at] = None
            except PixyError as error:
                outcomes[at] = error
        return outcomes

    # --- changes of which nobody tells ------------------------------------------------------------

    def _see(self) -> _Seen:
        target = self._target
        has_topic = self._environment.backend.topic(target.topic) is not None
        return _Seen(target.has_lease, has_topic, target.has_other_owners)

    def _watch(self, seen: _Seen) -> None:
        """Wake those that wait when anything is not as somebody has seen it who begins to wait."""
        if self._alarm is None:
            self._alarm = Alarm(self._environment.timers, self._look)
        if seen != self._seen:
            self._seen = seen
            self.notify()
        self._set_alarm(self._monotonic())

    def _look(self, now: float) -> None:
        seen = self._see()
        if seen != self._seen:
            self._seen = seen
            self.notify()
        self._set_alarm(now)

    def _set_alarm(self, now: float) -> None:
        assert self._alarm is not None
        pause = _LONG_S if self._target.has_lease else _LEASE_LOOK_S
        self._alarm.at(now + pause + _LOOK_S * self._environment.ack_limit.waiting)

    def _unwatch(self) -> None:
        """Look no more if nobody waits."""
        if self._alarm is not None and not self._lanes and not self._passed:
            self._alarm.cancel()
            self._alarm = None

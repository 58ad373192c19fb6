"""A subscription: one topic that one consumer group consumes through this process.

Owns the dispatcher and the live partitions, and decides when the subscription ends. The consumer
group decides which partitions are live.

Nearly all requests find the partition of their ack live and are served synchronously. The others,
acks while their partition is starting or sealed, or beyond the known end, take one owned task each,
at most `channel_buffer_size` of them.

The subscription ends when no request came or waited for `subscription_timeout`, and nothing is
outstanding any more. One timer is set to the earliest time at which this can be true; requests do
not touch it. The states, with those of a rebalance and of the drain, are those of
`subscription_state`. Partitions that may go to another process are held, then sealed; the others
continue, and so do those that stay after all.

When the topic is deleted, its partitions are closed and their offers void. Waiting consume requests
are then treated like requests for a missing topic by `on_missing`: the topic is created again and
they keep waiting, or they are answered. Waiting acks are answered `UnknownTopic`.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from pixy.backend import Backend, TopicPartition
from pixy.consume.dispatcher import ConsumeDone, Dispatcher, PendingRequest, Waiter
from pixy.consume.environment import ConsumeEnvironment
from pixy.consume.offset_tracker import OffsetTracker
from pixy.consume.partition import LivePartition
from pixy.consume.subscription_state import SubscriptionEvent, SubscriptionState
from pixy.consume.timers import Alarm
from pixy.errors import (
    AckBeyondEnd,
    AckElsewhere,
    InvalidAck,
    InvalidArgument,
    OwnerUndecided,
    PixyError,
    ShuttingDown,
    TooManyRequests,
    Unavailable,
    UnknownTopic,
)

__all__ = ["AckDone", "Subscription", "SubscriptionHost", "ack_elsewhere", "check_ack"]

Covers = Callable[[str, int], bool]
"""True for a topic and the number of a partition that is meant."""

AckDone = Callable[[PixyError | None], None]
"""Called once: with None if the ack counts or has no effect, else with the error."""

_log = structlog.get_logger()


def ack_elsewhere(group: str, partition: TopicPartition, owner: str) -> AckElsewhere:
    """The answer to an ack of a record in a partition of another process."""
    topic, number = partition
    return AckElsewhere(f"ack not accepted: {topic}/{number} of {group} is consumed by {owner}; ack it there")


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


class SubscriptionHost(Protocol):
    """The consumer group, as a subscription sees it."""

    name: str

    def mark_dirty(self, partition: LivePartition) -> None: ...
    def subscription_over(self, subscription: "Subscription") -> None: ...
    def is_elsewhere(self, topic: str, partition: int) -> bool: ...
    def check_quiet(self) -> None: ...


class _SlowRequest:
    """A consume request that waits for its ack to be settled."""

    __slots__ = ("ack", "ack_if_offered", "auto_ack", "cancelled", "deadline", "done", "waiter")

    def __init__(
        self, done: ConsumeDone, auto_ack: bool, ack: tuple[int, int], ack_if_offered: bool, deadline: float
    ) -> None:
        self.done = done
        self.auto_ack = auto_ack
        self.ack = ack
        self.ack_if_offered = ack_if_offered
        self.deadline = deadline
        self.cancelled = False
        self.waiter: Waiter | None = None

    def cancel(self) -> None:
        """The caller is gone; its ack still counts."""
        self.cancelled = True
        if self.waiter is not None:
            self.waiter.cancel()

    def abort(self, error: PixyError) -> None:
        """The task of the request was cancelled or failed."""
        if not self.cancelled:
            self.done(None, error)


class Subscription:
    """One topic of one consumer group.

    Args:
        environment: the cluster, options, time and tasks.
        host: the consumer group.
        topic: the topic's name.
        on_quiet: called during the drain whenever nothing is outstanding.
    """

    def __init__(
        self,
        environment: ConsumeEnvironment,
        host: SubscriptionHost,
        topic: str,
        on_quiet: Callable[[], None],
    ) -> None:
        self._environment = environment
        self._host = host
        self.group_name = host.name
        self.topic = topic
        self._on_quiet = on_quiet
        # The topic at the first request.
        self._first = environment.backend.topic(topic)
        options = environment.options
        self.dispatcher = Dispatcher(options.channel_buffer_size, options.long_polling_timeout)
        self._live: dict[int, LivePartition] = {}
        # The live partitions that accept acks. Invariant: all but the sealed ones, which are held.
        self._open: dict[int, LivePartition] = {}
        # Numbers of the live partitions that are held.
        self._held: set[int] = set()
        self._monotonic = environment.timers.monotonic
        # Time of the last consume request.
        self._last_request = self._monotonic()
        self._state = SubscriptionState.OPEN
        # Somebody waits until nothing is outstanding, of held partitions at least.
        self.watching = False
        # Number of acks with a task of their own, and the events of those that wait for a
        # partition.
        self._slow = 0
        self._watchers: set[asyncio.Event] = set()
        self._polls = Alarm(environment.timers, self._expire_polls)
        self._idle = Alarm(environment.timers, self._check_idle)
        self._idle.at(self._last_request + options.subscription_timeout)

    @property
    def outstanding(self) -> int:
        """Number of outstanding offers."""
        return sum(live.offers.outstanding for live in self._live.values())

    @property
    def waiting_acks(self) -> int:
        """Number of acks with a task of their own."""
        return self._slow

    @property
    def draining(self) -> bool:
        """Nothing is offered any more."""
        return self._state is SubscriptionState.DRAINING

    @property
    def holding(self) -> bool:
        """Partitions may go to another process, and nothing of them is offered."""
        return bool(self._held)

    @property
    def partitions(self) -> Iterable[LivePartition]:
        """The live partitions."""
        return self._live.values()

    def live(self, partition: int) -> LivePartition | None:
        """The partition, if it is live."""
        return self._live.get(partition)

    def has_seen_birth(self, topic_id: bytes, partition: int) -> bool:
        """True if the partition was created after this subscription."""
        first = self._first
        return first is None or topic_id != first.topic_id or partition >= len(first.partitions)

    # --- requests ---------------------------------------------------------------------------------

    def consume(
        self,
        done: ConsumeDone,
        auto_ack: bool,
        ack: tuple[int, int] | None,
        ack_if_offered: bool,
        deadline: float | None,
    ) -> PendingRequest | None:
        """See `Consumers.consume`."""
        now = self._last_request = self._monotonic()
        if self.watching:
            self._resume(now)
        if ack is not None:
            live = self._open.get(ack[0])
            if live is None:
                self._check_partition(ack)
                if not ack_if_offered or ack[0] in self._live:
                    return self._consume_slowly(done, auto_ack, ack, ack_if_offered, deadline, now)
            else:
                try:
                    live.ack(ack[1], ack_if_offered)
                except AckBeyondEnd:
                    return self._consume_slowly(done, auto_ack, ack, ack_if_offered, deadline, now)
        waiter = self.dispatcher.consume(done, auto_ack, deadline, now)
        if waiter is not None and waiter.deadline < self._polls.when:
            self._polls.at(waiter.deadline)
        return waiter

    def ack(self, partition: int, offset: int, done: AckDone, only_if_offered: bool) -> None:
        """See `Consumers.ack`."""
        error: PixyError | None = None
        try:
            live = self._open.get(partition)
            if live is not None:
                live.ack(offset, only_if_offered)
            else:
                self._check_partition((partition, offset))
                if not only_if_offered or partition in self._live:
                    self._ack_slowly((partition, offset), only_if_offered, done)
                    return
        except AckBeyondEnd:
            self._ack_slowly((partition, offset), only_if_offered, done)
            return
        except PixyError as refused:
            error = refused
        done(error)

    def _check_partition(self, ack: tuple[int, int]) -> None:
        check_ack(self._environment.backend, self.topic, ack)

    # --- acks that cannot be settled at once ------------------------------------------------------

    def _consume_slowly(
        self,
        done: ConsumeDone,
        auto_ack: bool,
        ack: tuple[int, int],
        ack_if_offered: bool,
        deadline: float | None,
        now: float,
    ) -> PendingRequest | None:
        if self._slow_is_full():
            done(None, self._too_many())
            return None
        limit = now + self._environment.options.long_polling_timeout
        until = limit if deadline is None else min(deadline, limit)
        request = _SlowRequest(done, auto_ack, ack, ack_if_offered, until)
        self._slow += 1
        name = f"consume {self.topic} for {self.group_name}"
        self._environment.tasks.spawn(self._run_consume(request), name, request.abort)
        return request

    async def _run_consume(self, request: _SlowRequest) -> None:
        refused: PixyError | None = None
        try:
            await self._settle(request.ack, request.ack_if_offered, request.deadline)
        except (InvalidArgument, ShuttingDown) as error:
            refused = error
        except UnknownTopic:
            pass  # the record is gone with its topic
        except PixyError as error:
            partition, offset = request.ack
            _log.warning(
                "ack of a consume request is lost, the record will be offered again",
                group=self.group_name,
                topic=self.topic,
                partition=partition,
                offset=offset,
                error=str(error),
            )
        finally:
            self._slow -= 1
        if request.cancelled:
            return
        if refused is None and self.draining:
            refused = ShuttingDown()
        if refused is not None:
            request.done(None, refused)
            return
        now = self._monotonic()
        request.waiter = self.dispatcher.consume(request.done, request.auto_ack, request.deadline, now)
        if request.waiter is not None:
            self._polls.at(request.waiter.deadline)
            if self._environment.backend.topic(self.topic) is None:
                self.topic_deleted()

    def _ack_slowly(self, ack: tuple[int, int], only_if_offered: bool, done: AckDone) -> None:
        if self._slow_is_full():
            done(self._too_many())
            return
        self._slow += 1
        name = f"ack {self.topic} for {self.group_name}"
        work = self._run_ack(ack, only_if_offered, done)
        self._environment.tasks.spawn(work, name, done)

    async def _run_ack(self, ack: tuple[int, int], only_if_offered: bool, done: AckDone) -> None:
        outcome: PixyError | None = None
        try:
            deadline = self._monotonic() + self._environment.options.long_polling_timeout
            await self._settle(ack, only_if_offered, deadline, wait_elsewhere=True)
        except PixyError as error:
            outcome = error
        finally:
            self._slow -= 1
        done(outcome)

    async def _settle(
        self, ack: tuple[int, int], only_if_offered: bool, deadline: float, *, wait_elsewhere: bool = False
    ) -> None:
        """Apply an ack once its partition is live.

        Before refusing it as beyond the end, ask the cluster for the end.
        """
        partition, offset = ack
        live = await self._wait_live(partition, deadline, wait_elsewhere)
        try:
            live.ack(offset, only_if_offered)
        except AckBeyondEnd:
            ranges = await self._environment.backend.offset_ranges(self.topic)
            live = await self._wait_live(partition, deadline, wait_elsewhere)
            if partition in ranges:
                live.offers.end = max(live.offers.end, ranges[partition].end)
            live.ack(offset, only_if_offered)

    async def _wait_live(self, partition: int, deadline: float, wait_elsewhere: bool) -> LivePartition:
        while True:
            live = self._open.get(partition)
            if live is not None:
                return live
            if self.draining and partition not in self._held:
                raise ShuttingDown
            if self._environment.backend.topic(self.topic) is None:
                raise UnknownTopic(f"unknown topic {self.topic}")
            now = self._monotonic()
            elsewhere = self._host.is_elsewhere(self.topic, partition)
            if now >= deadline or (elsewhere and not wait_elsewhere):
                raise Unavailable(
                    f"ack not accepted: {self.topic}/{partition} is not assigned to this process for {self.group_name}"
                )
            event = asyncio.Event()
            self._watchers.add(event)
            try:
                if elsewhere:
                    await self._refuse_elsewhere(partition, event)
                await self._environment.timers.wait(event, deadline - now)
            finally:
                self._watchers.discard(event)

    async def _refuse_elsewhere(self, partition: int, changed: asyncio.Event) -> None:
        """Raise `AckElsewhere` if another process owns the partition, unless partitions have
        changed meanwhile.
        """
        key = TopicPartition(self.topic, partition)
        try:
            owner = await self._environment.backend.partition_owner(self.group_name, key)
        except OwnerUndecided:
            return
        if owner is not None and not changed.is_set():
            raise ack_elsewhere(self.group_name, key, owner.client_id)

    def _slow_is_full(self) -> bool:
        return self._slow >= self._environment.options.channel_buffer_size

    def _too_many(self) -> TooManyRequests:
        return TooManyRequests(
            f"Too many requests. Consider increasing `consumer.channel_buffer_size`: {self._slow} acks of this consumer "
            f"group and topic are waiting already"
        )

    # --- partitions -------------------------------------------------------------------------------

    def add(self, partition: int, tracker: OffsetTracker, end: int, topic_id: bytes) -> LivePartition:
        """Make a partition live."""
        assert partition not in self._live
        live = LivePartition(self._environment, self, partition, tracker, end, topic_id)
        self._live[partition] = self._open[partition] = live
        live.start()
        return live

    def remove(self, partition: int, *, replaced: bool = False) -> LivePartition:
        """Close a partition, as `LivePartition.close`. Its position can still be committed."""
        live = self._live.pop(partition)
        self._open.pop(partition, None)
        self._held.discard(partition)
        self._watch()
        live.close(replaced=replaced)
        counters, offers = self._environment.counters, live.offers
        counters.offered += offers.offered
        counters.acked += offers.acked
        counters.expired += offers.expired
        counters.dropped += offers.dropped
        return live

    def topic_deleted(self) -> None:
        """Treat waiting requests as requests for a missing topic."""
        if self.dispatcher.waiting:
            self._environment.on_missing(self.topic, self.dispatcher.fail_all)

    def notify(self) -> None:
        """Partitions have come or gone: wake the acks that wait for one."""
        if self.watching:
            self.check_quiet()
        for event in self._watchers:
            event.set()

    # --- states -----------------------------------------------------------------------------------

    def _become(self, event: SubscriptionEvent) -> None:
        self._state = self._state.after(event)
        self._watch()

    def _watch(self) -> None:
        self.watching = self._state.watches_offers or bool(self._held)

    def hold(self, covers: Covers) -> None:
        """Offer nothing more of some partitions; acks are accepted."""
        for number, live in self._live.items():
            if covers(self.topic, number) and number not in self._held:
                self._held.add(number)
                live.hold()
        self._watch()

    def outstanding_held(self, covers: Covers) -> int:
        """Number of outstanding offers of some held partitions."""
        held = (number for number in self._held if covers(self.topic, number))
        return sum(self._live[number].offers.outstanding for number in held)

    def seal(self, covers: Covers) -> None:
        """Let acks of some held partitions wait."""
        for number in self._held:
            if covers(self.topic, number):
                self._open.pop(number, None)

    def release(self, covers: Covers) -> None:
        """Continue with the held partitions that are covered no more."""
        released = [number for number in self._held if not covers(self.topic, number)]
        for number in released:
            self._held.remove(number)
            self._open[number] = self._live[number]
        self._watch()
        for number in released:
            self._live[number].release()
        if not self.draining:
            self._idle.at(self._monotonic())

    def mark_dirty(self, partition: LivePartition) -> None:
        self._host.mark_dirty(partition)

    # --- ending -----------------------------------------------------------------------------------

    def stop_offering(self) -> None:
        """Offer nothing more, and answer waiting requests with `ShuttingDown`.

        Acks are still accepted.
        """
        self._become(SubscriptionEvent.DRAIN)
        self._idle.cancel()
        self._polls.cancel()
        for live in self._live.values():
            live.stop_fetching()
        self.dispatcher.fail_all(ShuttingDown())
        self.notify()

    def close(self) -> list[LivePartition]:
        """Close every partition; their positions can still be committed."""
        self._become(SubscriptionEvent.CLOSE)
        self._idle.cancel()
        self._polls.cancel()
        return [self.remove(partition) for partition in list(self._live)]

    def check_quiet(self) -> None:
        if self._held:
            self._host.check_quiet()
        if self.outstanding:
            return
        if self.draining:
            self._on_quiet()
        else:
            self._check_idle(self._monotonic())

    def _check_idle(self, now: float) -> None:
        options = self._environment.options
        if self._held:  # `release` checks again
            return
        due = self._last_request + options.subscription_timeout
        if self.dispatcher.waiting or self._slow:
            due = max(due, now + options.subscription_timeout)
        if now < due:
            self._become(SubscriptionEvent.REQUEST)
            self._idle.at(due)
            return
        if self.outstanding:
            self._become(SubscriptionEvent.TIMEOUT)
            return
        unacked = sum(live.offers.pending for live in self._live.values())
        if unacked:
            _log.warning(
                "subscription ends with records that are not acked",
                group=self.group_name,
                topic=self.topic,
                unacked=unacked,
            )
        self._host.subscription_over(self)

    def _resume(self, now: float) -> None:
        """A request keeps an idle subscription: acks need not check for the end any more."""
        if self._state is SubscriptionState.IDLE:
            self._become(SubscriptionEvent.REQUEST)
            self._idle.at(now + self._environment.options.subscription_timeout)

    def _expire_polls(self, now: float) -> None:
        self.dispatcher.expire(now)
        deadline = self.dispatcher.next_deadline()
        if deadline is not None:
            self._polls.at(deadline)

"""A subscription: one topic that one consumer group consumes through this process.

Owns the dispatcher and the live partitions, and decides when the subscription ends. The consumer
group decides which partitions are live.

Nearly all requests find the partition of their ack live and are served synchronously. The acks of
all others wait (`waiting_acks`).

The subscription ends when no request came or waited for `subscription_timeout`, and nothing is
outstanding any more. One timer is set to the earliest time at which this can be true; requests do
not touch it. The states, with those of a rebalance and of the drain, are those of
`subscription_state`. Partitions that may go to another process are held, then sealed; the others
continue, and so do those that stay after all.

When the topic is deleted, its partitions are closed and their offers void. Waiting consume requests
are then treated like requests for a missing topic by `on_missing`: the topic is created again and
they keep waiting, or they are answered. Requests that do not want it created are answered
`TopicMissing`, waiting acks `UnknownTopic`.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf
from typing import Protocol

import structlog

from pixy.consume.acks import AckDone, WaitingAcks, check_ack
from pixy.consume.core import (
    Alarm,
    Client,
    ConsumeRequest,
    OffsetTracker,
    SubscriptionEvent,
    SubscriptionState,
)
from pixy.consume.lending import Borrower, Lender, RecordPosition
from pixy.consume.memory import Demand
from pixy.consume.partition import (
    ConsumeDone,
    ConsumeEnvironment,
    Dispatcher,
    LivePartition,
    PendingRequest,
    Waiter,
)
from pixy.errors import (
    AckBeyondEnd,
    InvalidAck,
    PixyError,
    ResourceExhausted,
    ShuttingDown,
    TopicMissing,
)

Covers = Callable[[str, int], bool]
"""True for a topic and the number of a partition that is meant."""

_PATIENCE_S = 0.02
_LONG_PATIENCE_S = 0.1
"""Time that a request waits for records of this node before other owners are asked: if there have
been none for so long, and while some are coming.
"""
_WARM_S = 1.0
"""Other owners are asked at once this long after one has lent a record, if none came here since."""
_OWNERS_LOOK_S = 1.0
_OWNER_LOOK_S = 0.25
"""Pauses between looks for other owners, if there are some and if nothing at all is known to be
owned.
"""
_DRAIN_S = 5.0
"""Time without a loan in each `subscription_timeout` of a subscription without requests: it ends
once nothing is outstanding, also at other nodes.
"""
_RENEWAL_LOOK_S = 0.1
"""Pause between two looks for a new lease, while requests wait for it."""

_ACTIVE_S = 5.0
"""Time without a request after which nobody is expected to ask for more."""

_log = structlog.get_logger()


class SubscriptionHost(Protocol):
    """The consumer group, as a subscription sees it."""

    name: str

    def mark_dirty(self, partition: LivePartition) -> None: ...
    def mark_handed_out(self, partition: LivePartition) -> None: ...
    def mark_kept(self) -> None: ...
    def subscription_over(self, subscription: "Subscription") -> None: ...
    def is_assigned(self, topic: str, partition: int) -> bool: ...
    def is_elsewhere(self, topic: str, partition: int) -> bool: ...
    def check_quiet(self) -> None: ...
    def check_late(self, subscription: "Subscription") -> None: ...
    def check_held(self, subscription: "Subscription") -> None: ...


class Subscription:
    """One topic of one consumer group.

    Args:
        environment: the cluster, options, time and tasks.
        host: the consumer group.
        topic: the topic's name.
        on_quiet: called during the drain whenever nothing is outstanding.
    """

    __slots__ = (
        "_acks_beside",
        "_borrowing",
        "_environment",
        "_first",
        "_has_other_owners",
        "_held",
        "_host",
        "_idle",
        "_last_request",
        "_live",
        "_monotonic",
        "_on_quiet",
        "_open",
        "_polls",
        "_renewal",
        "_state",
        "_woken_at",
        "acks",
        "borrower",
        "dispatcher",
        "group_name",
        "lender",
        "topic",
        "watching",
    )

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
        self._held: dict[int, None] = {}
        self._monotonic = environment.timers.monotonic
        # Time of the last consume request.
        self._last_request = self._monotonic()
        # Time of the last record of a partition here, or of its return.
        self._woken_at = -inf
        self._state = SubscriptionState.OPEN
        # Somebody waits until nothing is outstanding, of held partitions at least.
        self.watching = False
        self._has_other_owners = False
        # `_ack_beside` has not been answered.
        self._acks_beside = False
        self.acks = WaitingAcks(environment, self)
        self.lender = Lender(environment.timers, self.dispatcher, self._acked_elsewhere)
        self.borrower = Borrower(environment, host.name, topic, self.dispatcher, self.check_owing)
        self._borrowing = Alarm(environment.timers, self._look_elsewhere)
        self._polls = Alarm(environment.timers, self._expire_polls)
        self._renewal = Alarm(environment.timers, self._look_for_lease)
        self._idle = Alarm(environment.timers, self._idle_due)
        self._idle.at(self._last_request + options.subscription_timeout)

    @property
    def outstanding(self) -> int:
        """Number of outstanding offers."""
        return sum(live.offers.outstanding for live in self._live.values())

    @property
    def draining(self) -> bool:
        """Nothing is offered any more."""
        return self._state is SubscriptionState.DRAINING

    @property
    def holding(self) -> bool:
        """Partitions may go to another process, and nothing of them is offered."""
        return bool(self._held)

    @property
    def partitions(self) -> Collection[LivePartition]:
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
        request: ConsumeRequest,
        done: ConsumeDone,
        deadline: float | None,
        client: Client | None = None,
    ) -> PendingRequest | None:
        """See `Consumers.consume`."""
        now = self._last_request = self._monotonic()
        if self.watching:
            self._resume(now)
        ack = request.ack
        if ack is not None:
            live = self._open.get(ack[0]) if now < self.dispatcher.lease.until else None
            if live is None:
                self._check_partition(ack)
                if not request.ack_if_offered or self._may_be_offered(ack[0]):
                    return self.acks.consume(request, ack, done, deadline, client)
                self._ack_beside(ack)
            else:
                try:
                    live.ack(ack[1], request.ack_if_offered)
                except AckBeyondEnd:
                    return self.acks.consume(request, ack, done, deadline, client)
        waiter = self.dispatcher.consume(done, request.auto_ack, deadline, now, request.must_exist)
        if waiter is not None:
            self._wait(waiter, now)
        return waiter

    def _wait(self, waiter: Waiter, now: float) -> None:
        """A request waits."""
        if self.dispatcher.faults:
            self._host.check_held(self)
        if waiter.deadline < self._polls.when:
            self._polls.at(waiter.deadline)
        if now >= self.dispatcher.lease.until:
            self._renewal.at(now + _RENEWAL_LOOK_S)
        if self._patience(now):
            self._borrowing.at(now + _PATIENCE_S)
        else:
            self._look_elsewhere(now)

    def wake(self, partition: LivePartition) -> None:
        """A partition has a record to offer."""
        now = self._woken_at = self._monotonic()
        self.dispatcher.wake(partition, now)
        if now >= self.dispatcher.lease.until:
            self._renewal.at(now + _RENEWAL_LOOK_S)

    def demand(self, now: float) -> Demand:
        """Demand for records of partitions that may offer some."""
        if self.draining or now >= self.dispatcher.lease.until:
            return Demand.NONE
        if self.dispatcher.starving:
            return Demand.WAITING
        if self.lender.active or now - self._last_request < _ACTIVE_S:
            return Demand.SERVED
        return Demand.NONE

    def _look_elsewhere(self, now: float) -> None:
        """Ask other owners for records if requests wait long, or if there are none here."""
        oldest = self.dispatcher.oldest()
        if oldest is None:
            return
        due = oldest + self._patience(now)
        if now < due:
            self._borrowing.at(due)
        elif self.borrower.ask():
            self._borrowing.at(now + _OWNERS_LOOK_S)
        elif not self._live:
            self._borrowing.at(now + _OWNER_LOOK_S)

    def _patience(self, now: float) -> float:
        """Time that a request waits for records of this node before other owners are asked."""
        borrowed_at = self.borrower.borrowed_at
        if not self._live or (borrowed_at > self._woken_at and now < borrowed_at + _WARM_S):
            return 0.0
        return _PATIENCE_S if now >= self._woken_at + _PATIENCE_S else _LONG_PATIENCE_S

    def _acked_elsewhere(self, position: RecordPosition) -> None:
        """A record that is not lent any more was delivered with auto ack."""
        live = self._open.get(position.partition)
        if live is not None:
            with suppress(InvalidAck, ResourceExhausted):
                live.ack(position.offset)

    def check_owing(self) -> None:
        """Called when other nodes may have heard of all their records."""
        if self.draining:
            self._on_quiet()

    def _look_for_lease(self, now: float) -> None:
        """Go on with a new lease; without one look again as long as requests wait for it."""
        self.dispatcher.serve(now)
        if self.dispatcher.stalled(now):
            self._renewal.at(now + _RENEWAL_LOOK_S)

    def ack(
        self, partition: int, offset: int, done: AckDone, only_if_offered: bool, client: Client | None = None
    ) -> None:
        """See `Consumers.ack`."""
        error: PixyError | None = None
        try:
            live = self.open_partition(partition)
            if live is not None:
                live.ack(offset, only_if_offered)
            else:
                self._check_partition((partition, offset))
                if not only_if_offered or self._may_be_offered(partition):
                    self.acks.ack((partition, offset), only_if_offered, done, client)
                    return
        except AckBeyondEnd:
            self.acks.ack((partition, offset), only_if_offered, done, client)
            return
        except PixyError as refused:
            error = refused
        done(error)

    def _may_be_offered(self, partition: int) -> bool:
        """True if records of a partition that is not open may be outstanding, as far as this node
        knows.
        """
        return partition in self._live or self.has_other_owners

    def _ack_beside(self, ack: tuple[int, int]) -> None:
        """Ack a record if it is outstanding at an owner that this node has not heard of. No request
        waits for that, because few of these acks count; one of them at a time is enough.
        """
        if self._environment.backend.may_have_neighbours and not self._acks_beside:
            self._acks_beside = True
            self.acks.ack(ack, True, self._acked_beside)

    def _acked_beside(self, _: PixyError | None) -> None:
        self._acks_beside = False

    def _check_partition(self, ack: tuple[int, int]) -> None:
        check_ack(self._environment.backend, self.topic, ack)

    # --- waiting acks -----------------------------------------------------------------------------

    def open_partition(self, partition: int) -> LivePartition | None:
        """The partition, if it is live and accepts acks. Without a lease it accepts none: it may be
        another node's already, which would not hear of them.
        """
        return self._open.get(partition) if self.has_lease else None

    @property
    def has_lease(self) -> bool:
        """True while no other node can have the partitions that are assigned here."""
        return self._monotonic() < self.dispatcher.lease.until

    def awaits(self, partition: int) -> bool:
        """True if a partition is or may be assigned here, and is not open at this moment."""
        return self.holds(partition) or not (self.draining or self.is_elsewhere(partition))

    def holds(self, partition: int) -> bool:
        """True if a partition is live and may go."""
        return partition in self._held

    def is_assigned(self, partition: int) -> bool:
        """True if a partition is assigned to this process."""
        return self._host.is_assigned(self.topic, partition)

    def is_elsewhere(self, partition: int) -> bool:
        """True if a partition is known not to be assigned to this process."""
        return self._host.is_elsewhere(self.topic, partition)

    @property
    def has_other_owners(self) -> bool:
        """True if other nodes that can be asked have partitions of the topic, or had."""
        if not self._has_other_owners:
            owners = self._environment.backend.other_owners(self.group_name, self.topic)
            self._has_other_owners = bool(owners)
        return self._has_other_owners

    def consume_now(self, done: ConsumeDone, auto_ack: bool, deadline: float) -> Waiter | None:
        """Go on with a request whose ack is settled."""
        now = self._monotonic()
        waiter = self.dispatcher.consume(done, auto_ack, deadline, now)
        if waiter is not None:
            self._wait(waiter, now)
            if self._environment.backend.topic(self.topic) is None:
                self.topic_deleted()
        return waiter

    # --- partitions -------------------------------------------------------------------------------

    def add(
        self, partition: int, tracker: OffsetTracker, end: int, topic_id: bytes, handed_out: int
    ) -> LivePartition:
        """Make a partition live."""
        assert partition not in self._live
        live = LivePartition(self._environment, self, partition, tracker, end, topic_id, handed_out)
        self._live[partition] = self._open[partition] = live
        live.start()
        return live

    def remove(self, partition: int, *, replaced: bool = False, reset: bool = False) -> LivePartition:
        """Remove a partition, whose offers are void as by `LivePartition.void`. Its position can
        still be committed.
        """
        live = self._live.pop(partition)
        self._open.pop(partition, None)
        self._held.pop(partition, None)
        self._watch()
        live.void(replaced=replaced, reset=reset)
        self._environment.ended.add(self.group_name, self.topic, live.offers)
        self._environment.ending.add(live.stop_fetching)
        return live

    def topic_deleted(self) -> None:
        """Treat waiting requests as requests for a missing topic."""
        self.dispatcher.fail_where_it_must_exist(TopicMissing(f"topic {self.topic} was deleted"))
        if self.dispatcher.waiting:
            self._environment.on_missing(self.topic, self.dispatcher.fail_all)

    def notify(self) -> None:
        """Partitions have come or gone: wake the acks that wait for one."""
        if self.watching:
            self.check_quiet()
        self.acks.notify()

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
                self._held[number] = None
                live.hold()
        self._watch()

    def outstanding_held(self, covers: Covers) -> int:
        """Number of outstanding offers of some held partitions."""
        held = (number for number in self._held if covers(self.topic, number))
        return sum(self._live[number].offers.outstanding for number in held)

    def seal(self, covers: Covers) -> None:
        """Let acks of some held partitions wait, and count those that were answered, and what may
        be with clients of other nodes.
        """
        goes = frozenset(number for number in self._held if covers(self.topic, number))
        self.lender.settle_kept(goes.__contains__)
        for number in self.lender.count_as_out(goes.__contains__):
            self._live[number].mark_handed_out()
        for number in goes:
            self._open.pop(number, None)

    def release(self, covers: Covers) -> None:
        """Continue with the held partitions that are covered no more."""
        released = [number for number in self._held if not covers(self.topic, number)]
        for number in released:
            del self._held[number]
            self._open[number] = self._live[number]
        self._watch()
        for number in released:
            self._live[number].release()
        if not self.draining:
            self._idle.at(self._monotonic())

    def mark_dirty(self, partition: LivePartition) -> None:
        self._host.mark_dirty(partition)

    def mark_handed_out(self, partition: LivePartition) -> None:
        self._host.mark_handed_out(partition)

    def ack_kept(self, partition: LivePartition, offset: int) -> None:
        self._host.mark_kept()
        self.lender.keep_ack(RecordPosition(partition.partition, offset))

    # --- ending -----------------------------------------------------------------------------------

    def stop_offering(self) -> None:
        """Offer nothing more, and answer waiting requests with `ShuttingDown`.

        Acks are still accepted.
        """
        self._become(SubscriptionEvent.DRAIN)
        self._cancel_alarms()
        self.lender.pause(inf)
        self.borrower.close()
        for live in self._live.values():
            live.stop_fetching()
        self.dispatcher.fail_all(ShuttingDown())
        self.notify()

    def close(self) -> list[LivePartition]:
        """Remove every partition; their positions can still be committed. Partitions are closed
        later, `ConsumeEnvironment.ending` waits for that.
        """
        self._become(SubscriptionEvent.CLOSE)
        self._cancel_alarms()
        self.lender.close()
        self.borrower.close()
        removed = list(self._live.values())
        self._live.clear()
        self._open.clear()
        self._held.clear()
        self._watch()
        for live in removed:
            live.closed = True
            self._environment.ended.add(self.group_name, self.topic, live.offers)
        self._environment.ending.run_whole(map(LivePartition.close, removed))
        return removed

    def _cancel_alarms(self) -> None:
        for alarm in (self._idle, self._polls, self._renewal, self._borrowing):
            alarm.cancel()

    def check_quiet(self) -> None:
        if self._held:
            self._host.check_quiet()
        if self.outstanding:
            return
        if self.draining:
            self._on_quiet()
        else:
            self._check_idle(self._monotonic())

    def _idle_due(self, _: float) -> None:
        self._environment.ending.add(self._check_idle_later)

    def _check_idle_later(self) -> None:
        if self._state in (SubscriptionState.OPEN, SubscriptionState.IDLE):
            self._check_idle(self._monotonic())

    def _check_idle(self, now: float) -> None:
        options = self._environment.options
        if self._held:  # `release` checks again
            return
        due = self._last_request + options.subscription_timeout
        if self.dispatcher.waiting or self.acks:
            due = max(due, now + options.subscription_timeout)
        if now < due:
            self._become(SubscriptionEvent.REQUEST)
            self._idle.at(due)
            return
        if self.outstanding:
            self._become(SubscriptionEvent.TIMEOUT)
            self.lender.pause(now + _DRAIN_S)
            self._idle.at(now + options.subscription_timeout)
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
            self.lender.resume()
            self._idle.at(now + self._environment.options.subscription_timeout)

    def _expire_polls(self, now: float) -> None:
        self._host.check_late(self)
        try:
            self.dispatcher.expire(now, self._environment.backend.fault)
        finally:
            deadline = self.dispatcher.next_deadline()
            if deadline is not None:
                self._polls.at(deadline)

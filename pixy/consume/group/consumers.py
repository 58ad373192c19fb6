"""All consumer groups of one proxy: the entry point of consume requests, acks and offsets.

Owns the groups and the subscriptions by (group, topic); everything else belongs to the groups. A
request finds its subscription with one dictionary lookup; the first request for a group and topic
creates it.

    serving -> draining     `stop_offering`, immediate: consume answers ShuttingDown, acks of live
                            partitions are accepted
    draining -> stopped     `drain`: nothing is outstanding, or the time is up; everything is
                            committed, all groups are left
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial

from pixy.aio.futures import SmallEvent
from pixy.aio.steps import in_steps
from pixy.aio.tasks import Tasks
from pixy.backend import Backend, OffsetCommit, OffsetRange, TopicPartition
from pixy.config import ConsumerConfig
from pixy.consume.acks import AckDone, UnsubscribedAcks, WaitingAcks
from pixy.consume.core import (
    METADATA_BYTES_MAX,
    Client,
    ClientShares,
    ConsumeRequest,
    JoinTurns,
    OfferLimits,
    PartitionLimit,
    PassingTurns,
    Timers,
    WaitingAckLimit,
    address_of,
)
from pixy.consume.group.consumer_calls import ConsumerCalls
from pixy.consume.group.group import ConsumerGroup
from pixy.consume.group.subscription import Subscription
from pixy.consume.memory import Unpack, Unpacking, bounded_pins
from pixy.consume.partition import (
    METADATA_PER_COMMIT,
    ConsumeCounters,
    ConsumeDone,
    ConsumeEnvironment,
    EndQuestions,
    LivePartition,
    OnMissing,
    PendingRequest,
    bounded_fetches,
)
from pixy.errors import (
    InvalidOffset,
    MetadataTooLarge,
    PixyError,
    ServiceDisabled,
    ShuttingDown,
    TooManyRequests,
    Unavailable,
    UnknownPartition,
)
from pixy.faults import OnFault
from pixy.metrics import Histogram

NEWEST = -1
OLDEST = -2
"""Special offsets of `set_offsets`: the end of the log, and its beginning."""


class _State(Enum):
    SERVING = 1
    DRAINING = 2
    STOPPED = 3


class Consumers:
    """All consumer groups of one proxy.

    Args:
        backend: the cluster.
        options: the `consumer` section of the configuration.
        client_id: the name of this process in consumer groups.
        timers: clock and timers.
        on_missing: called when a topic is deleted while requests wait for its records.
        on_fault: called with an exception that is a bug.
        unpack: decompresses large batches; None means on a thread.
        client_share_percent: part of the groups and subscriptions that the clients of one address
            may have.
    """

    def __init__(  # noqa: PLR0913  each is another part
        self,
        backend: Backend,
        options: ConsumerConfig,
        client_id: str,
        timers: Timers,
        *,
        on_missing: OnMissing,
        on_fault: OnFault,
        unpack: Unpack | None = None,
        client_share_percent: int = 100,
    ) -> None:
        limits = OfferLimits(
            ack_timeout=options.ack_timeout,
            pending_max=options.max_pending_messages,
            pending_bytes_max=options.max_pending_bytes,
            retries_max=options.max_retries,
            buffer_bytes_max=options.fetch_max_bytes,
        )
        tasks = Tasks(on_fault)
        self._environment = ConsumeEnvironment(
            backend,
            options,
            client_id,
            timers,
            tasks,
            limits,
            on_missing,
            Unpacking(options.max_unpacked_bytes, timers, unpack),
            bounded_fetches(options.max_fetched_bytes, timers),
            bounded_pins(options.max_fetched_bytes, timers),
            PartitionLimit(options.max_partitions, client_share_percent),
            JoinTurns(timers, client_share_percent),
            PassingTurns(timers, client_share_percent),
            WaitingAckLimit(options.max_waiting_acks, client_share_percent),
            EndQuestions(backend, tasks),
        )
        self._groups: dict[str, ConsumerGroup] = {}
        self._group_shares = ClientShares[str](options.max_groups, client_share_percent)
        self._subscription_shares = ClientShares[tuple[str, str]](
            options.max_subscriptions, client_share_percent
        )
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._state = _State.SERVING
        # Consume requests are refused. Invariant: true in every state but SERVING, if consuming is
        # disabled, and once this process has left its cluster.
        self._refusing = options.disabled
        self._why_left = ""
        self._quiet = SmallEvent()
        # Bound once: each group would have its own.
        self._callbacks = self._on_over, self._on_empty
        self._quiet_callback = self._on_quiet
        self._unsubscribed = UnsubscribedAcks(self._environment, self._acks_of, self._subscribe_for_ack)
        calls = ConsumerCalls(
            self._check_serving_nodes,
            self._groups.get,
            lambda group, topic: self._subscriptions.get((group, topic)),
            partial(self.set_offsets, passed=True),
        )
        backend.serve_nodes(calls.answer)

    @property
    def outstanding(self) -> int:
        """Number of offers that are outstanding."""
        return sum(subscription.outstanding for subscription in self._subscriptions.values())

    def counters(self) -> ConsumeCounters:
        """Totals since the start."""
        ended, total = self._environment.ended, ConsumeCounters()
        for past in (ended.beyond, *ended.by_topic.values()):
            total.add(past)
        for subscription in self._subscriptions.values():
            for live in subscription.partitions:
                total.add(live.offers)
        return total

    async def counters_by_topic(self) -> dict[tuple[str, str], ConsumeCounters]:
        """Totals since the start, by group and topic. Of pairs that are not consumed here any more
        the newest ten thousand are there.
        """
        counters = {pair: replace(past) for pair, past in self._environment.ended.by_topic.items()}
        async for pair, live in in_steps(self._live_partitions()):
            counters.setdefault(pair, ConsumeCounters()).add(live.offers)
        return counters

    async def queues(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Records that are not acked, and requests that wait, by group and topic."""
        queues = {pair: (0, each.dispatcher.waiting) for pair, each in self._subscriptions.items()}
        async for pair, live in in_steps(self._live_partitions()):
            if live.offers.pending:
                unacked, waiting = queues.get(pair, (0, 0))
                queues[pair] = unacked + live.offers.pending, waiting
        return queues

    def _live_partitions(self) -> Iterator[tuple[tuple[str, str], LivePartition]]:
        """Partitions with their group and topic, which may change meanwhile."""
        for pair, subscription in list(self._subscriptions.items()):
            for live in list(subscription.partitions):
                yield pair, live

    @property
    def ack_latency(self) -> Histogram:
        """Time from the delivery of a record to its ack, in seconds."""
        return self._environment.ack_latency

    def counts(self) -> dict[str, int]:
        """Current numbers, by name."""
        subscriptions = self._subscriptions.values()
        return {
            "consumer_groups": len(self._groups),
            "subscriptions": len(subscriptions),
            "waiting_consumers": sum(each.dispatcher.waiting for each in subscriptions),
            "waiting_acks": self._environment.ack_limit.waiting,
            "offers": self.outstanding,
            "unpacked_bytes": self._environment.unpacking.held_bytes,
            "fetched_bytes": self._environment.fetched.held_bytes,
            "consumer_tasks": len(self._environment.tasks),
        }

    def consume(
        self,
        request: ConsumeRequest,
        done: ConsumeDone,
        deadline: float | None = None,
        client: Client | None = None,
    ) -> PendingRequest | None:
        """Ask for the next record of a topic, for a consumer group.

        Args:
            request: names a valid group and an existing topic.
            done: called once with an offer or an error, unless the request is cancelled; possibly
                before this returns.
            deadline: on the monotonic clock; the long polling timeout applies if it is earlier.
            client: the caller, None for another node.

        Returns:
            The pending request, None if `done` has been called.

        Raises:
            InvalidAck: partition or offset of the ack is invalid; `done` is not called. An offset
                beyond the end is known only after asking the cluster, so `done` gets that error.
            ResourceExhausted: the ack does not fit into a commit; `done` is not called.
        """
        if self._refusing:
            self._refuse(request, done)
            return None
        subscription = self._subscriptions.get((request.group, request.topic))
        if subscription is None:
            try:
                subscription = self._subscribe(request.group, request.topic, address_of(client))
            except TooManyRequests as error:
                done(None, error)
                return None
        return subscription.consume(request, done, deadline, client)

    def ack(
        self,
        group: str,
        topic: str,
        partition: int,
        offset: int,
        done: AckDone,
        *,
        only_if_offered: bool = False,
        client: Client | None = None,
    ) -> None:
        """Ack one record.

        Args:
            group: the consumer group, a valid name.
            topic: an existing topic.
            partition: the record's partition.
            offset: its offset.
            done: called once, before this returns if the partition is live here.
            only_if_offered: the ack counts only if the record is outstanding.
            client: the caller, None for another node.
        """
        if self._environment.options.disabled:
            done(ServiceDisabled())
            return
        subscription = self._subscriptions.get((group, topic))
        if self._state is _State.STOPPED:
            done(ShuttingDown())
            return
        if subscription is None:
            if only_if_offered:
                done(None)
            else:
                self._unsubscribed.ack(group, topic, (partition, offset), done, client)
            return
        subscription.ack(partition, offset, done, only_if_offered, client)

    def _acks_of(self, group: str, topic: str) -> WaitingAcks | None:
        """Those of a subscription, if there is one."""
        subscription = self._subscriptions.get((group, topic))
        return None if subscription is None else subscription.acks

    def _subscribe_for_ack(self, group: str, topic: str, address: str) -> WaitingAcks:
        if self._state is not _State.SERVING:
            raise ShuttingDown
        return self._subscribe(group, topic, address).acks

    async def set_offsets(
        self, group: str, topic: str, offsets: Mapping[int, OffsetCommit], *, passed: bool = False
    ) -> None:
        """Set the offsets of a consumer group, for all partitions or none.

        The outstanding offers of these partitions become void: an ack for one counts only once its
        record is offered again.

        Args:
            group: the consumer group, a valid name.
            topic: an existing topic.
            offsets: by partition; `OLDEST` and `NEWEST` are allowed. An offset beyond the end is
                committed as it is, and the group continues at the end until the log gets there.
                Metadata other than sparse acks is committed and acks nothing; it has
                `METADATA_BYTES_MAX` bytes at most, and all of it `METADATA_PER_COMMIT`.
            passed: see `ConsumerGroup.set_offsets`.

        Raises:
            UnknownPartition: the topic has no such partition.
            InvalidOffset: an offset is negative.
            MetadataTooLarge: metadata is.
            UnknownTopic: there is no such topic.
            OwnedElsewhere: another process consumes a partition.
            TooManyRequests: the limit of consumer groups is reached.
            ShuttingDown: the drain is over.
        """
        self._check_not_stopped()
        backend = self._environment.backend
        ranges = await backend.offset_ranges(topic, offsets.keys())
        known = backend.topic(topic)
        count = len(ranges) if known is None else len(known.partitions)
        commits: dict[TopicPartition, OffsetCommit] = {}
        metadata_bytes = 0
        async for partition, commit in in_steps(offsets.items()):
            key = TopicPartition(topic, partition)
            commits[key] = _resolve(key, commit, ranges, count)
            metadata_bytes += _checked_bytes(key, commit.metadata)
        if metadata_bytes > METADATA_PER_COMMIT:
            raise MetadataTooLarge(
                f"the metadata of {len(commits)} offsets has {metadata_bytes} bytes, {METADATA_PER_COMMIT} are "
                "allowed in a call: set some of the offsets in another one"
            )
        if not commits:
            return
        self._check_not_stopped()
        await self._group(group).set_offsets(commits, ranges, passed=passed)

    def stop_offering(self) -> None:
        """Begin to drain: offer nothing more, and answer waiting requests at once."""
        if self._state is not _State.SERVING:
            return
        self._state = _State.DRAINING
        self._refusing = True
        for subscription in list(self._subscriptions.values()):
            subscription.stop_offering()

    def leave_cluster(self, reason: str) -> None:
        """This process has left its cluster for good: answer waiting requests, and later ones, with
        `Unavailable`. Acks are still accepted.
        """
        self._refusing, self._why_left = True, reason
        for subscription in list(self._subscriptions.values()):
            subscription.dispatcher.fail_all(Unavailable(reason))

    async def drain(self, timeout: float) -> None:
        """Wait for outstanding acks, at most `timeout` seconds, then commit everything and leave
        all groups.
        """
        self.stop_offering()
        timers = self._environment.timers
        until = timers.monotonic() + timeout
        while (self.outstanding or self._owing) and timers.monotonic() < until:
            self._quiet.clear()
            await timers.wait(self._quiet, until - timers.monotonic())
        self._state = _State.STOPPED
        await asyncio.gather(*(group.stop() for group in list(self._groups.values())))
        await self._environment.tasks.cancel_all()

    def drain_waits(self) -> list[str]:
        """The things that `drain` waits for at the moment, in words."""
        offers, waits = self.outstanding, []
        if offers:
            waits.append(f"{offers} ack{'' if offers == 1 else 's'} of messages that are out")
        if self._owing:
            waits.append("other nodes to be told of their messages")
        return waits

    def _check_serving_nodes(self) -> None:
        if self._environment.options.disabled:
            raise ServiceDisabled
        self._check_not_stopped()

    def _check_not_stopped(self) -> None:
        if self._state is _State.STOPPED:
            raise ShuttingDown

    def _refuse(self, request: ConsumeRequest, done: ConsumeDone) -> None:
        if self._environment.options.disabled:
            done(None, ServiceDisabled())
            return
        if request.ack is not None:
            self.ack(
                request.group, request.topic, *request.ack, _ignore, only_if_offered=request.ack_if_offered
            )
        is_draining = self._state is not _State.SERVING
        done(None, ShuttingDown() if is_draining else Unavailable(self._why_left))

    def _subscribe(self, group: str, topic: str, address: str) -> Subscription:
        limit = self._environment.options.max_subscriptions
        if len(self._subscriptions) >= limit:
            raise _too_many(
                "max_subscriptions", f"{limit} topics are consumed here, each counted per consumer group"
            )
        if self._subscription_shares.is_used_up(address):
            raise _share_used_up("max_subscriptions", self._subscription_shares.share, "topics")
        known = self._environment.backend.topic(topic)
        partitions = 0 if known is None else len(known.partitions)
        self._environment.partition_limit.check(topic, partitions, address)
        subscription = self._group(group, address).subscribe(topic, self._quiet_callback)
        self._subscription_shares.take((group, topic), address)
        self._subscriptions[group, topic] = subscription
        self._environment.partition_limit.begin((group, topic), partitions, address)
        return subscription

    def _group(self, name: str, address: str = "") -> ConsumerGroup:
        group = self._groups.get(name)
        if group is None:
            limit = self._environment.options.max_groups
            if len(self._groups) >= limit:
                raise _too_many("max_groups", f"this process takes part in {limit} consumer groups")
            if self._group_shares.is_used_up(address):
                raise _share_used_up("max_groups", self._group_shares.share, "consumer groups")
            self._group_shares.take(name, address)
            group = self._groups[name] = ConsumerGroup(self._environment, name, address, *self._callbacks)
        return group

    def _on_over(self, subscription: Subscription) -> None:
        del self._subscriptions[subscription.group_name, subscription.topic]
        self._environment.partition_limit.release((subscription.group_name, subscription.topic))
        self._subscription_shares.release((subscription.group_name, subscription.topic))

    def _on_empty(self, group: ConsumerGroup) -> None:
        if group.idle:
            self._groups.pop(group.name, None)
            self._group_shares.release(group.name)

    @property
    def _owing(self) -> bool:
        """Other nodes wait to hear what became of their records."""
        return any(subscription.borrower.owing for subscription in self._subscriptions.values())

    def _on_quiet(self) -> None:
        if not self.outstanding and not self._owing:
            self._quiet.set()


def _ignore(_: PixyError | None) -> None:
    """Answer of the ack in a refused request."""


def _too_many(option: str, what: str) -> TooManyRequests:
    return TooManyRequests(
        f"Too many requests. Consider increasing `consumer.{option}`: {what} already"
    ).at_limit(f"consumer.{option}")


def _share_used_up(option: str, share: int, what: str) -> TooManyRequests:
    return TooManyRequests(
        f"Too many requests. Clients of this address consume {share} {what} at this node already, which is their share "
        f"(`client_share_percent`) of `consumer.{option}`"
    ).at_limit(f"client_share_percent of consumer.{option}")


def _resolve(
    key: TopicPartition, commit: OffsetCommit, ranges: Mapping[int, OffsetRange], count: int
) -> OffsetCommit:
    """The commit of a partition, with special offsets resolved; raises if it is invalid."""
    served = ranges.get(key.partition)
    if served is None:
        raise UnknownPartition(f"{key.topic} has no partition {key.partition}, only 0 to {count - 1}")
    offset = {OLDEST: served.begin, NEWEST: served.end}.get(commit.offset, commit.offset)
    if offset < 0:
        raise InvalidOffset(
            f"offset {offset} of {key.topic}/{key.partition} is out of range: expected 0 or more, "
            f"{OLDEST} for the oldest or {NEWEST} for the newest"
        )
    return OffsetCommit(offset, commit.metadata)


def _checked_bytes(key: TopicPartition, metadata: str) -> int:
    """Size of the metadata of an offset; raises if it is too large."""
    size = len(metadata.encode())
    if size > METADATA_BYTES_MAX:
        raise MetadataTooLarge(
            f"the metadata of {key.topic}/{key.partition} has {size} bytes, {METADATA_BYTES_MAX} are allowed"
        )
    return size

"""The membership of this process in one consumer group: assignment, and live partitions.

Owns the membership, the subscriptions by topic, and one task, the keeper; `commits` has the
positions to commit. The keeper reconciles the cluster with the subscriptions, step by step, and
starts over after every change:

    1. commit the positions of partitions that are closed, until none is left
    2. join, change the subscribed topics, or leave
    3. for every assigned partition that is not live: read the committed offset, adjust it, commit
       the adjustment, make the partition live

So a topic that is unsubscribed and subscribed again is committed before it is read, and nobody
gives up a partition before its acks are committed: nothing is awaited between the last look for
positions and the choice of the topics. The keeper ends when nothing is left to do, and begins again
with the next change: a task is a large part of what a group at rest takes.

Rebalances: the backend calls `_revoke` before partitions may go to another process (`revocations`).
The next assignment ends this. Partitions that stay continue with their offers; offers of those that
are gone are void at once, because another process reads and commits there already.

A topic may be deleted and created again at any moment, so its name does not identify it: state that
is kept across an await carries the topic's id. A partition that is live for another id is closed,
and its position is void.

The initial position without a committed offset is that of `initial_offset`; but the beginning for a
partition created after the subscription, because everything in it is newer than the group.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import NamedTuple

import structlog

from pixy.aio.futures import SmallEvent, reject, resolve
from pixy.aio.retries import Backoff
from pixy.aio.steps import in_steps
from pixy.backend import ConsumerMembership, OffsetCommit, OffsetRange, TopicPartition
from pixy.consume.core import OffsetTracker, Remark, Resets, first_of_each, first_position, is_long, resume
from pixy.consume.group.revocations import Revocations
from pixy.consume.group.subscription import Subscription
from pixy.consume.partition import ConsumeEnvironment, GroupCommits, LivePartition
from pixy.errors import (
    DeadlineExceeded,
    HeldByOtherProtocol,
    OffsetsSet,
    OwnedElsewhere,
    OwnerUndecided,
    PixyError,
    ResourceExhausted,
    Unavailable,
)
from pixy.proto.consumer_calls_pb2 import ConsumerCall, SetOffsets

_SET_S = 10.0
"""Patience with owners that set offsets."""
_LAST_COMMIT_S = 3.0
"""Longest wait for the commit at the stop: a change of leaders takes two."""
_MOVING_S = 3.0
"""Time for a group to be joined again when the drain of a move is over, before offsets are set."""
_BACKOFF_MIN = 0.1
_BACKOFF_MAX = 5.0
_SOON_S = 0.5
"""Time that partitions have to answer before those that have are consumed."""
_ELECTION_S = 5.0
"""Time that the others have: longer than the election of a leader takes."""
_STARTED_PER_ITERATION = 100
"""Partitions made live in one iteration of the event loop: a topic may have 10 000."""

_NO_PARTITIONS = frozenset[int]()
"""Assigned to the processes that get none, each time the same."""

_MANY_TOPICS = 50
_TOPIC_S = 0.0005
"""Pause for each topic before other topics are subscribed to: 50 ms for a hundred."""

_log = structlog.get_logger()


class _Start(NamedTuple):
    """The position at which a partition becomes live.

    `behind_commit`: the committed offset is beyond the end.
    """

    tracker: OffsetTracker
    end: int
    handed_out: int
    committed: OffsetCommit
    behind_commit: bool


class ConsumerGroup:
    """One consumer group.

    Args:
        environment: the cluster, options, time and tasks.
        name: its name.
        address: the client that it joins for, see `address_of`.
        on_over: called when a subscription has ended.
        on_empty: called when the group may be idle.
    """

    __slots__ = (
        "_address",
        "_assignment",
        "_changes",
        "_commits",
        "_ending",
        "_environment",
        "_keeper",
        "_membership",
        "_on_empty",
        "_on_over",
        "_pausing",
        "_revocations",
        "_setting",
        "_stopping",
        "_subscribed_at",
        "_subscriptions",
        "_topics",
        "_work",
        "name",
        "resets",
    )

    def __init__(
        self,
        environment: ConsumeEnvironment,
        name: str,
        address: str,
        on_over: Callable[[Subscription], None],
        on_empty: Callable[["ConsumerGroup"], None],
    ) -> None:
        self._environment = environment
        self.name = name
        self._address = address
        self._on_over = on_over
        self._on_empty = on_empty
        self._subscriptions: dict[str, Subscription] = {}
        self._membership: ConsumerMembership | None = None
        # The topics of the membership, sorted. Invariant: empty exactly while there is no
        # membership.
        self._topics: list[str] = []
        # Assigned partitions by topic. A subscribed topic without an entry: not known yet.
        self._assignment: dict[str, frozenset[int]] = {}
        # Number of assignments, of revocations of everything, and of sets of offsets.
        self._changes = 0
        self.resets = Resets(name, environment.backend)
        self._commits = GroupCommits(environment, name)
        # Partitions of subscriptions that are over may not have ended yet.
        self._ending = False
        # Number of `set_offsets` in progress.
        self._setting = 0
        # When the group has subscribed to `_topics`.
        self._subscribed_at = float("-inf")
        # A timer wakes the keeper to subscribe to others.
        self._pausing = False
        self._work = SmallEvent()
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False
        self._revocations = Revocations(name, environment.timers, lambda: self.subscriptions, self._commits)

    @property
    def idle(self) -> bool:
        """True if the group can be forgotten."""
        return self._keeper is None and not self._subscriptions and not self._setting

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        return list(self._subscriptions.values())

    # --- topics -----------------------------------------------------------------------------------

    def subscribe(self, topic: str, on_quiet: Callable[[], None]) -> Subscription:
        """Begin to consume a topic."""
        assert topic not in self._subscriptions
        subscription = Subscription(self._environment, self, topic, on_quiet)
        if self._membership is not None:
            subscription.dispatcher.lease = self._membership.lease
        self._subscriptions[topic] = subscription
        self._wake_keeper()
        return subscription

    def subscription_over(self, subscription: Subscription) -> None:
        """End a subscription without requests."""
        del self._subscriptions[subscription.topic]
        for live in subscription.close():
            self._commits.keep(live)
        self._ending = True
        self.resets.retain(lambda key: key.topic != subscription.topic)
        self._on_over(subscription)
        self._wake_keeper()

    def is_assigned(self, topic: str, partition: int) -> bool:
        """True if the partition is assigned to this process."""
        return partition in self._assignment.get(topic, ())

    def is_elsewhere(self, topic: str, partition: int) -> bool:
        """True if the partition is known not to be assigned to this process."""
        assigned = self._assignment.get(topic)
        return assigned is not None and partition not in assigned and not self._revocations.cover_everything

    def check_late(self, subscription: Subscription) -> None:
        """Have requests whose time is up told if the group cannot know whether there are records:
        it has not begun to consume the topic, and nobody else has.
        """
        faults, topic = subscription.dispatcher.faults, subscription.topic
        assigned = self._assignment.get(topic) if topic in self._topics else None
        has_begun = assigned is not None and (
            not assigned or self._keeper is None or len(subscription.partitions) > 0
        )
        backend = self._environment.backend
        if has_begun or faults or not backend.joins_at_once or subscription.has_other_owners:
            return
        waiting = self._environment.join_turns.waiting(self._address)
        faults[self] = Unavailable(
            f"consumer group {self.name} has not begun to consume {topic} yet, and {waiting} groups of its client wait to "
            "be joined; try again"
        )

    def _wake_keeper(self) -> None:
        self._work.set()
        if self._keeper is None and not self._stopping:
            self._keeper = self._environment.tasks.spawn(self._keep(), f"keep consumer group {self.name}")

    def _assigned(self, assignment: Mapping[str, Sequence[int]]) -> None:
        """Callback of the backend with the whole assignment."""
        self._changes += 1
        self._assignment = {
            topic: frozenset(partitions) if partitions else _NO_PARTITIONS
            for topic, partitions in assignment.items()
        }
        for topic in self._topics:
            self._assignment.setdefault(topic, _NO_PARTITIONS)
        self._revocations.assigned()
        self.resets.retain(lambda key: key.partition in self._assignment.get(key.topic, ()))
        for key in self._commits.lose_leftover(self.is_elsewhere):
            self._warn(Remark("acks are lost, their partition went elsewhere", key, {}))
        for topic, subscription in list(self._subscriptions.items()):
            assigned = self._assignment.get(topic, _NO_PARTITIONS)
            description = self._environment.backend.topic(topic)
            topic_id = None if description is None else description.topic_id
            for live in list(subscription.partitions):
                replaced = live.topic_id != topic_id
                if replaced or live.partition not in assigned:
                    self._lose(subscription.remove(live.partition, replaced=replaced))
            if description is None:
                subscription.topic_deleted()
            subscription.release(self._revocations.covers)
            subscription.notify()
        self._wake_keeper()

    def _lose(self, live: LivePartition) -> None:
        """A partition was revoked."""
        if self._commits.lose(live):
            remark = "acks that were not committed are lost, their records will be handed out again"
            self._warn(Remark(remark, live.key, {}))

    async def _revoke(self, seconds: float, partitions: Mapping[str, Collection[int]] | None = None) -> None:
        """Callback of the backend before partitions may go to another process, in `seconds`."""
        if partitions is None:
            self._changes += 1
        await self._revocations.run(seconds, partitions)

    def check_quiet(self) -> None:
        """Called by a subscription that holds partitions."""
        self._revocations.check_quiet()

    def _offsets_set(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Callback of the backend when another node has set offsets of partitions of this one.

        Their offers are void at once; acks wait until the partitions are live at the new offsets.
        """
        self._changes += 1
        for topic, numbers in partitions.items():
            subscription = self._subscriptions.get(topic)
            for number in numbers:
                key = TopicPartition(topic, number)
                live = None if subscription is None else subscription.live(number)
                self._commits.supersede(key, live)
                if subscription is not None and not self.is_elsewhere(topic, number):
                    self.resets.begin(key)
                if subscription is not None and live is not None:
                    live.lost = True
                    subscription.remove(number, reset=True)
            if subscription is not None:
                subscription.notify()
        self._wake_keeper()

    def check_held(self, subscription: Subscription) -> None:
        """Called by a subscription with faults for which a request waits: if members of another
        protocol have had the group, look at once if they still do.
        """
        if isinstance(subscription.dispatcher.faults.get(self), HeldByOtherProtocol):
            self._wake_keeper()

    # --- the keeper -------------------------------------------------------------------------------

    async def _keep(self) -> None:
        failing = ""
        backoff = Backoff(_BACKOFF_MIN, _BACKOFF_MAX)
        while True:
            self._work.clear()
            try:
                await self._reconcile()
            except Exception as fault:
                error = self._environment.tasks.expected(fault)
                if failing != str(error):
                    failing = str(error)
                    _log.warning("cannot consume, trying again", group=self.name, error=failing)
                await self._environment.timers.wait(self._work, backoff.grow())
                continue
            failing = ""
            backoff.reset()
            if not self._work.is_set() and (self._subscriptions or not self._commits.leftover):
                break
        self._keeper = None
        if not self._subscriptions:
            self._commits.cancel()
            self._on_empty(self)

    async def _reconcile(self) -> None:
        try:
            topics = await self._committed_topics()
            if topics != self._topics and self._may_subscribe(len(topics)):
                await self._subscribe(topics)
        except Exception as fault:
            error = self._environment.tasks.expected(fault)
            for subscription in self.subscriptions:
                subscription.dispatcher.faults[self] = error
                if isinstance(error, HeldByOtherProtocol):
                    subscription.dispatcher.fail_all(error)
            raise error from None
        failed: PixyError | None = None
        for subscription in self.subscriptions:
            try:
                await self._start_assigned(subscription)
            except Exception as fault:
                failed = subscription.dispatcher.faults[self] = self._environment.tasks.expected(fault)
            else:
                subscription.dispatcher.faults.pop(self, None)
        if failed is not None:
            raise failed

    async def _committed_topics(self) -> list[str]:
        """The subscribed topics, once all positions of the other ones are committed: whoever
        unsubscribes a topic cannot commit them any more.
        """
        while True:
            topics = sorted(self._subscriptions)
            ended = set(self._topics).difference(topics)
            if not self._commits.leftover and not (ended and self._commits.lock.locked()):
                return topics
            # A commit under way may fail, and leave positions over.
            await self._commits.commit()

    async def _start_assigned(self, subscription: Subscription) -> None:
        """Make the assigned partitions of a topic live that are not, as many as are allowed."""
        if self._ending:
            # They begin with what an earlier subscription leaves behind.
            self._ending = False
            await self._environment.ending.wait()
        if self._subscriptions.get(subscription.topic) is not subscription:
            return
        assigned = self._assignment.get(subscription.topic, _NO_PARTITIONS)
        limit, live = self._environment.partition_limit, len(subscription.partitions)
        room = limit.count((self.name, subscription.topic), len(assigned)) - live
        if room <= 0 and live < len(assigned):
            raise limit.exceeded((self.name, subscription.topic), subscription.topic, len(assigned))
        missing = sorted(
            partition
            for partition in assigned
            if subscription.live(partition) is None
            and not self._revocations.covers(subscription.topic, partition)
        )
        if not missing:
            return
        description = self._environment.backend.topic(subscription.topic)
        if description is None:
            raise Unavailable(f"{subscription.topic} is assigned but not there yet")
        try:
            await self._start(subscription, missing[:room], description.topic_id)
        except PixyError:
            if self._environment.is_there(subscription.topic, description.topic_id):
                raise
            # The topic was deleted meanwhile; the assignment without it has come or is on its way.
        if len(missing) > room:
            raise limit.exceeded((self.name, subscription.topic), subscription.topic, len(assigned))

    def _may_subscribe(self, topics: int) -> bool:
        """True if the group may subscribe to other topics now. If it has many, changes of some time
        are made in one: each has the names of all topics, and all members go through them.
        """
        timers = self._environment.timers
        pause_s = self._subscribed_at + topics * _TOPIC_S - timers.monotonic()
        if topics < _MANY_TOPICS or pause_s <= 0:
            return True
        if not self._pausing:
            self._pausing = True
            timers.call_later(pause_s, self._end_pause)
        return False

    def _end_pause(self) -> None:
        self._pausing = False
        self._wake_keeper()

    async def _subscribe(self, topics: list[str]) -> None:
        environment = self._environment
        if topics and self._membership is not None:
            await self._membership.subscribe(topics)
        else:
            is_bounded = environment.backend.joins_at_once
            async with environment.join_turns.turn(self._address) if is_bounded else nullcontext():
                topics = sorted(self._subscriptions)
                if bool(topics) == (self._membership is not None):
                    return  # they have come or gone meanwhile, and woken the keeper
                await self._join_or_leave(topics)
        self._topics = topics
        self._subscribed_at = environment.timers.monotonic()
        if topics != sorted(self._subscriptions):
            self._work.set()

    async def _join_or_leave(self, topics: list[str]) -> None:
        if self._membership is not None:
            await self._membership.leave()
            self._membership = None
            self._assignment = {}
            return
        before, environment = self._changes, self._environment
        self._membership = await environment.backend.join_consumer_group(
            self.name, environment.client_id, topics, self._assigned, self._revoke, self._offsets_set
        )
        for subscription in self.subscriptions:
            subscription.dispatcher.lease = self._membership.lease
        if self._changes != before:
            self._know_what_is_elsewhere(topics)

    def _know_what_is_elsewhere(self, topics: Sequence[str]) -> None:
        """The first assignment came before the join returned: topics that it lacks are assigned to
        others. Wake waiting acks.
        """
        for topic in topics:
            if topic not in self._assignment:
                self._assignment[topic] = _NO_PARTITIONS
                if topic in self._subscriptions:
                    self._subscriptions[topic].notify()

    async def _start(self, subscription: Subscription, partitions: Sequence[int], topic_id: bytes) -> None:
        """Make partitions live at the position of the group, first those that answer soon.

        Raises:
            PixyError: the fault of one that does not answer.
        """
        begun = self._changes
        left = await self._start_known(subscription, partitions, topic_id, _SOON_S)
        if left and self._changes == begun:
            left = await self._start_known(subscription, [*left], topic_id, _ELECTION_S)
        for error in left.values():
            raise error

    async def _start_known(
        self, subscription: Subscription, partitions: Sequence[int], topic_id: bytes, patience_s: float
    ) -> Mapping[int, PixyError]:
        """Make those partitions live whose ends are known.

        A rebalance in between aborts this without a commit: another process may have had the
        partitions and be ahead.

        Returns:
            Errors of the others; empty after a rebalance.
        """
        backend, topic = self._environment.backend, subscription.topic
        begun = self._changes
        # Before the lock: this may take until a partition has a leader, and commits go on.
        ranges, unknown = await backend.known_ranges(topic, partitions, patience_s=patience_s)
        if self._changes != begun:
            return {}
        if not ranges and unknown:
            return unknown
        async with self._commits.lock:
            if self._commits.has_leftover(topic):
                # Of an earlier subscription, which has ended meanwhile.
                self._work.set()
                return {}
            committed = await backend.committed_offsets(self.name, topic)
            marks = backend.handed_out(self.name, topic)
            there = [partition for partition in partitions if partition in ranges]
            remarks: list[Remark] = []
            for at in range(0, len(there), _STARTED_PER_ITERATION):
                if at:
                    await asyncio.sleep(0)
                if self._changes != begun:
                    break
                part = there[at : at + _STARTED_PER_ITERATION]
                await self._start_part(subscription, part, topic_id, committed, marks, ranges, remarks)
            # One line for all partitions, of which a client may have set the offsets.
            for first, count in first_of_each(remarks):
                self._warn(first._replace(fields={**first.fields, "partitions": count}))
            if self._changes != begun:
                return {}
        subscription.notify()
        absent = sorted(set(partitions).difference(ranges, unknown))
        missing = {each: Unavailable(f"{topic}/{each} is assigned but not there yet") for each in absent}
        return {**unknown, **missing}

    async def _start_part(
        self,
        subscription: Subscription,
        partitions: Sequence[int],
        topic_id: bytes,
        committed: Mapping[int, OffsetCommit],
        marks: Mapping[int, int],
        ranges: Mapping[int, OffsetRange],
        remarks: list[Remark],
    ) -> None:
        """Make some of the partitions live, unless a rebalance comes in between.

        Args:
            remarks: log messages are added to it.
        """
        topic, begun = subscription.topic, self._changes
        starts: dict[int, _Start] = {}
        changes: dict[TopicPartition, OffsetCommit] = {}
        oldest = self._environment.options.initial_offset == "oldest"
        async for partition in in_steps(partitions):
            key = TopicPartition(topic, partition)
            before, served = committed.get(partition), ranges[partition]
            if before is None:
                self._environment.handed_out.forget(self.name, key)
                tracker = first_position(
                    served, oldest=oldest or subscription.has_seen_birth(topic_id, partition)
                )
            elif is_long(before):
                tracker = await asyncio.to_thread(resume, key, before, served, remarks)
            else:
                tracker = resume(key, before, served, remarks)
            commit = OffsetCommit(tracker.base, tracker.metadata())
            # What a client has set is not adjusted before there is an ack.
            was_set = before is not None and key in self.resets
            if commit != before and not was_set:
                changes[key] = commit
            behind = was_set and before is not None and before.offset > served.end
            mark = marks.get(partition) if before is not None else tracker.base
            mark = self._mark(key, topic_id, mark, tracker)
            committed_now = changes.get(key, commit if before is None else before)
            starts[partition] = _Start(tracker, served.end, mark, committed_now, behind_commit=behind)
        if self._changes != begun:
            return
        refused: ResourceExhausted | None = None
        if changes and self._environment.is_there(topic, topic_id):
            handed_out = {key: starts[key.partition].handed_out for key in changes}
            refused = await self._commit_start(changes, handed_out, committed, begun)
        if self._changes != begun:
            return
        if refused is not None:
            starts = {number: start for number, start in starts.items() if number in committed}
        self._add(subscription, topic_id, starts)
        if refused is not None:
            subscription.notify()
            raise refused

    async def _commit_start(
        self,
        changes: Mapping[TopicPartition, OffsetCommit],
        handed_out: Mapping[TopicPartition, int],
        committed: Mapping[int, OffsetCommit],
        begun: int,
    ) -> ResourceExhausted | None:
        """Commit initial and adjusted positions; a refusal because of a change has no effect.

        Returns:
            The limit, if the initial ones are refused because of it.
        """
        adjusted = {key: commit for key, commit in changes.items() if key.partition in committed}
        initial = {key: commit for key, commit in changes.items() if key not in adjusted}
        commit = partial(self._environment.backend.commit_offsets, self.name, handed_out=handed_out)
        try:
            if adjusted:
                await commit(adjusted)
            if initial:
                await commit(initial, begins=True)
        except ResourceExhausted as limit:
            return limit
        except (OffsetsSet, OwnedElsewhere):
            if self._changes == begun:
                raise
        return None

    def _mark(self, key: TopicPartition, topic_id: bytes, known: int | None, tracker: OffsetTracker) -> int:
        """The mark of a partition that becomes live, see `handed_out`."""
        environment = self._environment
        mark = environment.handed_out.of(self.name, key, topic_id)
        if known is None and not environment.handed_out.is_fresh(self.name, key, topic_id):
            known = tracker.top + environment.limits.pending_max
        return max(mark, known or 0)

    def _add(
        self,
        subscription: Subscription,
        topic_id: bytes,
        starts: Mapping[int, "_Start"],
    ) -> None:
        """Make partitions live that are still assigned and subscribed."""
        topic = subscription.topic
        if self._subscriptions.get(topic) is not subscription or subscription.draining:
            return
        if not self._environment.is_there(topic, topic_id):
            self._work.set()
            return
        for partition, start in starts.items():
            if (
                partition in self._assignment.get(topic, ())
                and subscription.live(partition) is None
                and not self._revocations.covers(topic, partition)
            ):
                live = subscription.add(partition, start.tracker, start.end, topic_id, start.handed_out)
                live.offers.behind_commit = start.behind_commit
                live.committed = start.committed
                self.resets.end(TopicPartition(topic, partition))

    def _warn(self, remark: Remark) -> None:
        topic, partition = remark.partition
        _log.warning(remark.event, group=self.name, topic=topic, partition=partition, **remark.fields)

    # --- commits ----------------------------------------------------------------------------------

    def mark_dirty(self, partition: LivePartition) -> None:
        """A live partition has a position to commit."""
        self._commits.mark_dirty(partition)

    def mark_handed_out(self, partition: LivePartition) -> None:
        """The partition has handed out records since its last commit."""
        self._commits.mark_handed_out(partition)

    def mark_kept(self) -> None:
        """A partition keeps an ack until its record is delivered."""
        self._commits.mark_kept()

    def set_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetCommit],
        ranges: Mapping[int, OffsetRange],
        *,
        passed: bool = False,
    ) -> asyncio.Future[None]:
        """Commit offsets and reset the live partitions to them.

        All in one change; where only members may commit, and others own some, in one change for
        each owner.

        A task of its own does it, so that a caller that goes away leaves no commit without the
        reset.

        Args:
            offsets: positions and metadata, committed as they are.
            ranges: the offsets that the partitions have.
            passed: another process has asked for it, so it is not passed on.

        Returns:
            Done when both are, and other owners have reset their partitions or were too slow to
            say so.
        """
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._setting += 1  # already here, so that this group is not forgotten and made again meanwhile
        work = self._set_offsets(offsets, ranges, passed, outcome)
        self._environment.tasks.spawn(work, f"set offsets for {self.name}", partial(reject, outcome))
        return outcome

    async def _set_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetCommit],
        ranges: Mapping[int, OffsetRange],
        passed: bool,
        outcome: asyncio.Future[None],
    ) -> None:
        try:
            if passed:
                await self._set_here(offsets, ranges, outcome)
            else:
                await self._set_anywhere(offsets, ranges, outcome)
                await self.resets.ask_others(offsets)
        except PixyError as error:
            reject(outcome, error)
        else:
            resolve(outcome, None)
        finally:
            self._setting -= 1
            self._on_empty(self)

    async def _set_anywhere(
        self,
        offsets: Mapping[TopicPartition, OffsetCommit],
        ranges: Mapping[int, OffsetRange],
        outcome: asyncio.Future[None],
    ) -> None:
        """Set offsets here or at the owners, tried again for a while: ownership may be moving."""
        timers = self._environment.timers
        deadline = timers.monotonic() + self._environment.owner_patience_s + _MOVING_S
        backoff = Backoff(_BACKOFF_MIN, _MOVING_S)
        while True:
            try:
                try:
                    await self._set_here(offsets, ranges, outcome)
                except OwnedElsewhere:
                    await self._set_by_owners(offsets, ranges, outcome)
            except OwnerUndecided:
                pause_s = backoff.grow()
                if timers.monotonic() + pause_s > deadline:
                    raise
                await timers.sleep(pause_s)
            else:
                return

    async def _set_here(
        self,
        offsets: Mapping[TopicPartition, OffsetCommit],
        ranges: Mapping[int, OffsetRange],
        outcome: asyncio.Future[None],
    ) -> None:
        async with self._commits.lock:
            first = await self._first_offsets(offsets)
            if outcome.cancelled():
                # By now offsets that another call has set may have been read.
                raise DeadlineExceeded("the call was given up: no offsets are set")
            await self._environment.backend.commit_offsets(self.name, offsets, set=True)
            for key, topic_id in first.items():
                self._environment.handed_out.begin(self.name, key, topic_id)
            self._changes += 1
            if self._subscriptions or self._keeper is not None:
                self._wake_keeper()
            async for key, commit in in_steps(offsets.items()):
                self._reset(key, commit, ranges[key.partition])

    async def _first_offsets(self, keys: Collection[TopicPartition]) -> Mapping[TopicPartition, bytes]:
        """Read what is committed, so that the backend has seen it. Returns partitions without a
        committed offset, of which nothing was handed out, with the ids of their topics.
        """
        backend = self._environment.backend
        found: dict[TopicPartition, bytes] = {}
        for name in {key.topic for key in keys}:
            topic, committed = backend.topic(name), await backend.committed_offsets(self.name, name)
            if topic is not None:
                missing = [key for key in keys if key.topic == name and key.partition not in committed]
                found.update(dict.fromkeys(missing, topic.topic_id))
        return found

    async def _set_by_owners(
        self,
        offsets: Mapping[TopicPartition, OffsetCommit],
        ranges: Mapping[int, OffsetRange],
        outcome: asyncio.Future[None],
    ) -> None:
        """Only members may commit: each owner sets what is its own.

        Raises:
            OwnedElsewhere: an owner cannot be asked; nothing is set by this call.
            OwnerUndecided: an owner has just lost a partition; others may have set theirs.
        """
        backend = self._environment.backend
        here: dict[TopicPartition, OffsetCommit] = {}
        others: dict[tuple[int, str], SetOffsets] = {}
        for key, commit in offsets.items():
            owner = await backend.partition_owner(self.name, key)
            if owner is None or owner.node_id is None:
                here[key] = commit
                continue
            request = others.setdefault(
                (owner.node_id, key.topic), SetOffsets(group=self.name, topic=key.topic)
            )
            request.partitions.add(partition=key.partition, offset=commit.offset, metadata=commit.metadata)
        if here:
            await self._set_here(here, ranges, outcome)
        for (node_id, _), request in others.items():
            call = ConsumerCall(set_offsets=request).SerializeToString()
            try:
                await backend.ask_node(node_id, call, _SET_S)
            except OwnedElsewhere as error:
                raise OwnerUndecided(str(error)) from error

    def _reset(self, key: TopicPartition, commit: OffsetCommit, served: OffsetRange) -> None:
        subscription = self._subscriptions.get(key.topic)
        live = subscription.live(key.partition) if subscription is not None else None
        self._commits.supersede(key, live)
        if live is not None:
            live.reset(resume(key, commit, served, []), served.end, behind_commit=commit.offset > served.end)
            live.committed = commit

    # --- ending -----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close all subscriptions, commit everything, and leave the group."""
        self._stopping = True
        if self._keeper is not None:
            keeper, self._keeper = self._keeper, None
            keeper.cancel()
            await asyncio.wait([keeper])
        for subscription in self.subscriptions:
            for live in subscription.close():
                self._commits.keep(live)
            self._on_over(subscription)
        self._subscriptions.clear()
        self._commits.cancel()
        await self._commit_last()
        await self._environment.ending.wait()
        if self._membership is not None:
            try:
                await self._membership.leave()
            except PixyError as error:
                _log.warning("cannot leave the consumer group", group=self.name, error=str(error))
            self._membership = None
        self._on_empty(self)

    async def _commit_last(self) -> None:
        """Commit everything, tried again within a bound: there may be no leader any more."""
        reason = "late"
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_COMMIT_S):
                while True:
                    try:
                        await self._commits.commit()
                    except PixyError as error:
                        reason = str(error)
                        if not error.retriable:
                            break
                        await asyncio.sleep(_BACKOFF_MIN)
                    else:
                        return
        _log.warning("acks could not be committed before the stop", group=self.name, reason=reason)

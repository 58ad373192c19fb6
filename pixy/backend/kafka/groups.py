"""Membership in consumer groups, by Kafka's classic group protocol (JoinGroup, SyncGroup,
Heartbeat, LeaveGroup).

Owns one member for each consumer group that this process consumes in: its id and generation, its
assignment, one task, and a connection of its own, because the coordinator holds the response to a
join until all members have joined, and with it everything behind it on the connection.

    joining -> holding      all members have joined, the leader has assigned the partitions,
                            `on_assignment` was called
    holding -> settling     a heartbeat announces a rebalance, or this member needs one (other
                            topics; as leader: the partitions of a topic have changed).
                            `on_revocation` runs, heartbeats continue
    settling -> joining     nothing is outstanding and all acks are committed, or
                            `rebalance_timeout` is over
    any -> out              the coordinator has removed the member, or was not heard of for
                            `session_timeout`, after which it has reassigned the partitions:
                            `on_assignment` is called with none, and a new member joins

The coordinator grants every member `rebalance_timeout`, and `session_timeout` beyond that for the
next heartbeat and the commit.

The only member of a group does not wait for acks when it changes its topics: its partitions come
back to it. If another member joins at that moment, records may be delivered twice, and nothing
worse.

The leader assigns the partitions of all topics of the group, including those that only other
members subscribe to, and checks their metadata with every heartbeat.

Road not taken: aiokafka's `GroupCoordinator`. It commits and pauses by itself, with no point
between the announcement of a revocation and the revocation that could wait for acks. Nor the
protocol of KIP-848: brokers before 4.0 lack it, and the groups are shared with ordinary consumers
of the classic protocol.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import structlog

from pixy.aio.retries import Attempts, Backoff
from pixy.aio.tasks import Tasks
from pixy.backend.kafka import members
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.coordinators import PATIENCE_S, Coordinators, may_pass
from pixy.backend.kafka.errors import error_for_code
from pixy.backend.kafka.members import Partitions
from pixy.backend.kafka.options import KafkaOptions
from pixy.backend.protocol import Assignment, Lease, Revocation
from pixy.errors import PixyError, ShuttingDown, Unavailable
from pixy.faults import OnFault
from pixy.kafka_protocol.consumer import decode_assignment, decode_subscription, encode_subscription
from pixy.kafka_protocol.group_messages import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from pixy.records import TopicPartition

_log = structlog.get_logger(__name__)

_HEARTBEAT_S = 1.0
"""Heartbeat interval; a third of the session timeout if that is shorter."""

_LEAVE_S = 3.0
"""Time limit for leaving. Without a response the session times out."""

_ILLEGAL_GENERATION = 22
_UNKNOWN_MEMBER_ID = 25
_REBALANCE_IN_PROGRESS = 27
_MEMBER_ID_REQUIRED = 79
_FENCED_INSTANCE_ID = 82

_purposes = count(1)


class _MemberRemoved(Exception):
    """The coordinator has removed this member."""


class GroupEnvironment(NamedTuple):
    """The dependencies of all members of this process."""

    client: KafkaClient
    coordinators: Coordinators
    options: KafkaOptions
    on_fault: OnFault


OnOwned = Callable[[str, Mapping[str, Sequence[int]]], None]
"""Called with a group and all of its partitions that this process owns from then on."""


class Generation(NamedTuple):
    """Generation and member id, as a commit carries them."""

    number: int
    member_id: str


class KafkaMembership:
    """One member of one consumer group.

    Args:
        environment: the cluster.
        group, client_id, topics: the group, the name of this member, and its subscribed topics.
        callbacks: `on_assignment` and `on_revocation` of `Backend.join_consumer_group`.
        on_left: called once, when the member leaves.
    """

    def __init__(
        self,
        environment: GroupEnvironment,
        group: str,
        client_id: str,
        topics: Sequence[str],
        callbacks: tuple[Assignment, Revocation | None],
        on_left: Callable[["KafkaMembership"], None],
    ) -> None:
        self.group = group
        self.client_id = client_id
        self.lease = Lease()
        self._client, self._coordinators, self._options, self._on_fault = environment
        self._on_assignment, self._on_revocation = callbacks
        self._on_left = on_left
        self._purpose = f"member {next(_purposes)} of {group}"
        self._topics = frozenset(topics)
        # Assigned by the coordinator; empty before the first join and after a removal.
        self._member_id = ""
        # The current generation. Invariant: None while the partitions may belong to another member.
        self.generation: Generation | None = None
        # The assignment of the leader in this generation.
        self._assignment: Partitions = {}
        # The same without missing topics, and the ids of its topics. Invariant: empty without a
        # generation.
        self.assigned: Partitions = {}
        self._topic_ids: Mapping[str, bytes] = {}
        # Neither settling nor joining, so that the assignment may change without a rebalance.
        self._stable = False
        # As leader: the number of members, and the topics that were assigned.
        self._member_count = 0
        self._assigned_topics: dict[str, tuple[bytes, int]] | None = None
        self._subscriptions: Mapping[str, Collection[str]] = {}
        # Time of the last response that confirmed the membership.
        self._heard_at = 0.0
        # A rebalance is due; the coordinator has announced it.
        self._rebalance_due = False
        self._rebalance_announced = False
        self._wake = asyncio.Event()
        self._tasks = Tasks(self._on_fault)
        self._delay: asyncio.TimerHandle | None = None
        self._left = False

    # --- requests ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group. On return there is an assignment.

        Raises:
            PixyError: the join failed.
        """
        pause_s = min(_HEARTBEAT_S, self._options.group_backoff_s)
        attempts, joined = Attempts(PATIENCE_S, Backoff(pause_s, pause_s)), False
        try:
            while not joined:
                try:
                    joined = await self._join()
                except Unavailable as error:
                    if not may_pass(error):
                        raise
                    await attempts.again(error)
        except BaseException:
            await self.leave()
            raise
        self._tasks.spawn(self._run(), f"member of {self.group}")

    async def subscribe(self, topics: Sequence[str]) -> None:
        """See `ConsumerMembership.subscribe`.

        Changes within `rebalance_delay` make one rebalance.
        """
        self._topics = frozenset(topics)
        if self._delay is None and not self._left:
            loop = asyncio.get_running_loop()
            self._delay = loop.call_later(self._options.rebalance_delay_s, self._topics_changed)

    async def leave(self) -> None:
        """See `ConsumerMembership.leave`.

        If the coordinator cannot be reached, the session times out.
        """
        if self._left:
            return
        self._left = True
        self._on_left(self)
        if self._delay is not None:
            self._delay.cancel()
        await self._tasks.cancel_all()
        joining = self.generation is None
        self._drop_assignment()
        if self._member_id:
            if joining:  # the coordinator may hold the response to a join, and what is behind it
                self._client.release(self._purpose)
            request = LEAVE_GROUP(self.group, self._member_id)
            with suppress(PixyError):
                await self._ask(request, "leave", _LEAVE_S)
        self._client.release(self._purpose)

    def owns(self, partition: TopicPartition) -> bool:
        """True if the partition is assigned to this member."""
        return partition.partition in self.assigned.get(partition.topic, ())

    def _topics_changed(self) -> None:
        self._delay = None
        self._request_rebalance("other topics")

    def _request_rebalance(self, why: str) -> None:
        if not self._rebalance_due:
            _log.info("joining a consumer group again", group=self.group, reason=why)
        self._rebalance_due = True
        self._wake.set()

    # --- lifecycle --------------------------------------------------------------------------------

    async def _run(self) -> None:
        joined = True
        while True:
            try:
                await self._live(joined)
            except Exception as bug:
                self._on_fault(bug)
                joined = False
                await asyncio.sleep(self._options.group_backoff_s)

    async def _live(self, joined: bool) -> None:
        failing = ""
        while True:
            try:
                if joined:
                    await self._stay_member()
                joined = await self._join()
                failing = ""
            except _MemberRemoved as error:
                joined = False
                self._lose_membership(str(error))
            except PixyError as error:
                joined = False
                # While brokers are down each attempt may fail at another one: log that once.
                reason = "no coordinator" if may_pass(error) else str(error)
                if failing != reason:
                    failing = reason
                    _log.warning(
                        "cannot join a consumer group, trying again", group=self.group, error=str(error)
                    )
                if self.generation is not None and self._silence_s() > self._options.session_timeout_s:
                    self._lose_membership("its coordinator was not heard of")
                await asyncio.sleep(self._options.group_backoff_s)

    def _lose_membership(self, why: str) -> None:
        """Drop the assignment: the partitions may belong to another member by now."""
        _log.warning("put out of a consumer group, joining anew", group=self.group, reason=why)
        self._drop_assignment()
        self._on_assignment({})

    def _drop_assignment(self) -> None:
        self.generation, self._assignment, self.assigned, self._topic_ids = None, {}, {}, {}
        self._stable = False

    def _silence_s(self) -> float:
        return asyncio.get_running_loop().time() - self._heard_at

    async def _stay_member(self) -> None:
        """Send heartbeats until a rebalance is due and this member has settled.

        Raises:
            _MemberRemoved: the coordinator has removed the member.
        """
        pause_s = min(_HEARTBEAT_S, self._options.session_timeout_s / 3)
        settling: asyncio.Task[None] | None = None
        try:
            while settling is None or not settling.done():
                if self._rebalance_due and settling is None:
                    self._stable = False
                    settling = asyncio.create_task(self._settle(), name=f"settle {self.group}")
                    settling.add_done_callback(lambda _: self._wake.set())
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
                self._wake.clear()
                if self._silence_s() >= pause_s:
                    await self._heartbeat()
                if (
                    self._assigned_topics is not None
                    and not self._rebalance_due
                    and self._assigned_topics != self._subscribed_topics()
                ):
                    self._request_rebalance("partitions of its topics have changed")
            settling.result()
        finally:
            if settling is not None and not settling.done():
                settling.cancel()
                await asyncio.wait([settling])

    async def _settle(self) -> None:
        alone = self._member_count == 1 and not self._rebalance_announced
        if self._on_revocation is not None:
            await self._on_revocation(0.0 if alone else self._options.rebalance_timeout_s, None)

    async def _heartbeat(self) -> None:
        assert self.generation is not None
        request = HEARTBEAT(self.group, *self.generation, None)
        try:
            answer = await self._ask(request, "stay", self._options.session_timeout_s / 3)
        except PixyError as error:
            if self._silence_s() > self._options.session_timeout_s:
                raise _MemberRemoved(str(error)) from None
            await asyncio.sleep(self._options.group_backoff_s)
            return
        code = answer.error_code
        if code == _REBALANCE_IN_PROGRESS:
            self._rebalance_announced = True
            self._request_rebalance("its members change")
        elif code:
            self._raise_refusal(code)
        self._heard()

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    def _raise_refusal(self, code: int) -> None:
        """Raise for an error code that refuses this member.

        Raises:
            _MemberRemoved: the coordinator has removed the member, or the group is in a newer
                generation.
            PixyError: another error.
        """
        error = error_for_code(code, f"be a member of the consumer group {self.group}")
        if code in (_UNKNOWN_MEMBER_ID, _FENCED_INSTANCE_ID):
            self._member_id = ""
        if code in (_UNKNOWN_MEMBER_ID, _FENCED_INSTANCE_ID, _ILLEGAL_GENERATION):
            raise _MemberRemoved(str(error))
        raise error

    # --- joining ----------------------------------------------------------------------------------

    async def _join(self) -> bool:
        """Join the group and call `on_assignment`; False if the join has to be repeated at once.

        Raises:
            _MemberRemoved, PixyError
        """
        self._rebalance_due = self._rebalance_announced = False
        topics = self._topics
        answer = await self._ask(self._join_request(topics), "join")
        if answer.error_code == _MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            return False
        if answer.error_code == _UNKNOWN_MEMBER_ID and self.generation is None:
            self._member_id = ""
            return False
        if answer.error_code == _REBALANCE_IN_PROGRESS:
            return False
        if answer.error_code:
            self._raise_refusal(answer.error_code)
        self._member_id = answer.member_id
        self._heard()
        assignments: Sequence[tuple[str, bytes]] = ()
        self._assigned_topics = None
        self._member_count = 0
        if answer.leader == answer.member_id:
            assignments = await self._assign_partitions(answer)
        return await self._sync(answer.generation, assignments, topics)

    def _join_request(self, topics: Collection[str]) -> Any:
        subscription = encode_subscription(topics)
        return JOIN_GROUP(
            self.group,
            int(self._options.session_timeout_s * 1000),
            int((self._options.rebalance_timeout_s + self._options.session_timeout_s) * 1000),
            self._member_id,
            None,
            members.PROTOCOL_TYPE,
            [(protocol, subscription) for protocol in members.PROTOCOLS],
        )

    async def _assign_partitions(self, joined: Any) -> Sequence[tuple[str, bytes]]:
        """Assign the partitions of all topics, as the leader."""
        self._subscriptions = {
            member_id: decode_subscription(metadata) for member_id, _, metadata in joined.members
        }
        self._member_count = len(self._subscriptions)
        await self._client.refresh()
        self._assigned_topics = self._subscribed_topics()
        counts = {topic: count for topic, (_, count) in self._assigned_topics.items()}
        return members.assign(joined.protocol, self._subscriptions, counts)

    def _subscribed_topics(self) -> dict[str, tuple[bytes, int]]:
        """Id and number of partitions of every topic that a member subscribes to."""
        topics = self._client.metadata.topics
        wanted = {name for names in self._subscriptions.values() for name in names if name in topics}
        return {name: (topics[name].topic_id, len(topics[name].partitions)) for name in wanted}

    async def _sync(
        self, generation: int, assignments: Sequence[tuple[str, bytes]], topics: frozenset[str]
    ) -> bool:
        """Send the assignments, as the leader, and get the assignment of this member."""
        answer = await self._ask(
            SYNC_GROUP(self.group, generation, self._member_id, None, assignments), "sync"
        )
        if answer.error_code == _REBALANCE_IN_PROGRESS:
            return False
        if answer.error_code:
            self._raise_refusal(answer.error_code)
        self._heard()
        assigned = decode_assignment(answer.assignment)
        if not self._is_known(assigned):
            with suppress(Unavailable):
                await self._client.refresh(list(assigned))
        self.generation, self._assignment = Generation(generation, self._member_id), assigned
        if topics != self._topics and self._delay is None:
            self._request_rebalance("other topics")
        self._topic_ids = {}
        self._stable = True
        self._notify()
        return True

    def topics_changed(self, names: Collection[str]) -> None:
        """Drop the partitions of deleted topics, even if another topic has got the name."""
        if self._stable and not self._assignment.keys().isdisjoint(names):
            self._notify()

    def _notify(self) -> None:
        topics = self._client.metadata.topics
        there = {name: assignments for name, assignments in self._assignment.items() if name in topics}
        ids = {name: topics[name].topic_id for name in there}
        if self._topic_ids and ids == self._topic_ids:
            return
        replaced = {name for name, topic_id in self._topic_ids.items() if ids.get(name, topic_id) != topic_id}
        self._topic_ids = ids
        if replaced:
            self.assigned = {name: assignments for name, assignments in there.items() if name not in replaced}
            self._on_assignment(self.assigned)
        self.assigned = there
        self._on_assignment(there)

    def _is_known(self, assigned: Partitions) -> bool:
        topics = self._client.metadata.topics
        return all(
            topic in topics and partitions[-1] < len(topics[topic].partitions)
            for topic, partitions in assigned.items()
        )

    async def _ask(self, request: Any, what: str, timeout_s: float | None = None) -> Any:
        return await self._coordinators.ask_once(
            self.group,
            request,
            f"{what} as a member of the consumer group {self.group}",
            purpose=self._purpose,
            client_id=self.client_id,
            timeout_s=timeout_s,
        )


class Groups:
    """The memberships of this process.

    Args:
        environment: the cluster.
        on_owned: see `OnOwned`.
    """

    def __init__(self, environment: GroupEnvironment, on_owned: OnOwned) -> None:
        self._environment = environment
        self._on_owned = on_owned
        self._members: dict[str, list[KafkaMembership]] = {}
        environment.client.listeners.append(self._topics_changed)
        self._stopped = False

    async def join(
        self,
        group: str,
        client_id: str,
        topics: Sequence[str],
        on_assignment: Assignment,
        on_revocation: Revocation | None,
    ) -> "KafkaMembership":
        """See `Backend.join_consumer_group`."""
        if self._stopped:
            raise ShuttingDown

        def assigned(partitions: Mapping[str, Sequence[int]]) -> None:
            on_assignment(partitions)
            self._tell(group)

        callbacks = (assigned, on_revocation)
        member = KafkaMembership(self._environment, group, client_id, topics, callbacks, self._forget)
        self._members.setdefault(group, []).append(member)
        try:
            await member.start()
        except _MemberRemoved as error:
            raise Unavailable(str(error)) from None
        return member

    def member(self, group: str, partition: TopicPartition) -> KafkaMembership | None:
        """This process's member of a group that owns a partition, else any; None without one."""
        found = self._members.get(group, [])
        return next((each for each in found if each.owns(partition)), found[0] if found else None)

    def _topics_changed(self, names: Collection[str]) -> None:
        for found in list(self._members.values()):
            for member in list(found):
                member.topics_changed(names)

    def _forget(self, member: KafkaMembership) -> None:
        found = self._members[member.group]
        found.remove(member)
        if not found:
            del self._members[member.group]
        self._tell(member.group)

    def _tell(self, group: str) -> None:
        owned: dict[str, list[int]] = {}
        for member in self._members.get(group, ()):
            for topic, numbers in member.assigned.items():
                owned.setdefault(topic, []).extend(numbers)
        self._on_owned(group, owned)

    async def stop(self) -> None:
        """Leave all groups."""
        self._stopped = True
        every = [member for found in self._members.values() for member in found]
        await asyncio.gather(*(member.leave() for member in every))

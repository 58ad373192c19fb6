"""One configured cluster as the API layer sees it: produce, consume, ack, offsets, topics.

Validates requests, and decides nothing about records or offsets, which belong to `consume` and the
backend. `produce`, `consume` and `ack` work by callback, without a task, future or timer unless
they have to wait, because they are called a hundred thousand times a second; all others are
coroutines.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from pixy.aio.steps import in_steps
from pixy.backend import (
    Backend,
    BrokerNodes,
    ClassicGroups,
    ClusterStatus,
    LocalLogs,
    OffsetCommit,
    OffsetRange,
    TopicDescription,
)
from pixy.clock import Clock
from pixy.cluster import ExportedState, MoveRequest, MovesPlanned
from pixy.config import ProxyConfig
from pixy.consume import (
    AckDone,
    Client,
    ConsumeDone,
    ConsumeRequest,
    Consumers,
    PendingRequest,
    Timers,
    decode,
    describe,
    fitting,
)
from pixy.errors import (
    InvalidGroup,
    InvalidHeaders,
    InvalidOffset,
    MessageTooLarge,
    NotConsumed,
    PixyError,
    ServiceDisabled,
    ShuttingDown,
    TopicMissing,
    UnknownGroup,
    UnknownTopic,
)
from pixy.metrics import Histogram
from pixy.proto.state_pb2 import MoveReason, PartitionMove
from pixy.proxy.accumulator import Accumulators
from pixy.proxy.log import Log
from pixy.proxy.produce_answers import ProduceDone
from pixy.proxy.staging import Staging
from pixy.proxy.topic_accumulators import HEADER_MEMORY_BYTES, headers_bytes
from pixy.proxy.topics import TopicCreator
from pixy.records import Header, check_topic_name, make_partitioner

_GROUP_CHARACTERS_MAX = 255

Learn = Callable[[Callable[[], None], Callable[[PixyError], None]], None]
"""Finds or creates a topic, then calls the first function, or the second with the error."""


class PartitionOffsets(NamedTuple):
    """The offsets of a partition, and the position of a consumer group in it.

    Attributes:
        begin, end: of the log.
        offset: the committed offset, -1 if there is none.
        lag: records from `offset` to `end` that are not removed.
        metadata: of the commit; what fits into one of what an earlier release has stored.
        sparse_acks: acked ranges above `offset`, in readable form.
    """

    partition: int
    begin: int
    end: int
    offset: int
    lag: int
    metadata: str
    sparse_acks: str


class _Deferred:
    """A request that waits for the creation of its topic, and then for its own answer."""

    __slots__ = ("cancelled", "next")

    def __init__(self) -> None:
        self.cancelled = False
        self.next: PendingRequest | None = None

    def cancel(self) -> None:
        self.cancelled = True
        if self.next is not None:
            self.next.cancel()


class Proxy:
    """One cluster.

    Args:
        name: its name in the configuration.
        config: its section of the configuration.
        backend: the cluster; the proxy owns it from here on.
        client_id: the name of this process in consumer groups.
        clock, rng: time and randomness.
        on_fault: called with an exception that is a bug.
        client_share_percent: see `Consumers`, `Staging` and `FetchRanges`.

    Attributes:
        log: bulk access to the cluster.
        staging: staged writes to the cluster.
    """

    def __init__(  # noqa: PLR0913  each is another part
        self,
        name: str,
        config: ProxyConfig,
        backend: Backend,
        *,
        client_id: str,
        clock: Clock,
        rng: Random,
        on_fault: Callable[[BaseException], None],
        client_share_percent: int = 100,
    ) -> None:
        self.name = name
        self._config = config
        self._backend = backend
        self._message_bytes_max = config.producer.max_message_bytes
        self._accumulators = Accumulators(
            backend,
            config.effective_producer,
            make_partitioner(config.producer.partitioner, rng),
            clock,
            on_fault,
        )
        self._topics = TopicCreator(backend, config, on_fault)
        self.log = Log(backend, config, self._topics, clock, client_share_percent)
        self.staging = Staging(backend, config, self.log, client_share_percent)
        self._consumers = Consumers(
            backend,
            config.consumer,
            client_id,
            Timers(clock),
            on_missing=self._create_again,
            on_fault=on_fault,
            client_share_percent=client_share_percent,
        )
        self._draining = False

    # --- lifecycle --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the backend.

        Raises:
            StartError, CorruptData: it cannot serve.
        """
        await self._backend.start()

    def begin_drain(self) -> None:
        """Accept and offer no more messages; acks are still accepted."""
        self._draining = True
        self.log.begin_drain()
        self.staging.begin_drain()
        self._consumers.stop_offering()
        if self._backend.classic_groups is not None:
            self._backend.classic_groups.begin_drain()

    def leave_cluster(self, reason: str) -> None:
        """See `Consumers.leave_cluster`. The backend says for how long it takes messages."""
        self._consumers.leave_cluster(reason)

    async def drain(self, timeout: float) -> int:
        """Wait at most `timeout` seconds for outstanding acks, commit, and write the buffers.

        Returns:
            The number of messages that are not known to be written.
        """
        self.begin_drain()
        await self._topics.stop()
        _, in_doubt = await asyncio.gather(self._consumers.drain(timeout), self._drain_producer(timeout))
        return in_doubt

    def drain_waits(self) -> list[str]:
        """The things that `drain` waits for at the moment, in words."""
        waits = self._consumers.drain_waits()
        messages = self._accumulators.buffered + self._accumulators.waiting
        if messages:
            waits.append(f"{messages} message{'' if messages == 1 else 's'} to be written")
        if self.log.semaphore.acquired:
            waits.append(f"{self.log.semaphore.acquired} bytes of record batches to be written")
        return waits

    async def _drain_producer(self, timeout: float) -> int:
        accumulators, in_doubt = self._accumulators, 0
        lost = accumulators.lost
        try:
            async with asyncio.timeout(min(self._config.producer.shutdown_timeout, timeout)):
                await asyncio.gather(accumulators.drained(), self.log.drained())
        except TimeoutError:
            in_doubt = accumulators.abandon() + self.log.abandon()
        accumulators.report_lost()
        return in_doubt + accumulators.lost - lost

    async def stop(self) -> None:
        """Release the cluster."""
        await self._backend.stop()

    def counts(self) -> dict[str, int]:
        """Current sizes of buffers and queues, by name."""
        accumulators = self._accumulators
        return {
            "buffered_messages": accumulators.buffered,
            "buffered_bytes": accumulators.buffered_bytes,
            "waiting_messages": accumulators.waiting,
            "missing_topics": len(self._topics),
            "append_bytes": self.log.semaphore.acquired,
            "append_waiting_bytes": self.log.semaphore.queued,
            "stage_bytes": self.staging.semaphore.acquired,
            "stage_waiting_bytes": self.staging.semaphore.queued,
            **self._consumers.counts(),
        }

    @property
    def lost(self) -> int:
        """Asynchronous messages that were not written."""
        return self._accumulators.lost

    @property
    def sent_bytes(self) -> Histogram:
        """Sizes of the batches that were made of messages."""
        return self._accumulators.sent_bytes

    async def produced(self) -> dict[str, tuple[int, int]]:
        """Records and bytes that were written, by topic. Deleted topics are left out."""
        parts = (self._accumulators.produced, self.log.produced, self.staging.published)
        for part in parts:
            async for topic in in_steps(list(part.by_topic)):
                if self._backend.topic(topic) is None:
                    part.forget(topic)
        found: dict[str, tuple[int, int]] = {}
        for part in parts:
            async for topic, (records, size) in in_steps(list(part.by_topic.items())):
                before = found.get(topic, (0, 0))
                found[topic] = before[0] + records, before[1] + size
        return found

    @property
    def consumers(self) -> Consumers:
        """All consumer groups, for their counts."""
        return self._consumers

    # --- messages ---------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        done: ProduceDone,
        waiter: Any = None,
        sync: bool = True,
    ) -> PendingRequest | None:
        """Append one message to a topic.

        Args:
            topic: created if it is missing and `auto_create_topics` is set.
            key: None for a message without a key.
            value: the body; None for a null value.
            headers: name and value of each.
            done: called once for `waiter`, perhaps together with other waiters, with partition and
                offset when the message is durable (-1, -1 when it is buffered, if not `sync`), or
                with an error. See `ProduceDone`.
            waiter: the caller, passed to `done`.
            sync: True to answer when the message is durable.

        Returns:
            The pending request while it is queued for room in the buffer, None if it is not.

        Raises:
            InvalidArgument, Unavailable: of the classes below them; `done` is not called.
        """
        size = 0 if value is None else len(value)
        if key is not None:
            size += len(key)
        if headers:
            size += self._check_headers(headers)
        if size > self._message_bytes_max:
            raise MessageTooLarge(
                f"the message has {size} bytes, producer.max_message_bytes allows "
                f"{self._config.producer.max_message_bytes}"
            )
        if headers:
            size += HEADER_MEMORY_BYTES * len(headers)
        if self._draining:
            raise ShuttingDown
        description = self._backend.topic(topic)
        if description is not None:
            return self._accumulators.append(description, key, value, headers, size, done, waiter, sync)
        # No closures: each variable of one would cost every call an object.
        append = partial(
            self._accumulators.append,
            key=key,
            value=value,
            headers=headers,
            size=size,
            done=done,
            waiter=waiter,
            sync=sync,
        )
        fail = partial(done, (waiter,), -1, -1)
        client = getattr(waiter, "peer", "")
        learn = partial(self._topics.create, topic, size, client=client)
        return self._when_known(topic, learn, append, fail)

    def consume(
        self,
        request: ConsumeRequest,
        done: ConsumeDone,
        deadline: float | None = None,
        client: Client | None = None,
    ) -> PendingRequest | None:
        """Ask for the next message of a topic, for a consumer group, as `Consumers.consume`.

        A missing topic is created if `auto_create_topics` is set. With `must_exist` it never is,
        and `done` gets `TopicMissing`.

        Raises:
            InvalidArgument: of the classes below it; `done` is not called.
        """
        group, topic, ack = request.group, request.topic, request.ack
        if not 0 < len(group) <= _GROUP_CHARACTERS_MAX:
            _check_group(group)
        description = self._backend.topic(topic)
        if description is not None and (ack is None or ack[0] < len(description.partitions)):
            return self._consumers.consume(request, done, deadline, client)
        return self._consume_later(request, done, deadline, client)

    def _consume_later(
        self, request: ConsumeRequest, done: ConsumeDone, deadline: float | None, client: Client | None
    ) -> PendingRequest:
        """Consume a topic that is not known here, or a partition of it."""
        if self._config.consumer.disabled:
            raise ServiceDisabled
        if self._draining:
            raise ShuttingDown

        def consume(_: TopicDescription) -> PendingRequest | None:
            return self._consumers.consume(request, done, deadline, client)

        def fail(error: PixyError) -> None:
            missing = request.must_exist and isinstance(error, UnknownTopic)
            done(None, TopicMissing(f"topic {request.topic} does not exist") if missing else error)

        check_topic_name(request.topic)
        if request.must_exist:
            learn = partial(self._topics.find, request.topic)
        else:
            peer = "" if client is None else client.peer
            learn = partial(self._topics.create, request.topic, 0, client=peer)
        return self._when_known(request.topic, learn, consume, fail)

    def _when_known(
        self,
        topic: str,
        learn: Learn,
        request: Callable[[TopicDescription], PendingRequest | None],
        fail: Callable[[PixyError], None],
    ) -> PendingRequest:
        """Find or create a topic, then send a request."""
        deferred = _Deferred()

        def go_on() -> None:
            if deferred.cancelled:
                return
            known = self._backend.topic(topic)
            try:
                if known is not None:
                    deferred.next = request(known)
                else:  # deleted as soon as it was there
                    learn(go_on, give_up)
            except PixyError as error:
                fail(error)

        def give_up(error: PixyError) -> None:
            if not deferred.cancelled:
                fail(error)

        learn(go_on, give_up)
        return deferred

    def _create_again(self, topic: str, fail: Callable[[PixyError], None]) -> None:
        """Treat a topic that was deleted while requests wait for it like a missing topic."""
        try:
            self._topics.create(topic, 0, lambda: None, fail)
        except PixyError as error:
            fail(error)

    def ack(
        self,
        group: str,
        topic: str,
        partition: int,
        offset: int,
        done: AckDone,
        client: Client | None = None,
    ) -> None:
        """Acknowledge one message; `done` gets None or an error, `UnknownTopic` among them.

        Raises:
            InvalidGroup, InvalidTopic, Unavailable: `done` is not called.
        """
        _check_group(group)
        check_topic_name(topic)
        if self._is_known(topic, partition):
            self._consumers.ack(group, topic, partition, offset, done, client=client)
        else:
            then = partial(self._consumers.ack, group, topic, partition, offset, done, client=client)
            self._topics.find(topic, then, done)

    # --- offsets ----------------------------------------------------------------------------------

    async def get_offsets(self, group: str, topic: str) -> list[PartitionOffsets]:
        """The offsets of each partition of a topic and the position of a consumer group.

        Raises:
            InvalidGroup, InvalidTopic, UnknownTopic.
            Unavailable: a partition has no leader. Without it the lag of the group would look
                smaller than it is.
        """
        await self._know(group, topic)
        before: bytes | None = None
        now = self._topic_id(topic)
        while now != before:  # else the offsets may be those of a topic that was created again
            before = now
            # The ranges last: the end is then above whatever had been committed.
            committed = await self._backend.committed_offsets(group, topic)
            ranges, unknown = await self._backend.known_ranges(topic)
            now = self._topic_id(topic)
            for error in unknown.values():
                raise error
        return [
            _partition_offsets(partition, served.begin, served.end, committed.get(partition))
            async for partition, served in in_steps(sorted(ranges.items()))
        ]

    def _topic_id(self, topic: str) -> bytes:
        known = self._backend.topic(topic)
        return b"" if known is None else known.topic_id

    async def set_offsets(self, group: str, topic: str, offsets: Sequence[tuple[int, OffsetCommit]]) -> None:
        """Set the offsets of a consumer group, for all partitions or none, as
        `Consumers.set_offsets`.

        Raises:
            InvalidGroup, InvalidTopic, UnknownTopic, UnknownPartition, InvalidOffset,
            MetadataTooLarge.
        """
        await self._know(group, topic)
        by_partition = dict(offsets)
        if len(by_partition) < len(offsets):
            raise InvalidOffset("a partition is listed more than once")
        await self._consumers.set_offsets(group, topic, by_partition)

    # --- topics and consumers ---------------------------------------------------------------------

    async def list_topics(self) -> Sequence[TopicDescription]:
        """All topics, sorted by name."""
        return await self._backend.list_topics()

    async def describe_topic(self, name: str) -> TopicDescription:
        """One topic; never creates it.

        Raises:
            InvalidTopic, UnknownTopic.
        """
        check_topic_name(name)
        return await self._backend.describe_topic(name)

    async def known_ranges(self, topic: str) -> Mapping[int, OffsetRange]:
        """Begin and end of the logs of those partitions of a topic that have a leader.

        Raises:
            InvalidTopic, UnknownTopic.
        """
        check_topic_name(topic)
        return (await self._backend.known_ranges(topic)).ranges

    async def create_topic(
        self, name: str, partitions: int | None, config: Mapping[str, str]
    ) -> TopicDescription:
        """Create a topic as `Backend.create_topic`, with `default_partitions` if `partitions` is
        None.

        Raises:
            InvalidTopic, InvalidArgument, TopicExists, ShuttingDown.
        """
        self._check_change(name)
        count = self._config.default_partitions if partitions is None else partitions
        return await self._backend.create_topic(name, count, config)

    async def alter_topic(
        self, name: str, partitions: int | None, config: Mapping[str, str | None]
    ) -> TopicDescription:
        """Change a topic as `Backend.alter_topic`.

        Raises:
            InvalidTopic, UnknownTopic, InvalidArgument, ShuttingDown.
        """
        self._check_change(name)
        return await self._backend.alter_topic(name, partitions=partitions, config=config)

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic as `Backend.delete_topic`.

        Raises:
            InvalidTopic, UnknownTopic, FailedPrecondition, ShuttingDown.
        """
        self._check_change(name)
        await self._backend.delete_topic(name, force=force)

    async def delete_records(self, topic: str, offsets: Sequence[tuple[int, int]]) -> Mapping[int, int]:
        """Remove records of partitions below an offset each, as `Backend.delete_records`.

        Raises:
            InvalidTopic, UnknownTopic, UnknownPartition, InvalidOffset, OffsetOutOfRange,
            FailedPrecondition, ShuttingDown.
        """
        self._check_change(topic)
        by_partition = dict(offsets)
        if len(by_partition) < len(offsets):
            raise InvalidOffset("a partition is listed more than once")
        wrong = [(number, offset) for number, offset in offsets if offset < -1]
        for number, offset in wrong:
            raise InvalidOffset(f"offset {offset} of partition {number}: at least 0 is allowed, or -1")
        return await self._backend.delete_records(topic, by_partition)

    async def list_groups(self) -> Collection[str]:
        """Names of all consumer groups, as `Backend.list_groups`."""
        return await self._backend.list_groups()

    async def delete_group(self, group: str, topic: str = "") -> None:
        """Remove the offsets of a consumer group, as `Backend.delete_group`.

        Raises:
            InvalidGroup, InvalidTopic, UnknownTopic, UnknownGroup, FailedPrecondition,
            ShuttingDown.
        """
        _check_group(group)
        if topic:
            check_topic_name(topic)
        if self._draining:
            raise ShuttingDown
        await self._backend.delete_group(group, topic)

    async def list_consumers(self, topic: str, group: str) -> Mapping[str, Mapping[str, Sequence[int]]]:
        """Consumer group -> client id -> partitions, of the groups that consume a topic, or of
        `group` unless it is empty.

        A topic that does not exist is one that nobody consumes.

        Raises:
            InvalidTopic, UnknownGroup, NotConsumed.
        """
        check_topic_name(topic)
        groups = await self._backend.list_consumers(topic)
        if not group:
            return groups
        if group in groups:
            return {group: groups[group]}
        if await self._backend.consumer_group_exists(group):
            raise NotConsumed(f"topic {topic} is not consumed by {group}")
        raise UnknownGroup(f"unknown consumer group {group}")

    # --- nodes ------------------------------------------------------------------------------------

    @property
    def broker_nodes(self) -> BrokerNodes:
        """The nodes, as `Backend.broker_nodes`."""
        return self._backend.broker_nodes

    async def find_brokers(self) -> BrokerNodes:
        """The nodes, as `Backend.find_brokers`."""
        return await self._backend.find_brokers()

    async def local_logs(self) -> LocalLogs:
        """The logs of this process, as `Backend.local_logs`."""
        return await self._backend.local_logs()

    def announce_broker(self, address: str) -> None:
        """Tell other nodes of an address, as `Backend.announce_broker`."""
        self._backend.announce_broker(address)

    @property
    def classic_groups(self) -> ClassicGroups | None:
        """Groups of Kafka clients, as `Backend.classic_groups`."""
        return self._backend.classic_groups

    async def cluster_status(self) -> ClusterStatus:
        """Status of the nodes, as `Backend.cluster_status`.

        Raises:
            FailedPrecondition: a Kafka cluster.
        """
        return await self._backend.cluster_status()

    async def remove_node(self, node_id: int) -> None:
        """Take a node out of the cluster, as `Backend.remove_node`.

        Raises:
            NotFound, FailedPrecondition, ShuttingDown.
        """
        if self._draining:
            raise ShuttingDown
        await self._backend.remove_node(node_id)

    async def forget_node(self, node_id: int) -> None:
        """Give up a lost node, as `Backend.forget_node`.

        Raises:
            NotFound, FailedPrecondition, ShuttingDown.
        """
        if self._draining:
            raise ShuttingDown
        await self._backend.forget_node(node_id)

    async def drain_node(self, node_id: int, *, draining: bool) -> None:
        """Have a node give its replicas to others, or no longer, as `Backend.drain_node`.

        Raises:
            NotFound, FailedPrecondition, ShuttingDown.
        """
        if self._draining:
            raise ShuttingDown
        await self._backend.drain_node(node_id, draining=draining)

    async def plan_moves(self, request: MoveRequest) -> MovesPlanned:
        """Plan moves of replicas, as `Backend.plan_moves`.

        Raises:
            NotFound, UnknownTopic, UnknownPartition, FailedPrecondition.
        """
        return await self._backend.plan_moves(request)

    async def begin_moves(
        self, reason: MoveReason.ValueType, moves: Sequence[PartitionMove]
    ) -> Sequence[str]:
        """Begin planned moves, as `Backend.begin_moves`.

        Raises:
            FailedPrecondition, ShuttingDown.
        """
        if self._draining:
            raise ShuttingDown
        return await self._backend.begin_moves(reason, moves)

    async def export_state(self) -> ExportedState:
        """The state beside the records, as `Backend.export_state`.

        Raises:
            FailedPrecondition, Unavailable.
        """
        return await self._backend.export_state()

    # --- checks -----------------------------------------------------------------------------------

    def _check_change(self, topic: str) -> None:
        """Check the name of a topic that is to be changed, and that the drain has not begun."""
        check_topic_name(topic)
        if self._draining:
            raise ShuttingDown

    def _is_known(self, topic: str, partition: int) -> bool:
        """True if the partition is known here. Else another process may have made it."""
        description = self._backend.topic(topic)
        return description is not None and partition < len(description.partitions)

    async def _know(self, group: str, topic: str) -> None:
        """Check the names, and ask the cluster for an unknown topic, which another process may have
        created.
        """
        _check_group(group)
        check_topic_name(topic)
        if self._backend.topic(topic) is None:
            await self._backend.describe_topic(topic)

    def _check_headers(self, headers: Sequence[Header]) -> int:
        """Size of the headers in bytes."""
        options = self._config.producer
        if len(headers) > options.max_headers:
            raise InvalidHeaders(
                f"the message has {len(headers)} headers, producer.max_headers allows {options.max_headers}"
            )
        size = headers_bytes(headers)
        if size > options.max_header_bytes:
            raise InvalidHeaders(
                f"the message's headers have {size} bytes, producer.max_header_bytes allows {options.max_header_bytes}"
            )
        return size


def _check_group(group: str) -> None:
    if not group:
        raise InvalidGroup("the consumer group must not be empty")
    if len(group) > _GROUP_CHARACTERS_MAX:
        raise InvalidGroup(f"the consumer group's name is longer than {_GROUP_CHARACTERS_MAX} characters")


def _partition_offsets(partition: int, begin: int, end: int, commit: OffsetCommit | None) -> PartitionOffsets:
    if commit is None:
        return PartitionOffsets(partition, begin, end, -1, 0, "", "")
    metadata = fitting(commit.metadata)
    try:
        sparse_acks = describe(commit.offset, decode(commit.offset, fitting(commit.acks)))
    except InvalidOffset:
        sparse_acks = ""  # metadata of another program: shown unchanged, ignored by consumers
    lag = max(0, end - max(commit.offset, begin))
    return PartitionOffsets(partition, begin, end, commit.offset, lag, metadata, sparse_acks)

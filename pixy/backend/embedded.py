"""The `Backend` of an embedded cluster: translates calls to those of the node in this process."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from pixy.backend.protocol import (
    AppendDone,
    Assignment,
    FetchResult,
    PartitionDescription,
    Published,
    Revocation,
    StagedBatches,
    StageSeal,
    TopicDescription,
)
from pixy.backend.timestamps import first_since
from pixy.cluster import (
    PARTITIONS_MAX,
    ClusterStatus,
    Coordinator,
    Member,
    Node,
    NodeObserver,
    PartitionReplica,
    Topic,
)
from pixy.errors import CorruptData, OffsetOutOfRange, PixyError, ShuttingDown, UnknownPartition, UnknownTopic
from pixy.futures import resolve
from pixy.proto.state_pb2 import CommitOffsets, CommittedOffset, GroupsCommand
from pixy.records import OffsetCommit, OffsetRange, TopicPartition, check_topic_name
from pixy.staging import PieceBatches, StageName
from pixy.steps import run_in_steps
from pixy.storage import PartitionLog

__all__ = ["EmbeddedBackend"]

T = TypeVar("T")

_PARTITIONS_PER_ITERATION = 200
"""Partitions visited in one iteration of the event loop: a topic may have 10 000."""
_DESCRIBED_PER_ITERATION = 1000
_GROUPS_PER_ITERATION = 200


class _Observer(NodeObserver):
    """Applies changes of topics to descriptions and consumer groups."""

    def __init__(self, coordinator: Coordinator, descriptions: dict[str, "_Described"]) -> None:
        self._coordinator = coordinator
        self._descriptions = descriptions
        # Pending reassignments of consumer groups, oldest first.
        self._assignments: deque[Iterator[None]] = deque()

    def topic_changed(self, name: str) -> None:
        self._descriptions.pop(name, None)
        self._assign(self._coordinator.topic_changed(name))

    def topic_deleted(self, name: str) -> None:
        self._descriptions.pop(name, None)
        self._assign(self._coordinator.topic_deleted(name))

    def _assign(self, steps: Iterator[None]) -> None:
        """Reassign consumer groups one per iteration: there may be thousands."""
        self._assignments.append(steps)
        if len(self._assignments) == 1:
            run_in_steps(self._told())

    def _told(self) -> Iterator[None]:
        while self._assignments:
            yield from self._assignments[0]
            self._assignments.popleft()

    def has_members(self, consumer_group: str) -> bool:
        return self._coordinator.exists(consumer_group)


class _Described(NamedTuple):
    """A description, with the state of the topic that it describes."""

    topic: Topic
    description: TopicDescription


class EmbeddedBackend:
    """A `Backend` on a node of this process.

    Args:
        node: not started; the backend owns it from here on.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._coordinator = Coordinator(self._partition_count)
        # By name; replaced when a topic changes.
        self._descriptions: dict[str, _Described] = {}
        # Descriptions of undamaged partitions by number, shared by all topics.
        self._whole: list[PartitionDescription] = []
        node.observer = _Observer(self._coordinator, self._descriptions)
        self._stopped = False

    async def start(self) -> None:
        await self._node.start()
        for topic in self._node.metadata.topics.values():
            await self._make_descriptions(len(topic.raft_groups))

    @property
    def fault(self) -> str:
        return ""

    def watch(self, on_change: Callable[[], None]) -> None:
        """A node in this process is ready from `start` to `stop`: `on_change` is never called."""

    async def wait_ready(self) -> None:
        return

    async def stop(self) -> None:
        self._stopped = True
        await self._node.stop()

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicDescription | None:
        topic = self._node.metadata.topics.get(name)
        if topic is None:
            return None
        described = self._descriptions.get(name)
        if described is None or described.topic is not topic:
            described = self._descriptions[name] = _Described(topic, self._describe(topic))
        return described.description

    async def describe_topic(self, name: str) -> TopicDescription:
        description = self.topic(name)
        if description is None:
            raise UnknownTopic(f"unknown topic {name}")
        return description

    async def list_topics(self) -> Sequence[TopicDescription]:
        return [self._describe(topic) for _, topic in sorted(self._node.metadata.topics.items())]

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> TopicDescription:
        check_topic_name(name)
        self._check_running()
        await self._make_descriptions(partitions)
        return self._describe(await self._node.create_topic(name, partitions, config or {}))

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | None] | None = None,
    ) -> TopicDescription:
        self._check_running()
        await self._make_descriptions(partitions or 0)
        return self._describe(await self._node.alter_topic(name, partitions, config or {}))

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        self._check_running()
        await self._node.delete_topic(name, force=force)

    async def _make_descriptions(self, partitions: int) -> None:
        """Make descriptions for this number of partitions in advance, a part in each iteration of
        the loop.
        """
        count = min(partitions, PARTITIONS_MAX)
        while len(self._whole) + _DESCRIBED_PER_ITERATION < count:
            self._describe_up_to(len(self._whole) + _DESCRIBED_PER_ITERATION)
            await asyncio.sleep(0)
        self._describe_up_to(count)

    def _describe_up_to(self, count: int) -> None:
        here = self._node.node_id
        for number in range(len(self._whole), count):
            self._whole.append(PartitionDescription(number, here, (here,), (here,)))

    def _describe(self, topic: Topic) -> TopicDescription:
        count = len(topic.raft_groups)
        here = self._node.node_id
        self._describe_up_to(count)
        partitions = self._whole[:count]
        for number in self._node.damaged_partitions(topic.name):
            partitions[number] = PartitionDescription(number, -1, (here,), ())
        return TopicDescription(
            topic.name, topic.topic_id, topic.version, topic.config, tuple(partitions), topic.version
        )

    def _partition_count(self, name: str) -> int:
        topic = self._node.metadata.topics.get(name)
        return 0 if topic is None else len(topic.raft_groups)

    # --- records ----------------------------------------------------------------------------------

    def append(
        self,
        partition: TopicPartition,
        batch: bytearray,
        records: int,
        done: AppendDone,
        age_s: float = 0.0,
    ) -> None:
        replica = self._replica(partition)
        blocked = ShuttingDown() if self._stopped else self._node.blocked or _fault(replica)
        if blocked is not None:
            done(-1, blocked)
            return

        def appended(result: int | PixyError) -> None:
            if isinstance(result, PixyError):
                done(-1, result)
            else:
                done(result, None)

        self._node.append(replica, batch, appended)

    async def fetch(
        self, partition: TopicPartition, offset: int, *, max_bytes: int, max_wait: float | None = None
    ) -> FetchResult:
        self._check_running()
        replica = self._ready(partition)
        log = replica.log
        _check_range(partition, log, offset)
        if offset == log.end_offset:
            await self._wait_append(replica, max_wait)
            self._check_running()
            replica = self._ready(partition, replica)
            _check_range(partition, log, offset)
        chunk = log.read_memory(offset, max_bytes)
        if chunk is None:
            chunk = await self._read(replica, partial(log.read, offset, max_bytes))
        return FetchResult(chunk.batches, chunk.next_offset, log.begin_offset, log.end_offset)

    async def _read(self, replica: PartitionReplica, read: Callable[[], T]) -> T:
        """Read files of a partition on another thread. Damage makes the partition unready."""
        self._check_running()
        try:
            return await self._node.read(read)
        except PixyError as error:
            self._ready(replica.partition, replica)
            if isinstance(error, CorruptData):
                self._node.set_fault(replica, error)
            raise

    async def offset_ranges(self, topic: str) -> Mapping[int, OffsetRange]:
        count = self._partition_count(topic)
        if not count:
            raise UnknownTopic(f"unknown topic {topic}")
        ranges: dict[int, OffsetRange] = {}
        for number in range(count):
            log = self._replica(TopicPartition(topic, number)).log
            ranges[number] = OffsetRange(log.begin_offset, log.end_offset)
            if not (number + 1) % _PARTITIONS_PER_ITERATION:
                await asyncio.sleep(0)
        return ranges

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        replica = self._ready(partition)
        log = replica.log
        # Batches may move from memory to segments during the search, which covers all below this
        # offset.
        written_offset = log.written_offset
        found = await self._read(replica, partial(log.find_timestamp, timestamp_ms))
        at = max(written_offset if found is None else found, log.begin_offset)
        while at < log.end_offset:
            try:
                chunk = await self.fetch(partition, at, max_bytes=1 << 20)
            except OffsetOutOfRange as error:
                at = error.begin  # retention moved the log begin offset meanwhile
                continue
            # Not by `_read`: a batch that a client made undecodable is no damage of the files.
            found = await self._node.read(partial(first_since, chunk.batches, timestamp_ms, at))
            self._ready(partition, replica)
            if found is not None:
                return found
            at = chunk.next_offset
        return None

    async def _wait_append(self, replica: PartitionReplica, max_wait: float | None) -> None:
        if max_wait is not None and max_wait <= 0:
            return
        self._check_running()
        end_offset = replica.log.end_offset
        await _wait_append(replica, max_wait)
        if replica.log.end_offset == end_offset:
            self._check_running()

    def _ready(
        self, partition: TopicPartition, waited_on: PartitionReplica | None = None
    ) -> PartitionReplica:
        """A partition that is ready; with `waited_on`, that it is still the same one."""
        replica = self._replica(partition)
        if waited_on is not None and replica is not waited_on:
            raise UnknownPartition(f"topic {partition.topic} was deleted")
        fault = _fault(replica)
        if fault is not None:
            raise fault
        return replica

    def _replica(self, partition: TopicPartition) -> PartitionReplica:
        replica = self._node.partition(partition)
        if replica is None:
            count = self._partition_count(partition.topic)
            raise UnknownPartition(
                f"unknown partition {partition.partition} of topic {partition.topic}, which has {count}"
            )
        return replica

    # --- staged writes ----------------------------------------------------------------------------

    async def stage(
        self,
        sink_id: str,
        stage_id: str,
        piece: int,
        batches: Sequence[StagedBatches],
        seal: StageSeal | None = None,
    ) -> int:
        # A sink that retries while nothing can be written is active: its stages must not expire.
        self._node.publisher.touch(sink_id)
        self._check_writable()
        topics = self._node.metadata.topics
        pieces = []
        for (topic, partition), data, records in batches:
            self._replica(TopicPartition(topic, partition))
            pieces.append(PieceBatches(topic, topics[topic].topic_id, partition, data, records))
        return await self._node.publisher.stage(StageName(sink_id, stage_id), piece, pieces, seal)

    async def publish(
        self,
        sink_id: str,
        epoch: int,
        query_id: str,
        stage_ids: Sequence[str],
        *,
        reset: bool = False,
        replaces: str = "",
    ) -> Published:
        self._node.publisher.touch(sink_id)
        self._check_writable()
        return await self._node.publisher.publish(
            sink_id, epoch, query_id, stage_ids, reset=reset, replaces=replaces
        )

    async def discard(self, sink_id: str, stage_ids: Sequence[str]) -> None:
        self._check_running()
        await self._node.publisher.discard(sink_id, stage_ids)

    # --- consumer groups --------------------------------------------------------------------------

    async def join_consumer_group(
        self,
        group: str,
        client_id: str,
        topics: Sequence[str],
        on_assignment: Assignment,
        on_revocation: Revocation | None = None,
    ) -> "_Membership":
        # `on_revocation` is never called: there are no members outside of this process.
        member = Member(group, client_id, topics, on_assignment)
        self._coordinator.join(member)
        return _Membership(self._coordinator, member)

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetCommit]) -> None:
        for partition in offsets:
            self._replica(partition)
        self._check_running()
        topics = self._node.metadata.topics
        command = CommitOffsets(
            group=group,
            offsets=[
                CommittedOffset(
                    topic=topic,
                    topic_id=topics[topic].topic_id,
                    partition=partition,
                    offset=offset,
                    metadata=metadata,
                )
                for (topic, partition), (offset, metadata) in offsets.items()
            ],
            timestamp_ms=self._node.now_ms(),
        )
        payload = GroupsCommand(commit_offsets=command).SerializeToString()
        await self._node.groups_command(group, payload)

    async def committed_offsets(self, group: str, topic: str) -> Mapping[int, OffsetCommit]:
        known = self._node.metadata.topics.get(topic)
        return (
            {}
            if known is None
            else self._node.state_groups.offsets_of(group).committed(group, known.topic_id)
        )

    async def list_groups(self) -> Collection[str]:
        names = set(self._coordinator.groups())
        for state in self._node.state_groups.groups_states():
            for some in state.scan(_GROUPS_PER_ITERATION):
                names.update(some)
                await asyncio.sleep(0)
        return names

    async def list_consumers(self, topic: str) -> Mapping[str, Mapping[str, Sequence[int]]]:
        return self._coordinator.consumers(topic)

    async def partition_owner(self, group: str, partition: TopicPartition) -> str | None:
        members = self._coordinator.consumers(partition.topic).get(group, {})
        return next((client for client, owned in members.items() if partition.partition in owned), None)

    async def consumer_group_exists(self, group: str) -> bool:
        return self._coordinator.exists(group)

    # --- nodes ------------------------------------------------------------------------------------

    async def cluster_status(self) -> ClusterStatus:
        self._check_running()
        return await self._node.status()

    async def remove_node(self, node_id: int) -> None:
        self._check_running()
        await self._node.remove_node(node_id)

    async def forget_node(self, node_id: int) -> None:
        self._check_running()
        await self._node.forget_node(node_id)

    # --- checks -----------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if self._stopped:
            raise ShuttingDown

    def _check_writable(self) -> None:
        self._check_running()
        blocked = self._node.blocked
        if blocked is not None:
            raise blocked


class _Membership:
    def __init__(self, coordinator: Coordinator, member: Member) -> None:
        self._coordinator = coordinator
        self._member = member

    async def subscribe(self, topics: Sequence[str]) -> None:
        self._coordinator.subscribe(self._member, topics)

    async def leave(self) -> None:
        self._coordinator.leave(self._member)


def _fault(replica: PartitionReplica) -> CorruptData | None:
    """A copy of a partition's fault: an exception that is raised again accumulates tracebacks."""
    return None if replica.fault is None else CorruptData(str(replica.fault))


def _check_range(partition: TopicPartition, log: PartitionLog, offset: int) -> None:
    if not log.begin_offset <= offset <= log.end_offset:
        raise OffsetOutOfRange(
            f"offset {offset} of {partition.topic}-{partition.partition} is out of range: "
            f"{log.begin_offset} to {log.end_offset} are served",
            log.begin_offset,
            log.end_offset,
        )


async def _wait_append(replica: PartitionReplica, max_wait: float | None) -> None:
    """Wait for the next append, for `max_wait` seconds at most, or until the node stops."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    if replica.waiters is None:
        replica.waiters = {}
    replica.waiters[waiter] = None
    timer = None if max_wait is None else loop.call_later(max_wait, resolve, waiter, None)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        if replica.waiters is not None:
            replica.waiters.pop(waiter, None)
            replica.waiters = replica.waiters or None

"""The `Backend` of an Apache Kafka cluster: composes the parts of this package and decides nothing
itself.

    client                         connections and metadata
    produce, fetch                 batches in, batches out
    topics                         create, alter, delete, describe, list
    list_offsets                   offsets by position and time
    groups, group_list, offsets    consumer groups
    staged_writes, transactions    stages and their publication

The cluster is ready while a broker can be reached. After the first `wait_ready` the metadata stays
known, even while no broker can be reached.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from aiokafka.conn import create_conn

from pixy.backend.kafka.client import SHORT_PATIENCE_S, Dial, KafkaClient
from pixy.backend.kafka.coordinators import Coordinators
from pixy.backend.kafka.delete_records import delete_records
from pixy.backend.kafka.fetch import KafkaFetcher, OutOfRange
from pixy.backend.kafka.group_list import GroupList
from pixy.backend.kafka.groups import GroupEnvironment, Groups
from pixy.backend.kafka.list_offsets import known_ranges, list_offset, list_ranges
from pixy.backend.kafka.neighbours import Neighbours
from pixy.backend.kafka.offsets import GroupOffsets
from pixy.backend.kafka.options import KafkaOptions
from pixy.backend.kafka.produce import Producer
from pixy.backend.kafka.staged_writes import KafkaStagedWrites, StagingPlace
from pixy.backend.kafka.topics import Topics
from pixy.backend.protocol import (
    NO_MARKS,
    AppendDone,
    Assignment,
    BrokerNodes,
    ConsumerMembership,
    FetchResult,
    KnownRanges,
    LocalLogs,
    OffsetsChanged,
    Owner,
    Revocation,
    TopicDescription,
    VisitPosition,
)
from pixy.backend.record_waits import wait_by_fetches
from pixy.backend.timestamps import first_since
from pixy.cluster import ClusterStatus, ExportedState, MoveRequest, MovesPlanned
from pixy.errors import (
    FailedPrecondition,
    OffsetOutOfRange,
    OwnerUndecided,
    ShuttingDown,
    Unavailable,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from pixy.faults import OnFault, report_to_loop
from pixy.proto.state_pb2 import MoveReason, PartitionMove
from pixy.records import NO_PRODUCER_BYTE, PRODUCER_AT, OffsetCommit, OffsetRange, TopicPartition

_WHY_NO_PRODUCERS = "batches of idempotent producers are not passed on to a Kafka cluster"
_SEARCH_BYTES = 1 << 20
_LEARNS_S = 1.0
_ONLY_NODE = BrokerNodes("pixy-kafka", 1)
"""Clients of Kafka's protocol see this process as the only broker."""
"""Longest wait for a leader that does not know yet how far its log is committed."""


class KafkaBackend:
    """A `Backend` on a Kafka cluster. Made inside the event loop that it will run on.

    Args:
        options: addresses and limits.
        staging: the place of the stages.
        on_fault: called with an exception that is a bug.
        on_storage_fault: called with faults of the stages on disk; None: `on_fault` is.
        dial: opens connections.
        neighbours: other pixies in front of the same cluster; None: they are not known.
    """

    def __init__(
        self,
        options: KafkaOptions,
        staging: StagingPlace,
        on_fault: OnFault = report_to_loop,
        dial: Dial = create_conn,
        on_storage_fault: OnFault | None = None,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._client_id = options.client_id
        self._neighbours = neighbours
        self._client = KafkaClient(options, dial, on_fault)
        self._topics = Topics(self._client)
        self._producer = Producer(self._client, options, on_fault)
        self.batch_bytes_max = self._producer.limits.batch_bytes_max
        self._fetcher = KafkaFetcher(self._client, options, on_fault)
        coordinators = self._coordinators = Coordinators(self._client)
        environment = GroupEnvironment(self._client, coordinators, options, on_fault)
        self._groups = Groups(environment, self._owned if neighbours is None else neighbours.assigned)
        self._group_list = GroupList(self._client, coordinators)
        self._offsets = GroupOffsets(self._client, coordinators, self._groups, self._group_list)
        self._staged = KafkaStagedWrites(
            self._client, options, staging, on_fault, on_storage_fault or on_fault, self._know
        )
        self.stage, self.publish = self._staged.stage, self._staged.publish
        self.discard = self._staged.discard
        self._stopped = False

    @property
    def fault(self) -> str:
        return self._client.fault

    @property
    def why_left(self) -> str:
        return ""

    def watch(self, on_change: Callable[[], None]) -> None:
        self._client.fault_listeners.append(on_change)

    async def start(self) -> None:
        await self._staged.start()
        await self._client.start()
        if self._neighbours is not None:
            self._neighbours.start()

    async def wait_ready(self) -> None:
        await self._client.reached.wait()

    async def stop(self) -> None:
        """As `Backend.stop`.

        Takes `delivery_timeout_s` at most, and once more if something is being published.
        """
        if self._stopped:
            return
        self._stopped = True
        await self._staged.stop()
        await self._groups.stop()
        if self._neighbours is not None:
            await self._neighbours.stop()
        await self._fetcher.stop()
        await self._producer.stop()
        await self._client.stop()

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicDescription | None:
        known = self._client.metadata.topics.get(name)
        if known is None and not self._client.reached.is_set():
            raise Unavailable(f"the Kafka cluster has not been reached yet: {self.fault}")
        return known

    async def describe_topic(self, name: str) -> TopicDescription:
        return await self._topics.describe(name)

    async def list_topics(self, names: Sequence[str] | None = None) -> Sequence[TopicDescription]:
        return await self._topics.list_topics(names)

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> TopicDescription:
        self._check_running()
        return await self._topics.create(name, partitions, config or {})

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | None] | None = None,
    ) -> TopicDescription:
        self._check_running()
        try:
            return await self._topics.alter(name, partitions, config or {})
        finally:
            self._producer.limits.forget(name)

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        self._check_running()
        known = self._client.metadata.topics.get(name)
        topic_id = b"" if known is None else known.topic_id
        self._staged.begin_deletion(topic_id, force=force)
        try:
            async with self._offsets.deleting(name):
                await self._topics.delete(name)
        finally:
            self._staged.end_deletion(topic_id)

    # --- records ----------------------------------------------------------------------------------

    def append(
        self,
        partition: TopicPartition,
        batch: bytearray,
        records: int,
        done: AppendDone,
        age_s: float = 0.0,
    ) -> None:
        if batch[PRODUCER_AT] != NO_PRODUCER_BYTE:
            done(-1, FailedPrecondition(_WHY_NO_PRODUCERS))
            return
        self._producer.append(partition, batch, records, done, age_s)

    async def new_producer_id(self) -> int:
        raise FailedPrecondition(_WHY_NO_PRODUCERS)

    async def fetch(
        self, partition: TopicPartition, offset: int, *, max_bytes: int, max_wait: float | None = None
    ) -> FetchResult:
        self._check_running()
        await self._know(partition)
        if offset < 0:
            raise await self._out_of_range(partition, offset)
        try:
            found = await self._fetcher.fetch(partition, offset, max_bytes, max_wait)
            if max_wait != 0 or found.next_offset > offset:
                return found
            # A leader that has just been elected gives nothing of what is behind the end that it
            # knows, but refuses to tell that end (KIP-207).
            end = (await self._served(partition)).end
            if end <= offset:
                return found._replace(high_watermark=end, is_confirmed=True)
            return await self._fetcher.fetch(partition, offset, max_bytes, _LEARNS_S)
        except OutOfRange:
            raise await self._out_of_range(partition, offset) from None

    async def _out_of_range(self, partition: TopicPartition, offset: int) -> OffsetOutOfRange:
        served = await self._served(partition)
        return OffsetOutOfRange(
            f"offset {offset} of {partition.topic}-{partition.partition} is out of range: "
            f"{served.begin} to {served.end} are served",
            served.begin,
            served.end,
        )

    async def _served(self, partition: TopicPartition) -> OffsetRange:
        topic, number = partition
        try:
            return (await list_ranges(self._client, topic, [number]))[number]
        except (UnknownTopic, KeyError):
            raise UnknownPartition(f"topic {topic} was deleted") from None

    @staticmethod
    def fetch_nowait(partition: TopicPartition, offset: int, max_bytes: int) -> FetchResult | None:
        """As `Backend.fetch_nowait`: nothing is in memory."""
        return None

    async def wait_records(self, offsets: Mapping[TopicPartition, int], max_wait: float) -> None:
        await wait_by_fetches(self, offsets, max_wait)

    async def offset_ranges(
        self, topic: str, partitions: Collection[int] | None = None
    ) -> Mapping[int, OffsetRange]:
        self._check_running()
        if self.topic(topic) is None:
            await self._client.refresh([topic])
        return await list_ranges(self._client, topic, partitions)

    async def known_ranges(
        self, topic: str, partitions: Collection[int] | None = None, *, patience_s: float = SHORT_PATIENCE_S
    ) -> KnownRanges:
        self._check_running()
        if self.topic(topic) is None:
            await self._client.refresh([topic])
        return await known_ranges(self._client, topic, partitions, patience_s)

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        self._check_running()
        await self._know(partition)
        at = await list_offset(self._client, partition, timestamp_ms)
        # Kafka's answer may be a control batch or an aborted record.
        while at is not None:
            try:
                result = await self.fetch(partition, at, max_bytes=_SEARCH_BYTES, max_wait=0)
            except OffsetOutOfRange as error:
                at = error.begin if at < error.begin else None
                continue
            found = await asyncio.to_thread(first_since, result.batches, timestamp_ms, at)
            self._check_running()
            if found is not None:
                return found
            at = result.next_offset if result.next_offset > at else None
        return None

    async def delete_records(self, topic: str, offsets: Mapping[int, int]) -> Mapping[int, int]:
        self._check_running()
        await self._topics.describe(topic)
        for number in offsets:
            await self._know(TopicPartition(topic, number))
        return await delete_records(self._client, topic, offsets)

    async def _know(self, partition: TopicPartition) -> None:
        """Refresh the metadata of an unknown partition, which another process may have created.

        Raises:
            UnknownPartition: there is none.
        """
        for ask in (True, False):
            known = self.topic(partition.topic)
            count = 0 if known is None else len(known.partitions)
            if 0 <= partition.partition < count:
                return
            if ask:
                await self._client.refresh([partition.topic])
        raise UnknownPartition(
            f"unknown partition {partition.partition} of topic {partition.topic}, which has {count}"
        )

    # --- consumer groups --------------------------------------------------------------------------

    async def join_consumer_group(
        self,
        group: str,
        client_id: str,
        topics: Sequence[str],
        on_assignment: Assignment,
        on_revocation: Revocation | None = None,
        on_offsets_set: OffsetsChanged | None = None,
    ) -> ConsumerMembership:
        # `on_offsets_set` is never called: the coordinator refuses commits of others than members.
        self._check_running()
        return await self._groups.join(group, client_id, topics, on_assignment, on_revocation)

    async def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        *,
        set: bool = False,
        begins: bool = False,
        handed_out: Mapping[TopicPartition, int] = NO_MARKS,
    ) -> None:
        self._check_running()
        for partition in offsets:
            await self._know(partition)
        await self._offsets.commit(group, offsets)

    async def committed_offsets(self, group: str, topic: str) -> Mapping[int, OffsetCommit]:
        self._check_running()
        return await self._offsets.committed(group, topic)

    classic_groups = None
    joins_at_once = False
    keeps_handed_out = False

    def handed_out(self, group: str, topic: str) -> Mapping[int, int]:
        # A commit in Kafka has no place for marks: its metadata is kafka-pixy's encoding of acks.
        return {}

    async def list_groups(self) -> Collection[str]:
        self._check_running()
        return await self._group_list.names()

    async def log_ranges(self, topic: str) -> Mapping[int, OffsetRange]:
        return await self.offset_ranges(topic)

    async def visit_positions(self, visit: VisitPosition) -> None:
        self._check_running()
        await self._offsets.visit_positions(visit)

    async def delete_group(self, group: str, topic: str = "") -> None:
        self._check_running()
        partitions: list[int] = []
        if topic:
            known = await self._topics.describe(topic)
            partitions = [each.partition for each in known.partitions]
            if not await self._offsets.committed(group, topic):
                raise UnknownGroup(f"consumer group {group} has no offsets in {topic}")
        await self._group_list.delete(group, topic, partitions)

    async def list_consumers(self, topic: str) -> Mapping[str, Mapping[str, Sequence[int]]]:
        self._check_running()
        return await self._group_list.consumers(topic)

    async def partition_owner(self, group: str, partition: TopicPartition) -> Owner | None:
        self._check_running()
        neighbours = self._neighbours
        owner = None if neighbours is None else neighbours.owner(group, partition)
        if owner is not None:
            return owner
        client_id = await self._group_list.owner(group, partition)
        if client_id is None:
            return None
        member = self._groups.member(group, partition)
        if client_id == self._client_id and not (member is not None and member.owns(partition)):
            raise OwnerUndecided(
                f"{partition.topic}/{partition.partition} of {group} is consumed by another process with the client "
                f"id {client_id}, or by this one before it was killed, until its session ends; try again"
            )
        if neighbours is not None and neighbours.may_be_neighbour(client_id):
            raise OwnerUndecided(f"{client_id} has just got {partition}, or cannot be reached; try again")
        return Owner(client_id)

    @property
    def may_have_neighbours(self) -> bool:
        return self._neighbours is not None

    def other_owners(self, group: str, topic: str) -> Sequence[int]:
        return () if self._neighbours is None else self._neighbours.owners(group, topic)

    async def ask_node(self, node_id: int, request: bytes, timeout_s: float) -> bytes:
        self._check_running()
        if self._neighbours is None:
            raise Unavailable("the other pixies in front of this Kafka cluster are not known: set peers")
        return await self._neighbours.ask(node_id, request, timeout_s)

    def serve_nodes(self, handler: Callable[[int, bytes], Awaitable[bytes]]) -> None:
        if self._neighbours is not None:
            self._neighbours.serve(handler)

    async def consumer_group_exists(self, group: str) -> bool:
        self._check_running()
        return bool(await self._group_list.members(group))

    # --- nodes ------------------------------------------------------------------------------------

    @property
    def broker_nodes(self) -> BrokerNodes:
        return _ONLY_NODE

    async def find_brokers(self) -> BrokerNodes:
        return self.broker_nodes

    def announce_broker(self, address: str) -> None:
        """As `Backend.announce_broker`: no other process asks."""

    async def local_logs(self) -> LocalLogs:
        raise _with_kafkas_tools()

    @property
    def troubles(self) -> Sequence[str]:
        return self._staged.troubles

    async def cluster_status(self) -> ClusterStatus:
        raise _with_kafkas_tools(self.troubles)

    async def remove_node(self, node_id: int) -> None:
        raise _with_kafkas_tools()

    async def forget_node(self, node_id: int) -> None:
        raise _with_kafkas_tools()

    async def drain_node(self, node_id: int, *, draining: bool) -> None:
        raise _with_kafkas_tools()

    async def plan_moves(self, request: MoveRequest) -> MovesPlanned:
        raise _with_kafkas_tools()

    async def begin_moves(
        self, reason: MoveReason.ValueType, moves: Sequence[PartitionMove]
    ) -> Sequence[str]:
        raise _with_kafkas_tools()

    async def export_state(self) -> ExportedState:
        raise _with_kafkas_tools()

    @staticmethod
    def _owned(*_: object) -> None:
        """Nobody is told."""

    def _check_running(self) -> None:
        if self._stopped:
            raise ShuttingDown


def _with_kafkas_tools(troubles: Sequence[str] = ()) -> FailedPrecondition:
    here = f"; this daemon has {'; '.join(troubles)}" if troubles else ""
    return FailedPrecondition(f"this is a Kafka cluster: its nodes are operated with Kafka's own tools{here}")

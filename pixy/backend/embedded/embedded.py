"""The `Backend` of an embedded cluster: the node in this process, and the other nodes through it.

It composes the parts of this package and decides nothing itself.

    node_start             the start, which may wait for other nodes
    partition_finder       where a partition is, and when it is unknown
    producer_ids           ids of idempotent producers
    local_partitions       records of partitions with a replica here
    remote_partitions      records of the others, by calls to nodes that have replicas
    topic_descriptions     topics as clients see them
    consumer_groups        commits, owners; `local_members` of this process
    classic_groups         groups of Kafka clients, and their offsets
    node_staging           staged writes
    neighbour_calls        calls of consumer groups to other nodes
    call_handlers          the other side of the calls, for other nodes
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from pixy.aio.steps import in_steps
from pixy.aio.tasks import Tasks
from pixy.backend.embedded.broker_addresses import BrokerAddresses
from pixy.backend.embedded.call_handlers import CallHandlers
from pixy.backend.embedded.classic_groups import NodeClassicGroups
from pixy.backend.embedded.consumer_groups import ConsumerGroups
from pixy.backend.embedded.group_membership import REMOVED, MemberCallbacks
from pixy.backend.embedded.local_members import LocalMembers
from pixy.backend.embedded.local_partitions import LocalPartitions, fault_of
from pixy.backend.embedded.neighbour_calls import NeighbourCalls
from pixy.backend.embedded.node_staging import NodeStaging
from pixy.backend.embedded.node_start import NodeStart
from pixy.backend.embedded.partition_router import CONFIRM_S, PartitionRoute, PartitionRouter
from pixy.backend.embedded.producer_ids import ProducerIds
from pixy.backend.embedded.remote_leaders import RemoteLeaders
from pixy.backend.embedded.remote_partitions import RemotePartitions
from pixy.backend.embedded.topic_descriptions import TopicDescriptions
from pixy.backend.embedded.topic_observer import TopicObserver
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
from pixy.cluster import (
    ClusterStatus,
    ExportedState,
    MoveRequest,
    MovesPlanned,
    Node,
    PartitionReplica,
    PeerMethod,
    RemotePartition,
    Topic,
    leaving_beside,
    reasons_to_keep,
    staying_without,
)
from pixy.errors import FailedPrecondition, PixyError, ShuttingDown, Unavailable, UnknownTopic
from pixy.faults import report_to_loop
from pixy.proto.state_pb2 import MoveReason, PartitionMove
from pixy.records import (
    NO_PRODUCER_BYTE,
    PRODUCER_AT,
    OffsetCommit,
    OffsetRange,
    TopicPartition,
    check_topic_name,
)

T = TypeVar("T")

_TOPICS_ASKED = 100
"""Topics that are asked about at a time: each may have 10 000 partitions."""
_PARTITIONS_PER_ITERATION = 200
"""Partitions visited in one iteration of the event loop: a topic may have 10 000."""
_PARTITIONS_PURGED = 8
"""Partitions of which a request removes records at a time: requests of one address, 32 at a time,
have half of the calls for offsets to another node with them, see `NeighbourCalls`.
"""
_LED_S = 30.0
"""Longest wait for the first leaders of new partitions: too few nodes may be up."""
_LEAVING_S, _LEAVING_LOOK_S = 10.0, 0.2
"""Longest wait for the node that was removed before, and the pause between two looks."""


class EmbeddedBackend:
    """A `Backend` on a node of this process.

    Args:
        node: not started; the backend owns it from here on.
        append_timeout_s: limit of a write whose partition has replicas on other nodes.
        drain_s: time for the acks of partitions that go to another member of a consumer group.
    """

    def __init__(self, node: Node, append_timeout_s: float = 10.0, drain_s: float = 10.0) -> None:
        self._node = node
        self._append_timeout_s = append_timeout_s
        self._start = NodeStart(node)
        self._tasks = Tasks(report_to_loop)
        self._producer_ids = ProducerIds(node, self._tasks)
        # All nodes know what producers have written. Invariant: once true, it stays so.
        self._takes_producers = False
        self._on_change: Callable[[], None] | None = None
        self._finder = PartitionRouter(node)
        self._local = LocalPartitions(node, self._check_running)
        self._remote = RemotePartitions(node)
        self._members = LocalMembers(node, self._tasks, drain_s)
        self._groups = ConsumerGroups(node, self._members)
        self.classic_groups = NodeClassicGroups(node, self._check_running)
        self._neighbour_calls = NeighbourCalls(PeerMethod.CONSUME)
        self._descriptions = TopicDescriptions(node, self._start.check)
        # Called for every record.
        self.topic = self._descriptions.find
        self._leaders = RemoteLeaders(node, self._tasks, self._descriptions.told)
        self._descriptions.on_unknown_leader = self._leaders.ask_soon
        self._staging = NodeStaging(node, self._finder, self._check_running, self._check_writable)
        self.stage, self.publish = self._staging.stage, self._staging.publish
        self.discard = self._staging.discard
        node.observer = TopicObserver(self._members, self._descriptions, self._readiness_changed)
        self._handlers = CallHandlers(node, self._local, self._check_running)
        node.methods.update(self._handlers.by_method())
        self._brokers = BrokerAddresses(node, self._tasks)
        node.methods.update(self._brokers.handlers())
        self._stopped = False

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._start.run()
        if self._start.is_over:
            for topic in self._node.metadata.topics.values():
                await self._descriptions.prepare(len(topic.raft_groups))

    @property
    def fault(self) -> str:
        if self._start.is_over and self._node.has_left:
            return REMOVED
        if not self._start.is_over:
            return self._start.fault
        return self._node.why_no_majority

    @property
    def why_left(self) -> str:
        return f"{REMOVED}: use another one" if self._start.is_over and self._node.has_left else ""

    def watch(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    def _readiness_changed(self) -> None:
        if self._on_change is not None and not self._stopped:
            self._on_change()

    async def wait_ready(self) -> None:
        await self._start.wait()

    async def stop(self) -> None:
        if self._start.is_over and not self._stopped:
            await self._members.stop()
        self._stopped = True
        await self._tasks.cancel_all()
        await self._start.stop()
        await self._node.stop()

    def _check_served(self) -> None:
        """Raises Unavailable unless the node answers questions; one that is alone does so after the
        stop too.
        """
        self._start.check()
        if self._stopped and not self._node.is_alone:
            raise ShuttingDown
        if self._node.left:
            raise Unavailable(self._node.left)

    def _check_running(self) -> None:
        if self._stopped:
            raise ShuttingDown
        if not self._node.has_started:
            self._start.check()
        if self._node.left:
            raise Unavailable(self._node.left)

    def _check_not_stopped(self) -> None:
        if self._stopped:
            raise ShuttingDown

    def _check_writable(self) -> None:
        self._check_running()
        blocked = self._node.blocked
        if blocked is not None:
            raise blocked

    # --- topics -----------------------------------------------------------------------------------

    async def describe_topic(self, name: str) -> TopicDescription:
        self._check_served()
        topic = await self._finder.topic(name)
        await self._leaders.ask([topic])
        return await self._descriptions.describe(topic)

    async def list_topics(self, names: Sequence[str] | None = None) -> Sequence[TopicDescription]:
        self._check_served()
        topics = await self._finder.topics(names)
        for at in range(0, len(topics), _TOPICS_ASKED):
            await self._leaders.ask(topics[at : at + _TOPICS_ASKED])
        return [await self._descriptions.describe(topic) async for topic in in_steps(topics)]

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> TopicDescription:
        check_topic_name(name)
        self._check_running()
        await self._descriptions.prepare(partitions)
        return await self._made(await self._node.commands.create_topic(name, partitions, config or {}))

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | None] | None = None,
    ) -> TopicDescription:
        self._check_running()
        await self._descriptions.prepare(partitions or 0)
        return await self._made(await self._node.commands.alter_topic(name, partitions, config or {}))

    async def _made(self, topic: Topic) -> TopicDescription:
        """Describe a topic once its partitions have leaders: a large one is made in pieces."""
        await self._node.partitions.opening.wait_led(topic.name, _LED_S)
        return await self._descriptions.describe(topic)

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        self._check_running()
        topic = await self._finder.topic(name)
        if not force:
            await self._staging.check_none_elsewhere(topic)
        self._check_running()
        await self._node.commands.delete_topic(name, force=force)

    # --- records ----------------------------------------------------------------------------------

    @staticmethod
    def batch_bytes_max(topic: str) -> int | None:
        """As `Backend.batch_bytes_max`: no topic has a limit of its own."""
        return None

    def append(
        self,
        partition: TopicPartition,
        batch: bytearray,
        records: int,
        done: AppendDone,
        age_s: float = 0.0,
    ) -> None:
        if not self._start.is_over:
            # Also because nothing may be forwarded for a replica that is about to be opened here:
            # its own proposals will have the same identities.
            done(-1, Unavailable(self._start.fault))
            return
        if self._node.has_left:
            # The others end its connections soon: it would not learn what has become of the batch.
            done(-1, Unavailable(self._node.left or self.why_left))
            return
        if batch[PRODUCER_AT] != NO_PRODUCER_BYTE and not self._takes_producers:
            try:
                self._node.commands.check_producers()
            except FailedPrecondition as error:
                done(-1, error)
                return
            self._takes_producers = True
        replica = self._finder.here(partition)
        if replica is not None:
            self._append_here(replica, batch, done, age_s)
            return
        place = self._finder.find_nowait(partition)
        if place is not None:
            self._append_elsewhere(place, batch, done, age_s)
        elif self._node.is_alone:
            raise self._finder.unknown(partition)
        else:
            work = self._append_unknown(partition, batch, done, age_s)
            self._tasks.spawn(work, f"append to {partition.topic}", partial(done, -1))

    def _append_here(
        self, replica: PartitionReplica, batch: bytearray, done: AppendDone, age_s: float
    ) -> None:
        blocked = ShuttingDown() if self._stopped else self._node.blocked or fault_of(replica)
        if blocked is not None:
            done(-1, blocked)
            return
        self._node.propose_batch(replica, batch, partial(_answer, done), self._append_timeout_s - age_s)

    def _append_elsewhere(
        self, place: PartitionRoute, batch: bytearray, done: AppendDone, age_s: float
    ) -> None:
        timeout_s = self._append_timeout_s - age_s
        if isinstance(place, PartitionReplica):
            self._append_here(place, batch, done, age_s)
        elif self._stopped:
            done(-1, ShuttingDown())
        elif self._node.left:
            done(-1, Unavailable(self._node.left))
        elif (damaged := self._finder.takes_entries(place.partition)) is not None:
            # Its entries are committed and applied as ever, and other replicas serve them.
            self._node.propose_batch(damaged, batch, partial(_answer, done), timeout_s)
        else:
            self._remote.append(place, batch, partial(_answer, done), timeout_s)

    async def _append_unknown(
        self, partition: TopicPartition, batch: bytearray, done: AppendDone, age_s: float
    ) -> None:
        """Append to a partition that this node's metadata does not know yet, or not any more."""
        try:
            place = await self._finder.find(partition)
        except PixyError as error:
            done(-1, error)
        else:
            self._append_elsewhere(place, batch, done, age_s)

    async def new_producer_id(self) -> int:
        self._check_running()
        return await self._producer_ids.next()

    def fetch(
        self, partition: TopicPartition, offset: int, *, max_bytes: int, max_wait: float | None = None
    ) -> Coroutine[Any, Any, FetchResult]:
        self._check_running()
        place = self._finder.here(partition)
        if isinstance(place, PartitionReplica):
            # Thousands wait for records: no frame of this class waits with them.
            return self._local.fetch(place, offset, max_bytes=max_bytes, max_wait=max_wait)
        return self._fetch_from(place, partition, offset, max_bytes, max_wait)

    async def _fetch_from(
        self,
        place: PartitionRoute | None,
        partition: TopicPartition,
        offset: int,
        max_bytes: int,
        max_wait: float | None,
    ) -> FetchResult:
        place = place or await self._finder.find(partition)
        if isinstance(place, PartitionReplica):
            return await self._local.fetch(place, offset, max_bytes=max_bytes, max_wait=max_wait)
        return await self._remote.fetch(place, offset, max_bytes=max_bytes, max_wait=max_wait)

    def fetch_nowait(self, partition: TopicPartition, offset: int, max_bytes: int) -> FetchResult | None:
        replica = None if self._stopped else self._finder.here(partition)
        return None if replica is None else self._local.fetch_nowait(replica, offset, max_bytes)

    async def wait_records(self, offsets: Mapping[TopicPartition, int], max_wait: float) -> None:
        self._check_running()
        here = [(self._finder.here(partition), offset) for partition, offset in offsets.items()]
        replicas = [(replica, offset) for replica, offset in here if replica is not None]
        if len(replicas) < len(here):
            await wait_by_fetches(self, offsets, max_wait)
        else:
            await self._local.wait_records(replicas, max_wait)

    async def offset_ranges(
        self, topic: str, partitions: Collection[int] | None = None
    ) -> Mapping[int, OffsetRange]:
        self._check_served()
        count = len((await self._finder.topic(topic)).raft_groups)
        wanted = range(count) if partitions is None else sorted({*partitions})
        numbers = [each for each in wanted if 0 <= each < count]
        routes = await self._routes(topic, numbers)
        while True:
            try:
                return await self._ranges_of(routes)
            except Unavailable:
                before, routes = routes, await self._routes(topic, numbers)
                if routes == before:
                    raise

    async def known_ranges(
        self, topic: str, partitions: Collection[int] | None = None, *, patience_s: float = CONFIRM_S
    ) -> KnownRanges:
        self._check_served()
        count = len((await self._finder.topic(topic)).raft_groups)
        wanted = range(count) if partitions is None else sorted({*partitions})
        routes = await self._routes(topic, [each for each in wanted if 0 <= each < count])
        ranges = dict[int, OffsetRange]()
        while True:
            found = await self._known_of(routes, patience_s)
            ranges |= found.ranges
            # Replicas may have moved meanwhile.
            before = [each for each in routes if each.partition.partition in found.unknown]
            routes = await self._routes(topic, sorted(found.unknown))
            if routes == before:
                return KnownRanges(dict(sorted(ranges.items())), dict(sorted(found.unknown.items())))

    async def _known_of(self, routes: Iterable[PartitionRoute], patience_s: float) -> KnownRanges:
        here, elsewhere = await self._divided(routes)
        if not elsewhere:
            return await self._local.known_ranges(here, patience_s)
        found = await asyncio.gather(
            self._local.known_ranges(here, patience_s), self._remote.known_ranges(elsewhere, patience_s)
        )
        return KnownRanges({**found[0].ranges, **found[1].ranges}, {**found[0].unknown, **found[1].unknown})

    async def _routes(self, topic: str, numbers: Iterable[int]) -> list[PartitionRoute]:
        """Routes to partitions, in their order."""
        routes: list[PartitionRoute] = []
        for number in numbers:
            partition = TopicPartition(topic, number)
            place = self._finder.find_nowait(partition)
            if place is None:
                raise self._finder.unknown(partition)
            routes.append(place)
            if not len(routes) % _PARTITIONS_PER_ITERATION:
                await asyncio.sleep(0)
        return routes

    async def _ranges_of(self, routes: Iterable[PartitionRoute]) -> Mapping[int, OffsetRange]:
        here, elsewhere = await self._divided(routes)
        if not elsewhere:
            return await self._local.offset_ranges(here)
        found = await asyncio.gather(self._local.offset_ranges(here), self._remote.offset_ranges(elsewhere))
        return dict(sorted((found[0] | found[1]).items()))

    async def _divided(
        self, routes: Iterable[PartitionRoute]
    ) -> tuple[list[PartitionReplica], list[RemotePartition]]:
        """The partitions with a replica here, and the others."""
        here: list[PartitionReplica] = []
        elsewhere: list[RemotePartition] = []
        async for place in in_steps(routes):
            if isinstance(place, PartitionReplica):
                here.append(place)
            else:
                elsewhere.append(place)
        return here, elsewhere

    async def log_ranges(self, topic: str) -> Mapping[int, OffsetRange]:
        self._check_served()
        known = self._node.metadata.topics.get(topic)
        if known is None:
            raise UnknownTopic(f"unknown topic {topic}")
        ranges: dict[int, OffsetRange] = {}
        elsewhere: list[RemotePartition] = []
        async for number, replicas in in_steps(enumerate(known.replicas)):
            partition = TopicPartition(topic, number)
            if self._node.node_id in replicas and self._node.partitions.find_made(partition) is None:
                # Nothing was ever written to it, and looking for it would make it.
                ranges[number] = OffsetRange(0, 0)
                continue
            place = self._finder.find_nowait(partition)
            if isinstance(place, PartitionReplica):
                ranges[number] = OffsetRange(place.log.begin_offset, place.log.end_offset)
            elif place is not None:
                elsewhere.append(place)
        return ranges | await self._remote.offset_ranges(elsewhere, confirmed=False)

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        self._check_served()
        return await self._answered(
            partition,
            lambda replica: self._local.offset_for_timestamp(replica, timestamp_ms),
            lambda target: self._remote.offset_for_timestamp(target, timestamp_ms),
        )

    async def _answered(
        self,
        partition: TopicPartition,
        here: Callable[[PartitionReplica], Awaitable[T]],
        elsewhere: Callable[[RemotePartition], Awaitable[T]],
    ) -> T:
        """The answer of a replica here or elsewhere, also if the partition moves meanwhile."""
        place: PartitionRoute | None = None
        while True:
            place = place or self._finder.here(partition) or await self._finder.find(partition)
            self._check_served()
            try:
                if isinstance(place, PartitionReplica):
                    return await here(place)
                return await elsewhere(place)
            except Unavailable:
                before, place = place, await self._finder.find(partition)
                if place == before:
                    raise

    async def delete_records(self, topic: str, offsets: Mapping[int, int]) -> Mapping[int, int]:
        self._check_running()
        await self._finder.topic(topic)
        self._node.commands.check_removing()
        numbers = list(offsets)
        begins: dict[int, int] = {}
        for at in range(0, len(numbers), _PARTITIONS_PURGED):
            some = numbers[at : at + _PARTITIONS_PURGED]
            work = (self._delete_records(TopicPartition(topic, each), offsets[each]) for each in some)
            found = await asyncio.gather(*work, return_exceptions=True)
            for number, begin in zip(some, found, strict=True):
                if isinstance(begin, BaseException):
                    raise begin
                begins[number] = begin
        return begins

    async def _delete_records(self, partition: TopicPartition, offset: int) -> int:
        return await self._answered(
            partition,
            lambda replica: self._local.delete_records(replica, offset),
            lambda target: self._remote.delete_records(target, offset),
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
        self._check_running()
        callbacks = MemberCallbacks(on_assignment, on_revocation, on_offsets_set)
        return await self._members.join(group, client_id, topics, callbacks)

    async def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        *,
        set: bool = False,
        begins: bool = False,
        handed_out: Mapping[TopicPartition, int] = NO_MARKS,
    ) -> None:
        self._check_served()
        await self._finder.check_known(offsets)
        self._check_running()
        await self._groups.commit(group, offsets, set=set, begins=begins, handed_out=handed_out)

    async def committed_offsets(self, group: str, topic: str) -> Mapping[int, OffsetCommit]:
        self._check_served()
        return await self._groups.committed(group, topic)

    joins_at_once = True
    keeps_handed_out = True

    def handed_out(self, group: str, topic: str) -> Mapping[int, int]:
        return self._groups.handed_out(group, topic)

    async def list_groups(self) -> Collection[str]:
        self._check_served()
        return await self._groups.list_groups()

    async def visit_positions(self, visit: VisitPosition) -> None:
        self._check_served()
        await self._groups.visit_positions(visit)

    async def delete_group(self, group: str, topic: str = "") -> None:
        self._check_running()
        if topic:
            await self._finder.topic(topic)
            self._check_running()
        await self._groups.delete(group, topic)

    async def list_consumers(self, topic: str) -> Mapping[str, Mapping[str, Sequence[int]]]:
        self._check_served()
        return await self._groups.consumers(topic)

    async def partition_owner(self, group: str, partition: TopicPartition) -> Owner | None:
        self._check_served()
        return await self._groups.partition_owner(group, partition)

    @property
    def may_have_neighbours(self) -> bool:
        return self._node.calls is not None  # this replica of who owns what may lag

    def other_owners(self, group: str, topic: str) -> Sequence[int]:
        return self._groups.other_owners(group, topic) if self._start.is_over else ()

    def ask_node(self, node_id: int, request: bytes, timeout_s: float) -> Coroutine[None, None, bytes]:
        self._check_running()
        calls = self._node.calls
        if calls is None:
            raise Unavailable(f"node {node_id} cannot be asked: this node has no peers")
        return self._neighbour_calls.ask(calls, node_id, request, timeout_s)

    def serve_nodes(self, handler: Callable[[int, bytes], Awaitable[bytes]]) -> None:
        self._handlers.consume = handler

    async def consumer_group_exists(self, group: str) -> bool:
        self._check_served()
        return await self._groups.exists(group)

    # --- nodes ------------------------------------------------------------------------------------

    @property
    def broker_nodes(self) -> BrokerNodes:
        return self._brokers.nodes

    async def find_brokers(self) -> BrokerNodes:
        return await self._brokers.find()

    def announce_broker(self, address: str) -> None:
        self._brokers.own = address

    async def local_logs(self) -> LocalLogs:
        self._check_served()
        node = self._node
        partitions = (
            (TopicPartition(topic.name, number), replicas)
            for topic in list(node.metadata.topics.values())
            for number, replicas in enumerate(topic.replicas)
        )
        sizes = {}
        async for partition, replicas in in_steps(partitions):
            made = node.partitions.find_made(partition)
            if made is not None and not made.is_absent:
                sizes[partition] = made.log.segments_bytes
            elif made is None and node.node_id in replicas:
                sizes[partition] = 0  # nothing was ever written to it
        return LocalLogs(str(node.directory), node.disk(), sizes)

    @property
    def troubles(self) -> Sequence[str]:
        return ()  # the status has them

    async def cluster_status(self) -> ClusterStatus:
        # Also while the node waits for others: it says for whom.
        self._check_not_stopped()
        return await self._node.status()

    async def remove_node(self, node_id: int) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _LEAVING_S
        while True:
            self._check_running()
            status = await self._node.status()
            reasons = reasons_to_keep(status, node_id)
            if not reasons:
                break
            if not leaving_beside(status, node_id) or loop.time() > give_up_at:
                raise FailedPrecondition(f"node {node_id} is needed: {'; '.join(reasons)}")
            await asyncio.sleep(_LEAVING_LOOK_S)
        self._check_running()
        await self._node.commands.remove_node(node_id, staying_without(status, node_id))

    async def forget_node(self, node_id: int) -> None:
        self._check_running()
        await self._node.commands.forget_node(node_id)

    async def drain_node(self, node_id: int, *, draining: bool) -> None:
        self._check_running()
        await self._node.commands.drain_node(node_id, draining=draining)

    async def plan_moves(self, request: MoveRequest) -> MovesPlanned:
        self._check_running()
        return await self._node.commands.plan_moves(request)

    async def begin_moves(
        self, reason: MoveReason.ValueType, moves: Sequence[PartitionMove]
    ) -> Sequence[str]:
        self._check_running()
        return await self._node.commands.begin_moves(reason, moves)

    async def export_state(self) -> ExportedState:
        self._check_running()
        return await self._node.export_state()


def _answer(done: AppendDone, result: int | PixyError) -> None:
    if isinstance(result, PixyError):
        done(-1, result)
    else:
        done(result, None)

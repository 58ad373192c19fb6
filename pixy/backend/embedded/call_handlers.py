"""Answers to calls of other nodes: records, offsets, leaders and stages, as far as this node has
them, and what its consumers answer.

A call is never passed on: the caller knows which nodes have replicas.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence

from pixy.aio.steps import in_steps
from pixy.backend.embedded.local_partitions import LocalPartitions
from pixy.backend.embedded.partition_router import CONFIRM_S
from pixy.backend.embedded.remote_partitions import FETCH_BYTES_MAX
from pixy.cluster import Node, PartitionReplica, PeerMethod
from pixy.errors import FailedPrecondition, InvalidArgument, Unavailable, UnknownPartition
from pixy.multiraft import replicas_in_sync
from pixy.proto.node_calls_pb2 import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchRequest,
    FetchResponse,
    LeadersRequest,
    LeadersResponse,
    OffsetsRequest,
    RangesRequest,
    RangesResponse,
    StagedRequest,
    StagedResponse,
    TimestampRequest,
    TimestampResponse,
)
from pixy.records import OffsetRange

_UNKNOWN = OffsetRange(-1, -1)


class CallHandlers:
    """Handlers of one node.

    Args:
        node: this node.
        partitions: those with a replica here.
        check_running: raises `Unavailable` unless the node serves.

    Attributes:
        consume: answers calls to the consumers of this process; None: there are none.
    """

    consume: Callable[[int, bytes], Awaitable[bytes]] | None = None

    def __init__(
        self,
        node: Node,
        partitions: LocalPartitions,
        check_running: Callable[[], None],
    ) -> None:
        self._node = node
        self._partitions = partitions
        self._check_running = check_running

    def by_method(self) -> dict[int, Callable[[int, bytes], Awaitable[bytes]]]:
        """The handlers."""
        return {
            PeerMethod.FETCH: self.fetch,
            PeerMethod.OFFSETS: self.offsets,
            PeerMethod.LEADERS: self.leaders,
            PeerMethod.CONSUME: self.consumers,
            PeerMethod.STAGED: self.staged,
        }

    async def fetch(self, caller: int, payload: bytes) -> bytes:
        """Records of a partition."""
        request = FetchRequest.FromString(payload)
        replica = await self._replica(request.raft_group)
        found = await self._partitions.fetch(
            replica,
            request.offset,
            max_bytes=min(request.max_bytes, FETCH_BYTES_MAX),
            max_wait=request.max_wait_ms / 1000,
        )
        response = FetchResponse(
            batches=[bytes(batch) for batch in found.batches],
            next_offset=found.next_offset,
            log_begin_offset=found.log_begin_offset,
            high_watermark=found.high_watermark,
            is_confirmed=found.is_confirmed,
        )
        return response.SerializeToString()

    async def offsets(self, caller: int, payload: bytes) -> bytes:
        """Offsets of partitions."""
        request = OffsetsRequest.FromString(payload)
        match request.WhichOneof("request"):
            case "ranges":
                return (await self._ranges(request.ranges)).SerializeToString()
            case "timestamp":
                return (await self._timestamp(request.timestamp)).SerializeToString()
            case "delete_records":
                return (await self._delete_records(request.delete_records)).SerializeToString()
            case _:
                raise FailedPrecondition("a request for offsets that this release does not know")

    async def _ranges(self, request: RangesRequest) -> RangesResponse:
        groups = request.raft_groups
        if len(set(groups)) < len(groups):
            raise InvalidArgument(f"{len(groups)} raft groups, of which some are there twice")
        if request.patience_ms:
            return await self._known_ranges(groups, min(request.patience_ms / 1000, CONFIRM_S))
        replicas = [await self._replica(raft_group) async for raft_group in in_steps(groups)]
        ranges = list(
            (await self._partitions.offset_ranges(replicas, confirmed=not request.unconfirmed)).values()
        )
        return RangesResponse(begins=[each.begin for each in ranges], ends=[each.end for each in ranges])

    async def _known_ranges(self, groups: Sequence[int], patience_s: float) -> RangesResponse:
        self._check_running()
        numbers: dict[int, int] = {}
        replicas: list[PartitionReplica] = []
        async for raft_group in in_steps(groups):
            replica = self._node.find_partition(raft_group)
            if replica is not None and not replica.needs_copy:
                numbers[raft_group] = replica.partition.partition
                replicas.append(replica)
        known = await self._partitions.known_ranges(replicas, patience_s)
        response = RangesResponse()
        async for raft_group in in_steps(groups):
            number = numbers.get(raft_group)
            found = _UNKNOWN if number is None else known.ranges.get(number, _UNKNOWN)
            response.begins.append(found.begin)
            response.ends.append(found.end)
            if found is _UNKNOWN:
                response.unknown.append(raft_group)
        reasons = map(str, known.unknown.values())
        response.reason = next(reasons, f"node {self._node.node_id} has no replica that can be read")
        return response

    async def _timestamp(self, request: TimestampRequest) -> TimestampResponse:
        replica = await self._replica(request.raft_group)
        return TimestampResponse(
            offset=await self._partitions.offset_for_timestamp(replica, request.timestamp_ms)
        )

    async def _delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        replica = await self._replica(request.raft_group)
        return DeleteRecordsResponse(begin=await self._partitions.delete_records(replica, request.offset))

    async def leaders(self, caller: int, payload: bytes) -> bytes:
        """The raft groups that are led here, or will be as soon as they are used, and replicas that
        are known not to be in sync.
        """
        self._check_running()
        request, response = LeadersRequest.FromString(payload), LeadersResponse()
        async for raft_group in in_steps(set(request.raft_groups)):
            replica = self._node.find_partition(raft_group)
            if _leads(replica):
                response.raft_groups.append(raft_group)
            nodes = self._out_of_sync(raft_group, replica) if request.tell_out_of_sync else ()
            if nodes:
                response.out_of_sync.add(raft_group=raft_group, nodes=nodes)
        return response.SerializeToString()

    def _out_of_sync(self, raft_group: int, replica: PartitionReplica | None) -> Collection[int]:
        """Nodes that this node knows not to have a replica of a partition that is in sync."""
        if replica is None:
            return (self._node.node_id,) if self._node.partitions.knows(raft_group) else ()
        if not replica.is_well:
            return (self._node.node_id,)
        if replica.group is None or not replica.group.leads:
            return ()
        return set(replica.replicas) - replicas_in_sync(replica.group)

    def consumers(self, caller: int, payload: bytes) -> Awaitable[bytes]:
        """Whatever the consumers of nodes say to each other."""
        self._check_running()
        if self.consume is None:
            raise Unavailable(f"node {self._node.node_id} has no consumers")
        return self.consume(caller, payload)

    async def staged(self, caller: int, payload: bytes) -> bytes:
        """The sinks with unpublished records of a topic here."""
        self._check_running()
        topic_id = StagedRequest.FromString(payload).topic_id
        return StagedResponse(sinks=self._node.publisher.staged_by(topic_id)).SerializeToString()

    async def _replica(self, raft_group: int) -> PartitionReplica:
        self._check_running()
        replica = self._node.find_partition(raft_group)
        if replica is not None and replica.needs_copy:
            raise Unavailable(f"the replica of node {self._node.node_id} waits for a copy")
        if replica is not None:
            return replica
        if not self._node.partitions.knows(raft_group):
            await self._node.confirm_metadata(CONFIRM_S)
            if not self._node.partitions.knows(raft_group):
                raise UnknownPartition("the topic was deleted")
        replica = self._node.find_partition(raft_group)
        if replica is None:
            raise Unavailable(f"node {self._node.node_id} has no replica of raft group {raft_group}")
        return replica


def _leads(replica: PartitionReplica | None) -> bool:
    if replica is None or replica.group is None or replica.fault is not None:
        return False
    return replica.group.decides

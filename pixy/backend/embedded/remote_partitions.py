"""Records of the partitions that other nodes have to be asked for: this node has no replica of
them, or a damaged one.

Topics that were made when there were fewer nodes, and all topics of a cluster of four nodes or
more, have such partitions on some nodes.

Of the readers that wait for the same offset one has a call that waits, and the others wait for its
end: thousands of readers do not take the calls that a connection may have in flight.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable

from pixy.aio.futures import resolve
from pixy.backend.embedded.neighbour_calls import NeighbourCalls
from pixy.backend.protocol import FetchResult, KnownRanges
from pixy.cluster import Node, PeerMethod, RemotePartition, ReplicaCalls
from pixy.errors import CorruptData, PixyError, Unavailable
from pixy.peers import decode_answer
from pixy.proto.node_calls_pb2 import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchRequest,
    FetchResponse,
    OffsetsRequest,
    RangesRequest,
    RangesResponse,
    TimestampRequest,
    TimestampResponse,
)
from pixy.records import OffsetRange
from pixy.storage import EntryType

FETCH_BYTES_MAX = 16 << 20
"""Largest answer of a fetch, except for a larger first batch."""

_FRAME_BYTES_MAX = 2**31
"""A first batch may be larger than what was asked for: so the largest frame."""
_RANGE_BYTES_MAX = 30
"""Of the two numbers of a partition, or these and its raft group."""
_REASON_BYTES_MAX = 1000
_PATIENCE_S = 5.0
"""Seconds in which a replica is looked for that answers."""
_ATTEMPT_S = 5.0
_ANSWER_S = 1.0
"""For an answer of another node after its own patience, or without any."""
_POLL_S = 20.0
"""Longest wait for records in one call."""
_SEARCH_S = 60.0
_CHANGE_S = 20.0
"""Longer than the other node waits for the result of a command."""
_WAITED_S = 60.0
"""Longest wait for the end of another reader's call, which ends long before."""
_SHARED_MAX = 256
"""Calls in flight of readers that have waited for the call of another one."""


class RemotePartitions:
    """The partitions without a replica here.

    Args:
        node: this node.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        # Calls that wait for records, by raft group and offset.
        self._waits: dict[tuple[int, int], asyncio.Future[None]] = {}
        # For the others, which come at once.
        self._shared = asyncio.Semaphore(_SHARED_MAX)

        self._offset_calls = NeighbourCalls(PeerMethod.OFFSETS)

    @property
    def _calls(self) -> ReplicaCalls:
        assert self._node.calls is not None, "a node without peers has all partitions"
        return self._node.calls

    def append(
        self,
        target: RemotePartition,
        batch: bytearray,
        done: Callable[[int | PixyError], None],
        timeout_s: float,
    ) -> None:
        """As `Node.append`."""
        assert self._node.remote is not None, "a node without peers has all partitions"
        deadline = _now() + timeout_s
        self._node.remote.propose(target, EntryType.RECORD_BATCH, batch, done, deadline)

    async def fetch(
        self, target: RemotePartition, offset: int, *, max_bytes: int, max_wait: float | None
    ) -> FetchResult:
        """As `Backend.fetch`. The other node waits for records."""
        until = float("inf") if max_wait is None else _now() + max_wait
        while True:
            left = max(0.0, until - _now())
            other = self._waits.get((target.raft_group, offset)) if left else None
            if other is not None:
                async with self._shared:
                    found = await self._fetch(target, offset, max_bytes, 0.0)
            else:
                found = await self._wait(target, offset, max_bytes, min(left, _POLL_S))
            is_over = left <= _POLL_S and other is None
            if found.batches or found.next_offset > offset or is_over:
                return FetchResult(
                    list(found.batches),
                    found.next_offset,
                    found.log_begin_offset,
                    found.high_watermark,
                    found.is_confirmed,
                )
            if other is not None:
                await asyncio.wait([other], timeout=min(until - _now(), _WAITED_S))

    async def _wait(
        self, target: RemotePartition, offset: int, max_bytes: int, max_wait: float
    ) -> FetchResponse:
        if not max_wait:
            return await self._fetch(target, offset, max_bytes, 0.0)
        key = (target.raft_group, offset)
        ended = self._waits[key] = asyncio.get_running_loop().create_future()
        try:
            return await self._fetch(target, offset, max_bytes, max_wait)
        finally:
            del self._waits[key]
            resolve(ended, None)

    async def _fetch(
        self, target: RemotePartition, offset: int, max_bytes: int, max_wait: float
    ) -> FetchResponse:
        request = FetchRequest(
            raft_group=target.raft_group,
            offset=offset,
            max_bytes=min(max_bytes, FETCH_BYTES_MAX),
            max_wait_ms=round(max_wait * 1000),
        )
        payload, attempt_s = request.SerializeToString(), max_wait + _ATTEMPT_S
        answer = await self._calls.call(target, PeerMethod.FETCH, payload, _PATIENCE_S, attempt_s, bulk=True)
        found = decode_answer(FetchResponse, answer, _FRAME_BYTES_MAX)
        size = sum(map(len, found.batches))
        if len(found.batches) > 1 and size > request.max_bytes:
            raise Unavailable(f"a node answers with {size} bytes, {request.max_bytes} were asked for")
        return found

    async def offset_ranges(
        self, targets: Iterable[RemotePartition], *, confirmed: bool = True
    ) -> dict[int, OffsetRange]:
        """Begin and end of logs, by the number of the partition; a call per set of replicas."""
        by_replicas: dict[tuple[int, ...], list[RemotePartition]] = {}
        for target in targets:
            by_replicas.setdefault(target.replicas, []).append(target)
        ranges: dict[int, OffsetRange] = {}
        asked = (self._ranges(some, confirmed=confirmed) for some in by_replicas.values())
        for found in await asyncio.gather(*asked):
            ranges |= found
        return ranges

    async def _ranges(self, targets: list[RemotePartition], *, confirmed: bool) -> dict[int, OffsetRange]:
        raft_groups = [target.raft_group for target in targets]
        wanted = RangesRequest(raft_groups=raft_groups, unconfirmed=not confirmed)
        answer = await self._offsets(targets[0], OffsetsRequest(ranges=wanted), _ATTEMPT_S)
        return dict(_known_of(targets, answer).ranges)

    async def known_ranges(self, targets: Iterable[RemotePartition], patience_s: float) -> KnownRanges:
        """As `Backend.known_ranges`; a call per set of replicas, which is asked as one."""
        by_replicas: dict[tuple[int, ...], list[RemotePartition]] = {}
        for target in targets:
            by_replicas.setdefault(target.replicas, []).append(target)
        ranges, unknown = dict[int, OffsetRange](), dict[int, PixyError]()
        asked = (self._known(some, patience_s) for some in by_replicas.values())
        for found in await asyncio.gather(*asked):
            ranges |= found.ranges
            unknown |= found.unknown
        return KnownRanges(ranges, unknown)

    async def _known(self, targets: list[RemotePartition], patience_s: float) -> KnownRanges:
        wanted = RangesRequest(
            raft_groups=[target.raft_group for target in targets],
            patience_ms=max(1, round(1000 * patience_s)),
        )
        request = OffsetsRequest(ranges=wanted).SerializeToString()
        calls = self._calls

        async def ask(node_id: int) -> KnownRanges:
            answer = await self._offset_calls.ask(calls, node_id, request, patience_s + _ANSWER_S)
            known = _known_of(targets, answer)
            if not known.ranges:
                # Another replica may know of a leader.
                raise Unavailable(str(next(iter(known.unknown.values()))))
            return known

        try:
            return await calls.ask_until_answered(targets[0], min(patience_s, _ANSWER_S), ask)
        except (Unavailable, CorruptData) as error:
            return KnownRanges({}, {each.partition.partition: error for each in targets})

    async def offset_for_timestamp(self, target: RemotePartition, timestamp_ms: int) -> int | None:
        """As `Backend.offset_for_timestamp`."""
        wanted = TimestampRequest(raft_group=target.raft_group, timestamp_ms=timestamp_ms)
        answer = await self._offsets(target, OffsetsRequest(timestamp=wanted), _SEARCH_S)
        found = decode_answer(TimestampResponse, answer)
        return found.offset if found.HasField("offset") else None

    async def delete_records(self, target: RemotePartition, offset: int) -> int:
        """Remove records, as `LocalPartitions.delete_records`."""
        wanted = DeleteRecordsRequest(raft_group=target.raft_group, offset=offset)
        answer = await self._offsets(target, OffsetsRequest(delete_records=wanted), _CHANGE_S)
        return decode_answer(DeleteRecordsResponse, answer).begin

    async def _offsets(self, target: RemotePartition, request: OffsetsRequest, attempt_s: float) -> bytes:
        payload = request.SerializeToString()
        calls = self._calls

        def ask(node_id: int) -> Coroutine[None, None, bytes]:
            return self._offset_calls.ask(calls, node_id, payload, attempt_s)

        return await calls.ask_until_answered(target, _PATIENCE_S, ask)


def _known_of(targets: Collection[RemotePartition], answer: bytes) -> KnownRanges:
    """An answer of another node to a question for ranges."""
    found = decode_answer(RangesResponse, answer, _RANGE_BYTES_MAX * (1 + len(targets)) + _REASON_BYTES_MAX)
    if not len(found.begins) == len(found.ends) == len(targets):
        raise Unavailable(f"a node answers with {len(found.ends)} ends of {len(targets)} partitions")
    ranges, unknown = dict[int, OffsetRange](), dict[int, PixyError]()
    groups = {*found.unknown}
    for target, begin, end in zip(targets, found.begins, found.ends, strict=True):
        number = target.partition.partition
        if target.raft_group in groups:
            unknown[number] = Unavailable(found.reason)
        else:
            ranges[number] = OffsetRange(begin, end)
    return KnownRanges(ranges, unknown)


def _now() -> float:
    return asyncio.get_running_loop().time()

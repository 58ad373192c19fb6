"""Records of the partitions that this node has a replica of.

A partition log has committed records only, so any replica serves a fetch up to its own end. That an
offset is beyond the end, and where the end is, a replica says only after a linearizable read: it
may be behind.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from pixy.aio.byte_semaphore import ByteSemaphore
from pixy.aio.futures import resolve
from pixy.aio.one_thread import OneThread
from pixy.aio.steps import in_steps
from pixy.backend.embedded.partition_router import CONFIRM_S
from pixy.backend.protocol import FetchResult, KnownRanges
from pixy.backend.timestamps import first_since
from pixy.cluster import Node, PartitionReplica
from pixy.errors import CorruptData, OffsetOutOfRange, PixyError, Unavailable, UnknownPartition
from pixy.records import OffsetRange
from pixy.storage import PartitionLog

T = TypeVar("T")

_PARTITIONS_PER_ITERATION = 200
"""Partitions visited in one iteration of the event loop: a topic may have 10 000."""
_SEARCH_BYTES = 1 << 20


class LocalPartitions:
    """The partitions with a replica here.

    Args:
        node: this node.
        check_running: raises `ShuttingDown` once the node stops.
    """

    def __init__(self, node: Node, check_running: Callable[[], None]) -> None:
        self._node = node
        self._check_running = check_running
        # Searches for a timestamp: one holds records at a time, and decodes them where no reads
        # wait.
        self._search_turn = ByteSemaphore(1)
        self._search_thread = OneThread()

    async def fetch(
        self, replica: PartitionReplica, offset: int, *, max_bytes: int, max_wait: float | None
    ) -> FetchResult:
        """As `Backend.fetch`."""
        # Each wait may end with another log: that of a copy.
        _check_ready(replica)
        if offset > replica.log.end_offset:
            await self._confirm([replica])
            self._check_running()
            _check_ready(replica)
        _check_range(replica, offset)
        is_confirmed = not _is_shared(replica)
        if offset == replica.log.end_offset:
            if max_wait is None or max_wait > 0:
                await self._wait_append(replica, max_wait)
            elif not is_confirmed:
                await self._confirm([replica])
                is_confirmed = True
            self._check_running()
            _check_ready(replica)
            _check_range(replica, offset)
        log = replica.log
        chunk = log.read_memory(offset, max_bytes)
        if chunk is None:
            chunk = await self._read(replica, log, partial(log.read, offset, max_bytes))
        return FetchResult(chunk.batches, chunk.next_offset, log.begin_offset, log.end_offset, is_confirmed)

    @staticmethod
    def fetch_nowait(replica: PartitionReplica, offset: int, max_bytes: int) -> FetchResult | None:
        """As `Backend.fetch_nowait`."""
        log = replica.log
        if not (log.begin_offset <= offset <= log.end_offset) or replica.fault is not None:
            return None
        if replica.is_absent or log.topic.deleted:
            return None
        chunk = log.read_memory(offset, max_bytes)
        if chunk is None:
            return None
        return FetchResult(
            chunk.batches, chunk.next_offset, log.begin_offset, log.end_offset, not _is_shared(replica)
        )

    @staticmethod
    async def wait_records(replicas: Sequence[tuple[PartitionReplica, int]], max_wait: float) -> None:
        """As `Backend.wait_records`."""
        for replica, offset in replicas:
            log = replica.log
            if log.end_offset > offset or offset < log.begin_offset or log.topic.deleted or replica.fault:
                return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        for replica, _ in replicas:
            replica.add_waiter(waiter)
        timer = loop.call_later(max_wait, resolve, waiter, None)
        try:
            await waiter
        finally:
            timer.cancel()
            for replica, _ in replicas:
                replica.remove_waiter(waiter)

    async def _read(self, replica: PartitionReplica, log: PartitionLog, read: Callable[[], T]) -> T:
        """Read files of a partition on another thread. Damage makes the partition unready, unless
        they are not its files any more, or not yet.
        """
        self._check_running()
        _check_opened(replica, log)
        try:
            return await self._node.read(read)
        except PixyError as error:
            _check_ready(replica)
            _check_opened(replica, log)
            if isinstance(error, CorruptData):
                self._node.partitions.set_fault(replica, error)
            raise

    async def offset_ranges(
        self, replicas: Iterable[PartitionReplica], *, confirmed: bool = True
    ) -> dict[int, OffsetRange]:
        """Begin and end of logs, by the number of the partition; not `confirmed`: as this node
        knows them.
        """
        found = list(replicas)
        if confirmed:
            await self._confirm(found)
        ranges: dict[int, OffsetRange] = {}
        for replica in found:
            _check_present(replica)
            ranges[replica.partition.partition] = _range_of(replica)
            if not len(ranges) % _PARTITIONS_PER_ITERATION:
                await asyncio.sleep(0)
        return ranges

    async def known_ranges(self, replicas: Iterable[PartitionReplica], patience_s: float) -> KnownRanges:
        """As `Backend.known_ranges`."""
        found = list(replicas)
        shared = [each for each in found if _is_shared(each) and not each.deleted]
        late = await self._node.confirm_each(shared, patience_s) if shared else {}
        ranges, unknown = dict[int, OffsetRange](), dict[int, PixyError]()
        async for replica in in_steps(found):
            number = replica.partition.partition
            if replica in late:
                unknown[number] = late[replica]
            elif replica.is_absent:
                unknown[number] = _absence(replica)
            else:
                ranges[number] = _range_of(replica)
        return KnownRanges(ranges, unknown)

    async def offset_for_timestamp(self, replica: PartitionReplica, timestamp_ms: int) -> int | None:
        """As `Backend.offset_for_timestamp`."""
        _check_ready(replica)
        await self._confirm([replica])
        _check_present(replica)
        log = replica.log
        # Batches may move from memory to segments during the search, which covers all below this
        # offset.
        written_offset = log.written_offset
        found = await self._read(replica, log, partial(log.find_timestamp, timestamp_ms))
        at = max(written_offset if found is None else found, replica.log.begin_offset)
        while at < replica.log.end_offset:
            self._check_running()
            try:
                found, behind = await self._search_some(replica, timestamp_ms, at)
            except OffsetOutOfRange as error:
                at = error.begin  # retention moved the log begin offset meanwhile
                continue
            if found is not None:
                return found
            at = behind
        return None

    async def delete_records(self, replica: PartitionReplica, offset: int) -> int:
        """Remove the records of a partition below an offset, -1 for its end; returns where the log
        begins then.

        Raises:
            OffsetOutOfRange: it is above the end.
        """
        _check_ready(replica)
        await self._confirm([replica])
        _check_present(replica)
        offset = replica.log.end_offset if offset < 0 else offset
        if offset > replica.log.begin_offset:
            _check_range(replica, offset)
        await self._node.commands.delete_records(replica, offset)
        return replica.log.begin_offset

    async def _search_some(
        self, replica: PartitionReplica, timestamp_ms: int, at: int
    ) -> tuple[int | None, int]:
        """The answer of some records from `at` on, and where the next ones begin."""
        async with self._search_turn.holding(1):
            chunk = await self.fetch(replica, at, max_bytes=_SEARCH_BYTES, max_wait=None)
            # Not by `_read`: a batch that a client made undecodable is no damage of the files.
            found = await self._search_thread.run(partial(first_since, chunk.batches, timestamp_ms, at))
            _check_ready(replica)
            return found, chunk.next_offset

    async def _confirm(self, replicas: Iterable[PartitionReplica]) -> None:
        """Wait until everything is applied here that was committed before."""
        shared = [replica for replica in replicas if _is_shared(replica) and not replica.deleted]
        if shared:
            await self._node.confirm(shared, CONFIRM_S)

    async def _wait_append(self, replica: PartitionReplica, max_wait: float | None) -> None:
        """Wait for the next append, for `max_wait` seconds at most.

        Raises:
            Unavailable: the partition has had no leader for long.
        """
        self._check_running()
        shared = replica.group is not None and replica.group.has_peers
        if shared:
            self._check_led(replica)
        end_offset = replica.log.end_offset
        await replica.wait(max_wait)
        if replica.log.end_offset == end_offset:
            self._check_running()
            if shared and not replica.deleted:
                self._check_led(replica)

    def _check_led(self, replica: PartitionReplica) -> None:
        leaders = self._node.leaders
        leaders.note(replica)
        if leaders.is_leaderless(replica):
            topic, partition = replica.partition
            raise Unavailable(f"partition {partition} of topic {topic} has no leader")


def _is_shared(replica: PartitionReplica) -> bool:
    """True if other nodes have replicas too, or are members of the raft group yet because they have
    only just left: this one may be behind.
    """
    return len(replica.replicas) > 1 or (replica.group is not None and replica.group.has_peers)


def fault_of(replica: PartitionReplica) -> CorruptData | None:
    """A copy of a partition's fault: an exception that is raised again accumulates tracebacks."""
    return None if replica.fault is None else CorruptData(str(replica.fault))


def _check_ready(replica: PartitionReplica) -> None:
    if replica.log.topic.deleted:
        raise UnknownPartition(f"topic {replica.partition.topic} was deleted")
    _check_present(replica)
    if replica.fault is not None:
        raise CorruptData(str(replica.fault))


def _check_present(replica: PartitionReplica) -> None:
    if replica.is_absent:
        raise _absence(replica)


def _absence(replica: PartitionReplica) -> Unavailable:
    return Unavailable(f"the replica of {replica.partition} has gone to other nodes, or comes from there")


def _range_of(replica: PartitionReplica) -> OffsetRange:
    return OffsetRange(replica.log.begin_offset, replica.log.end_offset)


def _check_opened(replica: PartitionReplica, log: PartitionLog) -> None:
    group = replica.group
    if replica.log is not log or (group is not None and group.held is not None):
        raise Unavailable(f"the files of {replica.partition} are being replaced by a copy")


def _check_range(replica: PartitionReplica, offset: int) -> None:
    partition, log = replica.partition, replica.log
    if not log.begin_offset <= offset <= log.end_offset:
        raise OffsetOutOfRange(
            f"offset {offset} of {partition.topic}-{partition.partition} is out of range: "
            f"{log.begin_offset} to {log.end_offset} are served",
            log.begin_offset,
            log.end_offset,
        )

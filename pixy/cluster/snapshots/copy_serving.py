"""Copies of partitions for other nodes: the source's side of copy sessions.

Any replica that has applied the entry of a snapshot, and has all its records in segments, can give
a copy. The segments of a session are pinned, so retention leaves them; a full disk does not: then
all sessions end. What is read is not verified here: the destination verifies every batch. The
decisions are in `pixy.copies.copy_session`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from pixy.cluster.log import NodeLog, PartitionCondition, PartitionReplica
from pixy.cluster.replicas import Partitions
from pixy.copies import CopiedSegment, CopyKey, CopySession, CopySessions, WantedBytes
from pixy.errors import CopyTryLater, CorruptData, NoSuchReplica, SegmentNotFound, StorageFault
from pixy.large_fields import serialize_with
from pixy.multiraft import RaftGroup
from pixy.peers import Answer
from pixy.proto.copies_pb2 import (
    BeginCopyRequest,
    BeginCopyResponse,
    CheckCopyRequest,
    CheckCopyResponse,
    CopySegment,
    EndCopyRequest,
    FetchCopyRequest,
    FetchCopyResponse,
)
from pixy.records import crc32c
from pixy.storage import PartitionLog, is_unreadable, run_on

log = structlog.get_logger(__name__)

_REASON_MAX = 500
"""Characters of another node's reason that are logged."""


@dataclass(frozen=True, slots=True)
class CopyServingOptions:
    """Limits of a `CopyServing`.

    Attributes:
        sessions_max: sessions at a time.
        idle_s: seconds without use after which a session ends, 0: never.
        chunk_bytes: largest answer.
    """

    sessions_max: int = 8
    idle_s: float = 60.0
    chunk_bytes: int = 2 << 20


class CopyServing:
    """Copy sessions of which this node is the source.

    Args:
        node_log: the log of this node.
        partitions: its partitions.
        heard: called with a raft group and a node that copies its replica from here.
        options: see `CopyServingOptions`.

    Attributes:
        sent, sent_bytes: see `TransferCounts`.
    """

    def __init__(
        self,
        node_log: NodeLog,
        partitions: Partitions,
        heard: Callable[[RaftGroup, int], None],
        options: CopyServingOptions = CopyServingOptions(),
    ) -> None:
        self._log = node_log
        self._partitions = partitions
        self._heard = heard
        self._options = options
        self._sessions = CopySessions(node_log.incarnation.number, options.sessions_max, options.idle_s)
        # Replica and log of each session.
        self._replicas: dict[int, tuple[PartitionReplica, PartitionLog]] = {}
        self._loop = asyncio.get_running_loop()
        self.sent = self.sent_bytes = 0

    def stop(self) -> None:
        """End all sessions."""
        for session in self._sessions:
            self._end(session)

    # --- calls ------------------------------------------------------------------------------------

    async def begin(self, caller: int, payload: bytes) -> bytes:
        """Begin a session, or find the same one.

        Raises:
            NoSuchReplica: this node has no replica of the partition.
            CorruptData: it writes no segments, because of damage.
            CopyTryLater: it lacks records, or there are too many sessions.
        """
        request = BeginCopyRequest.FromString(payload)
        replica = self._partitions.find_replica(request.raft_group)
        if replica is None:
            raise NoSuchReplica(f"raft group {request.raft_group} has no replica here")
        key = CopyKey(caller, request.incarnation, request.raft_group, request.index)
        now = self._loop.time()
        session = self._sessions.same(key, now)
        if session is None or self._replicas[session.number][1] is not replica.log:
            before = self._sessions.older(key)
            if before is not None:
                self._end(before)
            _check_can_give(replica, request)
            session = self._begin(key, replica, request, now)
        self._heard_of(replica, caller)
        return BeginCopyResponse(
            session=session.number,
            idle_ms=int(self._options.idle_s * 1000),
            log_begin_offset=session.begin_offset,
            segments=[
                CopySegment(base_offset=base, end_offset=end, bytes=size)
                for base, end, size in session.segments
            ],
            responder=self._log.driver.node_id,
            producers=await self._producers_of(replica),
        ).SerializeToString()

    async def _producers_of(self, replica: PartitionReplica) -> bytes:
        """The producers that have written what is applied here, which is all that is given."""
        producers = replica.producers
        if producers is None or producers.is_blank:
            return b""
        return await run_on(self._log.copying, producers.kept(replica.log.end_offset).encoded)

    def _begin(
        self, key: CopyKey, replica: PartitionReplica, request: BeginCopyRequest, now: float
    ) -> CopySession:
        log = replica.log
        session = self._sessions.begin(key, log.begin_offset, now)
        self._replicas[session.number] = replica, log
        pinned = log.pin(session.number, max(request.from_offset, log.begin_offset))
        session.segments = [CopiedSegment(*each) for each in pinned if each.base_offset < request.end_offset]
        return session

    async def check(self, caller: int, payload: bytes) -> bytes:
        """Tell whether a session is open."""
        request = CheckCopyRequest.FromString(payload)
        active = self._sessions.active(
            request.session, caller, self._loop.time(), keepalive=request.keepalive
        )
        return CheckCopyResponse(active=active).SerializeToString()

    async def fetch(self, caller: int, payload: bytes) -> Answer:
        """Give bytes of a segment.

        Raises:
            NoCopySession, InvalidCopyRequest, SegmentNotFound, StorageFault, CorruptData: see
                `copy_session`.
        """
        request = FetchCopyRequest.FromString(payload)
        session = self._sessions.use(request.session, caller, self._loop.time())
        wanted = session.find(request, self._options.chunk_bytes)
        replica, log = self._replicas[session.number]
        _check_written(replica)
        if replica.log is not log:
            raise SegmentNotFound(f"the files of raft group {replica.raft_group} were replaced here")
        try:
            position, chunk, crc = await run_on(self._log.copying, lambda: _read(log, wanted))
        except CorruptData as error:
            group = replica.group
            if replica.log is log and group is not None and not self._log.is_installing(group):
                self._partitions.set_fault(replica, error)
            raise
        self._heard_of(replica, caller)
        self.sent_bytes += len(chunk)
        segment = wanted.segment
        run_crc, run_position = session.served(segment.base_offset, position, chunk, crc)
        answer = FetchCopyResponse(
            segment=segment.base_offset,
            position=position,
            crc=crc,
            total_bytes=segment.size,
            run_crc=run_crc,
            run_position=run_position,
            clients_write=self._log.clients_write,
        )
        return serialize_with(answer, "data", [chunk])

    async def end(self, caller: int, payload: bytes) -> bytes:
        """End a session.

        Raises:
            NoCopySession: there is none.
        """
        request = EndCopyRequest.FromString(payload)
        session = self._sessions.use(request.session, caller, self._loop.time())
        if request.success:
            self.sent += 1
        else:
            topic, partition = self._replicas[session.number][0].partition
            log.info(
                "a node has broken off a copy from here",
                node=caller,
                topic=topic,
                partition=partition,
                reason=request.error[:_REASON_MAX],
            )
        self._end(session)
        return b""

    # --- sessions ---------------------------------------------------------------------------------

    def _heard_of(self, replica: PartitionReplica, caller: int) -> None:
        if replica.group is not None:
            self._heard(replica.group, caller)

    def sweep(self, now: float) -> None:
        """End sessions that nobody uses, or whose partition is gone, and all if the disk is full;
        called by a timer.
        """
        ended = self._sessions if self._log.blocked is not None else self._sessions.expired(now)
        for session in ended:
            self._end(session)
        for session in self._sessions:
            replica, log = self._replicas[session.number]
            if replica.deleted or replica.log is not log:
                self._end(session)

    def _end(self, session: CopySession) -> None:
        self._sessions.end(session)
        replica, log = self._replicas.pop(session.number)
        below = log.unpin(session.number)
        if replica.log is log and not replica.deleted and log.has_segments_below(below):
            self._partitions.drop_segments(replica, below)


def _check_written(replica: PartitionReplica) -> None:
    """Refuse to give the files of a replica that writes none. One with unreadable records gives the
    others: who lacks those may be the only one that has these.
    """
    if replica.condition is PartitionCondition.UNWRITABLE:
        raise CorruptData(f"the replica is damaged: {replica.fault}")


def _check_can_give(replica: PartitionReplica, request: BeginCopyRequest) -> None:
    _check_written(replica)
    group, log = replica.group, replica.log
    if group is None or group.held is not None or group.applied_index < request.index:
        applied = 0 if group is None else group.applied_index
        raise CopyTryLater(f"entry {applied} is applied here, entry {request.index} is needed")
    if log.written_offset < request.end_offset:
        raise CopyTryLater(f"records up to offset {log.written_offset} are in segments here")


def _read(log: PartitionLog, wanted: WantedBytes) -> tuple[int, bytes, int]:
    """Position, bytes and checksum. Blocks."""
    segment, position = wanted.segment, wanted.position
    where = f"the segment at offset {segment.base_offset}"
    try:
        if wanted.log_offset is not None:
            found = log.position_of(segment.base_offset, wanted.log_offset)
            if found is None:
                raise SegmentNotFound(f"no batch of {where} has offset {wanted.log_offset}")
            position = found
        size = min(wanted.max_bytes, segment.size - position)
        chunk = log.read_bytes(segment.base_offset, position, size)
    except FileNotFoundError as error:
        raise SegmentNotFound(f"{where} was removed") from error
    except OSError as error:
        kind = CorruptData if is_unreadable(error) else StorageFault
        raise kind(f"{where} cannot be read: {error}") from error
    if len(chunk) < size:
        raise CorruptData(f"{where} ends at byte {position + len(chunk)}, it had {segment.size}")
    return position, chunk, crc32c(chunk)

"""Copy sessions at the source of a copy. Pure.

A session is a view of one replica's segments that stays as it was at its begin: segments with their
sizes, from the first offset that the destination lacks to the end offset of a snapshot. Its key is
the destination, the start of it, the partition and the entry of the snapshot: the same key finds
the same session, and another copy of the same partition for the same node ends the older one.

A request is judged in the order of Kudu's tablet copy service:

    the session is unknown                          NoCopySession; a check answers: not active
    (the time of the session's last use is set)
    both or none of segment and log offset          InvalidCopyRequest
    a segment or an offset below 0                  InvalidCopyRequest
    the replica writes none, or another one by now  the caller's: CorruptData, SegmentNotFound
    no segment of the session has it                SegmentNotFound
    a position at or behind the segment's end       InvalidCopyRequest
    the bytes cannot be read                        the caller's: CorruptData, StorageFault

Unlike Kudu's, an idle time of 0 means that a session never ends by itself, and the number of
sessions is limited here, at the source. One node may have three quarters of them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pixy.errors import CopyTryLater, InvalidCopyRequest, NoCopySession, SegmentNotFound
from pixy.proto.copies_pb2 import FetchCopyRequest
from pixy.records import crc32c

_NO_RUN = (-1, 0, 0, 0)


class CopyKey(NamedTuple):
    """Identity of a copy: the destination and its start, the partition, the entry of a snapshot."""

    node_id: int
    incarnation: int
    raft_group: int
    entry: int


class CopiedSegment(NamedTuple):
    """A segment in a session: its offsets, and its bytes."""

    base_offset: int
    end_offset: int
    size: int


class WantedBytes(NamedTuple):
    """A request for bytes of a segment: from a position on, or from the batch with an offset."""

    segment: CopiedSegment
    position: int
    log_offset: int | None
    max_bytes: int


class CopySession:
    """One session.

    Attributes:
        number: its id.
        key: see `CopyKey`.
        begin_offset: first offset that the source had.
        segments: in the order of their offsets.
        used_at: time of the last use, in seconds.
    """

    __slots__ = ("_run", "begin_offset", "key", "number", "segments", "used_at")

    def __init__(self, number: int, key: CopyKey, begin_offset: int, now: float) -> None:
        self.number = number
        self.key = key
        self.begin_offset = begin_offset
        self.segments: Sequence[CopiedSegment] = ()
        self.used_at = now
        # Segment, begin, end and checksum of the bytes served one after the other.
        self._run = _NO_RUN

    def find(self, request: FetchCopyRequest, bytes_max: int) -> WantedBytes:
        """The bytes that a request wants.

        Raises:
            InvalidCopyRequest, SegmentNotFound: see the table of the module.
        """
        by_offset = request.HasField("log_offset")
        if by_offset == request.HasField("segment"):
            raise InvalidCopyRequest("a request has both a segment and an offset, or neither of them")
        place = request.log_offset if by_offset else request.segment
        if place < 0:
            raise InvalidCopyRequest(f"a request for offset {place}, below 0")
        limit = min(request.max_bytes or bytes_max, bytes_max)
        for segment in self.segments:
            if by_offset and segment.base_offset <= place < segment.end_offset:
                # The destination may have dropped what came before, and begins a run.
                self._run = _NO_RUN
                return WantedBytes(segment, 0, place, limit)
            if not by_offset and segment.base_offset == place:
                if request.position >= segment.size:
                    raise InvalidCopyRequest(
                        f"byte {request.position} of the segment at offset {place}, which has {segment.size}"
                    )
                return WantedBytes(segment, request.position, None, limit)
        raise SegmentNotFound(
            f"the session has no segment {'with' if by_offset else 'that begins at'} offset {place}"
        )

    def served(self, segment: int, position: int, chunk: bytes, crc: int) -> tuple[int, int]:
        """Count a chunk that is served; returns checksum and begin of the run that it ends."""
        of, begin, end, run = self._run
        if (of, end) == (segment, position):
            run = crc32c(chunk, run)
        else:
            begin, run = position, crc
        self._run = segment, begin, position + len(chunk), run
        return run, begin


class CopySessions:
    """The sessions of a source.

    Args:
        incarnation: of this start of the source: no number of a session comes again.
        sessions_max: sessions at a time.
        idle_s: seconds without use after which a session ends, 0: never.
    """

    def __init__(self, incarnation: int, sessions_max: int, idle_s: float) -> None:
        self._first = incarnation << 32
        self._count = 0
        self._sessions_max = sessions_max
        self._idle_s = idle_s
        self._sessions: dict[int, CopySession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[CopySession]:
        return iter(list(self._sessions.values()))

    def same(self, key: CopyKey, now: float) -> CopySession | None:
        """The session of a key, None if there is none yet."""
        for session in self._sessions.values():
            if session.key == key:
                session.used_at = now
                return session
        return None

    def older(self, key: CopyKey) -> CopySession | None:
        """Another session of the same partition for the same node: it is to be ended first."""
        for session in self._sessions.values():
            if (session.key.node_id, session.key.raft_group) == (key.node_id, key.raft_group):
                return session
        return None

    def begin(self, key: CopyKey, begin_offset: int, now: float) -> CopySession:
        """Begin a session, without segments.

        Raises:
            CopyTryLater: there are too many.
        """
        if len(self._sessions) >= self._sessions_max:
            raise CopyTryLater(
                f"{len(self._sessions)} copy sessions are open, {self._sessions_max} are allowed"
            )
        own = sum(session.key.node_id == key.node_id for session in self._sessions.values())
        own_max = self._sessions_max - self._sessions_max // 4
        if own >= own_max:
            raise CopyTryLater(f"node {key.node_id} has {own} copy sessions, {own_max} are allowed")
        self._count += 1
        session = CopySession(self._first + self._count, key, begin_offset, now)
        self._sessions[session.number] = session
        return session

    def active(self, number: int, node_id: int, now: float, *, keepalive: bool) -> bool:
        """True if a session of a node is open."""
        session = self._sessions.get(number)
        if session is None or session.key.node_id != node_id:
            return False
        if keepalive:
            session.used_at = now
        return True

    def use(self, number: int, node_id: int, now: float) -> CopySession:
        """A session of a node, which is used.

        Raises:
            NoCopySession: there is none.
        """
        session = self._sessions.get(number)
        if session is None or session.key.node_id != node_id:
            raise NoCopySession(f"node {node_id} has no copy session {number} here")
        session.used_at = now
        return session

    def end(self, session: CopySession) -> None:
        """End a session."""
        self._sessions.pop(session.number, None)

    def expired(self, now: float) -> list[CopySession]:
        """Sessions that nobody has used for too long."""
        if not self._idle_s:
            return []
        return [each for each in self._sessions.values() if now - each.used_at >= self._idle_s]

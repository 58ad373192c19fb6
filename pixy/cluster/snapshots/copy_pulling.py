"""Records of one partition that are pulled from other replicas: the destination's side of copy
sessions. What for is not known here (`copy_fetching`).

One source after the other is asked (`CopySources`), for one chunk after the other. What comes is
verified (`CopyDownload`) and written to a directory of its own (`StagedCopy`), at a pace that
leaves room for clients.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import NamedTuple

from pixy.aio.futures import failure_of
from pixy.aio.retries import Backoff
from pixy.aio.tasks import Tasks
from pixy.cluster.log import NodeLog, PartitionReplica
from pixy.copies import (
    ChunkSize,
    CopyDownload,
    CopyProgress,
    CopySources,
    DescendingEpoch,
    OwnRecords,
    RequestsAhead,
    StagedCopy,
    TokenBucket,
)
from pixy.errors import (
    CorruptData,
    FailedPrecondition,
    InvalidArgument,
    NoSuchReplica,
    PixyError,
    Unavailable,
)
from pixy.large_fields import parse_apart
from pixy.peers import decode_answer, decode_apart
from pixy.proto.copies_pb2 import (
    BeginCopyRequest,
    BeginCopyResponse,
    EndCopyRequest,
    FetchCopyRequest,
    FetchCopyResponse,
)
from pixy.proto.state_pb2 import PartitionDescriptor
from pixy.raft import Snapshot
from pixy.storage import run_on

_SUPERBLOCK_BYTES_MAX = 4 << 20
_CHUNK_HEADER_BYTES = 1024


class CopyMethod(Enum):
    """Calls of a copy session."""

    BEGIN = "begin"
    CHECK = "check"
    FETCH = "fetch"
    END = "end"


CopyCall = Callable[[int, CopyMethod, bytes, float], Awaitable[bytes | memoryview]]
"""Calls a node, with a timeout in seconds; returns the answer or raises PixyError."""

_parse_chunk = parse_apart(FetchCopyResponse, "data")


@dataclass(frozen=True, slots=True)
class CopyFetchingOptions:
    """Options of a `CopyFetching`.

    Attributes:
        copies_max: copies at a time; the others wait.
        chunk_bytes, chunk_bytes_max: bytes to ask for at a time, see `ChunkSize`.
        chunks_ahead: chunks to ask for while one is taken; one, if clients write.
        timeout_s: seconds to wait for an answer.
        attempts_max: failures in a row of a source until it is asked no more.
        pause_s, pause_max_s: shortest and longest pause between them, in seconds.
        bytes_per_second: pace while clients write.
    """

    copies_max: int = 4
    chunk_bytes: int = 256 << 10
    chunk_bytes_max: int = 2 << 20
    chunks_ahead: int = 2
    timeout_s: float = 5.0
    attempts_max: int = 3
    pause_s: float = 0.05
    pause_max_s: float = 2.0
    bytes_per_second: int = 64 << 20


class FetchedChunk(NamedTuple):
    """An answer to a request for bytes.

    Attributes:
        answer: without its bytes.
        data: its bytes.
        bytes_max: that were asked for.
        seconds: from the request to the answer.
    """

    answer: FetchCopyResponse
    data: bytes | memoryview
    bytes_max: int
    seconds: float


class NotNeededError(Exception):
    """The records of a copy are not needed any more."""


class PartialCopy:
    """A copy under way.

    Args:
        replica: whose records are copied.
        staged: where they go.
        is_needed: tells whether they are still needed.

    Attributes:
        snapshot: the entry with the state that the copy is of.
        descriptor: that state.
        own: the records that the replica keeps, None if it keeps none.
        progress: for the status.
        producers: table of the producers that the newest source has, None before the first one.
    """

    def __init__(
        self,
        replica: PartitionReplica,
        snapshot: Snapshot,
        descriptor: PartitionDescriptor,
        staged: StagedCopy,
        is_needed: Callable[[], bool],
        own: OwnRecords | None = None,
    ) -> None:
        assert replica.group is not None
        self.replica = replica
        self.group = replica.group
        self.snapshot = snapshot
        self.descriptor = descriptor
        self.staged = staged
        self.own = own
        self.download: CopyDownload
        self.progress = CopyProgress()
        self.producers: bytes | None = None
        self._is_needed = is_needed
        self._state = replica.log, replica.log.end_offset, replica.condition

    def begin(self) -> None:
        """Go on where an earlier attempt has ended. Blocks."""
        end = self.descriptor.end_offset
        if self.own is not None:
            lowest = highest = self.own.end_offset
        else:
            lowest, highest = 0, min(self.descriptor.log_begin_offset, end)
        self.staged.open(lowest, highest, end)
        self._begin_download()

    def follow(self, snapshot: Snapshot, descriptor: PartitionDescriptor) -> None:
        """Go on to a later state, once the copy is complete for the former one."""
        assert self.download.is_complete
        self.snapshot, self.descriptor = snapshot, descriptor
        self._begin_download()
        self._state = self.replica.log, self.replica.log.end_offset, self.replica.condition

    def _begin_download(self) -> None:
        """Download what comes behind the records that are staged."""
        staged = self.staged
        self.download = CopyDownload(
            staged.end_offset,
            self.descriptor.end_offset,
            self.snapshot.term,
            begins=self.own is None and staged.begin_offset == staged.end_offset,
        )

    def restart(self, offset: int) -> None:
        """Begin anew at an offset: nobody has the records below it any more. Blocks."""
        self.own = None
        self.drop(offset)

    def drop(self, offset: int) -> None:
        """Drop what was copied, and begin again at an offset. Blocks."""
        self.staged.restart(offset)
        self.download.restart(offset, begins=self.own is None)

    def take(self, chunk: FetchedChunk) -> None:
        """Verify an answer, and write what it brings. Blocks."""
        try:
            batches = self.download.take(chunk.answer, chunk.data, chunk.bytes_max)
        except DescendingEpoch:
            self.drop(self.staged.begin_offset)
            raise
        if batches:
            if self.staged.begin_offset > self.download.begin_offset:
                self.staged.restart(self.download.begin_offset)
            self.staged.write(batches, self.download.offset)

    def check_needed(self) -> None:
        """Raise `NotNeededError` if it is not needed any more."""
        if self.replica.deleted or not self._is_needed():
            raise NotNeededError

    def check_begin(self, source: int, offset: int) -> None:
        """Check that the records below an offset are removed everywhere, which a source says that
        has none of them. Only the leader of the partition is believed what is not known here.
        """
        known = max(self.descriptor.log_begin_offset, self.replica.log.begin_offset)
        if offset > known and source != self.group.leader:
            raise Unavailable(
                f"it has records from offset {offset} on, and {known} is not known to be removed"
            )

    @property
    def is_as_it_was(self) -> bool:
        """True if nothing has become of the replica's log since the copy began."""
        replica = self.replica
        return (replica.log, replica.log.end_offset, replica.condition) == self._state


class CopyPulling:
    """Pulls records from other nodes.

    Args:
        node_log: the log of this node.
        call: see `CopyCall`.
        tasks: the tasks of the caller.
        options: see `CopyFetchingOptions`.

    Attributes:
        fetched_bytes: see `TransferCounts`.
    """

    def __init__(self, node_log: NodeLog, call: CopyCall, tasks: Tasks, options: CopyFetchingOptions) -> None:
        self._log = node_log
        self._call = call
        self._tasks = tasks
        self._options = options
        self._bucket = TokenBucket(options.bytes_per_second, options.bytes_per_second / 4)
        self._loop = asyncio.get_running_loop()
        self.fetched_bytes = 0

    async def pull(self, copy: PartialCopy, nodes: Iterable[int]) -> None:
        """Fetch all records of a copy, from one node after the other.

        Raises:
            Unavailable: none gives the rest.
            NotNeededError: the copy is not needed any more.
        """
        sources = CopySources(list(nodes), self._options.attempts_max)
        backoff = Backoff(self._options.pause_s, self._options.pause_max_s)
        reason = "there is no source"
        while copy.producers is None or not copy.download.is_complete:
            source = sources.next
            if source is None:
                raise Unavailable(f"no replica gives what is missing: {reason}")
            try:
                await self._pull_from(source, copy, sources)
            except (CorruptData, NoSuchReplica, InvalidArgument, FailedPrecondition) as error:
                reason = f"node {source}: {error}"
                sources.failed(for_good=True)
            except PixyError as error:
                reason = f"node {source}: {error}"
                sources.failed(for_good=False)
                await asyncio.sleep(backoff.grow())
            copy.check_needed()

    async def _pull_from(self, source: int, copy: PartialCopy, sources: CopySources) -> None:
        """Fetch from one source until all is there."""
        begun = await self._begin(source, copy)
        copy.producers = begun.producers
        copy.progress.begin(sum(segment.bytes for segment in begun.segments), self._loop.time())
        try:
            if begun.log_begin_offset > copy.download.offset:
                copy.check_begin(source, begun.log_begin_offset)
                offset = min(begun.log_begin_offset, copy.descriptor.end_offset)
                await run_on(self._log.copying, partial(copy.restart, offset))
            else:
                copy.download.change_source()
            await self._fetch_chunks(source, begun.session, copy, sources)
        except (PixyError, NotNeededError) as error:
            self._end_session(source, begun.session, str(error) or "it is not needed any more")
            raise
        self._end_session(source, begun.session, "")

    async def _begin(self, source: int, copy: PartialCopy) -> BeginCopyResponse:
        request = BeginCopyRequest(
            raft_group=copy.replica.raft_group,
            incarnation=self._log.incarnation.number,
            index=copy.snapshot.index,
            end_offset=copy.descriptor.end_offset,
            from_offset=copy.download.offset,
        )
        payload = await self._call(
            source, CopyMethod.BEGIN, request.SerializeToString(), self._options.timeout_s
        )
        return decode_answer(BeginCopyResponse, payload, _SUPERBLOCK_BYTES_MAX)

    async def _fetch_chunks(self, source: int, session: int, copy: PartialCopy, sources: CopySources) -> None:
        """Fetch and take all chunks. While one is taken, the source reads and sends the next."""
        download, options = copy.download, self._options
        size = ChunkSize(options.chunk_bytes, options.chunk_bytes_max)
        requests = RequestsAhead(session)
        ahead: deque[asyncio.Task[FetchedChunk]] = deque()
        try:
            while not download.is_complete:
                copy.check_needed()
                chunk = await (
                    ahead.popleft() if ahead else self._ask(source, download.request(session, size.bytes))
                )
                answer, fetched = chunk.answer, len(chunk.data)
                clients_write = answer.clients_write or self._log.clients_write
                size.came(chunk.seconds, clients_write=clients_write)
                if not requests.came(answer, fetched, chunk.bytes_max, alone=not ahead):
                    size.shrink_to(fetched)  # all that the source gives at a time
                    _cancel(ahead)
                while len(ahead) < (1 if clients_write else options.chunks_ahead):
                    behind = requests.next(size.bytes)
                    if behind is None:
                        break
                    ahead.append(asyncio.create_task(self._ask(source, behind), name="chunk of a copy"))
                    ahead[-1].add_done_callback(failure_of)  # nobody asks for it if one before is refused
                await run_on(self._log.copying, partial(copy.take, chunk))
                sources.progressed()
                copy.progress.add(fetched, self._loop.time())
                self.fetched_bytes += fetched
                if clients_write:
                    await asyncio.sleep(self._bucket.take(fetched, self._loop.time()))
        finally:
            _cancel(ahead)

    async def _ask(self, source: int, request: FetchCopyRequest) -> FetchedChunk:
        asked, size = self._loop.time(), request.max_bytes
        payload = await self._call(
            source, CopyMethod.FETCH, request.SerializeToString(), self._options.timeout_s
        )
        answer, data = decode_apart(FetchCopyResponse, _parse_chunk, payload, size + _CHUNK_HEADER_BYTES)
        return FetchedChunk(answer, data, size, self._loop.time() - asked)

    def _end_session(self, source: int, session: int, failure: str) -> None:
        self._tasks.spawn(self._tell_end(source, session, failure), "end of a copy session")

    async def _tell_end(self, source: int, session: int, failure: str) -> None:
        request = EndCopyRequest(session=session, success=not failure, error=failure)
        with suppress(PixyError):
            await self._call(source, CopyMethod.END, request.SerializeToString(), self._options.timeout_s)


def _cancel(ahead: "deque[asyncio.Task[FetchedChunk]]") -> None:
    while ahead:
        ahead.pop().cancel()

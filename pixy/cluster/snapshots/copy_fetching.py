"""Copies of partitions that this node's replicas need: the destination's side of copy sessions.

The leader of a partition offers the position of its state (`partition_snapshots`). A replica that
lacks records up to there, and entries that would bring them, fetches the records from any replica
that has them into a directory of its own (`pixy.copies.staged_copy`), and then goes on from the
position: log reset, hard state and the applied position of the copied files are one unit of the
journal. When that is durable, the files get their place (`Partitions.install`), and the leader has
its answer.

    a copy ends with                         then
    ---------------------------------------  -------------------------------------------------------
    all records                              it is installed, if the replica's log is as it was
    the position is not needed any more      what was copied stays, for the next one
    no replica gives the rest                the same; the leader offers a position again later
    a full disk                              what was copied is removed; the same
    a kill of the process                    what was synced stays, all but the last 16 MiB

An offer while a copy is being installed waits until it is: the next copy takes its directory. A
replica whose leader, and all other replicas, know no copies waits (`missing_copies`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol

import structlog

from pixy.aio.retries import Backoff
from pixy.aio.tasks import Tasks
from pixy.cluster.log import (
    NodeLog,
    PartitionCondition,
    PartitionReplica,
    copied_position,
    descriptor_of,
    is_written,
)
from pixy.cluster.snapshots.missing_copies import MissingCopies
from pixy.copies import CopyDownload, CopySources, OwnRecords, StagedCopy, TokenBucket
from pixy.errors import (
    CorruptData,
    FailedPrecondition,
    InvalidArgument,
    NoSuchReplica,
    PixyError,
    StorageFault,
    Unavailable,
)
from pixy.faults import OnFault
from pixy.multiraft import RaftGroup
from pixy.peers import decode_answer
from pixy.proto.copies_pb2 import (
    BeginCopyRequest,
    BeginCopyResponse,
    EndCopyRequest,
    FetchCopyResponse,
)
from pixy.proto.state_pb2 import PartitionDescriptor
from pixy.raft import Message, Snapshot
from pixy.storage import run_on

log = structlog.get_logger(__name__)

_SUPERBLOCK_BYTES_MAX = 4 << 20
_CHUNK_HEADER_BYTES = 1024
_LOOKS = 60
"""Seconds with a leader after which a replica counts as well: it was offered no position."""
_WRITING_S = 0.1
"""Seconds after a flush for which clients count as writing."""


class CopyMethod(Enum):
    """Calls of a copy session."""

    BEGIN = "begin"
    CHECK = "check"
    FETCH = "fetch"
    END = "end"


CopyCall = Callable[[int, CopyMethod, bytes, float], Awaitable[bytes]]
"""Calls a node, with a timeout in seconds; returns the answer or raises PixyError."""


@dataclass(frozen=True, slots=True)
class CopyFetchingOptions:
    """Options of a `CopyFetching`.

    Attributes:
        copies_max: copies at a time; the others wait.
        chunk_bytes: bytes to ask for at a time.
        timeout_s: seconds to wait for an answer.
        attempts_max: failures in a row of a source until it is asked no more.
        pause_s, pause_max_s: shortest and longest pause between them, in seconds.
        bytes_per_second: pace while clients write.
    """

    copies_max: int = 4
    chunk_bytes: int = 1 << 20
    timeout_s: float = 5.0
    attempts_max: int = 3
    pause_s: float = 0.05
    pause_max_s: float = 2.0
    bytes_per_second: int = 64 << 20


class CopiedPartitions(Protocol):
    """Partitions of a node, as `Partitions`."""

    on_installed: Callable[[PartitionReplica], None]
    left_copies: set[int]

    def find_replica(self, raft_group: int) -> PartitionReplica | None:
        """As `Partitions.find_replica`."""


class _NotNeededError(Exception):
    """The position of a copy is not awaited any more."""


class _Copy:
    """A copy under way.

    Attributes:
        own: the records that the replica keeps, None if it keeps none.
    """

    def __init__(
        self,
        replica: PartitionReplica,
        snapshot: Snapshot,
        descriptor: PartitionDescriptor,
        staged: StagedCopy,
    ) -> None:
        assert replica.group is not None
        self.replica = replica
        self.group = replica.group
        self.snapshot = snapshot
        self.descriptor = descriptor
        self.staged = staged
        self.own = _own_records(replica, descriptor)
        self.download: CopyDownload
        self._state = replica.log, replica.log.end_offset, replica.condition

    def begin(self) -> None:
        """Go on where an earlier attempt has ended. Blocks."""
        end = self.descriptor.end_offset
        if self.own is not None:
            lowest = highest = self.own.end_offset
        else:
            lowest, highest = 0, min(self.descriptor.log_begin_offset, end)
        self.staged.open(lowest, highest, end)
        self.download = CopyDownload(self.staged.end_offset, end, self.snapshot.term)

    def restart(self, offset: int) -> None:
        """Begin anew at an offset: nobody has the records below it any more. Blocks."""
        self.own = None
        self.staged.restart(offset)
        self.download.restart(offset)

    def take(self, answer: FetchCopyResponse, bytes_max: int) -> None:
        """Verify an answer, and write what it brings. Blocks."""
        batches = self.download.take(answer, bytes_max)
        if batches:
            self.staged.write(batches, self.download.offset)

    @property
    def is_as_it_was(self) -> bool:
        """True if nothing has become of the replica's log since the copy began."""
        replica = self.replica
        return (replica.log, replica.log.end_offset, replica.condition) == self._state


def _own_records(replica: PartitionReplica, descriptor: PartitionDescriptor) -> OwnRecords | None:
    """The records that a replica may keep: they are intact, in synced segments, and the records of
    the leader's log follow them.
    """
    own = replica.log
    is_whole = replica.condition is PartitionCondition.READY and is_written(replica)
    if not is_whole or not max(own.begin_offset, descriptor.log_begin_offset) < own.end_offset:
        return None
    return OwnRecords(own, own.begin_offset, own.end_offset)


class CopyFetching:
    """Copies that this node fetches.

    Args:
        node_log: the log of this node.
        partitions: its partitions.
        call: see `CopyCall`.
        is_source: tells whether a node can give copies.
        on_fault: called with an unexpected exception.
        options: see `CopyFetchingOptions`.
    """

    def __init__(
        self,
        node_log: NodeLog,
        partitions: CopiedPartitions,
        call: CopyCall,
        is_source: Callable[[int], bool],
        on_fault: OnFault,
        options: CopyFetchingOptions = CopyFetchingOptions(),
    ) -> None:
        self._log = node_log
        self._partitions = partitions
        self._call = call
        self._is_source = is_source
        self._options = options
        self._tasks = Tasks(on_fault)
        self._slots = asyncio.Semaphore(options.copies_max)
        self._running: dict[RaftGroup, asyncio.Task[None]] = {}
        # Offers to groups that are about to get the files of a copy.
        self._later: dict[RaftGroup, Message] = {}
        self._missing = MissingCopies(self._caught_up)
        self._bucket = TokenBucket(options.bytes_per_second, options.bytes_per_second / 4)
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        partitions.on_installed = self._installed
        # Copies that a start has found, and how often their replicas were looked at since.
        self._left = dict.fromkeys(partitions.left_copies, 0)

    async def stop(self) -> None:
        """End all copies. What was copied stays for the next start."""
        self._stopped = True
        self._missing.stop()
        await self._tasks.cancel_all()

    def offered(self, group: RaftGroup, message: Message) -> None:
        """The leader of a partition offers a position: take it over, or fetch what is missing."""
        replica, snapshot = group.application, message.snapshot
        assert isinstance(replica, PartitionReplica)
        assert snapshot is not None
        if self._log.is_installing(group):
            self._later[group] = message
            return
        if self._log.takeovers.take(group, snapshot):
            return
        sources = self._sources(replica, message.sender)
        copies = bool(sources) and not self._stopped and descriptor_of(snapshot) is not None
        self._missing.add(replica, message, copies=copies)
        if not copies:
            self._log.driver.snapshots.failed(group, snapshot, silently=True)
            return
        before = self._running.pop(group, None)
        if before is not None:
            before.cancel()
        self._running[group] = self._tasks.spawn(
            self._run(replica, snapshot, sources, before), f"copy of {replica.partition}"
        )

    def _installed(self, replica: PartitionReplica) -> None:
        group = replica.group
        message = None if group is None else self._later.pop(group, None)
        if group is not None and group.removed is None:
            topic, partition = replica.partition
            log.info(
                "a replica was copied, and goes on",
                topic=topic,
                partition=partition,
                up_to=replica.log.end_offset,
            )
            if message is not None and group.node is not None and not self._stopped:
                self.offered(group, message)

    def _caught_up(self, replica: PartitionReplica) -> None:
        """A replica needs no copy any more: entries have come instead, or it is installed."""
        group = replica.group
        if group is not None and group not in self._running and not self._stopped:
            staged = self._staged(replica)
            self._tasks.spawn(self._remove(staged), f"removal of a copy of {replica.partition}")

    def sweep(self, _: float) -> None:
        """Remove copies of earlier processes that nobody needs; called by a timer."""
        for raft_group in list(self._left):
            replica = self._partitions.find_replica(raft_group)
            group = None if replica is None else replica.group
            if replica is None or group is None or replica.needs_copy or group.held is not None:
                del self._left[raft_group]
            elif group.leader:
                self._left[raft_group] += 1
                if self._left[raft_group] >= _LOOKS:
                    del self._left[raft_group]
                    self._caught_up(replica)

    def _staged(self, replica: PartitionReplica) -> StagedCopy:
        topics = self._log.directory / "topics"
        return StagedCopy(self._log.disk, topics, replica.log.identity, replica.log.topic)

    def _sources(self, replica: PartitionReplica, first: int) -> list[int]:
        """Nodes to ask for a copy, the leader first."""
        own = self._log.driver.node_id
        assert replica.group is not None
        # A node that leaves has its replica yet.
        members = sorted(replica.group.storage.conf_state.members)
        nodes = dict.fromkeys([first, *replica.replicas, *members])
        return [each for each in nodes if each != own and self._is_source(each)]

    # --- one copy ---------------------------------------------------------------------------------

    async def _run(
        self,
        replica: PartitionReplica,
        snapshot: Snapshot,
        sources: Sequence[int],
        before: "asyncio.Task[None] | None",
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        group = replica.group
        assert group is not None
        staged = self._staged(replica)
        task = asyncio.current_task()
        try:
            async with self._slots:
                installs = await self._try(replica, snapshot, sources, staged)
        except asyncio.CancelledError:
            self._ended(group, task, staged)
            raise
        except Exception:
            self._ended(group, task, staged)
            self._log.driver.snapshots.failed(group, snapshot, silently=True)
            raise
        self._ended(group, task, None if installs else staged)
        if not installs:
            self._log.driver.snapshots.failed(group, snapshot, silently=True)

    def _ended(self, group: RaftGroup, task: "asyncio.Task[None] | None", staged: StagedCopy | None) -> None:
        if staged is not None:
            self._log.copying.submit(staged.keep, _nothing)
        if self._running.get(group) is task:
            del self._running[group]

    async def _try(
        self, replica: PartitionReplica, snapshot: Snapshot, sources: Sequence[int], staged: StagedCopy
    ) -> bool:
        """Make a copy and install it; False if it is not needed any more, or impossible by now."""
        descriptor = descriptor_of(snapshot)
        assert descriptor is not None
        await self._log.writer.flush()
        copy = _Copy(replica, snapshot, descriptor, staged)
        try:
            return await self._fetch(copy, sources)
        except _NotNeededError:
            keeps, reason = not replica.deleted, ""
        except (OSError, StorageFault, CorruptData) as error:
            keeps, reason = False, str(error)
        except PixyError as error:
            keeps, reason = True, str(error)
        if not keeps or replica.deleted:
            await self._remove(staged)
        if reason and not replica.deleted:
            topic, partition = replica.partition
            log.warning("a replica cannot be copied yet", topic=topic, partition=partition, reason=reason)
        return False

    async def _remove(self, staged: StagedCopy) -> None:
        with suppress(OSError):
            await run_on(self._log.copying, staged.remove)

    async def _fetch(self, copy: _Copy, sources: Sequence[int]) -> bool:
        """Fetch what is missing, and install it; False if it is not needed any more."""
        worker = self._log.copying
        end = copy.replica.log.end_offset
        if end > copy.descriptor.end_offset:
            raise CorruptData(
                f"it has records up to offset {end}, its leader at entry {copy.snapshot.index} up to "
                f"{copy.descriptor.end_offset}"
            )
        await run_on(worker, copy.begin)
        await self._pull(copy, CopySources(list(sources), self._options.attempts_max))
        own, begin = copy.own, copy.staged.begin_offset
        state = copied_position(copy.replica, copy.snapshot)
        position = await run_on(worker, lambda: copy.staged.seal(state, own))
        self._check_needed(copy)
        if not copy.is_as_it_was:
            raise Unavailable("its log has changed meanwhile")
        topic, partition = copy.replica.partition
        log.info(
            "a replica has a copy of what it lacked",
            topic=topic,
            partition=partition,
            from_offset=begin,
            to_offset=position.end_offset,
        )
        return self._log.install_copy(copy.group, copy.snapshot, position)

    def _check_needed(self, copy: _Copy) -> None:
        if copy.replica.deleted or not self._log.driver.snapshots.awaits(copy.group, copy.snapshot):
            raise _NotNeededError

    async def _pull(self, copy: _Copy, sources: CopySources) -> None:
        """Fetch from one source after the other.

        Raises:
            Unavailable: none gives the rest.
        """
        backoff = Backoff(self._options.pause_s, self._options.pause_max_s)
        reason = "there is no source"
        while not copy.download.is_complete:
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
            self._check_needed(copy)

    async def _pull_from(self, source: int, copy: _Copy, sources: CopySources) -> None:
        """Fetch from one source until all is there."""
        begun = await self._begin(source, copy)
        try:
            if begun.log_begin_offset > copy.download.offset:
                offset = min(begun.log_begin_offset, copy.descriptor.end_offset)
                await run_on(self._log.copying, partial(copy.restart, offset))
            else:
                copy.download.restart(copy.download.offset)
            while not copy.download.is_complete:
                self._check_needed(copy)
                size = await self._fetch_chunk(source, begun.session, copy)
                sources.progressed()
                await self._pace(size)
        except (PixyError, _NotNeededError) as error:
            self._end_session(source, begun.session, str(error) or "it is not needed any more")
            raise
        self._end_session(source, begun.session, "")

    async def _begin(self, source: int, copy: _Copy) -> BeginCopyResponse:
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

    async def _fetch_chunk(self, source: int, session: int, copy: _Copy) -> int:
        size = self._options.chunk_bytes
        request = copy.download.request(session, size).SerializeToString()
        payload = await self._call(source, CopyMethod.FETCH, request, self._options.timeout_s)
        answer = decode_answer(FetchCopyResponse, payload, size + _CHUNK_HEADER_BYTES)
        await run_on(self._log.copying, partial(copy.take, answer, size))
        return len(answer.data)

    def _end_session(self, source: int, session: int, failure: str) -> None:
        self._tasks.spawn(self._tell_end(source, session, failure), "end of a copy session")

    async def _tell_end(self, source: int, session: int, failure: str) -> None:
        request = EndCopyRequest(session=session, success=not failure, error=failure)
        with suppress(PixyError):
            await self._call(source, CopyMethod.END, request.SerializeToString(), self._options.timeout_s)

    async def _pace(self, size: int) -> None:
        """Wait as long as clients that write make it necessary."""
        now = self._loop.time()
        if now - self._log.journal.flushed_at < _WRITING_S:
            await asyncio.sleep(self._bucket.take(size, now))


def _nothing(*_: object) -> None:
    """Callback of a copy that ends, which nobody waits for: what is not synced is copied again."""

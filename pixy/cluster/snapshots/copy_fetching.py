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
    damage of the replica's own records      the same; the next copy has all records
    a kill of the process                    what was synced stays, all but 16 MiB or 3 %

Before that it has the pieces of stages that the position names. A replica that only takes over the
position fetches them, too.

An offer while a copy is being installed waits until it is: the next copy takes its directory. A
replica whose leader, and all other replicas, know no copies waits (`missing_copies`).

A damaged replica fetches all its files anew, without an offer: its journal is intact, so it votes
and confirms entries all the while. It copies the records up to the entry that is applied at the
time, then what has come meanwhile; then its entries wait, the rest is copied, and the applied
position of the copied files is written, of the same entry. From there on it is as above. The only
replica of a partition stays damaged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import structlog

from pixy.aio.tasks import Tasks
from pixy.cluster.log import (
    NodeLog,
    PartitionCondition,
    PartitionReplica,
    applied_state,
    copied_position,
    descriptor_of,
    has_records,
    is_written,
)
from pixy.cluster.snapshots.copy_pulling import (
    CopyCall,
    CopyFetchingOptions,
    CopyPulling,
    NotNeededError,
    PartialCopy,
)
from pixy.cluster.snapshots.missing_copies import MissingCopies
from pixy.copies import CopyProgress, OwnRecords, StagedCopy
from pixy.errors import CorruptData, PixyError, StorageFault, Unavailable
from pixy.faults import OnFault
from pixy.multiraft import RaftGroup
from pixy.proto.state_pb2 import AppliedPosition, PartitionDescriptor, StagedPiece
from pixy.raft import NONE, Message, Snapshot
from pixy.storage import run_on

log = structlog.get_logger(__name__)

_OPTIONS = CopyFetchingOptions()
_LOOKS = 60
"""Seconds with a leader after which a replica counts as well: it was offered no position."""
_REPAIR_PAUSE_S = 5.0
"""Seconds between two attempts to repair a replica."""
_ROUNDS_MAX = 3
"""Times that a repair copies what has come meanwhile, before entries wait for it."""


class CopiedPartitions(Protocol):
    """Partitions of a node, as `Partitions`."""

    on_installed: Callable[[PartitionReplica], None]
    on_departed: Callable[[PartitionReplica], Awaitable[None]]
    left_copies: set[int]
    damaged_groups: set[int]

    def find_replica(self, raft_group: int) -> PartitionReplica | None:
        """As `Partitions.find_replica`."""

    def set_fault(self, replica: PartitionReplica, error: CorruptData) -> None:
        """As `Partitions.set_fault`."""


class StagedPieces(Protocol):
    """Pieces of stages of this node, as `Sideloading`."""

    def missing_staged(self, group: RaftGroup, pieces: Iterable[StagedPiece]) -> Sequence[object]:
        """As `Sideloading.missing_staged`."""

    async def fetch_staged(self, group: RaftGroup, pieces: Sequence[StagedPiece], first: int) -> bool:
        """As `Sideloading.fetch_staged`."""


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
        pieces: the pieces of stages that it has.
        call: see `CopyCall`.
        is_source: tells whether a node can give copies.
        on_fault: called with an unexpected exception.
        options: see `CopyFetchingOptions`.

    Attributes:
        fetched, failed: see `TransferCounts`.
    """

    def __init__(
        self,
        node_log: NodeLog,
        partitions: CopiedPartitions,
        pieces: StagedPieces,
        call: CopyCall,
        is_source: Callable[[int], bool],
        on_fault: OnFault,
        options: CopyFetchingOptions = _OPTIONS,
    ) -> None:
        self._log = node_log
        self._partitions = partitions
        self._pieces = pieces
        self._is_source = is_source
        self._tasks = Tasks(on_fault)
        self._pulling = CopyPulling(node_log, call, self._tasks, options)
        self._slots = asyncio.Semaphore(options.copies_max)
        self._running: dict[RaftGroup, asyncio.Task[None]] = {}
        # Those of them that have a slot, by raft group.
        self._copies: dict[int, PartialCopy] = {}
        # Offers to groups that are about to get the files of a copy.
        self._later: dict[RaftGroup, Message] = {}
        self._missing = MissingCopies(self._caught_up)
        # Times before which no repair is tried again, of damaged replicas.
        self._repairs: dict[RaftGroup, float] = {}
        # Why a copy was not possible, as it was logged last, by raft group.
        self._told: dict[int, str] = {}
        self._stopped = False
        self.fetched = self.failed = 0
        partitions.on_installed = self._installed
        partitions.on_departed = self._departed
        # Copies that a start has found, and how often their replicas were looked at since.
        self._left = dict.fromkeys(partitions.left_copies, 0)

    async def stop(self) -> None:
        """End all copies. What was copied stays for the next start."""
        self._stopped = True
        self._missing.stop()
        await self._tasks.cancel_all()

    @property
    def fetched_bytes(self) -> int:
        """See `TransferCounts`."""
        return self._pulling.fetched_bytes

    def progress(self, raft_group: int) -> tuple[CopyProgress | None, str]:
        """Progress of the copy of a partition, None while there is none; and why not, if the last
        attempt has failed.
        """
        copy = self._copies.get(raft_group)
        return (None, self._told.get(raft_group, "")) if copy is None else (copy.progress, "")

    def offered(self, group: RaftGroup, message: Message) -> None:
        """The leader of a partition offers a position: take it over, or fetch what is missing."""
        replica, snapshot = group.application, message.snapshot
        assert isinstance(replica, PartitionReplica)
        assert snapshot is not None
        if self._log.is_installing(group):
            self._later[group] = message
            return
        descriptor = descriptor_of(snapshot)
        pieces = () if descriptor is None else descriptor.pieces
        takes_over = has_records(replica, snapshot) and not self._stopped
        if takes_over and self._pieces.missing_staged(group, pieces):
            self._start(group, partial(self._fetch_pieces, group, message, pieces))
            return
        if self._log.takeovers.take(group, snapshot):
            return
        sources = self._sources(replica, message.sender)
        copies = bool(sources) and not self._stopped and descriptor is not None
        self._missing.add(replica, message, copies=copies)
        if not copies:
            self._log.driver.snapshots.failed(group, snapshot, silently=True)
            return
        self._start(group, partial(self._run, replica, snapshot, sources))

    def _start(
        self, group: RaftGroup, run: Callable[["asyncio.Task[None] | None"], Coroutine[object, object, None]]
    ) -> None:
        """Fetch something for a replica; `run` waits for what was fetched before, and is ended."""
        before = self._running.pop(group, None)
        if before is not None:
            before.cancel()
        self._running[group] = self._tasks.spawn(run(before), f"copy for raft group {group.raft_group}")

    async def _fetch_pieces(
        self,
        group: RaftGroup,
        message: Message,
        pieces: Sequence[StagedPiece],
        before: "asyncio.Task[None] | None",
    ) -> None:
        """Fetch pieces of stages, and take over the position then."""
        if before is not None:
            await asyncio.wait([before])
        snapshot = message.snapshot
        assert snapshot is not None
        has_all = False
        try:
            has_all = await self._pieces.fetch_staged(group, pieces, message.sender)
        finally:
            if self._running.get(group) is asyncio.current_task():
                del self._running[group]
        if not has_all:
            self._log.driver.snapshots.failed(group, snapshot, silently=True)
        elif self._log.driver.snapshots.awaits(group, snapshot):
            self.offered(group, message)

    def _installed(self, replica: PartitionReplica) -> None:
        group = replica.group
        if group is None or group.removed is not None:
            return
        self.fetched += 1
        topic, partition = replica.partition
        log.info(
            "a replica was copied, and goes on",
            topic=topic,
            partition=partition,
            up_to=replica.log.end_offset,
        )
        self._told.pop(group.raft_group, None)
        self._go_on(group)

    def _go_on(self, group: RaftGroup) -> None:
        """The entries of a replica do not wait any more: take what was offered meanwhile."""
        self._log.takeovers.positions_durable()
        message = self._later.pop(group, None)
        if message is not None and group.node is not None and not self._stopped:
            self.offered(group, message)

    def _caught_up(self, replica: PartitionReplica) -> None:
        """A replica needs no copy any more: entries have come instead, or it is installed."""
        group = replica.group
        if group is not None and group not in self._running and not self._stopped:
            staged = self._staged(replica)
            self._tasks.spawn(self._remove(staged), f"removal of a copy of {replica.partition}")

    async def _departed(self, replica: PartitionReplica) -> None:
        """A replica has left its raft group: end its copy, and remove what is staged."""
        self._later = {each: offer for each, offer in self._later.items() if each.removed is None}
        running = [task for group, task in self._running.items() if group.raft_group == replica.raft_group]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        await self._remove(self._staged(replica))

    def sweep(self, now: float) -> None:
        """Repair damaged replicas, and remove copies of earlier processes that nobody needs; called
        by a timer.
        """
        damaged = self._partitions.damaged_groups
        for repaired in [each for each in self._repairs if each.raft_group not in damaged]:
            del self._repairs[repaired]
        for raft_group in list(damaged):
            replica = self._partitions.find_replica(raft_group)
            if replica is not None and not self._stopped:
                self._maybe_repair(replica, now)
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
        """Nodes to ask for a copy, the leader first if there is one."""
        own = self._log.driver.node_id
        assert replica.group is not None
        # A node that leaves has its replica yet.
        members = sorted(replica.group.storage.conf_state.members)
        nodes = dict.fromkeys([first, *replica.replicas, *members])
        return [each for each in nodes if each not in (own, NONE) and self._is_source(each)]

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
        installs = False
        try:
            installs = await self._make(replica, partial(self._fetch, replica, snapshot, sources))
        except Exception:
            self._log.driver.snapshots.failed(group, snapshot, silently=True)
            raise
        if not installs:
            self._log.driver.snapshots.failed(group, snapshot, silently=True)

    async def _make(self, replica: PartitionReplica, copy: Callable[[StagedCopy], Awaitable[bool]]) -> bool:
        """Make a copy once there is a slot; False if it is not needed any more, or impossible by
        now.
        """
        group, staged = replica.group, self._staged(replica)
        assert group is not None
        task = asyncio.current_task()
        try:
            async with self._slots:
                installs = await self._try(replica, staged, copy)
        except (Exception, asyncio.CancelledError):
            self._ended(group, task, staged)
            raise
        self._ended(group, task, None if installs else staged)
        return installs

    def _ended(self, group: RaftGroup, task: "asyncio.Task[None] | None", staged: StagedCopy | None) -> None:
        if staged is not None:
            self._log.copying.submit(staged.keep, _nothing)
        if self._running.get(group) is task:
            del self._running[group]
            self._copies.pop(group.raft_group, None)

    async def _try(
        self, replica: PartitionReplica, staged: StagedCopy, copy: Callable[[StagedCopy], Awaitable[bool]]
    ) -> bool:
        await self._log.writer.flush()
        try:
            return await copy(staged)
        except NotNeededError:
            keeps, reason = not replica.deleted, ""
        except (OSError, StorageFault, CorruptData) as error:
            keeps, reason = False, str(error)
        except PixyError as error:
            keeps, reason = True, str(error)
        self.failed += bool(reason) and not replica.deleted
        if not keeps or replica.deleted:
            await self._remove(staged)
        if reason and not replica.deleted and self._told.get(replica.raft_group) != reason:
            self._told[replica.raft_group] = reason
            topic, partition = replica.partition
            log.warning("a replica cannot be copied yet", topic=topic, partition=partition, reason=reason)
        return False

    async def _remove(self, staged: StagedCopy) -> None:
        with suppress(OSError):
            await run_on(self._log.copying, staged.remove)

    async def _fetch(
        self, replica: PartitionReplica, snapshot: Snapshot, sources: Sequence[int], staged: StagedCopy
    ) -> bool:
        """Fetch what is missing, and install it; False if it is not needed any more."""
        descriptor = descriptor_of(snapshot)
        assert descriptor is not None
        copy = PartialCopy(
            replica,
            snapshot,
            descriptor,
            staged,
            lambda: self._log.driver.snapshots.awaits(copy.group, snapshot),
            _own_records(replica, descriptor),
        )
        end = replica.log.end_offset
        if end > descriptor.end_offset:
            raise CorruptData(
                f"it has records up to offset {end}, its leader at entry {snapshot.index} up to "
                f"{descriptor.end_offset}"
            )
        self._copies[replica.raft_group] = copy
        await run_on(self._log.copying, copy.begin)
        await self._pulling.pull(copy, sources)
        if not await self._pieces.fetch_staged(copy.group, descriptor.pieces, sources[0]):
            raise Unavailable("pieces of stages cannot be fetched")
        position = await self._seal(copy)
        return self._log.install_copy(copy.group, snapshot, position)

    async def _seal(self, copy: PartialCopy) -> AppliedPosition:
        """Make a copy complete, durably; returns its applied position."""
        own, begin = copy.own, copy.staged.begin_offset
        state = copied_position(copy.replica, copy.snapshot)
        try:
            position = await run_on(
                self._log.copying, lambda: copy.staged.seal(state, own, copy.producers or b"")
            )
        except CorruptData as error:
            copy.check_needed()
            if own is not None and copy.is_as_it_was:
                # The fetched records were verified. None of its own is used for the next copy.
                self._partitions.set_fault(copy.replica, error)
            raise
        copy.check_needed()
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
        return position

    # --- repair -----------------------------------------------------------------------------------

    def _maybe_repair(self, replica: PartitionReplica, now: float) -> None:
        """Fetch the files of a damaged replica anew, unless it is tried, was just now, or it waits
        for a copy in any case.
        """
        group = replica.group
        if group is None or group.application is None or replica.needs_copy:
            return
        if group in self._running or self._log.is_installing(group) or now < self._repairs.get(group, now):
            return
        sources = self._sources(replica, group.leader)
        if not sources:
            return
        if group not in self._repairs:
            topic, partition = replica.partition
            log.info("a damaged replica fetches its files from another one", topic=topic, partition=partition)
        self._repairs[group] = now + _REPAIR_PAUSE_S
        self._running[group] = self._tasks.spawn(
            self._repair(replica, sources), f"repair of {replica.partition}"
        )

    async def _repair(self, replica: PartitionReplica, sources: Sequence[int]) -> None:
        await self._make(replica, partial(self._fetch_anew, replica, sources))

    async def _fetch_anew(
        self, replica: PartitionReplica, sources: Sequence[int], staged: StagedCopy
    ) -> bool:
        """Fetch all files of a replica, and replace them; its entries wait in the end."""
        group = replica.group
        assert group is not None
        copy = PartialCopy(replica, *applied_state(replica), staged, lambda: group.removed is None)
        copy.check_needed()
        await run_on(self._log.copying, copy.begin)
        for _ in range(_ROUNDS_MAX):
            await self._pulling.pull(copy, sources)
            if copy.download.end_offset == replica.log.end_offset:
                break
            copy.follow(*applied_state(replica))
        else:
            await self._pulling.pull(copy, sources)
        self._log.driver.hold(group)
        try:
            # Of what was applied before no applied position comes later than that of the copy.
            await self._log.writer.flush()
            copy.check_needed()
            copy.follow(*applied_state(replica))
            await self._pulling.pull(copy, sources)
            position = await self._seal(copy)
        except (Exception, asyncio.CancelledError):
            if group.removed is None:
                self._log.driver.release(group)
                self._go_on(group)
            raise
        self._log.install_anew(replica, position)
        return True


def _nothing(*_: object) -> None:
    """Callback of a copy that ends, which nobody waits for: what is not synced is copied again."""

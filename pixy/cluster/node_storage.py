"""Everything of a node that reads and writes its data directory, behind the lock.

    log          journal, raft groups, the writer of segments
    partitions   partition logs
    stages       stages of staged writes, and pieces of those that have replicas
    reserve      space for the time when the disk is full
    cold reads   reads of segments that yield to the journal
    upkeep       removal of files, and indexes

It says what of them starts, recovers and stops in which order, and whether records can be written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pixy.clock import Clock
from pixy.cluster.log import (
    ColdReads,
    DataDirectory,
    LogHooks,
    LogPeers,
    NodeLog,
    NodeOptions,
    PartitionReplica,
    RecoveredNode,
    Reserve,
    StateReplica,
)
from pixy.cluster.publications import PieceRetention, Sideloading
from pixy.cluster.replicas import Partitions, StateGroups
from pixy.errors import Unavailable
from pixy.proto.state_pb2 import AppliedPosition, PublishParts
from pixy.staging import Pieces, Stages
from pixy.storage import DamagedLog, Disk, StagedPart, Upkeep, Worker

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StorageHooks:
    """Functions of its node that the storage calls.

    Attributes:
        on_restored, on_positions, on_fault: see `LogHooks`.
        on_readiness, file_time_ms: see `Partitions`.
    """

    on_restored: Callable[[StateReplica], None]
    on_positions: Callable[[], None]
    on_fault: Callable[[BaseException], None]
    on_readiness: Callable[[str], object]
    file_time_ms: Callable[[], int | None]


class NodeStorage:
    """Storage of one node.

    Args:
        disk, clock: the disk and the clock that it runs on.
        options: configuration of the node.
        recovered: contents of its data directory.
        files: the thread for work on files.
        hooks: see `StorageHooks`.
        peers: see `LogPeers`.

    Attributes:
        log, partitions, stages, pieces: its parts.
        retention: of the pieces, from `restore_partitions` on.
    """

    retention: PieceRetention

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        options: NodeOptions,
        recovered: RecoveredNode,
        files: Worker,
        hooks: StorageHooks,
        peers: LogPeers,
    ) -> None:
        self._files = files
        log_hooks = LogHooks(
            drop_segments=self._drop_segments,
            on_restored=hooks.on_restored,
            on_positions=hooks.on_positions,
            on_damaged=self._on_damaged,
            on_full=self._on_full,
            on_fault=hooks.on_fault,
            install=self._install,
        )
        self.log = NodeLog(disk, clock, options, recovered, files, log_hooks, peers)
        self._cold_reads = ColdReads(
            disk,
            files,
            options.storage.cold_read_bytes_per_second,
            lambda: self.log.clients_write,
        )
        staging = options.worker("pixy-staging", background=True)
        self._options = options
        self.stages = Stages(
            disk, options.directory / "staging", staging, options.staging.max_bytes, hooks.on_fault
        )
        self.pieces = Pieces(
            disk, options.directory / "pieces", staging, options.staging.max_bytes, hooks.on_fault
        )
        self._upkeep = Upkeep(options.worker("pixy-upkeep", background=True), hooks.on_fault)
        self.partitions = Partitions(
            DataDirectory(disk, options.directory, recovered.identity.cluster_id),
            options.storage,
            self.log.driver,
            self.log.writer,
            self._upkeep,
            find_parts=self._find_parts,
            on_readiness=hooks.on_readiness,
        )
        self.partitions.file_time_ms = hooks.file_time_ms
        self._reserve = Reserve(
            disk,
            options.directory,
            options.storage.reserve_bytes,
            files,
            lambda: self.log.blocked is not None,
        )

    async def restore_partitions(
        self,
        recovered: RecoveredNode,
        state_groups: StateGroups,
        sideloading: Sideloading | None,
        is_alone: Callable[[], bool],
    ) -> None:
        """Recover stages, and partitions of the topics in metadata; state groups are restored.

        Args:
            is_alone: true while no raft group has another member.
        """
        metadata, sinks = state_groups.metadata, state_groups.sinks
        self.retention = PieceRetention(
            self.stages,
            self.pieces,
            sinks,
            self.partitions,
            lambda: 0 if is_alone() else self._options.journal.retain_bytes,
        )
        self.partitions.staged_pieces = self.retention.staged
        if sideloading is not None:
            sideloading.attach(self.pieces, sinks, self.log.driver.step, lambda: metadata.started)
        topics = list(metadata.topics.values())
        for topic in topics:
            self.partitions.put_topic(topic)
        await self.stages.recover(recovered.identity.cluster_id)
        await self.pieces.recover(recovered.identity.cluster_id)
        behind = await self.partitions.restore(recovered, topics, metadata.next_raft_group, self._files)
        await self.log.driver.reads.catch_up(group for group in behind if not group.has_peers)

    def start(self) -> None:
        """Reserve space from here on: everything is recovered."""
        self._reserve.start()

    @property
    def blocked(self) -> Unavailable | None:
        """Reason why no messages can be written at the moment, None if they can."""
        reason = self.log.blocked or self._reserve.blocked
        # An exception raised repeatedly accumulates tracebacks: each caller gets its own.
        return None if reason is None else Unavailable(str(reason))

    async def read(self, read: Callable[[], T]) -> T:
        """Run a read of a partition's segments on another thread."""
        return await self._cold_reads.run(read)

    def begin_stop(self) -> None:
        """Accept nothing more, and answer fetches that wait for records."""
        self._reserve.stop()
        self.partitions.opening.stop()
        for replica in self.partitions:
            replica.wake()

    def give_up(self, fault: BaseException) -> None:
        """Answer nothing more, after a fault."""
        self.log.give_up(fault)
        self.partitions.opening.stop()
        self._reserve.stop()

    def abandon(self) -> None:
        """Stop the threads without further writes."""
        self.log.abandon()
        self.partitions.opening.stop()
        self.stages.stop()
        self._upkeep.stop()

    def _find_parts(self, replica: PartitionReplica, command: PublishParts) -> list[StagedPart]:
        return self.retention.find_parts(replica, command)

    def _install(self, replica: PartitionReplica, position: AppliedPosition) -> None:
        self.partitions.install(replica, position)

    def _drop_segments(self, replica: PartitionReplica, log_begin_offset: int) -> None:
        self.partitions.drop_segments(replica, log_begin_offset)

    def _on_damaged(self, damaged: DamagedLog) -> None:
        self.partitions.log_damaged(damaged)

    def _on_full(self) -> None:
        self._reserve.release()

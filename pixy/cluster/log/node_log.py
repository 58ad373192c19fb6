"""The log of a node: its journal, the driver of its raft groups, and the writer of its segments.

Everything between a proposal and stable storage that needs no knowledge of topics. A node owns one,
and tells its driver what entries mean (`Driver.bind`).

Back-pressure is in front: record batches are proposed while the entries that are not applied, and
the applied batches that are in no segment, are at most `journal.max_unapplied_bytes`. Beyond that
they wait, each raft group by itself, and in any case while what is not applied of one is more than
the room that is left. Commands never wait for it, and the journal never does: votes,
offsets and retention must pass. A follower takes what a leader has proposed, up to the same limit
of applied batches that are in no segment.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple

from pixy.clock import Clock
from pixy.cluster.log.applied_positions import AppliedPositionWriter, positions_record
from pixy.cluster.log.checkpoints import Checkpoints
from pixy.cluster.log.entry_loading import EntryLoading
from pixy.cluster.log.incarnation import Incarnation
from pixy.cluster.log.journal_retention import JournalRetention, RetentionDependencies
from pixy.cluster.log.node_options import NodeOptions, unsynced_logs_max
from pixy.cluster.log.partition_snapshots import Takeovers, position_records, take_over
from pixy.cluster.log.peer_start_record import PeerStartRecord
from pixy.cluster.log.recovery import RecoveredNode
from pixy.cluster.log.relocation import Relocation
from pixy.cluster.log.replica import PartitionReplica, RestoredState, StateReplica
from pixy.cluster.state import is_topic_deletion, why_not_proposable
from pixy.errors import PixyError, Unavailable
from pixy.metrics import Histogram
from pixy.multiraft import (
    CACHE_BYTES,
    COMMIT_DELAY_S,
    RAFT_CONFIG,
    Apply,
    Driver,
    DriverHooks,
    DriverOptions,
    DriverPeers,
    RaftGroup,
)
from pixy.proto.state_pb2 import AppliedPosition
from pixy.raft import RaftConfig, RandomSource, Snapshot
from pixy.storage import (
    CheckpointId,
    DamagedLog,
    Disk,
    EntryType,
    Journal,
    JournalOptions,
    JournalReader,
    LogWriter,
    LogWriterOptions,
    UnitRecord,
    Worker,
)

_NO_LIMIT = 1 << 62
_WRITING_S = 0.1
"""Seconds after a flush for which clients count as writing: shorter than the time between two
commits of offsets.
"""
_SPARE_SHARE = 4
_SPARE_BYTES_MAX = 8 << 20
"""Part of a journal file that is kept for deletions behind it: what waits before one must fit too,
a flush or two, which have 4 MiB and one unit each at most.
"""


def _no_copies(*_: object) -> None:
    """A node without peers has nobody to copy from."""
    raise AssertionError("a node without peers has a copy of a partition")


@dataclass(frozen=True, slots=True)
class LogPeers(DriverPeers):
    """The other nodes of a cluster.

    Attributes:
        random: source of randomness for election timeouts.
        config: options of the Raft core.
        cache_bytes: limit of the applied entries in memory, for nodes that are close behind.
        commit_delay_s: see `DriverOptions`.
    """

    why_not_proposable: Callable[[int, int, bytes | bytearray, int], str] = why_not_proposable
    random: RandomSource = field(default_factory=Random)
    config: RaftConfig = RAFT_CONFIG
    cache_bytes: int = CACHE_BYTES
    commit_delay_s: float = COMMIT_DELAY_S


@dataclass(frozen=True, slots=True)
class LogHooks:
    """Functions of its node that the log calls.

    Attributes:
        drop_segments: removes the segments of a partition below an offset.
        on_restored: called when the state of a state group was replaced by the leader's.
        on_positions: called when applied positions have become durable.
        on_damaged: called with a partition whose segments cannot be written any more.
        on_full: called when the disk is full.
        on_fault: called with the error when nothing can be made durable any more.
        install: replaces the log of a partition by its copy, whose applied position is durable.
    """

    drop_segments: Callable[[PartitionReplica, int], None]
    on_restored: Callable[[StateReplica], None]
    on_positions: Callable[[], None]
    on_damaged: Callable[[DamagedLog], None]
    on_full: Callable[[], None]
    on_fault: Callable[[BaseException], None]
    install: Callable[[PartitionReplica, AppliedPosition], None] = _no_copies


class LogCounters(NamedTuple):
    """Numbers of a node's log.

    Attributes:
        sync_s: time to write and sync a flush of the journal.
        commit_s: see `CommitTimes`.
        unwritten_bytes: of the journal, in no segment.
        unapplied_bytes: of entries that are not applied.
        leader_changes: see `Driver`.
    """

    sync_s: Histogram
    commit_s: Histogram
    unwritten_bytes: int
    unapplied_bytes: int
    leader_changes: int


class NodeLog:
    """Journal, raft groups and segments of one node.

    Args:
        disk, clock: the disk and the clock that it runs on.
        options: configuration of the node.
        recovered: contents of its data directory.
        files: the thread for reads of files.
        hooks: see `LogHooks`.
        peers: see `LogPeers`.

    Attributes:
        journal, incarnation, peer_starts, driver, writer, checkpoints, retention: its parts.
        disk, directory, files: as given.
        copying: the thread that reads and writes files for copies of partitions.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        options: NodeOptions,
        recovered: RecoveredNode,
        files: Worker,
        hooks: LogHooks,
        peers: LogPeers = LogPeers(),
    ) -> None:
        self.disk = disk
        self.directory = options.directory
        self.files = files
        self.copying = options.worker("pixy-copies", background=True)
        self._clock = clock
        self._options = options
        self._hooks = hooks
        self._stopping = False
        directory = options.directory / "journal"
        owner = (recovered.identity.cluster_id, recovered.identity.node_id)
        self._reader = JournalReader(disk, directory, owner)
        self.journal = Journal(
            disk,
            options.worker("pixy-journal", background=False),
            JournalOptions(
                directory,
                owner,
                options.journal.file_bytes,
                at=recovered.journal.at,
                files=recovered.journal.files,
                spare_bytes=min(options.journal.file_bytes // _SPARE_SHARE, _SPARE_BYTES_MAX),
            ),
            on_durable=self._durable,
            on_fault=hooks.on_fault,
            on_full=hooks.on_full,
            frees_space=is_topic_deletion,
        )
        self.incarnation = Incarnation(self.journal, recovered.journal.incarnation)
        self.peer_starts = PeerStartRecord(
            self.journal, clock, recovered.journal.peer_starts, recovered.journal.peer_starts_file
        )
        self.driver = self._make_driver(recovered.identity.node_id, peers)
        self._positions = AppliedPositionWriter(
            self.journal, self.driver.groups, hooks.drop_segments, self._on_positions
        )
        # Applied positions of copies that are complete, and about to be installed.
        self._copied: dict[RaftGroup, AppliedPosition] = {}
        self.takeovers = Takeovers(self.driver.snapshots)
        self.writer = self._make_writer()
        self.checkpoints = self._make_checkpoints()
        self.retention = self._make_retention()

    def _durable(self, tokens: list[Any]) -> None:
        self.driver.durable(tokens)

    def _make_driver(self, node_id: int, peers: LogPeers) -> Driver:
        loading = EntryLoading(self.journal, self._reader, self.files)
        return Driver(
            self.journal,
            DriverHooks(
                room=self.room,
                keeps_up=self._keeps_up,
                fault=self._hooks.on_fault,
                load=loading.load,
                reset_records=self.reset_records,
                restore=self._restore,
                peers=peers,
            ),
            DriverOptions(
                node_id,
                self.incarnation.number,
                peers.random,
                peers.cache_bytes,
                config=peers.config,
                commit_delay_s=peers.commit_delay_s,
            ),
        )

    def _make_writer(self) -> LogWriter:
        options = self._options
        return LogWriter(
            options.worker("pixy-writer", background=True),
            LogWriterOptions(
                tail_cache_bytes=options.storage.tail_cache_bytes,
                sync_bytes=options.journal.max_unapplied_bytes // 2,
                sync_logs=unsynced_logs_max(self.disk.open_file_limit()),
                pace=options.writer_pace,
            ),
            on_synced=self._positions.synced,
            on_progress=self._on_progress,
            on_damaged=self._hooks.on_damaged,
            on_full=self._hooks.on_full,
            on_fault=self._hooks.on_fault,
        )

    def _make_checkpoints(self) -> Checkpoints:
        return Checkpoints(
            self._options.storage,
            self._clock,
            self.files,
            self._propose_empty,
            on_written=self._on_checkpoint,
            on_full=self._on_full_checkpoint,
            on_fault=self._hooks.on_fault,
        )

    def _make_retention(self) -> JournalRetention:
        groups, config = self.driver.groups, self._options.journal
        relocation = Relocation(
            self.journal, groups, config.file_bytes, self.files, self._reader, self._hooks.on_fault
        )
        parts = RetentionDependencies(
            self._positions,
            self.checkpoints,
            relocation,
            self.driver.departed,
            self.incarnation,
            self.peer_starts,
        )
        return JournalRetention(self.journal, groups, parts, config)

    # --- what the node asks for -------------------------------------------------------------------

    @property
    def blocked(self) -> Unavailable | None:
        """Reason why records cannot be written at the moment, None if they can."""
        return self.journal.blocked or self.writer.blocked

    @property
    def stalled(self) -> Unavailable | None:
        """Reason why nothing can be made durable at the moment, None if it can."""
        return self.journal.blocked

    @property
    def clients_write(self) -> bool:
        """True while clients count as writing here: the journal was flushed a moment ago."""
        return asyncio.get_running_loop().time() - self.journal.flushed_at < _WRITING_S

    def room(self) -> int:
        """Bytes of record batches that may be proposed, see the module; below 0 none."""
        if self._stopping:
            return _NO_LIMIT
        waiting = self.driver.unapplied_bytes + self.writer.unwritten_bytes
        return self._options.journal.max_unapplied_bytes - waiting

    async def stop(self) -> None:
        """Make everything durable that was accepted. No proposal may follow.

        Entries that cannot be written, on a full disk, are left to the next start.
        """
        self._stopping = True
        self.retention.stop()
        # Accepted entries are written, whether or not segments have room.
        await self.driver.resume_all()
        await self.journal.drained()
        await self.writer.stop()
        await self.journal.stop()
        self.driver.stop()

    def give_up(self, fault: BaseException) -> None:
        """Answer nothing more, after a fault."""
        self.retention.stop()
        self.driver.stop(fault)
        self.journal.give_up()

    def abandon(self) -> None:
        """Stop the threads without further writes."""
        self.copying.stop()
        self.writer.abandon()
        self.journal.abandon()

    def bind(self, replica: StateReplica, apply: Apply) -> None:
        """Set the application of a state group, whose checkpoints followers get."""
        self.driver.snapshots.offer(replica.group, partial(self.checkpoints.snapshot, replica))
        self.driver.bind(replica.group, replica, apply)

    def install(
        self,
        replica: StateReplica,
        snapshot: Snapshot,
        restored: RestoredState,
        records: Iterable[tuple[bytes, bytes]] | None = None,
    ) -> None:
        """Continue a state group from a checkpoint of its leader, the one that was asked for with
        `LogPeers.fetch`.

        Args:
            snapshot: the one that is awaited.
            restored: its state.
            records: see `Checkpoints.install`.
        """
        id = CheckpointId(snapshot.term, snapshot.index)

        def written(durable: bool) -> None:
            if not durable:
                self.driver.snapshots.failed(replica.group, snapshot, silently=records is None)
            elif not self.driver.snapshots.arrived(replica.group, snapshot):
                self.checkpoints.not_needed(replica, id)

        self.checkpoints.install(replica, id, restored, written, records)

    @property
    def counters(self) -> LogCounters:
        """Present numbers."""
        driver = self.driver
        return LogCounters(
            self.journal.sync_s,
            driver.commit_times.seconds,
            self.writer.unwritten_bytes,
            driver.unapplied_bytes,
            driver.leader_changes,
        )

    def install_copy(self, group: RaftGroup, snapshot: Snapshot, position: AppliedPosition) -> bool:
        """Continue a partition from the position of its leader, with the files of a staged copy.

        Args:
            position: the applied position that the copy is complete for.

        Returns:
            False if it is not needed any more.
        """
        self._copied[group] = position
        if self.driver.snapshots.arrived(group, snapshot):
            return True
        del self._copied[group]
        return False

    def install_anew(self, replica: PartitionReplica, position: AppliedPosition) -> None:
        """Replace the files of a partition, whose entries are held, by a staged copy.

        Args:
            position: the applied position that the copy is complete for, of the applied entry.
        """
        assert replica.group is not None
        assert replica.group.held is not None
        assert replica.group.applied_index == position.index
        self._positions.write([position], partial(self._hooks.install, replica, position))

    def is_installing(self, group: RaftGroup) -> bool:
        """True while the entries of a partition wait for the files of a copy, from `install_copy`
        on.
        """
        return group in self._copied or group.held is not None

    # --- between the parts ------------------------------------------------------------------------

    def _keeps_up(self) -> bool:
        return self.writer.unwritten_bytes <= self._options.journal.max_unapplied_bytes

    def _propose_empty(self, replica: StateReplica, done: Callable[[bool], None]) -> None:
        def applied(result: object) -> None:
            done(not isinstance(result, PixyError))

        self.driver.propose(replica.group, EntryType.EMPTY, b"", applied)

    def _on_positions(self) -> None:
        self.takeovers.positions_durable()
        self.retention.maybe_remove()
        self._hooks.on_positions()

    def _on_checkpoint(self, replica: StateReplica) -> None:
        self.driver.snapshots.ready(replica.group)
        self.retention.maybe_remove()

    def reset_records(self, group: RaftGroup, snapshot: Snapshot) -> list[UnitRecord]:
        """See `DriverHooks`."""
        copied = self._copied.get(group)
        if copied is None:
            return position_records(group, snapshot)
        assert copied.index == snapshot.index
        group.position = copied
        return [positions_record([copied])]

    def _restore(self, group: RaftGroup, snapshot: Snapshot) -> None:
        replica = group.application
        if isinstance(replica, PartitionReplica):
            assert group.position is not None
            group.position_file, group.begin = self.journal.files[-1].number, group.position
            copied = self._copied.pop(group, None)
            if copied is not None:
                self._hooks.install(replica, copied)
                return
            take_over(replica, group.position)
            if replica.log.has_segments_below(replica.log.begin_offset):
                self._hooks.drop_segments(replica, replica.log.begin_offset)
            return
        assert isinstance(replica, StateReplica)
        self.checkpoints.restored(replica, snapshot)
        self._hooks.on_restored(replica)

    def _on_full_checkpoint(self) -> None:
        self._hooks.on_full()
        self.retention.retry_later()

    def _on_progress(self) -> None:
        if self.room() >= 0:
            self.driver.resume()
